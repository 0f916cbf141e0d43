"""Mesh reconstruction back-ends: the protocol, the built-in visual hull, and an external command."""

from __future__ import annotations

import shlex
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
from kinema4d_ros.runtime.child import Child, how_it_ended

__all__ = ["ExternalCommand", "HullBackend", "MeshBackend"]

Progress = Callable[[int, int], None]
Array = NDArray[np.float64]

_LAST_LINES = 12


class MeshBackend(Protocol):
    """Back-end that reconstructs a mesh from views of one joint configuration."""

    @property
    def metric(self) -> bool:
        """True if the mesh is in the world frame of the views; otherwise it has its own frame and unit."""

    def reconstruct(self, views: Sequence[View], progress: Progress) -> ColouredMesh:
        """Reconstruct a mesh with colours; raise an error if that fails."""


@dataclass(frozen=True, eq=False)
class HullBackend:
    """Visual hull, refined by depth where available; needs cameras, no weights.

    Attributes:
        voxel: side of a voxel, world units.
        misses: number of views that may disagree about a point.
        floor: (4,) plane n, d that the robot stands on: only n p + d > 0 is kept; None = no floor.
        metric: the mesh is in the world frame of the views.
    """

    voxel: float = 0.002
    misses: int = 0
    floor: Array | None = None
    metric: bool = True

    def reconstruct(self, views: Sequence[View], progress: Progress) -> ColouredMesh:
        """Carve the hull, then colour it from the images."""
        mesh = visual_hull(views, self.voxel, misses=self.misses, floor=self.floor)
        return coloured(mesh, views, slack=2 * self.voxel, progress=progress)


@dataclass(frozen=True)
class ExternalCommand:
    """External program, such as a ReconViaGen checkout, started by a command line.

    Attributes:
        template: the command; {images}, {masks} and {out} are replaced by folders: images and masks as PNGs of the
            same names, and the output folder for the mesh. It is not passed to a shell.
        timeout_s: timeout after which the program and its children are killed, seconds.
        cwd: working directory, for example the checkout.
        metric: the mesh is in the world frame of the views.
        environment: additional environment variables.
    """

    template: str
    timeout_s: float = 3600.0
    cwd: Path | None = None
    metric: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reject invalid templates and timeouts."""
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
        """Write images and masks, run the program, and read its mesh."""
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
                child = Child.start(words, own_session=True, cwd=self.cwd, environment=self.environment, output=output)
            except OSError as error:
                raise _failed(f"'{words[0]}' cannot be started: {error.strerror}", "an executable program") from None
            try:
                code = child.wait(self.timeout_s)
            finally:
                child.kill_group()
            if code is None:
                raise _failed(
                    f"the back-end did not finish in {self.timeout_s:g} s{_tail(output)}",
                    "a mesh within the timeout",
                    ErrorCode.GENERATOR_TIMEOUT,
                )
            if code != 0:
                raise _failed(f"the back-end ended with {how_it_ended(code)}{_tail(output)}", "exit code 0")

    @staticmethod
    def _find(out: Path) -> Path:
        """Find the largest mesh of the best format; symlinks out of the folder are ignored."""
        root = out.resolve()
        for suffix in MESH_SUFFIXES:
            found = [p for p in out.rglob(f"*{suffix}") if p.is_file() and p.resolve().is_relative_to(root)]
            if found:
                return max(found, key=lambda p: p.stat().st_size)
        names = sorted(p.name for p in out.rglob("*"))[:10]
        raise MeshError(
            f"the back-end wrote no mesh; its folder contains {', '.join(names) or 'nothing'}",
            expected=f"a file in {{out}} that ends in {', '.join(MESH_SUFFIXES)}",
            code=ErrorCode.MESH_MISSING,
        )


def _filled(word: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        word = word.replace(f"{{{name}}}", place)
    return word


def _tail(output: IO[bytes]) -> str:
    output.flush()
    output.seek(0)
    lines = output.read()[-8000:].decode("utf-8", errors="replace").strip().splitlines()[-_LAST_LINES:]
    return ("; last output:\n  " + "\n  ".join(lines)) if lines else "; it printed nothing"


def _bad(what: str, expected: str) -> AssetError:
    return AssetError(what, expected=expected, code=ErrorCode.ARGUMENT_INVALID)


def _failed(what: str, expected: str, code: ErrorCode = ErrorCode.GENERATOR_FAILED) -> AssetError:
    return AssetError(what, expected=expected, hint="run the command manually to see its full output", code=code)
