"""Training samples from stored pictures: cut, mirrored, scaled with their geometry, repainted, worsened.

Everything that moves pixels moves the camera with them, so that the plane's channels stay true. Heights need no care:
they are the same from every camera.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_model.pipeline.lifting.frames import ROBOT, THING, UNKNOWN, WORLD, FrameSet
from kinema4d_model.pipeline.lifting.geometry import PlaneView, view_plane
from kinema4d_model.pipeline.lifting.lifter import network_input
from kinema4d_ros.core.camera import PinholeCamera

__all__ = ["Sample", "augmented_sample", "plain_sample"]

ZOOM = (0.75, 1.45)
WORLD_SCALE = (0.8, 1.5)
_MIRRORED = (0, 3)
"""Channels of the plane's geometry that point to the right."""
_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])


@dataclass(frozen=True, eq=False)
class Sample:
    """One picture as the network takes it.

    Attributes:
        x: (12, H, W) float32, see `network_input`.
        thing: (H, W) float32, 1 = something stands here.
        height_m: (H, W) float32, 0 where nothing stands.
        weight: (H, W) float32, 0 where there is nothing to learn: on the robot, and where the plane is not met.
    """

    x: NDArray[np.float32]
    thing: NDArray[np.float32]
    height_m: NDArray[np.float32]
    weight: NDArray[np.float32]


def plain_sample(frames: FrameSet, number: int) -> Sample:
    """A picture as it is."""
    view = view_plane(frames.camera(number))
    return _sample(frames.rgb[number], view, frames.kind[number], frames.height_m[number].astype(np.float32))


def augmented_sample(frames: FrameSet, number: int, size: tuple[int, int], rng: np.random.Generator) -> Sample:
    """A picture made different; `size` is (height, width) of what is cut out of it."""
    image, kind, height_m, camera = _cut(frames, number, size, rng)
    scale = float(np.exp(rng.uniform(*np.log(WORLD_SCALE))))
    view = view_plane(camera, scale=scale)
    if rng.uniform() < 0.4:
        image = _repaint_table(image, view, kind, rng)
    image = _worsen(image, rng)
    # A few pixels beside the truth: a mask from a real calibration is.
    mask = _shifted(kind == ROBOT, rng)
    sample = _sample(image, view, kind, scale * height_m, mask)
    return _mirror(sample) if rng.uniform() < 0.5 else sample


def _sample(
    image: NDArray[np.uint8],
    view: PlaneView,
    kind: NDArray[np.uint8],
    height_m: NDArray[np.float32],
    robot: NDArray[np.bool_] | None = None,
) -> Sample:
    thing = kind >= THING
    known = (kind != ROBOT) & (kind != UNKNOWN) & np.isfinite(view.depth_m)
    return Sample(
        network_input(image, view, kind == ROBOT if robot is None else robot),
        thing.astype(np.float32),
        np.where(thing, height_m, 0.0).astype(np.float32),
        known.astype(np.float32),
    )


def _cut(
    frames: FrameSet, number: int, size: tuple[int, int], rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float32], PinholeCamera]:
    """A rectangle, resized; half of them around something that stands there."""
    height, width = frames.rgb.shape[1:3]
    rows, columns = size
    least = max(rows / height, columns / width)
    zoom = float(np.exp(rng.uniform(np.log(max(ZOOM[0], least)), np.log(max(ZOOM[1], least)))))
    window = np.array([columns, rows]) / zoom
    room = np.array([width, height]) - window
    corner = rng.uniform(0, 1, 2) * room
    things = np.argwhere(frames.kind[number] >= THING)
    if len(things) and rng.uniform() < 0.5:
        middle = things[rng.integers(len(things))][::-1] + rng.uniform(-0.35, 0.35, 2) * window
        corner = np.clip(middle - window / 2, 0, room)
    # Pixel centres are at + 0.5 here, at integers in OpenCV.
    warp = np.array([[zoom, 0, -zoom * corner[0]], [0, zoom, -zoom * corner[1]]])
    shifted = warp.copy()
    shifted[:, 2] += 0.5 * zoom - 0.5
    shape = (columns, rows)
    image = cv2.warpAffine(frames.rgb[number], shifted, shape, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    nearest = {"flags": cv2.INTER_NEAREST, "borderMode": cv2.BORDER_REPLICATE}
    kind = cv2.warpAffine(frames.kind[number], shifted, shape, **nearest)
    height_m = cv2.warpAffine(frames.height_m[number].astype(np.float32), shifted, shape, **nearest)
    K = np.vstack([warp, [0, 0, 1]]) @ frames.K[number]
    camera = PinholeCamera(columns, rows, K, base_T_camera=frames.base_T_camera[number])
    return np.asarray(image), np.asarray(kind), np.asarray(height_m), camera


def _repaint_table(
    image: NDArray[np.uint8], view: PlaneView, kind: NDArray[np.uint8], rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Flat prints on the table that are not things: stripes, tiles, sheets; light and shadow stay."""
    turn = rng.uniform(0, np.pi)
    right, forward = view.channels[3], view.channels[4]
    u, v = np.cos(turn) * right + np.sin(turn) * forward, -np.sin(turn) * right + np.cos(turn) * forward
    pitch, phase = rng.uniform(0.02, 0.12), rng.uniform(0, 1, 2)
    a, b = u / pitch + phase[0], v / (pitch * rng.uniform(0.7, 1.4)) + phase[1]
    pattern = rng.integers(3)
    if pattern == 0:
        on = np.mod(a, 1.0) < rng.uniform(0.1, 0.9)
    elif pattern == 1:
        on = np.mod(np.floor(a) + np.floor(b), 2.0) == 0
    else:
        centre = np.argwhere(kind == WORLD)
        if not len(centre):
            return image
        row, column = centre[rng.integers(len(centre))]
        half = rng.uniform(0.01, 0.08, 2)
        on = (np.abs(u - u[row, column]) < half[0]) & (np.abs(v - v[row, column]) < half[1])
    factor = rng.uniform(0.35, 1.5) * (1 + rng.uniform(-0.35, 0.35, 3))
    painted = np.clip(image.astype(np.float32) * factor, 0, 255)
    return np.where((on & (kind == WORLD))[..., None], painted, image).astype(np.uint8)


def _worsen(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Other colours, light, sharpness and noise."""
    colours = image.astype(np.float32) / 255
    if rng.uniform() < 0.7:
        colours = colours @ _hue_and_saturation(rng.uniform(-np.pi, np.pi), rng.uniform(0.5, 1.3))
    gain = np.exp(rng.normal(0, 0.25) + rng.normal(0, 0.08, 3)).astype(np.float32)
    colours = np.clip(colours * gain, 0, 1) ** np.float32(np.exp(rng.normal(0, 0.2)))
    if rng.uniform() < 0.4:
        colours = cv2.GaussianBlur(colours, (0, 0), float(rng.uniform(0.3, 1.0)))
    if rng.uniform() < 0.7:
        colours = colours + rng.normal(0, rng.uniform(0, 0.04), colours.shape).astype(np.float32)
    return (np.clip(colours, 0, 1) * 255 + 0.5).astype(np.uint8)


def _hue_and_saturation(turn: float, saturation: float) -> NDArray[np.float32]:
    c, s = saturation * np.cos(turn), saturation * np.sin(turn)
    turned = np.linalg.inv(_TO_YIQ) @ np.array([[1, 0, 0], [0, c, -s], [0, s, c]]) @ _TO_YIQ
    return turned.T.astype(np.float32)


def _shifted(mask: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.bool_]:
    if rng.uniform() < 0.5:
        return mask
    dy, dx = rng.integers(-1, 2, 2)
    warp = np.array([[1.0, 0.0, dx], [0.0, 1.0, dy]])
    moved = cv2.warpAffine(mask.astype(np.uint8), warp, mask.shape[::-1], flags=cv2.INTER_NEAREST)
    if rng.uniform() < 0.5:
        moved = cv2.dilate(moved, np.ones((3, 3), np.uint8))
    return np.asarray(moved) > 0


def _mirror(sample: Sample) -> Sample:
    x = sample.x[..., ::-1].copy()
    x[[3 + c for c in _MIRRORED]] *= -1
    return Sample(x, *(a[:, ::-1].copy() for a in (sample.thing, sample.height_m, sample.weight)))
