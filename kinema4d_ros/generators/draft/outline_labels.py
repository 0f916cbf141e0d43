"""What every pixel shows: no object, an object's upward surface, or another one, from the detector and from colours.

Detection ─ ownership by the objects' colours ─ densities of colours (outline_colours) ─> costs per label

The detector's labels are blurred over some pixels and mixed where objects hide each other, while the edges in the image
are exact. Objects are taken as painted in one colour each, in light and shade.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.generators.draft._kernels import BIN, BOX, SPHERE, Z0
from kinema4d_ros.generators.draft.detection import Detected, Detection
from kinema4d_ros.generators.draft.outline_colours import (
    across_image,
    ground_density,
    median_colour,
    same_colour,
    surface_density,
)
from kinema4d_ros.generators.draft.outline_shapes import FLOATING_M, NAMES

__all__ = ["Found", "Labels", "OutlineOptions"]

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_NONE, _UP, _SIDE = range(3)
_AGREED = 0.75
"""Share of an object's pixels that the colours confirm in general; with less of them its votes are doubted."""
_MOST_DOUBTED = 4.0
"""Largest factor on the votes' spreads."""
_OVERLAP = 0.7
"""Two objects of one colour whose centres are nearer than this share of their mean width are one."""
_ONE_COLOUR = 0.3
"""Agreement of two colours (`same_colour`) from which they are one."""
_SURE = 0.75
"""Mean probability of showing an object from which pixels are a part of one, not a shadow beside it."""
_NEAR = 0.5
"""Share of a pixel that an object gets beside its own pixels, before colours are compared."""
_CLAIM = 4.0
"""Pixels of an object's colour near its sides do not teach other objects' colours: factor on the sides' share."""


@dataclass(frozen=True)
class OutlineOptions:
    """Settings of the fit without depth.

    Attributes:
        draws: per object, over all its kinds.
        sweeps: rounds over all objects; each sees the others as fitted last.
        population, rounds: shapes per round of the first search, and rounds.
        steps: of the random walk that ends every search.
        wrong: probability that the detector's statement about a pixel is worthless.
        heat: share of independent information per pixel of PIXEL_M.
        doubt: probability of labels that the detector sees nearby only; colours decide then.
        reach_m: distance for `doubt`: how far off the detector's edges may be, metres.
        around_m: colours up to this far around an object are those of the ground, metres.
        redrawn: weight for a surface's colour of pixels that are drawn as another one.
        unlikely: kinds with a smaller share of the evidence give no draws.
        least_gain: objects are dropped that the detector prefers by less than this to none, natural logarithm.
        seed: of search and draws.
    """

    draws: int = 16
    sweeps: int = 2
    population: int = 48
    rounds: int = 4
    steps: int = 120
    wrong: float = 0.02
    heat: float = 0.15
    doubt: float = 0.03
    reach_m: float = 0.009
    around_m: float = 0.06
    redrawn: float = 0.1
    unlikely: float = 0.03
    least_gain: float = 2.5
    seed: int = 0


@dataclass
class Found:
    """An object while it is fitted.

    Attributes:
        detected: what was voted.
        voted, stated: (8,) votes, heights in the base frame, and their spreads.
        sigma: (8,) spreads, wider where the votes are doubted.
        window: rows and columns that may show it.
        voters, own: (H, W) pixels that voted for it, and those that show it.
        kind, shape: drawn now.
        tried: energy and shape of the best of every kind that was tried.
        depth, up: (h, w) of the drawn shape in the window: depth, inf = misses; whether it faces up there.
        up_cost, side_cost: (h, w) costs of the labels.
        gain: (h, w, 2) by how much the detector alone prefers a face of the object to none.
    """

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
    gain: Array = field(default_factory=lambda: np.zeros((0, 0, 2)))


class Labels:
    """Costs of all labels, for one image.

    Attributes:
        none_cost: (H, W) of showing no object.
        owner: (H, W) index of the detected object that the pixel votes for.
        thing: (H, W) True where an object is seen.
    """

    def __init__(
        self,
        detection: Detection,
        camera: PinholeCamera,
        robot: Bools,
        floor: float,
        options: OutlineOptions,
        image: NDArray[np.uint8] | None,
    ) -> None:
        self._detection, self._camera, self._robot = detection, camera, robot
        self._floor, self._options = floor, options
        self._colours = np.zeros((0, 0, 3)) if image is None else image.astype(np.float64) / 255.0
        self._none = detection.faces[..., _NONE].astype(np.float64)
        shares = np.stack([o.share for o in detection.objects]) if detection.objects else np.zeros((0, 1, 1))
        self._shares = shares / np.maximum(shares.sum(0), 0.3)
        self.owner = shares.argmax(0) if len(shares) else np.zeros(robot.shape, np.int64)
        self.thing = (self._none < 0.5) & ~robot
        self.none_cost = self._cost(self._none)

    def footprint_m(self, f: Found) -> float:
        """Return the width of a pixel at the object, metres."""
        eye, focal = self._camera.base_T_camera[:3, 3], np.sqrt(self._camera.K[0, 0] * self._camera.K[1, 1])
        return float(np.linalg.norm([*(f.voted[:2] - eye[:2]), eye[2] - self._floor]) / focal)

    def _cost(self, probability: Array, window: tuple[slice, slice] | None = None) -> Array:
        """Return costs of a label: negative logarithms, never surer than `wrong`, 0 on the robot."""
        wrong = self._options.wrong
        cost = -np.log((1.0 - wrong) * probability + wrong)
        cost[self._robot if window is None else self._robot[window]] = 0.0
        return np.asarray(cost, np.float64)

    def _number(self, f: Found) -> int:
        return next(n for n, d in enumerate(self._detection.objects) if d is f.detected)

    def update(self, found: Sequence[Found], *, redraw: bool) -> None:
        """Set the costs of all labels; with an image, from colours too. With `redraw`, drawn shapes teach them."""
        none, said = self._none, []
        for f in found:
            n = self._number(f)
            said.append(self._shares[n][f.window][..., None] * self._detection.faces[f.window][..., [_UP, _SIDE]])
            f.gain = self._cost(none[f.window], f.window)[..., None] - self._cost(said[-1], f.window)
        if self._colours.size and found:
            none, said = self._recolour(found, said, self._drawn(found) if redraw else None)
            self._assign(found, none, said)
        self.none_cost = self._cost(none)
        for f, p in zip(found, said, strict=True):
            cost = self._cost(p, f.window)
            f.up_cost, f.side_cost = cost[..., 0], cost[..., 1]

    def _recolour(
        self, found: Sequence[Found], said: Sequence[Array], drawn: NDArray[np.int64] | None
    ) -> tuple[Array, list[Array]]:
        """Return probabilities of no object (H, W) and of each object's faces (h, w, 2), given the colours too."""
        none, doubt = self._none, self._options.doubt
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
            likely = sum(f.detected.shapes.get(NAMES[k], 0.0) for k in (BIN, SPHERE))
            either = likely if drawn is None else float(f.kind in (BIN, SPHERE))
            both = ground_density(colours, weight[:, 1] + weight[:, 2], shades=False)
            across = across_image(rows, columns, self._vertical(f))
            for face, place in ((0, None), (1, across)):
                made[rows, columns, face] = either * both + (1 - either) * surface_density(
                    colours, weight[:, face + 1], place
                )
            density.append(made)
            part = ground[f.window]
            part[rows, columns] = np.maximum(part[rows, columns], self._ground(f, drawn, colours))
        inside = ground > 0
        none_mass = np.where(inside, (none + doubt) * ground, none)
        total = none_mass.copy()
        # Doubt is about where an edge is: labels are possible near where the detector says them.
        mass = []
        for f, p, d in zip(found, said, density, strict=True):
            reach = self._options.reach_m / self.footprint_m(f)
            mass.append((p + doubt * gaussian_filter(p, (reach, reach, 0), mode="nearest")) * d)
        for f, m in zip(found, mass, strict=True):
            total[f.window] += m.sum(-1)
        total = np.maximum(total, 1e-9)
        return np.where(inside, none_mass / total, none), [
            m / total[f.window][..., None] for f, m in zip(found, mass, strict=True)
        ]

    def _owned(self, found: Sequence[Found], said: Sequence[Array]) -> list[Array]:
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
            near = both + _NEAR * gaussian_filter(both, 2 * self._options.reach_m / self.footprint_m(f), mode="nearest")
            mass[number] = near * own
            total[f.window] += mass[number]
            sure[f.window] += both
            sides = own * gaussian_filter(p[..., 1], self._options.reach_m / self.footprint_m(f), mode="nearest")
            claimed[f.window] = np.maximum(claimed[f.window], np.clip(_CLAIM * sides, 0.0, 0.95))
        out = []
        for f, m in zip(found, mass, strict=True):
            faces = self._detection.faces[f.window][..., [_UP, _SIDE]].astype(np.float64)
            faces /= np.maximum(faces.sum(-1, keepdims=True), 1e-6)
            out.append((m / np.maximum(total, 1e-12)[f.window] * sure[f.window])[..., None] * faces)
        return out

    def _ground(self, f: Found, drawn: NDArray[np.int64] | None, colours: Array) -> Array:
        """Return the densities (N,) of colours (N, 3) among those around an object that are no object's."""
        pad = round(self._options.around_m / self.footprint_m(f))
        rows, columns = (slice(max(0, s.start - pad), s.stop + pad) for s in f.window)
        weight = np.where(self._robot, 0.0, self._none)[rows, columns] ** 2
        if drawn is not None:
            weight[drawn[rows, columns] > 0] *= self._options.redrawn
        return ground_density(colours, weight.ravel(), self._colours[rows, columns].reshape(-1, 3))

    def _assign(self, found: Sequence[Found], none: Array, said: Sequence[Array]) -> None:
        """Set the pixels of objects anew; votes of an object that has few of the pixels that voted count less."""
        best = none.copy()
        owner = np.full(none.shape, -1)
        for number, (f, p) in enumerate(zip(found, said, strict=True)):
            more = p.sum(-1) > best[f.window]
            owner[f.window][more] = number
            best[f.window][more] = p.sum(-1)[more]
        self.thing = (owner >= 0) & ~self._robot
        for number, f in enumerate(found):
            f.own = (owner == number) & ~self._robot
            shared, either = int((f.own & f.voters).sum()), int((f.own | f.voters).sum())
            f.sigma = f.stated * min(max(_AGREED * either / max(shared, 1), 1.0), _MOST_DOUBTED)

    def join(self, found: list[Found]) -> list[Found]:
        """Join objects of one colour whose votes overlap: the smaller is a part of the larger. Needs an image."""
        if not self._colours.size:
            return found
        kept: list[tuple[Found, Array]] = []
        for f in sorted(found, key=lambda f: -int(f.own.sum())):
            colour = np.median(self._colours[f.own], axis=0)
            # A shadow may be a pale or dark version of any colour; the detector is less sure of it.
            sure = float(1.0 - self._none[f.own].mean()) > _SURE
            whole = next((k for k, other in kept if sure and _one_object(k, f, other, colour)), None)
            if whole is None:
                kept.append((f, colour))
                continue
            share = self._shares[self._number(whole)]
            np.maximum(share, self._shares[self._number(f)], out=share)
            whole.voters = whole.own = whole.own | f.own
            # Each part voted for itself.
            apart = float(np.hypot(*(f.voted[:2] - whole.voted[:2])))
            whole.stated = whole.sigma = np.hypot(whole.stated, [apart / 2] * 6 + [0.0, 0.0])
            rows, columns = (
                slice(min(a.start, b.start), max(a.stop, b.stop)) for a, b in zip(whole.window, f.window, strict=True)
            )
            whole.window = (rows, columns)
        return [f for f in found if any(f is k for k, _ in kept)]

    def _drawn(self, found: Sequence[Found]) -> NDArray[np.int64]:
        """Return what the drawn shapes show (H, W): 0 nothing, 2 n + 1 and 2 n + 2 the faces of object n."""
        label = np.zeros(self._robot.shape, np.int64)
        depth = np.full(self._robot.shape, np.inf)
        for number, f in enumerate(found):
            nearer = f.depth < depth[f.window]
            label[f.window] = np.where(nearer, np.where(f.up, 2 * number + 1, 2 * number + 2), label[f.window])
            depth[f.window] = np.where(nearer, f.depth, depth[f.window])
        return label

    def _vertical(self, f: Found) -> Array:
        """Return the direction (2,) in the image, column and row, in which an object's vertical is seen."""
        T = self._camera.camera_T_base
        ends = np.array([[*f.shape[:2], f.shape[Z0]], [*f.shape[:2], f.shape[Z0] + 0.02]])
        uv = self._camera.project(ends @ T[:3, :3].T + T[:3, 3])
        return np.asarray(uv[1] - uv[0], np.float64)


def _one_object(a: Found, b: Found, a_colour: Array, b_colour: Array) -> bool:
    """Return whether two objects cannot both be there and have one colour."""
    near = float(np.hypot(*(a.voted[:2] - b.voted[:2])))
    size = 0.5 * float(a.voted[2:6].mean() + b.voted[2:6].mean())
    if near > _OVERLAP * size or abs(a.voted[6] - b.voted[6]) > FLOATING_M:
        return False
    return bool(max(same_colour(a_colour, b_colour), same_colour(b_colour, a_colour)) > _ONE_COLOUR)
