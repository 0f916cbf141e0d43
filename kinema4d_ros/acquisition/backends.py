"""From views to a mesh: one protocol, a built-in back-end, and one that runs somebody else's program."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.acquisition.drawing import coloured
from kinema4d_ros.acquisition.hull import ColouredMesh, visual_hull
from kinema4d_ros.acquisition.mesh_files import MESH_SUFFIXES, read_mesh_file
from kinema4d_ros.acquisition.views import View
from kinema4d_ros.core.errors import AssetError, ErrorCode, MeshError
from kinema4d_ros.io.images import write_image

__all__ = ["ExternalCommand", "HullBackend", "MeshBackend"]

Progress = Callable[[int, int], None]
Array = NDArray[np.float64]

_LAST_LINES = 12


class MeshBackend(Protocol):
    """Anything that makes a mesh from views of one joint configuration."""

    @property
    def metric(self) -> bool:
        """The mesh is in the views' world frame; otherwise it has a frame and a unit of its own."""

    def reconstruct(self, views: Sequence[View], progress: Progress) -> ColouredMesh:
        """The mesh, with colours; an error if there is none."""


@dataclass(frozen=True, eq=False)
class HullBackend:
    """The visual hull, carved further where views have depth; needs cameras, no weights.

    Attributes:
        voxel: side, units of the world.
        misses: how many views may disagree about a point.
        floor: (4,) plane n, d that the robot stands on: only n p + d > 0 is kept; None without.
    """

    voxel: float = 0.002
    misses: int = 0
    floor: Array | None = None
    metric: bool = True

    def reconstruct(self, views: Sequence[View], progress: Progress) -> ColouredMesh:
        """Carve, then colour."""
        mesh = visual_hull(views, self.voxel, misses=self.misses, floor=self.floor)
        return coloured(mesh, views, slack=2 * self.voxel, progress=progress)


@dataclass(frozen=True)
class ExternalCommand:
    """Another program, such as a ReconViaGen checkout, started by a command line.

    Attributes:
        template: the command; {images}, {masks} and {out} stand for folders: pictures and masks as PNGs of the same
            names, and where the program writes its mesh. No shell sees it.
        timeout_s: after this long the program and its children are ended.
        cwd: the folder it runs in, for example the checkout.
        metric: the mesh is in the views' world frame.
    """

    template: str
    timeout_s: float = 3600.0
    cwd: Path | None = None
    metric: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse templates that cannot work."""
        try:
            words = shlex.split(self.template)
        except ValueError as error:
            raise _bad(f"--command cannot be split into words: {error}", "matching quotes") from None
        if not words or "{out}" not in self.template or "{images}" not in self.template:
            raise _bad(
                f"--command is {self.template!r}", "a command with {images} and {out}, and {masks} if it uses them"
            )
        if not (np.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise _bad(f"--timeout is {self.timeout_s}", "seconds above 0")

    def reconstruct(self, views: Sequence[View], progress: Progress) -> ColouredMesh:
        """Write pictures and masks, run the program, read the mesh it left."""
        with tempfile.TemporaryDirectory(prefix="kinema4d_") as folder:
            places = {name: Path(folder) / name for name in ("images", "masks", "out")}
            for place in places.values():
                place.mkdir()
            for view in views:
                write_image(places["images"] / f"{view.name}.png", view.image)
                if view.mask is not None:
                    grey = np.repeat(np.where(view.mask, 255, 0).astype(np.uint8)[..., None], 3, axis=2)
                    write_image(places["masks"] / f"{view.name}.png", grey)
            progress(0, 1)
            self._run({name: str(place) for name, place in places.items()}, Path(folder) / "log")
            mesh = read_mesh_file(self._find(places["out"]))
            progress(1, 1)
            return mesh

    def _run(self, places: dict[str, str], log: Path) -> None:
        words = [_filled(word, places) for word in shlex.split(self.template)]
        with log.open("w+b") as output:
            try:
                process = subprocess.Popen(  # noqa: S603 - the user's own command, without a shell
                    words,
                    cwd=self.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **self.environment},
                )
            except OSError as error:
                raise _failed(
                    f"'{words[0]}' cannot be started: {error.strerror}", "a program on this machine"
                ) from None
            try:
                code = process.wait(self.timeout_s)
            except subprocess.TimeoutExpired:
                raise _failed(
                    f"the back-end did not finish in {self.timeout_s:g} s{_tail(output)}",
                    "a mesh by then",
                    ErrorCode.GENERATOR_TIMEOUT,
                ) from None
            finally:
                _end(process)
            if code != 0:
                raise _failed(f"the back-end ended with code {code}{_tail(output)}", "code 0")

    @staticmethod
    def _find(out: Path) -> Path:
        """The largest mesh of the best format; links that lead out of the folder do not count."""
        root = out.resolve()
        for suffix in MESH_SUFFIXES:
            found = [p for p in out.rglob(f"*{suffix}") if p.is_file() and p.resolve().is_relative_to(root)]
            if found:
                return max(found, key=lambda p: p.stat().st_size)
        names = sorted(p.name for p in out.rglob("*"))[:10]
        raise MeshError(
            f"the back-end wrote no mesh; its folder holds {', '.join(names) or 'nothing'}",
            expected=f"a file in {{out}} that ends in {', '.join(MESH_SUFFIXES)}",
            code=ErrorCode.MESH_MISSING,
        )


def _filled(word: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        word = word.replace(f"{{{name}}}", place)
    return word


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program and what it started: its session is its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(output: IO[bytes]) -> str:
    output.flush()
    output.seek(0)
    lines = output.read()[-8000:].decode("utf-8", errors="replace").strip().splitlines()[-_LAST_LINES:]
    return ("; it said last:\n  " + "\n  ".join(lines)) if lines else "; it said nothing"


def _bad(what: str, expected: str) -> AssetError:
    return AssetError(what, expected=expected, code=ErrorCode.ARGUMENT_INVALID)


def _failed(what: str, expected: str, code: ErrorCode = ErrorCode.GENERATOR_FAILED) -> AssetError:
    return AssetError(what, expected=expected, hint="run the command by hand to see more", code=code)
