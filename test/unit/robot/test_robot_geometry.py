from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, MeshError, RobotError
from kinema4d_ros.robot.model import Geometry
from kinema4d_ros.robot.urdf import load_robot

Write = Callable[[str], Path]


def visual(write: Write, geometry: str, material: str = "", robot_level: str = "") -> Geometry:
    text = f"""<robot name="r">{robot_level}<link name="a"><visual><origin xyz="1 2 3"/>
    <geometry>{geometry}</geometry>{material}</visual></link></robot>"""
    return load_robot(write(text)).link("a").visuals[0]


def test_primitives(write_urdf: Write) -> None:
    box = visual(write_urdf, '<box size="1 2 3"/>')
    cylinder = visual(write_urdf, '<cylinder radius="0.1" length="2"/>')
    sphere = visual(write_urdf, '<sphere radius="0.1"/>')
    assert [(g.kind, g.size) for g in (box, cylinder, sphere)] == [
        ("box", (1.0, 2.0, 3.0)),
        ("cylinder", (0.1, 2.0)),
        ("sphere", (0.1,)),
    ]
    assert all(g.mesh.closed and g.path is None and g.rgba is None for g in (box, cylinder, sphere))
    np.testing.assert_array_equal(box.link_T_geometry[:3, 3], [1, 2, 3])


def test_mesh_with_scale(write_urdf: Write, tmp_path: Path, cube_stl: bytes) -> None:
    (tmp_path / "cube.stl").write_bytes(cube_stl)
    shape = visual(write_urdf, '<mesh filename="cube.stl" scale="0.001 0.002 -0.003"/>')
    assert shape.kind == "mesh"
    assert shape.uri == "cube.stl"
    assert shape.path == tmp_path / "cube.stl"
    assert shape.size == (0.001, 0.002, -0.003)
    assert shape.mesh.closed
    np.testing.assert_allclose(np.ptp(shape.mesh.vertices, axis=0), [0.001, 0.002, 0.003])


@pytest.mark.parametrize(
    "shape",
    [
        '<box size="1 2 0"/>',
        '<box size="1 2 -3"/>',
        '<box size="1 2 nan"/>',
        '<sphere radius="-1"/>',
        '<cylinder radius="0" length="1"/>',
        "<box/>",
        "",
        '<box size="1 1 1"/><box size="1 1 1"/>',
        "<mesh/>",
    ],
)
def test_shapes_without_a_size(write_urdf: Write, shape: str) -> None:
    with pytest.raises(RobotError) as caught:
        visual(write_urdf, shape)
    assert caught.value.code is ErrorCode.URDF_MALFORMED


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("none.stl", ErrorCode.MESH_MISSING),
        ("../../../../etc/hostname", ErrorCode.MESH_UNSAFE_PATH),
        ("/etc/hostname", ErrorCode.MESH_UNSAFE_PATH),
        ("http://localhost/a.stl", ErrorCode.MESH_UNSAFE_PATH),
        ("package://no_such_package_here/a.stl", ErrorCode.MESH_MISSING),
    ],
)
def test_unavailable_meshes(write_urdf: Write, uri: str, code: ErrorCode) -> None:
    with pytest.raises(MeshError) as caught:
        visual(write_urdf, f'<mesh filename="{uri}"/>')
    assert caught.value.code is code


BOX = '<box size="1 1 1"/>'
RED = '<material name="red"><color rgba="1 0 0 0.5"/></material>'


def test_materials_inline_and_by_name(write_urdf: Write) -> None:
    assert visual(write_urdf, BOX, RED).rgba == (1, 0, 0, 0.5)
    named = visual(write_urdf, BOX, '<material name="red"/>', RED)
    assert named.rgba == (1, 0, 0, 0.5)
    assert named.material == "red"
    textured = visual(write_urdf, BOX, '<material name="w"><texture filename="wood.png"/></material>')
    assert textured.texture == "wood.png"
    assert textured.rgba is None


@pytest.mark.parametrize(
    ("material", "complaint"),
    [
        ('<material name="blue"/>', "'blue', which is not defined"),
        ('<material name="x"><color rgba="255 0 0 1"/></material>', "from 0 to 1 .divide by 255"),
        ('<material name="x"><color rgba="nan 0 0 1"/></material>', "4 finite numbers"),
        ('<material name="x"><color rgba="0 0"/></material>', "Invalid vector length"),
    ],
)
def test_materials_without_a_colour(write_urdf: Write, material: str, complaint: str) -> None:
    with pytest.raises(RobotError, match=complaint):
        visual(write_urdf, BOX, material)
