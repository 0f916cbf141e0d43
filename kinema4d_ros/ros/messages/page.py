"""Conversion of messages for the web page: report, lab objects, reduced rollout, preview progress."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from visualization_msgs.msg import Marker

from kinema4d_msgs.msg import PreviewStatus
from kinema4d_ros.core.errors import ErrorCode, KinemaError, PointmapError
from kinema4d_ros.core.outcomes import outcome_lines
from kinema4d_ros.core.rollout import DepthBasis, Frames
from kinema4d_ros.physics.objects import ODD_SHAPES, LabObject, PlacedObject, Shape
from kinema4d_ros.previews.report import MovedRegion, PlanReport
from kinema4d_ros.ros.messages.errors import error_from_msg
from kinema4d_ros.ros.messages.outcomes import alternatives_from_msg, outcomes_from_msg
from kinema4d_ros.ros.messages.poses import pose_to_matrix
from kinema4d_ros.ros.messages.rollout import MAX_TIME_S, basis_from_msg, predicted_frames, require_whole
from kinema4d_ros.web.page import Progress
from kinema4d_ros.web.prediction import Prediction, maker

__all__ = ["objects_from_markers", "prediction_from_msg", "progress_from_msg", "report_from_msg"]

MAX_LENGTH_M = 1e4
"""Upper bound on lengths in a report; an arm works on a much smaller scale."""

NAME_LETTERS = 64

_SHAPES: dict[int, Shape] = {Marker.CUBE: "box", Marker.CYLINDER: "cylinder", Marker.SPHERE: "sphere"}


def report_from_msg(message: Any) -> PlanReport:
    """Convert a kinema4d_msgs/PlanReport to a report; raise WIRE_CORRUPT for inconsistent numbers."""
    times = np.array(message.times, dtype=np.float64)
    clearance = np.array(message.clearance_m, dtype=np.float64)
    margins = (message.position_margin, message.velocity_ratio)
    if clearance.shape != times.shape or any(len(m) != len(message.joint_names) for m in margins):
        raise PointmapError(
            f"a report with {len(times)} times and {len(clearance)} clearances, {len(message.joint_names)} joints"
            f" and {len(margins[0])} and {len(margins[1])} margins",
            expected="one clearance for each time and one margin for each joint",
            code=ErrorCode.WIRE_CORRUPT,
        )
    _require_drawable(message, times, clearance)
    return PlanReport(
        plan_hash=message.plan_hash,
        rollout_id=message.rollout_id,
        frame_id=message.header.frame_id,
        times=times,
        clearance_m=clearance,
        min_clearance_m=message.min_clearance_m,
        min_clearance_s=message.min_clearance_s,
        min_clearance_link=_line(message.min_clearance_link),
        min_clearance_robot_point=_point(message.min_clearance_robot_point),
        min_clearance_world_point=_point(message.min_clearance_world_point),
        clearance_basis=message.clearance_basis if message.clearance_basis in get_args(DepthBasis) else "unknown",
        grasp_s=message.grasp_s,
        release_s=message.release_s,
        contact=message.contact,
        contact_threshold_m=message.contact_threshold_m,
        first_contact_s=message.first_contact_s,
        first_contact_link=_line(message.first_contact_link),
        first_contact_point=_point(message.first_contact_point),
        max_penetration_m=message.max_penetration_m,
        joint_names=tuple(_line(name) for name in message.joint_names),
        position_margin=np.array(margins[0], dtype=np.float64),
        velocity_ratio=np.array(margins[1], dtype=np.float64),
        moved=tuple(
            # The message does not contain the path between start and end.
            MovedRegion(_point(r.start), _point(r.end), r.displacement_m, r.points, r.first_motion_s, np.empty((0, 3)))
            for r in message.moved
        ),
        warnings=tuple(message.warnings),
        outcomes=outcomes_from_msg(message.outcomes),
        unknowns=tuple(message.unknowns),
    )


def _require_drawable(message: Any, times: NDArray[np.float64], clearance: NDArray[np.float64]) -> None:
    """Reject values that cannot be plotted; NaN clearance is allowed and means unknown."""
    known = np.abs(clearance[~np.isnan(clearance)])
    in_order = len(times) > 0 and np.all((times >= 0) & (times < MAX_TIME_S)) and np.all(np.diff(times) > 0)
    if not (in_order and np.all(known < MAX_LENGTH_M) and 0 < message.contact_threshold_m < MAX_LENGTH_M):
        raise PointmapError(
            f"a report with times {times[:1]} to {times[-1:]} s, clearances up to {known.max(initial=0.0):g} m and"
            f" contact below {message.contact_threshold_m:g} m",
            expected=f"increasing times below {MAX_TIME_S:g} s, and metres below {MAX_LENGTH_M:g}",
            code=ErrorCode.WIRE_CORRUPT,
        )


def objects_from_markers(message: Any) -> dict[str, PlacedObject]:
    """Return the lab's objects by name, the scenario's target first, from its visualization_msgs/MarkerArray.

    A marker's size is the object's bounding box, its text the words "target" for the target and the shape of an odd
    one; mass and friction are not in the message.
    """
    found: list[tuple[bool, PlacedObject]] = []
    for marker in message.markers:
        if marker.action != Marker.ADD or marker.type not in _SHAPES or not marker.ns:
            continue
        words = marker.text.split()
        thing = LabObject(
            name=marker.ns,
            shape=next((shape for shape in ODD_SHAPES if shape in words), _SHAPES[marker.type]),
            size=(marker.scale.x, marker.scale.y, marker.scale.z),
            rgb=(marker.color.r, marker.color.g, marker.color.b),
            mass=0.0,
        )
        found.append(("target" in words, PlacedObject(thing, pose_to_matrix(marker.pose))))
    return {placed.name: placed for _, placed in sorted(found, key=lambda entry: not entry[0])}


def prediction_from_msg(message: Any, max_points: int, cancelled: Callable[[], bool], outcome: int = 0) -> Prediction:
    """Decode one outcome of a kinema4d_msgs/Rollout frame by frame for the page; InterruptedError when cancelled."""
    camera = require_whole(message)
    outcomes = outcomes_from_msg(message.outcomes)
    if not 0 <= outcome < max(len(outcomes), 1):
        raise PointmapError(f"outcome {outcome} of {len(outcomes)}", expected="one of the rollout's outcomes")
    patches = None
    if outcome:
        shape = (len(message.times), camera.height, camera.width)
        patches = alternatives_from_msg(message.alternatives, shape)[outcome - 1]

    def part(t: int) -> tuple[Frames, NDArray[np.uint8] | None]:
        frames = predicted_frames(message, camera, slice(t, t + 1))
        basis = basis_from_msg(message, camera, slice(t, t + 1))
        if patches is not None:
            rgb, xyz, mask = frames.arrays
            patches[t].write(rgb[0], xyz[0], mask[0], None if basis is None else basis[0])
        return frames, basis

    return Prediction.from_frames(
        map(part, range(len(message.times))),
        camera,
        np.array(message.times, dtype=np.float64),
        max_points,
        rollout_id=message.rollout_id,
        plan_hash=message.plan_hash,
        maker=maker(message.provenance.generator, message.provenance.preset),
        depth=message.provenance.depth,
        outcomes=outcome_lines(outcomes)[: len(outcomes)],
        outcome=outcome,
        cancelled=cancelled,
    )


def progress_from_msg(message: Any) -> tuple[Progress, KinemaError | None]:
    """Convert a kinema4d_msgs/PreviewStatus to the preview's progress and its error, or None."""
    phase, status = message.phase, PreviewStatus
    if phase == status.GENERATING:
        known = message.steps > 0
        words = [message.detail] if message.detail else []
        words += [f"{message.step} of {message.steps}"] if known else []
        words += [f"about {message.eta_s:.0f} s left"] if math.isfinite(message.eta_s) else []
        fraction = message.step / message.steps if known else 0.0
        return Progress("busy", "generating", ", ".join(words), fraction, known), None
    busy = {status.CHECKING: "checking", status.RENDERING: "drawing the robot", status.REPORTING: "measuring"}
    if phase in busy:
        return Progress("busy", busy[phase], "", 0.0), None
    if phase == status.DONE:
        return Progress("good", "done", f"in {sum(message.stage_s):.1f} s"), None
    if phase == status.FAILED:
        return Progress("bad", "failed", ""), error_from_msg(message.error)
    if phase == status.SUPERSEDED:
        return Progress("quiet", "replaced", "by a newer plan"), None
    return Progress("quiet", "idle", ""), None


def _line(text: str) -> str:
    """Return the text as one line of at most `NAME_LETTERS` printable characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:NAME_LETTERS])


def _point(point: Any) -> NDArray[np.float64]:
    return np.array([point.x, point.y, point.z])
