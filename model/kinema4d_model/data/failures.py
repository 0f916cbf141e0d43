"""The paper's failure synthesis: noise on one third of a successful motion's pose, the gripper untouched.

Three segments x sigma 0.5, 0.8, 1.2 make nine failures of one demonstration. Sigma is in units of the action
space: one unit is a step of 10 mm and 0.05 rad at 10 Hz here, stated because the paper names none. Steps add up
along the segment; afterwards the motion goes on from where the noise has brought it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.errors import DataError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import from_rpy, make
from kinema4d_ros.kinematics.protocol import Kinematics

__all__ = ["RATE_HZ", "SEGMENTS", "SIGMAS", "UNIT_M", "UNIT_RAD", "VARIANTS", "disturb"]

SEGMENTS = 3
SIGMAS = (0.5, 0.8, 1.2)
VARIANTS = tuple((segment, sigma) for segment in range(SEGMENTS) for sigma in SIGMAS)
"""(segment, sigma) of the nine failures; `lab_failures` makes episodes of them."""
RATE_HZ = 10.0
UNIT_M = 0.010
UNIT_RAD = 0.05
_LOWEST_M = 0.008
_SPEED_FRACTION = 0.8


def disturb(
    kinematics: Kinematics, demonstration: JointTrajectory, segment: int, sigma: float, rng: np.random.Generator
) -> JointTrajectory:
    """The demonstration with Gaussian noise on its tool's pose in one of three segments; the gripper as it was.

    Poses out of reach become the nearest reachable ones. Where a joint would be too fast, the motion takes longer.
    """
    if not 0 <= segment < SEGMENTS or not (np.isfinite(sigma) and sigma > 0):
        raise DataError(f"segment {segment}, sigma {sigma}", expected=f"0 to {SEGMENTS - 1}, and more than 0")
    robot = kinematics.robot
    count = max(SEGMENTS * 2, int(np.ceil(demonstration.duration_s * RATE_HZ)) + 1)
    steps = demonstration.resample(count)
    q = steps.for_robot(robot)
    tool = [link.name for link in robot.links].index(robot.tool_link)
    poses = np.stack([kinematics.forward(row)[tool] for row in q])
    edges = np.linspace(0, count, SEGMENTS + 1).astype(int)
    noisy = np.zeros(count, dtype=bool)
    noisy[max(1, edges[segment]) : edges[segment + 1]] = True
    shift = np.cumsum(rng.normal(0.0, sigma * UNIT_M, (count, 3)) * noisy[:, None], axis=0)
    turn = np.cumsum(rng.normal(0.0, sigma * UNIT_RAD, (count, 3)) * noisy[:, None], axis=0)
    wanted = np.stack(
        [_moved(pose, shift[i], turn[i]) if i >= edges[segment] else pose for i, pose in enumerate(poses)]
    )
    wanted[:, 2, 3] = np.maximum(wanted[:, 2, 3], _LOWEST_M)
    path = kinematics.solve_path(wanted, seed=q[0])
    arm = path.q.copy()
    arm[0] = q[0]
    if robot.gripper is not None:
        column = robot.joint_names.index(robot.gripper.joint)
        arm[:, column] = q[:, column]
    return _slowed(robot.joint_names, steps.times, arm, np.array([j.limits.velocity for j in robot.actuated]))


def _moved(pose: NDArray[np.float64], shift: NDArray[np.float64], turn: NDArray[np.float64]) -> NDArray[np.float64]:
    return make(from_rpy(turn)[:3, :3] @ pose[:3, :3], pose[:3, 3] + shift)


def _slowed(
    names: tuple[str, ...], times: NDArray[np.float64], q: NDArray[np.float64], limits: NDArray[np.float64]
) -> JointTrajectory:
    spans = np.diff(times)
    # The controller's cubic between samples may be up to 1.5 times as fast as their mean.
    needed = 1.5 * np.max(np.abs(np.diff(q, axis=0)) / (_SPEED_FRACTION * limits), axis=1)
    clock = np.concatenate([[0.0], np.cumsum(np.maximum(spans, needed))])
    return JointTrajectory(names, clock, q)
