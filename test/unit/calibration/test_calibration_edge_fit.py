"""Drift check by image edges: lab images with noise, light and clutter, from cameras with a known bump."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.calibration.drift import check_drift_by_edges
from kinema4d_ros.calibration.edge_fit import fit_edges, match_edges, outline_way
from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.lab import LabSimulation
from kinema4d_ros.lab.picture import SMALL, LabCamera
from kinema4d_ros.robot import Robot

SIZE = (480, 320)


class Stage:
    def __init__(self, robot: Robot) -> None:
        self.robot = robot
        self.camera = read_camera(share_path("calibration/demo_lab.yaml")).scaled(*SIZE)
        self.lab = LabSimulation("cluttered", 3, robot, self.camera)
        self.q = self.lab.state().positions
        self.here: NDArray[np.uint8] | None = None

    def bumped(self, mm: tuple[float, float, float], degrees: float = 0.0) -> PinholeCamera:
        right_down_forward = self.camera.base_T_camera[:3, :3] @ np.array(mm) * 1e-3
        turn = [0.0, np.radians(degrees), 0.0]
        return self.camera.posed(changed(self.camera.base_T_camera, [*right_down_forward, *turn]))

    def picture(self, camera: PinholeCamera | None = None) -> NDArray[np.uint8]:
        """Render the lab from a camera pose; by default the calibrated one."""
        if camera is None:
            self.here = self.picture(self.camera) if self.here is None else self.here
            return self.here.copy()
        return LabCamera(self.robot, camera, room=self.lab.room, noise=3.0, quality=SMALL).capture(self.lab).rgb


@pytest.fixture(scope="module")
def stage(yam: Robot) -> Stage:
    return Stage(yam)


def test_unmoved_camera_is_still(stage: Stage) -> None:
    found = check_drift_by_edges(stage.robot, stage.q, stage.picture(), stage.camera)
    assert found.verdict == "still", found.text
    assert found.seen_px < 0.4


@pytest.mark.parametrize(
    ("mm", "degrees"), [((5, 0, 0), 0.0), ((0, 5, 0), 0.0), ((-3, 3, 3), 0.0), ((0, 0, 0), 0.5), ((5, 0, 0), 2.5)]
)
def test_bump_is_detected_and_measured(stage: Stage, mm: tuple[float, float, float], degrees: float) -> None:
    there = stage.bumped(mm, degrees)
    found = check_drift_by_edges(stage.robot, stage.q, stage.picture(there), stage.camera)
    assert found.verdict == "moved", found.text
    outline = match_edges(stage.robot, stage.q, stage.picture(), stage.camera, 6.0).p_camera
    px, mm_seen = outline_way(stage.camera, outline, there.base_T_camera)
    assert found.seen_px == pytest.approx(px, abs=0.3 + 0.02 * px)
    assert found.seen_mm == pytest.approx(mm_seen, abs=0.6 + 0.02 * mm_seen)


def test_occluded_lens_is_not_reported_as_bump(stage: Stage) -> None:
    hidden = stage.picture()
    hidden[:, : SIZE[0] // 2] = cv2.GaussianBlur(np.full_like(hidden[:, : SIZE[0] // 2], 90), (0, 0), 3)
    hidden[:, SIZE[0] // 2 :] = 40
    found = check_drift_by_edges(stage.robot, stage.q, hidden, stage.camera)
    assert found.verdict == "unknown"
    assert found.text.startswith("cannot tell")


def test_wrong_joint_positions_are_never_still(stage: Stage) -> None:
    wrong = stage.q.copy()
    wrong[0] += 0.5
    assert check_drift_by_edges(stage.robot, wrong, stage.picture(), stage.camera).verdict != "still"


def test_a_robot_out_of_view_has_no_outline(stage: Stage) -> None:
    away = stage.camera.posed(changed(stage.camera.base_T_camera, [0, 0, 0, 0, np.pi, 0]))
    picture = stage.picture()
    assert fit_edges(stage.robot, stage.q, picture, away) is None
    assert check_drift_by_edges(stage.robot, stage.q, picture, away).verdict == "unknown"


def test_images_of_another_size_and_bad_tolerances_are_refused(stage: Stage) -> None:
    picture = stage.picture()
    with pytest.raises(CalibrationError, match="image"):
        check_drift_by_edges(stage.robot, stage.q, picture[:100], stage.camera)
    with pytest.raises(CalibrationError, match="tolerance"):
        check_drift_by_edges(stage.robot, stage.q, picture, stage.camera, tolerance_px=float("nan"))
