from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, MeshError
from kinema4d_ros.robot.meshes import read_obj

QUAD = b"""# comment
mtllib colours.mtl
v 0 0 0
v 1 0 0
v 1 1 0
v 0 1 0
vt 0 0
vn 0 0 1
usemtl red
f 1/1/1 2/1/1 3/1/1 4/1/1
usemtl unknown
f -4//1 -3//1 -1//1
"""


def test_polygons_and_negative_indices(tmp_path: Path) -> None:
    soup = read_obj(QUAD, "q.obj", tmp_path, tmp_path)
    np.testing.assert_array_equal(soup.faces, [[0, 1, 2], [0, 2, 3], [0, 1, 3]])
    np.testing.assert_array_equal(soup.vertices[3], [0, 1, 0])
    assert soup.face_rgb is None, "without the material library there are no colours"


def test_colours_come_from_the_material_library(tmp_path: Path) -> None:
    (tmp_path / "colours.mtl").write_text("newmtl red\nKa 0 0 0\nKd 1 0.2 0\nmap_Kd /etc/passwd\n")
    soup = read_obj(QUAD, "q.obj", tmp_path, tmp_path)
    assert soup.face_rgb is not None
    assert soup.face_rgb.tolist() == [[255, 51, 0], [255, 51, 0], [128, 128, 128]]


@pytest.mark.parametrize("kind", ["parent", "absolute", "link"])
def test_a_material_library_outside_the_package_is_refused(tmp_path: Path, kind: str) -> None:
    package = tmp_path / "package"
    package.mkdir()
    secret = tmp_path / "secret.mtl"
    secret.write_text("newmtl red\nKd 1 0 0\n")
    (package / "link.mtl").symlink_to(secret)
    library = {"parent": "../secret.mtl", "absolute": str(secret), "link": "link.mtl"}[kind]
    with pytest.raises(MeshError, match="material library") as caught:
        read_obj(QUAD.replace(b"colours.mtl", library.encode()), "q.obj", package, package)
    assert caught.value.code is ErrorCode.MESH_UNSAFE_PATH


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"f 1 2 9", "vertex 9 of 4"),
        (b"f 0 1 2", "vertex 0 of 4"),
        (b"f 1 2", "2 corners"),
        (b"f a b c", "invalid literal"),
        (b"v 1 2", "not enough values"),
        (b"v x 0 0", "could not convert"),
    ],
)
def test_broken_lines_are_named(tmp_path: Path, line: bytes, complaint: str) -> None:
    with pytest.raises(MeshError, match=complaint) as caught:
        read_obj(QUAD + line, "bad.obj", tmp_path, tmp_path)
    assert caught.value.code is ErrorCode.MESH_MALFORMED
    assert "bad.obj, line 13" in str(caught.value)
