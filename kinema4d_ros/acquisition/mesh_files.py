"""Mesh files with vertex colours: write PLY; read the PLY, OBJ, GLB and STL of reconstruction programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.acquisition.hull import ColouredMesh
from kinema4d_ros.core.errors import ErrorCode, MeshError
from kinema4d_ros.io.files import replacing_file
from kinema4d_ros.robot.meshes import MAX_MESH_BYTES, load_mesh
from kinema4d_ros.robot.model import TriangleMesh

__all__ = ["MESH_SUFFIXES", "read_mesh_file", "write_mesh_ply"]

MESH_SUFFIXES = (".glb", ".ply", ".obj", ".stl")
"""Mesh formats that a back-end may write, best first."""

_VERTEX = [("x", "<f4"), ("y", "<f4"), ("z", "<f4")]
_COLOUR = [("red", "u1"), ("green", "u1"), ("blue", "u1")]


def write_mesh_ply(path: Path, mesh: ColouredMesh, comment: str = "") -> None:
    """Write a binary PLY with vertex colours; `comment` states frame and unit."""
    vertices = np.empty(len(mesh.vertices), dtype=_VERTEX + (_COLOUR if mesh.rgb is not None else []))
    for i, (name, _) in enumerate(_VERTEX):
        vertices[name] = mesh.vertices[:, i]
    if mesh.rgb is not None:
        for i, (name, _) in enumerate(_COLOUR):
            vertices[name] = mesh.rgb[:, i]
    faces = np.empty(len(mesh.faces), dtype=[("n", "u1"), ("i", "<i4", 3)])
    faces["n"], faces["i"] = 3, mesh.faces
    names = [f"property float {n}" for n, _ in _VERTEX]
    names += [f"property uchar {n}" for n, _ in _COLOUR] if mesh.rgb is not None else []
    lines = ["ply", "format binary_little_endian 1.0", *([f"comment {comment}"] if comment else [])]
    lines += [f"element vertex {len(vertices)}", *names, f"element face {len(faces)}"]
    lines += ["property list uchar int vertex_indices", "end_header"]
    with replacing_file(path) as temporary:
        temporary.write_bytes("\n".join(lines).encode("ascii") + b"\n" + vertices.tobytes() + faces.tobytes())


def read_mesh_file(path: Path) -> ColouredMesh:
    """Read triangles and vertex colours of a mesh file; textures become vertex colours. Empty meshes are rejected."""
    if not path.is_file():
        raise MeshError(f"{path} does not exist", expected="a mesh file", code=ErrorCode.MESH_MISSING)
    if path.stat().st_size > MAX_MESH_BYTES:
        raise MeshError(f"{path} has {path.stat().st_size} bytes", expected=f"at most {MAX_MESH_BYTES}")
    if path.suffix.lower() in (".obj", ".stl"):
        # These readers open no file outside the folder.
        read = load_mesh(path)
        mesh = ColouredMesh(read.vertices, read.faces.astype(np.int64), _vertex_colours(read))
    else:
        mesh = _read_with_trimesh(path)
    if not len(mesh.faces):
        raise MeshError(f"{path} has no triangles", expected="a mesh")
    if not np.isfinite(mesh.vertices).all():
        raise MeshError(f"{path} has NaN or infinite vertices", expected="finite coordinates")
    return mesh


def _vertex_colours(read: TriangleMesh) -> NDArray[np.uint8] | None:
    if read.face_rgb is None:
        return None
    rgb = np.full((len(read.vertices), 3), 150, np.uint8)
    rgb[read.faces.ravel()] = np.repeat(read.face_rgb, 3, axis=0)
    return rgb


def _read_with_trimesh(path: Path) -> ColouredMesh:
    import trimesh

    try:
        with path.open("rb") as stream:
            # Without a resolver the file cannot load other files.
            loaded = trimesh.load(stream, file_type=path.suffix[1:].lower(), force="mesh", process=False)
        vertices = np.asarray(loaded.vertices, np.float64).reshape(-1, 3)
        faces = np.asarray(loaded.faces, np.int64).reshape(-1, 3)
        rgb = None
        if loaded.visual.kind == "texture":
            rgb = np.asarray(loaded.visual.to_color().vertex_colors)[:, :3].astype(np.uint8)
        elif loaded.visual.kind in ("vertex", "face"):
            rgb = np.asarray(loaded.visual.vertex_colors)[:, :3].astype(np.uint8)
    except Exception as error:  # trimesh's parsers raise exceptions of many types
        raise MeshError(
            f"{path} is not a valid mesh: {type(error).__name__}: {str(error)[:200]}",
            expected="triangles in a PLY or GLB file",
        ) from None
    if len(faces) and (faces.max() >= len(vertices) or faces.min() < 0):
        raise MeshError(f"{path} has faces with invalid vertex indices", expected="a complete file")
    return ColouredMesh(vertices, faces, rgb)
