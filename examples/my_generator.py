"""A generator of your own: the world stays as the camera saw it and fades to grey. Use it by its spec:

kinema4d generate --preset my_generator:Fading --trajectory config/demo/pick_and_place.csv --out out/fading

with this folder on PYTHONPATH. The node takes the same spec: ros2 launch ... preset:=my_generator:Fading
"""

from dataclasses import replace

import numpy as np

from kinema4d_ros import Rollout, load_generator
from kinema4d_ros.generators import Cancel, GenerateRequest, Progress, ReportProgress, raise_if_cancelled


class Fading:
    """Builds on `composite`, which draws the exact robot into the first image."""

    name = "fading"

    def __init__(self, strength: float = 0.7) -> None:
        self._strength = strength
        self._composite = load_generator("composite")

    def generate(
        self, request: GenerateRequest, progress: ReportProgress | None = None, cancel: Cancel | None = None
    ) -> Rollout:
        """Fade everything but the robot, a little more in each frame; frame 0 stays the camera's image."""
        rollout = self._composite.generate(request, None, cancel)
        rgb = rollout.rgb.copy()
        for t, mask in enumerate(rollout.robot_mask):
            raise_if_cancelled(cancel, Progress("fade", t, len(rollout)))
            weight = self._strength * t / max(1, len(rollout) - 1)
            faded = (1 - weight) * rgb[t] + weight * 128.0
            rgb[t] = np.where(mask[..., None], rgb[t], faded.astype(np.uint8))
            if progress is not None:
                progress(Progress("fade", t + 1, len(rollout)))
        return replace(rollout, rgb=rgb)
