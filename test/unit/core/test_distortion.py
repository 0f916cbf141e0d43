from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinema4d_ros.core.distortion import LensDistortion
from kinema4d_ros.core.errors import CameraError, ErrorCode

LENSES = {
    "barrel": LensDistortion((-0.28, 0.07, 1e-3, -5e-4, 0.0)),
    "pincushion": LensDistortion((0.15, 0.05, -1e-3, 2e-3)),
    "rational": LensDistortion((5.1, 2.2, 6e-4, -3e-4, 0.11, 5.4, 3.4, 0.6), "rational_polynomial"),
}

small = st.floats(-0.5, 0.5)


@pytest.fixture(params=LENSES)
def lens(request: pytest.FixtureRequest) -> LensDistortion:
    return LENSES[request.param]


def test_agrees_with_opencv(lens: LensDistortion) -> None:
    xy = np.random.default_rng(0).uniform(-0.6, 0.6, (500, 2))
    points = np.concatenate([xy, np.ones((500, 1))], axis=1)
    expected = cv2.projectPoints(points, np.zeros(3), np.zeros(3), np.eye(3), np.array(lens.coefficients))[0][:, 0]
    np.testing.assert_allclose(lens.distort(xy), expected, atol=1e-14)


@pytest.mark.parametrize("name", LENSES)
@given(x=small, y=small)
def test_undistort_undoes_distort(name: str, x: float, y: float) -> None:
    bent = LENSES[name].distort([x, y])
    np.testing.assert_allclose(LENSES[name].undistort(bent), [x, y], atol=1e-12)


def test_jacobian_is_the_derivative(lens: LensDistortion) -> None:
    xy = np.array([0.3, -0.2])
    _, J = lens._evaluate(xy)
    step = 1e-6
    for axis in range(2):
        offset = step * np.eye(2)[axis]
        numeric = (lens.distort(xy + offset) - lens.distort(xy - offset)) / (2 * step)
        np.testing.assert_allclose(J[:, axis], numeric, atol=1e-9)


def test_no_coefficients_and_zeros_are_the_identity() -> None:
    for lens in (LensDistortion(), LensDistortion((0.0,) * 5), LensDistortion((0.0,) * 8, "rational_polynomial")):
        assert lens.is_identity
        assert lens.fold_radius == np.inf
        np.testing.assert_array_equal(lens.distort([[0.5, 9.0]]), [[0.5, 9.0]])
        np.testing.assert_array_equal(lens.undistort([[0.5, 9.0]]), [[0.5, 9.0]])


def test_fold_radius_of_a_cubic() -> None:
    # r - 0.3 r^3 has its maximum where 1 = 0.9 r^2.
    lens = LensDistortion((-0.3, 0.0, 0.0, 0.0))
    assert lens.fold_radius == pytest.approx(1 / np.sqrt(0.9), rel=1e-12)
    assert np.isfinite(lens.distort([lens.fold_radius * 0.999, 0.0])).all()
    assert np.isnan(lens.distort([lens.fold_radius * 1.001, 0.0])).all()
    # OpenCV would put this direction, 63 degrees off axis, back near the centre.
    assert np.isnan(lens.distort([1.8, 0.0])).all()


def test_a_pole_limits_a_rational_model() -> None:
    lens = LensDistortion((0.0, 0.0, 0.0, 0.0, 0.0, -0.25, 0.0, 0.0), "rational_polynomial")
    assert lens.fold_radius == pytest.approx(2.0)


def test_points_without_a_direction_are_nan() -> None:
    lens = LensDistortion((-0.3, 0.0, 0.0, 0.0))
    highest = lens.fold_radius * (1 - 0.3 * lens.fold_radius**2)
    found = lens.undistort([[highest * 0.999, 0.0], [highest * 1.01, 0.0], [np.nan, 0.0]])
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1:]).all()


def test_a_model_that_folds_inside_the_image_is_refused() -> None:
    lens = LensDistortion((-0.3, 0.0, 0.0, 0.0))
    highest = lens.fold_radius * (1 - 0.3 * lens.fold_radius**2)
    angles = np.linspace(0, 2 * np.pi, 40)
    circle = np.stack([np.cos(angles), np.sin(angles)], -1)
    lens.require_valid(0.99 * highest * circle)
    with pytest.raises(CameraError, match="folds over") as caught:
        lens.require_valid(1.01 * highest * circle)
    assert caught.value.code == ErrorCode.CAMERA_BAD_DISTORTION


@pytest.mark.parametrize(
    ("coefficients", "model", "why"),
    [
        ((0.1,), "plumb_bob", "got 1 coefficients"),
        ((0.1,) * 8, "plumb_bob", "got 8"),
        ((0.1,) * 5, "rational_polynomial", "got 5"),
        ((0.1,) * 4, "equidistant", "'equidistant' is not supported"),
        ((0.1, np.nan, 0.0, 0.0), "plumb_bob", "NaN"),
        ((0.1, 0.0, 0.0, 0.0, 1e308), "plumb_bob", "values out of range"),
    ],
)
def test_bad_models_are_refused(coefficients: tuple[float, ...], model: str, why: str) -> None:
    with pytest.raises(CameraError, match=why) as caught:
        LensDistortion(coefficients, model)
    assert caught.value.code == ErrorCode.CAMERA_BAD_DISTORTION


def test_denormal_coefficients_are_harmless() -> None:
    lens = LensDistortion((0.0, 0.0, 0.0, 0.0, 5e-324))
    assert lens.fold_radius == np.inf
    np.testing.assert_allclose(lens.undistort([[0.3, 0.2]]), [[0.3, 0.2]])
