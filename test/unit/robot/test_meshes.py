from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, MeshError
from kinema4d_ros.robot import meshes
from kinema4d_ros.robot.meshes import load_mesh
from kinema4d_ros.robot.model import TriangleMesh

VENDOR_ASSETS = "robot_models/arm/yam/v1/assets"


def volume(mesh: TriangleMesh) -> float:
    a, b, c = np.moveaxis(mesh.vertices[mesh.faces], 1, 0)
    return float(np.einsum("ij,ij->", a, np.cross(b, c)) / 6.0)


@pytest.fixture
def cube(tmp_path: Path, cube_stl: bytes) -> Path:
    path = tmp_path / "cube.STL"
    path.write_bytes(cube_stl)
    return path


def test_a_cube(cube: Path) -> None:
    mesh = load_mesh(cube)
    assert mesh.closed
    assert mesh.vertices.shape == (8, 3)
    assert mesh.faces.shape == (12, 3)
    assert mesh.faces.dtype == np.int32
    assert volume(mesh) == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [(2.0, 3.0, 4.0), (-2.0, 3.0, 4.0), (-2.0, -3.0, 4.0), (-2.0, -3.0, -4.0)])
def test_scale_mirrors_without_turning_inside_out(cube: Path, scale: tuple[float, float, float]) -> None:
    mesh = load_mesh(cube, scale)
    assert mesh.closed
    assert volume(mesh) == pytest.approx(24.0)


def test_a_mirrored_open_mesh_keeps_its_orientation(tmp_path: Path) -> None:
    # One triangle seen from +z; mirrored in x it must still be seen from +z.
    path = tmp_path / "t.obj"
    path.write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    mesh = load_mesh(path, (-1.0, 1.0, 1.0))
    a, b, c = mesh.vertices[mesh.faces[0]]
    np.testing.assert_allclose(np.cross(b - a, c - a), [0, 0, 1])


def test_the_same_file_is_read_once_until_it_changes(cube: Path, cube_stl: bytes) -> None:
    first = load_mesh(cube)
    assert load_mesh(cube) is first
    assert load_mesh(cube, (2.0, 2.0, 2.0)) is not first
    cube.write_bytes(cube_stl[:80] + (11).to_bytes(4, "little") + cube_stl[84:-50])
    os.utime(cube, ns=(1, 1))
    assert not load_mesh(cube).closed


def test_shared_arrays_cannot_be_changed(cube: Path) -> None:
    mesh = load_mesh(cube)
    with pytest.raises(ValueError, match="read-only"):
        mesh.vertices[0] = 0.0


@pytest.mark.parametrize("scale", [(0.0, 1.0, 1.0), (1.0, float("nan"), 1.0), (1.0, 1.0, float("inf"))])
def test_invalid_scales_are_refused(cube: Path, scale: tuple[float, float, float]) -> None:
    with pytest.raises(MeshError, match="scale"):
        load_mesh(cube, scale)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("m.stl", b"", "0 bytes"),
        ("m.stl", bytes(84), "no triangles"),
        ("m.stl", bytes(80) + (1).to_bytes(4, "little") + bytes(50), "degenerate"),
        ("m.stl", bytes(80) + (1).to_bytes(4, "little") + bytes(12) + b"\xff" * 36 + bytes(2), "NaN"),
        ("m.obj", b"v 0 0 0\n", "no triangles"),
        ("m.obj", b"v nan 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3", "NaN"),
        ("m.ply", b"ply", "unknown format '.ply'"),
    ],
)
def test_unusable_files(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(MeshError, match=complaint) as caught:
        load_mesh(path)
    assert caught.value.code is ErrorCode.MESH_MALFORMED


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(MeshError, match="No such file") as caught:
        load_mesh(tmp_path / "none.stl")
    assert caught.value.code is ErrorCode.MESH_MISSING


def test_huge_files_are_refused_unread(cube: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meshes, "MAX_MESH_BYTES", 100)
    with pytest.raises(MeshError, match="684 bytes"):
        load_mesh(cube)
