"""MoveIt's display plans as one trajectory: segments joined in time, joints at rest filled in from the start state."""

from __future__ import annotations

from typing import Any

import numpy as np

from kinema4d_ros.bridge.joints import joint_sample_from_msg, trajectory_from_msg
from kinema4d_ros.core.errors import ErrorCode, TrajectoryError
from kinema4d_ros.core.trajectory import AT_REST, DERIVATIVES, JointTrajectory

__all__ = ["start_from_display", "trajectory_from_display"]

_JUMP = 1e-3
"""How far, in rad or m, a segment may start from the end of the one before it."""


def start_from_display(message: Any) -> dict[str, float]:
    """Joint positions before the plan, from `trajectory_start`; empty when the planner left them out."""
    state = message.trajectory_start.joint_state
    return joint_sample_from_msg(state).as_dict() if state.name else {}


def trajectory_from_display(message: Any) -> JointTrajectory:
    """The plan of a moveit_msgs/DisplayTrajectory.

    Every segment counts its time from its own start, so it is shifted to the end of the one before it.
    A joint that a segment does not name keeps its position; before its first segment it has the one of
    `trajectory_start`. When the first sample is later than 0, the start state becomes the sample at 0.
    `_kept` says what becomes of velocities and accelerations.
    """
    segments = [trajectory_from_msg(part.joint_trajectory) for part in message.trajectory if _has_motion(part)]
    if not segments:
        raise TrajectoryError(
            f"the displayed plan has {len(message.trajectory)} segments without any point",
            expected="at least one joint trajectory",
            code=ErrorCode.TRAJECTORY_EMPTY,
        )
    names = tuple(dict.fromkeys(name for segment in segments for name in segment.names))
    start = start_from_display(message)
    now = {name: start[name] for name in names if name in start}
    for name in names:
        # Only a joint of the first segment can do without a start: its first sample is one.
        if name not in now and name not in segments[0].names:
            raise TrajectoryError(
                f"joint '{name}' moves in a later segment only, and trajectory_start does not say where it is before",
                expected="its position in trajectory_start",
            )
    kept = _kept(segments)
    times: list[float] = []
    rows: dict[str, list[list[float]]] = {what: [] for what in ("positions", *kept)}

    def add(time: float, segment: JointTrajectory | None = None, sample: int = 0) -> None:
        times.append(time)
        for what, table in rows.items():
            # A joint that the segment does not name rests where it is.
            values = dict(now) if what == "positions" else dict.fromkeys(names, 0.0)
            if segment is not None:
                values.update(zip(segment.names, getattr(segment, what)[sample].tolist(), strict=True))
            table.append([values[name] for name in names])
        if segment is not None:
            now.update(zip(segment.names, segment.positions[sample].tolist(), strict=True))

    if segments[0].times[0] > 0 and len(now) == len(names):
        add(0.0)
        if "effort" in rows:
            # What holds the arm at its first sample holds it before, too; 0 would let it sag.
            held = dict(zip(segments[0].names, np.asarray(segments[0].effort)[0].tolist(), strict=True))
            rows["effort"][0] = [held.get(name, 0.0) for name in names]
    offset = 0.0
    for index, segment in enumerate(segments):
        repeats_end = index > 0 and segment.times[0] == 0.0
        if repeats_end:
            _require_joined(index, segment, now)
        for sample in range(int(repeats_end), len(segment)):
            add(offset + float(segment.times[sample]), segment, sample)
        offset = times[-1]
    return JointTrajectory(names, np.array(times), **{what: np.array(table) for what, table in rows.items()})


def _kept(segments: list[JointTrajectory]) -> list[str]:
    """Which of velocities, accelerations and effort the whole plan has.

    Of one segment all; of several the velocities, where each rests at both ends: the point at which two meet has
    one acceleration, not two. Without them the plan is straight between its points, previewed and executed.
    """
    if len(segments) == 1:
        return [what for what in DERIVATIVES if getattr(segments[0], what) is not None]
    ends = [None if s.velocities is None else s.velocities[[0, -1]] for s in segments]
    return ["velocities"] if all(v is not None and np.all(np.abs(v) <= AT_REST) for v in ends) else []


def _has_motion(part: Any) -> bool:
    if part.multi_dof_joint_trajectory.points:
        raise TrajectoryError(
            f"the plan moves joints with several degrees of freedom: "
            f"{', '.join(part.multi_dof_joint_trajectory.joint_names)}",
            expected="revolute and prismatic joints only",
        )
    return bool(part.joint_trajectory.points)


def _require_joined(index: int, segment: JointTrajectory, now: dict[str, float]) -> None:
    for name, position in zip(segment.names, segment.positions[0].tolist(), strict=True):
        if abs(position - now[name]) > _JUMP:
            raise TrajectoryError(
                f"segment {index} of the plan starts with joint '{name}' at {position:.6g}, the one before left it at "
                f"{now[name]:.6g}",
                expected=f"segments that meet within {_JUMP} rad or m",
            )
