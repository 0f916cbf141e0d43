"""Chamfer distances and F-score of predicted clouds to the true ones, and between consecutive frames.

    accuracy       mean distance of predicted points to the nearest true one      completeness   vice versa
    chamfer_l1     half the sum of the two, metres
    chamfer_l2     sum of the two means of SQUARED distances, square metres
    f_score        harmonic mean of the share of predicted points within a threshold of the truth (precision)
                   and of true points within it of the prediction (recall)

These are the usual definitions of point cloud completion (PCN and later). Some papers use other factors: compare
numbers only for the same formula. All distances are exact; NaN points are ignored.

>>> near = cloud_distance(np.zeros((5, 3)), np.array([[0.0, 0.0, 0.02]]))
>>> round(near.chamfer_l1, 6), round(near.chamfer_l2, 6), near.f_score
(0.02, 0.0008, (0.0,))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from kinema4d_ros.core.errors import EvaluationError
from kinema4d_ros.core.pointmap import map_frames
from kinema4d_ros.evaluation.images import require_masks

__all__ = [
    "CloudDistance",
    "build_boxes",
    "cloud_distance",
    "consecutive_distances",
    "frame_distances",
    "nearest_squared",
    "require_thresholds",
]

# Exact nearest-neighbour distances between two organised clouds, by a tree of boxes over blocks of pixels.
#
# Neighbours in an image are mostly neighbours in space. Boxes around blocks of 4 x 4 pixels, around 4 x 4 of those, and
# so on, form a search tree that is built in one pass, and the same pixel of the other cloud is a first guess that
# prunes
# nearly all of it. The clouds must have the same shape; the result does not depend on the guess.

_BRANCH = 4

Ints = NDArray[np.int64]


def build_boxes(xyz: Points) -> tuple[Points, Ints]:
    """Build boxes (N, 2, 3) of all levels of blocks over (H, W, 3), and (levels, 3): first box, rows, columns of each.

    Level 0 has blocks of pixels; the last level is one block. A block without points has an inverted box.
    """
    low = np.where(np.isnan(xyz), np.float32(np.inf), xyz)
    high = np.where(np.isnan(xyz), np.float32(-np.inf), xyz)
    boxes, levels, first = [], [], 0
    while True:
        low, high = _blocks(low, np.inf).min(axis=(1, 3)), _blocks(high, -np.inf).max(axis=(1, 3))
        rows, columns = low.shape[:2]
        boxes.append(np.stack([low.reshape(-1, 3), high.reshape(-1, 3)], axis=1))
        levels.append((first, rows, columns))
        first += rows * columns
        if rows * columns == 1:
            return np.ascontiguousarray(np.concatenate(boxes)), np.array(levels, dtype=np.int64)


def _blocks(image: Points, filler: float) -> Points:
    """View an image as (rows, 4, columns, 4, 3), padded to whole blocks."""
    height, width = image.shape[:2]
    padded = np.pad(image, ((0, -height % _BRANCH), (0, -width % _BRANCH), (0, 0)), constant_values=filler)
    return padded.reshape(padded.shape[0] // _BRANCH, _BRANCH, padded.shape[1] // _BRANCH, _BRANCH, 3)


@njit(cache=True, nogil=True)
def nearest_squared(query: Points, xyz: Points, boxes: Points, levels: Ints, out: Floats) -> None:
    """Write to out (H, W) the squared distance of each query point (H, W, 3) to the nearest of xyz; NaN = no query.

    `boxes` and `levels` are `build_boxes(xyz)`. Infinite where xyz has no points. The tree is traversed once per block
    of 4 x 4 queries, with their common box and their worst first guess; each query then searches the leaves found.
    """
    height, width = out.shape
    top = levels.shape[0] - 1
    # Depth-first: each level has at most 16 children on the stack.
    stack = np.empty((16 * levels.shape[0] + 1, 3), np.int64)
    leaves = np.empty((levels[0, 1] * levels[0, 2], 2), np.int64)
    low, high = np.empty(3), np.empty(3)
    for v0 in range(0, height, _BRANCH):
        for u0 in range(0, width, _BRANCH):
            v1, u1 = min(v0 + _BRANCH, height), min(u0 + _BRANCH, width)
            low[:], high[:] = np.inf, -np.inf
            worst = -1.0
            for v in range(v0, v1):
                for u in range(u0, u1):
                    px, py, pz = np.float64(query[v, u, 0]), np.float64(query[v, u, 1]), np.float64(query[v, u, 2])
                    if np.isnan(px + py + pz):
                        out[v, u] = np.nan
                        continue
                    low[0], low[1], low[2] = min(low[0], px), min(low[1], py), min(low[2], pz)
                    high[0], high[1], high[2] = max(high[0], px), max(high[1], py), max(high[2], pz)
                    best = np.inf
                    for row in range(v0, v1):
                        for column in range(u0, u1):
                            dx, dy = px - xyz[row, column, 0], py - xyz[row, column, 1]
                            dz = pz - xyz[row, column, 2]
                            d = dx * dx + dy * dy + dz * dz
                            if d < best:
                                best = d
                    out[v, u] = best
                    worst = max(worst, best)
            if worst <= 0:
                continue
            found, count = 0, 1
            stack[0, 0], stack[0, 1], stack[0, 2] = top, 0, 0
            while count > 0:
                count -= 1
                level, i, j = stack[count, 0], stack[count, 1], stack[count, 2]
                node = levels[level, 0] + i * levels[level, 2] + j
                gap = 0.0
                for c in range(3):
                    g = max(boxes[node, 0, c] - high[c], low[c] - boxes[node, 1, c], 0.0)
                    gap += g * g
                if gap >= worst:
                    continue
                if level == 0:
                    leaves[found, 0], leaves[found, 1] = i, j
                    found += 1
                    continue
                for row in range(i * _BRANCH, min(i * _BRANCH + _BRANCH, levels[level - 1, 1])):
                    for column in range(j * _BRANCH, min(j * _BRANCH + _BRANCH, levels[level - 1, 2])):
                        stack[count, 0], stack[count, 1], stack[count, 2] = level - 1, row, column
                        count += 1
            for v in range(v0, v1):
                for u in range(u0, u1):
                    best = out[v, u]
                    if np.isnan(best):
                        continue
                    px, py, pz = np.float64(query[v, u, 0]), np.float64(query[v, u, 1]), np.float64(query[v, u, 2])
                    for k in range(found):
                        i, j = leaves[k, 0], leaves[k, 1]
                        node = i * levels[0, 2] + j
                        dx = max(boxes[node, 0, 0] - px, px - boxes[node, 1, 0], 0.0)
                        dy = max(boxes[node, 0, 1] - py, py - boxes[node, 1, 1], 0.0)
                        dz = max(boxes[node, 0, 2] - pz, pz - boxes[node, 1, 2], 0.0)
                        if dx * dx + dy * dy + dz * dz >= best:
                            continue
                        for row in range(i * _BRANCH, min(i * _BRANCH + _BRANCH, height)):
                            for column in range(j * _BRANCH, min(j * _BRANCH + _BRANCH, width)):
                                dx, dy = px - xyz[row, column, 0], py - xyz[row, column, 1]
                                dz = pz - xyz[row, column, 2]
                                d = dx * dx + dy * dy + dz * dz
                                if d < best:
                                    best = d
                    out[v, u] = best


_ORDERED = 0.15
"""Maximum median size of blocks of 4 x 4 pixels, as a share of the size of the whole cloud."""

Points = NDArray[np.float32]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CloudDistance:
    """Distances of two clouds, defined in the module docstring; all NaN if one of them has no points.

    Attributes:
        accuracy: mean distance predicted -> true, metres.
        completeness: mean distance true -> predicted, metres.
        chamfer_l1: metres.
        chamfer_l2: square metres.
        precision, recall, f_score: 0 to 1, one for each threshold.
        predicted_points, true_points: number of points.
    """

    accuracy: float
    completeness: float
    chamfer_l1: float
    chamfer_l2: float
    precision: tuple[float, ...]
    recall: tuple[float, ...]
    f_score: tuple[float, ...]
    predicted_points: int
    true_points: int


def cloud_distance(predicted: Any, truth: Any, thresholds_m: Sequence[float] = (0.01,)) -> CloudDistance:
    """Compute the distances of two clouds (N, 3) and (M, 3), metres, in the same frame.

    Raises:
        EvaluationError: a cloud is empty, not (N, 3), or has points that are partly NaN.
    """
    limits = require_thresholds(thresholds_m)
    clouds = []
    for name, points in (("the predicted cloud", predicted), ("the true cloud", truth)):
        cloud = np.asarray(points, dtype=np.float64)
        if cloud.ndim != 2 or cloud.shape[1] != 3:
            raise EvaluationError(f"{name} has shape {cloud.shape}", expected="(N, 3) metres")
        _require_whole(cloud, name)
        cloud = cloud[np.isfinite(cloud[:, 0])]
        if not len(cloud):
            raise EvaluationError(f"{name} has no point", expected="at least one that is not NaN")
        clouds.append(cloud)
    there, _ = cKDTree(clouds[1]).query(clouds[0], workers=-1)
    back, _ = cKDTree(clouds[0]).query(clouds[1], workers=-1)
    return _distance(there * there, back * back, limits)


def frame_distances(
    predicted: Points, truth: Points, thresholds_m: Sequence[float] = (0.01,), mask: Any = None
) -> list[CloudDistance]:
    """Compute the distances of every frame of two sequences (T, H, W, 3) float32, metres, same frame, NaN = no point.

    Args:
        predicted, truth: the sequences.
        thresholds_m: of the F-score.
        mask: (T, H, W) bool, pixels whose points are measured; their nearest neighbours may be outside the mask,
            so that its border adds no error.
    """
    limits = require_thresholds(thresholds_m)
    a, b = _require_sequence(predicted, "the prediction"), _require_sequence(truth, "the truth")
    if a.shape != b.shape:
        raise EvaluationError(f"the prediction has shape {a.shape}, the truth {b.shape}", expected="one shape for both")
    counted = None if mask is None else require_masks(mask, a.shape[:3])

    def one(t: int) -> CloudDistance:
        return _organised(a[t], b[t], limits, None if counted is None else counted[t])

    return map_frames(one, range(len(a)))


def consecutive_distances(xyz: Points, thresholds_m: Sequence[float] = (0.01,)) -> list[CloudDistance]:
    """Compute the T - 1 distances between consecutive frames of a sequence (T, H, W, 3): its stability ("temp")."""
    limits = require_thresholds(thresholds_m)
    a = _require_sequence(xyz, "the sequence")
    if len(a) < 2:
        raise EvaluationError(f"the sequence has {len(a)} frame", expected="at least two to compare")
    return map_frames(lambda t: _organised(a[t + 1], a[t], limits, None), range(len(a) - 1))


def require_thresholds(thresholds_m: Sequence[float]) -> tuple[float, ...]:
    """Return the thresholds in metres; each must be finite and above zero."""
    limits = tuple(float(value) for value in thresholds_m)
    if not all(np.isfinite(value) and value > 0 for value in limits):
        raise EvaluationError(f"thresholds are {limits}", expected="metres above 0")
    return limits


def _organised(
    predicted: Points, truth: Points, limits: tuple[float, ...], mask: NDArray[np.bool_] | None
) -> CloudDistance:
    there, back = _nearest(predicted, truth), _nearest(truth, predicted)
    if mask is not None:
        there, back = there[mask], back[mask]
    return _distance(there[~np.isnan(there)], back[~np.isnan(back)], limits)


def _nearest(query: Points, cloud: Points) -> Floats:
    """Compute squared distances (H, W) of query points (H, W, 3) to the nearest of cloud (H, W, 3); NaN = no query."""
    boxes, levels = build_boxes(cloud)
    if _is_ordered(boxes, int(levels[0, 1] * levels[0, 2])):
        out = np.empty(query.shape[:2])
        nearest_squared(query, cloud, boxes, levels, out)
        return out
    flat, asked = cloud[np.isfinite(cloud[..., 0])], np.isfinite(query[..., 0])
    out = np.full(query.shape[:2], np.nan)
    out[asked] = cKDTree(flat).query(query[asked])[0] ** 2
    return out


def _is_ordered(boxes: Points, leaves: int) -> bool:
    """Return whether neighbours in the image are neighbours in space; otherwise boxes over pixels prune nothing."""
    size = np.linalg.norm(boxes[:, 1] - boxes[:, 0], axis=1)
    filled = boxes[:leaves, 1, 0] >= boxes[:leaves, 0, 0]
    return not filled.any() or bool(np.median(size[:leaves][filled]) < _ORDERED * size[-1])


def _distance(there: Floats, back: Floats, limits: tuple[float, ...]) -> CloudDistance:
    """Compute the metrics from squared distances (N,) and (M,)."""
    nothing = (float("nan"),) * len(limits)
    if not there.size or not back.size or not np.isfinite(there[0] + back[0]):
        nan = float("nan")
        return CloudDistance(nan, nan, nan, nan, nothing, nothing, nothing, there.size, back.size)
    accuracy, completeness = float(np.sqrt(there).mean()), float(np.sqrt(back).mean())
    precision = tuple(float((there < limit * limit).mean()) for limit in limits)
    recall = tuple(float((back < limit * limit).mean()) for limit in limits)
    return CloudDistance(
        accuracy=accuracy,
        completeness=completeness,
        chamfer_l1=(accuracy + completeness) / 2,
        chamfer_l2=float(there.mean() + back.mean()),
        precision=precision,
        recall=recall,
        f_score=tuple(2 * p * r / (p + r) if p + r > 0 else 0.0 for p, r in zip(precision, recall, strict=True)),
        predicted_points=int(there.size),
        true_points=int(back.size),
    )


def _require_sequence(xyz: Any, name: str) -> Points:
    points = np.asarray(xyz)
    if points.ndim != 4 or points.shape[-1] != 3 or 0 in points.shape or not np.issubdtype(points.dtype, np.floating):
        raise EvaluationError(
            f"{name} is {points.dtype} of shape {points.shape}", expected="points, float32 of shape (T, H, W, 3)"
        )
    _require_whole(points, name)
    return np.ascontiguousarray(points, dtype=np.float32)


def _require_whole(points: NDArray[Any], name: str) -> None:
    """Refuse infinite values and points that are partly NaN."""
    absent = np.isnan(points)
    half = absent.any(-1) & ~absent.all(-1)
    wrong = half | np.isinf(points).any(-1)
    if wrong.any():
        where = np.argwhere(wrong)[0]
        raise EvaluationError(
            f"{name} has {points[tuple(where)].tolist()} at {where.tolist()}",
            expected="finite metres, or NaN in all three coordinates for no point",
        )
