"""Conversion of poses, transforms and paths to (4, 4) matrices and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from geometry_msgs.msg import Pose, PoseArray, Transform
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import ErrorCode, TrajectoryError
from kinema4d_ros.core.transforms import from_quaternion, to_quaternion
from kinema4d_ros.ros.messages.stamps import nanoseconds

__all__ = [
    "matrices_to_pose_array",
    "matrices_to_transforms",
    "matrix_to_pose",
    "matrix_to_transform",
    "path_to_matrices",
    "pose_array_to_matrices",
    "pose_to_matrix",
    "transform_to_matrix",
]

Matrix = NDArray[np.float64]

_UNIT_TOLERANCE = 1e-3
"""Tolerance of a quaternion's norm around 1: allows four typed digits, rejects the default 0 0 0 0."""


def pose_to_matrix(pose: Any) -> Matrix:
    """Return (4, 4) `frame_T_pose` in metres of a geometry_msgs/Pose."""
    return _matrix(pose.position, pose.orientation, "pose")


def transform_to_matrix(transform: Any) -> Matrix:
    """Return (4, 4) `parent_T_child` in metres of a geometry_msgs/Transform."""
    return _matrix(transform.translation, transform.rotation, "transform")


def matrix_to_pose(frame_T_pose: ArrayLike) -> Any:
    """Convert a (4, 4) matrix to a geometry_msgs/Pose."""
    T = np.asarray(frame_T_pose, dtype=np.float64)
    pose = Pose()
    pose.position.x, pose.position.y, pose.position.z = T[:3, 3].tolist()
    q = pose.orientation
    q.x, q.y, q.z, q.w = to_quaternion(T).tolist()
    return pose


def matrix_to_transform(parent_T_child: ArrayLike) -> Any:
    """Convert a (4, 4) matrix to a geometry_msgs/Transform."""
    return matrices_to_transforms(np.asarray(parent_T_child)[None])[0]


def matrices_to_transforms(parent_T_children: ArrayLike) -> list[Any]:
    """Convert (N, 4, 4) matrices to geometry_msgs/Transform; batched, because ten cost little more than one."""
    T = np.asarray(parent_T_children, dtype=np.float64)
    transforms = []
    for position, quaternion in zip(T[:, :3, 3].tolist(), to_quaternion(T).tolist(), strict=True):
        transform = Transform()
        t, q = transform.translation, transform.rotation
        t.x, t.y, t.z = position
        q.x, q.y, q.z, q.w = quaternion
        transforms.append(transform)
    return transforms


def pose_array_to_matrices(message: Any) -> Matrix:
    """Return the (T, 4, 4) poses of a geometry_msgs/PoseArray in its header's frame."""
    _require_some(len(message.poses))
    return np.stack([_matrix(p.position, p.orientation, f"pose {i}") for i, p in enumerate(message.poses)])


def matrices_to_pose_array(frame_T_poses: ArrayLike, header: Any) -> Any:
    """Convert (T, 4, 4) poses to a geometry_msgs/PoseArray."""
    return PoseArray(header=header, poses=[matrix_to_pose(T) for T in np.asarray(frame_T_poses)])


def path_to_matrices(message: Any) -> tuple[Matrix, Matrix | None]:
    """Return the (T, 4, 4) poses and (T,) seconds since the first pose of a nav_msgs/Path.

    The times are None when no pose has a stamp. Paths with only some poses stamped, or with poses in another frame
    than the path, raise TrajectoryError.
    """
    _require_some(len(message.poses))
    poses = [_matrix(p.pose.position, p.pose.orientation, f"pose {i}") for i, p in enumerate(message.poses)]
    for i, stamped in enumerate(message.poses):
        if stamped.header.frame_id not in ("", message.header.frame_id):
            raise TrajectoryError(
                f"pose {i} of the path is in frame '{stamped.header.frame_id}'",
                expected=f"'{message.header.frame_id}', the frame of the path",
            )
    stamps = np.array([nanoseconds(p.header.stamp) for p in message.poses], dtype=np.int64)
    if not stamps.any() or len(stamps) == 1:
        return np.stack(poses), None
    steps = np.diff(stamps)
    if np.any(steps <= 0):
        sample = int(np.argmax(steps <= 0)) + 1
        raise TrajectoryError(
            f"pose {sample} of the path is stamped {steps[sample - 1] * 1e-9:.9g} s after the previous one",
            expected="strictly increasing stamps, or none at all",
            code=ErrorCode.TRAJECTORY_NOT_MONOTONIC,
        )
    return np.stack(poses), (stamps - stamps[0]) * 1e-9


def _require_some(count: int) -> None:
    if count == 0:
        raise TrajectoryError("the path has no poses", expected="at least one", code=ErrorCode.TRAJECTORY_EMPTY)


def _matrix(position: Any, orientation: Any, what: str) -> Matrix:
    t = np.array([position.x, position.y, position.z])
    q = np.array([orientation.x, orientation.y, orientation.z, orientation.w])
    if not (np.all(np.isfinite(t)) and np.all(np.isfinite(q))):
        raise TrajectoryError(
            f"{what} contains NaN or infinity: position {t.tolist()}, orientation {q.tolist()}",
            expected="finite numbers",
            code=ErrorCode.TRAJECTORY_NOT_FINITE,
        )
    length = float(np.linalg.norm(q))
    if abs(length - 1.0) > _UNIT_TOLERANCE:
        raise TrajectoryError(
            f"{what} has orientation {q.tolist()} of norm {length:.6g}",
            expected="a unit quaternion x, y, z, w",
            hint="the identity rotation is 0 0 0 1",
            code=ErrorCode.NOT_A_ROTATION,
        )
    return from_quaternion(q, t)
