"""Wire formats of pointmaps: 16-bit depth PNGs at 0.1 mm for the robot, 16-bit XYZ PNGs for predictions.

For a pinhole camera z and K give XYZ, so a robot frame needs one number per pixel: 0 = no robot,
n = a depth of n * 0.1 mm, up to 6.5535 m. Rounding moves z by at most 0.05 mm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core._kernels import quantise_frame, unproject_frame
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, PointmapError
from kinema4d_ros.core.pointmap import PointmapSequence, map_frames
from kinema4d_ros.io.png import decode_png, encode_png

__all__ = [
    "DEPTH_UNIT_M",
    "MAX_DEPTH_M",
    "SOME_LINK",
    "WireFrames",
    "XyzImage",
    "decode_frames",
    "decode_xyz",
    "encode_frames",
    "encode_xyz",
]

DEPTH_UNIT_M = 1e-4
MAX_DEPTH_M = 65535 * DEPTH_UNIT_M
SOME_LINK = 255
"""Link id of robot pixels if the sender omitted the ids."""


@dataclass(frozen=True, eq=False)
class WireFrames:
    """Encoded pointmap sequence.

    Attributes:
        depth: T PNGs, 16-bit grey, z in `depth_unit_m`, 0 = no robot.
        link_ids: T PNGs, 8-bit grey as in `PointmapSequence.link_ids`, or None.
        camera: the distortion-free camera.
        times: (T,) float64 seconds, or None.
        depth_unit_m: metres per depth step.
    """

    depth: tuple[bytes, ...]
    link_ids: tuple[bytes, ...] | None
    camera: PinholeCamera
    times: NDArray[np.float64] | None = None
    depth_unit_m: float = DEPTH_UNIT_M


@dataclass(frozen=True, eq=False)
class XyzImage:
    """Encoded predicted frame: xyz = offset + scale * value per axis, all three values 0 = no point.

    Attributes:
        png: 16-bit RGB PNG, red = x, green = y, blue = z.
        offset, scale: (3,) float64, metres.
    """

    png: bytes
    offset: NDArray[np.float64]
    scale: NDArray[np.float64]


def encode_frames(sequence: PointmapSequence, *, link_ids: bool = True) -> WireFrames:
    """Encode a sequence as depth PNGs, and link-id PNGs unless disabled."""
    depth = np.empty(sequence.link_ids.shape, np.uint16)
    found = map_frames(
        lambda t: quantise_frame(sequence.xyz[t], sequence.link_ids[t], DEPTH_UNIT_M, depth[t]), range(len(sequence))
    )
    for t, (bad, example) in enumerate(found):
        if bad:
            raise PointmapError(
                f"frame {t} has {bad} robot pixels that do not fit, one at z = {example:g} m",
                expected=f"depths from {DEPTH_UNIT_M:g} to {MAX_DEPTH_M:g} m",
                hint="the camera must be within 6.5 m of the robot; check base_T_camera and its units",
            )
    return WireFrames(
        depth=tuple(map_frames(encode_png, depth)),
        link_ids=tuple(map_frames(encode_png, sequence.link_ids)) if link_ids else None,
        camera=sequence.camera,
        times=sequence.times,
    )


def decode_frames(frames: WireFrames) -> PointmapSequence:
    """Decode wire frames; without ids every robot pixel belongs to `SOME_LINK`."""
    camera, unit = frames.camera, frames.depth_unit_m
    if not frames.depth or not (np.isfinite(unit) and unit > 0):
        raise PointmapError(
            f"{len(frames.depth)} depth images in units of {unit} m",
            expected="at least one, in a positive unit",
            code=ErrorCode.WIRE_CORRUPT,
        )

    depth = _decode_all(frames.depth, "depth image", camera, np.uint16)
    if frames.link_ids is None:
        ids = np.where(depth > 0, np.uint8(SOME_LINK), np.uint8(0))
    else:
        ids = _decode_all(frames.link_ids, "link-id image", camera, np.uint8)
        if ids.shape != depth.shape or not np.array_equal(ids != 0, depth != 0):
            raise PointmapError(
                f"{len(frames.link_ids)} link-id images do not match {len(frames.depth)} depth images",
                expected="one for each, 0 in the same pixels",
                code=ErrorCode.WIRE_CORRUPT,
            )
    xyz = np.empty((*depth.shape, 3), np.float32)
    map_frames(lambda t: unproject_frame(depth[t], float(unit), camera.K, xyz[t]), range(len(depth)))
    return PointmapSequence(xyz, ids, camera, frames.times)


def encode_xyz(xyz: NDArray[np.float32]) -> XyzImage:
    """Encode points (H, W, 3) float32, metres, NaN = no point, as a PNG; error per axis at most half of `scale`."""
    if xyz.ndim != 3 or xyz.shape[2] != 3:
        raise PointmapError(f"xyz has shape {xyz.shape}", expected="(H, W, 3)")
    if np.isinf(xyz).any():
        raise PointmapError("xyz holds infinity", expected="finite metres, NaN where there is no point")
    valid = ~np.isnan(xyz).any(-1)
    points = xyz[valid].astype(np.float64)
    low, high = (points.min(0), points.max(0)) if len(points) else (np.zeros(3), np.zeros(3))
    scale = (high - low) / 65534
    # 0 means no point, so the smallest value is 1 and the offset is one step below it.
    steps = np.divide(points - low, scale, out=np.zeros_like(points), where=scale > 0)
    image = np.zeros(xyz.shape, np.uint16)
    image[valid] = np.rint(steps).astype(np.uint16) + 1
    return XyzImage(encode_png(image), low - scale, scale)


def decode_xyz(frame: XyzImage, *, width: int, height: int) -> NDArray[np.float32]:
    """Decode points (H, W, 3) float32, metres, NaN = no point."""
    offset, scale = _axis_values(frame.offset, "offset"), _axis_values(frame.scale, "scale")
    image = decode_png(frame.png, width=width, height=height, dtype=np.uint16, channels=3)
    out: NDArray[np.float32] = (offset + scale * image).astype(np.float32)
    out[~image.any(-1)] = np.nan
    return out


def _axis_values(values: ArrayLike, name: str) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (3,) or not np.all(np.isfinite(array)):
        raise PointmapError(
            f"{name} of an XYZ image is {array.tolist()}",
            expected="three finite numbers",
            code=ErrorCode.WIRE_CORRUPT,
        )
    return array


def _decode_all(
    images: Sequence[bytes], name: str, camera: PinholeCamera, dtype: type[np.uint8] | type[np.uint16]
) -> NDArray[Any]:
    """Decode T grey PNGs of the camera's size to (T, H, W)."""

    def read(item: tuple[int, bytes]) -> NDArray[Any]:
        index, data = item
        return decode_png(data, width=camera.width, height=camera.height, dtype=dtype, name=f"{name} {index}")

    return np.stack(map_frames(read, list(enumerate(images)))) if images else np.empty((0, 0, 0), dtype)
