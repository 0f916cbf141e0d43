"""Image output for users: robot overlays, coloured depth, frame strips, backgrounds; reading and writing images.

All images are (H, W, 3) uint8 RGB.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.Image
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, FileFormatError, RenderError
from kinema4d_ros.io.files import read_bytes, replacing_file

__all__ = [
    "colour_depth",
    "decode_image",
    "overlay",
    "read_depth",
    "read_image",
    "require_image",
    "strip",
    "studio",
    "write_image",
]

Image = NDArray[np.uint8]

_GAP_PX = 2
_MAX_FILE_BYTES = 200_000_000
_MAX_PIXELS = 100_000_000


def require_image(image: NDArray[np.generic], name: str, size: tuple[int, int] | None = None) -> Image:
    """Return the image, or raise an error unless it is (H, W, 3) uint8 and of `size` (width, height)."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise RenderError(f"{name} is {image.dtype} of shape {image.shape}", expected="uint8 RGB of shape (H, W, 3)")
    if size is not None and image.shape[1::-1] != size:
        raise RenderError(
            f"{name} is {image.shape[1]} x {image.shape[0]} (width x height)",
            expected=f"{size[0]} x {size[1]}",
            code=ErrorCode.CAMERA_BAD_SIZE,
        )
    return np.asarray(image, dtype=np.uint8)


def overlay(image: Image, rgb: Image, mask: NDArray[np.bool_], alpha: float = 0.7) -> Image:
    """Blend `rgb` over `image` where `mask` (H, W) is True; alpha 1 hides the image, 0 hides the robot."""
    background = require_image(image, "image")
    robot = require_image(rgb, "rgb", (background.shape[1], background.shape[0]))
    if mask.dtype != np.bool_ or mask.shape != background.shape[:2]:
        raise RenderError(f"mask is {mask.dtype} of shape {mask.shape}", expected=f"bool of {background.shape[:2]}")
    if not 0.0 <= alpha <= 1.0:
        raise RenderError(f"alpha is {alpha}", expected="a number from 0 to 1")
    out: Image = background.copy()
    mixed = alpha * robot[mask].astype(np.float32) + (1.0 - alpha) * background[mask]
    out[mask] = np.rint(mixed).astype(np.uint8)
    return out


def colour_depth(depth_m: NDArray[np.floating], near_m: float | None = None, far_m: float | None = None) -> Image:
    """Colour depth (H, W) in metres from red (near) to blue (far); NaN, no depth, is black.

    The limits default to those of the image; set them to keep the colours constant over a video.
    """
    valid = np.isfinite(depth_m)
    near = (float(depth_m[valid].min()) if valid.any() else 0.0) if near_m is None else near_m
    far = (float(depth_m[valid].max()) if valid.any() else 1.0) if far_m is None else far_m
    share = (np.where(valid, depth_m, far) - near) / (far - near) if far > near else np.zeros(depth_m.shape)
    level = np.rint(255 * (1.0 - np.clip(share, 0.0, 1.0))).astype(np.uint8)
    # Both ends of the colour table are nearly black, which stands for no depth.
    level = (16 + level.astype(np.uint16) * 223 // 255).astype(np.uint8)
    out: Image = cv2.applyColorMap(level, cv2.COLORMAP_TURBO)[..., ::-1].copy()
    out[~valid] = 0
    return out


def strip(frames: Sequence[Image], columns: int, labels: Sequence[str] | None = None) -> Image:
    """Arrange frames in rows of `columns` with white gaps; labels are drawn into the corners."""
    if not frames or columns < 1:
        raise RenderError(f"{len(frames)} frames in {columns} columns", expected="at least one of each")
    if labels is not None and len(labels) != len(frames):
        raise RenderError(f"{len(labels)} labels for {len(frames)} frames", expected="one for each")
    first = require_image(frames[0], "frame 0")
    height, width = first.shape[:2]
    columns = min(columns, len(frames))
    rows = -(-len(frames) // columns)
    out = np.full((rows * (height + _GAP_PX) - _GAP_PX, columns * (width + _GAP_PX) - _GAP_PX, 3), 255, np.uint8)
    for i, frame in enumerate(frames):
        tile = require_image(frame, f"frame {i}", (width, height))
        if labels is not None:
            tile = _labelled(tile, labels[i])
        top, left = (i // columns) * (height + _GAP_PX), (i % columns) * (width + _GAP_PX)
        out[top : top + height, left : left + width] = tile
    return out


def _labelled(image: Image, text: str) -> Image:
    out: Image = image.copy()
    scale = max(0.4, image.shape[0] / 600)
    x, y = round(10 * scale), round(28 * scale)
    # Draw a black outline by shifting: the thickness argument differs between OpenCV releases.
    for dx, dy in ((-1, -1), (-1, 1), (1, -1), (1, 1), (0, 0)):
        colour = (255, 255, 255) if dx == 0 else (0, 0, 0)
        cv2.putText(out, text, (x + dx, y + dy), cv2.FONT_HERSHEY_SIMPLEX, scale, colour, 1, cv2.LINE_AA)
    return out


def write_image(path: str | Path, image: Image) -> None:
    """Write a PNG or JPEG, by the suffix of the path, completely or not at all."""
    target = Path(path)
    if target.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise FileFormatError(
            f"'{target.suffix}' of {target} is not a supported image format",
            expected=".png, .jpg or .jpeg",
            code=ErrorCode.FILE_UNSUPPORTED,
        )
    bgr = np.ascontiguousarray(require_image(image, "image")[..., ::-1])
    _, data = cv2.imencode(target.suffix, bgr)
    with replacing_file(target) as temporary:
        temporary.write_bytes(data.tobytes())


def read_image(path: str | Path) -> Image:
    """Read an image file as RGB; grey and 16-bit images are converted."""
    bgr = decode_image(read_bytes(path, _MAX_FILE_BYTES), path, cv2.IMREAD_COLOR)
    return np.ascontiguousarray(bgr[..., ::-1])


def read_depth(path: str | Path, size: tuple[int, int]) -> NDArray[np.float32]:
    """Read the depth image (H, W) float32 of a camera of `size` (width, height): z in metres, NaN = unknown.

    A 16-bit grey PNG holds millimetres, 0 = unknown; a .npy file holds metres, NaN, infinity or 0 = unknown.
    """
    expected = f"a 16-bit grey PNG in millimetres or a .npy file in metres, {size[0]} x {size[1]}"
    data = read_bytes(path, _MAX_FILE_BYTES)
    if Path(path).suffix.lower() == ".npy":
        try:
            metres = np.load(io.BytesIO(data), allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise FileFormatError(f"{path} is not an array, or is damaged", expected=expected) from error
        good = metres.dtype.kind == "f"
    else:
        metres = decode_image(data, path, cv2.IMREAD_UNCHANGED)
        good = metres.dtype == np.uint16
        metres = metres / 1000.0
    if not good or metres.shape != size[::-1]:
        raise FileFormatError(f"{path} holds {metres.dtype} of shape {metres.shape}", expected=expected)
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(metres) & (metres > 0), metres, np.nan).astype(np.float32)


def decode_image(data: bytes, name: object, flags: int) -> NDArray[Any]:
    """Decode the bytes of an image file with OpenCV; `name` is used in errors.

    The size is read first: a small file can claim, or unpack to, more pixels than fit into memory.
    """
    expected = f"a PNG, JPEG or similar of at most {_MAX_PIXELS:,} pixels"
    try:
        with warnings.catch_warnings(), PIL.Image.open(io.BytesIO(data)) as header:
            warnings.simplefilter("ignore")
            width, height = header.size
    except Exception as error:  # a damaged header can raise any exception in its parser
        raise FileFormatError(f"{name} is not an image, or is damaged", expected=expected) from error
    if not 0 < width * height <= _MAX_PIXELS:
        raise FileFormatError(f"{name} claims {width} x {height} pixels", expected=expected)
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        image = None
    if image is None:
        raise FileFormatError(f"{name} is not an image, or is damaged", expected=expected)
    return np.asarray(image)


# Neutral background for images of a robot alone: a plain wall and a floor with a 10 cm grid.

GRID_M = 0.1
LINE_M = 0.0015
FADE_M = 1.6
"""Distance from the base at which the floor has faded into the wall."""

WALL_TOP = np.array([206.0, 212.0, 222.0])
WALL_FOOT = np.array([236.0, 238.0, 242.0])
FLOOR = np.array([224.0, 226.0, 230.0])
LINE = np.array([186.0, 191.0, 200.0])


def studio(camera: PinholeCamera) -> NDArray[np.uint8]:
    """Render the plane z = 0 of the base frame as seen by the camera: (H, W, 3) uint8 RGB."""
    height, width = camera.height, camera.width
    rays = camera.rays() @ camera.base_T_camera[:3, :3].T
    eye = camera.base_T_camera[:3, 3]
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = -eye[2] / rays[..., 2]
    on_floor = np.isfinite(distance) & (distance > 0)
    xy = eye[:2] + np.where(on_floor, distance, 0.0)[..., None] * rays[..., :2]

    shade = np.linspace(0.0, 1.0, height)[:, None, None]
    image = np.broadcast_to(WALL_TOP + shade * (WALL_FOOT - WALL_TOP), (height, width, 3)).copy()

    # A line narrower than a pixel would flicker: blend it over the width of one pixel.
    step = np.where(on_floor, distance, 1.0) / camera.K[0, 0]
    offset = np.abs((xy + GRID_M / 2) % GRID_M - GRID_M / 2).min(axis=-1)
    line = np.clip((LINE_M / 2 + step - offset) / step, 0.0, 1.0) * np.clip(LINE_M / step, 0.25, 1.0)
    floor = FLOOR + line[..., None] * (LINE - FLOOR)
    fade = np.clip(1.0 - np.linalg.norm(xy, axis=-1) / FADE_M, 0.0, 1.0) ** 0.5
    weight = np.where(on_floor, fade, 0.0)[..., None]
    mixed: NDArray[np.uint8] = np.rint(image + weight * (floor - image)).astype(np.uint8)
    return mixed
