"""Robot masks of a recording's images: from a segmenter, a folder of masks, or any command.

--segmenter rendered             rendered from joints and camera (default)
--segmenter classical            difference to the median of the video; the rendered robot narrows the search
--segmenter sam2                 with --segmenter-weights DIR; prompted by the rendered robot, else by text, which
                                 needs --segmenter-detector DIR
--segmenter MASKS                a folder: MASKS/KEY/*.png, one per image of the recording or of the episode
--segmenter "python masks.py"    any command, called with two folders, IN and OUT (see `command`); it writes
                                 OUT/00000.png ..., same size as the images, non-zero = robot
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.importers.command import PictureCommand
from kinema4d_ros.core.errors import DataError, ErrorCode
from kinema4d_ros.segmentation import Prompt, ReportFrame, RobotSegmenter, Segmentation, make_segmenter
from kinema4d_ros.segmentation.protocol import as_stack, result_of

__all__ = ["CommandSegmenter", "FolderMasks", "MaskSource", "Pictures", "SegmenterMasks", "make_mask_source"]

WORDS = "a robot arm"


@dataclass(frozen=True, eq=False)
class Pictures:
    """The images of an episode that is being imported.

    Attributes:
        key: of the recording.
        rgb: (T, H, W, 3) uint8.
        chosen: (T,) their indices in the recording.
        count: number of images in the recording.
        fit: rectifies an image of the recording and resizes it to the episode's size.
        drawn: (T, H, W) bool, the robot rendered from its joints; None if they are unknown.
    """

    key: str
    rgb: NDArray[np.uint8]
    chosen: NDArray[np.int64]
    count: int
    fit: Callable[[NDArray[Any]], NDArray[Any]]
    drawn: NDArray[np.bool_] | None = None


class MaskSource(Protocol):
    """Finds the robot in a recording."""

    def find(self, pictures: Pictures) -> Segmentation:
        """Return masks (T, H, W) of the episode's images."""
        ...


class SegmenterMasks:
    """Masks from a segmenter, prompted by the rendered robot, or by text without a rendering.

    Args:
        segmenter: of `kinema4d_ros.segmentation`.
        words: text prompt, for a segmenter that supports one.
    """

    def __init__(self, segmenter: RobotSegmenter, words: str = "") -> None:
        self._segmenter, self._words = segmenter, words

    def find(self, pictures: Pictures) -> Segmentation:
        """Return the segmenter's masks."""
        prompt = None
        if pictures.drawn is not None and pictures.drawn.any():
            prompt = Prompt(mask=pictures.drawn)
        elif self._words:
            prompt = Prompt(text=self._words)
        return self._segmenter.segment(pictures.rgb, prompt)


class FolderMasks:
    """Existing masks: FOLDER/KEY/*.png in the order of their names."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def find(self, pictures: Pictures) -> Segmentation:
        """Return the masks of this recording."""
        key, rgb, count = pictures.key, pictures.rgb, pictures.count
        files = sorted((self._folder / key).glob("*.png"))
        if len(files) == count:
            masks = np.stack([np.asarray(pictures.fit(_read(files[int(i)], None)) > 0) for i in pictures.chosen])
        elif len(files) == len(rgb):
            masks = np.stack([_read(file, rgb.shape[1:3]) > 0 for file in files])
        else:
            raise DataError(
                f"{self._folder / key} holds {len(files)} masks",
                expected=f"{count} (one per image of the recording) or {len(rgb)} (one per frame of the episode)",
                code=ErrorCode.FILE_MISSING if not files else ErrorCode.FILE_MALFORMED,
            )
        return result_of(rgb, masks, np.ones(len(masks)), "folder")


class CommandSegmenter:
    """A `RobotSegmenter` that runs a command; the module docstring lists its files."""

    name = "command"

    def __init__(self, command: str, timeout_s: float = 3600.0) -> None:
        self._command = PictureCommand("segmenter", command, timeout_s)

    def segment(
        self, images: NDArray[np.uint8], prompt: Prompt | None = None, *, progress: ReportFrame | None = None
    ) -> Segmentation:
        """Run the command on the images; the prompt's masks are passed as files."""
        stack = as_stack(images, prompt)
        hint = None
        if prompt is not None and prompt.mask is not None:
            hint = np.broadcast_to(prompt.mask, stack.shape[:3])
        words = "" if prompt is None else prompt.text
        with self._command.answered(stack, {"text": words}, hint) as result:
            masks = np.stack([_read(result / f"{t:05d}.png", stack.shape[1:3]) > 0 for t in range(len(stack))])
        if progress is not None:
            progress(len(stack), len(stack))
        return result_of(images, masks, np.ones(len(masks)), self.name)


def make_mask_source(
    text: str, weights: str | Path | None = None, detector: str | Path | None = None
) -> MaskSource | None:
    """Make the mask source of a --segmenter option; None for "rendered", which needs no images."""
    if text in ("", "rendered"):
        return None
    if text == "classical":
        return SegmenterMasks(make_segmenter("classical"))
    if text == "sam2":
        if weights is None:
            raise DataError(
                "SAM 2 needs --segmenter-weights", expected="the folder of its weights", code=ErrorCode.ARGUMENT_INVALID
            )
        words = WORDS if detector is not None else ""
        return SegmenterMasks(make_segmenter("sam2", weights=weights, detector=detector), words)
    if Path(text).is_dir():
        return FolderMasks(text)
    return SegmenterMasks(CommandSegmenter(text), WORDS)


def _read(path: Path, size: tuple[int, ...] | None) -> NDArray[np.uint8]:
    mask = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE) if path.is_file() else None
    if mask is None or (size is not None and mask.shape != tuple(size)):
        found = "is missing or not an image" if mask is None else f"is {mask.shape[1]} x {mask.shape[0]}"
        wanted = "a grey PNG" if size is None else f"a grey PNG of {size[1]} x {size[0]}"
        raise DataError(f"the mask {path} {found}", expected=wanted)
    return np.asarray(mask, np.uint8)
