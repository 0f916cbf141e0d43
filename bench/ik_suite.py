"""Random tool paths that an arm can follow, some near-singular, and an oracle that verifies it.

The oracle does not use the solver under test: it takes all closed-form solutions within the limits
along a finer copy of the path and tests whether they can be joined without a jump.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.transforms import axis_angle, from_rpy, slerp
from kinema4d_ros.kinematics.closed_form import ParallelAxesArm
from kinema4d_ros.kinematics.pinocchio_backend import ArmModel
from kinema4d_ros.robot import Robot

Array = NDArray[np.float64]

SAMPLES = 49
JOIN_STEP = 0.3
FINER = 3
KINDS = ("line", "circle", "pick and place", "near the elbow singularity", "near the wrist singularity", "full stretch")


@dataclass(frozen=True, eq=False)
class Case:
    kind: str
    base_T_tool: Array


def elbow_singularity(robot: Robot) -> float:
    """Find q3 at which the upper and lower arm are in line, where the tool's reach is largest."""
    arm = ArmModel(robot)
    q3 = np.linspace(arm.lower[2], arm.upper[2], 20001)
    joint4 = robot.joint(robot.arm[3].name).parent_T_joint[:3, 3]
    joint3 = robot.joint(robot.arm[2].name)
    offset = joint3.parent_T_joint[:3, 3]
    turned = axis_angle(joint3.axis, q3)[:, :3, :3] @ joint4
    reach = offset + turned @ joint3.parent_T_joint[:3, :3].T
    across = reach - (reach @ joint3.axis)[:, None] * joint3.axis
    return float(q3[np.argmax(np.linalg.norm(across, axis=1))])


class Oracle:
    def __init__(self, robot: Robot) -> None:
        arm = ParallelAxesArm.of(robot)
        if arm is None:
            raise ValueError("the oracle needs an arm with a closed form")
        self._arm = arm
        self._home = robot.home_position()[[robot.joint_names.index(j.name) for j in robot.arm]]

    def reachable(self, poses: Array) -> NDArray[np.bool_]:
        """Return (T,) whether some configuration within the limits reaches the pose."""
        return np.isfinite(self._arm.solve_all(poses, self._home)[:, :, 0]).any(axis=1)

    def can_follow(self, poses: Array) -> bool:
        """Return whether the whole path can be followed from some solution of its first pose."""
        if not self.reachable(poses[::6]).all():
            return False
        fine = [slerp(a, b, np.arange(1, FINER + 1) / FINER) for a, b in pairwise(poses)]
        solutions = self._arm.solve_all(np.concatenate([poses[:1], *fine]), self._home)
        alive = np.isfinite(solutions[0, :, 0])
        for before, after in pairwise(solutions):
            step = np.max(np.abs(after[:, None] - before[None]), axis=2)
            alive = np.any((step < JOIN_STEP) & alive[None], axis=1)
            if not alive.any():
                return False
        return True


def cases(robot: Robot, count: int, seed: int = 0, kinds: tuple[str, ...] = KINDS) -> Iterator[Case]:
    """Make `count` followable paths, alternating the kinds; the same for the same seed."""
    rng = np.random.default_rng(seed)
    arm, oracle = ArmModel(robot), Oracle(robot)
    elbow = elbow_singularity(robot)
    made = 0
    while made < count:
        kind = kinds[made % len(kinds)]
        poses = _random_path(kind, arm, elbow, rng)
        if oracle.can_follow(poses):
            made += 1
            yield Case(kind, poses)


def leaving(robot: Robot, count: int, seed: int = 1) -> Iterator[Case]:
    """Make paths that start within reach, leave it by 0.1 to 0.4 m and return the same way."""
    rng = np.random.default_rng(seed)
    arm, oracle = ArmModel(robot), Oracle(robot)
    made = 0
    while made < count:
        start = arm.tool_pose(_random_configuration(arm, rng))
        end = start.copy()
        end[:3, 3] += rng.uniform(0.2, 0.6) * _unit(rng)
        there = slerp(start, end, np.linspace(0, 1, (SAMPLES + 1) // 2))
        path = np.concatenate([there, there[-2::-1]])
        inside = oracle.reachable(there)
        # The outward path must be followable up to the boundary and stay outside after that.
        first_out = int(np.argmin(inside)) if not inside.all() else 0
        if first_out >= 4 and not inside[first_out:].any() and oracle.can_follow(there[: first_out - 1]):
            made += 1
            yield Case("leaves and comes back", path)


def lost_on_the_way_back(robot: Robot, case: Case, reached: NDArray[np.bool_]) -> int:
    """Count poses of a `leaving` path that were reached outwards, are within reach, and were missed on the return."""
    half = SAMPLES // 2 + 1
    there, back = reached[:half], reached[half - 1 :][::-1]
    # Just outside the boundary, a pose may be within the tolerance in one direction and not in the other.
    return int(np.sum(there & ~back & Oracle(robot).reachable(case.base_T_tool[:half])))


def _random_path(kind: str, arm: ArmModel, elbow: float, rng: np.random.Generator) -> Array:
    if kind == "pick and place":
        return _pick_and_place(rng)
    q = _random_configuration(arm, rng)
    if kind == "near the elbow singularity":
        q[2] = elbow + rng.uniform(-0.05, -0.002)
    elif kind == "near the wrist singularity":
        q[4] = rng.choice([-1.0, 1.0]) * rng.uniform(1.5, 1.565)
    elif kind == "full stretch":
        q[2], q[3] = elbow + rng.uniform(-0.03, 0.0), rng.uniform(-0.2, 0.2)
    middle = arm.tool_pose(q)
    if kind == "circle":
        angle = np.linspace(0, 2 * np.pi, SAMPLES)
        radius, (u, v) = rng.uniform(0.02, 0.12), np.linalg.qr(rng.normal(size=(3, 2)))[0].T
        path = np.tile(middle, (SAMPLES, 1, 1))
        path[:, :3, 3] += radius * (np.cos(angle)[:, None] * u + np.sin(angle)[:, None] * v)
        return path
    half = rng.uniform(0.03, 0.2) * _unit(rng)
    turn = axis_angle(_unit(rng), rng.uniform(0, 0.3))
    start, end = middle.copy(), middle @ turn
    start[:3, 3] -= half
    end[:3, 3] = middle[:3, 3] + half
    return slerp(start, end, np.linspace(0, 1, SAMPLES))


def _pick_and_place(rng: np.random.Generator) -> Array:
    def above(height: float, radius: float, angle: float, yaw: float) -> Array:
        return from_rpy([np.pi, 0.0, yaw], [radius * np.cos(angle), radius * np.sin(angle), height])

    yaw, angles, radii = rng.uniform(-0.6, 0.6), rng.uniform(-1.0, 1.0, 2), rng.uniform(0.25, 0.5, 2)
    low, high = rng.uniform(0.02, 0.06, 2), rng.uniform(0.12, 0.25)
    stops = [
        above(high, radii[0], angles[0], angles[0] + yaw),
        above(low[0], radii[0], angles[0], angles[0] + yaw),
        above(high, radii[0], angles[0], angles[0] + yaw),
        above(high, radii[1], angles[1], angles[1] + yaw),
        above(low[1], radii[1], angles[1], angles[1] + yaw),
    ]
    legs = [slerp(a, b, np.linspace(0, 1, 13)[1:]) for a, b in pairwise(stops)]
    return np.concatenate([stops[0][None], *legs])


def _random_configuration(arm: ArmModel, rng: np.random.Generator) -> Array:
    return rng.uniform(np.maximum(arm.lower, -np.pi), np.minimum(arm.upper, np.pi))


def _unit(rng: np.random.Generator) -> Array:
    v = rng.normal(size=3)
    return v / np.linalg.norm(v)
