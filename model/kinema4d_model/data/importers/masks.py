"""Where the robot is in a recording's pictures: by a segmenter, by masks from a folder, or by any command.

--segmenter rendered             drawn from joints and camera, nothing else (the default)
--segmenter classical            against the median of the video; the drawn robot narrows the search
--segmenter sam2                 with --segmenter-weights DIR; prompted by the drawn robot, else by words, which
                                 need --segmenter-detector DIR
--segmenter MASKS                a folder: MASKS/KEY/*.png, one for each picture of the recording or of the episode
--segmenter "python masks.py"    any command, called with two folders, IN and OUT (see `command`); it leaves
                                 OUT/00000.png ..., the size of the pictures, anything but 0 = robot
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
    """The pictures of an episode to come.

    Attributes:
        key: of the recording.
        rgb: (T, H, W, 3) uint8.
        chosen: (T,) which of the recording's pictures they are.
        count: how many pictures the recording has.
        fit: brings a picture of the recording to the episode's size, without lens distortion.
        drawn: (T, H, W) bool, the robot as its joints say; None if they are not known.
    """

    key: str
    rgb: NDArray[np.uint8]
    chosen: NDArray[np.int64]
    count: int
    fit: Callable[[NDArray[Any]], NDArray[Any]]
    drawn: NDArray[np.bool_] | None = None


class MaskSource(Protocol):
    """Anything that finds the robot in a recording."""

    def find(self, pictures: Pictures) -> Segmentation:
        """Masks (T, H, W) of the episode's pictures."""
        ...


class SegmenterMasks:
    """Masks by a segmenter, pointed at the drawn robot, or by words where there is none.

    Args:
        segmenter: of `kinema4d_ros.segmentation`.
        words: for a segmenter that understands them.
    """

    def __init__(self, segmenter: RobotSegmenter, words: str = "") -> None:
        self._segmenter, self._words = segmenter, words

    def find(self, pictures: Pictures) -> Segmentation:
        """The segmenter's masks."""
        prompt = None
        if pictures.drawn is not None and pictures.drawn.any():
            prompt = Prompt(mask=pictures.drawn)
        elif self._words:
            prompt = Prompt(text=self._words)
        return self._segmenter.segment(pictures.rgb, prompt)


class FolderMasks:
    """Masks that somebody made before: FOLDER/KEY/*.png in the order of their names."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def find(self, pictures: Pictures) -> Segmentation:
        """The masks of this recording."""
        key, rgb, count = pictures.key, pictures.rgb, pictures.count
        files = sorted((self._folder / key).glob("*.png"))
        if len(files) == count:
            masks = np.stack([np.asarray(pictures.fit(_read(files[int(i)], None)) > 0) for i in pictures.chosen])
        elif len(files) == len(rgb):
            masks = np.stack([_read(file, rgb.shape[1:3]) > 0 for file in files])
        else:
            raise DataError(
                f"{self._folder / key} holds {len(files)} masks",
                expected=f"{count} (one for each picture of the recording) or {len(rgb)} (of the episode)",
                code=ErrorCode.FILE_MISSING if not files else ErrorCode.FILE_MALFORMED,
            )
        return result_of(rgb, masks, np.ones(len(masks)), "folder")


class CommandSegmenter:
    """A `RobotSegmenter` that runs a command; see the module's text for its files."""

    name = "command"

    def __init__(self, command: str, timeout_s: float = 3600.0) -> None:
        self._command = PictureCommand("segmenter", command, timeout_s)

    def segment(
        self, images: NDArray[np.uint8], prompt: Prompt | None = None, *, progress: ReportFrame | None = None
    ) -> Segmentation:
        """Run the command on the images; a prompt's masks are written out for it."""
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
    """What a command line names; None for "rendered": the drawn robot needs no pictures."""
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
        found = "is missing or no picture" if mask is None else f"is {mask.shape[1]} x {mask.shape[0]}"
        wanted = "a grey PNG" if size is None else f"a grey PNG of {size[1]} x {size[0]}"
        raise DataError(f"the mask {path} {found}", expected=wanted)
    return np.asarray(mask, np.uint8)
