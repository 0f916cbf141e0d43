"""Report of a plan: clearance, contact, margins to the robot's limits, moved objects, warnings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import RolloutError
from kinema4d_ros.core.outcomes import Outcome, PointBasis, outcome_lines
from kinema4d_ros.core.rollout import WARNING, DepthBasis, Rollout
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.generators.composite import MARGIN_PX
from kinema4d_ros.generators.inpaint import grow_mask
from kinema4d_ros.previews.report.clearance import HELD, Clearance, clearance_over_time, hidden_pixels
from kinema4d_ros.previews.report.grasped import find_grasped
from kinema4d_ros.previews.report.motion import Motion, MovedRegion, find_motion
from kinema4d_ros.robot.model import Robot

if TYPE_CHECKING:
    from kinema4d_ros.generators.draft.robustness import Robustness

__all__ = ["CONTACT_M", "Margins", "PlanReport", "clearance_text", "joint_margins", "make_report", "outcomes_text"]

# Margins of a plan to the position and speed limits of each joint.


@dataclass(frozen=True, eq=False)
class Margins:
    """Minimum margins of every actuated joint.

    Attributes:
        joint_names: J names.
        position: (J,) float64, least distance to a position limit, rad or m; negative = outside, infinite for
            joints without limits.
        velocity_ratio: (J,) float64, largest speed / limit; above 1 = too fast, infinite for motion of a joint
            whose limit is 0.
    """

    joint_names: tuple[str, ...]
    position: NDArray[np.float64]
    velocity_ratio: NDArray[np.float64]


def joint_margins(robot: Robot, trajectory: JointTrajectory) -> Margins:
    """Compute margins along a trajectory: along its spline if it has one, otherwise from mean speeds of samples."""
    dense = trajectory.dense()
    q = dense.for_robot(robot)
    position = np.minimum(q - robot.lower, robot.upper - q).min(axis=0)
    limit = np.array([joint.limits.velocity for joint in robot.actuated], dtype=np.float64)
    speed = np.zeros(len(limit))
    if len(q) > 1:
        speed = np.abs(np.diff(q, axis=0) / np.diff(dense.times)[:, None]).max(axis=0)
    if (rates := trajectory.rates(robot, dense.times)) is not None:
        speed = np.maximum(speed, np.abs(rates).max(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(speed > 0, speed / limit, 0.0)
    return Margins(robot.joint_names, position, ratio)


CONTACT_M = 0.005
"""Clearance below this counts as contact: calibration and depth cameras are not more accurate."""

_MOTION_M = 0.02
_UNEXPLAINED = 0.02

BASIS_TEXT: Mapping[str, str] = {
    "measured": "",
    "lifted": "by depth guessed from the picture",
    "plane": "to the assumed table",
    "unknown": "without known depth",
}
"""Text next to a clearance, by its basis."""


@dataclass(frozen=True, eq=False)
class PlanReport:
    """The fields of kinema4d_msgs/PlanReport; points are (3,) float64, metres, in `frame_id`.

    Attributes:
        plan_hash, rollout_id: of the rollout.
        frame_id: the robot's base frame.
        times: (T,) float64, seconds since the first frame.
        clearance_m: (T,) minimum distance between robot, including a held object, and scene; negative = penetration
            depth; NaN = unknown.
        clearance_basis: source of the nearest scene point.
        min_clearance_m, min_clearance_s, min_clearance_link: the minimum, its time and its link; NaN and "" without
            any.
        min_clearance_robot_point, min_clearance_world_point: the two points; NaN without any.
        contact: clearance falls below `contact_threshold_m`.
        first_contact_s, first_contact_link, first_contact_point: NaN and "" when there is none.
        max_penetration_m: 0 when there is none.
        grasp_s: time at which the fingers have closed on an object; touching it is not a contact. NaN = no grasp.
        release_s: time at which they open again; until then the object is part of the robot. NaN = no release.
        joint_names: J names of the actuated joints.
        position_margin: (J,) least distance to a position limit, rad or m; negative = outside.
        velocity_ratio: (J,) largest speed / limit; above 1 = too fast.
        moved: largest displacement first; of the shown outcome if the generator states how its objects move.
        outcomes: the rollout's, with times since the first frame; empty = the generator states none.
        unknowns: the rollout's: why the generator cannot tell what happens; empty = it can.
        warnings: one sentence each.
        clearance_links: T names, the nearest link of each frame; not part of the message.
        robustness: by how much the grasp may be off, if it was asked for; has a topic of its own.
    """

    plan_hash: str
    rollout_id: str
    frame_id: str
    times: NDArray[np.float64]
    clearance_m: NDArray[np.float64]
    min_clearance_m: float
    min_clearance_s: float
    min_clearance_link: str
    min_clearance_robot_point: NDArray[np.float64]
    min_clearance_world_point: NDArray[np.float64]
    contact: bool
    contact_threshold_m: float
    first_contact_s: float
    first_contact_link: str
    first_contact_point: NDArray[np.float64]
    max_penetration_m: float
    joint_names: tuple[str, ...]
    position_margin: NDArray[np.float64]
    velocity_ratio: NDArray[np.float64]
    moved: tuple[MovedRegion, ...]
    warnings: tuple[str, ...]
    clearance_basis: DepthBasis = "unknown"
    grasp_s: float = math.nan
    release_s: float = math.nan
    clearance_links: tuple[str, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    unknowns: tuple[str, ...] = ()
    robustness: Robustness | None = None


def make_report(
    rollout: Rollout,
    robot: Robot,
    q: ArrayLike,
    *,
    plan: JointTrajectory | None = None,
    ignore_links: Sequence[str] | None = None,
    contact_threshold_m: float = CONTACT_M,
    motion_threshold_m: float = _MOTION_M,
) -> PlanReport:
    """Compute the report of a rollout.

    Args:
        rollout: predicted scene, with the camera's pose in the base frame.
        robot: with shapes and limits.
        q: (T, J) positions in `robot.joint_names` order, one row for each frame of the rollout.
        plan: the plan with its own samples, for the margins; by default the rollout's frames, whose mean speeds
            may hide a short peak.
        ignore_links: links to ignore for the distance; by default those that no joint moves.
        contact_threshold_m: clearance below this is contact.
        motion_threshold_m: smaller motions of scene points are noise.
    """
    for name, value in (("contact_threshold_m", contact_threshold_m), ("motion_threshold_m", motion_threshold_m)):
        if not (math.isfinite(value) and value > 0):
            raise RolloutError(f"{name} is {value}", expected="a positive number of metres")
    hidden = hidden_pixels(rollout)
    frames = JointTrajectory.from_positions(robot.joint_names, q, times=rollout.times)
    grasped = find_grasped(rollout, robot, frames.positions, hidden)
    clearance = clearance_over_time(rollout, robot, q, ignore_links=ignore_links, hidden=hidden, grasped=grasped)
    margins = joint_margins(robot, frames if plan is None else plan)
    motion = _stated_motion(rollout, motion_threshold_m)
    if motion is None:
        motion = find_motion(rollout, threshold_m=motion_threshold_m, hidden=hidden)

    times = rollout.times - rollout.times[0]
    distance = clearance.distance_m
    known = np.isfinite(distance)
    least = int(np.nanargmin(distance)) if known.any() else None
    touching = np.flatnonzero(known & (distance < contact_threshold_m))
    first = int(touching[0]) if len(touching) else None
    basis = _basis(rollout, clearance, least)
    warnings = _warnings(rollout, robot, clearance, first, times, margins, motion, basis)
    if basis == "unknown":
        # Contacts are still reported; a distance would be misleading.
        least, distance = None, np.full_like(distance, np.nan)
    first_grasp = grasped[0].grasp if grasped else None
    nowhere = np.full(3, np.nan)
    return PlanReport(
        plan_hash=rollout.plan_hash,
        rollout_id=rollout.rollout_id,
        frame_id=rollout.camera.base_frame,
        times=times,
        clearance_m=distance,
        clearance_basis=basis,
        min_clearance_m=math.nan if least is None else float(distance[least]),
        min_clearance_s=math.nan if least is None else float(times[least]),
        min_clearance_link="" if least is None else clearance.link[least],
        min_clearance_robot_point=nowhere if least is None else clearance.robot_point[least],
        min_clearance_world_point=nowhere if least is None else clearance.world_point[least],
        contact=first is not None,
        contact_threshold_m=contact_threshold_m,
        first_contact_s=math.nan if first is None else float(times[first]),
        first_contact_link="" if first is None else clearance.link[first],
        first_contact_point=nowhere if first is None else clearance.world_point[first],
        max_penetration_m=max(0.0, -float(distance[least])) if least is not None else 0.0,
        grasp_s=math.nan if first_grasp is None else float(times[first_grasp.closed]),
        release_s=float(times[first_grasp.release]) if first_grasp and first_grasp.release < len(times) else math.nan,
        joint_names=margins.joint_names,
        position_margin=margins.position,
        velocity_ratio=margins.velocity_ratio,
        moved=motion.moved,
        warnings=tuple(warnings),
        clearance_links=clearance.link,
        outcomes=tuple(_since(one, float(rollout.times[0])) for one in rollout.outcomes),
        unknowns=rollout.unknowns,
    )


def _stated_motion(rollout: Rollout, threshold_m: float) -> Motion | None:
    """Return the objects that the shown outcome moves, as its generator states; None = it does not state them.

    In pixels, a wall that is filled in beside the robot's first image looks like a moved object; poses do not err so.
    """
    objects = rollout.outcomes[0].objects if rollout.outcomes else None
    if objects is None:
        return None
    moved = [
        MovedRegion(
            start=np.array(one.start),
            end=np.array(one.end),
            displacement_m=one.displacement_m,
            points=0,
            first_motion_s=one.first_motion_s - float(rollout.times[0]),
            track=np.empty((0, 3)),
        )
        for one in objects
        if one.first_motion_s is not None and one.displacement_m > threshold_m
    ]
    return Motion(tuple(sorted(moved, key=lambda one: -one.displacement_m)), 0.0)


def _since(outcome: Outcome, start_s: float) -> Outcome:
    """Return the outcome with times that count from `start_s`."""
    objects = outcome.objects
    if objects is not None:
        objects = tuple(
            one if one.first_motion_s is None else replace(one, first_motion_s=one.first_motion_s - start_s)
            for one in objects
        )
    return replace(outcome, events=tuple((moment - start_s, text) for moment, text in outcome.events), objects=objects)


def clearance_text(report: Any) -> str:
    """Format the minimum clearance, its link and its basis on one line, of a `PlanReport` or of its message."""
    if not math.isfinite(report.min_clearance_m):
        return "unknown"
    basis = BASIS_TEXT.get(report.clearance_basis, "")
    where = f"'{report.min_clearance_link}' at {report.min_clearance_s:.2f} s"
    return f"{1000 * report.min_clearance_m:.0f} mm{' ' if basis else ''}{basis}: {where}"


def outcomes_text(report: Any) -> str:
    """Format the outcomes as in "83 % lifted, 17 % slips", of a `PlanReport` or of its message; "" without any.

    >>> from types import SimpleNamespace
    >>> outcomes_text(SimpleNamespace(outcomes=[Outcome(0.83, "lifted"), Outcome(0.1, "slips")]))
    '83 % lifted, 10 % slips, 7 % not known'
    """
    return ", ".join(outcome_lines(report.outcomes))


def _basis(rollout: Rollout, clearance: Clearance, frame: int | None) -> DepthBasis:
    """Return the source of the nearest scene point of a frame."""
    if frame is None:
        return "unknown"
    if rollout.basis is not None:
        return _stated_basis(rollout, rollout.basis, clearance, frame)
    depth = rollout.provenance.depth
    if depth == "measured":
        # Behind the robot of the first image no depth was measured: generators assume the table there.
        unseen = grow_mask(rollout.robot_mask[0], MARGIN_PX * rollout.camera.width / 720)
        return "plane" if unseen[tuple(clearance.pixel[frame])] else "measured"
    return depth


def _stated_basis(rollout: Rollout, basis: NDArray[np.uint8], clearance: Clearance, frame: int) -> DepthBasis:
    """Return the source of the nearest scene point as the generator states it for every pixel.

    A point on the assumed table is a guess, so that its distance is unknown. A fitted shape counts as its provenance
    says: it was fitted to measured depth, or to the image alone.
    """
    row, column = clearance.pixel[frame]
    # The scene keeps the last point seen at a pixel: find the frame that showed it.
    p_base = apply(rollout.camera.base_T_camera, rollout.xyz[:, row, column].astype(np.float64))
    away = np.linalg.norm(p_base - clearance.world_point[frame], axis=1)
    source = PointBasis(basis[int(np.nanargmin(away)), row, column])
    if source == PointBasis.MEASURED:
        return "measured"
    if source == PointBasis.FITTED:
        return "measured" if rollout.provenance.depth == "measured" else "unknown"
    return "lifted" if source in (PointBasis.LIFTED, PointBasis.GENERATED) else "unknown"


def _warnings(
    rollout: Rollout,
    robot: Robot,
    clearance: Clearance,
    first: int | None,
    times: NDArray[np.float64],
    margins: Margins,
    motion: Motion,
    basis: DepthBasis,
) -> list[str]:
    out = [f"The outcome cannot be told: {text}" for text in rollout.unknowns]
    distance = clearance.distance_m
    if first is not None:
        named = "The held object" if clearance.link[first] == HELD else f"Link '{clearance.link[first]}'"
        out.append(f"{named} touches the scene at {times[first]:.2f} s.")
    known = np.isfinite(distance)
    if known.any() and basis != "unknown" and np.nanmin(distance) < 0:
        worst = int(np.nanargmin(distance))
        out.append(
            f"Link '{clearance.link[worst]}' is {-1000 * distance[worst]:.0f} mm inside the scene"
            f" at {times[worst]:.2f} s."
        )
    if not known.any():
        out.append("No point of the scene is known: clearance is unknown.")
    if not clearance.closed:
        out.append("Some meshes are open: penetration of their links is not detected, only their distance.")
    if known.any() and basis == "unknown":
        out.append(
            "The source of the scene's points is unknown: clearance is unknown."
            if rollout.basis is None
            else "The nearest point is on the assumed table or not stated: clearance is unknown."
        )
    depth = rollout.provenance.depth
    if basis == "unknown":
        pass
    elif depth == "plane":
        out.append("No depth was measured: clearance is to the assumed table only, not to objects on it.")
    elif depth == "lifted":
        out.append("No depth was measured: clearance is to depth estimated by a network, which may miss objects.")
    elif basis == "plane":
        out.append("The nearest point was hidden by the robot: clearance there is to the assumed table.")
    if WARNING in rollout.provenance.versions:
        out.append(rollout.provenance.versions[WARNING])
    units = {joint.name: "m" if joint.kind == "prismatic" else "rad" for joint in robot.actuated}
    for name, margin, ratio in zip(margins.joint_names, margins.position, margins.velocity_ratio, strict=True):
        if margin < 0:
            out.append(f"Joint '{name}' leaves its limits by {-margin:.3g} {units[name]}.")
        if ratio > 1:
            out.append(f"Joint '{name}' moves at {ratio:.2f} times its speed limit.")
    if motion.unexplained > _UNEXPLAINED:
        out.append(f"{100 * motion.unexplained:.0f} % of the visible scene changes, but not as a moved object.")
    return out
