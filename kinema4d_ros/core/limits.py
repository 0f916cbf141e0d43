"""Joint limit checks with tolerances: positions, speeds and efforts, with the worst sample of each joint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, TrajectoryError
from kinema4d_ros.robot.model import Joint, Robot

__all__ = [
    "POSITION_TOLERANCE_M",
    "POSITION_TOLERANCE_RAD",
    "SPEED_TOLERANCE",
    "Overshoot",
    "check_efforts",
    "check_positions",
    "check_speeds",
]

# Arms rest on their stops: the YAM's folded home is at the lower limits of two joints, and encoder noise
# puts it just outside. The tolerances are a few times that noise.
POSITION_TOLERANCE_RAD = 0.01
POSITION_TOLERANCE_M = 0.001
SPEED_TOLERANCE = 0.05
"""Accepted overspeed as a fraction of the limit: finite differences of noisy samples exceed it."""


@dataclass(frozen=True)
class Overshoot:
    """Worst sample of a joint past one of its limits; radians or metres, or these per second."""

    joint: str
    sample: int
    time_s: float
    value: float
    limit: float
    unit: str

    @property
    def amount(self) -> float:
        """Distance past the limit, positive."""
        return abs(self.value - self.limit)

    def __str__(self) -> str:
        """Format as one line: joint, sample, value, limit and amount."""
        side = "above" if self.value > self.limit else "below"
        return (
            f"joint '{self.joint}' at sample {self.sample} (t = {self.time_s:.4g} s) is {self.value:.6g} {self.unit}, "
            f"{self.amount:.3g} {side} its limit {self.limit:.6g}"
        )


def check_positions(
    robot: Robot,
    q: NDArray[np.float64],
    times: NDArray[np.float64],
    tolerance_rad: float = POSITION_TOLERANCE_RAD,
    tolerance_m: float = POSITION_TOLERANCE_M,
    knots: NDArray[np.float64] | None = None,
) -> tuple[Overshoot, ...]:
    """Return overshoots within the tolerance, at most one per joint; raise TrajectoryError for larger ones.

    Args:
        robot: source of the limits; infinite ones are never exceeded.
        q: (T, J) positions in `robot.joint_names` order.
        times: (T,) seconds, for messages.
        tolerance_rad: accepted overshoot of revolute joints.
        tolerance_m: accepted overshoot of prismatic joints.
        knots: times of the original samples if `q` is denser, for sample numbers in messages; default `times`.
    """
    past = np.maximum(robot.lower - q, q - robot.upper)
    samples = np.argmax(past, axis=0)
    small: list[Overshoot] = []
    large: list[Overshoot] = []
    for column, joint in enumerate(robot.actuated):
        sample = int(samples[column])
        if past[sample, column] <= 0:
            continue
        value = float(q[sample, column])
        limit = joint.limits.upper if value > joint.limits.upper else joint.limits.lower
        entry = _overshoot(joint, float(times[sample]), times if knots is None else knots, value, limit, _unit(joint))
        tolerance = tolerance_m if joint.kind == "prismatic" else tolerance_rad
        # `<=`, so that NaN counts as past the limit.
        (small if entry.amount <= tolerance else large).append(entry)
    if large:
        raise TrajectoryError(
            "; ".join(map(str, large)),
            expected=f"positions within the limits of robot '{robot.name}', "
            f"tolerance {tolerance_rad:g} rad, {tolerance_m:g} m",
            hint="check the units and the joint order; nothing was clipped",
            code=ErrorCode.TRAJECTORY_OUT_OF_LIMITS,
        )
    return tuple(small)


def check_speeds(
    robot: Robot,
    q: NDArray[np.float64],
    times: NDArray[np.float64],
    rates: NDArray[np.float64] | None = None,
    knots: NDArray[np.float64] | None = None,
) -> None:
    """Raise TrajectoryError if a joint exceeds its velocity limit.

    Args:
        robot: source of the limits.
        q: (T, J) positions; the mean speeds between two samples are checked.
        times: (T,) seconds.
        rates: (T, J) velocities at these times, if known; also checked.
        knots: times of the original samples if `q` is denser, for sample numbers in messages; default `times`.
    """
    speed, when = np.diff(q, axis=0) / np.diff(times)[:, None], times[1:]
    if rates is not None:
        speed, when = np.vstack([speed, rates]), np.concatenate([when, times])
    if not len(speed):
        return
    limit = np.array([j.limits.velocity for j in robot.actuated])
    samples = np.argmax(np.abs(speed), axis=0)
    fast = []
    for column, joint in enumerate(robot.actuated):
        sample = int(samples[column])
        value = float(speed[sample, column])
        # `not <=`, so that NaN counts as too fast.
        if not abs(value) <= limit[column] * (1 + SPEED_TOLERANCE):
            bound = float(np.copysign(limit[column], value))
            named = times if knots is None else knots
            fast.append(_overshoot(joint, float(when[sample]), named, value, bound, _unit(joint) + "/s"))
    if fast:
        raise TrajectoryError(
            "; ".join(map(str, fast)),
            expected=f"speeds within the velocity limits of robot '{robot.name}', tolerance {SPEED_TOLERANCE:.0%}",
            hint="stretch the times; nothing was slowed down",
            code=ErrorCode.TRAJECTORY_TOO_FAST,
        )


def check_efforts(robot: Robot, names: Sequence[str], effort: NDArray[np.float64], times: NDArray[np.float64]) -> None:
    """Raise TrajectoryError if an effort (T, N) of joints `names` exceeds its joint's limit."""
    strong = []
    for name, column in zip(names, effort.T, strict=True):
        joint = robot.joint(name)
        sample = int(np.argmax(np.abs(column)))
        if abs(column[sample]) > joint.limits.effort:
            bound = float(np.copysign(joint.limits.effort, column[sample]))
            unit = "N" if joint.kind == "prismatic" else "N m"
            strong.append(_overshoot(joint, float(times[sample]), times, float(column[sample]), bound, unit))
    if strong:
        raise TrajectoryError(
            "; ".join(map(str, strong)),
            expected=f"efforts within the limits of robot '{robot.name}'",
            hint="leave the efforts out unless the controller needs them",
            code=ErrorCode.TRAJECTORY_OUT_OF_LIMITS,
        )


def _overshoot(
    joint: Joint, time_s: float, knots: NDArray[np.float64], value: float, limit: float, unit: str
) -> Overshoot:
    """Build an Overshoot at the first sample of `knots` (T,) that is not before `time_s`."""
    sample = min(int(np.searchsorted(knots, time_s)), len(knots) - 1)
    return Overshoot(joint.name, sample, time_s, value, limit, unit)


def _unit(joint: Joint) -> str:
    return "m" if joint.kind == "prismatic" else "rad"
