"""Fit of the objects in one image without depth: outlines on the known table, by analysis by synthesis.

Detection (faces, votes) ─ start per object and kind ─ search, twice over all objects ─ random walk ─> FittedScene

The picture of all shapes is compared with what the detector says each pixel shows: no object, an upward surface, or
another one, and whose. The robot hides: its pixels say nothing. Shapes hide each other as in the image, so that hidden
extents are free up to what the visible pixels of the same object vote for. Draws show how free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.generators.draft import _outline_kernels as kernels
from kinema4d_ros.generators.draft._kernels import BIN, BOX, CX, CY, CYLINDER, SPHERE, Z0
from kinema4d_ros.generators.draft.detection import Detected, Detection, Detector, load_detector
from kinema4d_ros.generators.draft.outline_labels import Found, Labels, OutlineOptions
from kinema4d_ros.generators.draft.outline_shapes import (
    FLOATING_M,
    FREE,
    NAMES,
    inner_radius,
    shape_estimate,
    tall,
    units,
    voted_shape,
    voted_spread,
    walk_ways,
)
from kinema4d_ros.generators.draft.scene import Estimate, FittedObject, FittedScene
from kinema4d_ros.physics.parts import BIN_WALL_M

__all__ = ["OutlineOptions", "fit_image", "fit_outlines"]

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_LEAST_SPREAD = np.array([0.002, 0.003, 0.002, 0.002, 0.002, 0.002, 0.002, 0.002])
"""Smallest spreads of a detection's votes, metres: a detector is never surer than this."""


PIXEL_M = 0.003
"""Footprint of the pixels that `heat` is given for, metres; finer pixels count less."""
SEARCH_M = 0.0025
"""The search skips pixels so that their distance is at least this, metres."""
MISFIT_SHARE = 0.25
"""Share of wrong pixels, relative to an object's own, from which its fit is not believable."""
_THIN = 12
"""Steps of the random walk between draws."""
_NATS_PER_NUMBER = 1.0
"""Evidence that a free number costs."""
_MODEL = np.array([0.0007, 0.0007, 0.01, 0.0015, 0.0015, 0.0015, 0.0])
"""Deviation between the best shape and a true object with rounded edges, seen in whole pixels; metres, radians."""


def fit_image(
    image: NDArray[np.uint8],
    camera: PinholeCamera,
    robot_mask: Bools | None = None,
    *,
    table_height_m: float,
    detector: Detector | None = None,
    options: OutlineOptions | None = None,
) -> FittedScene:
    """Detect and fit the objects of an image without depth.

    Args:
        image: (H, W, 3) uint8 RGB, rectified.
        camera: rectified, with its pose in the robot's base.
        robot_mask: (H, W) True where the robot is; None = the robot is not in the image.
        table_height_m: of the supporting plane above the robot's base.
        detector: by default the learned one of the package.
        options: of the fit.

    Raises:
        GeneratorError: GENERATOR_UNAVAILABLE, the learned detector is not installed; GENERATOR_BAD_REQUEST, arrays of
            other shapes or types.
    """
    used = detector or load_detector()
    detection = used.detect(image, camera, robot_mask, table_height_m)
    return fit_outlines(detection, camera, robot_mask, table_height_m, options, image=image)


def fit_outlines(
    detection: Detection,
    camera: PinholeCamera,
    robot_mask: Bools | None = None,
    table_height_m: float = 0.0,
    options: OutlineOptions | None = None,
    *,
    image: NDArray[np.uint8] | None = None,
) -> FittedScene:
    """Fit shapes on the table to the objects of a detection.

    Args:
        detection: of an image of this camera.
        camera: without distortion, with its pose in the robot's base.
        robot_mask: (H, W) True where the robot is; None = the robot is not in the image.
        table_height_m: height of the plane that objects stand on, above the robot's base.
        options: of the search and the draws.
        image: (H, W, 3) uint8 RGB that the detection is of: colours then correct what the detector says of each pixel.
    """
    return _Fit(detection, camera, robot_mask, table_height_m, options or OutlineOptions(), image).run()


class _Fit:
    def __init__(
        self,
        detection: Detection,
        camera: PinholeCamera,
        robot: Bools | None,
        table_height_m: float,
        options: OutlineOptions,
        image: NDArray[np.uint8] | None = None,
    ) -> None:
        self._detection, self._options, self._floor = detection, options, float(table_height_m)
        self._robot = np.zeros((camera.height, camera.width), np.bool_) if robot is None else robot
        self._eye = camera.base_T_camera[:3, 3].copy()
        self._rays = np.ascontiguousarray(np.asarray(camera.rays(), np.float64) @ camera.base_T_camera[:3, :3].T)
        self._rng = np.random.default_rng(options.seed)
        self._camera = camera
        self._labels = Labels(detection, camera, self._robot, self._floor, options, image)

    def run(self) -> FittedScene:
        found = [f for n, d in enumerate(self._detection.objects) if (f := self._start(n, d)) is not None]
        found.sort(key=lambda f: float(np.hypot(*(f.voted[:2] - self._eye[:2]))))
        found = self._labels.join(found)
        for f in found:
            self._draw(f)
        for sweep in range(self._options.sweeps):
            self._labels.update(found, redraw=sweep > 0)
            for f in found:
                self._search(f, found, sweep)
                self._draw(f)
            found = [f for f in found if self._gain(f, found) > self._options.least_gain]
        objects = [self._finish(n, f, found) for n, f in enumerate(found, 1)]
        covered = np.zeros(self._robot.shape, np.bool_)
        for f in found:
            covered[f.window] |= np.isfinite(f.depth)
        seen = int(self._labels.thing.sum())
        unexplained = float((self._labels.thing & ~covered).sum() / seen) if seen else 0.0
        return FittedScene(tuple(objects), self._floor, self._notes(found), unexplained)

    def _notes(self, found: Sequence[Found]) -> tuple[str, ...]:
        notes = []
        for number, f in enumerate(found, 1):
            if f.shape[Z0] > self._floor + FLOATING_M:
                notes.append(f"object_{number} does not stand on the table: it is held, or stands on another object")
        return tuple(notes)

    def _start(self, number: int, detected: Detected) -> Found | None:
        """Prepare an object; None if no pixel shows it."""
        own = self._labels.thing & (self._labels.owner == number) & (detected.share > 0.1)
        rows, columns = np.nonzero(own.any(1))[0], np.nonzero(own.any(0))[0]
        if not len(rows):
            return None
        voted = np.array([*detected.center, *detected.widths, detected.bottom, detected.top], np.float64)
        voted[6:] += self._floor
        sigma = np.maximum(detected.spread, _LEAST_SPREAD)
        # The window covers the pixels and where the voted shape would be seen.
        reach = 0.5 * float(detected.widths.max()) + 2 * float(sigma[:2].max())
        corners = np.array(
            [
                [voted[0] + a * reach, voted[1] + b * reach, z]
                for a in (-1, 1)
                for b in (-1, 1)
                for z in (voted[6], voted[7] + 2 * sigma[7])
            ]
        )
        camera_T_base = self._camera.camera_T_base
        uv = self._camera.project(corners @ camera_T_base[:3, :3].T + camera_T_base[:3, 3])
        low = np.minimum([rows[0], columns[0]], np.nanmin(uv, 0)[::-1])
        high = np.maximum([rows[-1] + 1, columns[-1] + 1], np.nanmax(uv, 0)[::-1])
        limit = 3 * (np.array([rows[-1] - rows[0], columns[-1] - columns[0]]) + 20)
        low = np.maximum(low, np.array([rows[0], columns[0]]) - limit)
        high = np.minimum(high, np.array([rows[-1], columns[-1]]) + limit)
        pad = np.maximum(3, 0.1 * (high - low))
        height, width = self._robot.shape
        window = (
            slice(max(0, int(low[0] - pad[0])), min(height, int(high[0] + pad[0]) + 1)),
            slice(max(0, int(low[1] - pad[1])), min(width, int(high[1] + pad[1]) + 1)),
        )
        found = Found(detected, voted, sigma, window, own, voters=own, stated=sigma)
        shapes = detected.shapes
        best = max((BOX, CYLINDER, SPHERE, BIN), key=lambda k: shapes.get(NAMES[k], 0.0))
        found.kind = best
        found.shape = voted_shape(best, found.voted, found.sigma, self._detection.right, self._floor)
        return found

    def _draw(self, f: Found) -> None:
        """Ray-cast the object's current shape into its window."""
        rays = self._rays[f.window]
        flat = np.ascontiguousarray(rays.reshape(-1, 3))
        depth, up = kernels.cast_faces(f.kind, f.shape, BIN_WALL_M, self._eye, flat)
        f.depth, f.up = depth.reshape(rays.shape[:2]), up.reshape(rays.shape[:2])

    def _scene_without(self, f: Found, found: Sequence[Found]) -> tuple[Array, Array]:
        """Return cost and depth (h, w) of what an object's window shows without it."""
        rows, columns = f.window
        cost = self._labels.none_cost[f.window].copy()
        depth = np.full(cost.shape, np.inf)
        for other in found:
            if other is f:
                continue
            r0, r1 = max(rows.start, other.window[0].start), min(rows.stop, other.window[0].stop)
            c0, c1 = max(columns.start, other.window[1].start), min(columns.stop, other.window[1].stop)
            if r0 >= r1 or c0 >= c1:
                continue
            mine = (slice(r0 - rows.start, r1 - rows.start), slice(c0 - columns.start, c1 - columns.start))
            theirs = (
                slice(r0 - other.window[0].start, r1 - other.window[0].start),
                slice(c0 - other.window[1].start, c1 - other.window[1].start),
            )
            z, up = other.depth[theirs], other.up[theirs]
            nearer = z < depth[mine]
            shown = np.where(up, other.up_cost[theirs], other.side_cost[theirs])
            cost[mine] = np.where(nearer, shown, cost[mine])
            depth[mine] = np.where(nearer, z, depth[mine])
        return cost, depth

    def _pixels(self, f: Found, found: Sequence[Found], step: int) -> tuple[Array, Array]:
        """Return rays (N, 3) and the kernels' table (N, 4) of the object's window, every `step` pixels."""
        else_cost, else_depth = self._scene_without(f, found)
        table = np.stack([f.up_cost, f.side_cost, else_cost, else_depth], -1)
        known = ~self._robot[f.window]
        if step > 1:
            known = known.copy()
            keep = np.zeros_like(known)
            keep[step // 2 :: step, step // 2 :: step] = True
            known &= keep
        return np.ascontiguousarray(self._rays[f.window][known]), np.ascontiguousarray(table[known])

    def _gain(self, f: Found, found: Sequence[Found]) -> float:
        """Return by how much the detector finds an object's picture more probable than none, natural logarithm."""
        _, depth = self._scene_without(f, found)
        seen = f.depth < depth - kernels.AHEAD
        gain = np.where(f.up, f.gain[..., 0], f.gain[..., 1])[seen].sum()
        return float(gain * self._options.heat * (self._labels.footprint_m(f) / PIXEL_M) ** 2)

    def _others(self, f: Found, found: Sequence[Found]) -> Array:
        rows = [
            [o.shape[CX], o.shape[CY], inner_radius(o.kind, o.shape), o.shape[Z0], o.shape[Z0] + tall(o.kind, o.shape)]
            for o in found
            if o is not f
        ]
        return np.array(rows, np.float64).reshape(-1, 5)

    def _arguments(self, f: Found, found: Sequence[Found], step: int) -> tuple[object, ...]:
        rays, pixels = self._pixels(f, found, step)
        heat = self._options.heat * (step * self._labels.footprint_m(f) / PIXEL_M) ** 2
        return (
            BIN_WALL_M, self._eye, rays, pixels, heat, f.voted, f.sigma, self._detection.right,
            self._others(f, found), self._floor,
        )  # fmt: skip

    def _kinds(self, f: Found) -> list[int]:
        likely = {k: f.detected.shapes.get(NAMES[k], 0.0) for k in NAMES}
        other = f.detected.shapes.get("other", 0.0)
        kinds = [k for k in NAMES if likely[k] > 0.05 or (k in (BOX, CYLINDER) and other > 0.2)]
        return kinds or [max(likely, key=lambda k: likely[k])]

    def _search(self, f: Found, found: Sequence[Found], sweep: int) -> None:
        """Find the best shape of every likely kind, given the other objects, and draw the best of them."""
        step = max(1, round(SEARCH_M / self._labels.footprint_m(f)))
        arguments = self._arguments(f, found, step)
        for kind in self._kinds(f) if sweep == 0 else list(f.tried):
            if sweep == 0:
                start = voted_shape(kind, f.voted, f.sigma, self._detection.right, self._floor)
                spread = voted_spread(kind, f.sigma, self._detection.right)
                start = self._evolve(kind, start, spread, arguments)
            else:
                start = f.tried[kind][1]
            _, shape, energy = self._walk(f, kind, start, self._options.steps, 16, arguments)
            f.tried[kind] = (energy, shape)
        f.kind = min(f.tried, key=lambda k: self._evidence(f, k))
        f.shape = f.tried[f.kind][1]

    def _evidence(self, f: Found, kind: int) -> float:
        """Negative logarithm of a kind's evidence: its best energy, its probability, and its free numbers."""
        energy, _ = f.tried[kind]
        likely = max(f.detected.shapes.get(NAMES[kind], 0.0), 0.02)
        return energy - math.log(likely) + _NATS_PER_NUMBER * len(FREE[kind])

    def _evolve(self, kind: int, start: Array, covariance: Array, arguments: tuple[object, ...]) -> Array:
        """Search by sampling from ever narrower distributions; returns the best shape (7,)."""
        free = np.array(FREE[kind])
        middle, best = start[free].copy(), start.copy()
        count, rounds = self._options.population, self._options.rounds
        pool_x, pool_e = np.zeros((0, len(free))), np.zeros(0)
        for turn in range(rounds):
            root = np.linalg.cholesky(covariance + 1e-12 * np.eye(len(free)))
            x = middle + self._rng.standard_normal((count, len(free))) @ root.T
            x[0] = middle
            shapes = np.tile(best, (count, 1))
            shapes[:, free] = x
            e = kernels.energies(kind, shapes, *arguments)
            pool_x, pool_e = np.concatenate([pool_x, x]), np.concatenate([pool_e, e])
            order = np.argsort(pool_e)[: max(len(free) + 4, count // 4)]
            pool_x, pool_e = pool_x[order], pool_e[order]
            best[free] = pool_x[0]
            weight = np.exp(-np.minimum(pool_e - pool_e[0], 50.0) / (3.0 * (rounds - turn)))
            weight /= weight.sum()
            middle = weight @ pool_x
            apart = pool_x - middle
            covariance = (apart * weight[:, None]).T @ apart + np.diag(units(kind) ** 2)
        return best

    def _walk(
        self, f: Found, kind: int, start: Array, steps: int, draws: int, arguments: tuple[object, ...]
    ) -> tuple[Array, Array, float]:
        """Walk from a shape; returns draws (D, 7), the best shape of the walk and its energy."""
        ways = walk_ways(kind, f.voted[:2], self._eye, self._detection.right, self._floor)
        pick = self._rng.integers(0, len(ways), steps)
        # Most steps are short, some are long: the picture is made of whole pixels.
        amount = self._rng.standard_normal(steps) * self._rng.choice([0.5, 1.0, 3.0], steps)
        drawn, best = np.tile(start, (draws, 1)), start.copy()
        chance = self._rng.random(steps)
        least = kernels.wander(kind, start, ways, pick, amount, chance, steps // 4, drawn, best, *arguments)
        return drawn, best, float(least)

    def _finish(self, number: int, f: Found, found: Sequence[Found]) -> FittedObject:
        """Draw from the posterior of every kind that the evidence allows."""
        cost = {k: self._evidence(f, k) for k in f.tried}
        least = min(cost.values())
        weight = {k: math.exp(-min(c - least, 50.0)) for k, c in cost.items()}
        total = sum(weight.values())
        weight = {k: w / total for k, w in weight.items() if w / total >= self._options.unlikely}
        total = sum(weight.values())
        arguments = self._arguments(f, found, 1)
        estimates: list[Estimate] = []
        for kind, w in sorted(weight.items(), key=lambda kw: -kw[1]):
            share = w / total
            count = max(2, round(self._options.draws * share))
            steps = self._options.steps + _THIN * count
            drawn, best, _ = self._walk(f, kind, f.tried[kind][1], steps, count, arguments)
            free = np.array(FREE[kind])
            drawn[:, free] += self._rng.standard_normal((count, len(free))) * _MODEL[free]
            first = not estimates
            if first:
                f.kind, f.shape = kind, best
                self._draw(f)
            for shape in (best, *drawn) if first else drawn:
                estimates.append(shape_estimate(kind, shape, share / (count + first)))
        scale = sum(e.weight for e in estimates)
        estimates = [Estimate(e.shape, e.size, e.base_T_object, e.weight / scale) for e in estimates]
        return FittedObject(f"object_{number}", f.own, tuple(estimates), self._misfit(f, found), "outline")

    def _misfit(self, f: Found, found: Sequence[Found]) -> float:
        """Compare the drawn object with its pixels: wrong ones as a share of its own, in units of MISFIT_SHARE."""
        _, depth = self._scene_without(f, found)
        visible = (f.depth < depth - kernels.AHEAD) & ~self._robot[f.window]
        own = f.own[f.window]
        missed = int((own & ~visible).sum()) + int(f.own.sum() - own.sum())
        invented = int((visible & ~self._labels.thing[f.window]).sum())
        return (missed + invented) / max(1, int(f.own.sum())) / MISFIT_SHARE
