"""Pictures that a LeRobot dataset keeps in its tables: PNG or JPEG bytes, or the names of files in images/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from kinema4d_model.data.errors import DataError
from kinema4d_model.data.importers.video_in import MAX_BYTES
from kinema4d_ros.core.errors import ErrorCode

__all__ = ["read_table_images"]


def read_table_images(
    folder: Path, file: Path, view: str, episode: int, fps: float
) -> tuple[list[NDArray[np.uint8]], NDArray[np.float64]]:
    """Pictures (h, w, 3) uint8 RGB of an episode's rows in a parquet file, and their times in seconds."""
    if not file.is_file():
        raise DataError(f"{file} does not exist", expected="the table of the episode", code=ErrorCode.FILE_MISSING)
    try:
        names = set(pyarrow.parquet.read_schema(file).names)
        wanted = [name for name in (view, "timestamp", "frame_index", "episode_index") if name in names]
        rows = pyarrow.parquet.read_table(
            file, columns=wanted, filters=[("episode_index", "=", episode)] if "episode_index" in names else None
        ).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}"[:300], expected="a parquet file") from None
    if not rows or view not in rows[0]:
        raise DataError(f"{file} has no pictures of '{view}' of episode {episode}", expected="a column of pictures")
    images, total = [], 0
    for number, row in enumerate(rows):
        image = _decoded(folder, row[view], f"{file}: picture {number} of '{view}'")
        total += image.nbytes
        if total > MAX_BYTES:
            raise DataError(f"{file}: episode {episode} is too long", expected=f"at most {MAX_BYTES} bytes of pictures")
        images.append(image)
    times = [row.get("timestamp") for row in rows]
    if any(t is None for t in times):
        times = [i / fps for i in range(len(rows))]
    clock = np.array(times, dtype=np.float64).reshape(-1)
    if np.any(np.diff(clock) <= 0) or not np.isfinite(clock).all():
        raise DataError(f"{file}: time goes back in episode {episode}", expected="time stamps that increase")
    return images, clock


def _decoded(folder: Path, value: Any, where: str) -> NDArray[np.uint8]:
    """One picture: {"bytes", "path"} as datasets write it, or plain bytes."""
    data = value.get("bytes") if isinstance(value, dict) else value
    if data is None and isinstance(value, dict) and isinstance(value.get("path"), str):
        path = (folder / value["path"]).resolve()
        if not path.is_relative_to(folder.resolve()) or not path.is_file():
            raise DataError(f"{where}: {value['path']!r} is no file of the dataset"[:300], expected="a picture in it")
        data = path.read_bytes()
    image = None
    if isinstance(data, bytes) and data:
        try:
            image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        except cv2.error:
            image = None
    if image is None:
        raise DataError(f"{where} cannot be decoded", expected="PNG or JPEG")
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8)
