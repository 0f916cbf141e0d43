"""Rigid transforms as (4, 4) float64 matrices: build, check, invert, interpolate.

`a_T_b` maps coordinates in frame b to coordinates in frame a: `p_a = a_T_b @ p_b`.
Quaternions are (x, y, z, w), as in geometry_msgs. All functions accept leading batch axes
where the docstring says `(..., )`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import CameraError, ErrorCode

__all__ = [
    "apply",
    "axis_angle",
    "from_quaternion",
    "from_rpy",
    "identity",
    "invert",
    "make",
    "require_rigid",
    "rotation_angle",
    "slerp",
    "to_quaternion",
    "to_rpy",
]

Matrix = NDArray[np.float64]

ROTATION_TOLERANCE = 1e-5
"""Largest deviation of an entry of R^T R from I: YAML files carry about six digits."""


def identity() -> Matrix:
    """Return the (4, 4) identity."""
    return np.eye(4)


def make(rotation: ArrayLike | None = None, translation: ArrayLike | None = None) -> Matrix:
    """Build (..., 4, 4) from (..., 3, 3) rotation and (..., 3) translation in metres."""
    R = np.eye(3) if rotation is None else np.asarray(rotation, dtype=np.float64)
    t = np.zeros(3) if translation is None else np.asarray(translation, dtype=np.float64)
    batch = np.broadcast_shapes(R.shape[:-2], t.shape[:-1])
    out = np.zeros((*batch, 4, 4))
    out[..., :3, :3] = R
    out[..., :3, 3] = t
    out[..., 3, 3] = 1.0
    return out


def from_rpy(rpy: ArrayLike, xyz: ArrayLike | None = None) -> Matrix:
    """Build (..., 4, 4) from URDF roll-pitch-yaw in radians (fixed axes x, y, z) and xyz in metres."""
    r, p, y = np.moveaxis(np.asarray(rpy, dtype=np.float64), -1, 0)
    cr, sr, cp, sp, cy, sy = np.cos(r), np.sin(r), np.cos(p), np.sin(p), np.cos(y), np.sin(y)
    rows = [
        [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
        [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
        [-sp, cp * sr, cp * cr],
    ]
    R = np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
    return make(R, xyz)


def to_rpy(a_T_b: ArrayLike) -> Matrix:
    """Return (..., 3) roll, pitch, yaw in radians; pitch in [-pi/2, pi/2], roll 0 at gimbal lock."""
    R = np.asarray(a_T_b, dtype=np.float64)[..., :3, :3]
    level = np.hypot(R[..., 0, 0], R[..., 1, 0])
    pitch = np.arctan2(-R[..., 2, 0], level)
    roll = np.where(level < 1e-9, 0.0, np.arctan2(R[..., 2, 1], R[..., 2, 2]))
    # Yaw of the rotation that remains after undoing this roll: near gimbal lock only their sum is well defined.
    cr, sr = np.cos(roll), np.sin(roll)
    yaw = np.arctan2(R[..., 0, 2] * sr - R[..., 0, 1] * cr, R[..., 1, 1] * cr - R[..., 1, 2] * sr)
    return np.stack([roll, pitch, yaw], axis=-1)


def axis_angle(axis: ArrayLike, angle: ArrayLike) -> Matrix:
    """Build the (..., 4, 4) rotation by angle (...,) radians about a unit axis (3,)."""
    x, y, z = np.asarray(axis, dtype=np.float64)
    a = np.asarray(angle, dtype=np.float64)
    c, s = np.cos(a), np.sin(a)
    C = 1.0 - c
    out = np.zeros((*a.shape, 4, 4))
    out[..., 0, 0] = c + x * x * C
    out[..., 0, 1] = x * y * C - z * s
    out[..., 0, 2] = x * z * C + y * s
    out[..., 1, 0] = y * x * C + z * s
    out[..., 1, 1] = c + y * y * C
    out[..., 1, 2] = y * z * C - x * s
    out[..., 2, 0] = z * x * C - y * s
    out[..., 2, 1] = z * y * C + x * s
    out[..., 2, 2] = c + z * z * C
    out[..., 3, 3] = 1.0
    return out


def invert(a_T_b: ArrayLike) -> Matrix:
    """Invert rigid transforms (..., 4, 4), by transposition."""
    T = np.asarray(a_T_b, dtype=np.float64)
    Rt = np.swapaxes(T[..., :3, :3], -1, -2)
    return make(Rt, -(Rt @ T[..., :3, 3, None])[..., 0])


def apply(a_T_b: ArrayLike, p_b: ArrayLike) -> Matrix:
    """Transform points p_b (..., 3) in metres to p_a (..., 3); one transform for all points."""
    T = np.asarray(a_T_b, dtype=np.float64)
    return np.asarray(np.asarray(p_b, dtype=np.float64) @ T[:3, :3].T + T[:3, 3])


def from_quaternion(xyzw: ArrayLike, xyz: ArrayLike | None = None) -> Matrix:
    """Build (..., 4, 4) from quaternions (..., 4) in the order x, y, z, w, which are normalised first."""
    q = np.asarray(xyzw, dtype=np.float64)
    norm = np.linalg.norm(q, axis=-1, keepdims=True) if q.ndim else np.zeros(1)
    if q.shape[-1:] != (4,) or not np.all(np.isfinite(norm)) or np.any(norm < 1e-9):
        raise CameraError(
            f"quaternion {q.tolist()} has no direction",
            expected="four finite numbers x, y, z, w that are not all zero",
            code=ErrorCode.NOT_A_ROTATION,
        )
    x, y, z, w = np.moveaxis(q / norm, -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    R = np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
    return make(R, xyz)


def to_quaternion(a_T_b: ArrayLike) -> Matrix:
    """Return (..., 4) unit quaternions x, y, z, w with w >= 0."""
    R = np.asarray(a_T_b, dtype=np.float64)[..., :3, :3]
    xx, yy, zz = R[..., 0, 0], R[..., 1, 1], R[..., 2, 2]
    # Four formulas for the same quaternion, each dividing by one component; the largest one is stable.
    squares = np.stack([1 + xx - yy - zz, 1 - xx + yy - zz, 1 - xx - yy + zz, 1 + xx + yy + zz], -1)
    yz, zx, xy = R[..., 2, 1] - R[..., 1, 2], R[..., 0, 2] - R[..., 2, 0], R[..., 1, 0] - R[..., 0, 1]
    sxy, szx, syz = R[..., 1, 0] + R[..., 0, 1], R[..., 0, 2] + R[..., 2, 0], R[..., 2, 1] + R[..., 1, 2]
    candidates = np.stack(
        [
            np.stack([squares[..., 0], sxy, szx, yz], -1),
            np.stack([sxy, squares[..., 1], syz, zx], -1),
            np.stack([szx, syz, squares[..., 2], xy], -1),
            np.stack([yz, zx, xy, squares[..., 3]], -1),
        ],
        axis=-2,
    )
    best = np.argmax(squares, axis=-1)
    q = np.take_along_axis(candidates, best[..., None, None], axis=-2)[..., 0, :]
    q = q / np.linalg.norm(q, axis=-1, keepdims=True)
    return np.asarray(np.where(q[..., 3:] < 0, -q, q))


def slerp(a_T_b0: ArrayLike, a_T_b1: ArrayLike, s: ArrayLike) -> Matrix:
    """Interpolate (N, 4, 4) poses between two, s (N,) in [0, 1]: straight line, shortest constant-rate rotation."""
    T0, T1 = np.asarray(a_T_b0, dtype=np.float64), np.asarray(a_T_b1, dtype=np.float64)
    s = np.atleast_1d(np.asarray(s, dtype=np.float64))
    x, y, z, w = to_quaternion(invert(T0) @ T1)
    sine = np.linalg.norm([x, y, z])
    angle = 2.0 * np.arctan2(sine, w)
    axis = np.array([1.0, 0.0, 0.0]) if sine < 1e-12 else np.array([x, y, z]) / sine
    R = T0[:3, :3] @ axis_angle(axis, s * angle)[:, :3, :3]
    t = (1 - s)[:, None] * T0[:3, 3] + s[:, None] * T1[:3, 3]
    return make(R, t)


def rotation_angle(a_T_b: ArrayLike, a_T_c: ArrayLike) -> NDArray[np.float64]:
    """Return the angle (...,) in radians between the orientations of two poses."""
    Ra = np.asarray(a_T_b, dtype=np.float64)[..., :3, :3]
    Rc = np.asarray(a_T_c, dtype=np.float64)[..., :3, :3]
    difference = np.swapaxes(Ra, -1, -2) @ Rc
    # atan2 keeps full precision near 0 and pi, where arccos of the trace loses half the digits.
    skew = difference - np.swapaxes(difference, -1, -2)
    sine = np.sqrt(skew[..., 2, 1] ** 2 + skew[..., 0, 2] ** 2 + skew[..., 1, 0] ** 2)
    cosine = np.trace(difference, axis1=-2, axis2=-1) - 1.0
    return np.asarray(np.arctan2(sine, cosine))


def require_rigid(a_T_b: ArrayLike, name: str) -> Matrix:
    """Return the matrix as (4, 4) float64, or raise a CameraError that says why it is not rigid."""

    def refuse(why: str) -> CameraError:
        return CameraError(
            f"{name} is not a rigid transform: {why}",
            expected="a (4, 4) matrix [R t; 0 1] in metres with R^T R = I and det R = +1",
            hint="check the units, and that rows and columns were not swapped",
            code=ErrorCode.NOT_A_ROTATION,
        )

    try:
        T = np.asarray(a_T_b, dtype=np.float64)
    except (TypeError, ValueError) as reason:
        raise refuse(f"it is not an array of numbers ({reason})") from None
    if T.shape != (4, 4):
        raise refuse(f"its shape is {T.shape}")
    if not np.all(np.isfinite(T)):
        raise refuse("it holds NaN or infinity")
    if not np.allclose(T[3], [0, 0, 0, 1], atol=1e-9):
        raise refuse(f"its last row is {T[3].tolist()}")
    R = T[:3, :3]
    error = float(np.max(np.abs(R.T @ R - np.eye(3))))
    if error > ROTATION_TOLERANCE:
        raise refuse(f"R^T R differs from I by {error:.2g}")
    if np.linalg.det(R) < 0:
        raise refuse("its determinant is -1 (a mirror image)")
    return T
