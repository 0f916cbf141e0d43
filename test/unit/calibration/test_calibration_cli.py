"""`kinema4d calibrate`: every method from input files to a result file, JSON output, and errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.board_on_arm import BOARD, GRIPPER_T_BOARD, show_board
from support.seen_robot import draw_masks, see_robot

from kinema4d_ros.calibration import Extrinsics, read_camera, read_camera_info, save_camera, write_camera_info
from kinema4d_ros.calibration.boards import parse_board
from kinema4d_ros.calibration.camera_files import CameraInfo
from kinema4d_ros.calibration.inputs import read_seen_masks
from kinema4d_ros.calibration.pose_estimate import difference
from kinema4d_ros.calibration.surfaces import robot_surface
from kinema4d_ros.calibration.synthetic import BoardPainter, random_board_pose
from kinema4d_ros.cli import main
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import apply, from_rpy, invert
from kinema4d_ros.io.files import read_yaml, write_yaml
from kinema4d_ros.io.images import read_image, write_image
from kinema4d_ros.io.tables import write_trajectory
from kinema4d_ros.robot import Robot

CHARUCO = parse_board("charuco:9x6:0.03:0.0225")
CAMERA = PinholeCamera.look_at(
    [0.95, -0.3, 0.65],
    [0.35, 0.0, 0.25],
    width=960,
    height=720,
    focal_px=930.0,
    distortion=(-0.12, 0.04, 0.0006, -0.0005, 0.0),
)


def write_gray(path: Path, image: np.ndarray) -> None:
    write_image(path, np.repeat(image[..., None], 3, axis=2))


def write_joints(path: Path, robot: Robot, q: np.ndarray) -> None:
    write_trajectory(JointTrajectory(robot.joint_names, np.arange(len(q), dtype=float), q), path)


def numbers(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    out: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return out


def pose_error(path: Path, truth: PinholeCamera) -> tuple[float, float]:
    d = difference(read_camera(path).base_T_camera, truth.base_T_camera)
    return 1e3 * float(np.linalg.norm(d[:3])), float(np.degrees(np.linalg.norm(d[3:])))


@pytest.fixture
def info(tmp_path: Path) -> Path:
    path = tmp_path / "info.yaml"
    write_camera_info(path, CameraInfo.of(CAMERA))
    return path


def test_board_for_printing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "board.png"
    assert main(["calibrate", "board", "--board", BOARD.text, "--out", str(out), "--dpi", "100"]) == 0
    assert "140.0 x 100.0 mm" in capsys.readouterr().out
    assert len(BOARD.find(np.pad(read_image(out)[..., 0], 40, constant_values=255)).ids) == 24
    assert main(["calibrate", "board", "--board", BOARD.text, "--out", str(out), "--dpi", "3"]) == 2


def test_intrinsics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng, painter = np.random.default_rng(2), BoardPainter(CHARUCO, CAMERA, subpixels=2)
    for i in range(9):
        write_gray(
            tmp_path / "images" / f"{i:02d}.png", painter.draw(random_board_pose(CHARUCO, CAMERA, rng, spread=0.35))
        )
    write_gray(tmp_path / "images" / "99.png", np.full((720, 960), 90, np.uint8))
    out, picture = tmp_path / "camera.yaml", tmp_path / "coverage.png"
    command = ["calibrate", "intrinsics", str(tmp_path / "images"), "--board", CHARUCO.text, "--out", str(out)]
    assert main([*command, "--picture", str(picture), "--json"]) == 0
    found = numbers(capsys)
    assert found["fx"] == pytest.approx(930, rel=0.005)
    assert found["without_board"] == 1
    assert found["verdict"] in ("good", "usable")
    assert found["mm"] > 0
    assert found["spread"]["rotation_deg"] > 20
    assert sorted(found["views"]) == [f"{i:02d}.png" for i in range(9)]
    assert read_camera_info(out).camera(np.eye(4)).K[0, 0] == pytest.approx(930, rel=0.005)
    assert read_image(picture).shape[1] == 720
    write_gray(tmp_path / "images" / "98.png", painter.draw(random_board_pose(CHARUCO, CAMERA, rng))[:, ::-1])
    assert main(command) == 2
    assert "mirrored_board" in capsys.readouterr().err


@pytest.mark.full
def test_extrinsics_from_a_board_on_the_gripper(
    yam: Robot, tmp_path: Path, info: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = parse_board("charuco:5x4:0.035:0.026")
    series = show_board(yam, 9, 3, camera=CAMERA, board=board, square_px=32, facing=0.7)
    painter = BoardPainter(board, CAMERA, subpixels=2)
    for i, arm in enumerate(series.base_T_gripper):
        write_gray(tmp_path / "images" / f"{i:02d}.png", painter.draw(CAMERA.camera_T_base @ arm @ GRIPPER_T_BOARD))
    write_joints(tmp_path / "joints.csv", yam, series.q)
    out = tmp_path / "camera.yaml"
    command = ["calibrate", "extrinsics", str(tmp_path / "images"), "--board", board.text, "--camera", str(info)]
    joints = ["--joints", str(tmp_path / "joints.csv")]
    picture = tmp_path / "boards.png"
    assert main([*command, *joints, "--out", str(out), "--json", "--picture", str(picture)]) == 0
    found = numbers(capsys)
    assert read_image(picture).shape == (3 * 420, 560 + 420, 3)
    millimetres, degrees = pose_error(out, CAMERA)
    assert millimetres < 3.0
    assert degrees < 0.2
    assert found["poses"] == len(series.views)
    assert set(found["views"]) == {f"{i:02d}.png" for i in range(9)}
    assert all(0 < px < 2 for px in found["views"].values())
    written = read_yaml(out)["extrinsics"]
    assert "one sigma" in written["notes"]
    np.testing.assert_allclose(written["covariance"], found["covariance"], rtol=1e-9)
    assert written["residuals"]["spread_deg"] == pytest.approx(found["spread"]["rotation_deg"])
    masks = draw_masks(yam, series.q, CAMERA)
    for i, mask in enumerate(masks):
        write_gray(tmp_path / "masks" / f"{i:02d}.png", mask.astype(np.uint8) * 255)
    assert main([*command, *joints, "--out", str(out), "--masks", str(tmp_path / "masks")]) == 0
    said = capsys.readouterr().out
    assert "mask IoU 0.9" in said
    assert "worst of 9 images" in said
    assert read_yaml(out)["extrinsics"]["residuals"]["mask_iou"] > 0.95
    assert main(command) == 2
    assert "--joints is missing" in capsys.readouterr().err
    assert main([*command, *joints, "--link", "hand"]) == 2
    assert "gripper" in capsys.readouterr().err
    single = [*command[:2], str(tmp_path / "images" / "00.png"), *command[3:]]
    write_joints(tmp_path / "one.csv", yam, series.q[:1])
    never = tmp_path / "never.yaml"
    assert main([*single, "--joints", str(tmp_path / "one.csv"), "--out", str(never)]) == 2
    assert "too_few_poses" in capsys.readouterr().err
    assert not never.exists()


def test_extrinsics_from_a_board_on_the_table(tmp_path: Path, info: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = [0.25, -0.1, 0.0, np.pi, 0.0, 0.2]
    base_T_board = from_rpy(place[3:], place[:3])
    write_gray(
        tmp_path / "table.png", BoardPainter(CHARUCO, CAMERA, subpixels=2).draw(CAMERA.camera_T_base @ base_T_board)
    )
    out = tmp_path / "camera.yaml"
    command = ["calibrate", "extrinsics", str(tmp_path / "table.png"), "--board", CHARUCO.text, "--camera", str(info)]
    table = ["--table", *map(str, place)]
    assert main([*command, *table, "--out", str(out), "--json"]) == 0
    found = numbers(capsys)
    assert found["px"] < 0.5
    assert found["findings"] == ["unchecked_size"]
    assert pose_error(out, CAMERA)[0] < 4.0
    # The result of a hand-eye calibration: it reveals a square that was measured 5 % too large.
    other = tmp_path / "handeye.yaml"
    known = Extrinsics(
        "base_link", CAMERA.frame_id, CAMERA.base_T_camera, "hand-eye", covariance=np.diag([1e-7] * 3 + [1e-8] * 3)
    )
    save_camera(other, CAMERA, known)
    assert main([*command, *table, "--out", str(out), "--against", str(other), "--json"]) == 0
    assert numbers(capsys)["verdict"] == "good"
    wrong, never = [*command], tmp_path / "never.yaml"
    wrong[wrong.index(CHARUCO.text)] = "charuco:9x6:0.0315:0.0236"
    assert main([*wrong, *table, "--out", str(never), "--json"]) == 0
    assert main([*wrong, *table, "--out", str(never), "--force"]) == 0
    never.unlink()
    capsys.readouterr()
    assert main([*wrong, *table, "--out", str(never), "--against", str(other)]) == 2
    assert "disagreement" in capsys.readouterr().err
    assert not never.exists()
    assert main([*command, *table, "--out", str(never), "--size-tolerance", "-1"]) == 2
    assert "size_sigma" in capsys.readouterr().err
    save_camera(other, CAMERA, replace(known, parent_frame="table"))
    assert main([*command, *table, "--out", str(never), "--against", str(other)]) == 2
    assert "'table'" in capsys.readouterr().err


def test_markerless_and_check(yam: Robot, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = see_robot(yam, 1, poses=3, wobble_px=0.3)
    for i, mask in enumerate(seen.masks):
        write_gray(tmp_path / "masks" / f"{i}.png", mask.astype(np.uint8) * 255)
    write_joints(tmp_path / "joints.csv", yam, seen.q)
    write_joints(tmp_path / "first.csv", yam, seen.q[:1])
    guess, out = tmp_path / "guess.yaml", tmp_path / "camera.yaml"
    save_camera(guess, seen.camera.posed(seen.guess), Extrinsics("base_link", "camera_optical_frame", seen.guess))
    command = ["calibrate", "markerless", str(tmp_path / "masks"), "--joints", str(tmp_path / "joints.csv")]
    options = ["--camera", str(guess), "--guess", str(guess), "--out", str(out)]
    assert main([*command, *options, "--picture", str(tmp_path / "fit.png"), "--json"]) == 0
    found = numbers(capsys)
    assert found["mask_iou"] > 0.95
    assert pose_error(out, seen.camera)[0] < 4.0
    assert read_image(tmp_path / "fit.png").shape[0] == 320
    assert read_image(tmp_path / "fit.png").shape[1] > 3 * 480
    assert found["findings"] == ["too_few_poses"]
    assert set(found["views"]) == {"0.png", "1.png", "2.png"}
    image = str(tmp_path / "masks" / "0.png")
    check = ["calibrate", "check", image, "--mask", image, "--joints", str(tmp_path / "first.csv"), "--json"]
    assert main([*check, "--camera", str(out), "--out", str(tmp_path / "good.png")]) == 0
    good = numbers(capsys)
    assert good["iou"] > 0.95
    assert good["verdict"] == "still"
    assert main([*check, "--camera", str(guess), "--out", str(tmp_path / "bad.png")]) == 2
    bad = numbers(capsys)
    assert bad["iou"] < good["iou"] - 0.1
    assert bad["verdict"] == "moved"
    assert main([*check[:-1], "--camera", str(guess), "--out", str(tmp_path / "bad.png")]) == 2
    assert capsys.readouterr().out.startswith("moved: the camera moved by")
    blank = tmp_path / "blank.png"
    write_gray(blank, np.full((320, 480), 90, np.uint8))
    look = ["calibrate", "check", str(blank), "--joints", str(tmp_path / "first.csv"), "--camera", str(out)]
    assert main([*look, "--out", str(tmp_path / "none.png"), "--json"]) == 1
    assert numbers(capsys)["verdict"] == "unknown"
    # A rendered robot on grey has enough edges for the check without masks.
    write_gray(tmp_path / "edges.png", np.where(seen.masks[0], 40, 200).astype(np.uint8))
    look[2] = str(tmp_path / "edges.png")
    assert main([*look, "--out", str(tmp_path / "none.png"), "--json"]) == 0
    assert numbers(capsys)["verdict"] == "still"
    assert main([*command[:4], str(tmp_path / "first.csv"), *options]) == 2
    assert "1 rows for 3 images" in capsys.readouterr().err


def test_recon(yam: Robot, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth, scale = from_rpy([0.2, 0.1, 1.0], [0.5, 0.2, 0.1]), 0.1
    home = yam.home_position()
    points = robot_surface(yam, home, 4000).points
    mesh = apply(invert(truth), points) / scale
    lines = [f"v {x:.6f} {y:.6f} {z:.6f}" for x, y, z in mesh]
    # Triangles of a scan: each point with two neighbours at a distance of 0.1 mm.
    lines += [f"v {x + 1e-3:.6f} {y:.6f} {z:.6f}\nv {x:.6f} {y + 1e-3:.6f} {z:.6f}" for x, y, z in mesh]
    count = len(mesh)
    lines += [f"f {i + 1} {count + 2 * i + 1} {count + 2 * i + 2}" for i in range(count)]
    (tmp_path / "scan.obj").write_text("\n".join(lines) + "\n")
    picks = points[[0, 900, 1800, 2700, 3600]]
    rough = picks + np.random.default_rng(0).normal(0, 0.004, picks.shape)
    pairs = {"recon": (apply(invert(truth), picks) / scale).tolist(), "base": rough.tolist()}
    write_yaml(tmp_path / "pairs.yaml", pairs)
    command = ["calibrate", "recon", str(tmp_path / "scan.obj"), "--pairs", str(tmp_path / "pairs.yaml")]
    out = tmp_path / "recon.yaml"
    assert main([*command, "--similarity", "--out", str(out), "--picture", str(tmp_path / "recon.png"), "--json"]) == 0
    found = numbers(capsys)
    assert found["scale"] == pytest.approx(scale, rel=0.01)
    assert found["mm"] < 2.0
    matrix = np.array(read_yaml(out)["recon_T_base"])
    np.testing.assert_allclose(apply(matrix, picks) * scale, apply(invert(truth), picks), atol=0.004)
    assert main([*command[:3], "--similarity", "--out", str(out), "--json"]) == 0
    assert numbers(capsys)["pairs_mm"] is None
    matrix = np.array(read_yaml(out)["recon_T_base"])
    np.testing.assert_allclose(apply(matrix, picks) * scale, apply(invert(truth), picks), atol=0.004)
    write_yaml(tmp_path / "pairs.yaml", {"recon": [[0, 0]], "base": "none"})
    assert main(command) == 2
    assert "is not a list of points" in capsys.readouterr().err


def test_missing_files_are_reported(tmp_path: Path, info: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "intrinsics", str(tmp_path / "none"), "--board", BOARD.text]) == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["calibrate", "intrinsics", str(tmp_path / "empty"), "--board", BOARD.text]) == 2
    assert "no image" in capsys.readouterr().err
    write_gray(tmp_path / "small.png", np.zeros((48, 64), np.uint8))
    assert main(["calibrate", "intrinsics", str(tmp_path / "small.png"), "--board", BOARD.text]) == 2
    assert "no_board" in capsys.readouterr().err
    assert main(["calibrate", "intrinsics", str(tmp_path / "small.png"), "--board", "paper"]) == 2
    assert "is not a valid board" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["images", "--topic", "camera/image_raw"]])
def test_intrinsics_need_images_or_a_topic(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "camera.yaml")
    assert main(["calibrate", "intrinsics", *arguments, "--board", CHARUCO.text, "--out", out]) == 2
    assert "expected one of them" in capsys.readouterr().err


def test_rendered_masks_are_refused(tmp_path: Path) -> None:
    """Rendered masks are refused: they agree with the calibration even if the camera moved."""
    mask = tmp_path / "masks" / "a.png"
    mask.parent.mkdir()
    write_image(mask, np.full((4, 4, 3), 255, np.uint8))
    assert read_seen_masks([mask]).all()
    (tmp_path / "segmentation.json").write_text('{"drawn": ["a"]}')
    with pytest.raises(CalibrationError, match="1 of 1 masks are rendered"):
        read_seen_masks([mask])
