"""The robot without any learning: what differs from the empty scene, cut out along edges with GrabCut.

background picture ─┐
median of the video ┴─> compare() ─> seeds ─┐
rendered mask, boxes, points ───────────────┴─> GrabCut ─> mask ─> better_mask(): this one, or the prompt's
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration.edge_fit import FOUND, ON_EDGE_PX, mask_edge_offsets, outline_pixels
from kinema4d_ros.calibration.silhouette import signed_distance
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.segmentation.prompt import Prompt
from kinema4d_ros.segmentation.protocol import (
    ReportFrame,
    Segmentation,
    SegmentationError,
    as_stack,
    result_of,
    which_images,
)

__all__ = ["MIN_VIDEO", "Change", "ClassicalSegmenter", "better_mask", "compare", "median_background", "relight"]

# What changed against an empty scene: the background under today's light, and the changes that are not shadows.

Floats = NDArray[np.float32]

MIN_VIDEO = 5
"""With fewer images their median shows the robot, not what is behind it."""

_SHRINK = 6
_FIT_ROUNDS = 12
_DARK = 4.0
"""8-bit steps added to both sides of a ratio: below that, sensors count noise."""

_CHANGED, _SURE = 4.0, 7.0
"""Differences, in standard deviations of the noise, that are a change, and one beyond doubt."""

_SHADOW = (0.42, 1.03)
_SHADOW_COLOUR = 0.12
"""A shadow leaves this share of the light, alike in all colours within that much: no lamp is the only one."""

_SHARP = 0.25
"""A grey robot before a grey wall looks like that too; but its outline falls by this share of its whole depth within a
pixel, and that of a shadow, which has a penumbra, by less."""

_LEAST_PX = 30


class Change(NamedTuple):
    """An image beside its background.

    Attributes:
        features: (H, W, 3) uint8: light kept (110 = all), how its colour shifted, brightness: what tells robot from
            shadow.
        changed: (H, W) bool: differs by more than noise.
        solid: (H, W) bool: differs as no shadow does.
        sure: (H, W) bool: the part of it that is beyond doubt.
    """

    features: NDArray[np.uint8]
    changed: Bools
    solid: Bools
    sure: Bools


def relight(background: NDArray[np.uint8], image: NDArray[np.uint8]) -> Floats:
    """(H, W, 3) float32: the background as it would look in the image's light.

    Each colour gets a gain that varies smoothly over the image (a quadratic), fitted robustly: the robot and its
    shadow, as long as they fill less than about half of the image, do not pull it.
    """
    height, width = image.shape[:2]
    size = (max(1, width // _SHRINK), max(1, height // _SHRINK))
    new, old = (cv2.resize(i, size, interpolation=cv2.INTER_AREA).astype(np.float64) for i in (image, background))
    ratio = np.log((new + _DARK) / (old + _DARK)).reshape(-1, 3)
    good = ((new < 250) & (old < 250)).all(axis=2).reshape(-1)
    if np.count_nonzero(good) < 60:
        return np.asarray(background, np.float32)
    basis = _quadratic(size[1], size[0])
    rest = ratio - np.median(ratio[good], axis=0)
    gains = np.zeros((6, 3))
    for _ in range(_FIT_ROUNDS):
        spread = 1.4826 * np.median(np.abs(rest[good]), axis=0) + 0.01
        weight = np.sqrt(good) / (1 + np.sum((rest / spread) ** 2, axis=1) / 4)
        gains = np.linalg.lstsq(basis * weight[:, None], ratio * weight[:, None], rcond=None)[0]
        rest = ratio - basis @ gains
    # Smooth: computed small, enlarged.
    gain = cv2.resize(np.exp((basis @ gains).reshape(size[1], size[0], 3)), (width, height))
    return np.asarray(np.clip((background + _DARK) * gain - _DARK, 0, 255), np.float32)


def median_background(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(H, W, 3) uint8: what most of the images (T, H, W, 3) show at each pixel, in the light of the first.

    What never moves, such as the robot's foot, is part of it.
    """
    first = images[0]
    lit = [first, *(np.rint(relight(image, first)).astype(np.uint8) for image in images[1:])]
    return np.asarray(np.median(np.stack(lit), axis=0), np.uint8)


def compare(image: NDArray[np.uint8], background: NDArray[np.uint8]) -> Change:
    """An image (H, W, 3) uint8 against the background of the same size."""
    new = cv2.GaussianBlur(image.astype(np.float32), (0, 0), 0.7)
    old = cv2.GaussianBlur(relight(background, image), (0, 0), 0.7)
    ratio = (new + _DARK) / (old + _DARK)
    kept = ratio.mean(axis=2)
    colour = np.abs(ratio / kept[..., None] - 1).max(axis=2)
    difference = new - old
    noise = 1.4826 * float(np.median(np.abs(difference - np.median(difference, axis=(0, 1))))) + 1.0
    distance = np.sqrt(np.mean(difference**2, axis=2)) / noise
    changed = distance > _CHANGED
    shadow = (kept > _SHADOW[0]) & (kept < _SHADOW[1]) & (colour < _SHADOW_COLOUR)
    solid = changed & ~shadow
    solid |= _sharp_pieces(np.log(kept), changed, solid)
    sure = cv2.morphologyEx((solid & (distance > _SURE)).astype(np.uint8), cv2.MORPH_OPEN, np.ones((5, 5), np.uint8))
    warm = 128 + 200 * (ratio[..., 0] - ratio[..., 2]) / kept
    features = np.stack([110 * kept, warm, new.mean(axis=2)], axis=2)
    return Change(np.clip(features, 0, 255).astype(np.uint8), changed, solid, sure > 0)


def _sharp_pieces(depth: Floats, changed: Bools, solid: Bools) -> Bools:
    """(H, W) bool: pieces of changes that have a shadow's colour but not its soft outline.

    Args:
        depth: (H, W) float32 logarithm of the light kept.
        changed, solid: as in `Change`.
    """
    square = np.ones((3, 3), np.uint8)
    soft = cv2.GaussianBlur(depth, (0, 0), 0.7)
    slope = np.hypot(*(cv2.Sobel(soft, cv2.CV_32F, 1 - axis, axis, scale=1 / 8) for axis in (0, 1)))
    steepest = cv2.dilate(slope, np.ones((5, 5), np.uint8))
    rest = cv2.morphologyEx(changed.astype(np.uint8), cv2.MORPH_CLOSE, square) == 0
    found = np.zeros(changed.shape, np.bool_)
    if not rest.any():
        return found
    noise = float(np.median(steepest[rest]))
    count, pieces, stats, _ = cv2.connectedComponentsWithStats(
        cv2.morphologyEx((changed & ~solid).astype(np.uint8), cv2.MORPH_OPEN, square), connectivity=4
    )
    rim = (cv2.dilate(rest.astype(np.uint8), square) > 0) & (pieces > 0)
    for i in range(1, count):
        outline = steepest[rim & (pieces == i)]
        if stats[i, cv2.CC_STAT_AREA] < _LEAST_PX or len(outline) < 10:
            continue
        fall = max(-float(np.median(soft[pieces == i])), 0.05)
        if float(np.median(outline)) - noise > _SHARP * fall:
            found |= pieces == i
    return found


def _quadratic(height: int, width: int) -> NDArray[np.float64]:
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    return np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=2).reshape(-1, 6)


# Is a refined mask worse than the prompt it came from? Told without truth, from outlines and the image's edges.

OUTLINE_SHARE, AREA_SHARE = 0.12, 0.05
"""More of the outline, or of the prompt's area, lost and added in pieces: the two masks contradict each other."""

NEAR_SHARE = 0.01
"""Of the image's width: outlines this far apart, beyond what the prompt is off everywhere, are different outlines."""


def better_mask(image: NDArray[np.uint8], prompt: Bools, refined: Bools) -> Literal["refined", "prompt", "doubtful"]:
    """Which of two masks (H, W) of an image (H, W, 3) to believe.

    A prompt that is off by some pixels is off by about as much everywhere, and refining brings its outline to the
    image's. Where whole pieces come or go instead, one of the two is wrong: the refined one if the prompt's outline
    lies on edges of the image already; otherwise that cannot be told ("doubtful").
    """
    row, column = outline_pixels(prompt)
    if len(row) == 0:
        return "refined"
    near_px = NEAR_SHARE * image.shape[1]
    to_prompt, to_refined = signed_distance(prompt), signed_distance(refined)
    off = np.abs(to_refined[row, column])
    # Most of the outline may be lost: a low percentile is what the prompt is off where both see the same outline.
    off_px = min(float(np.percentile(off, 30)), image.shape[1] / 2)
    beyond = 3 * off_px + near_px
    lost = float(np.mean(to_refined[row, column] > beyond))
    added = np.mean(to_prompt[outline_pixels(refined)] > beyond) if refined.any() else 0.0
    # Pieces within the outline do not show there; a thin rim does not count.
    rim = 2 * float(np.median(off)) + 1
    pieces = ((to_prompt < -rim) & ~refined) | (refined & (to_prompt > rim))
    opened = cv2.morphologyEx(pieces.astype(np.uint8), cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
    area = np.count_nonzero(opened) / np.count_nonzero(prompt)
    if refined.any() and lost + added <= OUTLINE_SHARE and area <= AREA_SHARE:
        return "refined"
    reach = max(ON_EDGE_PX, min(off_px + ON_EDGE_PX, near_px))
    on_edges = np.abs(mask_edge_offsets(prompt, image, 2 * reach + 2)) < reach
    return "prompt" if float(on_edges.mean()) >= FOUND else "doubtful"


Bools = NDArray[np.bool_]

_CORE = 0.5
"""Of a mask that may be some pixels off, this share of its local thickness is taken for robot at first."""

_LEAST_PART = 0.05
"""Pieces smaller than this share of the largest one are dirt, unless a prompt names them."""


class ClassicalSegmenter:
    """Background difference and GrabCut.

    Args:
        background: (H, W, 3) uint8, the scene without the robot, by the same camera from the same place; the light
            may differ. Without it, five or more images in which the robot moves serve by their median, and what never
            moves is missed; without those, a prompt is needed.
        margin_px: how far a prompt's mask may be from the robot; by default 3 % of the image's width.
        rounds: of GrabCut.
    """

    name = "classical"

    def __init__(
        self, background: NDArray[np.uint8] | None = None, *, margin_px: float | None = None, rounds: int = 4
    ) -> None:
        if background is not None and as_stack(background).shape[0] != 1:
            raise SegmentationError(f"the background is of shape {background.shape}", expected="one image, (H, W, 3)")
        if (margin_px is not None and not margin_px >= 0) or rounds < 1:
            raise SegmentationError(
                f"margin_px is {margin_px}, rounds is {rounds}", expected="0 or more pixels, 1 or more rounds"
            )
        self._background, self._margin_px, self._rounds = background, margin_px, rounds

    def segment(
        self, images: NDArray[np.uint8], prompt: Prompt | None = None, *, progress: ReportFrame | None = None
    ) -> Segmentation:
        """The robot in each image; a mask in the prompt narrows the search to its surroundings.

        Where the prompt's mask fits the image better than the one found, it is the result (`Segmentation.drawn`).
        """
        stack = as_stack(images, prompt)
        hints = Prompt() if prompt is None else prompt
        background, empty = self._background, True
        notes: tuple[str, ...] = ()
        if background is not None and background.shape != stack.shape[1:]:
            raise SegmentationError(
                f"the background is of shape {background.shape}",
                expected=f"{stack.shape[1:]}, as the images",
                code=ErrorCode.IMAGE_INVALID,
            )
        if background is None and len(stack) >= MIN_VIDEO:
            background, empty = median_background(stack), False
            missed = "" if hints.each else ": parts of the robot that never move are missed"
            notes = (f"the background is the images' median{missed}",)
        if background is None:
            _require_prompt(hints, len(stack))
        margin = 0.03 * stack.shape[2] if self._margin_px is None else self._margin_px
        masks, scores = np.zeros(stack.shape[:3], np.bool_), np.zeros(len(stack))
        chosen: dict[str, list[int]] = {"refined": [], "prompt": [], "doubtful": []}
        for i, image in enumerate(stack):
            change = None if background is None else compare(image, background)
            hint = _Hints(hints, i, image.shape[:2], margin)
            masks[i], scores[i] = self._one(image, change, empty, hint)
            if hint.mask is not None and hint.mask.any():
                which = better_mask(image, hint.mask, masks[i])
                chosen[which].append(i)
                if which == "prompt":
                    masks[i] = hint.mask
            if progress is not None:
                progress(i + 1, len(stack))
        drawn, doubtful = chosen["prompt"], chosen["doubtful"]
        if drawn:
            kept = f"in {which_images(drawn, len(stack))} the prompt's mask was kept"
            notes += (f"{kept}: the one found lost or added whole parts, and the prompt lies on the image's edges",)
        if doubtful:
            doubt = f"in {which_images(doubtful, len(stack))} the mask is doubtful"
            notes += (f"{doubt}: it contradicts the prompt, which does not lie on the image's edges either",)
        return result_of(images, masks, scores, self.name, notes, drawn=drawn, doubtful=doubtful)

    def _one(self, image: NDArray[np.uint8], change: Change | None, empty: bool, hints: _Hints) -> tuple[Bools, float]:
        """The mask of one image and its score; `empty`: the background is known to hold no robot."""
        labels = _seeds(change, empty, hints)
        if not np.isin(labels, (cv2.GC_FGD, cv2.GC_PR_FGD)).any() or not (labels == cv2.GC_BGD).any():
            return np.zeros(image.shape[:2], np.bool_), 0.0
        # Where the background may hold robot, differences say nothing and colours have to.
        colours = change is None or (not empty and hints.mask is not None)
        look = cv2.GaussianBlur(image, (0, 0), 0.7) if colours or change is None else change.features
        mask = _tidy(_grab_cut(look, labels, self._rounds), hints.points_on)
        if not mask.any():
            return mask, 0.0
        if change is None:
            guess = hints.inside
            return mask, float(np.count_nonzero(mask & guess) / np.count_nonzero(mask | guess))
        solid = change.solid & hints.inside
        return mask, float(np.count_nonzero(mask & change.changed) / np.count_nonzero(mask | solid))


class _Hints:
    """What a prompt says about one image, as masks (H, W) bool.

    Attributes:
        mask: the prompt's mask, or None.
        core: its inner part.
        inside: where the robot can be at all.
        points_on, points_off: discs around the points.
    """

    def __init__(self, prompt: Prompt, frame: int, size: tuple[int, int], margin_px: float) -> None:
        height, width = size
        here = prompt.each or frame == prompt.frame
        self.mask = prompt.mask_of(frame) if here else None
        self.core, self.inside = np.zeros(size, np.bool_), np.ones(size, np.bool_)
        self.points_on, self.points_off = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        if self.mask is not None and self.mask.any():
            away = cv2.distanceTransform(1 - self.mask.astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
            self.inside = away <= margin_px
            self.core = _core(self.mask, margin_px)
        elif self.mask is not None:
            self.inside = np.zeros(size, np.bool_)
        if frame != prompt.frame:
            return
        if len(prompt.box_array):
            boxes = np.zeros(size, np.bool_)
            for left, top, right, bottom in prompt.box_array:
                boxes[int(top) : int(np.ceil(bottom)), int(left) : int(np.ceil(right))] = True
            self.inside &= boxes
        y, x = np.indices(size) + 0.5
        radius = max(3.0, 0.005 * max(width, height))
        for (u, v), on in zip(prompt.point_array, prompt.label_array, strict=True):
            disc = (x - u) ** 2 + (y - v) ** 2 <= radius**2
            (self.points_on if on else self.points_off)[disc] = True


def _core(mask: Bools, margin_px: float) -> Bools:
    """The mask without a rim of the margin, but never without more than a share of its thickness there."""
    depth = cv2.distanceTransform(np.pad(mask.astype(np.uint8), 1), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)[1:-1, 1:-1]
    reach = 2 * int(np.ceil(margin_px)) + 1
    thickness = cv2.dilate(depth, np.ones((reach, reach), np.uint8))
    return np.asarray(mask & (depth > np.minimum(margin_px, _CORE * thickness)))


def _require_prompt(prompt: Prompt, count: int) -> None:
    named = prompt.each or (count == 1 and not (prompt.mask is None and not len(prompt.box_array)))
    if not named:
        clicks = count == 1 and prompt.label_array.any() and not prompt.label_array.all()
        if not clicks:
            raise SegmentationError(
                f"{count} images, no background and no mask or box for each of them",
                expected=f"a background picture, {MIN_VIDEO} or more images of a moving robot, or a prompt",
                hint="a mask drawn from joint positions and camera will do, or a box around the robot",
            )


def _seeds(change: Change | None, empty: bool, hints: _Hints) -> NDArray[np.uint8]:
    """(H, W) uint8 of GrabCut's labels."""
    labels = np.full(hints.inside.shape, cv2.GC_BGD, np.uint8)
    if change is not None:
        near = cv2.dilate(change.changed.astype(np.uint8), np.ones((7, 7), np.uint8)) > 0
        labels[near] = cv2.GC_PR_BGD
        labels[change.solid] = cv2.GC_PR_FGD
        if not empty:
            labels[hints.inside & (hints.mask is not None)] = cv2.GC_PR_BGD
            labels[hints.inside & change.solid] = cv2.GC_PR_FGD
            labels[hints.core] = cv2.GC_PR_FGD
    else:
        labels[hints.inside] = cv2.GC_PR_FGD if hints.mask is None else cv2.GC_PR_BGD
        labels[hints.core] = cv2.GC_PR_FGD
    labels[~hints.inside] = cv2.GC_BGD
    labels[hints.points_on], labels[hints.points_off] = cv2.GC_FGD, cv2.GC_BGD
    return labels


def _grab_cut(look: NDArray[np.uint8], labels: NDArray[np.uint8], rounds: int) -> Bools:
    """GrabCut in the whole image: in a part of it, shadows would be most of the background it learns."""
    seeds = labels.copy()
    cv2.setRNGSeed(0)  # its clusters start at random; the same image must give the same mask
    cv2.grabCut(look, seeds, None, np.zeros((1, 65)), np.zeros((1, 65)), rounds, cv2.GC_INIT_WITH_MASK)
    return np.asarray((seeds == cv2.GC_FGD) | (seeds == cv2.GC_PR_FGD))


def _tidy(mask: Bools, named: Bools) -> Bools:
    """The mask without specks."""
    count, pieces, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)
    if count <= 1:
        return mask
    area = stats[:, cv2.CC_STAT_AREA].copy()
    area[0] = 0
    keep = area >= _LEAST_PART * area.max()
    keep[np.unique(pieces[named & mask])] = True
    keep[0] = False
    return np.asarray(keep[pieces])
