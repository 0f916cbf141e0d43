"""Calibrated pinhole camera: projection, unprojection, scaling, cropping, rectification and pose.

This module defines the pixel convention of the whole package: the image plane is continuous and spans
[0, width] x [0, height]; the pixel in column u and row v covers [u, u + 1] x [v, v + 1] and samples its
centre (u + 0.5, v + 0.5). The ray of a pixel is therefore K^-1 [u + 0.5, v + 0.5, 1].

OpenCV and ROS CameraInfo put integer coordinates at pixel centres instead: their cx and cy are 0.5 smaller.
Convert only with `from_opencv` and `K_opencv`.

The optical frame has x to the right, y down and z forward.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.distortion import LensDistortion
from kinema4d_ros.core.errors import CameraError, ErrorCode
from kinema4d_ros.core.transforms import invert, make, require_rigid

__all__ = ["PinholeCamera"]

Array = NDArray[np.float64]
Interpolation = Literal["nearest", "linear", "cubic"]

_MAX_SIDE = 16384
_INTERPOLATION = {"nearest": cv2.INTER_NEAREST, "linear": cv2.INTER_LINEAR, "cubic": cv2.INTER_CUBIC}


@dataclass(frozen=True, eq=False)
class PinholeCamera:
    """Intrinsics, lens distortion and pose of a camera; validated on construction and immutable.

    Attributes:
        width, height: image size in pixels.
        K: (3, 3) float64 [[fx, 0, cx], [0, fy, cy], [0, 0, 1]] in pixels, this package's convention.
        base_T_camera: (4, 4) float64, metres: maps the optical frame to the robot's base.
        distortion: coefficients in OpenCV's order; empty for a perfect pinhole.
        distortion_model: "plumb_bob" (0, 4 or 5 coefficients) or "rational_polynomial" (0 or 8).
        frame_id: name of the optical frame.
        base_frame: name of the base frame of `base_T_camera`.

    >>> camera = PinholeCamera(640, 480, [[500, 0, 320], [0, 500, 240], [0, 0, 1]])
    >>> camera.project([[0.0, 0.0, 1.0]]).tolist()
    [[320.0, 240.0]]
    """

    width: int
    height: int
    K: Array
    base_T_camera: Array = field(default_factory=lambda: np.eye(4))
    distortion: tuple[float, ...] = ()
    distortion_model: str = "plumb_bob"
    frame_id: str = "camera_optical_frame"
    base_frame: str = "base_link"

    def __post_init__(self) -> None:
        """Validate all fields and keep private, read-only copies."""
        width, height = _require_size(self.width, self.height)
        K = _require_intrinsics(self.K)
        base_T_camera = require_rigid(self.base_T_camera, "base_T_camera").copy()
        K.flags.writeable = base_T_camera.flags.writeable = False
        values = {
            "width": width,
            "height": height,
            "K": K,
            "base_T_camera": base_T_camera,
            "distortion": tuple(float(c) for c in self.distortion),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self.lens.require_valid(self._normalise(self._border()))

    @classmethod
    def from_opencv(cls, width: int, height: int, K: ArrayLike, **rest: Any) -> PinholeCamera:
        """Build a camera from intrinsics in OpenCV's or CameraInfo's convention (integers at pixel centres)."""
        ours = _require_intrinsics(K)
        ours[:2, 2] += 0.5
        return cls(width, height, ours, **rest)

    @classmethod
    def look_at(
        cls,
        eye: ArrayLike,
        target: ArrayLike,
        *,
        width: int,
        height: int,
        up: ArrayLike = (0.0, 0.0, 1.0),
        fov_y_deg: float | None = None,
        focal_px: float | None = None,
        **rest: Any,
    ) -> PinholeCamera:
        """Build a camera at `eye` (3,) with `target` (3,) in the image centre; both in metres, base frame.

        Give the vertical field of view in degrees or the focal length in pixels, not both.
        """
        if (fov_y_deg is None) == (focal_px is None):
            raise CameraError(f"fov_y_deg is {fov_y_deg} and focal_px is {focal_px}", expected="exactly one of the two")
        if fov_y_deg is not None:
            if not 0.0 < fov_y_deg < 180.0:
                raise CameraError(f"field of view of {fov_y_deg} degrees", expected="more than 0 and less than 180")
            focal_px = 0.5 * height / float(np.tan(np.radians(fov_y_deg) / 2))
        p_eye, p_target, p_up = (np.asarray(v, dtype=np.float64) for v in (eye, target, up))
        forward = p_target - p_eye
        right = np.cross(forward, p_up)
        distance, lever = np.linalg.norm(forward), np.linalg.norm(right)
        if not lever > 1e-9 * distance * np.linalg.norm(p_up):
            raise CameraError(
                f"looking from {p_eye.tolist()} to {p_target.tolist()} with up {p_up.tolist()} has no orientation",
                expected="finite points that differ, and an up direction that is not parallel to the view",
                code=ErrorCode.NOT_A_ROTATION,
            )
        z, x = forward / distance, right / lever
        R = np.stack([x, np.cross(z, x), z], axis=1)
        K = np.array([[focal_px, 0.0, width / 2], [0.0, focal_px, height / 2], [0.0, 0.0, 1.0]], dtype=np.float64)
        return cls(width, height, K, base_T_camera=make(R, p_eye), **rest)

    @cached_property
    def lens(self) -> LensDistortion:
        """Distortion model."""
        return LensDistortion(self.distortion, self.distortion_model)

    @property
    def has_distortion(self) -> bool:
        """True if images must be rectified before other parts of the package can use them."""
        return not self.lens.is_identity

    @property
    def camera_T_base(self) -> Array:
        """(4, 4) float64: maps the robot's base to the optical frame."""
        return invert(self.base_T_camera)

    @property
    def K_opencv(self) -> Array:
        """(3, 3) intrinsics in OpenCV's and CameraInfo's convention (integers at pixel centres)."""
        K = np.array(self.K)
        K[:2, 2] -= 0.5
        return K

    def project(self, p_camera: ArrayLike, *, distort: bool = True) -> Array:
        """Project points (..., 3) in metres, optical frame, to image points (..., 2).

        NaN for points with z <= 0 and for those beyond the range of the distortion model.
        `distort=False` returns points of the rectified image.
        """
        p = np.asarray(p_camera, dtype=np.float64)
        z = p[..., 2:]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            xy = np.where(z > 0, p[..., :2] / z, np.nan)
            if distort:
                xy = self.lens.distort(xy)
            return xy * self._focal + self._center

    def unproject(self, uv: ArrayLike, z: ArrayLike, *, undistort: bool = True) -> Array:
        """Unproject image points (..., 2) at depth z (...,) in metres to points (..., 3) in metres, optical frame.

        `undistort=False` takes points of the rectified image. NaN where no direction maps to the image point.
        """
        xy = self._normalise(np.asarray(uv, dtype=np.float64))
        if undistort:
            xy = self.lens.undistort(xy)
        depth = np.asarray(z, dtype=np.float64)[..., None]
        return np.concatenate(
            [xy * depth, np.broadcast_to(depth, (*np.broadcast_shapes(xy.shape[:-1], depth.shape[:-1]), 1))], -1
        )

    def rays(self) -> Array:
        """Return (height, width, 3) float64 directions with z = 1 through the pixel centres, optical frame."""
        return self.unproject(self._pixel_centres(), 1.0)

    def scaled(self, width: int, height: int) -> PinholeCamera:
        """Return the camera for the image resized to another size; the two axes may scale differently."""
        new_width, new_height = _require_size(width, height)
        scale = np.array([new_width / self.width, new_height / self.height, 1.0])
        return replace(self, width=new_width, height=new_height, K=self.K * scale[:, None])

    def cropped(self, left: int, top: int, width: int, height: int) -> PinholeCamera:
        """Return the camera for a cropped image; the rectangle may extend beyond the original image."""
        K = self.K.copy()
        K[:2, 2] -= (left, top)
        return replace(self, width=width, height=height, K=K)

    def posed(self, base_T_camera: ArrayLike) -> PinholeCamera:
        """Return the same camera at another pose."""
        return replace(self, base_T_camera=np.asarray(base_T_camera, dtype=np.float64))

    def rectified(self) -> PinholeCamera:
        """Return the distortion-free camera of the images from `rectify`: same size, same K, same pose.

        K is kept, so the image centre keeps its scale and position; a barrel lens loses a little at the edges,
        a pincushion lens gets black borders.
        """
        return replace(self, distortion=(), distortion_model="plumb_bob") if self.has_distortion else self

    def rectify(self, image: NDArray[Any], interpolation: Interpolation = "linear") -> NDArray[Any]:
        """Rectify an image (height, width[, channels]) for the camera `rectified()`; 0 outside the source image."""
        if image.shape[:2] != (self.height, self.width):
            raise CameraError(
                f"the image is {' x '.join(map(str, image.shape[1::-1]))} (width x height)",
                expected=f"{self.width} x {self.height}, the size the camera was calibrated for",
                hint="calibrate at this size, or use camera.scaled(width, height) if the driver resized the image",
                code=ErrorCode.CAMERA_BAD_SIZE,
            )
        if not self.has_distortion:
            return np.array(image)
        map_x, map_y = self._rectification_maps
        return np.asarray(
            cv2.remap(image, map_x, map_y, _INTERPOLATION[interpolation], borderMode=cv2.BORDER_CONSTANT, borderValue=0)
        )

    @cached_property
    def _rectification_maps(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        uv = self.lens.distort(self._normalise(self._pixel_centres())) * self._focal + self._center - 0.5
        # Beyond the model's range there is no source pixel; OpenCV fills coordinates far outside with the border.
        uv = np.nan_to_num(uv, nan=-1e6).astype(np.float32)
        return np.ascontiguousarray(uv[..., 0]), np.ascontiguousarray(uv[..., 1])

    @property
    def _focal(self) -> Array:
        return np.array([self.K[0, 0], self.K[1, 1]])

    @property
    def _center(self) -> Array:
        return np.asarray(self.K[:2, 2])

    def _normalise(self, uv: Array) -> Array:
        return (uv - self._center) / self._focal

    def _pixel_centres(self) -> Array:
        u, v = np.meshgrid(np.arange(self.width) + 0.5, np.arange(self.height) + 0.5)
        return np.stack([u, v], axis=-1)

    def _border(self) -> Array:
        t = np.linspace(0.0, 1.0, 33)
        zero, one = np.zeros_like(t), np.ones_like(t)
        sides = [(t, zero), (t, one), (zero, t), (one, t)]
        return np.concatenate([np.stack(side, axis=-1) for side in sides]) * (self.width, self.height)


def _require_size(width: Any, height: Any) -> tuple[int, int]:
    sides = []
    for name, side in (("width", width), ("height", height)):
        if isinstance(side, bool) or not isinstance(side, (int, np.integer)) or not 1 <= side <= _MAX_SIDE:
            raise CameraError(
                f"image {name} is {side!r}",
                expected=f"a whole number of pixels from 1 to {_MAX_SIDE}",
                code=ErrorCode.CAMERA_BAD_SIZE,
            )
        sides.append(int(side))
    return sides[0], sides[1]


def _require_intrinsics(K: ArrayLike) -> Array:
    """Return a writable (3, 3) float64 copy, or raise a CameraError that says what is wrong."""

    def refuse(why: str) -> CameraError:
        return CameraError(
            f"the camera matrix {why}",
            expected="[[fx, 0, cx], [0, fy, cy], [0, 0, 1]] in pixels with fx > 0 and fy > 0",
            hint="use the camera_matrix of a calibration, row by row",
        )

    try:
        matrix = np.array(K, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise refuse(f"is not a matrix of numbers: {error}") from None
    if matrix.shape != (3, 3):
        raise refuse(f"has shape {matrix.shape}")
    if not np.all(np.isfinite(matrix)):
        raise refuse(f"{matrix.tolist()} holds NaN or infinity")
    if not np.array_equal(matrix[2], [0, 0, 1]):
        raise refuse(f"has last row {matrix[2].tolist()}")
    if matrix[0, 1] or matrix[1, 0]:
        raise refuse(f"has skew: {matrix[:2].tolist()}")
    if not (matrix[0, 0] > 1e-3 and matrix[1, 1] > 1e-3):
        raise refuse(f"is singular or mirrored: fx = {matrix[0, 0]:g}, fy = {matrix[1, 1]:g}")
    return matrix
