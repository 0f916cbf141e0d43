"""Wavefront OBJ files as raw triangles with the diffuse colours of their material library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, MeshError
from kinema4d_ros.io.files import read_bytes
from kinema4d_ros.robot.topology import Soup

__all__ = ["read_obj"]

Colors = dict[str, tuple[float, float, float]]

_UNCOLOURED = (0.5, 0.5, 0.5)
_MAX_LIBRARIES = 64
_MAX_LIBRARY_BYTES = 16 * 2**20


def read_obj(data: bytes, name: str, folder: Path, root: Path) -> Soup:
    """Vertices and faces in file units; polygons are cut into fans, so they must be convex.

    Args:
        data: the file's contents.
        name: what to call the file in an error.
        folder: where `mtllib` names are looked for.
        root: material libraries outside this folder are refused. Textures are never opened.
    """
    vertices: list[list[float]] = []
    faces: list[tuple[int, int, int]] = []
    face_material: list[str] = []
    colors: Colors = {}
    libraries: set[str] = set()
    material = ""
    for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1):
        keyword, _, rest = line.strip().partition(" ")
        try:
            if keyword == "v":
                x, y, z = rest.split()[:3]
                vertices.append([float(x), float(y), float(z)])
            elif keyword == "f":
                corners = [_index(word, len(vertices)) for word in rest.split()]
                if len(corners) < 3:
                    raise ValueError(f"a face with {len(corners)} corners")
                for i in range(1, len(corners) - 1):
                    faces.append((corners[0], corners[i], corners[i + 1]))
                    face_material.append(material)
            elif keyword == "usemtl":
                material = rest.strip()
            elif keyword == "mtllib" and rest.strip() not in libraries:
                # Read once each: a file that names a library a million times must not cost a million readings.
                libraries.add(rest.strip())
                if len(libraries) > _MAX_LIBRARIES:
                    raise ValueError(f"more than {_MAX_LIBRARIES} material libraries")
                colors.update(_read_colors(rest.strip(), name, folder, root))
        except (ValueError, IndexError) as error:
            raise MeshError(
                f"mesh {name}, line {number}: '{line.strip()[:60]}': {error}",
                expected="'v x y z' with numbers and 'f i j k' with indices of vertices above it",
            ) from None
    rgb: NDArray[np.uint8] | None = None
    if any(m in colors for m in set(face_material)):
        table = np.array([colors.get(m, _UNCOLOURED) for m in face_material])
        rgb = np.round(255.0 * np.clip(table, 0.0, 1.0)).astype(np.uint8)
    return Soup(
        np.array(vertices, dtype=np.float64).reshape(-1, 3),
        np.array(faces, dtype=np.int64).reshape(-1, 3),
        rgb,
    )


def _index(word: str, count: int) -> int:
    index = int(word.split("/", 1)[0])
    index = index - 1 if index > 0 else count + index
    if not 0 <= index < count:
        raise ValueError(f"vertex {word} of {count}")
    return index


def _read_colors(library: str, name: str, folder: Path, root: Path) -> Colors:
    path = (folder / library).resolve()
    if not path.is_relative_to(root.resolve()):
        raise MeshError(
            f"mesh {name} asks for the material library '{library}', which leads to {path}",
            expected=f"a file inside {root}",
            hint="keep the material library beside the mesh",
            code=ErrorCode.MESH_UNSAFE_PATH,
        )
    if not path.is_file():
        return {}
    colors: Colors = {}
    current = ""
    for line in read_bytes(path, _MAX_LIBRARY_BYTES).decode("utf-8", errors="replace").splitlines():
        keyword, _, rest = line.strip().partition(" ")
        if keyword == "newmtl":
            current = rest.strip()
        elif keyword == "Kd":
            r, g, b = (float(word) for word in rest.split()[:3])
            colors[current] = (r, g, b)
    return colors
