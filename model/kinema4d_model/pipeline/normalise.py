"""Pointmaps in metres to values in [0, 1]: the normalisations that a preset can choose.

    per_axis    value = (p - min) / (max - min) on each axis, over the sequence
    one_scale   the same centre on each axis, the largest of the three spans for all of them
    per_frame   clipped to 2-98 % of each frame and axis, centred per frame, one scale for frames and axes (4DNeX)

What the released weights were trained with is not published: the paper says "per-sequence min-max", the code that made
the released pointmap videos is missing, and 4DNeX, whose weights the training started from, used `per_frame`.
The metric fit inverts all of them: an affine map per axis, for `per_frame` with an offset for every frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["NORMALISATIONS", "PointScale", "describe_normalisation", "measure_scale"]

Kind = Literal["per_axis", "one_scale", "per_frame"]
NORMALISATIONS: tuple[Kind, ...] = ("per_axis", "one_scale", "per_frame")
CLIPPED = (2.0, 98.0)
"""Percentiles of `per_frame`, as in 4DNeX."""
NOTHING_KNOWN = ((-1.0, -1.0, 0.1), (1.0, 1.0, 3.0))
"""Bounds without a single known point, metres."""
_SMALLEST = 1e-9
"""Of a span, metres: a flat scene must not divide by zero."""

_WORDS = {
    "per_axis": "min-max of the sequence, each axis its own",
    "one_scale": "min-max of the sequence, one scale for all axes",
    "per_frame": "2-98 % of every frame, centred per frame, one scale for all axes",
}


def describe_normalisation(kind: Kind) -> str:
    """Describe a normalisation for provenance."""
    return f"{kind} ({_WORDS[kind]})"


@dataclass(frozen=True, eq=False)
class PointScale:
    """Map from metres to [0, 1], camera optical frame.

    Attributes:
        bounds: metres, the points that map to 0 and 1: (2, 3) float64, or (2, T, 3) with one pair per frame.
        limits: metres, (2, T, 3) float64: points are clipped to them; None = to the bounds.
    """

    bounds: NDArray[np.float64]
    limits: NDArray[np.float64] | None = None

    def values(self, xyz: NDArray[np.float32], rays: NDArray[np.float64]) -> NDArray[np.float32]:
        """Map points to values in [0, 1].

        Args:
            xyz: (T, H, W, 3) float32 metres, NaN = no point: it becomes the far end of its pixel's ray.
            rays: (H, W, 3) float64 with z = 1, of the same camera.

        Returns:
            (T, H, W, 3) float32.
        """
        low, high = _per_pixel(self.bounds)
        known = np.isfinite(xyz).all(-1, keepdims=True)
        points = np.where(known, xyz, rays * high[..., 2:])
        if self.limits is not None:
            points = np.clip(points, *_per_pixel(self.limits))
        out: NDArray[np.float32] = np.clip((points - low) / np.maximum(high - low, _SMALLEST), 0.0, 1.0).astype(
            np.float32
        )
        return out


def _per_pixel(pair: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both points for broadcasting over (T, H, W, 3)."""
    low, high = pair
    return (low, high) if low.ndim == 1 else (low[:, None, None], high[:, None, None])


def measure_scale(kind: Kind, *clouds: tuple[NDArray[np.float32], NDArray[np.bool_]]) -> PointScale:
    """Measure the scale of a sequence.

    Args:
        kind: the normalisation.
        clouds: pointmaps (T, H, W, 3) float32 metres, each with the mask (T, H, W) of its points.
    """
    some = [xyz[mask] for xyz, mask in clouds if mask.any()]
    if not some:
        return PointScale(np.array(NOTHING_KNOWN))
    bounds = np.stack([np.min([p.min(0) for p in some], 0), np.max([p.max(0) for p in some], 0)]).astype(np.float64)
    if kind == "per_axis":
        return PointScale(bounds)
    if kind == "one_scale":
        return PointScale(_around(bounds.mean(0), float((bounds[1] - bounds[0]).max()) / 2))
    limits = np.stack([_frame_limits(t, clouds, bounds) for t in range(len(clouds[0][1]))], axis=1)
    return PointScale(_around(limits.mean(0), float((limits[1] - limits[0]).max()) / 2), limits)


def _around(centre: NDArray[np.float64], half_m: float) -> NDArray[np.float64]:
    half_m = max(half_m, _SMALLEST)
    return np.stack([centre - half_m, centre + half_m])


def _frame_limits(
    t: int, clouds: tuple[tuple[NDArray[np.float32], NDArray[np.bool_]], ...], bounds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the percentiles (2, 3) of one frame, metres; the sequence's bounds if it has no point."""
    points = np.concatenate([xyz[t][mask[t]] for xyz, mask in clouds])
    return np.percentile(points, CLIPPED, axis=0).astype(np.float64) if len(points) else bounds
