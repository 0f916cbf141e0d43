"""`read_video`: frames of a video file with their times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import DataError, ErrorCode

__all__ = ["read_video"]

MAX_BYTES = 4 * 2**30


def read_video(
    path: Path, first_s: float | None = None, last_s: float | None = None
) -> tuple[list[NDArray[np.uint8]], NDArray[np.float64]]:
    """Return images (h, w, 3) uint8 RGB and their times in seconds, from `first_s` to before `last_s`."""
    if not path.is_file():
        raise DataError(f"{path} does not exist", expected="a video", code=ErrorCode.FILE_MISSING)
    frames: list[NDArray[np.uint8]] = []
    times: list[float] = []
    total = 0
    try:
        with av.open(str(path)) as container:
            stream: Any = container.streams.video[0]
            rate = float(stream.average_rate or 30)
            if first_s:
                container.seek(int(max(first_s - 0.5 / rate, 0) / stream.time_base), stream=stream)
            for picture in container.decode(stream):
                t = float(picture.time or 0.0)
                # Half a frame of tolerance: time stamps in files are rounded.
                if first_s is not None and t < first_s - 0.5 / rate:
                    continue
                if last_s is not None and t >= last_s - 0.5 / rate:
                    break
                array = picture.to_ndarray(format="rgb24")
                total += array.nbytes
                if total > MAX_BYTES:
                    raise DataError(f"{path} is too long", expected=f"at most {MAX_BYTES} bytes of images")
                frames.append(array)
                times.append(t)
    except DataError:
        raise
    except Exception as error:  # FFmpeg can raise anything on a corrupt file
        raise DataError(f"{path} cannot be read: {type(error).__name__}: {error}"[:300], expected="a video") from error
    if not frames:
        raise DataError(f"{path} has no images in the given time range", expected="at least one")
    return frames, np.array(times)
