"""Samples for training the detector: a view as network input, degraded, with what each of its pixels should vote."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_model.detection.network import UNIT_M, VOTES
from kinema4d_model.detection.views import HELD, NONE, ROBOT, Views
from kinema4d_model.pipeline.lifting.frames import shifted_mask, worsen
from kinema4d_model.pipeline.lifting.geometry import PlaneView, view_plane
from kinema4d_model.pipeline.lifting.lifter import network_input

__all__ = ["Sample", "augmented_sample", "plain_sample"]

WORLD_SCALE = (0.85, 1.25)
_RIGHTWARD = (0, 3)
"""Channels of the plane that change sign in a mirror, because they point right."""
_MIRRORED = [0, 1, 2, 5, 4, 3, 6, 7]
"""A mirror swaps the widths along 45 and 135 degrees."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One view as network input, with targets.

    Attributes:
        x: (12, H, W) float32, see `network_input`.
        face: (H, W) int64: NONE, TOP or SIDE.
        known: (H, W) float32, 0 where the loss is ignored: on the robot, and where the ray misses the plane.
        votes: (9, H/2, W/2) float32, VOTES in units of UNIT_M; of the upper left of each four pixels.
        shape: (H/2, W/2) int64, index in CLASSES.
        weight: (H/2, W/2) float32: 0 without an object; the pixels of an object sum to the root of their number.
    """

    x: NDArray[np.float32]
    face: NDArray[np.int64]
    known: NDArray[np.float32]
    votes: NDArray[np.float32]
    shape: NDArray[np.int64]
    weight: NDArray[np.float32]


def plain_sample(views: Views, number: int) -> Sample:
    """Make a sample without augmentation."""
    return _sample(views, number, view_plane(views.camera(number)))


def augmented_sample(views: Views, number: int, rng: np.random.Generator) -> Sample:
    """Make a sample with degraded colours, a shifted robot mask, another scale of the world, or mirrored."""
    scale = float(np.exp(rng.uniform(*np.log(WORLD_SCALE)))) if rng.uniform() < 0.7 else 1.0
    view = view_plane(views.camera(number), scale=scale)
    return _sample(views, number, view, scale, rng, mirror=bool(rng.uniform() < 0.5))


def _degrade(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    if rng.uniform() < 0.8:
        image = worsen(image, rng)
    if rng.uniform() < 0.3:
        _, packed = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(35, 95))])
        image = np.asarray(cv2.imdecode(packed, cv2.IMREAD_COLOR), np.uint8)
    return image


def _sample(
    views: Views,
    number: int,
    view: PlaneView,
    scale: float = 1.0,
    rng: np.random.Generator | None = None,
    *,
    mirror: bool = False,
) -> Sample:
    image, instance, face, height = (a[number] for a in (views.rgb, views.instance, views.face, views.height_m))
    rows = scale * views.objects[number][:, :8]
    channels = view.channels
    if mirror:
        image, instance, face, height = (np.ascontiguousarray(a[:, ::-1]) for a in (image, instance, face, height))
        channels = channels[..., ::-1].copy()
        channels[list(_RIGHTWARD)] *= -1
        rows = rows[:, _MIRRORED]
        rows[:, 0] *= -1
    robot = instance == ROBOT
    thing = (instance > 0) & ~robot
    known = ~robot & (np.isfinite(channels[7]) & (channels[7] > 0) | thing)
    if rng is not None:
        image = _degrade(image, rng)
    few = (slice(None, None, 2), slice(None, None, 2))
    row = (np.where(instance == HELD, 0, instance.astype(np.int64) - 1) * thing)[few]
    votes = np.empty((len(VOTES), *row.shape), np.float32)
    votes[:8] = np.moveaxis(rows[row], -1, 0)
    votes[:2] -= channels[3:5, ::2, ::2]
    votes[8] = scale * height[few]
    seen = (thing & known)[few]
    counts = np.bincount(instance[few][seen], minlength=256)
    weight = seen / np.sqrt(np.maximum(counts[instance[few]], 1))
    mask = robot if rng is None else shifted_mask(robot, rng)
    return Sample(
        network_input(image, replace(view, channels=channels), mask),
        np.where(thing, face, NONE).astype(np.int64),
        known.astype(np.float32),
        np.where(seen, votes / UNIT_M, 0.0).astype(np.float32),
        views.objects[number][row, 8].astype(np.int64),
        weight.astype(np.float32),
    )
