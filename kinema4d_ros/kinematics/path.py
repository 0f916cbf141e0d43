"""Inverse kinematics along a path without flips: each solution continues from the previous one.

A *flip* is a step between consecutive samples in which the arm changes its configuration instead of
following the path: some joint moves more than `MAX_JOINT_STEP`, and
- halfway (in joint space) the tool deviates from the straight line by more than `FLIP_EXCURSION_M` and by
  more than the distance of the two target poses,
- or the tool itself jumps by more than twice that distance plus `FLIP_EXCURSION_M`.
Fast joint motion near a singularity that keeps the tool on its path is not a flip.
`is_flip` implements this definition; `follow` never makes a flip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import ErrorCode, TrajectoryError
from kinema4d_ros.core.transforms import ROTATION_TOLERANCE, require_rigid, rotation_angle, slerp
from kinema4d_ros.kinematics.protocol import ROTATION_WEIGHT_M, IKPath, LocalSolution
from kinema4d_ros.robot.model import Robot

__all__ = [
    "FLIP_EXCURSION_M",
    "MAX_JOINT_STEP",
    "LocalSolver",
    "count_flips",
    "follow",
    "is_flip",
    "make_path",
    "pose_distance",
    "require_poses",
    "require_seed",
]

Array = NDArray[np.float64]

MAX_JOINT_STEP = 0.25
"""Radians (or metres) a joint may move between neighbouring poses without further checks."""

FLIP_EXCURSION_M = 0.02
"""Metres (including weighted rotation) that the tool may deviate from its path between two samples."""

MAX_HALVINGS = 5
MAX_EXITS = 3
MAX_REPAIRS = 8

AT_LIMIT = 1e-4


class LocalSolver(Protocol):
    """Solver used by `follow`: a local search and the tool's pose; positions are of the arm, (A,)."""

    def tool_pose(self, q: Array) -> Array:
        """Return (4, 4) `base_T_tool`."""
        ...

    def solve(self, base_T_tool: Array, seed: Array, posture: Array | None = None) -> LocalSolution:
        """Search from the seed for the configuration closest to the pose, if possible near a posture."""
        ...


def pose_distance(a_T_b: Array, a_T_c: Array) -> float:
    """Return the weighted distance of two poses in metres; a radian counts as `ROTATION_WEIGHT_M`."""
    turned = float(rotation_angle(a_T_b, a_T_c))
    return float(np.hypot(np.linalg.norm(a_T_b[:3, 3] - a_T_c[:3, 3]), ROTATION_WEIGHT_M * turned))


def is_flip(solver: LocalSolver, q0: Array, q1: Array, asked_m: float) -> bool:
    """Return True if moving from q0 to q1 (A,) in one step is a flip, as defined in the module docstring.

    `asked_m` is the `pose_distance` of the two target poses.
    """
    if np.max(np.abs(q1 - q0)) <= MAX_JOINT_STEP:
        return False
    start, end = solver.tool_pose(q0), solver.tool_pose(q1)
    if pose_distance(start, end) > 2 * asked_m + FLIP_EXCURSION_M:
        return True
    middle = solver.tool_pose((q0 + q1) / 2)
    return pose_distance(slerp(start, end, 0.5)[0], middle) > max(FLIP_EXCURSION_M, asked_m)


def follow(solver: LocalSolver, base_T_tool: Array, first: LocalSolution) -> list[LocalSolution]:
    """Return one solution for each pose (T, 4, 4), starting from the given one for the first pose.

    If poses are out of reach the arm stays as close to them as possible, and it returns on the branch on which it
    left if a motion without a flip leads there.
    """
    solutions = [first]
    exits: list[int] = []
    posture, repairs = first.q, 0
    for k in range(1, len(base_T_tool)):
        solutions.append(_advance(solver, base_T_tool[k - 1], base_T_tool[k], solutions[-1].q, posture))
        if not solutions[k].reached:
            if solutions[k - 1].reached:
                exits.append(k - 1)
            if repairs < MAX_REPAIRS:
                repairs += _return_to_branch(solver, base_T_tool, solutions, [0, *exits[-MAX_EXITS:]])
        if solutions[k].reached:
            posture = solutions[k].q
    return solutions


def _return_to_branch(
    solver: LocalSolver, base_T_tool: Array, solutions: list[LocalSolution], exits: list[int]
) -> bool:
    """Change the last solutions if an earlier branch of the arm reaches the last pose; return True if it tried.

    At full stretch two branches meet, and the branch of the arm shows only later, when one of them ends.
    Following the other one backwards from here to where they meet joins them. `exits` are the samples before which
    the arm was on the branches to try, last one first.
    """
    k = len(solutions) - 1
    for left in reversed(exits):
        seed = solutions[left].q
        back = [solver.solve(base_T_tool[k], seed)]
        if not back[0].reached:
            continue
        for j in range(k - 1, left, -1):
            back.append(_advance(solver, base_T_tool[j + 1], base_T_tool[j], back[-1].q, seed))
        back.reverse()
        steps = [np.max(np.abs(solutions[left + i].q - s.q)) for i, s in enumerate(back)]
        joint = int(np.argmin(steps))
        gained = sum(s.reached for s in back[joint:]) - sum(s.reached for s in solutions[left + 1 + joint :])
        asked = pose_distance(base_T_tool[left + joint], base_T_tool[left + joint + 1])
        if gained > 0 and not is_flip(solver, solutions[left + joint].q, back[joint].q, asked):
            solutions[left + 1 + joint :] = back[joint:]
        return True
    return False


def _advance(solver: LocalSolver, previous: Array, pose: Array, q: Array, posture: Array) -> LocalSolution:
    solution = _closest(solver, pose, q, posture)
    if np.abs(solution.q - q).max() <= MAX_JOINT_STEP:
        return solution
    # A long step may belong to the path (near a singularity) or be a jump to another branch.
    # Small steps distinguish the two.
    for halvings in range(1, MAX_HALVINGS + 1):
        walked = _walk(solver, slerp(previous, pose, np.arange(1, 2**halvings + 1) / 2**halvings), q, posture)
        if walked is not None:
            # Small steps may follow a corner that one long step cuts; the arm executes only the samples.
            if not is_flip(solver, q, walked.q, pose_distance(previous, pose)):
                return walked
            return _creep(solver, pose, q, walked.q)
    return _creep(solver, pose, q, solution.q)


def _closest(solver: LocalSolver, pose: Array, q: Array, posture: Array) -> LocalSolution:
    solution = solver.solve(pose, q)
    return solution if solution.reached else solver.solve(pose, q, posture)


def _walk(solver: LocalSolver, poses: Array, q: Array, posture: Array) -> LocalSolution | None:
    for pose in poses:
        solution = _closest(solver, pose, q, posture)
        if np.abs(solution.q - q).max() > MAX_JOINT_STEP:
            return None
        q = solution.q
    return solution


def _creep(solver: LocalSolver, pose: Array, q: Array, goal: Array) -> LocalSolution:
    """Move by at most `MAX_JOINT_STEP` towards a configuration that no continuous motion reaches."""
    step = goal - q
    q = q + step * (MAX_JOINT_STEP / np.max(np.abs(step)))
    here = solver.tool_pose(q)
    return LocalSolution(q, float(np.linalg.norm(here[:3, 3] - pose[:3, 3])), float(rotation_angle(here, pose)))


def require_poses(base_T_tool: ArrayLike) -> Array:
    """Return the poses as (T, 4, 4) float64, T >= 1, or raise an error that names the first non-rigid one."""
    poses = np.asarray(base_T_tool, dtype=np.float64)
    if poses.size == 0:
        raise TrajectoryError("the path of poses is empty", expected="(T, 4, 4)", code=ErrorCode.TRAJECTORY_EMPTY)
    if poses.ndim != 3 or poses.shape[1:] != (4, 4):
        raise TrajectoryError(f"poses have shape {poses.shape}", expected="(T, 4, 4)")
    # Fast check of all poses; the slow check that explains the problem runs only for suspects.
    R = poses[:, :3, :3]
    with np.errstate(invalid="ignore", over="ignore"):
        skew = np.max(np.abs(np.swapaxes(R, 1, 2) @ R - np.eye(3)), axis=(1, 2))
        last_row = np.max(np.abs(poses[:, 3] - [0.0, 0.0, 0.0, 1.0]), axis=1)
        fine = (skew < 0.5 * ROTATION_TOLERANCE) & (last_row < 1e-10) & (np.linalg.det(R) > 0)
    fine &= np.isfinite(poses).all(axis=(1, 2))
    for sample in np.flatnonzero(~fine):
        require_rigid(poses[sample], f"tool pose {sample}")
    return poses


def require_seed(robot: Robot, seed: ArrayLike | None) -> Array:
    """Return the seed as (J,) float64, or the robot's home if there is none."""
    if seed is None:
        return robot.home_position()
    q = np.asarray(seed, dtype=np.float64)
    if q.shape != (len(robot.joint_names),):
        raise TrajectoryError(
            f"the seed has shape {q.shape}",
            expected=f"({len(robot.joint_names)},) in the order {', '.join(robot.joint_names)}",
        )
    if not np.all(np.isfinite(q)):
        raise TrajectoryError(
            f"the seed {q.tolist()} is not finite", expected="finite numbers", code=ErrorCode.TRAJECTORY_NOT_FINITE
        )
    return q


def make_path(robot: Robot, solver: LocalSolver, solutions: Sequence[LocalSolution], start: Array) -> IKPath:
    """Build an `IKPath` from the solutions; joints outside the arm keep their value in `start` (J,)."""
    columns = [robot.joint_names.index(joint.name) for joint in robot.arm]
    q = np.tile(start, (len(solutions), 1))
    q[:, columns] = [s.q for s in solutions]
    return IKPath(
        q=q,
        base_T_tool=np.array([solver.tool_pose(s.q) for s in solutions]),
        reached=np.array([s.reached for s in solutions]),
        position_error_m=np.array([s.position_error_m for s in solutions]),
        rotation_error_rad=np.array([s.rotation_error_rad for s in solutions]),
        reasons=tuple("" if s.reached else _reason(robot, s.q) for s in solutions),
    )


def _reason(robot: Robot, q: Array) -> str:
    stopped = [
        f"{joint.name} at {value:.3f}"
        for joint, value in zip(robot.arm, q, strict=True)
        if min(abs(value - joint.limits.lower), abs(value - joint.limits.upper)) < AT_LIMIT
    ]
    if stopped:
        return f"joint limits stop it ({', '.join(stopped)})"
    return "it is out of reach, or only on a branch that the path does not lead to"


def count_flips(solver: LocalSolver, base_T_tool: Array, q: Array) -> int:
    """Count the flips in arm positions q (T, A) for poses (T, 4, 4)."""
    return sum(
        is_flip(solver, q[k], q[k + 1], pose_distance(base_T_tool[k], base_T_tool[k + 1])) for k in range(len(q) - 1)
    )
