"""Table plane seen by a camera: where each pixel's ray meets it, as network channels; the `Lifter` protocol.

The channels use an upright frame below the camera that faces where the camera looks: the same scene gives the same
numbers for any position and rotation of the robot's base.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CameraError

__all__ = ["GEOMETRY_CHANNELS", "MAX_RANGE_M", "LiftedDepth", "Lifter", "PlaneView", "level_frame", "view_plane"]

GEOMETRY_CHANNELS = 8
MAX_RANGE_M = 3.0
_TYPICAL_FOOTPRINT_M = 0.003


@dataclass(frozen=True, eq=False)
class PlaneView:
    """The plane from one camera.

    Attributes:
        depth_m: (H, W) float64, metres along the optical axis, NaN = the ray does not meet the plane within range.
        camera_height_m: height of the camera above the plane.
        footprint_m: (H, W) float64, metres of a fronto-parallel surface at `depth_m` that a pixel is wide.
        channels: (8, H, W) float32: direction of the ray (right, forward, up); point of the plane (right, forward) from
            below the camera, camera height, all in metres; log of the footprint; 1 if the plane is met. 0 = not met.
    """

    depth_m: NDArray[np.float64]
    camera_height_m: float
    footprint_m: NDArray[np.float64]
    channels: NDArray[np.float32]

    def depth_of(self, height_m: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the (H, W) depth of points at that height above the plane, metres; exact for any camera."""
        return np.asarray(self.depth_m * (1.0 - np.asarray(height_m, np.float64) / self.camera_height_m))

    def height_of(self, depth_m: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the (H, W) height above the plane of points at that depth, metres."""
        return np.asarray(self.camera_height_m * (1.0 - np.asarray(depth_m, np.float64) / self.depth_m))


def level_frame(camera: PinholeCamera, table_height_m: float = 0.0) -> NDArray[np.float64]:
    """Return level_T_base (4, 4): the frame on the table below the camera; x to its right, y where it looks, z up."""
    R, eye = camera.base_T_camera[:3, :3], camera.base_T_camera[:3, 3]
    # Sum of the image's forward and up directions: they are never both vertical.
    forward = (R[:, 2] - R[:, 1])[:2]
    length = float(np.hypot(*forward))
    forward = forward / length if length > 1e-6 else np.array([1.0, 0.0])
    level_T_base = np.eye(4)
    level_T_base[:3, :3] = [[forward[1], -forward[0], 0.0], [forward[0], forward[1], 0.0], [0.0, 0.0, 1.0]]
    level_T_base[:3, 3] = -level_T_base[:3, :3] @ [eye[0], eye[1], table_height_m]
    return level_T_base


def view_plane(
    camera: PinholeCamera, table_height_m: float = 0.0, *, max_range_m: float = MAX_RANGE_M, scale: float = 1.0
) -> PlaneView:
    """Compute the view of the plane `table_height_m` above the base from a camera above it.

    `scale` enlarges the whole world by that factor, which leaves the image unchanged.
    """
    above = float(camera.base_T_camera[2, 3]) - float(table_height_m)
    if not above > 0.0:
        raise CameraError(
            f"the camera is {-above:g} m below the table (table_height_m {table_height_m:g})",
            expected="a camera above the plane that objects stand on",
            hint="check the sign of table_height_m and base_T_camera",
        )
    rays = camera.rays()
    level = level_frame(camera, table_height_m)[:3, :3] @ camera.base_T_camera[:3, :3]
    d = rays @ level.T
    norm = np.linalg.norm(d, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(d[..., 2] < 0, -above / d[..., 2], np.nan)
        z[~(z * norm <= max_range_m)] = np.nan
    met = np.isfinite(z)
    z = z * scale
    focal = float(np.sqrt(camera.K[0, 0] * camera.K[1, 1]))
    footprint = z / focal
    seen = np.where(met, z, 0.0)
    channels = np.empty((GEOMETRY_CHANNELS, *z.shape), np.float32)
    channels[:3] = np.moveaxis(d / norm[..., None], -1, 0)
    channels[3], channels[4] = d[..., 0] * seen, d[..., 1] * seen
    channels[5] = above * scale
    channels[6] = np.log(np.where(met, footprint, _TYPICAL_FOOTPRINT_M) / _TYPICAL_FOOTPRINT_M)
    channels[7] = met
    np.clip(channels, -MAX_RANGE_M, MAX_RANGE_M, out=channels)
    return PlaneView(z, above * scale, footprint, channels)


# Interface of a lifter: one image of a table in, the depth of every pixel out.


@dataclass(frozen=True, eq=False)
class LiftedDepth:
    """Depth estimated from one image.

    Attributes:
        depth_m: (H, W) float32, metres along the optical axis: of the object where `thing` is above 0.5, of the
            table's plane elsewhere, robot included. NaN = the ray does not meet the plane within range.
        thing: (H, W) float32 in [0, 1]: probability that the pixel shows an object standing on the table. 0 on the
            robot and where `depth_m` is NaN.
    """

    depth_m: NDArray[np.float32]
    thing: NDArray[np.float32]


class Lifter(Protocol):
    """Interface of a depth estimator for one image."""

    def lift(
        self,
        image: NDArray[np.uint8],
        camera: PinholeCamera,
        robot_mask: NDArray[np.bool_] | None = None,
        table_height_m: float = 0.0,
    ) -> LiftedDepth:
        """Estimate the depth of an image (H, W, 3), rectified, sRGB.

        Args:
            image: from the camera.
            camera: without distortion, with its pose in the robot's base.
            robot_mask: (H, W) True where the robot is; None = the robot is not in the image.
            table_height_m: height of the plane that objects stand on, above the robot's base.
        """
        ...
