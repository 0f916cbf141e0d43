"""COLLADA (.dae) files as raw triangles in metres, z up, with the diffuse colours of their materials."""

from __future__ import annotations

import io
from typing import Any

import collada
import collada.common
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import MeshError
from kinema4d_ros.robot.topology import Soup
from kinema4d_ros.robot.xml_screen import screen_xml

__all__ = ["read_collada"]

_UNCOLOURED = (0.5, 0.5, 0.5)

# The standard's table of right, up and inward: X_UP -y, x, z; Y_UP x, y, z; Z_UP x, z, -y.
_Z_UP_R_FILE = {
    "X_UP": np.array([[0.0, -1.0, 0.0], [0.0, 0.0, -1.0], [1.0, 0.0, 0.0]]),
    "Y_UP": np.array([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]]),
    "Z_UP": np.eye(3),
}


def read_collada(data: bytes, name: str) -> Soup:
    """All triangles of the scene, placed by its node transforms; metres, z up.

    The file's `unit` and `up_axis` are applied. Textures are never opened: a textured surface
    takes the neutral grey of a surface without colour. Broken references are errors, because what
    they should have shown would be missing.
    """
    screen_xml(data, f"mesh {name}", malformed=MeshError)
    try:
        document = collada.Collada(
            io.BytesIO(data), aux_file_loader=_no_other_files, ignore=[collada.common.DaeUnsupportedError]
        )
        parts = list(_triangles(document))
    except Exception as error:  # pycollada raises whatever its XML walk meets: KeyError, TypeError, DaeError
        raise MeshError(
            f"mesh {name} cannot be read as COLLADA: {type(error).__name__}: {error}",
            expected="a COLLADA 1.4 document with triangle geometry",
        ) from error
    if not parts:
        raise MeshError(f"mesh {name} has no triangles in its scene", expected="a scene that shows geometry")
    vertices = np.concatenate([corners.reshape(-1, 3) for corners, _ in parts])
    asset = document.assetInfo
    unit_m = 1.0 if asset is None or asset.unitmeter is None else float(asset.unitmeter)
    up_axis = "Y_UP" if asset is None or asset.upaxis is None else str(asset.upaxis)
    if not np.isfinite(unit_m) or unit_m <= 0 or up_axis not in _Z_UP_R_FILE:
        raise MeshError(
            f"mesh {name} has unit {unit_m} m and up axis {up_axis}",
            expected="a positive unit and X_UP, Y_UP or Z_UP",
        )
    rgb: NDArray[np.uint8] | None = None
    if any(color is not None for _, color in parts):
        table = [np.tile(_UNCOLOURED if color is None else color, (len(corners), 1)) for corners, color in parts]
        rgb = np.round(255.0 * np.clip(np.concatenate(table), 0.0, 1.0)).astype(np.uint8)
    placed = unit_m * vertices @ _Z_UP_R_FILE[up_axis].T
    return Soup(placed, np.arange(len(placed), dtype=np.int64).reshape(-1, 3), rgb)


def _triangles(document: Any) -> Any:
    """Pairs of (F, 3, 3) corners in file units and a colour or None, one per primitive."""
    if document.scene is None:
        return
    for geometry in document.scene.objects("geometry"):
        mirrored = np.linalg.det(np.asarray(geometry.matrix, dtype=np.float64)[:3, :3]) < 0
        for primitive in geometry.primitives():
            triangles = primitive.triangleset() if hasattr(primitive, "triangleset") else primitive
            if not hasattr(triangles, "vertex_index") or triangles.vertex_index is None:
                continue
            index = np.asarray(triangles.vertex_index)
            if index.ndim != 2 or index.shape[1] != 3 or not len(index):
                continue  # lines
            corners = np.asarray(triangles.vertex, dtype=np.float64)[index]
            yield (corners[:, ::-1] if mirrored else corners), _color(triangles.material)


def _color(material: Any) -> tuple[float, float, float] | None:
    diffuse = getattr(getattr(material, "effect", None), "diffuse", None)
    if isinstance(diffuse, tuple) and len(diffuse) >= 3:
        return float(diffuse[0]), float(diffuse[1]), float(diffuse[2])
    return None


def _no_other_files(name: str) -> bytes:
    raise MeshError(f"a COLLADA file asked for another file, '{name}'", expected="a file that stands alone")
