"""Cameras from COLMAP text files and transforms JSON, and errors for broken files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kinema4d_ros.acquisition.synthetic import orbit_cameras
from kinema4d_ros.acquisition.views import FileLocator, read_pose_file
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError, FileFormatError
from kinema4d_ros.core.transforms import invert, to_quaternion

FLIP = np.diag([1.0, -1.0, -1.0, 1.0])
LENS = (-0.08, 0.02, 0.0004, -0.0003)
POINTS = np.random.default_rng(0).uniform([-0.2, -0.2, 0.0], [0.4, 0.2, 0.4], (50, 3))


def cameras() -> list[PinholeCamera]:
    return orbit_cameras(5, distortion=LENS)


def write_colmap(folder: Path, model: str = "OPENCV") -> None:
    folder.mkdir(exist_ok=True)
    c = cameras()[0]
    numbers = [c.K[0, 0], c.K[1, 1], c.K[0, 2], c.K[1, 2], *LENS]
    (folder / "cameras.txt").write_text(
        f"# a comment\n1 {model} {c.width} {c.height} {' '.join(map(repr, map(float, numbers)))}\n"
    )
    lines = ["# two lines for each"]
    for i, camera in enumerate(cameras()):
        pose = invert(camera.base_T_camera)
        x, y, z, w = to_quaternion(pose)
        numbers = [w, x, y, z, *pose[:3, 3]]
        lines += [
            f"{i + 1} {' '.join(map(repr, map(float, numbers)))} 1 images/view {i}.jpg",
            "" if i % 2 else "1 2 -1",
        ]
    (folder / "images.txt").write_text("\n".join(lines) + "\n")


def same(found: dict[str, PinholeCamera]) -> None:
    assert sorted(found) == [f"view {i}" for i in range(5)]
    for i, truth in enumerate(cameras()):
        camera = found[f"view {i}"]
        for p, q in zip(
            *(c.project(POINTS @ c.camera_T_base[:3, :3].T + c.camera_T_base[:3, 3]) for c in (truth, camera)),
            strict=True,
        ):
            np.testing.assert_allclose(p, q, atol=1e-6)


def test_colmap(tmp_path: Path) -> None:
    write_colmap(tmp_path)
    same(read_pose_file(tmp_path))


def test_transforms(tmp_path: Path) -> None:
    c = cameras()[0]
    document = {
        "fl_x": c.K[0, 0], "fl_y": c.K[1, 1], "cx": c.K[0, 2], "cy": c.K[1, 2], "w": c.width, "h": c.height,
        **dict(zip(("k1", "k2", "p1", "p2"), LENS, strict=True)),
        "frames": [
            {"file_path": f"./images/view {i}.png", "transform_matrix": (k.base_T_camera @ FLIP).tolist()}
            for i, k in enumerate(cameras())
        ],
    }  # fmt: skip
    path = tmp_path / "transforms.json"
    path.write_text(json.dumps(document))
    same(read_pose_file(path))
    for broken, text in (
        ({**document, "frames": []}, "no camera poses"),
        ({**document, "frames": [{"file_path": "a", "transform_matrix": [[1, 2]]}]}, "shape"),
        ({**document, "frames": [{"file_path": "a"}]}, "transform_matrix"),
        ({**document, "frames": [7]}, "frame 0"),
        ({"w": 3}, "no frames"),
    ):
        path.write_text(json.dumps(broken))
        with pytest.raises(CalibrationError, match=text):
            read_pose_file(path)


def test_broken_colmap_files_are_reported_by_line(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"cameras\.txt does not exist"):
        read_pose_file(tmp_path)
    write_colmap(tmp_path, "FISHEYE")
    with pytest.raises(CalibrationError, match="line 2: camera model FISHEYE"):
        read_pose_file(tmp_path)
    write_colmap(tmp_path)
    (tmp_path / "images.txt").write_text("1 1 0 0 0 0 0 0 9 a.png\n\n")
    with pytest.raises(CalibrationError, match=r"images\.txt, line 1"):
        read_pose_file(tmp_path)
    (tmp_path / "cameras.txt").write_text("1 PINHOLE 640 480 500\n")
    with pytest.raises(CalibrationError, match=r"cameras\.txt, line 1"):
        read_pose_file(tmp_path)


def test_frames_missing_in_the_pose_file(tmp_path: Path) -> None:
    write_colmap(tmp_path)
    locate = FileLocator(read_pose_file(tmp_path))
    c = cameras()[0]
    image = np.zeros((c.height, c.width, 3), np.uint8)
    found = locate("view 0", image)
    assert found is not None
    np.testing.assert_allclose(found, c.base_T_camera, atol=1e-9)
    assert locate("elsewhere", image) is None
    assert "elsewhere" in str(locate.refuse())
    with pytest.raises(CalibrationError, match="64 x 48"):
        locate("view 1", np.zeros((48, 64, 3), np.uint8))
