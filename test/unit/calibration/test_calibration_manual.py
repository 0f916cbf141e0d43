"""Manual calibration without its page: setting, measuring, fitting and saving, on lab images with ground truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from support.seen_robot import random_joints

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.calibration.manual import ManualCalibration, Shown, numbers_of, pose_of
from kinema4d_ros.calibration.pose_estimate import changed, difference
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.lab import LabSimulation
from kinema4d_ros.lab.picture import SMALL, LabCamera
from kinema4d_ros.robot import Robot

TRUTH = read_camera(share_path("calibration/demo_lab.yaml")).scaled(360, 240)
TRUTH = replace(TRUTH, distortion=(-0.08, 0.01, 0.0, 0.0, 0.0))


@pytest.fixture(scope="module")
def pictures(yam: Robot) -> list[Shown]:
    lab = LabSimulation("canonical", 0, yam, TRUTH)
    eye = LabCamera(yam, TRUTH, room=lab.room, noise=2.0, quality=SMALL)
    out = []
    for i, q in enumerate(random_joints(yam, np.random.default_rng(3), 4)):
        image = eye.capture(replace(lab.state(), positions=q, base_T_link=forward_all(yam, q[None])[0]), truth=True)
        assert image.segmentation is not None
        robot = (image.segmentation >= 1) & (image.segmentation <= len(yam.links))
        out.append(Shown(q, image.rgb, robot, f"pose {i}"))
    return out


def rough(mm: float, degrees: float) -> PinholeCamera:
    change = np.concatenate([mm * 1e-3 * np.array([0.6, -0.64, 0.48]), np.radians(degrees) * np.array([0, 0.8, 0.6])])
    return TRUTH.posed(changed(TRUTH.base_T_camera, change))


def error(manual: ManualCalibration) -> tuple[float, float]:
    d = difference(manual.camera.base_T_camera, TRUTH.base_T_camera)
    return 1e3 * float(np.linalg.norm(d[:3])), float(np.degrees(np.linalg.norm(d[3:])))


def without_masks(pictures: list[Shown]) -> list[Shown]:
    return [replace(shown, mask=None) for shown in pictures]


def test_pose_parameters_round_trip() -> None:
    numbers = np.array([0.3, -0.2, 0.9, -120.0, 10.0, 35.0])
    assert numbers_of(pose_of(numbers)) == pytest.approx(numbers)
    assert pose_of(numbers_of(TRUTH.base_T_camera)) == pytest.approx(TRUTH.base_T_camera)


def test_set_measure_and_reset(yam: Robot, pictures: list[Shown]) -> None:
    manual = ManualCalibration(yam, TRUTH, pictures)
    right = manual.measure()
    assert right.by == "masks"
    assert right.iou is not None
    assert right.px is not None
    assert right.iou > 0.97
    assert right.px < 1.2  # an object occludes a small part of the arm
    manual.turn(manual.numbers + np.array([0.02, 0, 0, 0, 0, 1.0]))
    wrong = manual.measure()
    assert wrong.iou is not None
    assert wrong.px is not None
    assert wrong.iou < right.iou - 0.1
    assert wrong.px > 2 * right.px
    manual.reset()
    assert manual.measure() == right


def test_edges_without_masks_and_unknown_residual_far_off(yam: Robot, pictures: list[Shown]) -> None:
    manual = ManualCalibration(yam, TRUTH, without_masks(pictures))
    right = manual.measure()
    assert (right.by, right.iou) == ("edges", None)
    assert right.px is not None
    assert right.share > 0.85
    manual.turn(manual.numbers + np.array([0.1, 0, 0, 0, 0, 8.0]))
    lost = manual.measure()
    assert lost.px is None
    assert "residual unknown" in lost.text


def test_fit_to_masks_is_saved_with_its_residuals(yam: Robot, pictures: list[Shown]) -> None:
    manual = ManualCalibration(yam, rough(30, 2), pictures)
    assert "4 masks" in manual.fit()
    mm, degrees = error(manual)
    assert mm < 4.0
    assert degrees < 0.3
    saved = manual.extrinsics()
    assert saved.method == "manual, then fitted"
    assert saved.residuals.poses == 4
    assert saved.residuals.mask_iou is not None
    assert saved.residuals.mask_iou > 0.96
    assert saved.parent_T_child == pytest.approx(manual.camera.base_T_camera)


def test_fit_to_edges_and_a_failed_fit(yam: Robot, pictures: list[Shown]) -> None:
    manual = ManualCalibration(yam, rough(10, 1), without_masks(pictures[:1]))
    before = manual.measure().share
    assert "edges of one image" in manual.fit()
    assert manual.measure().share > max(0.85, before)
    manual.turn(manual.numbers + np.array([0.2, 0, 0, 0, 0, 25.0]))
    there = manual.numbers
    with pytest.raises(CalibrationError, match="of the outline fits the image edges after the fit"):
        manual.fit()
    assert manual.numbers == pytest.approx(there)


def test_manual_pose_is_marked_as_manual(yam: Robot, pictures: list[Shown]) -> None:
    manual = ManualCalibration(yam, TRUTH, without_masks(pictures))
    manual.turn(manual.numbers + np.array([0.0, 0, 0, 0, 0, 20.0]))
    saved = manual.extrinsics()
    assert saved.method == "manual"
    assert "set by hand" in saved.notes
    assert saved.residuals.px is None, "unknown is not good"


def test_images_are_drawn_and_replaced_by_a_live_image(yam: Robot, pictures: list[Shown]) -> None:
    manual = ManualCalibration(yam, TRUTH, pictures)
    plain: NDArray[np.uint8] = manual.draw(0, 0.0)
    assert (manual.draw(0, 1.0) != plain).any(axis=2).sum() > 1000
    lines = manual.draw(0, outline=True)
    assert 50 < (lines != plain).any(axis=2).sum() < 3000
    manual.show(replace(pictures[1], mask=None))
    assert manual.names == ("pose 1",)
    assert manual.measure().pictures == 1


def test_bad_input_is_refused(yam: Robot, pictures: list[Shown]) -> None:
    with pytest.raises(CalibrationError, match="no images were given"):
        ManualCalibration(yam, TRUTH, [])
    with pytest.raises(CalibrationError, match="100 x 100"):
        ManualCalibration(yam, TRUTH, [Shown(pictures[0].q, np.zeros((100, 100, 3), np.uint8))])
    manual = ManualCalibration(yam, TRUTH, pictures)
    with pytest.raises(CalibrationError, match="six finite"):
        manual.turn([np.nan] * 6)
