"""Forward kinematics of a whole trajectory: the pose of every link for all joint positions."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import ErrorCode, TrajectoryError
from kinema4d_ros.robot.model import Robot

__all__ = ["forward_all"]

FIXED, TURNS, SLIDES = 0, 1, 2


@dataclass(frozen=True, eq=False)
class _Tree:
    """Joints of a robot as arrays for the compiled kernel; entry k leads to link k + 1."""

    parent: NDArray[np.int64]
    kind: NDArray[np.int64]
    column: NDArray[np.int64]
    multiplier: NDArray[np.float64]
    offset: NDArray[np.float64]
    axis: NDArray[np.float64]
    parent_T_joint: NDArray[np.float64]


_trees: WeakKeyDictionary[Robot, _Tree] = WeakKeyDictionary()


def forward_all(robot: Robot, q: ArrayLike) -> NDArray[np.float64]:
    """Compute `base_T_link` of every link for every configuration.

    Args:
        robot: the robot.
        q: (T, J) positions in `robot.joint_names` order, radians or metres.

    Returns:
        (T, L, 4, 4) float64, metres, in `robot.links` order.
    """
    positions = np.ascontiguousarray(q, dtype=np.float64)
    if positions.ndim != 2 or positions.shape[1] != len(robot.actuated):
        raise TrajectoryError(
            f"positions have shape {positions.shape}",
            expected=f"(T, {len(robot.actuated)}) in the order {', '.join(robot.joint_names)}",
        )
    if not np.all(np.isfinite(positions)):
        raise TrajectoryError(
            "positions hold NaN or infinity",
            expected="finite radians or metres",
            code=ErrorCode.TRAJECTORY_NOT_FINITE,
        )
    # Import numba on the first call, not with the package: it takes half a second.
    from kinema4d_ros.kinematics._kernels import walk_tree

    tree = _tree(robot)
    out = np.empty((positions.shape[0], len(robot.links), 4, 4))
    walk_tree(
        positions,
        tree.parent,
        tree.kind,
        tree.column,
        tree.multiplier,
        tree.offset,
        tree.axis,
        tree.parent_T_joint,
        out,
    )
    return out


def _tree(robot: Robot) -> _Tree:
    if robot not in _trees:
        link = {link.name: i for i, link in enumerate(robot.links)}
        column = {name: i for i, name in enumerate(robot.joint_names)}
        kinds = {"fixed": FIXED, "prismatic": SLIDES}
        joints = robot.joints
        leader = [j.mimic.joint if j.mimic else j.name for j in joints]
        _trees[robot] = _Tree(
            parent=np.array([link[j.parent] for j in joints], dtype=np.int64),
            kind=np.array([kinds.get(j.kind, TURNS) for j in joints], dtype=np.int64),
            column=np.array([column.get(name, 0) for name in leader], dtype=np.int64),
            multiplier=np.array([j.mimic.multiplier if j.mimic else 1.0 for j in joints]),
            offset=np.array([j.mimic.offset if j.mimic else 0.0 for j in joints]),
            axis=np.array([j.axis for j in joints], dtype=np.float64).reshape(-1, 3),
            parent_T_joint=np.array([j.parent_T_joint for j in joints], dtype=np.float64).reshape(-1, 4, 4),
        )
    return _trees[robot]
