"""Regions of an image that stand on the table: cut at steps of depth and at changes of colour.

depth, table, robot ─ Observation: what stands, what is unknown, how noisy
Observation ─ find_segments ─> one label for each object's visible pixels
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.generators.draft._kernels import LARGEST_M, label_regions

__all__ = ["LOWEST_M", "Observation", "find_edges", "find_segments", "median_lab", "observe", "two_colours"]

Mask = NDArray[np.bool_]

LOWEST_M = 0.004
"""Points higher above the table than this belong to objects; more where the depth is noisy."""
JUMP_M = 0.006
"""Steps of depth above this separate objects; more where the depth is noisy."""
NOISE_SIGMAS = 4.0
QUIET_M = 2e-4
"""Depth with less noise than this is used as it is."""
EDGE_JUMPS = 3.0
TINT = 0.16
"""Change of colour from pixel to pixel that separates objects, in logarithms of channel ratios."""
HUE_RAD, CHROMA, GREY = 0.45, 14.0, 7.0
"""Touching regions are two objects if both are colourful (CIELAB chroma) and their hues differ by this angle."""
LEAST_SHARE, LEAST_PIXELS = 1.5e-4, 12
"""Least size of an object's visible part."""
REACH_M = 1.2
"""Objects farther from the robot's base than this are surroundings."""
CORNER_TRIES, CORNER_REST = 40, 0.05
"""Planes that are tried through three points of a piece, and the share of its points that none must explain."""
WALL_M, WALL_SHARE = 0.005, 0.1
"""A flat piece is part of a wall if its plane, of this half thickness, contains this share of the surroundings."""
_DARK = 8.0
EDGE_PIXELS = 30
"""An edge of the table is known where at least so many pixels, beside it and along it, show what is below."""
EDGE_BELOW_M = 0.03
"""Points lower than this below the table are beyond its edge."""
EDGE_ERROR = 0.03
"""Largest share of pixels on the wrong side of an edge, which is parallel to an axis of the base."""
_EDGE_STEP = 2
_EDGE_AROUND_M = 0.3


@dataclass(frozen=True, eq=False)
class Observation:
    """What the camera measured, in the base frame.

    Attributes:
        rays: (H, W, 3) float64 with unit depth, base frame.
        eye: (3,) float64, metres, base frame.
        depth: (H, W) float32, metres; NaN = unknown.
        height: (H, W) float32, metres above the table, smoothed where the depth is noisy; NaN = unknown.
        smooth: (H, W) float32, the depth that `height` is of.
        unknown: (H, W) bool: robot, its margin, no depth, or a pixel that mixes two surfaces.
        stands: (H, W) bool: known and above the table.
        noise_m: standard deviation of the depth, from the table's pixels; 0 = none seen.
        table_offset_m: median height of the table's pixels: 0 if the given height is right.
    """

    rays: NDArray[np.float64]
    eye: NDArray[np.float64]
    depth: NDArray[np.float32]
    height: NDArray[np.float32]
    smooth: NDArray[np.float32]
    unknown: Mask
    stands: Mask
    noise_m: float
    table_offset_m: float

    @cached_property
    def edges(self) -> Mask:
        """(H, W) bool, steps of a noisy depth: pixels there may lie between two surfaces and would join them."""
        if self.noise_m <= QUIET_M:
            return np.zeros(self.stands.shape, bool)
        kernel = np.ones((3, 3), np.uint8)
        far = np.where(np.isfinite(self.smooth), self.smooth, 0.0).astype(np.float32)
        return np.asarray(cv2.dilate(far, kernel) - cv2.erode(far, kernel) > EDGE_JUMPS * self.jump_m)

    @property
    def jump_m(self) -> float:
        """Least step of depth between two objects, metres."""
        return max(JUMP_M, NOISE_SIGMAS * self.noise_m)


def observe(depth: NDArray[np.float32], robot: Mask, camera: PinholeCamera, table_height_m: float) -> Observation:
    """Compute what stands on the table from depth (H, W), metres, NaN = unknown, and the robot's pixels."""
    R = camera.base_T_camera[:3, :3]
    rays = np.asarray(camera.rays() @ R.T)
    eye = camera.base_T_camera[:3, 3].copy()
    depth = np.asarray(depth, np.float32)
    known = np.isfinite(depth) & (depth > 0) & ~robot
    filled = _fill(depth, known)
    noise, offset = _measure(filled, known, rays, eye, table_height_m)
    smooth = filled
    if noise > QUIET_M or not known[~robot].all():
        smooth = cv2.medianBlur(filled, 5 if noise > 1.5e-3 else 3)
    mixed = _mixed(depth, known, smooth, noise) if noise > QUIET_M else np.zeros_like(known)
    height = (eye[2] - table_height_m + rays[..., 2] * smooth).astype(np.float32)
    lowest = max(LOWEST_M, NOISE_SIGMAS / 2 * noise)
    unknown = ~known | mixed
    with np.errstate(invalid="ignore"):
        stands = (height > lowest) & np.isfinite(smooth) & ~robot & (known | _near(known))
    return Observation(rays, eye, depth, height, smooth, unknown, stands, noise, offset)


def find_segments(image: NDArray[np.uint8], seen: Observation) -> tuple[NDArray[np.int32], Mask]:
    """Label the visible pixels of each object: (H, W) int32, 0 = none; and (H, W) the pixels that stand in reach.

    Walls and other large or distant things are surroundings: neither labelled nor in reach.
    """
    labels = np.zeros(seen.stands.shape, np.int32)
    hue = np.zeros((*labels.shape, 2), np.float32)
    surface = seen.stands & ~seen.edges
    count = label_regions(surface, seen.smooth, hue, seen.jump_m, 1.0, labels)
    labels = _grow(labels, seen.stands, seen.smooth, seen.jump_m)
    surroundings = _surroundings(labels, count, seen)
    _add_parts_of_walls(labels, surroundings, seen)
    stands = seen.stands & ~surroundings[labels]
    if not stands.any():
        return np.zeros_like(labels), stands
    hue = _hue(image)
    part = _window(stands, 2)
    inside, smooth, local = stands[part], np.ascontiguousarray(seen.smooth[part]), np.ascontiguousarray(hue[part])
    pieces = np.zeros(inside.shape, np.int32)
    label_regions(np.ascontiguousarray(inside & surface[part]), smooth, local, seen.jump_m, TINT, pieces)
    least = max(LEAST_PIXELS, LEAST_SHARE * labels.size)
    pieces = _keep_whole(_drop_small(pieces, least), np.where(inside, labels[part], 0), least)
    pieces = _grow(pieces, inside, smooth, seen.jump_m)
    lab = cv2.cvtColor(np.ascontiguousarray(image[part]), cv2.COLOR_RGB2LAB).astype(np.float32)
    pieces = _join(pieces, smooth, lab, seen.jump_m)
    pieces = _drop_small(pieces, least)
    out = np.zeros_like(labels)
    out[part] = pieces
    return out, stands


def find_edges(seen: Observation) -> tuple[float, float, float, float] | None:
    """Find where the table ends: (x0, x1, y0, y1), metres, base frame, infinite where no edge was seen; None = nowhere.

    Only edges along the axes of the base are found. An edge is seen where the depth shows points far below the table
    right behind points on it.
    """
    part = (slice(None, None, _EDGE_STEP), slice(None, None, _EDGE_STEP))
    height, rays, depth = seen.height[part], seen.rays[part], seen.smooth[part].astype(np.float64)
    with np.errstate(invalid="ignore"):
        down = rays[..., 2] < 0
        on = down & (np.abs(height) < LOWEST_M + 2 * seen.noise_m) & ~seen.unknown[part]
        below = down & (height < -EDGE_BELOW_M) & ~seen.unknown[part]
    if on.sum() < 10 * EDGE_PIXELS or below.sum() < EDGE_PIXELS:
        return None
    # A line of sight that ends below the table has crossed its plane where there is no table.
    z = np.where(below, depth - height / np.where(down, rays[..., 2], -1.0), depth)
    p = np.stack([seen.eye[k] + rays[..., k] * z for k in (0, 1)], -1)
    there, gone = p[on], p[below]
    edges = []
    for axis in (0, 1):
        across = 1 - axis
        low, high = np.quantile(there[:, across], [0.02, 0.98])
        beside = gone[(gone[:, across] > low) & (gone[:, across] < high), axis]
        for side in (-1.0, 1.0):
            edges.append(side * _edge(side * there[:, axis], side * beside))
    x0, x1, y0, y1 = edges
    return (x0, x1, y0, y1) if np.isfinite(edges).any() else None


def _edge(there: NDArray[np.float64], gone: NDArray[np.float64]) -> float:
    """Return the coordinate up to which there is a table, infinity = not seen, from points on it and beyond it."""
    gone = gone[gone > np.median(there)]
    if len(gone) < EDGE_PIXELS:
        return float("inf")
    values = np.concatenate([there, gone])
    order = np.argsort(values)
    lost = np.concatenate([np.zeros(len(there)), np.ones(len(gone))])[order]
    # Wrong are points beyond before the edge and points on the table behind it.
    wrong = np.cumsum(lost) + (len(there) - np.cumsum(1 - lost))
    best = int(np.argmin(wrong))
    edge = float(values[order[best]])
    near = np.abs(values[order] - edge) < _EDGE_AROUND_M
    if lost[near].sum() < EDGE_PIXELS or wrong[best] > EDGE_ERROR * near.sum():
        return float("inf")
    behind = values[order[best + 1]] if best + 1 < len(values) else edge
    return (edge + float(behind)) / 2


def _fill(depth: NDArray[np.float32], known: Mask) -> NDArray[np.float32]:
    """Fill single unknown pixels with the mean of their known neighbours; others stay NaN."""
    if known.all():
        return depth
    zero = np.where(known, depth, 0).astype(np.float32)
    total = cv2.boxFilter(zero, -1, (3, 3), normalize=False)
    count = cv2.boxFilter(known.astype(np.float32), -1, (3, 3), normalize=False)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(count > 0, total / count, np.nan).astype(np.float32)
    return np.where(known, depth, mean).astype(np.float32)


def _near(known: Mask) -> Mask:
    return np.asarray(cv2.dilate(known.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0)


def _measure(
    z: NDArray[np.float32], known: Mask, rays: NDArray[np.float64], eye: NDArray[np.float64], table: float
) -> tuple[float, float]:
    """Return the noise of the depth and the table's height above the given one, from pixels near the table's plane."""
    height = eye[2] - table + rays[..., 2] * z
    with np.errstate(invalid="ignore"):
        flat = known & (np.abs(height) < 0.01)
    if flat.sum() < 100:
        return 0.0, 0.0
    row = flat[:, 2:] & flat[:, 1:-1] & flat[:, :-2]
    # Second differences vanish on a plane, to a good approximation, whatever its slope.
    bend = (z[:, 2:] - 2 * z[:, 1:-1] + z[:, :-2])[row]
    noise = float(np.median(np.abs(bend)) / 0.6745 / np.sqrt(6.0)) if len(bend) > 50 else 0.0
    return noise, float(np.median(height[flat]))


def _mixed(depth: NDArray[np.float32], known: Mask, smooth: NDArray[np.float32], noise: float) -> Mask:
    """Find pixels between two surfaces: far from the median of their surroundings."""
    with np.errstate(invalid="ignore"):
        return np.asarray(known & (np.abs(depth - smooth) > max(JUMP_M, NOISE_SIGMAS * noise)))


def _hue(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Compute (H, W, 2) logarithms of channel ratios, which shading does not change."""
    soft = cv2.GaussianBlur(image, (0, 0), 0.7 * max(1.0, image.shape[1] / 720)).astype(np.float32) + _DARK
    logs = np.log(soft)
    return np.ascontiguousarray(np.stack([logs[..., 0] - logs[..., 1], logs[..., 2] - logs[..., 1]], -1))


def _surroundings(labels: NDArray[np.int32], count: int, seen: Observation) -> Mask:
    """Return (count + 1,) whether a component is too large or too far away for an object."""
    out = np.zeros(count + 1, bool)
    rows, columns = np.nonzero(labels)
    owner = labels[rows, columns]
    x, y = (seen.eye[k] + seen.rays[rows, columns, k] * seen.smooth[rows, columns] for k in (0, 1))
    far = np.hypot(x, y)
    low, high = np.full((count + 1, 3), np.inf), np.full((count + 1, 3), -np.inf)
    for k, values in enumerate((x, y, far)):
        np.minimum.at(low[:, k], owner, values)
        np.maximum.at(high[:, k], owner, values)
    with np.errstate(invalid="ignore"):
        out[1:] = ((high - low)[1:, :2].max(1) > LARGEST_M) | (low[1:, 2] > REACH_M)
    return out


def _add_parts_of_walls(labels: NDArray[np.int32], surroundings: Mask, seen: Observation) -> None:
    """Mark components that lie in the plane of a wall too: the robot cuts pieces off it."""
    wall = surroundings[labels]
    if not wall.any():
        return
    step = max(1, int(wall.sum()) // 4000)
    around = (seen.eye + seen.rays[wall][::step] * seen.smooth[wall][::step, None]).astype(np.float64)
    sizes = np.bincount(labels.ravel(), minlength=len(surroundings))
    for k in np.flatnonzero(~surroundings[1:] & (sizes[1:] >= LEAST_PIXELS)) + 1:
        mine = labels == k
        points = seen.eye + seen.rays[mine] * seen.smooth[mine][:, None]
        centre = points.mean(0)
        _, _, axes = np.linalg.svd(points - centre, full_matrices=False)
        slack = WALL_M + 2 * seen.noise_m
        flat = np.percentile(np.abs((points - centre) @ axes[2]), 95) < slack
        # Any plane crosses a wall somewhere; the wall's own contains a good part of it.
        surroundings[k] = bool(flat and (np.abs((around - centre) @ axes[2]) < slack).mean() > WALL_SHARE)
        if not surroundings[k]:
            surroundings[k] = _in_corner(points, around, slack)


def _in_corner(points: NDArray[np.float64], around: NDArray[np.float64], slack: float) -> bool:
    """Return whether points (N, 3) lie in two planes that contain a good part of the surroundings (M, 3) each."""
    rng, left = np.random.default_rng(len(points)), points
    for _ in range(2):
        best = np.zeros(len(left), bool)
        for _ in range(CORNER_TRIES):
            a, b, c = left[rng.choice(len(left), 3, replace=False)]
            normal = np.cross(b - a, c - a)
            length = float(np.linalg.norm(normal))
            if length < 1e-9:
                continue
            near = np.abs((left - a) @ normal) < slack * length
            if near.sum() > best.sum() and (np.abs((around - a) @ normal) < slack * length).mean() > WALL_SHARE:
                best = near
        left = left[~best]
        if len(left) < max(3, CORNER_REST * len(points)):
            return True
    return False


def _window(mask: Mask, margin: int) -> tuple[slice, slice]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return (
        slice(max(int(rows[0]) - margin, 0), int(rows[-1]) + margin + 1),
        slice(max(int(columns[0]) - margin, 0), int(columns[-1]) + margin + 1),
    )


def _drop_small(labels: NDArray[np.int32], least: float) -> NDArray[np.int32]:
    """Keep labels with at least that many pixels, numbered from 1."""
    sizes = np.bincount(labels.ravel())
    keep = np.flatnonzero(sizes >= least)
    keep = keep[keep > 0]
    table = np.zeros(len(sizes), np.int32)
    table[keep] = np.arange(1, len(keep) + 1)
    return np.asarray(table[labels])


def _keep_whole(pieces: NDArray[np.int32], components: NDArray[np.int32], least: float) -> NDArray[np.int32]:
    """Add components of the depth that colours cut into small pieces only, such as a shaded ball."""
    sizes = np.bincount(components.ravel())
    kept = np.bincount(components[pieces > 0].ravel(), minlength=len(sizes))
    out, number = pieces.copy(), int(pieces.max())
    for k in np.flatnonzero((sizes >= least) & (kept == 0)):
        if k > 0:
            number += 1
            out[components == k] = number
    return out


_NEIGHBOURS = ((0, 1), (0, -1), (1, 0), (-1, 0))


def _grow(labels: NDArray[np.int32], inside: Mask, z: NDArray[np.float32], jump: float) -> NDArray[np.int32]:
    """Give pixels of small pieces (mixed colours at edges, highlights) to the neighbour that is nearest in depth."""
    labels = labels.copy()
    for _ in range(6):
        todo = inside & (labels == 0)
        if not todo.any():
            break
        best, who = np.full(labels.shape, 2 * jump, np.float32), np.zeros_like(labels)
        for dv, du in _NEIGHBOURS:
            other, step = np.roll(labels, (dv, du), (0, 1)), np.abs(np.roll(z, (dv, du), (0, 1)) - z)
            nearer = todo & (other > 0) & (step < best)
            best[nearer], who[nearer] = step[nearer], other[nearer]
        if not who.any():
            break
        labels[who > 0] = who[who > 0]
    return labels


def _join(
    labels: NDArray[np.int32], z: NDArray[np.float32], lab: NDArray[np.float32], jump: float
) -> NDArray[np.int32]:
    """Join touching regions unless they are of two colours: a lit top, a shaded side and a highlight are one object."""
    count = int(labels.max())
    if count < 2:
        return labels
    colour = np.array([np.median(lab[labels == k], 0) for k in range(1, count + 1)])
    colour[:, 1:] -= 128.0
    root = np.arange(count + 1)
    pairs: dict[tuple[int, int], int] = {}
    for a, b in (
        ((slice(None), slice(0, -1)), (slice(None), slice(1, None))),
        ((slice(0, -1), slice(None)), (slice(1, None), slice(None))),
    ):
        touch = (labels[a] != labels[b]) & (labels[a] > 0) & (labels[b] > 0) & (np.abs(z[a] - z[b]) < jump)
        for i, j in zip(labels[a][touch].tolist(), labels[b][touch].tolist(), strict=True):
            key = (min(i, j), max(i, j))
            pairs[key] = pairs.get(key, 0) + 1
    for (i, j), touching in sorted(pairs.items()):
        if touching >= 2 and not two_colours(colour[i - 1], colour[j - 1]):
            low, high = sorted((int(root[i]), int(root[j])))
            root[root == high] = low
    return np.asarray(root[labels], dtype=np.int32)


def median_lab(image: NDArray[np.uint8], mask: Mask) -> NDArray[np.float32]:
    """Return the median colour (3,) float32 of the masked pixels in CIELAB, a and b around 0."""
    lab = cv2.cvtColor(np.ascontiguousarray(image[mask][None]), cv2.COLOR_RGB2LAB)[0].astype(np.float32)
    return np.asarray(np.median(lab, 0) - np.array([0.0, 128.0, 128.0], np.float32))


def two_colours(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    """Return whether two colours (3,) in CIELAB, which light and highlights may have changed, are of two materials."""
    chroma_a, chroma_b = float(np.hypot(a[1], a[2])), float(np.hypot(b[1], b[2]))
    if min(chroma_a, chroma_b) >= CHROMA:
        turn = float(np.arctan2(a[2], a[1]) - np.arctan2(b[2], b[1]))
        return abs((turn + np.pi) % (2 * np.pi) - np.pi) > HUE_RAD
    if max(chroma_a, chroma_b) < 2 * CHROMA:
        return False
    grey, vivid = (a, b) if chroma_a < chroma_b else (b, a)
    # A highlight is pale and brighter than the rest; pale and darker, or quite grey, is another material.
    return bool(grey[0] < vivid[0] or min(chroma_a, chroma_b) < GREY)
