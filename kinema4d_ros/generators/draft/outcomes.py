"""Distinct outcomes of a draft's members, with probabilities: "object_2 lifted" 0.83, "object_2 slips out" 0.17.

    MemberRuns ─> fate of every object ─> groups with equal fates ─> DraftOutcome: share, label, medoid, contacts

Limits of "lifted" and "pushed" are those of `core.task`, so that an outcome and a task's verdict agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.pointmap import GripTrack
from kinema4d_ros.core.task import Lifted, PushedBy, Task
from kinema4d_ros.core.transforms import apply, invert, rotation_angle
from kinema4d_ros.generators.draft.scene import Estimate, FittedScene
from kinema4d_ros.physics.ensemble import Contact, MemberRun

__all__ = ["DraftOutcome", "Fate", "FateKind", "cluster_outcomes", "smoothed", "success_share"]

Array = NDArray[np.float64]

FateKind = Literal["stays", "nudged", "pushed", "toppled", "lifted", "dropped", "put down", "came down", "fell"]

MOVED_M = 0.005
"""Displacements below this are within the error of a fit and count as staying."""
TOPPLED_RAD = np.radians(40.0)
"""Change of an object's upright axis that no push along the table makes."""
FALLEN_M = 0.05
"""An object whose centre is this far below the table has left it."""
LOWERED_M = 0.015
"""An object this far below its start has left what it stood on."""
GRIP_MARGIN_M = 0.012
"""The grasp point is at most this far from the box around a gripped object."""
TURN_M = 0.03
"""Metres that a rotation by one radian counts in the distance of two final poses: about the size of an object."""

_MINOR = ("stays", "nudged")


@dataclass(frozen=True)
class Fate:
    """What happens to one object.

    Attributes:
        kind: "stays"; "nudged" or "pushed" (moved on the table by less or more than the limit of a push); "toppled";
            "lifted" (up at the end); "dropped" (was up, came down outside the gripper); "put down" (came down in the
            gripper); "came down" (from the object that it stood on); "fell" (off the table).
        moved_m: horizontal distance from start to end, metres.
        rise_m: height above the start at the end, metres.
        gripped: between the fingers at the end; False without a gripper.
    """

    kind: FateKind
    moved_m: float
    rise_m: float
    gripped: bool


@dataclass(frozen=True, eq=False)
class DraftOutcome:
    """One of the things that may happen.

    Attributes:
        probability: share of the weight of the members, 0 to 1; see `smoothed`.
        label: in plain words, of the representative member.
        members: indices of the members, in order.
        representative: index of the member nearest to all others of the group at the end.
        fates: of every object in the representative member, in the order of the scene.
        events: first contacts in the representative member after the start, in order of time.
    """

    probability: float
    label: str
    members: tuple[int, ...]
    representative: int
    fates: tuple[Fate, ...]
    events: tuple[Contact, ...]


def cluster_outcomes(
    runs: Sequence[MemberRun], scene: FittedScene, grip: GripTrack | None, weights: Sequence[float] | None = None
) -> tuple[DraftOutcome, ...]:
    """Group members by what happens to the objects; the most probable outcome first.

    Members belong together if the same objects are pushed, toppled, lifted, dropped, put down or fallen. Objects that
    are only nudged make a difference only where nothing else happens.

    Args:
        runs: of members of the scene, unstable ones included up to their last good pose.
        scene: names and sizes of the objects, in the order of the runs.
        grip: the gripper at the times of the runs; None without a gripper.
        weights: of the members; None = equal.

    Raises:
        KinemaError: no runs, or runs that do not fit the scene, the gripper or the weights.
    """
    share = _require(runs, scene, grip, weights)
    fates = [_fates(run, scene, grip) for run in runs]
    groups: dict[tuple[tuple[str, bool], ...], list[int]] = {}
    for k, member in enumerate(fates):
        groups.setdefault(_key(member), []).append(k)
    outcomes = []
    for members in groups.values():
        best = _medoid([runs[k] for k in members], [fates[k] for k in members], share[members])
        chosen = members[best]
        run = runs[chosen]
        outcomes.append(
            DraftOutcome(
                probability=float(share[members].sum()),
                label=_label(scene, fates[chosen]),
                members=tuple(members),
                representative=chosen,
                fates=fates[chosen],
                events=tuple(c for c in run.contacts if c.time_s > run.times[0]),
            )
        )
    return tuple(sorted(outcomes, key=lambda one: (-one.probability, one.members)))


def success_share(
    runs: Sequence[MemberRun], scene: FittedScene, task: Task, weights: Sequence[float] | None = None
) -> float:
    """Return the share of the members in which the task's target reaches its goal, 0 to 1; see `smoothed`.

    Raises:
        KinemaError: the scene has no object with the name of the target.
    """
    share = _require(runs, scene, None, weights)
    names = [one.name for one in scene.objects]
    if task.target not in names:
        raise KinemaError(
            f"the target is '{task.target}'",
            expected=f"one of {', '.join(names) or 'no objects'}",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    column = names.index(task.target)
    reached = [bool(task.outcome(run.base_T_object[:, column]).success) for run in runs]
    return float(share[np.array(reached)].sum())


def smoothed(share: float, members: int, pseudo: float = 0.5) -> float:
    """Return the probability of an outcome that has this share of the members, between 0 and 1 exclusive.

    The mean of a beta posterior with `pseudo` imaginary members for the outcome and as many against it (0.5: Jeffreys'
    prior). With 8 of 8 members it is 0.94, with none of 8 it is 0.06: few members cannot show rare outcomes.
    """
    if not (0 <= share <= 1 and members >= 1 and pseudo > 0):
        raise KinemaError(
            f"share {share} of {members} members with {pseudo} imaginary ones",
            expected="a share of 0 to 1, 1 or more members, and more than 0 imaginary ones",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    return (share * members + pseudo) / (members + 2 * pseudo)


def _require(
    runs: Sequence[MemberRun], scene: FittedScene, grip: GripTrack | None, weights: Sequence[float] | None
) -> Array:
    """Check that everything fits together; return weights (K,) that sum to 1."""
    share = np.ones(len(runs)) if weights is None else np.array(weights, dtype=np.float64)
    if not runs or share.shape != (len(runs),) or not np.all(share >= 0) or not 0 < share.sum() < np.inf:
        raise KinemaError(
            f"{len(runs)} runs with the weights {share.tolist()}"[:200],
            expected="at least one run, and a weight of 0 or more for each, not all 0",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    for run in runs:
        objects, frames = run.base_T_object.shape[1], len(run.times)
        if objects != len(scene.objects) or (grip is not None and len(grip) != frames):
            raise KinemaError(
                f"a run of {objects} objects and {frames} frames"
                + ("" if grip is None else f", a gripper of {len(grip)} frames"),
                expected=f"the {len(scene.objects)} objects of the scene, and the gripper at the times of the run",
                code=ErrorCode.ARGUMENT_INVALID,
            )
    return np.asarray(share / share.sum())


def _fates(run: MemberRun, scene: FittedScene, grip: GripTrack | None) -> tuple[Fate, ...]:
    return tuple(
        _fate(run.base_T_object[:, i], one.estimates[0], one.held, grip, scene.table_height_m)
        for i, one in enumerate(scene.objects)
    )


def _fate(poses: Array, shape: Estimate, held: bool, grip: GripTrack | None, table_m: float) -> Fate:
    """Classify the path (T, 4, 4) of an object of a shape and size."""
    position = poses[:, :3, 3]
    rise, moved = Lifted().value(position), PushedBy().value(position)
    gripped = _gripped(poses, np.array(shape.size), grip)
    up = Lifted().holds(position)
    # An object held at the start is up already; it is down again when it has sunk by the height of a lift.
    lowered = held and bool(rise[-1] < -Lifted().height_m)
    tilt = float(np.arccos(np.clip(poses[0, :3, 2] @ poses[-1, :3, 2], -1.0, 1.0)))
    kind: FateKind
    if not held and position[-1, 2] < table_m - FALLEN_M:
        kind = "fell"
    elif up[-1] or (held and not lowered and gripped[-1]):
        kind = "lifted"
    elif up.any() or lowered or (held and not gripped[-1]):
        last_up = int(np.flatnonzero(up)[-1]) if up.any() else int(np.argmax(rise))
        landed = last_up + int(np.argmax(rise[last_up:] < rise[-1] + MOVED_M))
        kind = "put down" if gripped[landed] else "dropped"
    elif not held and rise[-1] < -LOWERED_M and position[0, 2] - shape.size[2] / 2 > table_m + LOWERED_M:
        kind = "came down"
    elif tilt > TOPPLED_RAD and shape.shape != "sphere":  # a ball rolls
        kind = "toppled"
    elif PushedBy().holds(position)[-1]:
        kind = "pushed"
    else:
        kind = "nudged" if max(float(moved[-1]), abs(float(rise[-1]))) > MOVED_M else "stays"
    return Fate(kind, float(moved[-1]), float(rise[-1]), bool(gripped[-1]))


def _gripped(poses: Array, size: Array, grip: GripTrack | None) -> NDArray[np.bool_]:
    """Return (T,) whether the grasp point is in or beside the object and the fingers are commanded to press on it."""
    if grip is None:
        return np.zeros(len(poses), dtype=bool)
    p_object = np.stack(
        [apply(invert(pose), tool[None, :3, 3])[0] for pose, tool in zip(poses, grip.base_T_grip, strict=True)]
    )
    inside = np.all(np.abs(p_object) <= size / 2 + GRIP_MARGIN_M, axis=1)
    closing = np.einsum("tji,tj->ti", poses[:, :3, :3], grip.base_T_grip[:, :3, 0])
    extent = np.abs(closing) @ size
    return np.asarray(inside & (grip.width_m < extent))


def _key(fates: tuple[Fate, ...]) -> tuple[tuple[str, bool], ...]:
    """Return what distinguishes this outcome from others."""
    if all(fate.kind in _MINOR for fate in fates):
        return tuple((fate.kind, False) for fate in fates)
    return tuple(("stays", False) if fate.kind in _MINOR else (fate.kind, fate.gripped) for fate in fates)


def _medoid(runs: list[MemberRun], fates: list[tuple[Fate, ...]], weights: Array) -> int:
    """Return the index of the run with the smallest weighted distance to the others, by final poses of what moved."""
    moved = [i for i in range(len(fates[0])) if any(member[i].kind != "stays" for member in fates)]
    ends = np.stack([run.base_T_object[-1, moved] for run in runs])
    apart = np.linalg.norm(ends[:, None, :, :3, 3] - ends[None, :, :, :3, 3], axis=-1)
    turned = rotation_angle(ends[:, None], ends[None]) if moved else np.zeros_like(apart)
    # Unstable members represent a group only if there are no others.
    unstable = np.array([0.0 if run.stable else 1e3 for run in runs])
    return int(np.argmin((apart + TURN_M * turned).sum(axis=-1) @ weights + unstable))


def _label(scene: FittedScene, fates: tuple[Fate, ...]) -> str:
    """Describe what happens, the objects that matter only."""
    minor = all(fate.kind in _MINOR for fate in fates)
    words = []
    for one, fate in zip(scene.objects, fates, strict=True):
        if fate.kind == "stays" or (fate.kind == "nudged" and not minor):
            continue
        words.append(f"{one.name} {_words(fate, one.held)}")
    return ", ".join(words) or "nothing moves"


def _words(fate: Fate, held: bool) -> str:
    if fate.kind == "lifted":
        return "stays in the gripper" if held and abs(fate.rise_m) <= Lifted().height_m else "lifted"
    return {
        "nudged": f"pushed {1000 * fate.moved_m:.0f} mm",
        "pushed": f"pushed {1000 * fate.moved_m:.0f} mm",
        "toppled": "topples",
        "dropped": "slips out",
        "put down": f"put down {1000 * fate.moved_m:.0f} mm away",
        "came down": "falls down",
        "fell": "falls off the table",
    }[fate.kind]
