"""Shadows on the table: find the lamp by the known robot's shadow in the first image, and cast shadows from it.

    robot's points, table's brightness ─ estimate_lighting ─> Lighting ─ ShadowCaster ─> shadow map of every frame

The lamp is searched over a sphere of positions. It is only believed if the shadow that it predicts is darker than its
surroundings in most parts of the table; otherwise there is none, and shadows are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.generators.draft._draw_kernels import project_shadow
from kinema4d_ros.generators.inpaint import grow_mask
from kinema4d_ros.robot.model import Robot

__all__ = [
    "GAMMA",
    "Lighting",
    "RobotCaster",
    "TableGrid",
    "cast_shadow",
    "estimate_lighting",
    "observed_shadow",
    "robot_points",
]

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

GAMMA = 2.2
"""Of the camera: linear light is (value / 255) ** GAMMA."""
CELL_M = 0.004
REACH_M = 0.6
"""Shadows are cast this far from the robot of the first image."""
_COARSE_M = 0.008
_THICKEST_M = 0.07
_HIGH_M = 0.10
"""Points higher above the table than this cast the softer shadow."""
_SOFT_M = (0.003, 0.009)
"""Standard deviations of the borders of low and of high shadows."""
_PAD = 12
_LOCAL_M, _WIDE_M = 0.02, 0.25
"""Windows over which the first image's darkness and the lit table around it are averaged."""
_LEAST_CELLS = 60
_LEAST_STRENGTH = 0.06
_LEAST_T = 5.0
"""Minimum of mean / standard error of the darkening over the parts of the table."""
_BLOCK = 12
_FLAT = 31


@dataclass(frozen=True, eq=False)
class Lighting:
    """A lamp and the shadows that it makes.

    Attributes:
        position: (3,) float64, base frame, metres.
        strength: (3,) float64, share of the table's linear light that the lamp gives, by channel.
        t_value: mean / standard error of the darkening; how sure the lamp is.
    """

    position: Doubles
    strength: Doubles
    t_value: float

    def direction(self, p_base: Doubles) -> Doubles:
        """Return the unit vector (3,) from a point to the lamp, base frame."""
        towards = self.position - p_base
        return np.asarray(towards / np.linalg.norm(towards))

    def numbers(self, p_base: Doubles) -> Doubles:
        """Return (9,) float64: direction to the lamp, ambient and lamp light by channel; the lit table has 1."""
        towards = self.direction(p_base)
        return np.concatenate([towards, 1.0 - self.strength, self.strength / max(float(towards[2]), 0.2)])


@dataclass(frozen=True, eq=False)
class TableGrid:
    """Cells of the table, rows along y and columns along x of the base frame.

    Attributes:
        low: (2,) float64, x and y of the first cell's centre, metres.
        cell_m: side of a cell.
        shape: (rows, columns).
        height_m: of the table above the base.
    """

    low: Doubles
    cell_m: float
    shape: tuple[int, int]
    height_m: float

    @classmethod
    def around(cls, low: Doubles, high: Doubles, height_m: float, cell_m: float) -> TableGrid:
        """Cover the rectangle from low to high (x, y)."""
        columns, rows = (max(2, int(np.ceil(d / cell_m)) + 1) for d in (high - low)[:2])
        return cls(np.asarray(low[:2], np.float64), cell_m, (rows, columns), height_m)

    def coordinates(self, xy: Doubles) -> Floats:
        """Return row and column (..., 2) float32 of points (..., 2), base frame; integers at centres."""
        return np.asarray(((xy - self.low) / self.cell_m)[..., ::-1], np.float32)

    def centers(self) -> Doubles:
        """Return the cells' centres (rows, columns, 3), base frame."""
        rows, columns = self.shape
        x = self.low[0] + self.cell_m * np.arange(columns)
        y = self.low[1] + self.cell_m * np.arange(rows)
        return np.stack([*np.meshgrid(x, y), np.full(self.shape, self.height_m)], -1)


def robot_points(xyz: Floats, ids: NDArray[np.uint8], camera: PinholeCamera, stride: int) -> Doubles:
    """Return points (M, 3), base frame, of one frame's robot and of its hidden inside.

    The far side is not in the pointmap. A link is about as thick as it is wide, so that points are added behind each
    visible one, by its distance from the outline.
    """
    mask = ids != 0
    inside = cv2.distanceTransform(np.pad(mask, 1).astype(np.uint8), cv2.DIST_L2, 3)[1:-1, 1:-1]
    part = (slice(None, None, stride), slice(None, None, stride))
    kept = mask[part]
    p = xyz[part][kept].astype(np.float64)
    thick = np.minimum(1.5 * inside[part][kept] * p[:, 2] / camera.K[0, 0], _THICKEST_M)
    unit = p / np.linalg.norm(p, axis=1, keepdims=True)
    deep = thick > 0.004
    layers = [p, p[deep] + 0.5 * (thick[:, None] * unit)[deep], p[deep] + (thick[:, None] * unit)[deep]]
    pose = camera.base_T_camera
    return np.asarray(np.concatenate(layers) @ pose[:3, :3].T + pose[:3, 3])


class RobotCaster:
    """Points of a robot's surface, also of the sides that the camera does not see.

    Args:
        robot: with shapes.
        spacing_m: distance of neighbouring points.
    """

    def __init__(self, robot: Robot, spacing_m: float = CELL_M) -> None:
        """Sample the visual shapes, evenly by area, and keep one point in a cube of `spacing_m`."""
        rng = np.random.default_rng(0)
        self._points: list[Doubles] = []
        for link in robot.links:
            found = [np.zeros((0, 3))]
            for shape in link.visuals:
                corners = apply(shape.link_T_geometry, shape.mesh.vertices)[shape.mesh.faces]
                a, ab, ac = corners[:, 0], corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
                areas = np.linalg.norm(np.cross(ab, ac), axis=1) / 2
                if areas.sum() <= 0:
                    continue
                count = min(200_000, 100 + int(4 * areas.sum() / spacing_m**2))
                chosen = rng.choice(len(areas), count, p=areas / areas.sum())
                s, t = rng.random((2, count))
                s, t = np.where(s + t > 1, 1 - s, s), np.where(s + t > 1, 1 - t, t)
                found.append(a[chosen] + s[:, None] * ab[chosen] + t[:, None] * ac[chosen])
            p = np.concatenate(found)
            _, first = np.unique(np.floor(p / spacing_m).astype(np.int64), axis=0, return_index=True)
            self._points.append(p[first])

    @classmethod
    def of(cls, robot: Robot) -> RobotCaster:
        """Return the points of a robot; computed once."""
        if robot not in _CASTERS:
            _CASTERS[robot] = cls(robot)
        return _CASTERS[robot]

    def points(self, base_T_link: Doubles) -> Doubles:
        """Return points (M, 3), base frame, for link poses (L, 4, 4)."""
        placed = [p @ T[:3, :3].T + T[:3, 3] for p, T in zip(self._points, base_T_link, strict=True)]
        return np.asarray(np.concatenate(placed))


_CASTERS: WeakKeyDictionary[Robot, RobotCaster] = WeakKeyDictionary()


def cast_shadow(points: Doubles, lamp: Doubles, grid: TableGrid) -> Floats:
    """Cast points (M, 3), base frame, from a lamp onto the table: (rows, columns) float32, 0 = lit, 1 = shadow."""
    rows, columns = grid.shape
    cells = np.empty((len(points), 2), np.int64)
    high = np.empty(len(points), np.bool_)
    count = project_shadow(
        np.ascontiguousarray(points), np.asarray(lamp, np.float64), grid.low, grid.cell_m, rows, columns, grid.height_m,
        _HIGH_M, cells, high,
    )  # fmt: skip
    if count == 0:
        return np.zeros(grid.shape, np.float32)
    row, column, high = cells[:count, 0], cells[:count, 1], high[:count]
    # Only the part of the table with shadows, and a border for the blur.
    top, left = max(int(row.min()) - _PAD, 0), max(int(column.min()) - _PAD, 0)
    part = slice(top, int(row.max()) + _PAD), slice(left, int(column.max()) + _PAD)
    shadow_map = np.zeros(grid.shape, np.float32)
    view = shadow_map[part]
    row, column = row - top, column - left
    lit = np.ones(view.shape, np.float32)
    for layer, sigma_m, side in zip((~high, high), _SOFT_M, (3, 5), strict=True):
        dark = np.zeros(view.shape, np.uint8)
        dark[row[layer], column[layer]] = 1
        filled = cv2.morphologyEx(dark, cv2.MORPH_CLOSE, np.ones((side, side), np.uint8)).astype(np.float32)
        lit *= 1 - cv2.GaussianBlur(filled, (0, 0), max(sigma_m / grid.cell_m, 0.5))
    view[:] = 1 - lit
    return shadow_map


def estimate_lighting(
    image: NDArray[np.uint8], table: Bools, camera: PinholeCamera, casters: Doubles, height_m: float
) -> Lighting | None:
    """Find the lamp whose shadow of the casters darkens the table of the first image; None = no significant shadow.

    Args:
        image: (H, W, 3) uint8.
        table: (H, W) bool, pixels that show the table.
        camera: of the image.
        casters: (M, 3) float64, points of robot and objects, base frame, metres.
        height_m: of the table above the base.
    """
    if len(casters) < 50 or not table.any():
        return None
    low, high = casters[:, :2].min(0) - REACH_M / 2, casters[:, :2].max(0) + REACH_M / 2
    grid = TableGrid.around(low, high, height_m, _COARSE_M)
    light, seen = _observed(image, table, camera, grid)
    if seen.sum() < 20 * _LEAST_CELLS:
        return None
    flat = _flattener(seen)
    logs = [np.clip(flat(channel), -0.8, 0.8) for channel in light]
    grey = np.mean(logs, axis=0)
    center = np.array([*casters[:, :2].mean(0), height_m])
    casters = np.ascontiguousarray(casters)

    def shadow(turn: float, rise: float, away: float) -> tuple[Floats, Doubles]:
        flat_m = away * np.cos(rise)
        lamp = center + np.array([flat_m * np.cos(turn), flat_m * np.sin(turn), away * np.sin(rise)])
        return cast_shadow(casters, lamp, grid), lamp

    def score(turn: float, rise: float, away: float) -> float:
        if not np.radians(15) < rise < np.radians(89) or not 0.6 < away < 20:
            return 0.0
        dark = shadow(turn, rise, away)[0]
        if float(dark[seen].sum()) < _LEAST_CELLS:
            return 0.0
        relief = flat(dark)
        product = float((relief * grey)[seen].sum())
        return product * product / float((relief[seen] ** 2).sum() + 1e-9) if product < 0 else 0.0

    best, found = 0.0, np.array([0.0, 1.0, 2.0])
    for away in (1.7, 5.0):
        for rise in np.radians([35.0, 50.0, 62.0, 74.0]):
            for turn in np.radians(np.arange(0.0, 360.0, 20.0 if rise < 1.2 else 40.0)):
                here = score(turn, rise, away)
                if here > best:
                    best, found = here, np.array([turn, rise, away])
    if best == 0.0:
        return None
    step = np.array([np.radians(10), np.radians(6), 0.0])
    for _ in range(5):
        for axis, size in ((0, step[0]), (1, step[1]), (2, 0.25 * found[2])):
            for sign in (-1.0, 1.0):
                tried = found.copy()
                tried[axis] += sign * size * (1.0 if axis < 2 else step[0] / np.radians(10))
                here = score(*tried)
                if here > best:
                    best, found = here, tried
        step *= 0.55
    dark, lamp = shadow(*found)
    relief = flat(dark)
    t_value = _significance(relief, grey, seen)
    energy = float((relief[seen] ** 2).sum())
    slope = np.array([float((relief * log)[seen].sum()) / energy for log in logs])
    strength = np.clip(1 - np.exp(slope), 0.0, 0.85)
    if t_value < _LEAST_T or float(strength.mean()) < _LEAST_STRENGTH:
        return None
    return Lighting(lamp, strength, t_value)


def observed_shadow(
    image: NDArray[np.uint8], table: Bools, camera: PinholeCamera, grid: TableGrid, cast: Floats, strength: float
) -> Floats:
    """Correct the cast shadow (rows, columns) of the first image by the darkness that the image shows there.

    The darkness is relative to the lit table around. Only what exceeds the table's own texture counts, so that a
    chequered table changes nothing and a plain one shows its shadow.
    """
    logs, seen = _observed(image, table, camera, grid)
    grey = np.mean(logs, axis=0).astype(np.float32)
    lit = (seen & (cv2.blur(cast, (7, 7)) < 0.03)).astype(np.float32)
    local, wide = (2 * round(size_m / grid.cell_m / 2) + 1 for size_m in (_LOCAL_M, _WIDE_M))

    def mean(values: Floats, weight: Floats, size: int) -> Floats:
        share = np.maximum(cv2.blur(weight, (size, size)), 1e-3)
        return np.asarray(cv2.blur(values * weight, (size, size)) / share, np.float32)

    dark = mean(grey, seen.astype(np.float32), local) - mean(grey, lit, wide)
    texture = np.sqrt(np.maximum(mean(dark * dark, lit, wide), 0.0))
    miss = np.clip((1 - np.exp(dark)) / max(strength, 0.05), 0.0, 1.0) - cv2.blur(cast, (local, local))
    sure = np.clip(2.5 * texture / max(strength, 0.05), 0.04, 1.0)
    change = np.sign(miss) * np.maximum(np.abs(miss) - sure, 0.0)
    known = seen & (cv2.blur(lit, (wide, wide)) > 0.02) & (cv2.blur(cast, (wide // 3, wide // 3)) > 0.01)
    return np.asarray(np.where(known, np.clip(cast + change, 0.0, 1.0), cast), np.float32)


def _observed(
    image: NDArray[np.uint8], table: Bools, camera: PinholeCamera, grid: TableGrid
) -> tuple[list[Floats], Bools]:
    """Sample the table's log linear light by channel, and where it is seen, at the cells (rows, columns)."""
    T, K = camera.camera_T_base, camera.K
    p = grid.centers() @ T[:3, :3].T + T[:3, 3]
    z = np.where(p[..., 2] > 0.05, p[..., 2], np.nan)
    with np.errstate(invalid="ignore"):
        u = ((K[0, 0] * p[..., 0] + K[0, 1] * p[..., 1]) / z + K[0, 2] - 0.5).astype(np.float32)
        v = (K[1, 1] * p[..., 1] / z + K[1, 2] - 0.5).astype(np.float32)
    u, v = np.nan_to_num(u, nan=-9.0), np.nan_to_num(v, nan=-9.0)
    # The border of a mask mixes table and other surfaces.
    sure = ~grow_mask(~table, 2.0)
    seen = cv2.remap(sure.astype(np.uint8), u, v, cv2.INTER_NEAREST, borderValue=0) != 0
    soft = cv2.blur(image, (3, 3))
    colours = cv2.remap(soft, u, v, cv2.INTER_LINEAR).astype(np.float32)
    logs = GAMMA * np.log((colours + 4.0) / 255.0)
    return [np.ascontiguousarray(logs[..., c]) for c in range(3)], seen


def _flattener(seen: Bools) -> Callable[[Floats], Floats]:
    """Return a function that subtracts the local mean over the seen cells, 0 where none is seen."""
    weight = seen.astype(np.float32)
    share = np.maximum(cv2.blur(weight, (_FLAT, _FLAT)), 1e-3)

    def flat(values: Floats) -> Floats:
        return np.asarray((values - cv2.blur(values * weight, (_FLAT, _FLAT)) / share) * weight, np.float32)

    return flat


def _significance(relief: Floats, grey: Floats, seen: Bools) -> float:
    """Return mean / standard error of the darkening over blocks of the table, weighted by how much shadow they show."""
    rows, columns = (n // _BLOCK for n in relief.shape)
    part = (slice(0, rows * _BLOCK), slice(0, columns * _BLOCK))

    def blocks(values: Floats) -> Doubles:
        kept = np.where(seen, values, 0)[part].astype(np.float64)
        return np.asarray(kept.reshape(rows, _BLOCK, columns, _BLOCK).sum(axis=(1, 3)).ravel())

    energy, product = blocks(relief * relief), blocks(relief * grey)
    used = energy > 0.05 * _BLOCK
    if used.sum() < 6:
        return 0.0
    slope = product[used].sum() / energy[used].sum()
    spread = product[used] - slope * energy[used]
    return float(-product[used].sum() / np.sqrt((spread**2).sum() + 1e-12))
