"""Calibration quality: pose spread, verdicts, errors and the 95 % confidence region."""

from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.calibration.pose_estimate import PoseEstimate, agreement, changed, mean_pose, region_threshold
from kinema4d_ros.calibration.quality import FINDINGS, Quality, finding, pose_spread
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.transforms import from_rpy


def test_rotations_about_one_axis_have_no_second_axis() -> None:
    about_z = np.stack([from_rpy([0, 0, a], [0.1 * a, 0, 0]) for a in np.linspace(0, 1, 6)])
    spread = pose_spread(about_z)
    assert spread.rotation_deg == pytest.approx(np.degrees(1.0))
    assert spread.second_axis_deg == pytest.approx(0.0, abs=1e-6)
    assert spread.translation_m == pytest.approx(0.1)
    both = np.stack([from_rpy([b, 0, a], [0, 0, 0]) for a in (0, 0.5) for b in (0, 0.5)])
    assert pose_spread(both).second_axis_deg > 10
    assert pose_spread(about_z[:1]).rotation_deg == 0.0


def test_verdicts_and_refusals() -> None:
    assert Quality(px=0.3).verdict == "good"
    warned = Quality(findings=(finding("too_few_poses", "5 poses"),))
    assert warned.verdict == "usable"
    warned.require("this")
    bad = Quality(px=9.0, findings=(finding("poor_fit", "9 px", "error"),))
    assert bad.verdict == "bad"
    with pytest.raises(CalibrationError, match="the calibration is not trustworthy: poor_fit: 9 px"):
        bad.require("the calibration")
    assert any("poor_fit" in line for line in bad.lines())
    with pytest.raises(KeyError):
        finding("bad_mood", "unknown")
    assert all(hint for hint in FINDINGS.values())


def test_the_region_holds_95_percent() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6)) * 1e-3
    covariance = root @ root.T + 1e-8 * np.eye(6)
    pose = from_rpy([0.1, 0.2, 0.3], [1, 2, 3])
    exact = PoseEstimate(pose, covariance, 1e9, Quality(), "test")
    draws = rng.multivariate_normal(np.zeros(6), covariance, 1500)
    assert np.mean([exact.contains(changed(pose, d)) for d in draws]) == pytest.approx(0.95, abs=0.017)
    # A covariance estimated from 12 samples needs a wider region for the same probability.
    inside = 0
    for _ in range(1500):
        samples = rng.multivariate_normal(np.zeros(6), covariance, 13)
        few = PoseEstimate(pose, samples[:12].T @ samples[:12] / 12, 12, Quality(), "test")
        inside += few.contains(changed(pose, samples[12]))
    assert inside / 1500 == pytest.approx(0.95, abs=0.017)
    assert region_threshold(12) > region_threshold(100) > region_threshold(1e9)


def test_sigmas_are_those_of_the_worst_direction() -> None:
    covariance = np.diag([1e-6, 4e-6, 1e-6, 1e-8, 1e-8, 9e-8])
    estimate = PoseEstimate(np.eye(4), covariance, 100, Quality(px=0.5, poses=7), "test")
    assert estimate.sigma_mm == pytest.approx(2.0)
    assert estimate.sigma_deg == pytest.approx(np.degrees(3e-4))
    assert estimate.extrinsics("base_link", "cam").residuals.poses == 7


def test_one_bad_pose_does_not_move_the_mean() -> None:
    poses = np.stack([from_rpy([0.1, 0, 0], [1.0, 0, 0])] * 6 + [from_rpy([0.1, 0, 0], [9.0, 0, 0])])
    np.testing.assert_allclose(mean_pose(poses)[:3, 3], [1, 0, 0])


def test_agreement_of_two_methods() -> None:
    covariance = np.diag([1e-6] * 3 + [1e-7] * 3)
    pose = from_rpy([0.1, 0.2, 0.3], [1, 2, 3])
    a = PoseEstimate(pose, covariance, 1e9, Quality(), "one")
    near = PoseEstimate(changed(pose, [0.001, 0, 0, 0, 0, 0]), covariance, 1e9, Quality(), "other")
    far = PoseEstimate(changed(pose, [0.02, 0, 0, 0, 0, 0.01]), covariance, 1e9, Quality(), "other")
    assert agreement(a, near).agrees
    assert agreement(a, near).shift_mm == pytest.approx(1.0)
    assert not agreement(a, far).agrees
    assert agreement(a, far).turn_deg == pytest.approx(np.degrees(0.01))
