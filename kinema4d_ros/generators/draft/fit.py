"""Fit of the objects on a table to an image with measured depth.

    image, depth, exact robot ─ segments ─> visible pixels of each object
    pixels + support (table, another object's top, a bin's floor, or the fingers) ─ shapes_fit ─> weighted estimates

Objects are fitted from the lowest to the highest, so that what an object may stand on is known. Nothing is assumed
about hidden sides except that objects are compact; `FittedObject.estimates` spread as far as the pixels allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.core.pointmap import GripTrack, PointmapSequence
from kinema4d_ros.generators.carry import PAST_TIPS_M
from kinema4d_ros.generators.composite import MARGIN_PX
from kinema4d_ros.generators.draft._kernels import BIN, BOX, CUP, CYLINDER, OTHER, OWN, SPHERE, UNKNOWN
from kinema4d_ros.generators.draft.fingers import PAD_SLACK_M, Grasp, measured_fingers
from kinema4d_ros.generators.draft.hull import Hull, fit_hulls
from kinema4d_ros.generators.draft.scene import Estimate, FittedObject, FittedScene
from kinema4d_ros.generators.draft.segments import (
    Observation,
    find_edges,
    find_segments,
    median_lab,
    observe,
    two_colours,
)
from kinema4d_ros.generators.draft.shapes_fit import (
    KINDS,
    Fit,
    Pixels,
    choose,
    draw_fits,
    fit_gripped,
    fit_shapes,
    misfit_of,
    shape_estimate,
    weigh_grasped,
)
from kinema4d_ros.generators.inpaint import grow_mask
from kinema4d_ros.generators.protocol import Cancel, Progress, raise_if_cancelled
from kinema4d_ros.physics.parts import BIN_WALL_M

__all__ = ["NOISE_M", "NOISE_RELATIVE", "RobotFrame", "fit_scene"]

RobotFrame = PointmapSequence | tuple[NDArray[np.uint8], NDArray[np.float32]]
"""The exact robot of frame 0: a sequence, of which the first frame is used, or its link_ids and xyz."""

NOISE_M, NOISE_RELATIVE = 0.002, 0.001
"""Standard deviation of a depth: metres, plus a share of the depth. Noise seen on the table is added."""
FOOTPRINT_M = 0.003
"""Pixels closer together than this on the object do not count as independent measurements."""
CORRELATION = 8.0
"""Pixels that count as one independent measurement, because errors of model and camera are common to neighbours."""
PIXELS = 700
"""Pixels that a fit looks at: all along the outline, a grid elsewhere."""
NEAR_M = 0.15
"""Objects farther from the gripper's path than this are fitted coarsely."""
COARSE_DRAWS = 8
SURE_MISFIT = 0.25
"""Below this the rarer shapes are not tried for coarse objects."""
HULL_MISFIT = 0.15
"""From this on a hull is tried."""
PIECES_M = 0.05
"""Pieces of one colour that are closer than this may be one object behind something nearer."""
SMALL_SHARE = 6e-4
"""Things with fewer pixels, as a share of the image, that no shape explains are not taken for objects."""
HIDDEN_NOTE = 0.5
EXPLAINED_M = 0.01
BESIDE_M = 0.005
"""The middle of what stands on an object is at most this far outside of it; so far inside, it is right above."""
SPLIT_MISFIT = 0.3
"""From this misfit on it is tried whether an object is two, one on the other."""
SPLIT_NATS = 3.0
SPLIT_PIXELS = 30
SPLIT_CHROMA = 6.0
"""Least difference of colour, in CIELAB, between two stacked objects that were taken for one."""
LEDGE_M, LEDGES, LEDGE_RATIO = 0.003, 3, 2.5
"""Bins of heights, how many of the fullest are tried, and how much fuller they are than usual."""
GRASP_NATS = 4.0
HANGS_NATS = 3.0
"""Evidence for a free underside, against standing on the table, from which an object between the fingers hangs."""
OFFSET_NOTE_M = 0.003
BEYOND_M = 0.01
"""Things farther than this beyond the edges of the table are surroundings."""


@dataclass(eq=False)
class _Found:
    """An object while it is being fitted."""

    mask: NDArray[np.bool_]
    pixels: Pixels
    fits: list[tuple[Fit | Hull, float]]
    misfit: float
    base_m: float
    coarse: bool
    held: bool = False

    @property
    def best(self) -> Fit | Hull:
        return self.fits[0][0]

    @property
    def cost(self) -> float:
        return self.best.cost(self.pixels)


def fit_scene(
    image: NDArray[np.uint8],
    depth: NDArray[np.float32],
    robot: RobotFrame,
    camera: PinholeCamera,
    *,
    table_height_m: float,
    grip: GripTrack | None = None,
    near: NDArray[np.float64] | None = None,
    draws: int = 32,
    seed: int = 0,
    noise_m: float = NOISE_M,
    noise_relative: float = NOISE_RELATIVE,
    cancel: Cancel | None = None,
) -> FittedScene:
    """Fit the objects that stand on the table or are between the fingers.

    Args:
        image: (H, W, 3) uint8 RGB, rectified.
        depth: (H, W) float32 measured z in metres, NaN = unknown.
        robot: exact robot of the same moment in the same camera.
        camera: rectified, with its pose.
        table_height_m: of the supporting plane above the robot's base.
        grip: of the same moment (its first frame is used); None: nothing is held.
        near: (N, 3) float64 path of the gripper, metres, base frame: objects away from it are fitted coarsely.
        draws: hypotheses for each object.
        seed: of the draws.
        noise_m: standard deviation of the depth, metres.
        noise_relative: the same as a share of the depth, added.
        cancel: called between objects.

    Raises:
        GeneratorError: GENERATOR_BAD_REQUEST for arrays of other shapes or types.
        Cancelled: as `cancel` asked.
    """
    ids, xyz, sequence_grip = _robot_frame(robot)
    _check(image, depth, ids, camera, draws)
    if grip is None:
        grip = sequence_grip
    if not np.isfinite(depth).any():
        return FittedScene((), table_height_m, ("the depth image is empty: no object can be measured",), 0.0)
    margin = max(1.0, MARGIN_PX * camera.width / 720)
    drawn, opening_m = ids != 0, None
    if grip is not None and drawn.any():
        drawn, grip, opening_m = measured_fingers(drawn, xyz, depth, camera, grip)
    robot_mask = grow_mask(drawn, margin) if drawn.any() else np.zeros(ids.shape, bool)
    seen = observe(depth, robot_mask, camera, table_height_m)
    labels, standing = find_segments(image, seen)
    notes = list(_table_notes(seen))
    table = find_edges(seen)
    blended = _blended(labels, seen)
    work = _Work(camera, seen, blended, table_height_m, grip, opening_m, near, noise_m, noise_relative)
    found: list[_Found] = []
    masks = [labels == k for k in range(1, int(labels.max()) + 1)]
    seen_things = len(masks)
    masks = [mask for mask in masks if work.reachable(mask, table)]
    if len(masks) < seen_things:
        notes.append(f"{seen_things - len(masks)} things beyond the edges of the table were left out")
    order = np.argsort([np.percentile(seen.height[mask], 5) for mask in masks], kind="stable")
    for step, k in enumerate(order):
        raise_if_cancelled(cancel, Progress("fit", step, len(masks)))
        found += work.fit_stack(image, masks[k], found)
    found = work.join_pieces(found, image)
    small = SMALL_SHARE * labels.size
    scraps = [one for one in found if one.misfit > 1 and int(one.mask.sum()) < small]
    if scraps:
        found = [one for one in found if one not in scraps]
        notes.append(f"{len(scraps)} small things above the table could not be made out; a nearer view would help")
    found.sort(key=lambda f: float(np.median(seen.smooth[f.mask])))
    objects = []
    for number, one in enumerate(found, 1):
        raise_if_cancelled(cancel, Progress("draw", number - 1, len(found)))
        name = f"object_{number}"
        estimates = _estimates(one, draws, seed + 7919 * number)
        objects.append(FittedObject(name, one.mask, estimates, one.misfit, "measured", one.held))
        notes += work.notes(name, one, found)
    unexplained = work.unexplained(found, standing)
    return FittedScene(tuple(objects), table_height_m, tuple(notes), unexplained, table)


@dataclass(frozen=True, eq=False)
class _Work:
    """What every object's fit needs."""

    camera: PinholeCamera
    seen: Observation
    blended: NDArray[np.bool_]
    table_m: float
    grip: GripTrack | None
    opening_m: float | None
    near: NDArray[np.float64] | None
    noise_m: float
    noise_relative: float

    def fit(self, mask: NDArray[np.bool_], found: Sequence[_Found]) -> _Found | None:
        """Fit one object; None if too little of it was measured."""
        pixels = self.pixels(mask)
        if int(pixels.own.sum()) < 6:
            return None
        coarse = self._away(pixels.points)
        tops, floors, above = self._supports(pixels, found)
        # What is inside a bin or right above something solid cannot stand on the table.
        bases = floors[-1:] or above or [self.table_m, *tops]
        one = min((self._fit_on(mask, pixels, base, coarse) for base in bases), key=lambda found: found.cost)
        return self._if_held(one)

    def reachable(self, mask: NDArray[np.bool_], table: tuple[float, float, float, float] | None) -> bool:
        """Return whether something is over the table or near the gripper; what is beyond the edges is surroundings."""
        if table is None:
            return True
        points = self.seen.eye + self.seen.rays[mask] * self.seen.smooth[mask][:, None]
        x0, x1, y0, y1 = table
        x, y, _ = np.nanmedian(points, axis=0)
        if x0 - BEYOND_M < x < x1 + BEYOND_M and y0 - BEYOND_M < y < y1 + BEYOND_M:
            return True
        if self.grip is None:
            return False
        return bool(np.nanmin(np.linalg.norm(points - self.grip.base_T_grip[0, :3, 3], axis=1)) < NEAR_M)

    def fit_stack(self, image: NDArray[np.uint8], mask: NDArray[np.bool_], found: Sequence[_Found]) -> list[_Found]:
        """Fit one object; if that explains the pixels badly, also two, one on the other, if their colours differ."""
        one = self.fit(mask, found)
        if one is None:
            return []
        if one.misfit < SPLIT_MISFIT or one.coarse or one.held:
            return [one]
        best, cost = [one], one.cost - SPLIT_NATS
        for ledge in self._ledges(mask):
            with np.errstate(invalid="ignore"):
                upper = mask & (self.seen.height > ledge + LEDGE_M)
            lower = mask & ~upper
            if min(upper.sum(), lower.sum()) < SPLIT_PIXELS:
                continue
            tints = (median_lab(image, part)[1:] for part in (upper, lower))
            if float(np.linalg.norm(np.subtract(*tints))) < SPLIT_CHROMA:
                continue
            below = self.fit(lower, found)
            above = None if below is None else self.fit(upper, [*found, below])
            if below is None or above is None or above.base_m <= self.table_m:
                continue
            if above.cost + below.cost < cost:
                best, cost = [below, above], above.cost + below.cost
        return best

    def _ledges(self, mask: NDArray[np.bool_]) -> list[float]:
        """List heights above the table, metres, at which many pixels lie: level faces, but for the highest."""
        heights = self.seen.height[mask]
        heights = heights[np.isfinite(heights)]
        top = float(np.percentile(heights, 98))
        if not heights.size or top < 4 * LEDGE_M:
            return []
        counts, edges = np.histogram(heights, np.arange(LEDGE_M, top - LEDGE_M, LEDGE_M))
        usual = max(float(np.median(counts)), 1.0)
        peaks = [k for k in np.argsort(-counts, kind="stable")[:LEDGES] if counts[k] > LEDGE_RATIO * usual]
        return [float(edges[k] + edges[k + 1]) / 2 for k in peaks]

    def join_pieces(self, found: Sequence[_Found], image: NDArray[np.uint8]) -> list[_Found]:
        """Join visible parts of one object that something nearer or the robot separates, if the evidence says so."""
        found = list(found)
        colours = [median_lab(image, one.mask) for one in found]
        pairs = [(i, j) for i in range(len(found)) for j in range(i)]
        pairs.sort(key=lambda ij: min(found[ij[0]].mask.sum(), found[ij[1]].mask.sum()))
        gone: set[int] = set()
        for i, j in pairs:
            a, b = found[i], found[j]
            if {i, j} & gone or a.coarse or b.coarse or two_colours(colours[i], colours[j]) or not _close(a, b):
                continue
            others = [one for k, one in enumerate(found) if k not in (i, j) and k not in gone]
            union = self.fit(a.mask | b.mask, others)
            # The fingers hold one object.
            both = a.held and b.held and union is not None and union.held
            better = union is not None and union.cost < a.cost + b.cost and union.misfit < 1
            if union is not None and (both or better):
                found[j] = union
                gone.add(i)
        return [one for k, one in enumerate(found) if k not in gone]

    def _fit_on(self, mask: NDArray[np.bool_], pixels: Pixels, base: float, coarse: bool) -> _Found:
        kinds = (BOX, CYLINDER, SPHERE) if coarse else KINDS
        fits = fit_shapes(pixels, base, kinds=kinds, quick=coarse)
        if coarse and misfit_of(fits[0].hits(pixels), pixels) > SURE_MISFIT:
            rest = fit_shapes(pixels, base, kinds=tuple(k for k in KINDS if k not in kinds), quick=True)
            fits = sorted(fits + rest, key=lambda f: f.cost(pixels))
        return _weigh(_Found(mask, pixels, [(fit, 0.0) for fit in fits], 0.0, base, coarse))

    def _away(self, points: NDArray[np.float64]) -> bool:
        if self.near is None or not len(self.near):
            return False
        path = np.asarray(self.near, np.float64)[:, None, :]
        return bool(np.linalg.norm(path - points[None, :: max(1, len(points) // 50)], axis=-1).min() > NEAR_M)

    def _supports(self, pixels: Pixels, found: Sequence[_Found]) -> tuple[list[float], list[float], list[float]]:
        """List the heights of other objects' tops and of bins' floors that the object may stand on.

        The third list has the tops of those that the object is right above.
        """
        points = pixels.points
        centre, lowest = np.median(points[:, :2], 0), float(np.percentile(points[:, 2], 10))
        tops, floors, above = [], [], []
        for other in found:
            if other.held:
                continue
            fit = next((fit for fit, _ in other.fits if isinstance(fit, Fit)), None)
            if fit is None:
                continue
            c, s = math.cos(fit.p[2]), math.sin(fit.p[2])
            dx, dy = centre - fit.p[:2]
            outside = max(abs(c * dx + s * dy) - fit.p[3] / 2, abs(c * dy - s * dx) - fit.p[4] / 2)
            if outside > BESIDE_M:
                continue
            if fit.kind in (BIN, CUP):
                floors.append(float(fit.p[6]) + BIN_WALL_M)
            elif fit.kind in (BOX, CYLINDER) and fit.top < lowest + 0.008:
                tops.append(fit.top)
                if outside < -BESIDE_M:
                    above.append(fit.top)
        return tops, floors, above

    def _if_held(self, one: _Found) -> _Found:
        """Fit with a free underside what is between the fingers; held if it hangs, or if both pads touch it."""
        if self.grip is None:
            return one
        pose, width, fingers = self.grip.base_T_grip[0], float(self.grip.width_m[0]), self.grip.fingers
        p_grip = (one.pixels.points - pose[:3, 3]) @ pose[:3, :3]
        reach = np.array([width / 2 + PAD_SLACK_M, fingers.pad_width_m / 2 + PAD_SLACK_M])
        between = (np.abs(p_grip[:, :2]) < reach).all(1)
        between &= (p_grip[:, 2] > -fingers.length_m) & (p_grip[:, 2] < fingers.tip_m + PAST_TIPS_M + PAD_SLACK_M)
        if between.sum() < max(3, 0.02 * len(between)):
            return one
        up, origin, floor = np.array([0.0, 0.0, 1.0]), np.array([*pose[:2, 3], 0.0]), self.table_m
        if -pose[2, 2] < math.cos(math.radians(4.0)):
            # The object is tilted with the gripper.
            up, origin, floor = -pose[:3, 2], pose[:3, 3], -math.inf
        x = pose[:3, 0] - (pose[:3, 0] @ up) * up
        x = x / np.linalg.norm(x)
        frame = np.eye(4)
        frame[:3, :3], frame[:3, 3] = np.stack([x, np.cross(up, x), up], 1), origin
        pixels = one.pixels.turned(frame)
        fits = fit_shapes(pixels, floor, kinds=(BOX, CYLINDER, SPHERE), free_base=True)
        if self.opening_m is not None:
            point = float((pose[:3, 3] - origin) @ up)
            palm = point + fingers.length_m if fingers.length_m > 0 else math.inf
            grasped = fit_gripped(pixels, floor, Grasp(self.opening_m, point, palm))
            # What is held touches both pads, unless the pixels speak clearly against it.
            likely = grasped[0].cost(pixels) < fits[0].cost(pixels) + GRASP_NATS
            fits = grasped if likely else sorted(fits + grasped, key=lambda fit: fit.cost(pixels))
        hangs = one.base_m == self.table_m and fits[0].cost(pixels) < one.cost - HANGS_NATS
        x_extent = np.ptp(np.percentile(p_grip[:, 0], [3, 97])) if len(p_grip) else 0.0
        if not hangs and x_extent < width - PAD_SLACK_M:
            return one
        return _weigh(_Found(one.mask, pixels, [(fit, 0.0) for fit in fits], 0.0, floor, one.coarse, True))

    def pixels(self, mask: NDArray[np.bool_]) -> Pixels:
        """Choose the pixels around an object: every one along its outline, a grid elsewhere."""
        seen = self.seen
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        extra = 4 + max(len(rows), len(columns)) // 3
        top, left = max(int(rows[0]) - extra, 0), max(int(columns[0]) - extra, 0)
        part = (slice(top, int(rows[-1]) + extra + 1), slice(left, int(columns[-1]) + extra + 1))
        # Where only colours part two objects, as in a stack, the pixels between them may be of either.
        own, unknown = mask[part], (seen.unknown | self.blended)[part]
        kernel = np.ones((3, 3), np.uint8)
        thick = own.astype(np.uint8)
        band = (cv2.dilate(thick, kernel, iterations=2) > 0) & ~(cv2.erode(thick, kernel, iterations=2) > 0)
        v, u = np.mgrid[0 : own.shape[0], 0 : own.shape[1]]
        along = max(1, math.ceil(float(band.sum()) / (0.6 * PIXELS)))
        rest = max(2, math.ceil(math.sqrt(float((~band).sum()) / (0.4 * PIXELS))))
        take_band = band & ((u + v) % along == 0)
        take_rest = ~band & (u % rest == 0) & (v % rest == 0)
        chosen = take_band | take_rest
        depth = seen.depth[part][chosen].astype(np.float64)
        kinds = np.where(own, OWN, OTHER).astype(np.uint8)
        kinds[unknown] = UNKNOWN
        kinds = kinds[chosen]
        depth[kinds == UNKNOWN] = 1.0
        sigma = np.hypot(self.noise_m + self.noise_relative * depth, seen.noise_m)
        footprint = float(np.median(seen.smooth[mask])) / float(self.camera.K[0, 0])
        independent = min(1.0, (footprint / FOOTPRINT_M) ** 2) / CORRELATION
        weight = np.where(take_band, float(along), float(rest * rest))[chosen] * independent
        rays = np.ascontiguousarray(seen.rays[part][chosen])
        return Pixels(seen.eye, rays, depth, sigma, kinds, weight, np.eye(4))

    def notes(self, name: str, one: _Found, found: Sequence[_Found]) -> list[str]:
        """Say in words what could not be known of an object."""
        notes = []
        hits = one.best.hits(one.pixels)
        hit = np.isfinite(hits)
        weight = one.pixels.weight
        total = float(weight[hit].sum())
        nearer = hit & (one.pixels.kinds == OTHER) & (one.pixels.depth < hits - 3 * one.pixels.sigma)
        unknown = hit & (one.pixels.kinds == UNKNOWN)
        hidden = float(weight[nearer | unknown].sum()) / max(total, 1e-9)
        if hidden > HIDDEN_NOTE:
            by = "the robot or missing depth" if weight[unknown].sum() > weight[nearer].sum() else "nearer objects"
            notes.append(f"{name} is hidden to {100 * hidden:.0f} % by {by}; its hidden extent is a guess")
        if one.misfit > 1:
            notes.append(f"{name} is not explained by any shape; a second view would help")
        return notes

    def unexplained(self, found: Sequence[_Found], standing: NDArray[np.bool_]) -> float:
        """Return the share of standing pixels that no object's best shape explains within a centimetre."""
        total = int((standing & ~self.seen.unknown).sum())
        if not total:
            return 0.0
        explained = 0.0
        for one in found:
            own = one.pixels.own
            good = np.abs(one.best.hits(one.pixels) - one.pixels.depth) < EXPLAINED_M
            share = float(one.pixels.weight[own & good].sum() / max(one.pixels.weight[own].sum(), 1e-9))
            explained += share * int((one.mask & ~self.seen.unknown).sum())
        return float(np.clip(1 - explained / total, 0.0, 1.0))


def _blended(labels: NDArray[np.int32], seen: Observation) -> NDArray[np.bool_]:
    """Return (H, W) whether a pixel touches one of another object at about its own depth."""
    out = np.zeros(labels.shape, np.bool_)
    for axis in (0, 1):
        a = (slice(None, -1), slice(None)) if axis == 0 else (slice(None), slice(None, -1))
        b = (slice(1, None), slice(None)) if axis == 0 else (slice(None), slice(1, None))
        with np.errstate(invalid="ignore"):
            touch = (labels[a] != labels[b]) & (labels[a] > 0) & (labels[b] > 0)
            touch &= np.abs(seen.smooth[a] - seen.smooth[b]) < seen.jump_m
        out[a] |= touch
        out[b] |= touch
    return out


def _close(a: _Found, b: _Found) -> bool:
    p, q = (one.pixels.points @ one.pixels.base_T_frame[:3, :3].T + one.pixels.base_T_frame[:3, 3] for one in (a, b))
    p, q = p[:: max(1, len(p) // 60)], q[:: max(1, len(q) // 60)]
    return bool(np.linalg.norm(p[:, None] - q[None], axis=-1).min() < PIECES_M)


def _weigh(one: _Found) -> _Found:
    """Set misfit and shares of fits that are sorted by cost; add hulls where simple shapes explain too little."""
    pixels = one.pixels
    candidates = [(fit, fit.cost(pixels)) for fit, _ in one.fits]
    misfit = misfit_of(one.best.hits(pixels), pixels)
    simple = one.fits[0][0]
    if misfit > HULL_MISFIT and isinstance(simple, Fit):
        hulls = fit_hulls(pixels, simple.p[:2], one.base_m, stands=not one.held)
        # The hulls share the evidence of one shape.
        candidates += [(hull, hulls[0][0].cost(pixels) - math.log(share)) for hull, share in hulls]
        candidates.sort(key=lambda c: c[1])
        misfit = misfit_of(candidates[0][0].hits(pixels), pixels)
    shares = choose([cost for _, cost in candidates], misfit)
    fits = [(fit, float(share)) for (fit, _), share in zip(candidates, shares, strict=True) if share > 0]
    return replace(one, fits=fits, misfit=misfit)


def _estimates(one: _Found, draws: int, seed: int) -> tuple[Estimate, ...]:
    """Return draws of every likely kind, as many as its share; a hull is one draw with its share as weight."""
    frame = one.pixels.base_T_frame
    count = min(draws, COARSE_DRAWS) if one.coarse else draws
    chosen: list[Estimate] = []
    for k, (fit, share) in enumerate(one.fits):
        if isinstance(fit, Hull):
            chosen.append(fit.estimate(frame, share))
            continue
        number = max(1, round(share * count))
        thin = 1 if one.coarse else 2
        drawn = draw_fits(one.pixels, fit, one.base_m, number - 1, (seed + k) % (1 << 31), thin=thin)
        if fit.grasp is not None:
            order, weights = weigh_grasped(one.pixels, [fit, *drawn], one.base_m)
            chosen += [shape_estimate(each, frame, share * w) for each, w in zip(order, weights.tolist(), strict=True)]
            continue
        chosen += [shape_estimate(each, frame, share / number) for each in (fit, *drawn)]
    return tuple(chosen)


def _table_notes(seen: Observation) -> list[str]:
    if abs(seen.table_offset_m) <= OFFSET_NOTE_M:
        return []
    where = "above" if seen.table_offset_m > 0 else "below"
    return [
        f"the table appears {1000 * abs(seen.table_offset_m):.0f} mm {where} its given height;"
        " check table_height_m and the camera's calibration"
    ]


def _robot_frame(robot: RobotFrame) -> tuple[NDArray[np.uint8], NDArray[np.float32], GripTrack | None]:
    if isinstance(robot, PointmapSequence):
        return robot.link_ids[0], robot.xyz[0], robot.grip.at(slice(0, 1)) if robot.grip is not None else None
    return *robot, None


def _check(
    image: NDArray[np.uint8], depth: NDArray[np.float32], ids: NDArray[np.uint8], camera: PinholeCamera, draws: int
) -> None:
    size = (camera.height, camera.width)
    for name, array, shape in (("image", image, (*size, 3)), ("depth", depth, size), ("link_ids", ids, size)):
        if array.shape != shape:
            raise GeneratorError(
                f"{name} is {array.shape}",
                expected=f"{shape}, the camera's size",
                hint="use camera.scaled(width, height)",
                code=ErrorCode.GENERATOR_BAD_REQUEST,
            )
    if image.dtype != np.uint8:
        raise GeneratorError(f"image is {image.dtype}", expected="uint8 RGB", code=ErrorCode.GENERATOR_BAD_REQUEST)
    if draws < 1:
        raise GeneratorError(f"draws is {draws}", expected="1 or more", code=ErrorCode.GENERATOR_BAD_REQUEST)
