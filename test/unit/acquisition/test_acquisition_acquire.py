"""`kinema4d acquire` from files to a robot: IoU of the result, resumed runs, and errors."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial import cKDTree
from support.orbits import BASE_T_BOARD, BOARD, BOARD_POSE, Q_OTHER, Q, SmallOrbit, rough_description, small_orbit

from kinema4d_ros.acquisition.acquire import redraw
from kinema4d_ros.acquisition.align import align_mesh, with_shapes
from kinema4d_ros.acquisition.drawing import coverage
from kinema4d_ros.acquisition.hull import visual_hull
from kinema4d_ros.acquisition.links import LinkShapes
from kinema4d_ros.calibration import write_camera_info
from kinema4d_ros.calibration.camera_files import CameraInfo
from kinema4d_ros.calibration.silhouette import mask_iou
from kinema4d_ros.calibration.surfaces import robot_surface
from kinema4d_ros.cli import acquire as verb
from kinema4d_ros.core.errors import CalibrationError, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import apply, from_rpy, to_quaternion
from kinema4d_ros.io.files import write_yaml
from kinema4d_ros.io.images import read_image, write_image
from kinema4d_ros.io.tables import write_trajectory
from kinema4d_ros.robot import Robot

VOXEL = "0.006"


@pytest.fixture(scope="module")
def orbit(yam: Robot) -> SmallOrbit:
    return small_orbit(yam, Q, 12)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, yam: Robot, orbit: SmallOrbit) -> Path:
    folder = tmp_path_factory.mktemp("orbit")
    orbit.write(folder / "frames", folder / "masks")
    write_camera_info(folder / "camera.yaml", CameraInfo.of(orbit.cameras[0]))
    write_joints(folder / "at.csv", yam, Q[None])
    rough_description(yam, folder / "rough")
    return folder


def write_joints(path: Path, robot: Robot, q: np.ndarray) -> None:
    write_trajectory(JointTrajectory(robot.joint_names, np.arange(len(q), dtype=float), q), path)


def arguments(world: Path, out: Path, **changed: Any) -> list[str]:
    options: dict[str, Any] = {
        "urdf": world / "rough/yam.urdf",
        "joints": world / "at.csv",
        "camera": world / "camera.yaml",
        "board": BOARD.text,
        "board-pose": BOARD_POSE,
        "masks": world / "masks",
        "voxel": VOXEL,
        "out": out,
        "videos": [world / "frames"],
        "views": 12,
    }
    options |= changed
    words = [str(v) for v in options.pop("videos")]
    for key, value in options.items():
        if value is None:
            continue
        words.append(f"--{key}")
        if value is not True:
            words += [str(v) for v in (value if isinstance(value, list) else [value])]
    return [*words, "--json"]


def acquire(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    verb.register(parser.add_subparsers())
    chosen = parser.parse_args(["acquire", *words])
    assert chosen.run(chosen) == 0
    out: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return out


def test_from_images_to_a_robot(
    world: Path, tmp_path: Path, yam: Robot, orbit: SmallOrbit, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    report = acquire(arguments(world, out), capsys)
    assert report["made"] == ["frames", "poses", "masks", "mesh", "align", "links", "robot"]
    assert report["iou_mean"] > 0.93
    assert report["iou_least"] > 0.9
    assert sorted(report["links"]) == sorted(link.name for link in yam.links if link.visuals)
    assert any("one joint configuration" in note for note in report["notes"])
    for stage in ("1_frames", "2_poses", "3_masks", "4_mesh", "5_align", "6_links", "robot"):
        sheet = read_image(out / stage / "sheet.png")
        assert len(np.unique(sheet.reshape(-1, 3), axis=0)) > 20, stage
    found = Robot.load(report["urdf"])
    held = small_orbit(yam, Q, 6, seed=9, turns=1.3, board=False).views()
    assert coverage(redraw(found, Q[None], held), held).mean() > 0.9
    # Every link mesh is at its true pose; links are separated according to the approximate shapes.
    true = LinkShapes.of(yam).surfaces
    for name, surface in true.items():
        mesh = found.link(name).visuals[0].mesh.vertices
        distance, _ = cKDTree(surface.points).query(mesh)
        assert np.median(distance) < 0.012, name

    again = acquire(arguments(world, out), capsys)
    assert again["made"] == []
    assert again["iou_mean"] == report["iou_mean"]
    # Only the stages that depend on the alignment run again.
    assert acquire(arguments(world, out, **{"no-refine": True}), capsys)["made"] == ["align", "links", "robot"]


@pytest.mark.full
def test_two_configurations_agree(
    world: Path, tmp_path: Path, yam: Robot, orbit: SmallOrbit, capsys: pytest.CaptureFixture[str]
) -> None:
    other = small_orbit(yam, Q_OTHER, 10, seed=3)
    for i, (name, data) in enumerate((("first", orbit), ("second", other))):
        data.write(tmp_path / name, tmp_path / "masks", f"{i}_")
    write_joints(tmp_path / "at.csv", yam, np.stack([Q, Q_OTHER]))
    both = {
        "videos": [tmp_path / "first", tmp_path / "second"],
        "masks": tmp_path / "masks",
        "joints": tmp_path / "at.csv",
    }
    report = acquire(arguments(world, tmp_path / "out", **both), capsys)
    assert len(report["iou_by_orbit"]) == 2
    assert min(report["iou_by_orbit"]) > 0.88
    assert not any("do not fit" in note for note in report["notes"])
    # A third configuration, not in the videos.
    q = np.array([0.1, 1.7, 1.9, -0.9, 0.1, 0.5, 0.04])
    held = small_orbit(yam, q, 4, seed=5, board=False).views()
    assert coverage(redraw(Robot.load(report["urdf"]), q[None], held), held).mean() > 0.82


@pytest.mark.full
@pytest.mark.parametrize("picked", [True, False], ids=["pairs", "searched"])
def test_an_external_mesh_is_aligned_and_cut(
    world: Path, tmp_path: Path, yam: Robot, orbit: SmallOrbit, capsys: pytest.CaptureFixture[str], picked: bool
) -> None:
    hull = visual_hull(orbit.views(), 0.006)
    own = from_rpy([0.3, -0.7, 1.9], [3.0, 1.0, -2.0])
    text = "".join(f"v {x} {y} {z}\n" for x, y, z in apply(own, hull.vertices / 0.4))
    text += "".join(f"f {a} {b} {c}\n" for a, b, c in hull.faces + 1)
    (tmp_path / "scan.obj").write_text(text)
    program = f"import shutil, sys; shutil.copy({str(tmp_path / 'scan.obj')!r}, sys.argv[2])"
    picks = robot_surface(yam, Q, 8, seed=1).points
    write_yaml(tmp_path / "pairs.yaml", {"recon": apply(own, picks / 0.4).tolist(), "base": picks.tolist()})
    changed = {
        "command": shlex.join([sys.executable, "-c", program, "{images}", "{out}"]),
        "pairs": tmp_path / "pairs.yaml" if picked else None,
        "similarity": True,
    }
    report = acquire(arguments(world, tmp_path / "out", **changed), capsys)
    assert report["alignment"]["scale"] == pytest.approx(0.4, rel=0.02)
    assert report["iou_mean"] > 0.88
    assert any("flat caps" in note for note in report["notes"])


def refuse(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(KinemaError) as caught:
        acquire(words, capsys)
    return str(caught.value)


def test_bad_images_are_refused(world: Path, tmp_path: Path, yam: Robot, capsys: pytest.CaptureFixture[str]) -> None:
    import cv2

    for i, file in enumerate(sorted((world / "frames").iterdir())):
        image = read_image(file)
        soft = np.asarray(cv2.GaussianBlur(image, (0, 0), 4.0), np.uint8)
        write_image(tmp_path / "blurred" / file.name, soft if i > 2 else image)
        bare = np.full_like(image, 120)
        bare[:, ::40] = 30
        bare[::40] = 30
        write_image(tmp_path / "bare" / file.name, bare)
        if i < 4:
            write_image(tmp_path / "few" / file.name, image)
            write_image(tmp_path / "side" / file.name, image)
            write_image(tmp_path / "side" / f"again_{file.name}", image)
    out = tmp_path / "out"
    assert "of the frames are sharp" in refuse(arguments(world, out, videos=[tmp_path / "blurred"]), capsys)
    assert "no frame shows the board" in refuse(arguments(world, out, videos=[tmp_path / "bare"]), capsys)
    assert "4 of 4" in refuse(arguments(world, out, videos=[tmp_path / "few"]), capsys)
    assert not (out / "1_frames").exists()
    side = small_orbit(yam, Q, 8, turns=0.12, elevation_deg=(30, 40))
    side.write(tmp_path / "one_side", tmp_path / "unused")
    assert "from one side" in refuse(arguments(world, out, videos=[tmp_path / "one_side"]), capsys)


@pytest.mark.full
def test_bad_masks_are_refused_by_name(
    world: Path, tmp_path: Path, orbit: SmallOrbit, capsys: pytest.CaptureFixture[str]
) -> None:
    orbit.write(tmp_path / "unused", tmp_path / "masks")
    black = np.zeros((360, 480, 3), np.uint8)
    write_image(tmp_path / "masks/f007.png", black)
    words = arguments(world, tmp_path / "out", masks=tmp_path / "masks")
    assert "mask of frame f007 is empty" in refuse(words, capsys)
    write_image(tmp_path / "masks/f007.png", black + np.uint8(255))
    assert "f007 covers 100%" in refuse(words, capsys)
    (tmp_path / "masks/f007.png").unlink()
    assert "no mask for frame f007" in refuse(words, capsys)
    # Earlier stages are reused: the run resumes at the masks.
    orbit.write(tmp_path / "unused", tmp_path / "masks")
    assert acquire(words, capsys)["made"][0] == "masks"


@pytest.mark.full
def test_another_robot_is_refused(world: Path, yam: Robot, primitive_arm: Robot, orbit: SmallOrbit) -> None:
    hull = visual_hull(orbit.views(), 0.006)
    rough = with_shapes(Robot.load(world / "rough/yam.urdf"))
    good = align_mesh(hull, rough, Q, base_T_world=np.eye(4))
    assert good.fit > 0.9
    assert good.covered > 0.9
    with pytest.raises(CalibrationError, match="does not fit 'primitive_arm'"):
        align_mesh(hull, primitive_arm, primitive_arm.home_position(), base_T_world=np.eye(4))
    with pytest.raises(CalibrationError, match="does not fit 'yam'"):
        align_mesh(hull, yam, Q_OTHER, base_T_world=np.eye(4))
    # A board pose with a larger error than the refinement may correct.
    with pytest.raises(CalibrationError, match="does not fit"):
        align_mesh(hull, yam, Q, base_T_world=from_rpy([0, 0, 0.4], [0.05, 0.03, 0.0]))
    # An error of 4 mm is corrected.
    near = align_mesh(hull, yam, Q, base_T_world=from_rpy([0, 0, 0.01], [0.004, 0.0, 0.0]))
    assert near.refined
    assert np.abs(near.base_T_world - np.eye(4)).max() < 0.004


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"board": None}, "exactly one of --board and --poses"),
        ({"camera": None}, "--camera"),
        ({"masks": None}, "exactly one of --masks and --segmenter"),
        ({"board-pose": None}, "exactly one of --board-pose and --pairs"),
        ({"views": 3}, "views is 3"),
        ({"voxel": "0"}, "the voxel size is 0"),
        ({"max-blur": "0"}, "the blur limit is 0"),
        ({"similarity": True}, "--pairs with --similarity"),
        ({"command": "x {images} {out}", "board-pose": None}, "--board-pose for the cameras"),
        ({"masks": None, "segmenter": "sam2"}, "SAM 2 needs --weights"),
        ({"masks": None, "segmenter": "sam2", "weights": ".", "text": "arm"}, "only one of --text and --detector"),
        ({"masks": None, "segmenter": "classical", "text": "arm"}, "--text without --segmenter sam2"),
        ({"weights": "."}, "--weights without --segmenter sam2"),
        ({"mesher": "open3d"}, "--depth, and neither"),
        ({"triangles": "3"}, "--triangles is 3"),
    ],
)
def test_incompatible_options_are_refused(
    world: Path, tmp_path: Path, changed: dict[str, Any], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text in refuse(arguments(world, tmp_path / "out", **changed), capsys)
    assert not (tmp_path / "out").exists()


QUICK = {"views": 8, "voxel": "0.01"}


@pytest.mark.full
def test_classical_masks_and_pose_from_pairs(
    world: Path, tmp_path: Path, yam: Robot, capsys: pytest.CaptureFixture[str]
) -> None:
    """Picked pairs are enough to prompt the segmenter."""
    picks = robot_surface(yam, Q, 8, seed=1).points
    place = np.linalg.inv(BASE_T_BOARD)
    rough = picks + np.random.default_rng(2).normal(0, 0.004, picks.shape)
    write_yaml(tmp_path / "pairs.yaml", {"recon": apply(place, picks).tolist(), "base": rough.tolist()})
    changed = {
        "masks": None,
        "segmenter": "classical",
        "rounds": 0,
        "board-pose": None,
        "pairs": tmp_path / "pairs.yaml",
        **QUICK,
    }
    report = acquire(arguments(world, tmp_path / "out", **changed), capsys)
    assert report["iou_mean"] > 0.75
    truth = {file.stem: read_image(file)[..., 0] > 127 for file in (world / "masks").iterdir()}
    masks = {view["name"]: read_image(tmp_path / "out/3_masks" / f"{view['name']}.png") for view in report["views"]}
    assert np.mean([mask_iou(mask[..., 0] > 127, truth[name]) for name, mask in masks.items()]) > 0.8


@pytest.mark.full
def test_poses_from_files_and_depth(
    world: Path, tmp_path: Path, orbit: SmallOrbit, capsys: pytest.CaptureFixture[str]
) -> None:
    """Use COLMAP text files in the base frame instead of a board, and a depth camera."""
    camera = orbit.cameras[0]
    write_colmap(tmp_path / "colmap", orbit)
    for i, metres in enumerate(orbit.depth_m):
        depth = np.rint(np.nan_to_num(metres) * 1e4).astype(np.uint16)
        write_depth(tmp_path / "depth" / f"f{i:03d}.png", depth)
    assert depth.shape == (camera.height, camera.width)
    changed = {
        "board": None,
        "camera": None,
        "poses": tmp_path / "colmap",
        "board-pose": ["0"] * 6,
        "depth": tmp_path / "depth",
        "no-floor": True,
        **QUICK,
    }
    report = acquire(arguments(world, tmp_path / "out", **changed), capsys)
    assert report["iou_mean"] > 0.9
    assert len(list((tmp_path / "out/2_poses/depth").iterdir())) == 8
    (tmp_path / "depth/f000.png").unlink()
    for file in (tmp_path / "depth").iterdir():
        file.rename(file.with_name(f"other_{file.name}"))
    assert "depth" in refuse(arguments(world, tmp_path / "out2", **changed), capsys)


@pytest.mark.full
def test_open3d_meshes_measured_depth(
    world: Path, tmp_path: Path, yam: Robot, orbit: SmallOrbit, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("open3d", reason="pip install open3d")
    for i, metres in enumerate(orbit.depth_m):
        write_depth(tmp_path / "depth" / f"f{i:03d}.png", np.rint(np.nan_to_num(metres) * 1e4).astype(np.uint16))
    fused = {"mesher": "open3d", "depth": tmp_path / "depth", "voxel": "0.004", "triangles": 2000}
    report = acquire(arguments(world, tmp_path / "out", **fused), capsys)
    assert report["iou_mean"] > 0.9
    assert "Open3D's ICP" in report["alignment"]["note"]
    assert any("fused from depth by Open3D" in note for note in report["notes"])
    assert sorted(report["links"]) == sorted(link.name for link in yam.links if link.visuals)
    assert max(report["links"].values()) <= 2000
    found = Robot.load(report["urdf"])
    near = cKDTree(robot_surface(yam, Q).points).query(robot_surface(found, Q, 8000).points)[0]
    assert np.mean(near) < 0.004
    fused["triangles"] = 1000
    assert acquire(arguments(world, tmp_path / "out", **fused), capsys)["made"] == ["links", "robot"]


def test_missing_open3d_is_reported_before_the_work(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "open3d", None)  # as if it were not installed
    for options in ({"mesher": "open3d", "depth": world / "masks"}, {"triangles": 500}, {"engine": "open3d"}):
        assert "pip install open3d" in refuse(arguments(world, tmp_path / "out", **options), capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_a_mirrored_video_and_a_wrong_description_are_refused(
    world: Path, tmp_path: Path, primitive_arm: Robot, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in sorted((world / "frames").iterdir()):
        write_image(tmp_path / "mirrored" / file.name, np.ascontiguousarray(read_image(file)[:, ::-1]))
    words = arguments(world, tmp_path / "out", videos=[tmp_path / "mirrored"], **QUICK)
    assert "mirror" in refuse(words, capsys)
    other = rough_description(primitive_arm, tmp_path / "other")
    words = arguments(world, tmp_path / "out", urdf=other, joints=None, **QUICK)
    assert "does not fit 'primitive_arm'" in refuse(words, capsys)
    assert not (tmp_path / "out/robot").exists()


@pytest.mark.full
def test_wrong_joint_positions_are_reported(
    world: Path, tmp_path: Path, yam: Robot, orbit: SmallOrbit, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second video shows the wrist at another angle than its row states, so the joint origins do not fit."""
    seen = Q_OTHER.copy()
    seen[3] += 0.6
    other = small_orbit(yam, seen, 8, seed=3)
    for i, (name, data) in enumerate((("first", orbit), ("second", other))):
        data.write(tmp_path / name, tmp_path / "masks", f"{i}_")
    write_joints(tmp_path / "at.csv", yam, np.stack([Q, Q_OTHER]))
    both = {
        "videos": [tmp_path / "first", tmp_path / "second"],
        "masks": tmp_path / "masks",
        "joints": tmp_path / "at.csv",
        **QUICK,
    }
    report = acquire(arguments(world, tmp_path / "out", **both), capsys)
    assert any("orbit 1" in note and "do not fit" in note for note in report["notes"])


def write_colmap(folder: Path, orbit: SmallOrbit) -> None:
    folder.mkdir()
    c = orbit.cameras[0]
    K = c.K_opencv
    # COLMAP's origin is the corner of the first pixel, OpenCV's is its centre.
    numbers = f"{K[0, 0]} {K[1, 1]} {K[0, 2] + 0.5} {K[1, 2] + 0.5}"
    (folder / "cameras.txt").write_text(f"1 PINHOLE {c.width} {c.height} {numbers}\n")
    lines = []
    for i, camera in enumerate(orbit.cameras):
        x, y, z, w = to_quaternion(camera.camera_T_base)
        shift = " ".join(map(str, camera.camera_T_base[:3, 3]))
        lines += [f"{i + 1} {w} {x} {y} {z} {shift} 1 f{i:03d}.png", ""]
    (folder / "images.txt").write_text("\n".join(lines) + "\n")


def write_depth(path: Path, depth: np.ndarray) -> None:
    import cv2

    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), depth)
