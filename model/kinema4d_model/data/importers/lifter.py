"""Depth for plain video: the protocol of a lifter, and one that runs any command.

    KINEMA4D_LIFTER="python my_lifter.py" kinema4d data import --lifter "python my_lifter.py" ...

The command is called with two folders, IN and OUT:

    IN/00000.png ...    the pictures, 8-bit RGB
    IN/request.json     {"frames": T, "width": W, "height": H, "K": [[...]] or null}, pixel centres at + 0.5
    OUT/depth.npy       (T, H, W) float32, metres along the optical axis, NaN = unknown       written by the command
    OUT/camera.json     {"K": [[fx, 0, cx], [0, fy, cy], [0, 0, 1]]}, optional               written by the command

SpatialTrackerV2, a monocular depth network or a stereo matcher fit behind it with a few lines each.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.errors import DataError
from kinema4d_ros.camera import PinholeCamera
from kinema4d_ros.errors import ErrorCode
from kinema4d_ros.pointmap.png import encode_png

__all__ = ["CommandLifter", "Lifted", "Lifter"]


@dataclass(frozen=True, eq=False)
class Lifted:
    """What a lifter found: depth (T, H, W) float32 metres, NaN = unknown; intrinsics (3, 3) if it estimates them."""

    depth_m: NDArray[np.float32]
    K: NDArray[np.float64] | None = None


class Lifter(Protocol):
    """Anything that gives depth to a video."""

    def lift(self, rgb: NDArray[np.uint8], camera: PinholeCamera | None) -> Lifted:
        """Depth of pictures (T, H, W, 3); `camera` if its intrinsics are known."""
        ...


class CommandLifter:
    """Runs a command for every episode; see the module's text for its files."""

    def __init__(self, command: str, timeout_s: float = 3600.0) -> None:
        """Take a command line; it is split into words, no shell sees it."""
        self._words = shlex.split(command)
        self._timeout_s = timeout_s
        if not self._words:
            raise DataError("the lifter's command is empty", expected="a program and its arguments")

    def lift(self, rgb: NDArray[np.uint8], camera: PinholeCamera | None) -> Lifted:
        """Run the command on the pictures and read what it wrote."""
        with tempfile.TemporaryDirectory(prefix="kinema4d_lift_") as name:
            source, result = Path(name) / "in", Path(name) / "out"
            source.mkdir()
            result.mkdir()
            for t, image in enumerate(rgb):
                (source / f"{t:05d}.png").write_bytes(encode_png(np.ascontiguousarray(image)))
            frames, height, width = rgb.shape[:3]
            K = None if camera is None else camera.K.tolist()
            request = {"frames": frames, "width": width, "height": height, "K": K}
            (source / "request.json").write_text(json.dumps(request))
            self._run(source, result)
            return self._read(result, (frames, height, width))

    def _run(self, source: Path, result: Path) -> None:
        command = [*self._words, str(source), str(result)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=self._timeout_s, check=False)  # noqa: S603
        except FileNotFoundError:
            raise DataError(
                f"the lifter {self._words[0]!r} does not exist", expected="a program", code=ErrorCode.FILE_MISSING
            ) from None
        except subprocess.TimeoutExpired:
            raise DataError(f"the lifter ran longer than {self._timeout_s:g} s", expected="an answer in time") from None
        if done.returncode:
            tail = done.stderr.decode(errors="replace").strip()[-300:]
            raise DataError(f"the lifter ended with code {done.returncode}: {tail}", expected="exit code 0")

    def _read(self, result: Path, shape: tuple[int, int, int]) -> Lifted:
        try:
            depth = np.load(result / "depth.npy", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(
                f"the lifter left no usable depth.npy: {error}"[:300], expected=f"float32 {shape}"
            ) from None
        if depth.shape != shape or not np.issubdtype(depth.dtype, np.floating):
            raise DataError(f"the lifter's depth is {depth.dtype} of shape {depth.shape}", expected=f"float32 {shape}")
        if not np.any(np.isfinite(depth) & (depth > 0)):
            raise DataError("the lifter found no depth", expected="positive metres")
        K = None
        if (result / "camera.json").is_file():
            try:
                K = np.array(json.loads((result / "camera.json").read_text())["K"], dtype=np.float64).reshape(3, 3)
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"the lifter's camera.json: {error}"[:300], expected='{"K": 3 x 3}') from None
        positive = np.where(depth > 0, depth, np.nan).astype(np.float32)
        return Lifted(positive, K)
