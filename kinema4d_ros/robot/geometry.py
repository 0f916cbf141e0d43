"""Visual and collision shapes of a URDF as coloured triangles, and checked URDF numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from urdf_parser_py.urdf import Box, Cylinder, Mesh, Sphere

from kinema4d_ros.core.errors import RobotError
from kinema4d_ros.core.transforms import from_rpy
from kinema4d_ros.robot.meshes import load_mesh
from kinema4d_ros.robot.model import Geometry, GeometryKind
from kinema4d_ros.robot.packages import resolve_mesh
from kinema4d_ros.robot.primitives import box_mesh, cylinder_mesh, sphere_mesh

__all__ = ["Materials", "finite", "pose_matrix", "read_geometry"]

# Checked numbers: right count, finite, float64.


def finite(values: ArrayLike, where: str, count: int) -> NDArray[np.float64]:
    """Return (count,) float64, or raise a RobotError that names the location of the bad number."""
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size != count or not np.all(np.isfinite(array)):
        raise RobotError(f"{where} is {array.tolist()}", expected=f"{count} finite number{'s' if count > 1 else ''}")
    return array


def pose_matrix(origin: Any, where: str) -> NDArray[np.float64]:
    """Return (4, 4) of a parsed <origin>, identity if there is none; xyz in metres, rpy in radians."""
    if origin is None:
        return np.eye(4)
    xyz = finite([0.0, 0.0, 0.0] if origin.xyz is None else origin.xyz, f"{where} xyz", 3)
    rpy = finite([0.0, 0.0, 0.0] if origin.rpy is None else origin.rpy, f"{where} rpy", 3)
    return from_rpy(rpy, xyz)


RGBA = tuple[float, float, float, float]


class Materials:
    """Colours and textures by material name, defined at robot level or inline in a visual."""

    def __init__(self, robot: Any, path: Path) -> None:
        """Collect the definitions; the first one of a name wins, as in urdfdom."""
        self._path = path
        self._known: dict[str, tuple[RGBA | None, str]] = {}
        inline = [v.material for link in robot.links for v in link.visuals if v.material is not None]
        for material in [*robot.materials, *inline]:
            color, texture = self._read(material)
            if material.name and (color is not None or texture):
                self._known.setdefault(material.name, (color, texture))

    def look_up(self, material: Any, where: str) -> tuple[RGBA | None, str]:
        """Return the colour and texture of a visual's <material>."""
        if material is None:
            return None, ""
        color, texture = self._read(material)
        if color is not None or texture:
            return color, texture
        if material.name not in self._known:
            raise RobotError(
                f"{where} uses the material '{material.name}', which is not defined",
                expected=f"a <color>, or one of the materials {', '.join(self._known) or '(none)'}",
            )
        return self._known[material.name]

    @staticmethod
    def _read(material: Any) -> tuple[RGBA | None, str]:
        texture = "" if material.texture is None else str(material.texture.filename)
        if material.color is None or material.color.rgba is None:
            return None, texture
        r, g, b, a = finite(material.color.rgba, f"material '{material.name}' rgba", 4)
        if not all(0.0 <= c <= 1.0 for c in (r, g, b, a)):
            raise RobotError(
                f"material '{material.name}' has rgba {r:g} {g:g} {b:g} {a:g}",
                expected="four numbers from 0 to 1",
                hint="divide by 255",
            )
        return (float(r), float(g), float(b), float(a)), texture


def read_geometry(element: Any, where: str, urdf: Path, materials: Materials | None) -> Geometry:
    """Convert a parsed <visual> (with `materials`) or <collision> (without) to triangles."""
    link_T_geometry = pose_matrix(element.origin, f"{where} origin")
    rgba, texture, name = None, "", ""
    if materials is not None and element.material is not None:
        name = element.material.name or ""
        rgba, texture = materials.look_up(element.material, where)
    shape = element.geometry
    size: tuple[float, ...]
    uri, path = "", None
    if isinstance(shape, Mesh):
        kind: GeometryKind = "mesh"
        scale = finite([1.0, 1.0, 1.0] if shape.scale is None else shape.scale, f"{where} scale", 3)
        size = sx, sy, sz = float(scale[0]), float(scale[1]), float(scale[2])
        file = resolve_mesh(shape.filename, urdf)
        uri, path = shape.filename, file.path
        mesh = load_mesh(file.path, (sx, sy, sz), file.root)
    elif isinstance(shape, Box):
        kind = "box"
        size = x, y, z = _lengths(shape.size, where)
        mesh = box_mesh((x, y, z))
    elif isinstance(shape, Cylinder):
        kind = "cylinder"
        size = radius, length = _lengths([shape.radius, shape.length], where)
        mesh = cylinder_mesh(radius, length)
    elif isinstance(shape, Sphere):
        kind = "sphere"
        size = (radius,) = _lengths([shape.radius], where)
        mesh = sphere_mesh(radius)
    else:
        raise RobotError(f"{where} has no shape", expected="mesh, box, cylinder or sphere")
    return Geometry(
        kind=kind,
        link_T_geometry=link_T_geometry,
        mesh=mesh,
        rgba=rgba,
        size=size,
        uri=uri,
        path=path,
        material=name,
        texture=texture,
    )


def _lengths(values: Any, where: str) -> tuple[float, ...]:
    array = finite(values, f"{where} size", len(values))
    if not np.all(array > 0):
        raise RobotError(f"{where} has the size {array.tolist()}", expected="lengths above 0 m")
    return tuple(float(x) for x in array)
