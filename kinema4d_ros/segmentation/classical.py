"""Classical segmentation of the robot: background difference and GrabCut, no learned model.

background image ───┐
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

# Background difference: correct the background for the light of the image, and separate changes from shadows.

Floats = NDArray[np.float32]

MIN_VIDEO = 5
"""With fewer images the median shows the robot instead of the background."""

_SHRINK = 6
_FIT_ROUNDS = 12
_DARK = 4.0
"""8-bit steps added to both sides of a ratio, so that sensor noise in dark pixels does not dominate."""

_CHANGED, _SURE = 4.0, 7.0
"""Thresholds of a change and of a certain change, in standard deviations of the noise."""

_SHADOW = (0.42, 1.03)
_SHADOW_COLOUR = 0.12
"""A shadow keeps a fraction of the light within _SHADOW, equal in all colour channels to _SHADOW_COLOUR. The lower
limit is not 0, because there is always some indirect light."""

_SHARP = 0.25
"""A grey robot in front of a grey wall has the colour of a shadow too; but its outline drops by more than this fraction
of its total contrast within a pixel, and that of a shadow, which has a penumbra, by less."""

_LEAST_PX = 30


class Change(NamedTuple):
    """Difference between an image and its background.

    Attributes:
        features: (H, W, 3) uint8, features that separate robot and shadow: fraction of light kept (110 = all), colour
            shift, brightness.
        changed: (H, W) bool: differs by more than noise.
        solid: (H, W) bool: differs, and is not a shadow.
        sure: (H, W) bool: the part of `solid` above the certain-change threshold.
    """

    features: NDArray[np.uint8]
    changed: Bools
    solid: Bools
    sure: Bools


def relight(background: NDArray[np.uint8], image: NDArray[np.uint8]) -> Floats:
    """Correct the background for the light of the image: (H, W, 3) float32.

    Each colour channel gets a gain that varies smoothly over the image (a quadratic). The fit is robust to the robot
    and its shadow as long as they fill less than about half of the image.
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
    # The gain is smooth, so compute it on the small image and enlarge it.
    gain = cv2.resize(np.exp((basis @ gains).reshape(size[1], size[0], 3)), (width, height))
    return np.asarray(np.clip((background + _DARK) * gain - _DARK, 0, 255), np.float32)


def median_background(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Compute the median of the images (T, H, W, 3) in the light of the first: (H, W, 3) uint8.

    Parts that never move, such as the robot's base, are part of it.
    """
    first = images[0]
    lit = [first, *(np.rint(relight(image, first)).astype(np.uint8) for image in images[1:])]
    return np.asarray(np.median(np.stack(lit), axis=0), np.uint8)


def compare(image: NDArray[np.uint8], background: NDArray[np.uint8]) -> Change:
    """Compare an image (H, W, 3) uint8 with a background of the same size."""
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
    """Find regions (H, W) bool of changes that have the colour of a shadow but a sharp outline.

    Args:
        depth: (H, W) float32, logarithm of the fraction of light kept.
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


# Choice between a refined mask and its prompt, without ground truth, from the outlines and the image edges.

OUTLINE_SHARE, AREA_SHARE = 0.12, 0.05
"""Two masks contradict each other if more than this fraction of the outline, or of the prompt's area, differs."""

NEAR_SHARE = 0.01
"""Outlines further apart than this fraction of the image width, beyond the general offset of the prompt, differ."""


def better_mask(image: NDArray[np.uint8], prompt: Bools, refined: Bools) -> Literal["refined", "prompt", "doubtful"]:
    """Choose between the prompt and the refined mask (H, W) of an image (H, W, 3).

    A prompt that is off by some pixels is off by about as much everywhere, and refining moves its outline to the image
    edges. If whole regions appear or disappear instead, one of the two is wrong: the refined one if the prompt's
    outline already lies on image edges; otherwise the result is "doubtful".
    """
    row, column = outline_pixels(prompt)
    if len(row) == 0:
        return "refined"
    near_px = NEAR_SHARE * image.shape[1]
    to_prompt, to_refined = signed_distance(prompt), signed_distance(refined)
    off = np.abs(to_refined[row, column])
    # Most of the outline may be lost, so use a low percentile for the offset of the prompt.
    off_px = min(float(np.percentile(off, 30)), image.shape[1] / 2)
    beyond = 3 * off_px + near_px
    lost = float(np.mean(to_refined[row, column] > beyond))
    added = np.mean(to_prompt[outline_pixels(refined)] > beyond) if refined.any() else 0.0
    # Regions inside the outline do not affect it; ignore a thin rim.
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
"""Inner fraction of the local thickness of a prompt mask that is initially labelled robot."""

_LEAST_PART = 0.05
"""Regions smaller than this fraction of the largest one are removed, unless they contain a prompt point."""


class ClassicalSegmenter:
    """Segmenter by background difference and GrabCut.

    Args:
        background: (H, W, 3) uint8, the scene without the robot, from the same camera at the same pose; the light may
            differ. Without it, the median of five or more images of a moving robot is used, and parts that never move
            are missed; with fewer images, a prompt is needed.
        margin_px: largest offset between a prompt mask and the robot; by default 3 % of the image width.
        rounds: GrabCut iterations.
    """

    name = "classical"

    def __init__(
        self, background: NDArray[np.uint8] | None = None, *, margin_px: float | None = None, rounds: int = 4
    ) -> None:
        if background is not None and as_stack(background).shape[0] != 1:
            raise SegmentationError(f"the background has shape {background.shape}", expected="one image, (H, W, 3)")
        if (margin_px is not None and not margin_px >= 0) or rounds < 1:
            raise SegmentationError(
                f"margin_px is {margin_px}, rounds is {rounds}", expected="0 or more pixels, 1 or more rounds"
            )
        self._background, self._margin_px, self._rounds = background, margin_px, rounds

    def segment(
        self, images: NDArray[np.uint8], prompt: Prompt | None = None, *, progress: ReportFrame | None = None
    ) -> Segmentation:
        """Segment the robot in each image; a mask in the prompt limits the search to its surroundings.

        If the prompt mask fits the image better than the mask found, it is the result (`Segmentation.drawn`).
        """
        stack = as_stack(images, prompt)
        hints = Prompt() if prompt is None else prompt
        background, empty = self._background, True
        notes: tuple[str, ...] = ()
        if background is not None and background.shape != stack.shape[1:]:
            raise SegmentationError(
                f"the background has shape {background.shape}",
                expected=f"{stack.shape[1:]}, the shape of the images",
                code=ErrorCode.IMAGE_INVALID,
            )
        if background is None and len(stack) >= MIN_VIDEO:
            background, empty = median_background(stack), False
            missed = "" if hints.each else ": parts of the robot that never move are missed"
            notes = (f"the background is the median of the images{missed}",)
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
            kept = f"the prompt mask was kept in {which_images(drawn, len(stack))}"
            notes += (f"{kept}: the mask found lost or added whole parts, and the prompt lies on the image edges",)
        if doubtful:
            doubt = f"the mask is doubtful in {which_images(doubtful, len(stack))}"
            notes += (f"{doubt}: it contradicts the prompt, which does not lie on the image edges either",)
        return result_of(images, masks, scores, self.name, notes, drawn=drawn, doubtful=doubtful)

    def _one(self, image: NDArray[np.uint8], change: Change | None, empty: bool, hints: _Hints) -> tuple[Bools, float]:
        """Segment one image; return mask and score. `empty`: the background contains no robot."""
        labels = _seeds(change, empty, hints)
        if not np.isin(labels, (cv2.GC_FGD, cv2.GC_PR_FGD)).any() or not (labels == cv2.GC_BGD).any():
            return np.zeros(image.shape[:2], np.bool_), 0.0
        # If the background may contain the robot, use colours instead of differences.
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
    """Prompt of one image as masks (H, W) bool.

    Attributes:
        mask: the prompt mask, or None.
        core: inner part of the mask.
        inside: region in which the robot can be.
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
    """Erode the mask by the margin, but at most by a fraction of its local thickness."""
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
                f"{count} images without a background, and without a mask or box for each of them",
                expected=f"a background image, {MIN_VIDEO} or more images of a moving robot, or a prompt",
                hint="use a mask rendered from joint positions and camera, or a box around the robot",
            )


def _seeds(change: Change | None, empty: bool, hints: _Hints) -> NDArray[np.uint8]:
    """Compute the initial GrabCut labels (H, W) uint8."""
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
    """Run GrabCut on the whole image: in a crop, shadows would dominate the background model."""
    seeds = labels.copy()
    cv2.setRNGSeed(0)  # cluster initialisation is random; the same image must give the same mask
    cv2.grabCut(look, seeds, None, np.zeros((1, 65)), np.zeros((1, 65)), rounds, cv2.GC_INIT_WITH_MASK)
    return np.asarray((seeds == cv2.GC_FGD) | (seeds == cv2.GC_PR_FGD))


def _tidy(mask: Bools, named: Bools) -> Bools:
    """Remove small regions from the mask, except those in `named`."""
    count, pieces, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)
    if count <= 1:
        return mask
    area = stats[:, cv2.CC_STAT_AREA].copy()
    area[0] = 0
    keep = area >= _LEAST_PART * area.max()
    keep[np.unique(pieces[named & mask])] = True
    keep[0] = False
    return np.asarray(keep[pieces])
