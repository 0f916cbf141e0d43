"""Files of acquired robots: round trip through `Robot.load`, and hostile link names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinema4d_ros.acquisition.hull import ColouredMesh
from kinema4d_ros.acquisition.robot_files import file_name, write_obj, write_robot
from kinema4d_ros.core.errors import AssetError
from kinema4d_ros.robot import Robot
from kinema4d_ros.robot.meshes import load_mesh

BOX = ColouredMesh(
    np.array([[x, y, z] for x in (0.0, 0.1) for y in (0.0, 0.1) for z in (0.0, 0.1)]),
    np.array(
        [
            [0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1],
            [2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3],
        ]
    ),
    np.array([[250, 20, 20]] * 4 + [[20, 20, 250]] * 4, np.uint8),
)  # fmt: skip


@given(st.lists(st.text(max_size=120), max_size=12))
def test_file_names_stay_in_the_folder(names: list[str]) -> None:
    taken: set[str] = set()
    files = [file_name(name, taken) for name in names]
    assert len({f.lower() for f in files}) == len(files)
    for file in files:
        assert Path(file).name == file
        assert file not in ("", ".", "..")
        assert file.isascii()
        assert len(file) < 100


@pytest.mark.parametrize("name", ["yam", "primitive_arm"])
def test_joints_round_trip(tmp_path: Path, name: str) -> None:
    given_ = Robot.load(name)
    shaped = [link.name for link in given_.links if link.visuals]
    found = Robot.load(write_robot(tmp_path, given_, dict.fromkeys(shaped, BOX)))
    assert found.name == given_.name
    assert [link.name for link in found.links] == [link.name for link in given_.links]
    for a, b in zip(found.joints, given_.joints, strict=True):
        assert (a.name, a.kind, a.parent, a.child, a.limits, a.mimic) == (
            b.name,
            b.kind,
            b.parent,
            b.child,
            b.limits,
            b.mimic,
        )
        np.testing.assert_allclose(a.parent_T_joint, b.parent_T_joint, atol=1e-12)
        np.testing.assert_allclose(a.axis, b.axis, atol=1e-12)
    assert found.tool_link == given_.tool_link
    np.testing.assert_array_equal(found.home_position(), given_.home_position())
    assert (found.gripper is None) == (given_.gripper is None)
    for link in found.links:
        assert len(link.visuals) == (link.name in shaped)
        if link.visuals:
            assert link.collisions
            np.testing.assert_allclose(link.visuals[0].mesh.vertices.max(axis=0), 0.1, atol=1e-6)
    assert (tmp_path / "package.xml").is_file()


def test_links_with_hostile_names(tmp_path: Path) -> None:
    urdf = tmp_path / "in" / "bad.urdf"
    urdf.parent.mkdir()
    urdf.write_text(
        """<robot name="../../bad">
          <link name="../../../evil"><visual><geometry><box size="1 1 1"/></geometry></visual></link>
          <link name="/etc/passwd"><collision><geometry><mesh filename="a.stl"/></geometry></collision></link>
          <joint name="j" type="fixed"><parent link="../../../evil"/><child link="/etc/passwd"/></joint>
        </robot>"""
    )
    write_obj(tmp_path / "in" / "a.obj", BOX)
    urdf.write_text(urdf.read_text().replace("a.stl", "a.obj"))
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    path = write_robot(out, Robot.load(urdf), {"../../../evil": BOX, "/etc/passwd": BOX})
    written = {p.relative_to(tmp_path).parts[0] for p in tmp_path.rglob("*") if p.is_file()}
    assert written == {"in", "deep"}
    assert all(p.is_relative_to(out) for p in tmp_path.joinpath("deep").rglob("*") if p.is_file())
    found = Robot.load(path)
    assert {link.name for link in found.links} == {"../../../evil", "/etc/passwd"}
    # A mesh of the input package cannot be referenced from here, so the hull of the new shape replaces it.
    assert found.link("/etc/passwd").collisions[0].mesh.closed


def test_colours_survive(tmp_path: Path) -> None:
    write_obj(tmp_path / "box.obj", BOX)
    mesh = load_mesh(tmp_path / "box.obj")
    assert mesh.closed
    assert mesh.face_rgb is not None
    left = mesh.vertices[mesh.faces][..., 0].max(axis=1) == 0
    assert np.abs(mesh.face_rgb[left].astype(int) - (250, 20, 20)).max() <= 1
    right = mesh.vertices[mesh.faces][..., 0].min(axis=1) > 0
    assert np.abs(mesh.face_rgb[right].astype(int) - (20, 20, 250)).max() <= 1
    plain = ColouredMesh(BOX.vertices, BOX.faces)
    write_obj(tmp_path / "plain.obj", plain)
    assert load_mesh(tmp_path / "plain.obj").face_rgb is None


def test_many_colours_are_reduced_to_64(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(20, 230, (5, 3))
    which = np.repeat(rng.integers(0, 5, 400), 3)
    rgb = np.clip(base[which] + rng.normal(0, 3, (1200, 3)), 0, 255).astype(np.uint8)
    mesh = ColouredMesh(rng.uniform(0, 1, (1200, 3)), np.arange(1200).reshape(-1, 3), rgb)
    write_obj(tmp_path / "m.obj", mesh)
    read = load_mesh(tmp_path / "m.obj")
    assert read.face_rgb is not None
    assert len(np.unique(read.face_rgb, axis=0)) <= 64
    text = (tmp_path / "m.mtl").read_text()
    assert text.count("newmtl") <= 64
    for face, colour in zip(read.faces, read.face_rgb, strict=True):
        # Files have six digits, and reading may rotate the corners of a face, so compare with the nearest vertex.
        apart = np.abs(mesh.vertices - read.vertices[face[0]]).max(axis=1)
        assert apart.min() < 1e-5
        assert np.abs(colour - base[which[apart.argmin()]]).max() < 12


def test_invalid_input_is_refused(tmp_path: Path, yam: Robot) -> None:
    with pytest.raises(AssetError, match="nosuch"):
        write_robot(tmp_path, yam, {"nosuch": BOX})
    with pytest.raises(AssetError, match="unknown links in meshes"):
        write_robot(tmp_path, yam, {})
    made = Robot("bare", yam.links, yam.joints, yam.tool_link)
    with pytest.raises(AssetError, match="not loaded from a file"):
        write_robot(tmp_path, made, {"base": BOX})
