"""What the lab's camera really saw, in the form of a prediction: shown to a judge, it tells the judge's own errors."""

from __future__ import annotations

import numpy as np

from kinema4d_ros.core.rollout import Provenance, Rollout
from kinema4d_ros.trials.arena import LabArena, Run

__all__ = ["true_rollout"]


def true_rollout(arena: LabArena, run: Run, frames: int) -> Rollout:
    """Pictures and points of a run at the size of the evaluation's camera, evenly spaced, at most as many as it has."""
    count = min(frames, len(run.states))
    states = [run.states[i] for i in np.linspace(0, len(run.states) - 1, count).round().astype(int)]
    camera = arena.camera
    rays = np.asarray(camera.rays(), np.float32)
    shape = (count, camera.height, camera.width)
    rgb, xyz, mask = np.empty((*shape, 3), np.uint8), np.empty((*shape, 3), np.float32), np.empty(shape, np.bool_)
    for i, state in enumerate(states):
        rgb[i], depth_m, mask[i] = arena.measure(state)
        xyz[i] = rays * depth_m[..., None]
    return Rollout(rgb, xyz, mask, camera, np.array([s.time_s for s in states]), Provenance("truth"))
