"""Mesh files as clean triangles in metres: STL, OBJ and COLLADA, read once and kept."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from kinema4d_ros.core.errors import ErrorCode, MeshError
from kinema4d_ros.io.files import reading, what_it_is
from kinema4d_ros.robot.mesh_obj import read_obj
from kinema4d_ros.robot.mesh_stl import read_stl
from kinema4d_ros.robot.model import TriangleMesh
from kinema4d_ros.robot.topology import Soup, clean_mesh

__all__ = ["MAX_MESH_BYTES", "load_mesh"]

MAX_MESH_BYTES = 512 * 2**20
"""Larger mesh files are refused unread."""

Scale = tuple[float, float, float]


def load_mesh(path: str | Path, scale: Scale = (1.0, 1.0, 1.0), root: str | Path | None = None) -> TriangleMesh:
    """The triangles of a mesh file, welded, outward-wound, scaled.

    Arrays are read-only: the same mesh is handed to everyone until the file changes.

    Args:
        path: a .stl, .obj or .dae file.
        scale: factors along x, y, z; a negative product mirrors, and the winding is turned with it.
        root: the folder that material libraries must not leave; by default the file's own.
    """
    file = Path(path)
    if not np.all(np.isfinite(scale)) or 0.0 in scale:
        raise MeshError(f"mesh {file.name} has scale {scale}", expected="three finite numbers that are not 0")
    try:
        status = file.stat()
    except OSError as error:
        raise MeshError(
            f"mesh file {file} cannot be opened: {error.strerror}",
            expected="a readable file",
            code=ErrorCode.MESH_MISSING,
        ) from None
    if what_it_is(status):
        raise MeshError(f"mesh {file} is {what_it_is(status)}", expected="a file")
    if status.st_size > MAX_MESH_BYTES:
        raise MeshError(f"mesh {file} has {status.st_size} bytes", expected=f"at most {MAX_MESH_BYTES}")
    folder = file.parent if root is None else Path(root)
    with reading(file, "a mesh file", error=MeshError):
        return _load(file, status.st_mtime_ns, status.st_size, scale, folder)


@lru_cache(maxsize=256)
def _load(file: Path, mtime_ns: int, size: int, scale: Scale, root: Path) -> TriangleMesh:
    soup = _read(file, root)
    if not len(soup.faces):
        raise MeshError(f"mesh {file} has no triangles", expected="at least one")
    if not np.all(np.isfinite(soup.vertices)):
        raise MeshError(f"mesh {file} has NaN or infinite vertices", expected="finite coordinates")
    scaled = soup.vertices * np.asarray(scale)
    if not np.all(np.isfinite(scaled)):
        raise MeshError(f"mesh {file} overflows with scale {scale}", expected="metres")
    faces = soup.faces[:, ::-1] if np.prod(np.sign(scale)) < 0 else soup.faces
    mesh = clean_mesh(Soup(scaled, faces, soup.face_rgb))
    if not len(mesh.faces):
        raise MeshError(f"mesh {file} has only degenerate triangles", expected="triangles with an area")
    for array in (mesh.vertices, mesh.faces, mesh.face_rgb):
        if array is not None:
            array.flags.writeable = False
    return mesh


def _read(file: Path, root: Path) -> Soup:
    data = file.read_bytes()
    suffix = file.suffix.lower()
    if suffix == ".stl":
        return read_stl(data, str(file))
    if suffix == ".obj":
        return read_obj(data, str(file), file.parent, root)
    if suffix == ".dae":
        # Imported here: pycollada takes longer to import than a whole robot of STL files to load.
        from kinema4d_ros.robot.mesh_collada import read_collada

        return read_collada(data, str(file))
    raise MeshError(
        f"mesh {file} has the unknown format '{suffix}'",
        expected=".stl, .obj or .dae",
        hint="convert it, for example with MeshLab or Blender",
    )
