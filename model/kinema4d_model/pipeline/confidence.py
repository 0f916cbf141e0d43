"""How sure a prediction is, pixel by pixel: what several seeds agree on counts as certain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, GeneratorError

__all__ = ["Confidence", "confidence_of"]


@dataclass(frozen=True, eq=False)
class Confidence:
    """Agreement of several rollouts of one request.

    Attributes:
        value: (T, H, W) float32 in [0, 1]; 1 = all seeds agree, 0.5 = they spread by `scale_m`, 1 under the
            exact robot, 0 where only some seeds have a point.
        spread_m: (T, H, W) float32, metres, RMS distance of the seeds' points from their mean; NaN = no point.
        spread_rgb: (T, H, W) float32, grey levels, the same for colours.
        seeds: how many rollouts were compared.
    """

    value: NDArray[np.float32]
    spread_m: NDArray[np.float32]
    spread_rgb: NDArray[np.float32]
    seeds: int


def confidence_of(
    points: Sequence[NDArray[np.float32]],
    colours: Sequence[NDArray[np.uint8]],
    robot_mask: NDArray[np.bool_],
    *,
    scale_m: float = 0.02,
) -> Confidence:
    """Confidence from the points and colours (T, H, W, 3) of at least two seeds; spreads are unbiased (n - 1)."""
    seeds = len(points)
    if seeds < 2 or len(colours) != seeds:
        raise GeneratorError(
            f"{seeds} rollouts and {len(colours)} videos to compare",
            expected="two or more of each",
            code=ErrorCode.GENERATOR_BAD_REQUEST,
        )
    spread_m, spread_rgb = np.empty(robot_mask.shape, np.float32), np.empty(robot_mask.shape, np.float32)
    value = np.empty(robot_mask.shape, np.float32)
    for t in range(len(robot_mask)):
        xyz = np.stack([p[t] for p in points])
        rgb = np.stack([c[t] for c in colours]).astype(np.float32)
        known = np.isfinite(xyz).all(-1).sum(0)
        with np.errstate(invalid="ignore"):
            spread_m[t] = np.sqrt(((xyz - xyz.mean(0)) ** 2).sum(-1).sum(0) / (seeds - 1))
        spread_rgb[t] = np.sqrt(((rgb - rgb.mean(0)) ** 2).mean(-1).sum(0) / (seeds - 1))
        agreed = 1.0 / (1.0 + (spread_m[t] / scale_m) ** 2)
        value[t] = np.where(known == seeds, agreed, np.where(known == 0, 1.0, 0.0))
        value[t][robot_mask[t]] = 1.0
    return Confidence(value, spread_m, spread_rgb, seeds)
