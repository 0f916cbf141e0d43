"""How much of an object others hide from a viewpoint, by rays against their convex parts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import ConvexHull

from kinema4d_ros.core.transforms import apply, invert
from kinema4d_ros.lab.shapes import object_geometries
from kinema4d_ros.physics.objects import PLAIN_SHAPES, LabObject, Part, PlacedObject, parts_of

__all__ = ["hidden_fraction"]

SURFACE_POINTS = 240
SURFACE_GAP_M = 0.001
"""More than the distance between the round mug of an image and the flat pieces of its wall."""


def hidden_fraction(target: PlacedObject, others: Sequence[PlacedObject], p_eye: ArrayLike) -> float:
    """Estimate the share (0 to 1) of the target's side and top that other objects hide from a point (3,), base frame.

    Casts rays from points of the target's surface to the eye; spheres and bins are replaced by their bounding
    cylinder and box, other shapes block rays with their convex parts. Accurate to a few percent: for layouts, not
    for rendering.
    """
    eye = np.asarray(p_eye, dtype=np.float64)
    points = _visible(target, eye)
    hidden = np.zeros(len(points), dtype=bool)
    for other in others:
        hidden |= _blocked(points, other, eye)
    return float(hidden.mean())


def _visible(target: PlacedObject, eye: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points (N, 3) of the target's surface, base frame, that the eye (3,) sees if nothing else is there."""
    if target.object.shape not in PLAIN_SHAPES:
        surface, normals = _mesh_surface(target.object)
        # Just above the surface, so that a point is not hidden by the part that it is on.
        points = apply(target.base_T_object, surface + SURFACE_GAP_M * normals)
        points = points[np.sum(normals @ target.base_T_object[:3, :3].T * (eye - points), axis=1) > 0]
        return np.asarray(points[~_blocked(points, target, eye)])
    points = apply(target.base_T_object, _surface(target.object))
    # Only the half that faces the eye is visible.
    return np.asarray(points[(points - target.position) @ (eye - target.position) > 0])


def _blocked(points: NDArray[np.float64], other: PlacedObject, eye: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return (N,) whether an object is between points (N, 3) and the eye (3,), base frame."""
    blocked = np.zeros(len(points), dtype=bool)
    for part in _blocking(other.object):
        part_T_base = invert(other.base_T_object @ part.object_T_part)
        start = apply(part_T_base, points)
        blocked |= _crosses(part, start, apply(part_T_base, eye[None])[0] - start)
    return blocked


def _surface(thing: LabObject) -> NDArray[np.float64]:
    """Return points (N, 3) of the sides and the top of a box, bin, cylinder or sphere, in its frame."""
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


@lru_cache(maxsize=64)
def _mesh_surface(thing: LabObject) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return `SURFACE_POINTS` points (N, 3) spread evenly over the object's meshes, and their unit normals (N, 3)."""
    meshes = [apply(g.link_T_geometry, g.mesh.vertices)[g.mesh.faces] for g in object_geometries(thing)]
    a, b, c = np.moveaxis(np.concatenate(meshes), 1, 0)
    normals = np.cross(b - a, c - a)
    doubled = np.linalg.norm(normals, axis=1)
    area = np.cumsum(doubled)
    count = np.arange(SURFACE_POINTS) + 0.5
    chosen = np.searchsorted(area, area[-1] * count / SURFACE_POINTS)
    # A low-discrepancy sequence within the triangles, some of which get many points.
    u, v = count * 0.7548776662 % 1.0, count * 0.5698402910 % 1.0
    u, v = np.where(u + v > 1, 1 - u, u)[:, None], np.where(u + v > 1, 1 - v, v)[:, None]
    return a[chosen] + u * (b - a)[chosen] + v * (c - a)[chosen], normals[chosen] / doubled[chosen, None]


def _blocking(thing: LabObject) -> tuple[Part, ...]:
    """List the convex parts that block rays."""
    if thing.shape in ("sphere", "bin"):
        return (Part("cylinder" if thing.shape == "sphere" else "box", np.eye(4), thing.size),)
    return parts_of(thing)


def _crosses(part: Part, start: NDArray[np.float64], ray: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return (N,) whether the segments start + t ray, 0 < t < 1, intersect a part, in its frame."""
    if part.vertices is not None:
        return _crosses_hull(part.vertices, start, ray)
    half = np.array(part.size) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        t0, t1 = (-half - start) / ray, (half - start) / ray
    near, far = np.minimum(t0, t1), np.maximum(t0, t1)
    if part.kind == "cylinder":
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


def _crosses_hull(
    vertices: NDArray[np.float64], start: NDArray[np.float64], ray: NDArray[np.float64]
) -> NDArray[np.bool_]:
    planes = ConvexHull(vertices).equations
    outside, speed = start @ planes[:, :3].T + planes[:, 3], ray @ planes[:, :3].T
    with np.errstate(divide="ignore", invalid="ignore"):
        t = -outside / speed
    enter = np.where(speed < 0, t, -np.inf).max(axis=1)
    leave = np.where(speed > 0, t, np.inf).min(axis=1)
    apart = np.any((speed == 0) & (outside > 0), axis=1)
    return np.asarray(~apart & (enter < leave) & (leave > 0.0) & (enter < 1.0))
