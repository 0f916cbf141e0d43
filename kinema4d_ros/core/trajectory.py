"""Joint trajectories: construction, interpolation, validation and the hash that identifies a plan.

    joint positions ─┐
    joint velocities ┼─> JointTrajectory ─> validate(robot) ─> resample(49) ─> for_robot(robot)
    tool poses ──────┘   (io/trajectories.py reads it from files)

>>> import numpy as np
>>> plan = JointTrajectory.from_positions(["joint1", "joint2"], [[0.0, 0.0], [1.0, 0.5]], rate_hz=1.0)
>>> plan.resample(3).positions.tolist()
[[0.0, 0.0], [0.5, 0.25], [1.0, 0.5]]
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import ErrorCode, TrajectoryError
from kinema4d_ros.core.limits import (
    POSITION_TOLERANCE_M,
    POSITION_TOLERANCE_RAD,
    Overshoot,
    check_efforts,
    check_positions,
    check_speeds,
)
from kinema4d_ros.robot.model import Robot

__all__ = ["AT_REST", "DERIVATIVES", "FRAMES", "HOLD_PERIOD_S", "JointTrajectory", "hash_trajectory", "plan_hash"]

if TYPE_CHECKING:
    from kinema4d_ros.kinematics.protocol import Kinematics


FRAMES = 49
"""Frames per rollout, as in the training data of the generators."""

HOLD_PERIOD_S = 0.1
"""Time between the repeats of a single-sample trajectory."""

DENSITY, LEAST_DENSITY, DENSE_SAMPLES = 32, 4, 320_000
"""Subdivision of spline segments for checks between the points: parts per segment, the minimum (enough to determine a
polynomial of degree 5), and the maximum number of samples in all.
"""

AT_REST = float(np.finfo(np.float32).eps)
"""Largest velocity (or acceleration) that counts as 0, as in joint_trajectory_controller."""

DERIVATIVES = {"velocities": "velocity", "accelerations": "acceleration", "effort": "effort"}
"""Optional tables of a trajectory, named as in trajectory_msgs/JointTrajectoryPoint."""


@dataclass(frozen=True, eq=False)
class JointTrajectory:
    """Positions of named joints at increasing times, validated on construction.

    Positions are never wrapped: from 3.1 to -3.1 rad is a motion of 6.2 rad, also for continuous joints.
    The arrays are private copies and read-only.

    Between samples the motion is interpolated as in ros2_control's joint_trajectory_controller: linear with
    positions only, a cubic spline with velocities, a quintic spline with velocities and accelerations.

    Attributes:
        names: N distinct joint names.
        times: (T,) float64, seconds, strictly increasing, T >= 1; any origin.
        positions: (T, N) float64, radians or metres, finite.
        velocities: (T, N) float64 per second, finite; or None.
        accelerations: (T, N) float64 per second squared, finite, requires velocities; or None.
        effort: (T, N) float64, N m or N, finite; or None. It does not affect the interpolation.
    """

    names: tuple[str, ...]
    times: NDArray[np.float64]
    positions: NDArray[np.float64]
    velocities: NDArray[np.float64] | None = None
    accelerations: NDArray[np.float64] | None = None
    effort: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        """Reject empty, ragged, non-finite or unordered data, and keep private copies."""
        names = tuple(self.names)
        times, positions = _numbers("times", self.times), _numbers("positions", self.positions)
        if positions.size == 0 or times.size == 0 or not names:
            raise TrajectoryError(
                f"the trajectory is empty: {len(names)} joints, {times.size} times, positions {positions.shape}",
                expected="at least one joint and one sample",
                code=ErrorCode.TRAJECTORY_EMPTY,
            )
        if positions.shape != (times.size, len(names)) or times.ndim != 1:
            raise TrajectoryError(
                f"positions have shape {positions.shape}, times {times.shape}, for {len(names)} joint names",
                expected="times (T,) and positions (T, N) with one column for each name",
            )
        repeated = sorted(name for name, count in Counter(names).items() if count > 1)
        if repeated:
            raise TrajectoryError(
                f"joint names are given twice: {', '.join(repeated)}", expected="every joint at most once"
            )
        _require_finite(names, times, positions)
        _require_increasing(times)
        for what in DERIVATIVES:
            if getattr(self, what) is None:
                continue
            table = _numbers(what, getattr(self, what))
            if table.shape != positions.shape:
                raise TrajectoryError(
                    f"{what} have shape {table.shape}, positions {positions.shape}",
                    expected="one for each joint at every sample, or none at all",
                )
            _require_finite(names, times, table, DERIVATIVES[what])
            object.__setattr__(self, what, table)
        if self.accelerations is not None and self.velocities is None:
            raise TrajectoryError(
                "the trajectory has accelerations but no velocities",
                expected="both, velocities alone, or neither",
                hint="controllers cannot interpolate this: remove the accelerations or add velocities",
            )
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "positions", positions)

    @classmethod
    def from_positions(
        cls,
        names: Sequence[str],
        positions: ArrayLike,
        *,
        times: ArrayLike | None = None,
        rate_hz: float | None = None,
    ) -> JointTrajectory:
        """Build a trajectory from positions (T, N), at `times` (T,) seconds or at a constant rate from 0."""
        table = _numbers("positions", positions)
        clock = _numbers("times", _times(len(table) if table.ndim else 0, times, rate_hz))
        return cls(tuple(names), clock, table)

    @classmethod
    def from_velocities(
        cls,
        names: Sequence[str],
        velocities: ArrayLike,
        start: ArrayLike,
        *,
        times: ArrayLike | None = None,
        rate_hz: float | None = None,
    ) -> JointTrajectory:
        """Integrate velocities (T, N) in rad/s or m/s from the first position (N,).

        Trapezoidal rule: exact when the velocity is linear between samples. T velocities give
        T positions; the last velocity is that of the last sample.
        """
        rates = _numbers("velocities", velocities)
        first = _numbers("start", start)
        clock = _numbers("times", _times(len(rates) if rates.ndim else 0, times, rate_hz))
        if rates.ndim != 2 or first.shape != rates.shape[1:] or clock.shape != rates.shape[:1]:
            raise TrajectoryError(
                f"velocities have shape {rates.shape}, start {first.shape}, times {clock.shape}",
                expected="velocities (T, N), start (N,) and times (T,)",
            )
        # Check the times before integrating: a step back would silently undo motion.
        _require_finite(tuple(names), clock, rates, "velocity")
        _require_increasing(clock)
        steps = 0.5 * (rates[1:] + rates[:-1]) * np.diff(clock)[:, None]
        return cls(tuple(names), clock, first + np.vstack([np.zeros_like(rates[:1]), np.cumsum(steps, axis=0)]))

    @classmethod
    def from_poses(
        cls,
        kinematics: Kinematics,
        base_T_tool: ArrayLike,
        *,
        times: ArrayLike | None = None,
        rate_hz: float | None = None,
        seed: ArrayLike | None = None,
        gripper: ArrayLike | None = None,
        allow_unreachable: bool = False,
    ) -> JointTrajectory:
        """Build a trajectory whose tool follows poses, by inverse kinematics along the path.

        Args:
            kinematics: solver for `kinematics.robot`.
            base_T_tool: (T, 4, 4) float64, metres, base frame.
            times: (T,) seconds, or `rate_hz` for a constant rate from 0.
            rate_hz: samples per second.
            seed: (J,) current joint positions; by default the best start for the whole path is searched.
            gripper: opening width in metres, one for all samples or (T,); by default the seed's.
            allow_unreachable: follow the closest reachable poses instead of raising `NoSolution`.
        """
        path = kinematics.solve_path(base_T_tool, seed=seed)
        if not allow_unreachable:
            path.require_reached()
        robot, q = kinematics.robot, path.q
        if gripper is not None:
            widths = _numbers("gripper", gripper)
            if widths.shape not in {(), (len(q),)}:
                raise TrajectoryError(f"gripper widths have shape {widths.shape}", expected=f"one width or ({len(q)},)")
            q = _set_gripper(robot, q, np.broadcast_to(widths, (len(q),)))
        return cls.from_positions(robot.joint_names, q, times=times, rate_hz=rate_hz)

    def __len__(self) -> int:
        """Number of samples."""
        return self.times.size

    @property
    def duration_s(self) -> float:
        """Seconds from the first sample to the last."""
        return float(self.times[-1] - self.times[0])

    def at(self, times: ArrayLike) -> NDArray[np.float64]:
        """Return (K, N) positions at times (K,) seconds, interpolated; held constant before and after."""
        clock = np.atleast_1d(np.asarray(times, dtype=np.float64))
        if self.velocities is None or len(self) == 1:
            return np.stack([np.interp(clock, self.times, column) for column in self.positions.T], axis=1)
        return self._spline(self.velocities, clock)[0]

    def velocities_at(self, times: ArrayLike) -> NDArray[np.float64]:
        """Return (K, N) velocities at times (K,); 0 before and after. Requires velocities."""
        if self.velocities is None:
            raise TrajectoryError("the trajectory has no velocities", expected="velocities for every sample")
        return self._spline(self.velocities, np.atleast_1d(np.asarray(times, dtype=np.float64)))[1]

    def _spline(
        self, velocities: NDArray[np.float64], clock: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return positions and velocities (K, N) of the Hermite spline through the samples."""
        i = np.clip(np.searchsorted(self.times, clock, side="right") - 1, 0, max(len(self) - 2, 0))
        j = np.minimum(i + 1, len(self) - 1)
        h = (self.times[j] - self.times[i])[:, None]
        # Time is scaled to segments of length 1, so velocities and accelerations become distances.
        s = (clock - self.times[i])[:, None] / np.where(h > 0, h, 1.0)
        # Very large derivatives overflow; non-finite results then fail the checks.
        with np.errstate(over="ignore", invalid="ignore"):
            q, rise = self.positions[i], self.positions[j] - self.positions[i]
            v0, v1 = velocities[i] * h, velocities[j] * h
            if self.accelerations is None:
                c2, c3 = 3 * rise - 2 * v0 - v1, v0 + v1 - 2 * rise
                c4 = c5 = np.zeros_like(rise)
            else:
                a0, a1 = self.accelerations[i] * h**2, self.accelerations[j] * h**2
                c2 = a0 / 2
                c3 = 10 * rise - 6 * v0 - 4 * v1 - 1.5 * a0 + 0.5 * a1
                c4 = -15 * rise + 8 * v0 + 7 * v1 + 1.5 * a0 - a1
                c5 = 6 * rise - 3 * (v0 + v1) - 0.5 * a0 + 0.5 * a1
            position = q + s * (v0 + s * (c2 + s * (c3 + s * (c4 + s * c5))))
            velocity = (v0 + s * (2 * c2 + s * (3 * c3 + s * (4 * c4 + s * 5 * c5)))) / np.where(h > 0, h, 1.0)
        # Return the samples themselves exactly, without rounding errors.
        for edge, at in ((s[:, 0] <= 0, i), (s[:, 0] >= 1, j)):
            position[edge], velocity[edge] = self.positions[at[edge]], velocities[at[edge]]
        outside = (clock < self.times[0]) | (clock > self.times[-1])
        velocity[outside] = 0.0
        return position, velocity

    def dense(self) -> JointTrajectory:
        """Return a trajectory dense enough to check the motion between the samples; self if interpolation is linear."""
        if self.velocities is None or len(self) == 1:
            return self
        segments = len(self) - 1
        if segments * LEAST_DENSITY > DENSE_SAMPLES:
            raise TrajectoryError(
                f"the trajectory has {len(self):,} samples with velocities",
                expected=f"at most {DENSE_SAMPLES // LEAST_DENSITY:,}",
                hint="send fewer samples: the controller interpolates between them",
            )
        parts = max(LEAST_DENSITY, min(DENSITY, DENSE_SAMPLES // segments))
        times = np.interp(np.arange(segments * parts + 1) / parts, np.arange(len(self)), self.times)
        # Samples closer than the float resolution give repeated times.
        times = np.unique(times)
        with np.errstate(over="ignore", invalid="ignore"):
            positions = self.at(times)
        return JointTrajectory(self.names, times, positions)

    def only(self, names: Sequence[str]) -> JointTrajectory | None:
        """Return the trajectory of the given joints that it has, in its own order; None if it has none of them."""
        columns = [i for i, name in enumerate(self.names) if name in names]
        if not columns:
            return None
        tables = {what: getattr(self, what) for what in ("positions", *DERIVATIVES)}
        kept = {what: table[:, columns] for what, table in tables.items() if table is not None}
        return JointTrajectory(tuple(self.names[i] for i in columns), self.times, **kept)

    def resample(self, n: int = FRAMES) -> JointTrajectory:
        """Return the same motion at n samples uniform in time; first and last sample are kept exactly.

        A single sample is repeated every `HOLD_PERIOD_S`; n = 1 keeps the first sample.
        """
        if n < 1:
            raise TrajectoryError(f"cannot resample to {n} samples", expected="at least 1")
        if len(self) == 1:
            times = self.times[0] + HOLD_PERIOD_S * np.arange(n)
        else:
            times = np.linspace(self.times[0], self.times[-1], n)
        return JointTrajectory(self.names, times, self.at(times))

    def mean_velocities(self) -> NDArray[np.float64]:
        """Return (T - 1, N) mean velocities between consecutive samples, rad/s or m/s."""
        return np.diff(self.positions, axis=0) / np.diff(self.times)[:, None]

    def rates(self, robot: Robot, times: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Return (K, J) velocities of the robot's joints at times (K,), 0 if absent; None without velocities."""
        if self.velocities is None:
            return None
        out = np.zeros((len(times), len(robot.joint_names)))
        rates = self.velocities_at(times)
        for column, name in enumerate(self.names):
            # Mimic joints and the vendor's fingers are checked by the differences of their positions.
            if name in robot.joint_names:
                out[:, robot.joint_names.index(name)] = rates[:, column]
        return out

    def for_robot(self, robot: Robot) -> NDArray[np.float64]:
        """Return (T, J) positions in `robot.joint_names` order; joints without a column stay at home.

        Finger joints with the vendor's names and signs are converted if the robot has no joint of that name.
        """
        names, positions = self.names, self.positions
        gripper = robot.gripper
        vendor = [] if gripper is None else [v.name for v in gripper.vendor if v.name in names]
        vendor = [name for name in vendor if name not in {joint.name for joint in robot.joints}]
        if gripper is not None and vendor:
            fingers = gripper.from_vendor(vendor, positions[:, [names.index(name) for name in vendor]])
            kept = [i for i, name in enumerate(names) if name not in vendor and name != gripper.joint]
            names = (*(names[i] for i in kept), gripper.joint)
            positions = np.column_stack([positions[:, kept], fingers])
        return robot.positions(names, positions)

    def validate(
        self,
        robot: Robot,
        *,
        tolerance_rad: float = POSITION_TOLERANCE_RAD,
        tolerance_m: float = POSITION_TOLERANCE_M,
        check_velocity: bool = False,
    ) -> tuple[Overshoot, ...]:
        """Check the trajectory against a robot: known joints, position limits and optionally speeds.

        Splines are also checked between their points. Nothing is clipped. Positions past a limit by more than the
        tolerance raise; smaller overshoots are returned, the worst sample of each joint. With `check_velocity` speeds
        and efforts must be within their limits, and a trajectory with velocities must start and end at rest, because
        the arm executes one motion at a time.
        """
        dense = self.dense()
        q = dense.for_robot(robot)
        if check_velocity:
            self._require_rest()
            check_speeds(robot, q, dense.times, self.rates(robot, dense.times), self.times)
            if self.effort is not None:
                check_efforts(robot, self.names, self.effort, self.times)
        return check_positions(robot, q, dense.times, tolerance_rad, tolerance_m, self.times)

    def _require_rest(self) -> None:
        """Require velocities of 0 at both ends: controllers reject a moving end, and the arm is at rest at the start.

        If the first sample is after time 0 its acceleration must be 0 too: the controller interpolates a spline from
        the current position to it, which would deviate from the start and therefore from the preview.
        """
        if self.velocities is None:
            return
        ends = [("starts", 0, "velocity", self.velocities), ("ends", -1, "velocity", self.velocities)]
        if self.accelerations is not None and self.times[0] > 0:
            ends.append(("starts late", 0, "acceleration", self.accelerations))
        for verb, sample, what, table in ends:
            worst = int(np.argmax(np.abs(table[sample])))
            if abs(table[sample, worst]) > AT_REST:
                raise TrajectoryError(
                    f"the trajectory {verb} with joint '{self.names[worst]}' at a {what} of {table[sample, worst]:.6g}",
                    expected="an arm at rest at both ends",
                    hint="plan from rest to rest",
                    code=ErrorCode.TRAJECTORY_TOO_FAST,
                )


def _set_gripper(robot: Robot, q: NDArray[np.float64], widths: NDArray[np.float64]) -> NDArray[np.float64]:
    if robot.gripper is None:
        raise TrajectoryError(
            f"robot '{robot.name}' has no gripper to open", expected="no gripper width", code=ErrorCode.NO_GRIPPER
        )
    out: NDArray[np.float64] = q.copy()
    out[:, robot.joint_names.index(robot.gripper.joint)] = robot.gripper.position_from_width(widths)
    return out


def _numbers(what: str, values: ArrayLike) -> NDArray[np.float64]:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TrajectoryError(f"{what} are not a table of numbers: {error}", expected="rows of equal length") from None
    array.setflags(write=False)
    return array


def _times(count: int, times: ArrayLike | None, rate_hz: float | None) -> ArrayLike:
    if (times is None) == (rate_hz is None):
        raise TrajectoryError(
            f"times are {'missing' if times is None else 'given twice'}", expected="either times or rate_hz"
        )
    if times is not None:
        return times
    if rate_hz is None or not np.isfinite(rate_hz) or rate_hz <= 0:
        raise TrajectoryError(f"rate_hz is {rate_hz}", expected="a positive number of samples per second")
    return np.arange(count) / rate_hz


def _require_finite(
    names: tuple[str, ...], times: NDArray[np.float64], values: NDArray[np.float64], what: str = "position"
) -> None:
    if not np.all(np.isfinite(times)):
        sample = int(np.argmin(np.isfinite(times)))
        raise TrajectoryError(
            f"time of sample {sample} is {times[sample]}",
            expected="finite seconds",
            code=ErrorCode.TRAJECTORY_NOT_FINITE,
        )
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        sample, column = bad[0]
        raise TrajectoryError(
            f"{what} of joint '{names[column]}' at sample {sample} is {values[sample, column]}"
            + (f", and {len(bad) - 1} more are not finite" if len(bad) > 1 else ""),
            expected="finite numbers",
            code=ErrorCode.TRAJECTORY_NOT_FINITE,
        )


def _require_increasing(times: NDArray[np.float64]) -> None:
    steps = np.diff(times)
    if np.any(steps <= 0):
        sample = int(np.argmax(steps <= 0)) + 1
        raise TrajectoryError(
            f"time of sample {sample} is {times[sample]:.9g} s, "
            f"not after sample {sample - 1} at {times[sample - 1]:.9g} s",
            expected="strictly increasing times",
            hint="sort the samples and drop duplicates",
            code=ErrorCode.TRAJECTORY_NOT_MONOTONIC,
        )


# Plan hash: SHA-256 that identifies a motion independently of how it was sent or stored.
#
# Hashed data, in this order, integers little-endian:
#
#     b"kinema4d plan 1\n"
#     number of joints, number of samples        2 x uint32
#     for each joint name, sorted: length, UTF-8 uint32, bytes
#     times, nearest nanosecond                  T x int64
#     positions, columns in the names' order     T x N x float64, -0.0 as 0.0
#     for each of velocities, accelerations and effort that the plan has, in this order:
#         its name and a newline, then as positions   bytes, T x N x float64
#
# Times are not shifted to 0: a plan that waits before it moves is a different plan. Integer time stamps in messages
# preserve the nanoseconds, so sending a plan keeps its hash. The same positions with other velocities are a different
# plan, because controllers interpolate them differently. Plans with positions only keep the hash that they had before
# the optional tables were added.

_TAG = b"kinema4d plan 1\n"


def plan_hash(names: Sequence[str], times: ArrayLike, positions: ArrayLike) -> str:
    """Return 64 hex digits for joint names (N), times (T,) in seconds and positions (T, N) in radians or metres.

    The order of the joints does not matter. Bad input raises `TrajectoryError`.

    >>> plan_hash(["a", "b"], [0.0, 1.0], [[0, 1], [2, 3]]) == plan_hash(["b", "a"], [0.0, 1.0], [[1, 0], [3, 2]])
    True
    """
    return hash_trajectory(JointTrajectory.from_positions(names, positions, times=times))


def hash_trajectory(trajectory: JointTrajectory) -> str:
    """Return the 64 hex digits that identify a trajectory; the hashed data is listed above `_TAG`."""
    order = sorted(range(len(trajectory.names)), key=lambda column: trajectory.names[column])
    times_ns = np.rint(trajectory.times * 1e9).astype("<i8")
    digest = hashlib.sha256(_TAG)
    digest.update(struct.pack("<II", len(order), len(trajectory)))
    for column in order:
        name = trajectory.names[column].encode()
        digest.update(struct.pack("<I", len(name)) + name)
    digest.update(times_ns.tobytes())
    digest.update(_table(trajectory.positions, order))
    for what in DERIVATIVES:
        if (values := getattr(trajectory, what)) is not None:
            digest.update(f"{what}\n".encode() + _table(values, order))
    return digest.hexdigest()


def _table(values: NDArray[np.float64], order: Sequence[int]) -> bytes:
    # Adding 0.0 turns -0.0 into 0.0.
    return np.ascontiguousarray(values[:, order] + 0.0, dtype="<f8").tobytes()
