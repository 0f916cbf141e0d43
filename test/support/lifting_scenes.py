"""Small lab images with ground truth of static scenes, one scene per number."""

from __future__ import annotations

from functools import lru_cache

from kinema4d_model.data.episode import Episode
from kinema4d_model.data.lab_config import load_config, parse_config
from kinema4d_model.data.lab_episode import make_episode
from kinema4d_model.pipeline.lifting.frames import FrameSet, frames_of

SEED = 20_260
"""Seed that no training dataset uses."""


@lru_cache(maxsize=32)
def lab_episode(number: int, *, split: str = "val", width: int = 144, height: int = 96) -> Episode:
    """Make an episode of two frames, first and last, of a missed grasp: all objects stay on the table."""
    changes = {"frames": 2, "width": width, "height": height, "kinds": {"miss": 1.0}}
    return make_episode(parse_config({**load_config("nano").document, **changes}, "test"), SEED, split, number)


def lab_frames(count: int, *, width: int = 144, height: int = 96) -> FrameSet:
    """Return the first and last frames of several episodes."""
    episodes = [lab_episode(n, width=width, height=height) for n in range(count)]
    return FrameSet.join([frames_of(e, last=True) for e in episodes])
