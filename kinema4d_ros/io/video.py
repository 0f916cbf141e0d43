"""MP4 files for common players: H.264, yuv420p, index at the front."""

from __future__ import annotations

from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import RenderError, SetupError
from kinema4d_ros.io.files import replacing_file
from kinema4d_ros.io.images import require_image

__all__ = ["VideoWriter"]

_BT709 = 1


class VideoWriter:
    """Writer of RGB frames to an MP4, created completely when the block ends without an error.

    Args:
        path: of the file.
        fps: frames per second.
        size: (width, height) in pixels. The chroma of H.264 needs even sides, so an odd one gets
            its last column or row repeated once.
        crf: quality from 0 (lossless) to 51; 18 looks like the original.

    >>> with VideoWriter("out.mp4", 24, (720, 480)) as video:  # doctest: +SKIP
    ...     video.write(frame)
    """

    def __init__(self, path: str | Path, fps: float, size: tuple[int, int], *, crf: int = 18) -> None:
        """Check the parameters; the file is opened when the block starts."""
        if not (np.isfinite(fps) and 0 < fps <= 1000):
            raise RenderError(f"{fps} frames per second", expected="more than 0, at most 1000")
        if min(size) < 2 or not 0 <= crf <= 51:
            raise RenderError(
                f"video of {size[0]} x {size[1]} at quality {crf}", expected="sides of at least 2 px, 0 <= crf <= 51"
            )
        self._path = Path(path)
        self._fps = Fraction(fps).limit_denominator(1001)
        self._size = (int(size[0]), int(size[1]))
        self._crf = crf
        self._stack = ExitStack()
        self._container: Any = None
        self._stream: Any = None
        self.frames = 0
        """Number of frames written."""

    def __enter__(self) -> VideoWriter:
        """Open a temporary file beside the target."""
        with ExitStack() as stack:
            temporary = stack.enter_context(replacing_file(self._path))
            self._container = stack.enter_context(
                av.open(str(temporary), "w", format="mp4", options={"movflags": "+faststart"})
            )
            try:
                self._stream = self._container.add_stream("libx264", rate=self._fps)
            except (ValueError, av.FFmpegError) as error:
                raise SetupError(
                    f"this PyAV cannot write H.264: {error}",
                    expected="PyAV with libx264, as in its wheels",
                    hint="pip install --force-reinstall av",
                ) from None
            width, height = (side + side % 2 for side in self._size)
            self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, "yuv420p"
            context = self._stream.codec_context
            context.options = {"crf": str(self._crf), "preset": "veryfast"}
            context.color_primaries = context.color_trc = context.colorspace = _BT709
            self._stack = stack.pop_all()
        return self

    def write(self, frame: NDArray[np.uint8]) -> None:
        """Append one (H, W, 3) uint8 RGB frame of the video's size."""
        if self._container is None:
            raise RenderError("a frame was written to a video that is not open", expected="a `with` block around it")
        image = require_image(frame, f"video frame {self.frames}", self._size)
        padded = np.pad(image, ((0, image.shape[0] % 2), (0, image.shape[1] % 2), (0, 0)), mode="edge")
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(padded), format="rgb24")
        picture = picture.reformat(format="yuv420p", dst_colorspace="ITU709")
        picture.pts = self.frames
        picture.time_base = 1 / self._fps
        self._container.mux(self._stream.encode(picture))
        self.frames += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Finish the file, or remove it after an error."""
        with self._stack:
            self._stack = ExitStack()
            container, self._container = self._container, None
            if error is not None:
                # Inside the stack, so that its context managers see an error and remove the file.
                raise error
            if self.frames == 0:
                raise RenderError("a video without frames was closed", expected="at least one frame")
            container.mux(self._stream.encode(None))
