"""Fit of the objects in one image without depth: outlines on the known table, by analysis by synthesis.

Detection (faces, votes) ─ start per object and kind ─ search, twice over all objects ─ random walk ─> FittedScene

The picture of all shapes is compared with what the detector says each pixel shows: no object, an upward surface, or
another one, and whose. The robot hides: its pixels say nothing. Shapes hide each other as in the image, so that hidden
extents are free up to what the visible pixels of the same object vote for. Draws show how free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.generators.draft import _outline_kernels as kernels
from kinema4d_ros.generators.draft._kernels import BIN, BOX, CX, CY, CYLINDER, SPHERE, Z0
from kinema4d_ros.generators.draft.detection import Detected, Detection, Detector, load_detector
from kinema4d_ros.generators.draft.outline_colours import (
    across_image,
    ground_density,
    median_colour,
    same_colour,
    surface_density,
)
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
_NONE, _UP, _SIDE = range(3)


@dataclass(frozen=True)
class OutlineOptions:
    """Settings of the fit.

    Attributes:
        draws: per object, over all its kinds.
        sweeps: rounds over all objects; each sees the others as fitted last.
        population, rounds: shapes per round of the first search, and rounds.
        steps: of the random walk that ends every search.
        wrong: probability that the detector's statement about a pixel is worthless.
        heat: share of independent information per pixel of PIXEL_M.
        doubt: probability of every label, however sure the detector is; colours decide then.
        redrawn: weight for a surface's colour of pixels that are drawn as another one.
        unlikely: kinds with a smaller share of the evidence give no draws.
        seed: of search and draws.
    """

    draws: int = 16
    sweeps: int = 2
    population: int = 48
    rounds: int = 4
    steps: int = 120
    wrong: float = 0.02
    heat: float = 0.25
    doubt: float = 0.03
    reach_m: float = 0.009
    around_m: float = 0.06
    redrawn: float = 0.1
    unlikely: float = 0.03
    least_gain: float = 8.0
    seed: int = 0


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
_AGREED = 0.75
"""Share of an object's pixels that the colours confirm in general; with less of them its votes are doubted."""
_MOST_DOUBTED = 4.0
_OVERLAP = 0.7
"""Two objects of one colour whose centres are nearer than this share of their mean width are one."""
_ONE_COLOUR = 0.3
_MODEL = np.array([0.0007, 0.0007, 0.01, 0.0015, 0.0015, 0.0015, 0.0])
"""Deviation between the best shape and a true object with rounded edges, seen in whole pixels; metres, radians."""


@dataclass
class _Found:
    """An object while it is fitted: its best shape of every kind that was tried, and the one that is drawn."""

    detected: Detected
    voted: Array
    sigma: Array
    window: tuple[slice, slice]
    own: Bools
    kind: int = BOX
    shape: Array = field(default_factory=lambda: np.zeros(7))
    tried: dict[int, tuple[float, Array]] = field(default_factory=dict)
    depth: Array = field(default_factory=lambda: np.zeros((0, 0)))
    up: Bools = field(default_factory=lambda: np.zeros((0, 0), np.bool_))
    up_cost: Array = field(default_factory=lambda: np.zeros((0, 0)))
    side_cost: Array = field(default_factory=lambda: np.zeros((0, 0)))
    voters: Bools = field(default_factory=lambda: np.zeros((0, 0), np.bool_))
    stated: Array = field(default_factory=lambda: np.zeros(8))
    hue: Array = field(default_factory=lambda: np.zeros(3))
    said_gain: Array = field(default_factory=lambda: np.zeros((0, 0, 2)))


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
        self._focal = float(math.sqrt(camera.K[0, 0] * camera.K[1, 1]))
        self._rng = np.random.default_rng(options.seed)
        self._camera = camera
        self._colours = np.zeros((0, 0, 3)) if image is None else image.astype(np.float64) / 255.0
        faces = detection.faces.astype(np.float64)
        shares = np.stack([o.share for o in detection.objects]) if detection.objects else np.zeros((0, 1, 1))
        self._owner = shares.argmax(0) if len(shares) else np.zeros(self._robot.shape, np.int64)
        self._shares = shares / np.maximum(shares.sum(0), 0.3)
        self._thing = (faces[..., _NONE] < 0.5) & ~self._robot
        self._none_cost = self._cost(faces[..., _NONE])

    def _cost(self, probability: Array) -> Array:
        """Return costs of a label: negative logarithms, never surer than `wrong`, 0 on the robot."""
        wrong = self._options.wrong
        cost = -np.log((1.0 - wrong) * probability + wrong)
        cost[self._robot if cost.shape == self._robot.shape else slice(0, 0)] = 0.0
        return np.asarray(cost, np.float64)

    def run(self) -> FittedScene:
        found = [f for n, d in enumerate(self._detection.objects) if (f := self._start(n, d)) is not None]
        found.sort(key=lambda f: float(np.hypot(*(f.voted[:2] - self._eye[:2]))))
        if self._colours.size:
            found = self._whole(found)
        for f in found:
            self._draw(f)
        for sweep in range(self._options.sweeps):
            self._label(found, sweep)
            for f in found:
                self._search(f, found, sweep)
                self._draw(f)
            found = [f for f in found if self._gain(f, found) > self._options.least_gain]
        objects = [self._finish(n, f, found) for n, f in enumerate(found, 1)]
        covered = np.zeros(self._robot.shape, np.bool_)
        for f in found:
            covered[f.window] |= np.isfinite(f.depth)
        seen = int(self._thing.sum())
        unexplained = float((self._thing & ~covered).sum() / seen) if seen else 0.0
        return FittedScene(tuple(objects), self._floor, self._notes(found), unexplained)

    def _notes(self, found: Sequence[_Found]) -> tuple[str, ...]:
        notes = []
        for number, f in enumerate(found, 1):
            if f.shape[Z0] > self._floor + FLOATING_M:
                notes.append(f"object_{number} does not stand on the table: it is held, or stands on another object")
        return tuple(notes)

    def _start(self, number: int, detected: Detected) -> _Found | None:
        """Prepare an object; None if no pixel shows it."""
        own = self._thing & (self._owner == number) & (detected.share > 0.1)
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
        found = _Found(detected, voted, sigma, window, own, voters=own, stated=sigma)
        shapes = detected.shapes
        best = max((BOX, CYLINDER, SPHERE, BIN), key=lambda k: shapes.get(NAMES[k], 0.0))
        found.kind = best
        found.shape = voted_shape(best, found.voted, found.sigma, self._detection.right, self._floor)
        return found

    def _draw(self, f: _Found) -> None:
        """Ray-cast the object's current shape into its window."""
        rays = self._rays[f.window]
        flat = np.ascontiguousarray(rays.reshape(-1, 3))
        depth, up = kernels.cast_faces(f.kind, f.shape, BIN_WALL_M, self._eye, flat)
        f.depth, f.up = depth.reshape(rays.shape[:2]), up.reshape(rays.shape[:2])

    def _number(self, f: _Found) -> int:
        return next(n for n, d in enumerate(self._detection.objects) if d is f.detected)

    def _label(self, found: Sequence[_Found], sweep: int) -> None:
        """Set the costs of all labels, from the detector and, with an image, from colours of what is drawn now."""
        said = [
            self._shares[self._number(f)][f.window][..., None] * self._detection.faces[f.window][..., [_UP, _SIDE]]
            for f in found
        ]
        none = self._detection.faces[..., _NONE].astype(np.float64)
        for f, p in zip(found, said, strict=True):
            f.said_gain = self._cost(none)[f.window][..., None] - self._cost(p)
            f.said_gain[self._robot[f.window]] = 0.0
        if self._colours.size and found:
            none, said = self._recolour(found, none, said, sweep)
            self._assign(found, none, said)
        self._none_cost = self._cost(none)
        for f, p in zip(found, said, strict=True):
            f.up_cost, f.side_cost = self._cost(p[..., 0]), self._cost(p[..., 1])
            robot = self._robot[f.window]
            f.up_cost[robot] = f.side_cost[robot] = 0.0

    def _recolour(
        self, found: Sequence[_Found], none: Array, said: Sequence[Array], sweep: int
    ) -> tuple[Array, list[Array]]:
        """Return probabilities of no object (H, W) and of each object's faces (h, w, 2), given the colours too."""
        doubt = self._options.doubt
        drawn = self._drawn(found) if sweep else None
        said = self._owned(found, said)
        ground = np.zeros(none.shape)
        density: list[Array] = []
        for number, (f, p) in enumerate(zip(found, said, strict=True)):
            rows, columns = np.nonzero(~self._robot[f.window])
            colours = self._colours[f.window][rows, columns]
            agree = np.ones((len(rows), 3))
            if drawn is not None:
                shown = drawn[f.window][rows, columns]
                agree = np.stack([shown == 0, shown == 2 * number + 1, shown == 2 * number + 2], 1)
                agree = np.where(agree, 1.0, self._options.redrawn)
            weight = agree * np.column_stack([none[f.window][rows, columns], p[rows, columns]]) ** 2
            made = np.zeros((*p.shape[:2], 2))
            # Bins have many shades, spheres have no edge between top and sides: only the detector tells these apart.
            either = sum(f.detected.shapes.get(NAMES[k], 0.0) for k in (BIN, SPHERE))
            if drawn is not None:
                either = float(f.kind in (BIN, SPHERE))
            both = ground_density(colours, weight[:, 1] + weight[:, 2], shades=False)
            across = across_image(rows, columns, self._vertical(f))
            for face, place in ((0, None), (1, across)):
                made[rows, columns, face] = either * both + (1 - either) * surface_density(
                    colours, weight[:, face + 1], place
                )
            density.append(made)
            part = ground[f.window]
            part[rows, columns] = np.maximum(part[rows, columns], self._ground(f, none, drawn, colours))
        inside = ground > 0
        none_mass = np.where(inside, (none + doubt) * ground, none)
        total = none_mass.copy()
        # Doubt is about where an edge is: labels are possible near where the detector says them.
        mass = []
        for f, p, d in zip(found, said, density, strict=True):
            reach = self._options.reach_m / self._footprint(f)
            mass.append((p + doubt * gaussian_filter(p, (reach, reach, 0), mode="nearest")) * d)
        for f, m in zip(found, mass, strict=True):
            total[f.window] += m.sum(-1)
        total = np.maximum(total, 1e-9)
        return np.where(inside, none_mass / total, none), [
            m / total[f.window][..., None] for f, m in zip(found, mass, strict=True)
        ]

    def _owned(self, found: Sequence[_Found], said: Sequence[Array]) -> list[Array]:
        """Divide the pixels among the objects by their sides' colours: tall objects' tops are seen before others."""
        total, sure, claimed = (np.zeros(self._robot.shape) for _ in range(3))
        mass: list[Array] = [np.zeros(0)] * len(found)
        # The votes of a hidden object are often mixed with those of the one before it, which has more of the pixels.
        for number in sorted(range(len(found)), key=lambda n: -float((said[n][..., 1] ** 2).sum())):
            f, p = found[number], said[number]
            colours = self._colours[f.window]
            weight = np.where(self._robot[f.window], 0.0, p[..., 1] ** 2) * (1 - claimed[f.window]) + 1e-9
            own = same_colour(colours, median_colour(colours.reshape(-1, 3), weight.ravel()))
            both = p.sum(-1)
            near = both + 0.5 * gaussian_filter(both, 2 * self._options.reach_m / self._footprint(f), mode="nearest")
            mass[number] = near * own
            total[f.window] += mass[number]
            sure[f.window] += both
            sides = own * gaussian_filter(p[..., 1], self._options.reach_m / self._footprint(f), mode="nearest")
            claimed[f.window] = np.maximum(claimed[f.window], np.clip(4 * sides, 0.0, 0.95))
        out = []
        for f, m in zip(found, mass, strict=True):
            faces = self._detection.faces[f.window][..., [_UP, _SIDE]].astype(np.float64)
            faces /= np.maximum(faces.sum(-1, keepdims=True), 1e-6)
            out.append((m / np.maximum(total, 1e-12)[f.window] * sure[f.window])[..., None] * faces)
        return out

    def _ground(self, f: _Found, none: Array, drawn: NDArray[np.int64] | None, colours: Array) -> Array:
        """Return the densities (N,) of colours (N, 3) among those around an object that are no object's."""
        pad = round(self._options.around_m / self._footprint(f))
        rows, columns = (slice(max(0, s.start - pad), s.stop + pad) for s in f.window)
        weight = np.where(self._robot, 0.0, none)[rows, columns] ** 2
        if drawn is not None:
            weight[drawn[rows, columns] > 0] *= self._options.redrawn
        return ground_density(colours, weight.ravel(), self._colours[rows, columns].reshape(-1, 3))

    def _assign(self, found: Sequence[_Found], none: Array, said: Sequence[Array]) -> None:
        """Set the pixels of objects anew; votes of an object that has few of the pixels that voted count less."""
        best = none.copy()
        owner = np.full(none.shape, -1)
        for number, (f, p) in enumerate(zip(found, said, strict=True)):
            more = p.sum(-1) > best[f.window]
            owner[f.window][more] = number
            best[f.window][more] = p.sum(-1)[more]
        self._thing = (owner >= 0) & ~self._robot
        for number, f in enumerate(found):
            f.own = (owner == number) & ~self._robot
            shared, either = int((f.own & f.voters).sum()), int((f.own | f.voters).sum())
            f.sigma = f.stated * min(max(_AGREED * either / max(shared, 1), 1.0), _MOST_DOUBTED)

    def _whole(self, found: list[_Found]) -> list[_Found]:
        """Join objects of one colour whose votes overlap: the smaller is a part of the larger."""
        kept: list[_Found] = []
        for f in sorted(found, key=lambda f: -int(f.own.sum())):
            f.hue = np.median(self._colours[f.own], axis=0)
            for k in kept:
                near = float(np.hypot(*(f.voted[:2] - k.voted[:2])))
                size = 0.5 * float(f.voted[2:6].mean() + k.voted[2:6].mean())
                if near < _OVERLAP * size and max(same_colour(f.hue, k.hue), same_colour(k.hue, f.hue)) > _ONE_COLOUR:
                    share = self._shares[self._number(k)]
                    np.maximum(share, self._shares[self._number(f)], out=share)
                    k.voters = k.own = k.own | f.own
                    # Each part voted for a part: nobody saw the whole.
                    k.stated = np.hypot(k.stated, [near / 2] * 6 + [0.0, 0.0])
                    k.sigma = k.stated
                    rows, columns = (
                        slice(min(a.start, b.start), max(a.stop, b.stop))
                        for a, b in zip(k.window, f.window, strict=True)
                    )
                    k.window = (rows, columns)
                    break
            else:
                kept.append(f)
        return [f for f in found if any(f is k for k in kept)]

    def _drawn(self, found: Sequence[_Found]) -> NDArray[np.int64]:
        """Return what the drawn shapes show (H, W): 0 nothing, 2 n + 1 and 2 n + 2 the faces of object n."""
        label = np.zeros(self._robot.shape, np.int64)
        depth = np.full(self._robot.shape, np.inf)
        for number, f in enumerate(found):
            nearer = f.depth < depth[f.window]
            label[f.window] = np.where(nearer, np.where(f.up, 2 * number + 1, 2 * number + 2), label[f.window])
            depth[f.window] = np.where(nearer, f.depth, depth[f.window])
        return label

    def _vertical(self, f: _Found) -> Array:
        """Return the direction (2,) in the image, column and row, in which an object's vertical is seen."""
        T = self._camera.camera_T_base
        ends = np.array([[*f.shape[:2], f.shape[Z0]], [*f.shape[:2], f.shape[Z0] + 0.02]])
        uv = self._camera.project(ends @ T[:3, :3].T + T[:3, 3])
        return np.asarray(uv[1] - uv[0], np.float64)

    def _scene_without(self, f: _Found, found: Sequence[_Found]) -> tuple[Array, Array]:
        """Return cost and depth (h, w) of what an object's window shows without it."""
        rows, columns = f.window
        cost = self._none_cost[f.window].copy()
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

    def _pixels(self, f: _Found, found: Sequence[_Found], step: int) -> tuple[Array, Array]:
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

    def _gain(self, f: _Found, found: Sequence[_Found]) -> float:
        """Return by how much the detector finds an object's picture more probable than none, natural logarithm."""
        _, depth = self._scene_without(f, found)
        seen = f.depth < depth - kernels.AHEAD
        gain = np.where(f.up, f.said_gain[..., 0], f.said_gain[..., 1])[seen].sum()
        return float(gain * self._options.heat * (self._footprint(f) / PIXEL_M) ** 2)

    def _footprint(self, f: _Found) -> float:
        """Return the width of a pixel at the object, metres."""
        return float(np.linalg.norm([*(f.voted[:2] - self._eye[:2]), self._eye[2] - self._floor])) / self._focal

    def _others(self, f: _Found, found: Sequence[_Found]) -> Array:
        rows = [
            [o.shape[CX], o.shape[CY], inner_radius(o.kind, o.shape), o.shape[Z0], o.shape[Z0] + tall(o.kind, o.shape)]
            for o in found
            if o is not f
        ]
        return np.array(rows, np.float64).reshape(-1, 5)

    def _arguments(self, f: _Found, found: Sequence[_Found], step: int) -> tuple[object, ...]:
        rays, pixels = self._pixels(f, found, step)
        heat = self._options.heat * (step * self._footprint(f) / PIXEL_M) ** 2
        return (
            BIN_WALL_M, self._eye, rays, pixels, heat, f.voted, f.sigma, self._detection.right,
            self._others(f, found), self._floor,
        )  # fmt: skip

    def _kinds(self, f: _Found) -> list[int]:
        likely = {k: f.detected.shapes.get(NAMES[k], 0.0) for k in NAMES}
        other = f.detected.shapes.get("other", 0.0)
        kinds = [k for k in NAMES if likely[k] > 0.05 or (k in (BOX, CYLINDER) and other > 0.2)]
        return kinds or [max(likely, key=lambda k: likely[k])]

    def _search(self, f: _Found, found: Sequence[_Found], sweep: int) -> None:
        """Find the best shape of every likely kind, given the other objects, and draw the best of them."""
        step = max(1, round(SEARCH_M / self._footprint(f)))
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

    def _evidence(self, f: _Found, kind: int) -> float:
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
        self, f: _Found, kind: int, start: Array, steps: int, draws: int, arguments: tuple[object, ...]
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

    def _finish(self, number: int, f: _Found, found: Sequence[_Found]) -> FittedObject:
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

    def _misfit(self, f: _Found, found: Sequence[_Found]) -> float:
        """Compare the drawn object with its pixels: wrong ones as a share of its own, in units of MISFIT_SHARE."""
        _, depth = self._scene_without(f, found)
        visible = (f.depth < depth - kernels.AHEAD) & ~self._robot[f.window]
        own = f.own[f.window]
        missed = int((own & ~visible).sum()) + int(f.own.sum() - own.sum())
        invented = int((visible & ~self._thing[f.window]).sum())
        return (missed + invented) / max(1, int(f.own.sum())) / MISFIT_SHARE
