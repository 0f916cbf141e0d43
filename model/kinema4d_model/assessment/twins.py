"""Twins of lab episodes: the same scene, camera and motion with the target elsewhere, or out of sight.

If the prediction of a twin changes as the physics does, the outcome is read from the picture and not from the motion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.episode import Episode
from kinema4d_model.data.lab_config import LabConfig
from kinema4d_model.data.lab_episode import Change, TwinRefused, make_episode
from kinema4d_ros.lab import PlacedObject

__all__ = ["OUT_OF_SIGHT", "Twin", "make_twin", "moved_by", "out_of_sight"]

OUT_OF_SIGHT = (-0.30, -0.45)
"""x, y on the lab's table, metres, behind the arm: no camera of the data sees it."""


@dataclass(frozen=True, eq=False)
class Twin:
    """An episode and its twin."""

    episode: Episode
    twin: Episode


def _at(target: PlacedObject, xy: NDArray[np.float64]) -> PlacedObject:
    pose = target.base_T_object.copy()
    pose[:2, 3] = xy
    return PlacedObject(target.object, pose)


def moved_by(distance_m: float) -> Change:
    """Put the target this far along the table, around the arm, towards the middle of the workspace."""

    def change(target: PlacedObject) -> PlacedObject:
        x, y = target.position[:2]
        around = np.array([y, -x]) / max(float(np.hypot(x, y)), 1e-9)
        # Towards y = 0, so that it stays on the table and mostly in view.
        side = 1.0 if around[1] * y < 0 else -1.0
        return _at(target, np.array([x, y]) + side * distance_m * around)

    return change


def out_of_sight(target: PlacedObject) -> PlacedObject:
    """Take the target away."""
    return _at(target, np.array(OUT_OF_SIGHT))


def make_twin(config: LabConfig, episode: Episode, change: Change) -> Twin | None:
    """The twin of an episode that `kinema4d data make` made; None where there is no room for it."""
    seed, number = int(episode.seeds["dataset"]), int(episode.seeds["number"])
    try:
        return Twin(episode, make_episode(config, seed, str(episode.details["split"]), number, change))
    except TwinRefused:
        return None
