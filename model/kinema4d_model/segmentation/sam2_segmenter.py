"""`Sam2Segmenter`: robot segmentation with SAM 2, prompted by text, clicks, boxes or the rendered robot.

Works on images and videos. Tests use sam2's classes with small random weights; it was not run with the real ones here.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from kinema4d_model.segmentation.grounding import GroundingDetector
from kinema4d_model.segmentation.sam2_package import import_sam2
from kinema4d_model.segmentation.sam2_weights import load_sam2
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.segmentation import Prompt, ReportFrame, Segmentation, SegmentationError
from kinema4d_ros.segmentation.protocol import as_stack, result_of

__all__ = ["Sam2Segmenter", "mask_box", "mask_logits", "mask_points"]

# The rendered robot as prompts for SAM: a box, points well inside, and logits at the decoder's size.

POINTS = 6
_STRENGTH = 8.0
"""Logit far inside; its negative far outside. SAM's own masks reach about twice that."""

_SOFT_SHARE = 0.01
"""The logits change sign over this share of the image's width: the tolerated offset of the rendered robot."""


def mask_box(mask: NDArray[np.bool_], margin_share: float = 0.02) -> NDArray[np.float64]:
    """Compute the box (4,) left, top, right, bottom in pixels around a non-empty mask (H, W), with a margin."""
    rows, columns = np.nonzero(mask)
    height, width = mask.shape
    margin = margin_share * max(height, width)
    box = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1], np.float64)
    box += (-margin, -margin, margin, margin)
    return np.asarray(np.clip(box, 0, (width, height, width, height)), np.float64)


def mask_points(mask: NDArray[np.bool_], count: int = POINTS) -> NDArray[np.float64]:
    """Select up to `count` points (N, 2), x, y in pixels, deep inside the mask (H, W), far apart, the deepest first."""
    depth = cv2.distanceTransform(np.pad(mask.astype(np.uint8), 1), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)[1:-1, 1:-1]
    # Ridges: pixels without a deeper neighbour.
    ridge = mask & (depth >= cv2.dilate(depth, np.ones((5, 5), np.uint8))) & (depth >= 0.3 * depth.max())
    rows, columns = np.nonzero(ridge)
    places = np.stack([columns, rows], axis=1) + 0.5
    chosen = [int(np.argmax(depth[rows, columns]))]
    away = np.linalg.norm(places - places[chosen[0]], axis=1)
    while len(chosen) < count and away.max() > 2 * depth.max():
        chosen.append(int(np.argmax(away)))
        away = np.minimum(away, np.linalg.norm(places - places[chosen[-1]], axis=1))
    return np.asarray(places[chosen], np.float64)


def mask_logits(mask: NDArray[np.bool_], side: int) -> NDArray[np.float32]:
    """Convert a mask (H, W) to logits (1, side, side) float32, soft around its outline."""
    inside = cv2.distanceTransform(mask.astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    outside = cv2.distanceTransform(1 - mask.astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    soft = _STRENGTH * np.tanh((inside - outside) / (_SOFT_SHARE * mask.shape[1]))
    return np.asarray(cv2.resize(soft, (side, side), interpolation=cv2.INTER_AREA), np.float32)[None]


Masks = NDArray[np.bool_]

_HOLE_SHARE = 8 / 256**2
"""Holes up to this share of the image are filled, as sam2 does on CUDA."""


class Sam2Segmenter:
    """Segmenter for images and videos with one network.

    With a mask for each image (the rendered robot), every image is refined separately. Any other prompt belongs to one
    image; the video predictor propagates it forward and backward through the others.

    Args:
        weights: folder, see `sam2_weights`; or a network from `load_sam2`.
        detector: folder of a grounding detector, or the detector; only for prompts with text.
        device: of torch; "auto" is CUDA if available.
    """

    name = "sam2"

    def __init__(
        self, weights: str | Path | Any, *, detector: str | Path | GroundingDetector | None = None, device: str = "auto"
    ) -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = load_sam2(weights, device) if isinstance(weights, (str, Path)) else weights
        self._detector = GroundingDetector(detector, device=device) if isinstance(detector, (str, Path)) else detector
        self._predictor = import_sam2().ImagePredictor(self._model)
        side = int(self._model.image_size)
        # The predictor hard-codes these sizes for 1024 pixels.
        self._predictor._bb_feat_sizes = [(side // k, side // k) for k in (4, 8, 16)]
        self._logit_side = side // 4

    def segment(
        self, images: NDArray[np.uint8], prompt: Prompt | None = None, *, progress: ReportFrame | None = None
    ) -> Segmentation:
        """Segment the images; a prompt is required."""
        if prompt is None or prompt.is_empty:
            raise SegmentationError(
                "SAM 2 needs a prompt, got none",
                expected="text, points, boxes or the rendered robot's mask",
                hint="a robot, joint positions and a camera give a mask",
            )
        stack = as_stack(images, prompt)
        notes: tuple[str, ...] = ()
        if prompt.text:
            prompt, notes = self._ground(stack, prompt)
        points, labels = prompt.point_array, prompt.label_array
        if not (labels.any() or len(prompt.box_array) or (prompt.mask is not None and prompt.mask.any())):
            if len(points):
                raise SegmentationError("no point lies on the robot", expected="at least one on it, or a box")
            return result_of(images, np.zeros(stack.shape[:3], np.bool_), np.zeros(len(stack)), self.name, notes)
        if len(stack) == 1 or prompt.each:
            masks, scores = self._images(stack, prompt, progress)
        else:
            masks, scores = self._video(stack, prompt, progress)
        masks = np.stack([_fill_holes(mask) for mask in masks])
        return result_of(images, masks, scores, self.name, notes)

    def _ground(self, stack: NDArray[np.uint8], prompt: Prompt) -> tuple[Prompt, tuple[str, ...]]:
        """Replace the prompt's text by boxes."""
        if self._detector is None:
            raise SegmentationError(
                f"the prompt has the text '{prompt.text}', but there is no detector",
                expected="the folder of a grounding detector (Grounding DINO or OWLv2)",
                hint="or use points, a box, or the rendered robot",
                code=ErrorCode.SETUP_MISSING,
            )
        boxes, scores = self._detector.detect(stack[prompt.frame], prompt.text)
        found = f"'{prompt.text}': {len(boxes)} boxes" + (f", best {scores[0]:.2f}" if len(scores) else "")
        grounded = Prompt(
            points=prompt.point_array,
            labels=prompt.label_array,
            boxes=np.concatenate([prompt.box_array, boxes]),
            mask=prompt.mask,
            frame=prompt.frame,
        )
        return grounded, (found,)

    def _images(
        self, stack: NDArray[np.uint8], prompt: Prompt, progress: ReportFrame | None
    ) -> tuple[Masks, NDArray[np.float64]]:
        masks, scores = np.zeros(stack.shape[:3], np.bool_), np.zeros(len(stack))
        for i, image in enumerate(stack):
            masks[i], scores[i] = self._image(image, prompt, i)
            if progress is not None:
                progress(i + 1, len(stack))
        return masks, scores

    def _image(self, image: NDArray[np.uint8], prompt: Prompt, frame: int) -> tuple[Masks, float]:
        """Return the union of the masks of all boxes, or that of points and mask, and SAM's own estimate of the IoU."""
        clicked = frame == prompt.frame
        points = prompt.point_array if clicked else np.empty((0, 2))
        labels = prompt.label_array if clicked else np.empty(0, np.bool_)
        boxes = list(prompt.box_array) if clicked else []
        drawn, logits = prompt.mask_of(frame), None
        if drawn is not None and drawn.any():
            inner = mask_points(drawn)
            points, labels = np.concatenate([points, inner]), np.concatenate([labels, np.ones(len(inner), np.bool_)])
            logits = mask_logits(drawn, self._logit_side)
            boxes = boxes or [mask_box(drawn)]
        elif not (len(points) or boxes):
            return np.zeros(image.shape[:2], np.bool_), 0.0
        self._predictor.set_image(np.ascontiguousarray(image))
        mask, scores = np.zeros(image.shape[:2], np.bool_), []
        for box in boxes or [None]:
            vague = box is None and len(points) == 1  # a single click is ambiguous: a part or the whole
            found, quality, _ = self._predictor.predict(
                point_coords=points if len(points) else None,
                point_labels=labels.astype(np.int32) if len(points) else None,
                box=box,
                mask_input=logits,
                multimask_output=vague,
            )
            best = int(np.argmax(quality))
            mask |= found[best] > 0
            scores.append(float(quality[best]))
        return mask, float(np.mean(scores))

    def _video(
        self, stack: NDArray[np.uint8], prompt: Prompt, progress: ReportFrame | None
    ) -> tuple[Masks, NDArray[np.float64]]:
        """Propagate one prompted image to the others; the score is the mean probability of the mask's pixels."""
        masks, scores = np.zeros(stack.shape[:3], np.bool_), np.zeros(len(stack))
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            for i, image in enumerate(stack):
                # sam2 accepts only folders of .jpg; it detects the format from the content, and PNG is lossless.
                _, data = cv2.imencode(".png", image[..., ::-1])
                (Path(folder) / f"{i:05d}.jpg").write_bytes(data.tobytes())
            state = self._model.init_state(folder, offload_video_to_cpu=True)
            self._start(state, stack, prompt)
            done = 0
            for backward in (False, True):
                steps = self._model.propagate_in_video(state, start_frame_idx=prompt.frame, reverse=backward)
                for i, _, logits in steps:
                    probable = torch.sigmoid(logits.float()).amax(dim=(0, 1)).cpu().numpy()
                    masks[i] = probable > 0.5
                    scores[i] = float(probable[masks[i]].mean()) if masks[i].any() else 0.0
                    done = done + 1 if not (backward and i == prompt.frame) else done
                    if progress is not None:
                        progress(done, len(stack))
        return masks, scores

    def _start(self, state: Any, stack: NDArray[np.uint8], prompt: Prompt) -> None:
        if prompt.mask is not None:
            # The video predictor takes a mask as exact; the rendered one is not, so refine it on the image first.
            refined, _ = self._image(stack[prompt.frame], prompt, prompt.frame)
            self._model.add_new_mask(state, prompt.frame, 1, refined if refined.any() else prompt.mask)
            return
        points = prompt.point_array.astype(np.float32) if len(prompt.point_array) else None
        labels = None if points is None else prompt.label_array.astype(np.int32)
        boxes = [box.astype(np.float32) for box in prompt.box_array]
        for i, box in enumerate(boxes or [None]):
            self._model.add_new_points_or_box(state, prompt.frame, i + 1, points=points, labels=labels, box=box)


def _fill_holes(mask: Masks) -> Masks:
    """Fill holes of a few pixels."""
    count, pieces, stats, _ = cv2.connectedComponentsWithStats((~mask).astype(np.uint8), connectivity=4)
    small = stats[:, cv2.CC_STAT_AREA] <= max(1, round(_HOLE_SHARE * mask.size))
    small[0] = False
    return np.asarray(mask | small[pieces]) if count > 1 else mask
