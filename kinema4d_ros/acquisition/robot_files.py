"""Files of an acquired robot: a package with the input URDF, new shapes and one coloured OBJ per link.

robot/
  package.xml
  urdf/NAME.urdf            joints, limits and mimics of the input; NAME.robot.yaml if the input has one
  meshes/LINK.obj, .mtl     metres, link frame; vertex colours, and materials for readers without vertex colours
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull, QhullError

from kinema4d_ros.acquisition.hull import ColouredMesh
from kinema4d_ros.core.errors import AssetError, ErrorCode
from kinema4d_ros.io.files import read_bytes
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.robot.robot_file import sidecar_path
from kinema4d_ros.robot.xml_screen import screen_xml

__all__ = ["file_name", "write_obj", "write_robot"]

_COLOURS = 64
_MAX_SIDECAR_BYTES = 1_000_000


def file_name(name: str, taken: set[str]) -> str:
    """Make a unique file name for a link from letters, digits, _ and -, so that it cannot leave the folder."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")[:80] or "link"
    out, number = plain, 1
    while out.lower() in taken:
        number += 1
        out = f"{plain}_{number}"
    taken.add(out.lower())
    return out


def write_robot(folder: Path, robot: Robot, meshes: Mapping[str, ColouredMesh]) -> Path:
    """Write the robot into an empty folder; return the path of its URDF.

    Args:
        folder: existing folder.
        robot: input robot, loaded from a file.
        meshes: by link name, link frame, metres.
    """
    if robot.path is None or not robot.urdf:
        raise AssetError(f"robot '{robot.name}' was not loaded from a file", expected="a robot from Robot.load")
    unknown = sorted(set(meshes) - {link.name for link in robot.links})
    if unknown or not meshes:
        raise AssetError(
            f"unknown links in meshes: {unknown}",
            expected="at least one mesh, and only for links of the robot",
            code=ErrorCode.UNKNOWN_LINK,
        )
    name = file_name(robot.name, set())
    for sub in ("urdf", "meshes"):
        (folder / sub).mkdir(parents=True, exist_ok=True)
    root = screen_xml(robot.urdf, str(robot.path))
    for material in root.findall("material"):
        root.remove(material)
    taken: set[str] = set()
    for link in root.findall("link"):
        mesh = meshes.get(link.get("name", ""))
        stem = file_name(link.get("name", ""), taken)
        _replace_shapes(link, mesh, stem, folder / "meshes")
    ElementTree.indent(root)
    path = folder / "urdf" / f"{name}.urdf"
    path.write_bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")
    sidecar = sidecar_path(robot.path)
    if sidecar.is_file():
        sidecar_path(path).write_bytes(read_bytes(sidecar, _MAX_SIDECAR_BYTES))
    (folder / "package.xml").write_text(
        _MANIFEST.format(name=re.sub(r"[^a-z0-9_]", "_", name.lower())), encoding="utf-8"
    )
    return path


def write_obj(path: Path, mesh: ColouredMesh) -> None:
    """Write an OBJ and, with colours, its MTL with at most 64 materials that approximate the face colours."""
    lines = [f"# {len(mesh.vertices)} vertices, {len(mesh.faces)} triangles, metres"]
    if mesh.rgb is None:
        lines += [f"v {x:.6g} {y:.6g} {z:.6g}" for x, y, z in mesh.vertices.tolist()]
        lines += [f"f {a} {b} {c}" for a, b, c in (mesh.faces + 1).tolist()]
        path.write_text("\n".join(lines) + "\n", encoding="ascii")
        return
    palette, which = _palette(mesh.rgb[mesh.faces].mean(axis=1))
    lines.append(f"mtllib {path.with_suffix('.mtl').name}")
    rows = np.concatenate([mesh.vertices, mesh.rgb / 255.0], axis=1).tolist()
    lines += [f"v {x:.6g} {y:.6g} {z:.6g} {r:.3f} {g:.3f} {b:.3f}" for x, y, z, r, g, b in rows]
    for i in range(len(palette)):
        chosen = mesh.faces[which == i] + 1
        if len(chosen):
            lines.append(f"usemtl c{i}")
            lines += [f"f {a} {b} {c}" for a, b, c in chosen.tolist()]
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
    materials = [f"newmtl c{i}\nKd {r:.4f} {g:.4f} {b:.4f}\n" for i, (r, g, b) in enumerate((palette / 255.0).tolist())]
    path.with_suffix(".mtl").write_text("\n".join(materials), encoding="ascii")


def _palette(colours: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Compute a palette (P, 3) of at most 64 colours by median cut, and the colour index (F,) of each face."""

    def span(group: NDArray[np.int64]) -> float:
        return float(np.ptp(colours[group], axis=0).max()) * float(np.sqrt(len(group))) if len(group) > 1 else 0.0

    groups = [np.arange(len(colours))]
    spans = [span(groups[0])]
    while len(groups) < min(_COLOURS, len(colours)) and max(spans) > 1.0:
        widest = int(np.argmax(spans))
        group = groups.pop(widest)
        spans.pop(widest)
        axis = int(np.ptp(colours[group], axis=0).argmax())
        order = group[np.argsort(colours[group, axis], kind="stable")]
        for half in (order[: len(order) // 2], order[len(order) // 2 :]):
            groups.append(half)
            spans.append(span(half))
    which = np.empty(len(colours), np.int64)
    for i, group in enumerate(groups):
        which[group] = i
    return np.stack([colours[g].mean(axis=0) for g in groups]), which


def _replace_shapes(link: ElementTree.Element, mesh: ColouredMesh | None, stem: str, folder: Path) -> None:
    for visual in link.findall("visual"):
        link.remove(visual)
    kept = []
    for collision in link.findall("collision"):
        link.remove(collision)
        if collision.find("geometry/mesh") is None:
            kept.append(collision)
    if mesh is not None:
        write_obj(folder / f"{stem}.obj", mesh)
        link.append(_shape("visual", f"../meshes/{stem}.obj"))
        if not kept:
            write_obj(folder / f"{stem}_hull.obj", _hull(mesh))
            link.append(_shape("collision", f"../meshes/{stem}_hull.obj"))
    for collision in kept:
        link.append(collision)


def _shape(kind: str, file: str) -> ElementTree.Element:
    shape = ElementTree.Element(kind)
    ElementTree.SubElement(ElementTree.SubElement(shape, "geometry"), "mesh", filename=file)
    return shape


def _hull(mesh: ColouredMesh) -> ColouredMesh:
    """Compute the convex hull, wound outwards; the mesh itself if it is flat."""
    try:
        hull = ConvexHull(mesh.vertices)
    except QhullError:
        return ColouredMesh(mesh.vertices, mesh.faces)
    corners = mesh.vertices[hull.simplices]
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    inward = (normal * hull.equations[:, :3]).sum(axis=1) < 0
    faces = np.where(inward[:, None], hull.simplices[:, ::-1], hull.simplices)
    return ColouredMesh(mesh.vertices, faces.astype(np.int64)).part(np.ones(len(faces), np.bool_))


_MANIFEST = """<?xml version="1.0"?>
<package format="3">
  <name>{name}_acquired</name>
  <version>0.1.0</version>
  <description>A robot acquired from pictures by kinema4d</description>
  <maintainer email="user@example.com">user</maintainer>
  <license>Proprietary</license>
</package>
"""
