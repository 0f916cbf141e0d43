"""Drift check: detects a bump of 5 mm, no false alarm without a bump, "unknown" for unusable masks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.panda_like import HOME, panda_like
from support.seen_robot import draw_masks, random_camera, random_joints, wobble

from kinema4d_ros.calibration import Extrinsics, Residuals, save_camera
from kinema4d_ros.calibration.drift import Drift, check_drift, check_drift_by_edges
from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.cli import main
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.io.images import write_image
from kinema4d_ros.robot import Robot

EYE = PinholeCamera.look_at((1.1, -0.9, 0.7), (0.25, 0.0, 0.4), width=240, height=180, focal_px=220)
LOOSE = np.diag([0.008**2] * 3 + [0.006**2] * 3)
"""Covariance of a calibration from few masks: 8 mm and 0.3 degrees in each direction."""


def scene(robot: Robot, seed: int) -> tuple[PinholeCamera, np.ndarray]:
    rng = np.random.default_rng(seed)
    return random_camera(rng), random_joints(robot, rng, 3)


def look(robot: Robot, q: np.ndarray, camera: PinholeCamera, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([wobble(mask, rng, 0.4, 0.2) for mask in draw_masks(robot, q, camera)])


@pytest.mark.parametrize("axis", range(3))
def test_bump_of_five_millimetres_is_detected(yam: Robot, axis: int) -> None:
    camera, q = scene(yam, axis)
    bumped = camera.posed(changed(camera.base_T_camera, 0.005 * np.eye(6)[axis]))
    found = check_drift(yam, q, look(yam, q, bumped), camera)
    assert found.verdict == "moved"
    assert found.shift_mm == pytest.approx(5.0, abs=2.5)
    assert "moved by" in found.text


def test_rotation_of_half_a_degree_is_detected(yam: Robot) -> None:
    camera, q = scene(yam, 5)
    bumped = camera.posed(changed(camera.base_T_camera, [0, 0, 0, 0, np.radians(0.5), 0]))
    assert check_drift(yam, q, look(yam, q, bumped), camera).verdict == "moved"


def test_large_bump_is_estimated(yam: Robot) -> None:
    camera, q = scene(yam, 6)
    bumped = camera.posed(changed(camera.base_T_camera, [0.03, -0.02, 0.01, 0.03, 0.04, 0.02]))
    found = check_drift(yam, q, look(yam, q, bumped), camera)
    assert found.verdict == "moved"
    assert found.iou < 0.75
    assert 1e3 * np.linalg.norm(found.base_T_camera[:3, 3] - bumped.base_T_camera[:3, 3]) < 6.0


@pytest.mark.parametrize("seed", [7, 8])
def test_unmoved_camera_is_still(yam: Robot, seed: int) -> None:
    camera, q = scene(yam, seed)
    found = check_drift(yam, q, look(yam, q, camera, seed), camera)
    assert found.verdict == "still"
    assert found.distance < found.threshold or found.shift_mm < 2.0


def test_calibration_uncertainty_is_not_reported_as_drift(yam: Robot) -> None:
    camera, q = scene(yam, 1)
    bumped = camera.posed(changed(camera.base_T_camera, [0.005, 0, 0, 0, 0, 0]))
    loose = np.diag([0.01**2] * 3 + [0.01**2] * 3)
    assert check_drift(yam, q, look(yam, q, bumped), camera, covariance=loose).verdict == "still"


def test_unusable_masks_give_unknown(yam: Robot, primitive_arm: Robot) -> None:
    camera, q = scene(yam, 9)
    masks = look(yam, q, camera)
    assert check_drift(yam, q, masks & False, camera).verdict == "unknown"
    one_empty = np.stack([masks[0] & False, *masks[1:]])
    assert check_drift(yam, q, one_empty, camera).verdict == "still"
    with pytest.raises(CalibrationError, match="3 joint configurations and 2 masks"):
        check_drift(yam, q, masks[:2], camera)
    other = check_drift(primitive_arm, np.zeros((3, len(primitive_arm.joint_names))), masks, camera)
    assert other.verdict == "unknown"
    assert "cannot tell" in other.text
    with pytest.raises(CalibrationError, match="tolerances"):
        check_drift(yam, q, masks, camera, tolerance_mm=-1)


def seen_from(robot: Robot, shift_m: float, count: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Render the arm from a camera shifted sideways from EYE: joint positions (C, J) and images."""
    q = np.array(HOME) + np.random.default_rng(1).normal(0, 0.4, (count, 7))
    aside = shift_m * EYE.base_T_camera[:3, 0]
    masks = draw_masks(robot, q, EYE.posed(changed(EYE.base_T_camera, [*aside, 0, 0, 0])))
    return q, np.where(masks[..., None], np.uint8(60), np.full(3, 200, np.uint8))


@pytest.fixture(scope="module")
def panda(tmp_path_factory: pytest.TempPathFactory) -> Robot:
    return panda_like(tmp_path_factory.mktemp("panda"))


def by_edges(robot: Robot, shift_m: float, count: int, covariance: np.ndarray | None) -> Drift:
    return check_drift_by_edges(
        robot, *seen_from(robot, shift_m, count), EYE, covariance=covariance, freedom=40, residual_px=0.5
    )


@pytest.mark.parametrize("count", [1, 4])
def test_edge_check_allows_for_calibration_uncertainty(panda: Robot, count: int) -> None:
    assert by_edges(panda, 0.012, count, None).verdict == "moved"
    assert by_edges(panda, 0.012, count, LOOSE).verdict == "still"
    assert by_edges(panda, 0.1, count, LOOSE).verdict == "moved"


def test_more_images_reduce_the_uncertainty(panda: Robot) -> None:
    one, four = (by_edges(panda, 0.0, count, None) for count in (1, 4))
    assert four.sigma_px < one.sigma_px
    assert four.allowed_px < one.allowed_px
    assert (one.verdict, four.verdict) == ("still", "still")


def test_calibration_with_large_uncertainty_gives_unknown(panda: Robot) -> None:
    found = by_edges(panda, 0.06, 1, 100 * LOOSE)
    assert found.verdict == "unknown"
    assert "calibrate again with more arm poses" in found.text


def test_check_prints_one_offset_and_its_limit(
    panda: Robot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    robot = str(panda_like(tmp_path) and tmp_path / "panda_like.urdf")
    pose = Extrinsics(
        "link0", "camera", EYE.base_T_camera, residuals=Residuals(px=0.5), covariance=LOOSE, degrees_of_freedom=40
    )
    save_camera(tmp_path / "camera.yaml", EYE, pose)
    said = {}
    for name, shift_m in (("near", 0.012), ("far", 0.1)):
        q, pictures = seen_from(panda, shift_m, 2)
        rows = [",".join(map(str, [float(i), *row])) for i, row in enumerate(q)]
        (tmp_path / "q.csv").write_text("\n".join([",".join(["time", *panda.joint_names]), *rows]) + "\n")
        files = [str(tmp_path / f"{name}{i}.png") for i in range(2)]
        for file, picture in zip(files, pictures, strict=True):
            write_image(Path(file), picture)
        command = ["calibrate", "check", *files, "--robot", robot, "--joints", str(tmp_path / "q.csv")]
        command += ["--camera", str(tmp_path / "camera.yaml"), "--out", str(tmp_path / "check.png")]
        said[name] = (main(command), capsys.readouterr().out)
    code, text = said["near"]
    assert code == 0
    assert re.match(r"fits: the robot is .* within [\d.]+ ± [\d.]+ px", text), text
    numbers = (main([*command, "--json"]), json.loads(capsys.readouterr().out))
    code, text = said["far"]
    assert (code, numbers[0]) == (2, 2)
    assert text.startswith("moved: the robot is")
    # The printed number is the one in the JSON output, and it is printed once.
    assert f"{numbers[1]['seen_px']:.1f} ± {numbers[1]['sigma_px']:.1f} px" in text
    assert f"{numbers[1]['allowed_px']:.1f} px" in text
    assert len(re.findall(r"[\d.]+ px", text)) == 2
