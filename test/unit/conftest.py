"""Pointmaps to try things on: small, random, and with points that lie on their pixels' rays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.pointmap import PointmapSequence


def build_sequence(
    frames: int = 3, height: int = 20, width: int = 31, *, seed: int = 0, share: float = 0.4, rgb: bool = True
) -> PointmapSequence:
    rng = np.random.default_rng(seed)
    K = np.array([[1.3 * width, 0, 0.48 * width], [0, 1.2 * width, 0.53 * height], [0, 0, 1]])
    camera = PinholeCamera(width, height, K)
    ids = np.where(rng.random((frames, height, width)) < share, rng.integers(1, 10, (frames, height, width)), 0)
    z = np.where(ids > 0, rng.uniform(0.5, 2.0, ids.shape), np.nan)
    xyz = (camera.rays() * z[..., None]).astype(np.float32)
    colours = np.where(ids[..., None] > 0, rng.integers(1, 256, (*ids.shape, 3)), 0).astype(np.uint8)
    return PointmapSequence(xyz, ids.astype(np.uint8), camera, 0.1 * np.arange(frames), colours if rgb else None)


@pytest.fixture(scope="session")
def make_sequence() -> Callable[..., PointmapSequence]:
    """Builds sequences: frames, height, width, seed, share of robot pixels, with or without colours."""
    return build_sequence
