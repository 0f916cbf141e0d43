"""Flip detection, and the path follower with solvers that try to flip."""

from __future__ import annotations

import numpy as np

from kinema4d_ros.core.transforms import axis_angle, make
from kinema4d_ros.kinematics.path import MAX_JOINT_STEP, count_flips, follow, is_flip, pose_distance
from kinema4d_ros.kinematics.protocol import LocalSolution


class PlanarArm:
    """Two unit links in the plane, solved exactly; prefers elbow up for x > 0 and elbow down for x < 0."""

    def tool_pose(self, q: np.ndarray) -> np.ndarray:
        a, b = q
        position = [np.cos(a) + np.cos(a + b), np.sin(a) + np.sin(a + b), 0.0]
        return make(axis_angle([0, 0, 1], 0.0)[:3, :3], position)

    def solve(self, base_T_tool: np.ndarray, seed: np.ndarray, posture: np.ndarray | None = None) -> LocalSolution:
        x, y = base_T_tool[:2, 3]
        bend = np.arccos(np.clip((x * x + y * y - 2) / 2, -1, 1)) * (1 if x > 0 else -1)
        turn = np.arctan2(y, x) - np.arctan2(np.sin(bend), 1 + np.cos(bend))
        q = np.array([turn, bend])
        return LocalSolution(q, float(np.linalg.norm(self.tool_pose(q)[:3, 3] - base_T_tool[:3, 3])), 0.0)


def pose(x: float, y: float) -> np.ndarray:
    return make(None, [x, y, 0.0])


def test_going_to_the_other_elbow_side_is_a_flip() -> None:
    arm = PlanarArm()
    up = arm.solve(pose(1.0, 0.5), np.zeros(2)).q
    bend = -up[1]
    down = np.array([np.arctan2(0.5, 1.0) - np.arctan2(np.sin(bend), 1 + np.cos(bend)), bend])
    np.testing.assert_allclose(arm.tool_pose(down), arm.tool_pose(up), atol=1e-12)
    assert is_flip(arm, up, down, asked_m=0.05)


def test_small_steps_and_long_steps_along_the_path_are_not_flips() -> None:
    arm = PlanarArm()
    assert not is_flip(arm, np.array([0.3, 1.0]), np.array([0.3 + 0.99 * MAX_JOINT_STEP, 1.0]), asked_m=0.0)
    # Half a radian about the base: a large step, but the target moves as far.
    here, there = np.array([0.0, 1.0]), np.array([0.5, 1.0])
    asked = pose_distance(arm.tool_pose(here), arm.tool_pose(there))
    assert not is_flip(arm, here, there, asked)
    # The same step is a jump if the target hardly moves.
    assert is_flip(arm, here, there, asked_m=0.05)


def test_jumps_of_the_solver_are_limited() -> None:
    arm = PlanarArm()
    poses = np.array([pose(x, 1.2) for x in np.linspace(0.4, -0.4, 21)])
    solutions = follow(arm, poses, arm.solve(poses[0], np.zeros(2)))
    steps = np.abs(np.diff([s.q for s in solutions], axis=0)).max(axis=1)
    assert steps.max() <= MAX_JOINT_STEP + 1e-9
    assert count_flips(arm, poses, np.array([s.q for s in solutions])) == 0
    assert all(s.reached for s in solutions[:10])
    assert not all(s.reached for s in solutions[10:])


def test_pose_distance_weighs_rotation() -> None:
    turned = axis_angle([0, 0, 1], 0.5)
    assert np.isclose(pose_distance(np.eye(4), turned), 0.1)
    assert np.isclose(pose_distance(pose(0, 0), pose(0.3, 0.4)), 0.5)
