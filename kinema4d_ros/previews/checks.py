"""Checks before a preview: plans against the robot and the arm's state, and stamps of images and scene changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, TrajectoryError
from kinema4d_ros.core.limits import Overshoot
from kinema4d_ros.core.trajectory import FRAMES, JointTrajectory, hash_trajectory
from kinema4d_ros.core.transforms import rotation_angle
from kinema4d_ros.kinematics.protocol import Kinematics
from kinema4d_ros.previews.arm import ArmState
from kinema4d_ros.previews.gate import GatePolicy
from kinema4d_ros.robot.model import Robot

__all__ = ["AHEAD_NS", "CheckedPlan", "WorldChanges", "believed", "check_plan", "plan_from_poses", "start_gap"]

TOOL_SPEED_M_S = 0.15
TOOL_TURN_RAD_S = 0.8
"""Speed of the tool along poses without times."""

STRETCH = 100
"""Poses per IK call, so that a path that leaves the arm's reach fails early."""


@dataclass(frozen=True, eq=False)
class CheckedPlan:
    """A plan that passed the checks.

    Attributes:
        plan: unchanged, with its velocities and accelerations; this plan would be executed.
        plan_hash: of the plan.
        frames: the motion of all actuated joints at the frames of the rollout, interpolated as a controller does it.
        overshoots: joints slightly past a limit, within the tolerance.
    """

    plan: JointTrajectory
    plan_hash: str
    frames: JointTrajectory
    overshoots: tuple[Overshoot, ...]


def check_plan(
    robot: Robot,
    plan: JointTrajectory,
    arm: ArmState,
    *,
    start_tolerance_rad: float = GatePolicy.start_tolerance_rad,
    start_tolerance_m: float = GatePolicy.start_tolerance_m,
    frames: int = FRAMES,
) -> CheckedPlan:
    """Check joints, limits, speeds and the start of a plan; joints that the plan does not name keep their position.

    A plan with velocities is checked along the controller's spline, and starts and ends at rest.

    Raises:
        RobotError: UNKNOWN_JOINT.
        TrajectoryError: TRAJECTORY_OUT_OF_LIMITS, TRAJECTORY_TOO_FAST or PLAN_START_MISMATCH.
    """
    overshoots = plan.validate(robot, check_velocity=True)
    sampled = plan.resample(frames)
    q = robot.positions(plan.names, sampled.positions, fill=arm.positions)
    apart = start_gap(robot, q[0], arm.positions, start_tolerance_rad, start_tolerance_m)
    if apart is not None:
        raise TrajectoryError(
            f"the plan does not start where the arm is: {apart}",
            expected=f"a start within {start_tolerance_rad:g} rad and {start_tolerance_m:g} m of the arm",
            hint="plan again from the current state",
            code=ErrorCode.PLAN_START_MISMATCH,
        )
    motion = JointTrajectory.from_positions(robot.joint_names, q, times=sampled.times)
    return CheckedPlan(plan, hash_trajectory(plan), motion, overshoots)


def start_gap(
    robot: Robot, start: NDArray[np.float64], there: NDArray[np.float64], tolerance_rad: float, tolerance_m: float
) -> str | None:
    """Describe the joint of (J,) positions farthest from the plan's start; None within the tolerance."""
    gap = np.abs(start - there)
    tolerance = np.array([tolerance_m if joint.kind == "prismatic" else tolerance_rad for joint in robot.actuated])
    worst = int(np.argmax(gap / tolerance))
    if gap[worst] <= tolerance[worst]:
        return None
    joint = robot.actuated[worst]
    unit = "m" if joint.kind == "prismatic" else "rad"
    return f"joint '{joint.name}' is at {there[worst]:.4f} {unit}, the plan starts at {start[worst]:.4f}"


def plan_from_poses(
    kinematics: Kinematics,
    base_T_tool: NDArray[np.float64],
    times: NDArray[np.float64] | None,
    arm: ArmState,
    go_on: Callable[[], None] = lambda: None,
) -> JointTrajectory:
    """Plan the arm's joints from its current position along tool poses (T, 4, 4) in the base frame.

    Without times the tool moves at most at `TOOL_SPEED_M_S` and turns at most at `TOOL_TURN_RAD_S`. The motion begins
    at the arm's current position, so a path that starts elsewhere is approached at that speed. `go_on` is called every
    `STRETCH` poses and may raise to cancel: solving takes about 1 ms per pose.

    Raises:
        NoSolution: a pose cannot be reached; names the closest reachable one.
    """
    robot = kinematics.robot
    solved = _follow(kinematics, base_T_tool, arm.positions, go_on)
    here = kinematics.forward(arm.positions)[[link.name for link in robot.links].index(robot.tool_link)]
    poses = np.concatenate([here[None], np.asarray(base_T_tool)])
    distance = np.linalg.norm(np.diff(poses[:, :3, 3], axis=0), axis=1)
    turn = np.array([rotation_angle(a, b) for a, b in pairwise(poses)])
    steps = np.maximum(distance / TOOL_SPEED_M_S, turn / TOOL_TURN_RAD_S)
    q = np.vstack([arm.positions, solved])
    # A joint may need more time than the tool: slow down to half of its velocity limit.
    speed = np.array([joint.limits.velocity for joint in robot.actuated])
    steps = np.maximum(steps, (np.abs(np.diff(q, axis=0)) / (0.5 * speed)).max(axis=1))
    if times is not None:
        steps[1:] = np.diff(times)
    clock = np.concatenate([[0.0], np.cumsum(np.maximum(steps, 1e-3))])
    arm_joints = [joint.name for joint in robot.arm]
    columns = [robot.joint_names.index(name) for name in arm_joints]
    return JointTrajectory.from_positions(arm_joints, q[:, columns], times=clock)


def _follow(
    kinematics: Kinematics, poses: NDArray[np.float64], seed: NDArray[np.float64], go_on: Callable[[], None]
) -> NDArray[np.float64]:
    """Solve for positions (T, J) along poses (T, 4, 4), all of which must be reached."""
    solved: list[NDArray[np.float64]] = []
    for first in range(0, len(poses), STRETCH):
        go_on()
        path = kinematics.solve_path(poses[first : first + STRETCH], seed=seed)
        path.require_reached(first)
        solved.append(path.q)
        seed = path.q[-1]
    return np.vstack(solved)


# Stamps of images and scene changes, validated against this machine's clock.

AHEAD_NS = 5_000_000_000
"""Maximum lead of another machine's clock over this one's, nanoseconds."""


def believed(stamp_ns: int, now_ns: int) -> int:
    """Return a stamp if it is plausible, otherwise the time of its arrival.

    A missing stamp (0), one before 1970 and one in the far future would otherwise decide permanently whether an image
    shows the current scene. `now_ns` is the receiver's clock on arrival.
    """
    return stamp_ns if 0 < stamp_ns <= now_ns + AHEAD_NS else now_ns


class WorldChanges:
    """The newest reported change of the scene. Thread-safe.

    A change without a usable stamp counts from its arrival; one older than a known one is ignored, so a replayed
    message cannot make an old image valid again. Only if the receiver's own clock went back, because a simulation was
    restarted, does the stamp go back too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed_ns = 0
        self._heard_ns = 0

    @property
    def newest_ns(self) -> int:
        """Stamp of the newest change; 0 when there was none."""
        return self._changed_ns

    def hear(self, stamp_ns: int, now_ns: int) -> int:
        """Register a change by its stamp and the receiver's clock; return the stamp of the newest change."""
        stamp_ns = believed(stamp_ns, now_ns)
        with self._lock:
            went_back = now_ns < self._heard_ns
            self._heard_ns = now_ns
            self._changed_ns = stamp_ns if went_back else max(self._changed_ns, stamp_ns)
            return self._changed_ns
