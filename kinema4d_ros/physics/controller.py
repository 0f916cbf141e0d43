"""The arm's trajectory controller: continuous position and velocity commands at any time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import ErrorCode, TrajectoryError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.robot.model import Robot

__all__ = ["START_TOLERANCE_M", "START_TOLERANCE_RAD", "TrajectoryController"]

Array = NDArray[np.float64]

START_TOLERANCE_RAD = 0.1
START_TOLERANCE_M = 0.03
"""Largest distance of the arm from a trajectory's first sample; larger for fingers, which a held object keeps open."""

BLEND_S = 0.25
"""The remaining start offset is blended out over this time."""

BRAKE_S = 0.06
"""Time constant of a stop."""


class TrajectoryController:
    """Controller that follows one trajectory at a time and holds its end; times are simulation seconds.

    Interpolation between samples: with velocities, the spline that ros2_control follows. Without, a cubic at
    rest at both ends whose slopes never overshoot a sample, so limits that hold at the samples hold in between.
    Arrays are (J,) in `robot.joint_names` order.
    """

    def __init__(self, robot: Robot, position: ArrayLike) -> None:
        """Hold a position (J,) until the first trajectory."""
        self._robot = robot
        self._start_tolerance = np.array(
            [START_TOLERANCE_M if j.kind == "prismatic" else START_TOLERANCE_RAD for j in robot.actuated]
        )
        self.hold(position)

    def hold(self, position: ArrayLike) -> None:
        """Discard the trajectory and command this position (J,)."""
        self._rest = np.array(position, dtype=np.float64)
        self._brake_speed = np.zeros_like(self._rest)
        self._brake_start = -np.inf
        self._times: Array | None = None

    def follow(self, trajectory: JointTrajectory, now_s: float, measured: Array) -> None:
        """Start a trajectory now and replace a running one; joints it does not name hold their command.

        Raises:
            TrajectoryError: an unknown joint, limits or speeds exceeded, or a start too far from the arm
                (`PLAN_START_MISMATCH`). A running trajectory then continues.
        """
        trajectory.validate(self._robot, check_velocity=True)
        commanded, _ = self.target(now_s)
        # A spline is sampled densely and followed with its own slopes.
        points = trajectory.dense()
        q = self._robot.positions(points.names, points.positions, fill=commanded)
        q = np.clip(q, self._robot.lower, self._robot.upper)
        self._require_start(q[0], measured, commanded)
        self._offset = commanded - q[0]
        self._times = now_s + points.times - points.times[0]
        rates = trajectory.rates(self._robot, points.times)
        self._q, self._slopes = q, _gentle_slopes(self._times, q) if rates is None else rates
        self._rest = q[-1]
        self._brake_start = -np.inf

    def stop(self, now_s: float) -> None:
        """Brake from the current command and hold the final position."""
        q, v = self.target(now_s)
        self._times = None
        self._rest, self._brake_speed, self._brake_start = q, v, now_s

    def busy(self, now_s: float) -> bool:
        """Return whether a trajectory is running."""
        return self._times is not None and now_s < self._times[-1]

    def remaining_s(self, now_s: float) -> float:
        """Return the seconds to the end of the trajectory, 0 without one."""
        return 0.0 if self._times is None else max(0.0, float(self._times[-1] - now_s))

    def target(self, now_s: float) -> tuple[Array, Array]:
        """Compute the commanded positions and velocities (J,) at a time."""
        if self._times is None:
            fade = np.exp(-max(now_s - self._brake_start, 0.0) / BRAKE_S) if np.isfinite(self._brake_start) else 0.0
            q = self._rest + self._brake_speed * BRAKE_S * (1 - fade)
            return np.clip(q, self._robot.lower, self._robot.upper), self._brake_speed * fade
        q, v = _hermite(self._times, self._q, self._slopes, now_s)
        s = (now_s - self._times[0]) / BLEND_S
        if s < 1.0:
            s = max(s, 0.0)
            q = q + self._offset * (1 - s * s * (3 - 2 * s))
            v = v - self._offset * (6 * s * (1 - s) / BLEND_S)
        return q, v

    def targets(self, times: Array) -> tuple[Array, Array]:
        """Compute the commanded positions and velocities (N, J) at times (N,): `target` of each."""
        if self._times is None:
            found = [self.target(float(now_s)) for now_s in times]
            return np.stack([q for q, _ in found]), np.stack([v for _, v in found])
        q, v = _hermite_table(self._times, self._q, self._slopes, times)
        s = np.clip((times - self._times[0]) / BLEND_S, 0.0, 1.0)[:, None]
        q = q + self._offset * (1 - s * s * (3 - 2 * s))
        return q, v - self._offset * (6 * s * (1 - s) / BLEND_S)

    def _require_start(self, first: Array, measured: Array, commanded: Array) -> None:
        # While an object is held, the gripper's command is more closed than its position; accept a start at either.
        away = np.minimum(np.abs(first - measured), np.abs(first - commanded))
        if np.any(away > self._start_tolerance):
            worst = int(np.argmax(away / self._start_tolerance))
            joint = self._robot.actuated[worst]
            unit = "m" if joint.kind == "prismatic" else "rad"
            raise TrajectoryError(
                f"the trajectory starts with joint '{joint.name}' at {first[worst]:.4f} {unit}, "
                f"but the arm is at {measured[worst]:.4f}",
                expected=f"a start within {self._start_tolerance[worst]:g} {unit} of the arm",
                hint="plan again from the current joint state",
                code=ErrorCode.PLAN_START_MISMATCH,
            )


def _gentle_slopes(times: Array, q: Array) -> Array:
    """Compute slopes (T, J) at the samples: harmonic means of the adjacent differences, 0 at reversals and ends."""
    slopes = np.zeros_like(q)
    if len(times) > 2:
        h = np.diff(times)[:, None]
        d = np.diff(q, axis=0) / h
        w0, w1 = 2 * h[1:] + h[:-1], h[1:] + 2 * h[:-1]
        same = d[:-1] * d[1:] > 0
        safe0, safe1 = np.where(same, d[:-1], 1.0), np.where(same, d[1:], 1.0)
        slopes[1:-1] = np.where(same, (w0 + w1) / (w0 / safe0 + w1 / safe1), 0.0)
    return slopes


def _hermite(times: Array, q: Array, slopes: Array, now_s: float) -> tuple[Array, Array]:
    if now_s >= times[-1] or len(times) == 1:
        return q[-1].copy(), np.zeros_like(q[-1])
    if now_s <= times[0]:
        return q[0].copy(), np.zeros_like(q[0])
    i = int(np.searchsorted(times, now_s, side="right")) - 1
    return _cubic(times[i + 1] - times[i], now_s - times[i], q[i], q[i + 1], slopes[i], slopes[i + 1])


def _hermite_table(times: Array, q: Array, slopes: Array, now_s: Array) -> tuple[Array, Array]:
    """Evaluate `_hermite` at times (N,): positions and velocities (N, J)."""
    if len(times) == 1:
        return np.repeat(q, len(now_s), axis=0), np.zeros((len(now_s), q.shape[1]))
    i = np.clip(np.searchsorted(times, now_s, side="right") - 1, 0, len(times) - 2)
    h, since = (times[i + 1] - times[i])[:, None], (now_s - times[i])[:, None]
    where, speed = _cubic(h, since, q[i], q[i + 1], slopes[i], slopes[i + 1])
    before, after = (now_s <= times[0])[:, None], (now_s >= times[-1])[:, None]
    return np.where(before, q[0], np.where(after, q[-1], where)), np.where(before | after, 0.0, speed)


def _cubic(h: Any, since: Any, q0: Array, q1: Array, slope0: Array, slope1: Array) -> tuple[Array, Array]:
    """Evaluate a cubic of duration `h` at `since` seconds after its start: position and velocity."""
    s = since / h
    rise = q1 - q0
    a, b = slope0 * h, slope1 * h
    c2, c3 = 3 * rise - 2 * a - b, a + b - 2 * rise
    return q0 + s * (a + s * (c2 + s * c3)), (a + s * (2 * c2 + 3 * s * c3)) / h
