"""Colours of the surfaces of one image: what a pixel shows, by its own colour, beside what the detector says of it.

weights per surface (detector, drawn shapes) ─ colour models ─ densities of each pixel's colour

An object's upward surface has one colour; its other surfaces have one at every position across the object, because they
turn away from the lamp; what is no object has the colours around it, in light and in shadow. Medians and spreads make
the models, so that a part of the pixels may be assigned wrongly, which the models then correct.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

__all__ = ["across_image", "ground_density", "median_colour", "same_colour", "surface_density"]

Array = NDArray[np.float64]

_BINS = 32
"""Bins a channel of the colours around an object."""
_BLUR = 0.8
"""Blur of those colours, bins."""
_SHADES = ((1.0, 1.0), (0.93, 0.12), (0.85, 0.12), (0.76, 0.12), (0.66, 0.12), (0.55, 0.08))
"""Colours in shadow: factor on sRGB values, and weight relative to the colour itself."""
_SMALLEST = 0.03
"""Smallest spread of a surface's colour: sensor noise, mixed pixels of an edge."""
_LARGEST = 0.12
_OUTLIERS = 0.02
"""Share of colours that no model predicts: highlights, cast shadows, prints."""
_HUE = 0.035
"""Spread of an object's chromaticity over its surfaces."""
_PALEST = 0.7
_NEVER_SURER = 0.005
_COLUMN = 2.5
"""Positions across an object are pooled over this many pixels."""
_LEAST = 4.0
"""Pixels (sum of weights) from which a surface has a colour of its own."""


def ground_density(colours: Array, weight: Array, samples: Array | None = None, *, shades: bool = True) -> Array:
    """Return the density (N,) of colours (N, 3), 0 to 1, among samples (M, 3) with weights (M,).

    Without samples the colours are their own. With `shades`, samples count in shadow too.
    """
    samples = colours if samples is None else samples
    counts = np.full(_BINS**3, _OUTLIERS * max(float(weight.sum()), 1.0) / _BINS**3)
    used = weight > 0.05
    for shade, share in _SHADES if shades else _SHADES[:1]:
        counts += share * np.bincount(_cells(samples[used] * shade), weight[used], len(counts))
    smooth = gaussian_filter(counts.reshape((_BINS,) * 3), _BLUR, mode="nearest").ravel()
    return np.asarray(smooth[_cells(colours)] / smooth.sum() * _BINS**3, np.float64)


def _cells(colours: Array) -> NDArray[np.int64]:
    cell = np.minimum((colours * _BINS).astype(np.int64), _BINS - 1)
    return np.asarray((cell[:, 0] * _BINS + cell[:, 1]) * _BINS + cell[:, 2], np.int64)


def surface_density(colours: Array, weight: Array, across: Array | None = None) -> Array:
    """Return the density (N,) of colours (N, 3) on a surface.

    Args:
        colours: 0 to 1.
        weight: (N,) how probable it is that a pixel shows this surface.
        across: (N,) position across the object, pixels: the colour changes with it. None = one colour.
    """
    if weight.sum() < _LEAST:
        return np.ones(len(colours))
    middle = np.tile(median_colour(colours, weight), (len(colours), 1))
    if across is not None:
        use = weight > 0.05
        low, high = float(across[use].min()), float(across[use].max())
        places = np.linspace(low, high, max(2, round((high - low) / _COLUMN)))
        rows = []
        for place in places:
            near = weight * np.exp(-0.5 * ((across - place) / _COLUMN) ** 2)
            rows.append(median_colour(colours, near) if near.sum() > _LEAST else middle[0])
        table = np.array(rows)
        middle = np.stack([np.interp(across, places, table[:, c]) for c in range(3)], 1)
    off = colours - middle
    tone = middle / np.maximum(np.linalg.norm(middle, axis=1, keepdims=True), 1e-6)
    shade = (off * tone).sum(1)
    hue = np.linalg.norm(off - shade[:, None] * tone, axis=1)
    deep = _spread(np.abs(shade), weight)
    wide = _spread(hue, weight) / 1.2  # the median of two normal components' norm is 1.18 of their deviation
    log = -0.5 * ((shade / deep) ** 2 + (hue / wide) ** 2) - np.log(deep * wide**2) - 1.5 * np.log(2 * np.pi)
    return np.asarray((1 - _OUTLIERS) * np.exp(log) + _OUTLIERS, np.float64)


def median_colour(values: Array, weight: Array) -> Array:
    """Return the weighted medians (C,) of columns (N, C)."""
    out = np.empty(values.shape[1])
    for c in range(values.shape[1]):
        order = np.argsort(values[:, c])
        total = np.cumsum(weight[order])
        out[c] = values[order[np.searchsorted(total, 0.5 * total[-1])], c]
    return out


def _spread(size: Array, weight: Array) -> float:
    order = np.argsort(size)
    total = np.cumsum(weight[order])
    median = float(size[order[np.searchsorted(total, 0.5 * total[-1])]])
    return float(np.clip(1.48 * median, _SMALLEST, _LARGEST))


def across_image(rows: NDArray[np.int64], columns: NDArray[np.int64], up: Array) -> Array:
    """Return positions (N,) of pixels across an object whose vertical is seen along `up` (2,), as column and row."""
    return np.asarray((columns * up[1] - rows * up[0]) / max(float(np.hypot(*up)), 1e-9), np.float64)


def same_colour(colours: Array, own: Array) -> Array:
    """Return how well colours (..., 3) agree with an object's own (3,), 0 to 1: any brightness, or paler in gloss."""
    seen, mine = (c + 0.05 for c in (colours, own))
    seen, mine = seen / seen.sum(-1, keepdims=True), mine / mine.sum()
    pale = np.full(3, 1 / 3) - mine
    along = np.clip(((seen - mine) @ pale) / max(float(pale @ pale), 1e-9), 0.0, _PALEST)
    off = np.linalg.norm(seen - mine - along[..., None] * pale, axis=-1)
    return np.asarray(np.exp(-0.5 * (off / _HUE) ** 2) + _NEVER_SURER, np.float64)
