"""Surface samples (points with normals) of a robot, a mesh file or triangles, for alignment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import CalibrationError, ErrorCode, FileFormatError, MeshError, SetupError
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.io.files import reading
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.robot.meshes import load_mesh
from kinema4d_ros.robot.model import Robot

__all__ = ["Surface", "load_open3d", "load_surface", "robot_surface", "sample_surface"]

Array = NDArray[np.float64]

_POINTS = 20_000


@dataclass(frozen=True, eq=False)
class Surface:
    """Sample points on a surface.

    Attributes:
        points: (N, 3) float64.
        normals: (N, 3) float64 unit vectors; their sign is not used.
    """

    points: Array
    normals: Array


def sample_surface(vertices: ArrayLike, faces: ArrayLike, count: int = _POINTS, seed: int = 0) -> Surface:
    """Sample points uniformly over triangles, with the triangles' normals."""
    v, f = np.asarray(vertices, dtype=np.float64), np.asarray(faces, dtype=np.int64)
    a, b, c = v[f[:, 0]], v[f[:, 1]], v[f[:, 2]]
    normal = np.cross(b - a, c - a)
    area = np.linalg.norm(normal, axis=1)
    if not area.sum() > 0:
        raise CalibrationError("the surface has no area", expected="triangles")
    rng = np.random.default_rng(seed)
    pick = rng.choice(len(f), count, p=area / area.sum())
    u = np.sqrt(rng.random((count, 1)))
    w = rng.random((count, 1))
    points = (1 - u) * a[pick] + u * (1 - w) * b[pick] + u * w * c[pick]
    return Surface(points, normal[pick] / area[pick, None])


def robot_surface(robot: Robot, q: ArrayLike, count: int = 4 * _POINTS, seed: int = 0) -> Surface:
    """Sample points on the robot's visual shapes at one configuration (J,), metres, base frame."""
    poses = forward_all(robot, np.atleast_2d(np.asarray(q, dtype=np.float64)))[0]
    vertices, faces, start = [], [], 0
    for link, pose in zip(robot.links, poses, strict=True):
        for shape in link.visuals:
            vertices.append(apply(pose @ shape.link_T_geometry, shape.mesh.vertices))
            faces.append(shape.mesh.faces + start)
            start += len(shape.mesh.vertices)
    if not vertices:
        raise CalibrationError(f"robot '{robot.name}' has no visual shapes", expected="a URDF with <visual> shapes")
    return sample_surface(np.concatenate(vertices), np.concatenate(faces), count, seed)


def load_surface(path: str | Path, count: int = _POINTS) -> Surface:
    """Sample points on a mesh file (.stl, .obj, .dae, .ply, .glb), in its own units."""
    file = Path(path)
    if file.suffix.lower() not in (".ply", ".glb"):
        mesh = load_mesh(file)
        return sample_surface(mesh.vertices, mesh.faces, count)
    if not file.is_file():
        raise FileFormatError(f"{file} does not exist", expected="a mesh file", code=ErrorCode.FILE_MISSING)
    # Imported here to avoid an import cycle; it opens no file except the given one.
    from kinema4d_ros.acquisition.mesh_files import read_mesh_file

    try:
        found = read_mesh_file(file)
    except MeshError as error:
        raise FileFormatError(error.what, expected=error.expected, hint=error.hint) from None
    with reading(file, "a mesh with an area", error=CalibrationError):
        return sample_surface(found.vertices, found.faces, count)


def load_open3d(needed_for: str, instead: str) -> Any:
    """Import Open3D, which is optional because of its size; a SetupError names what needs it and what does not."""
    try:
        import open3d
    except (ImportError, OSError) as error:  # OSError: a system library that it links to is missing
        why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be loaded: {error}"
        raise SetupError(
            f"Open3D {why}", expected=f"it, for {needed_for}", hint=f"pip install open3d, or use {instead}"
        ) from None
    return open3d
