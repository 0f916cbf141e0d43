"""How much of an object others hide from a point, without drawing anything."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.transforms import apply, invert
from kinema4d_ros.lab.objects import LabObject, PlacedObject

__all__ = ["hidden_fraction"]


def hidden_fraction(target: PlacedObject, others: Sequence[PlacedObject], p_eye: ArrayLike) -> float:
    """0 to 1: the share of the target's side and top that other objects hide from a point (3,), base frame.

    Points of the target's surface are joined with the eye; spheres and bins count as their bounding
    cylinder and box. Good to a few percent: for layouts, not for pictures.
    """
    eye = np.asarray(p_eye, dtype=np.float64)
    points = apply(target.base_T_object, _surface(target.object))
    # Only the half that faces the eye can be seen at all.
    points = points[(points - target.position) @ (eye - target.position) > 0]
    hidden = np.zeros(len(points), dtype=bool)
    for other in others:
        object_T_base = invert(other.base_T_object)
        start = apply(object_T_base, points)
        hidden |= _crosses(other.object, start, apply(object_T_base, eye[None])[0] - start)
    return float(hidden.mean())


def _surface(thing: LabObject) -> NDArray[np.float64]:
    x, y, z = (np.array(thing.size) / 2).tolist()
    levels = np.linspace(-0.9, 0.9, 7)
    if thing.shape in ("box", "bin"):
        a, b = (g.ravel() for g in np.meshgrid(levels, levels))
        one = np.ones_like(a)
        sides = ((one, a, b), (-one, a, b), (a, one, b), (a, -one, b), (a, b, one))
        unit: NDArray[np.float64] = np.concatenate([np.stack(side, 1) for side in sides])
        return np.asarray(unit * np.array([x, y, z]))
    turn, level = (g.ravel() for g in np.meshgrid(np.linspace(0, 2 * np.pi, 24, endpoint=False), levels))
    width = np.sqrt(1 - level**2) if thing.shape == "sphere" else np.ones_like(level)
    side = np.stack([x * width * np.cos(turn), y * width * np.sin(turn), z * level], 1)
    if thing.shape == "sphere":
        return side
    top = np.stack([0.7 * x * np.cos(turn[:24]), 0.7 * y * np.sin(turn[:24]), np.full(24, z)], 1)
    return np.concatenate([side, top])


def _crosses(thing: LabObject, start: NDArray[np.float64], ray: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(N,) whether the segments start + t ray, 0 < t < 1, pass through the object, all in its frame."""
    half = np.array(thing.size) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        t0, t1 = (-half - start) / ray, (half - start) / ray
    near, far = np.minimum(t0, t1), np.maximum(t0, t1)
    if thing.shape in ("cylinder", "sphere"):
        a = np.sum(ray[:, :2] ** 2, axis=1)
        b = np.sum(start[:, :2] * ray[:, :2], axis=1)
        c = np.sum(start[:, :2] ** 2, axis=1) - half[0] ** 2
        root = np.sqrt(np.maximum(b * b - a * c, 0.0))
        misses = b * b < a * c
        enter = np.maximum(np.where(misses, np.inf, (-b - root) / a), near[:, 2])
        leave = np.minimum(np.where(misses, -np.inf, (-b + root) / a), far[:, 2])
    else:
        enter, leave = near.max(axis=1), far.min(axis=1)
    return np.asarray((enter < leave) & (leave > 0.0) & (enter < 1.0))
