"""Frame selection: blur measurement, and a choice of sharp frames from all around the robot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration.inputs import image_files
from kinema4d_ros.core.errors import AssetError, ErrorCode, FileFormatError
from kinema4d_ros.io.images import read_image

__all__ = ["MAX_BLUR_PX", "FrameSource", "Measured", "blur_px", "choose_frames", "measure_frames"]

# Blur in pixels, from how much the strongest edges fade when the image is blurred further.
#
# An edge blurred with standard deviation s has a gradient proportional to 1 / sqrt(s^2 + t^2) after a further blur t.
# Two such gradients, t = 1 and t = 2, give s; the contrast of the edge cancels, and sensor noise has little effect
# because only the strongest edges are used. Motion blur spares the edges parallel to it, so edges are grouped by
# direction, and the most blurred direction with strong edges is the result. Above 4 pixels it is underestimated because
# of noise.

MAX_BLUR_PX = 2.5
"""More blur than this shifts outlines and board corners."""

_DIRECTIONS = 4
_STRONGEST = 300
"""Edges used in each direction."""

_WEAK = 0.15
"""Directions whose edges are weaker than this fraction of the strongest direction's are ignored."""

_FLAT = 3.0
"""Grey levels per pixel; an image without any stronger edge is empty or completely blurred."""


def blur_px(image: NDArray[np.uint8]) -> float:
    """Measure the blur of an image (H, W[, 3]) uint8: standard deviation, pixels; infinite without any edges."""
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or min(image.shape[:2]) < 16:
        raise AssetError(
            f"the image is {image.dtype} of shape {image.shape}", expected="uint8, (H, W) or (H, W, 3), 16 px or more"
        )
    gray = image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    (size1, angle), (size2, _) = (_gradient(np.asarray(gray, np.float32), t) for t in (1.0, 2.0))
    # Use the centre of each edge, where the gradient is largest.
    peak = size1 >= cv2.dilate(size1, np.ones((3, 3), np.uint8))
    bin_ = np.floor((angle + np.pi / (2 * _DIRECTIONS)) / (np.pi / _DIRECTIONS)).astype(int) % _DIRECTIONS
    found: list[tuple[float, float]] = []
    for direction in range(_DIRECTIONS):
        here = peak & (bin_ == direction)
        strong = size1[here]
        if len(strong) < 20:
            continue
        count = min(_STRONGEST, max(20, len(strong) // 20))
        pick = np.argpartition(strong, -count)[-count:]
        ratio = np.clip(strong[pick] / np.maximum(size2[here][pick], 1e-6), 1.0 + 1e-6, 2.0)
        found.append((float(np.median(strong[pick])), float(np.median((4 - ratio**2) / (ratio**2 - 1)))))
    if not found or max(strength for strength, _ in found) < _FLAT:
        return float("inf")
    limit = _WEAK * max(strength for strength, _ in found)
    return float(np.sqrt(max(square for strength, square in found if strength >= limit)))


def _gradient(gray: NDArray[np.float32], t: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Compute magnitude and direction (0 to pi) of the gradient after a blur of t pixels."""
    soft = cv2.GaussianBlur(gray, (0, 0), t, borderType=cv2.BORDER_REPLICATE)
    # Central differences, since Sobel would add blur.
    x = np.zeros_like(soft)
    y = np.zeros_like(soft)
    x[:, 1:-1], y[1:-1] = (soft[:, 2:] - soft[:, :-2]) / 2, (soft[2:] - soft[:-2]) / 2
    return np.hypot(x, y), np.mod(np.arctan2(y, x), np.pi)


Image = NDArray[np.uint8]
Array = NDArray[np.float64]

MIN_SHARP = 0.25
"""A video with a smaller fraction of sharp frames is rejected, because the rest is barely sharp either."""

MIN_VIEWS = 6
"""Fewer views do not give a usable shape."""

_CANDIDATES = 160
_THUMB_PX = 320


class FrameSource:
    """Video or folder of images, read by frame index.

    Attributes:
        names: frame names without suffix: file names, or for a video six digits from 000000.
    """

    def __init__(self, path: str | Path) -> None:
        """Count the frames without keeping them."""
        self.path = Path(path)
        self._files: list[Path] | None = image_files([self.path]) if self.path.is_dir() else None
        if self._files is None:
            count = sum(1 for _ in self._decode())
            if count == 0:
                raise FileFormatError(f"{self.path} has no frames", expected="a video")
            self.names = [f"{i:06d}" for i in range(count)]
        else:
            self.names = [file.stem for file in self._files]

    def __len__(self) -> int:
        return len(self.names)

    def read(self, wanted: Collection[int]) -> Iterator[tuple[int, Image]]:
        """Yield (index, image (H, W, 3) uint8 RGB) of the given frames, in order."""
        if self._files is not None:
            for i in sorted(wanted):
                yield i, read_image(self._files[i])
            return
        left = set(wanted)
        for i, frame in enumerate(self._decode()):
            if i in left:
                left.discard(i)
                yield i, np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
            if not left:
                return

    def _decode(self) -> Iterator[av.VideoFrame]:
        if not self.path.is_file():
            raise FileFormatError(
                f"{self.path} does not exist", expected="a video or a folder of images", code=ErrorCode.FILE_MISSING
            )
        try:
            with av.open(str(self.path)) as container:
                if not container.streams.video:
                    raise FileFormatError(f"{self.path} has no video stream", expected="a video")
                yield from container.decode(video=0)
        except (av.FFmpegError, ValueError, MemoryError, LookupError) as error:
            # ValueError: text in the file header that is not UTF-8.
            raise FileFormatError(
                f"{self.path} cannot be decoded: {error}", expected="a video that FFmpeg reads"
            ) from None


@dataclass(frozen=True, eq=False)
class Measured:
    """Measured candidate frames of one source.

    Attributes:
        position: (N,) int64, frame index in the source.
        blur_px: (N,) float64, blur, pixels.
        path: (N,) float64, accumulated image motion since the first frame, in image widths.
        world_T_camera: (N, 4, 4) float64, metres; NaN = unknown.
    """

    position: NDArray[np.int64]
    blur_px: Array
    path: Array
    world_T_camera: Array


def measure_frames(
    source: FrameSource,
    locate: Callable[[str, Image], Array | None] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """Measure blur and viewpoint of up to 160 evenly spaced frames.

    Args:
        source: of the frames.
        locate: maps a frame's name and image to `world_T_camera` (4, 4), or None if unknown.
        progress: called with (frames done, total frames).
    """
    wanted = np.unique(np.linspace(0, len(source) - 1, min(len(source), _CANDIDATES)).round().astype(int))
    blur, path, poses = [], [0.0], []
    before: Image | None = None
    for done, (i, image) in enumerate(source.read(wanted.tolist())):
        blur.append(blur_px(image))
        thumb = _thumbnail(image)
        if before is not None:
            path.append(path[-1] + _moved(before, thumb))
        before = thumb
        pose = None if locate is None else locate(source.names[i], image)
        poses.append(np.full((4, 4), np.nan) if pose is None else pose)
        progress(done + 1, len(wanted))
    return Measured(wanted[: len(blur)], np.array(blur), np.array(path[: len(blur)]), np.stack(poses))


def choose_frames(measured: Measured, count: int = 20, max_blur_px: float = MAX_BLUR_PX) -> NDArray[np.int64]:
    """Choose `count` sharp candidates that are as far apart as possible, or fewer; return their indices.

    With known camera poses they are spread over the viewing directions, otherwise over the image motion.
    """
    if count < MIN_VIEWS:
        raise AssetError(f"views is {count}", expected=f"at least {MIN_VIEWS}, better 20")
    sharp = measured.blur_px <= max_blur_px
    share = float(sharp.mean())
    if share < MIN_SHARP or sharp.sum() < MIN_VIEWS:
        raise AssetError(
            f"{share:.0%} of the frames are sharp ({sharp.sum()} of {len(sharp)}), "
            f"the median blur is {np.median(measured.blur_px):.1f} px",
            expected=f"at least {MIN_SHARP:.0%} and {MIN_VIEWS} frames with a blur below {max_blur_px:g} px",
            hint="use more light, a shorter exposure or a slower motion; or raise --max-blur",
        )
    known = np.isfinite(measured.world_T_camera).all(axis=(1, 2))
    if (sharp & known).sum() >= MIN_VIEWS:
        return _spread_views(measured, np.flatnonzero(sharp & known), count)
    return _spread_path(measured, np.flatnonzero(sharp), count)


def _spread_views(measured: Measured, among: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    ways = view_directions(measured.world_T_camera[among])
    blur = measured.blur_px[among]
    chosen = [int(np.argmin(blur))]
    distance = np.arccos(np.clip(ways @ ways[chosen[0]], -1, 1))
    while len(chosen) < min(count, len(among)):
        # Take the sharpest of the frames that are nearly as far away as the farthest.
        far = np.flatnonzero(distance >= 0.85 * distance.max())
        pick = int(far[np.argmin(blur[far])])
        if distance[pick] <= 0:
            break
        chosen.append(pick)
        distance = np.minimum(distance, np.arccos(np.clip(ways @ ways[pick], -1, 1)))
        distance[chosen] = 0.0
    return np.sort(among[chosen])


def _spread_path(measured: Measured, among: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    if len(among) <= count:
        return among
    path = measured.path[among] + 1e-9 * np.arange(len(among))
    bins = np.minimum((count * (path - path[0]) / (path[-1] - path[0])).astype(int), count - 1)
    chosen = [int(inside[np.argmin(measured.blur_px[inside])]) for b in range(count) if len(inside := among[bins == b])]
    return np.array(chosen, dtype=np.int64)


def view_directions(world_T_camera: Array) -> Array:
    """Compute unit vectors (N, 3) from the point that the cameras (N, 4, 4) look at to each camera."""
    centre = looked_at(world_T_camera)
    ways = world_T_camera[:, :3, 3] - centre
    return np.asarray(ways / np.maximum(np.linalg.norm(ways, axis=1, keepdims=True), 1e-12))


def looked_at(world_T_camera: Array, rays: Array | None = None) -> Array:
    """Compute the point (3,) nearest to the optical axes, or to the given rays (N, 3) in the world frame."""
    d = world_T_camera[:, :3, 2] if rays is None else rays / np.linalg.norm(rays, axis=1, keepdims=True)
    across = np.eye(3) - d[:, :, None] * d[:, None, :]
    # Nearly parallel axes have no well-defined intersection; damping keeps the point near the cameras.
    A = across.sum(axis=0) + 1e-6 * len(d) * np.eye(3)
    b = (across @ world_T_camera[:, :3, 3, None])[..., 0].sum(axis=0) + 1e-6 * world_T_camera[:, :3, 3].sum(axis=0)
    return np.asarray(np.linalg.solve(A, b))


def require_around(world_T_camera: Array, names: Sequence[str]) -> float:
    """Compute the largest angle between two views, degrees; reject too few views, or views from one side only."""
    if len(world_T_camera) < MIN_VIEWS:
        raise AssetError(
            f"{len(world_T_camera)} views have a pose: {', '.join(names) or 'none'}",
            expected=f"at least {MIN_VIEWS}, better 20",
            hint="keep the board in view during the whole orbit",
        )
    ways = view_directions(world_T_camera)
    angle = float(np.degrees(np.arccos(np.clip(ways @ ways.T, -1, 1)).max()))
    if angle < 70.0:
        raise AssetError(
            f"all {len(names)} views are from one side, at most {angle:.0f} degrees apart",
            expected="views from all around, at least 70 degrees apart",
            hint="walk around the robot",
        )
    return angle


def _thumbnail(image: Image) -> Image:
    gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    return np.asarray(
        cv2.resize(gray, (_THUMB_PX, max(16, round(_THUMB_PX * gray.shape[0] / gray.shape[1])))), np.uint8
    )


def _moved(before: Image, after: Image) -> float:
    """Measure the median shift of corners between two thumbnails, in image widths; 0.1 if none can be tracked."""
    corners = cv2.goodFeaturesToTrack(before, 200, 0.01, 6)
    if before.shape != after.shape or corners is None or len(corners) < 8:
        return 0.1
    found, status, _ = cv2.calcOpticalFlowPyrLK(before, after, corners, None, winSize=(15, 15))
    good = status.ravel() == 1
    if good.sum() < 8:
        return 0.1
    return float(np.median(np.linalg.norm((found - corners).reshape(-1, 2)[good], axis=1))) / _THUMB_PX
