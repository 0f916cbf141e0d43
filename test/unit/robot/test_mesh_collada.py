from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, MeshError, RobotError
from kinema4d_ros.robot.meshes import read_collada

DOCUMENT = """<?xml version="1.0"?>
<COLLADA xmlns="http://www.collada.org/2005/11/COLLADASchema" version="1.4.1">
  <asset><created>2026-01-01T00:00:00</created><modified>2026-01-01T00:00:00</modified>{asset}</asset>
  {images}<library_effects><effect id="e"><profile_COMMON>{params}<technique sid="c"><lambert>
    <diffuse>{diffuse}</diffuse>
  </lambert></technique></profile_COMMON></effect></library_effects>
  <library_materials><material id="m"><instance_effect url="#e"/></material></library_materials>
  <library_geometries><geometry id="g"><mesh>
    <source id="p"><float_array id="pa" count="9">1 2 3 5 2 3 1 7 3</float_array>
      <technique_common><accessor source="#pa" count="3" stride="3">
        <param name="X" type="float"/><param name="Y" type="float"/><param name="Z" type="float"/>
      </accessor></technique_common></source>
    <vertices id="v"><input semantic="POSITION" source="#p"/></vertices>
    <triangles material="s" count="1"><input semantic="VERTEX" source="#v" offset="0"/><p>{indices}</p></triangles>
  </mesh></geometry></library_geometries>
  <library_visual_scenes><visual_scene id="vs"><node id="outer">
    <translate>10 0 0</translate><node id="n">{scale}<instance_geometry url="#g">
    <bind_material><technique_common><instance_material symbol="s" target="#m"/></technique_common></bind_material>
    </instance_geometry></node></node></visual_scene></library_visual_scenes>
  <scene>{scene}</scene>
</COLLADA>"""

DEFAULTS = {
    "asset": "<unit meter='1'/><up_axis>Z_UP</up_axis>",
    "diffuse": "<color>1 0.5 0 1</color>",
    "indices": "0 1 2",
    "scale": "",
    "images": "",
    "params": "",
    "scene": "<instance_visual_scene url='#vs'/>",
}
TRIANGLE = np.array([[11.0, 2, 3], [15, 2, 3], [11, 7, 3]])


def document(**changes: str) -> bytes:
    return DOCUMENT.format(**{**DEFAULTS, **changes}).encode()


def test_scene_transforms_and_colour() -> None:
    soup = read_collada(document(), "t.dae")
    np.testing.assert_allclose(soup.vertices, TRIANGLE, atol=1e-6)
    assert soup.face_rgb is not None
    assert soup.face_rgb.tolist() == [[255, 128, 0]]


def test_unit_is_applied() -> None:
    soup = read_collada(document(asset="<unit name='inch' meter='0.0254'/><up_axis>Z_UP</up_axis>"), "t.dae")
    np.testing.assert_allclose(soup.vertices, 0.0254 * TRIANGLE, rtol=1e-6)


@pytest.mark.parametrize(
    ("axis", "column"), [("<up_axis>X_UP</up_axis>", 0), ("<up_axis>Y_UP</up_axis>", 1), ("<up_axis>Z_UP</up_axis>", 2)]
)
def test_up_axis_becomes_z_by_a_rotation(axis: str, column: int) -> None:
    vertices = read_collada(document(asset=axis), "t.dae").vertices
    np.testing.assert_allclose(vertices[:, 2], TRIANGLE[:, column], atol=1e-6)
    right = -TRIANGLE[:, 1] if column == 0 else TRIANGLE[:, 0]
    np.testing.assert_allclose(vertices[:, 0], right, atol=1e-6)
    assert np.linalg.det(vertices) == pytest.approx(np.linalg.det(TRIANGLE), rel=1e-6), "no mirror image"


def test_a_mirroring_node_reverses_the_winding() -> None:
    plain = read_collada(document(), "t.dae").vertices
    mirrored = read_collada(document(scale="<scale>-1 1 1</scale>"), "t.dae").vertices
    up = np.cross(plain[1] - plain[0], plain[2] - plain[0])
    still_up = np.cross(mirrored[1] - mirrored[0], mirrored[2] - mirrored[0])
    np.testing.assert_allclose(still_up, up, atol=1e-5)


def test_a_texture_is_not_opened_and_leaves_the_surface_uncoloured() -> None:
    image = "<library_images><image id='i'><init_from>/etc/hostname</init_from></image></library_images>"
    sampler = (
        "<newparam sid='surface'><surface type='2D'><init_from>i</init_from></surface></newparam>"
        "<newparam sid='x'><sampler2D><source>surface</source></sampler2D></newparam>"
    )
    diffuse = "<texture texture='x' texcoord='u'/>"
    soup = read_collada(document(images=image, params=sampler, diffuse=diffuse), "t.dae")
    assert soup.face_rgb is None
    np.testing.assert_allclose(soup.vertices, TRIANGLE, atol=1e-6)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<COLLADA>",
        b"<robot/>",
        document()[:900],
        document(scene="<instance_visual_scene url='#nowhere'/>"),
        document(indices="0 1 7"),
        document(indices="0 1"),
        document(scene=""),
        document(asset="<unit meter='-1'/>"),
        document(asset="<unit meter='nan'/>"),
    ],
)
def test_broken_documents(data: bytes) -> None:
    with pytest.raises(MeshError) as caught:
        read_collada(data, "bad.dae")
    assert caught.value.code is ErrorCode.MESH_MALFORMED
    assert "bad.dae" in str(caught.value)


def test_entities_are_refused() -> None:
    bomb = document().replace(b"<COLLADA", b'<!DOCTYPE x [<!ENTITY a "1 1 1">]><COLLADA', 1)
    with pytest.raises(RobotError) as caught:
        read_collada(bomb, "bomb.dae")
    assert caught.value.code is ErrorCode.URDF_UNSAFE
