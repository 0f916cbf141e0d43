"""`PictureCommand`: run an external program on a folder of images, with a timeout; errors contain its output."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import DataError, ErrorCode
from kinema4d_ros.io.png import encode_png
from kinema4d_ros.runtime.child import how_it_ended, run_program

__all__ = ["PictureCommand"]


class PictureCommand:
    """A command line that is called as COMMAND IN OUT, without a shell.

    Args:
        who: name of the program in errors, such as "lifter".
        command: program and arguments.
        timeout_s: seconds until the program and its children are killed.
    """

    def __init__(self, who: str, command: str, timeout_s: float) -> None:
        self._who, self._timeout_s = who, timeout_s
        self._words = shlex.split(command)
        if not self._words:
            raise DataError(f"the {who}'s command is empty", expected="a program and its arguments")

    @contextmanager
    def answered(
        self, rgb: NDArray[np.uint8], request: Mapping[str, Any], masks: NDArray[np.bool_] | None = None
    ) -> Iterator[Path]:
        """Run the command on IN and yield the folder OUT, which is removed afterwards.

        IN holds the images (T, H, W, 3) as 00000.png ..., request.json with `frames`, `width`, `height` and
        `request`, and, if the robot could be rendered, its masks (T, H, W) as masks/00000.png ..., 255 = robot.
        """
        with tempfile.TemporaryDirectory(prefix=f"kinema4d_{self._who}_") as name:
            source, result = Path(name) / "in", Path(name) / "out"
            source.mkdir()
            result.mkdir()
            for t, image in enumerate(rgb):
                (source / f"{t:05d}.png").write_bytes(encode_png(np.ascontiguousarray(image)))
            if masks is not None:
                (source / "masks").mkdir()
                for t, mask in enumerate(masks):
                    (source / "masks" / f"{t:05d}.png").write_bytes(encode_png(mask.astype(np.uint8) * np.uint8(255)))
            frames, height, width = rgb.shape[:3]
            said = {"frames": frames, "width": width, "height": height, **request}
            (source / "request.json").write_text(json.dumps(said))
            self._run(source, result)
            yield result

    def _run(self, source: Path, result: Path) -> None:
        command = [*self._words, str(source), str(result)]
        try:
            done = run_program(command, self._timeout_s, own_session=True)
        except (FileNotFoundError, PermissionError):
            raise DataError(
                f"the {self._who} {self._words[0]!r} does not exist or is not executable",
                expected="a program",
                code=ErrorCode.FILE_MISSING,
            ) from None
        if done.code is None:
            raise DataError(
                f"the {self._who} timed out after {self._timeout_s:g} s", expected="a result within the timeout"
            )
        if done.code:
            tail = done.stderr.decode(errors="replace").strip()[-300:]
            raise DataError(f"the {self._who} ended with {how_it_ended(done.code)}: {tail}", expected="exit code 0")
