"""Fit of one object's shape to the pixels around it: analysis by synthesis with ray-cast shapes.

    Pixels (own, other, unknown) + where it stands ─ search per kind ─> Fit (energy) ─ walk ─> draws
    draws of every kind that the evidence allows ─> weighted Estimates

Own pixels must be hit at their depth, pixels that show something farther refute what would hide them, and nearer or
unknown pixels say nothing. Hidden extents are free up to a prior of compactness, and the draws show how free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.transforms import make
from kinema4d_ros.generators.draft import _kernels as kernels
from kinema4d_ros.generators.draft._kernels import BIN, BOX, CUP, CYLINDER, LYING, OWN, SPHERE
from kinema4d_ros.generators.draft.fingers import Grasp
from kinema4d_ros.generators.draft.scene import Estimate
from kinema4d_ros.physics.objects import Shape
from kinema4d_ros.physics.parts import BIN_WALL_M

__all__ = [
    "KINDS",
    "Fit",
    "Pixels",
    "choose",
    "draw_fits",
    "fit_gripped",
    "fit_kind",
    "fit_shapes",
    "misfit_of",
    "shape_estimate",
    "weigh_grasped",
]

Array = NDArray[np.float64]

KINDS = (BOX, CYLINDER, SPHERE, LYING, BIN, CUP)
CAP = 4.0
"""Largest loss of one pixel's depth: beyond about 3 sigma an error counts no more."""
MISFIT_SHARE = 0.2
"""Mean loss of a fit that is not believable, as a share of `CAP`: one own pixel in five is wrong."""
PRIOR_COST = {BOX: 0.0, CYLINDER: 0.0, SPHERE: 1.0, LYING: 2.0, BIN: 2.0, CUP: 2.0}
"""Negative logarithm of the prior of each kind: fewer things lie or are open boxes."""
DOUBT_MISFIT = 0.3
"""Misfit from which on the evidence is tempered."""
UNLIKELY = 0.02
"""Kinds with a smaller share of the evidence give no draws."""

_FREE = {
    BOX: (0, 1, 2, 3, 4, 5),
    BIN: (0, 1, 2, 3, 4, 5),
    CYLINDER: (0, 1, 3, 5),
    CUP: (0, 1, 3, 5),
    SPHERE: (0, 1, 3),
    LYING: (0, 1, 2, 3, 4),
}
_MOVES = {
    BOX: (0, 1, 2, 3, 4, 6),
    BIN: (0, 1, 2, 3, 4, 6),
    CYLINDER: (0, 1, 2, 3, 4),
    CUP: (0, 1, 2, 3, 4),
    SPHERE: (0, 1, 2, 3),
    LYING: (0, 1, 2, 3, 6),
}
_GRIPPED_FREE = {BOX: (1, 4, 5, 6), CYLINDER: (1, 5, 6), SPHERE: (1, 6)}
_GRIPPED_MOVES = {BOX: (2, 3, 4, 5), CYLINDER: (4, 5), SPHERE: (5,)}
"""What is free of a shape between the fingers: they touch it on both sides along x."""
_STEP = np.array([0.005, 0.005, 0.15, 0.006, 0.006, 0.006, 0.006])
_WIDTH = np.array([0.004, 0.004, 0.004, 0.004, 0.003, 0.004, 0.06])
_UNDERSIDE, _Z0 = 5, 6


@dataclass(frozen=True, eq=False)
class Pixels:
    """Pixels around an object, in a frame whose z is the object's up.

    Attributes:
        eye: (3,) float64, metres, the camera.
        rays: (N, 3) float64 with unit depth.
        depth: (N,) float64, metres measured along the camera's axis; any value where unknown.
        sigma: (N,) float64, metres, of the depth.
        kinds: (N,) uint8: UNKNOWN, OWN, OTHER.
        weight: (N,) float64, independent measurements that a pixel stands for.
        base_T_frame: (4, 4) float64, the frame; identity for objects that stand.
    """

    eye: Array
    rays: Array
    depth: Array
    sigma: Array
    kinds: NDArray[np.uint8]
    weight: Array
    base_T_frame: Array

    @cached_property
    def own(self) -> NDArray[np.bool_]:
        """(N,) whether a pixel is the object's."""
        return np.asarray(self.kinds == OWN)

    @cached_property
    def points(self) -> Array:
        """(M, 3) the own pixels' points, metres, frame of the pixels."""
        return np.asarray(self.eye + self.rays[self.own] * self.depth[self.own, None])

    @cached_property
    def view(self) -> Array:
        """(2,) horizontal unit vector from the camera to the object."""
        away = np.median(self.points[:, :2], 0) - self.eye[:2]
        return np.asarray(away / max(float(np.linalg.norm(away)), 1e-9))

    @property
    def arguments(self) -> tuple[Array, Array, Array, Array, NDArray[np.uint8], Array, float]:
        """What the kernels take."""
        return self.eye, self.rays, self.depth, self.sigma, self.kinds, self.weight, CAP

    def turned(self, base_T_frame: Array) -> Pixels:
        """Return the same pixels in another frame."""
        R = base_T_frame[:3, :3].T @ self.base_T_frame[:3, :3]
        offset = base_T_frame[:3, :3].T @ (self.base_T_frame[:3, 3] - base_T_frame[:3, 3])
        return replace(
            self, eye=R @ self.eye + offset, rays=np.ascontiguousarray(self.rays @ R.T), base_T_frame=base_T_frame
        )


@dataclass(frozen=True, eq=False)
class Fit:
    """The best shape of one kind.

    Attributes:
        kind: of `KINDS`.
        p: (7,) float64, numbers of `_kernels`.
        energy: negative logarithm of the posterior, without the cost of its free numbers.
        free_base: the underside's height was free.
        grasp: its extent along x and its place there are those of the fingers; None = any.
    """

    kind: int
    p: Array
    energy: float
    free_base: bool = False
    grasp: Grasp | None = None

    def cost(self, pixels: Pixels) -> float:
        """Return the negative logarithm of the evidence: energy, and half a log of the data per free number."""
        data = max(float(pixels.weight[pixels.own].sum()), 2.0)
        free = len(_GRIPPED_FREE[self.kind]) if self.grasp else len(_FREE[self.kind]) + self.free_base
        return self.energy + PRIOR_COST[self.kind] + 0.5 * free * math.log(data)

    def hits(self, pixels: Pixels) -> Array:
        """Return depths (N,) at which the pixels' rays hit the shape, inf = not."""
        return np.asarray(kernels.cast_shape(self.kind, self.p, BIN_WALL_M, pixels.eye, pixels.rays))

    @property
    def top(self) -> float:
        """Height of its highest point, frame of the pixels, metres."""
        return float(self.p[_Z0] + (self.p[5] if self.kind in (BOX, CYLINDER, BIN, CUP) else self.p[3]))


def fit_shapes(
    pixels: Pixels, base_m: float, *, kinds: Sequence[int] = KINDS, free_base: bool = False, quick: bool = False
) -> list[Fit]:
    """Fit every kind to the pixels, cheapest by evidence first.

    Args:
        pixels: with at least one own pixel.
        base_m: height of the support; the least height of the underside if that is free.
        kinds: to try.
        free_base: the object is held: its underside may be anywhere above `base_m`.
        quick: fewer starts and steps, for objects that do not matter.
    """
    fits = [fit_kind(kind, pixels, base_m, free_base=free_base, quick=quick) for kind in kinds]
    return sorted(fits, key=lambda fit: fit.cost(pixels))


def fit_gripped(pixels: Pixels, base_m: float, grasp: Grasp) -> list[Fit]:
    """Fit shapes between the fingers, cheapest first: as wide as the fingers are open, with faces on the pads.

    Args:
        pixels: in the frame of the grasp.
        base_m: least height of the underside.
        grasp: the fingers.
    """
    width_m = grasp.width_m
    fits = []
    for kind, numbers in _GRIPPED_FREE.items():
        free, found = np.array(numbers, np.int64), []
        for start in _starts(kind, pixels, base_m, True, True):
            start = np.array([0.0, start[1], 0.0, width_m, *start[4:]])
            for step in (_STEP, -0.4 * _STEP):
                result = kernels.search(kind, start, free, step, 140, BIN_WALL_M, *pixels.arguments, base_m)
                found.append(result)
                start = result[0]
        p, value = min(found, key=lambda result: float(result[1]))
        p = p.copy()
        if kind != BOX:
            p[4] = width_m
        if kind == SPHERE:
            p[5] = width_m
        fits.append(Fit(kind, p, float(value), True, grasp))
    return sorted(fits, key=lambda fit: fit.cost(pixels))


def fit_kind(kind: int, pixels: Pixels, base_m: float, *, free_base: bool = False, quick: bool = False) -> Fit:
    """Fit one kind: simplex searches from several starts, and once more from the best of them."""
    free = np.array([*_FREE[kind], *([_Z0] if free_base else [])], np.int64)
    limit = 90 if quick else 140
    found = [
        kernels.search(kind, start, free, _STEP, limit, BIN_WALL_M, *pixels.arguments, base_m)
        for start in _starts(kind, pixels, base_m, free_base, quick)
    ]
    best = min(found, key=lambda result: float(result[1]))
    again = kernels.search(kind, best[0], free, -0.4 * _STEP, 150, BIN_WALL_M, *pixels.arguments, base_m)
    p, value = again if again[1] < best[1] else best
    return Fit(kind, _tidy(kind, p), float(value), free_base)


def draw_fits(pixels: Pixels, fit: Fit, base_m: float, count: int, seed: int, *, thin: int = 2) -> list[Fit]:
    """Draw `count` shapes of a fit's kind from the posterior, by a walk that moves one face at a time."""
    if count < 1:
        return []
    free = [*_MOVES[fit.kind], *([_UNDERSIDE] if fit.free_base else [])]
    moves = np.array(_GRIPPED_MOVES[fit.kind] if fit.grasp else free, np.int64)
    out = np.empty((count, 7))
    rng = np.random.default_rng(seed)
    kernels.walk(
        fit.kind, fit.p, moves, _WIDTH, pixels.view, 4, thin, rng, out, BIN_WALL_M, *pixels.arguments, base_m
    )  # fmt: skip
    return [replace(fit, p=_tidy(fit.kind, p)) for p in out]


def weigh_grasped(pixels: Pixels, fits: Sequence[Fit], base_m: float) -> tuple[list[Fit], Array]:
    """Weigh draws of a grasped shape by how objects are held; return them, the best first, and their shares."""
    prior = np.array([0.0 if fit.grasp is None else fit.grasp.cost(fit.p) for fit in fits])
    energy = [kernels.energy(fit.kind, fit.p, BIN_WALL_M, *pixels.arguments, base_m) for fit in fits]
    best = int(np.argmin(prior + np.array(energy)))
    order = [best, *(k for k in range(len(fits)) if k != best)]
    weight = np.exp(prior.min() - prior)[order]
    return [fits[k] for k in order], weight / weight.sum()


def choose(costs: Sequence[float], misfit: float) -> Array:
    """Return the shares (K,) of hypotheses by their negative log evidence, which sum to 1; unlikely ones have 0.

    Where even the best one explains the pixels badly all of them are wrong, and the evidence counts for less.
    """
    share = np.exp((min(costs) - np.asarray(costs)) / max(1.0, misfit / DOUBT_MISFIT))
    share /= share.sum()
    share[share < UNLIKELY] = 0.0
    return np.asarray(share / share.sum())


def misfit_of(hits: Array, pixels: Pixels) -> float:
    """Return the misfit of a shape by its hits (N,): above 1 it is not believable."""
    loss = kernels.depth_loss(hits, pixels.depth, pixels.sigma, pixels.kinds, pixels.weight, CAP)
    return float(loss / max(float(pixels.weight[pixels.own].sum()), 1e-9) / (MISFIT_SHARE * CAP))


def shape_estimate(fit: Fit, base_T_frame: Array, weight: float) -> Estimate:
    """Return the estimate of a fit in the base frame."""
    cx, cy, yaw, sx, sy, sz, z0 = (float(v) for v in fit.p)
    c, s = math.cos(yaw), math.sin(yaw)
    R = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    shape: Shape
    if fit.kind == LYING:
        # The cylinder's own axis is z: here it lies along the yaw.
        R = np.stack([np.array([s, -c, 0.0]), np.array([0.0, 0.0, 1.0]), np.array([-c, -s, 0.0])], 1)
        R = R if np.linalg.det(R) > 0 else R * np.array([-1.0, 1.0, 1.0])
        shape, size, height = "cylinder", (sx, sx, sy), sx
    elif fit.kind == SPHERE:
        shape, size, height = "sphere", (sx, sx, sx), sx
    elif fit.kind in (CYLINDER, CUP):
        # A cup's hollow is only needed to explain its depth.
        shape, size, height = "cylinder", (sx, sx, sz), sz
    else:
        shape, size, height = ("bin" if fit.kind == BIN else "box"), (sx, sy, sz), sz
    return Estimate(shape, size, base_T_frame @ make(R, [cx, cy, z0 + height / 2]), weight)


def _tidy(kind: int, p: Array) -> Array:
    """Set numbers that the kind does not use, and the yaw to -45 to 45 degrees for what turns onto itself."""
    p = p.copy()
    if kind in (CYLINDER, SPHERE, CUP):
        p[2], p[4] = 0.0, p[3]
    if kind == SPHERE:
        p[5] = p[3]
    if kind == LYING:
        p[2] = (p[2] + math.pi / 2) % math.pi - math.pi / 2
    if kind in (BOX, BIN):
        turns = round(p[2] / (math.pi / 2))
        p[2] -= turns * math.pi / 2
        if turns % 2:
            p[3], p[4] = p[4], p[3]
    return p


def _starts(kind: int, pixels: Pixels, base_m: float, free_base: bool, quick: bool) -> list[Array]:
    points = pixels.points
    high = float(np.percentile(points[:, 2], 96))
    base = max(base_m, float(np.percentile(points[:, 2], 4))) if free_base else base_m
    height = max(high - base, 0.01)
    upper = points[points[:, 2] > base + 0.7 * height]
    if len(upper) < 8:
        upper = points
    (cx, cy), (w, d), angle = cv2.minAreaRect((upper[:, :2] * 1000).astype(np.float32))
    w, d = float(np.clip(w / 1000, 0.012, 0.3)), float(np.clip(d / 1000, 0.012, 0.3))
    centre, yaw = np.array([cx, cy]) / 1000, math.radians(angle)
    mean = (w + d) / 2
    # Across the view the extent is seen; along it a hidden far side leaves less than there is.
    across = points[:, :2] @ np.array([-pixels.view[1], pixels.view[0]])
    wide = float(np.clip(np.ptp(np.percentile(across, [2, 98])), 0.012, 0.3))
    near = float(np.percentile(points[:, :2] @ pixels.view, 4))
    round_centre = (near + wide / 2) * pixels.view + np.median(across) * np.array([-pixels.view[1], pixels.view[0]])
    if kind in (BOX, BIN):
        turns = (0.0,) if quick or kind == BIN else (0.0, math.pi / 6, math.pi / 3)
        return [
            np.array([*centre, yaw + turn, w if turn == 0 else mean, d if turn == 0 else mean, height, base])
            for turn in turns
        ]
    if kind in (CYLINDER, CUP):
        return [np.array([*round_centre, 0.0, wide, wide, height, base])]
    if kind == SPHERE:
        return [np.array([*round_centre, 0.0, height, height, height, base])]
    return [np.array([*centre, yaw + (0.0 if w >= d else math.pi / 2), height, max(w, d), height, base])]
