from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from kinema4d_ros.core import transforms as tf
from kinema4d_ros.core.errors import CameraError, ErrorCode

Array = NDArray[np.float64]

angles = st.floats(-np.pi, np.pi)
metres = st.floats(-10.0, 10.0)
vectors = arrays(np.float64, 3, elements=metres)
quaternions = arrays(np.float64, 4, elements=st.floats(-1.0, 1.0)).filter(lambda q: np.linalg.norm(q) > 1e-3)


@st.composite
def poses(draw: st.DrawFn) -> Array:
    return tf.from_quaternion(draw(quaternions), draw(vectors))


def rotation(a_T_b: Array) -> Rotation:
    return Rotation.from_matrix(a_T_b[..., :3, :3])


@given(st.tuples(angles, angles, angles), vectors)
def test_rpy_agrees_with_scipy_and_round_trips(rpy: tuple[float, float, float], xyz: Array) -> None:
    T = tf.from_rpy(rpy, xyz)
    np.testing.assert_allclose(T[:3, :3], Rotation.from_euler("xyz", rpy).as_matrix(), atol=1e-14)
    np.testing.assert_array_equal(T[:3, 3], xyz)
    again = tf.to_rpy(T)
    assert abs(again[1]) <= np.pi / 2
    np.testing.assert_allclose(tf.from_rpy(again, xyz), T, atol=1e-14)


@given(angles, angles, st.sampled_from([-1.0, 1.0]), st.floats(0, 1e-6))
def test_rpy_round_trips_at_and_near_gimbal_lock(roll: float, yaw: float, sign: float, off: float) -> None:
    T = tf.from_rpy([roll, sign * (np.pi / 2 - off), yaw])
    np.testing.assert_allclose(tf.from_rpy(tf.to_rpy(T)), T, atol=2e-9)
    if off == 0.0:
        assert tf.to_rpy(T)[0] == 0.0


def test_rpy_keeps_batch_axes() -> None:
    rpy = np.random.default_rng(0).uniform(-1, 1, (2, 5, 3))
    T = tf.from_rpy(rpy, np.zeros((2, 5, 3)))
    assert T.shape == (2, 5, 4, 4)
    np.testing.assert_allclose(tf.to_rpy(T), rpy, atol=1e-14)


@given(quaternions)
def test_quaternion_agrees_with_scipy(q: Array) -> None:
    T = tf.from_quaternion(q)
    np.testing.assert_allclose(T[:3, :3], Rotation.from_quat(q).as_matrix(), atol=1e-14)
    back = tf.to_quaternion(T)
    assert back[3] >= 0.0
    assert np.linalg.norm(back) == pytest.approx(1.0, abs=1e-14)
    np.testing.assert_allclose(tf.from_quaternion(back), T, atol=1e-14)


@pytest.mark.parametrize("axis", np.eye(3).tolist())
def test_quaternion_of_half_turns(axis: list[float]) -> None:
    q = tf.to_quaternion(tf.axis_angle(axis, np.pi))
    np.testing.assert_allclose(np.abs(q[:3]), axis, atol=1e-15)


def test_quaternions_keep_batch_axes() -> None:
    q = np.random.default_rng(0).normal(size=(3, 7, 4))
    q /= np.linalg.norm(q, axis=-1, keepdims=True)
    q = np.where(q[..., 3:] < 0, -q, q)
    np.testing.assert_allclose(tf.to_quaternion(tf.from_quaternion(q)), q, atol=1e-14)


@pytest.mark.parametrize("bad", [[0, 0, 0, 0], [np.nan, 0, 0, 1], [0, 0, np.inf, 1], [0, 0, 1], 1.0, [[0, 0, 1]]])
def test_quaternion_without_direction_is_refused(bad: object) -> None:
    with pytest.raises(CameraError, match="has no direction") as caught:
        tf.from_quaternion(bad)  # type: ignore[arg-type]
    assert caught.value.code == ErrorCode.NOT_A_ROTATION


@given(vectors.filter(lambda v: np.linalg.norm(v) > 1e-3), angles)
def test_axis_angle_agrees_with_scipy(axis: Array, angle: float) -> None:
    unit = axis / np.linalg.norm(axis)
    expected = Rotation.from_rotvec(unit * angle).as_matrix()
    np.testing.assert_allclose(tf.axis_angle(unit, angle)[:3, :3], expected, atol=1e-14)


def test_axis_angle_of_many_angles() -> None:
    many = tf.axis_angle([0, 0, 1], np.linspace(-3, 3, 12).reshape(3, 4))
    assert many.shape == (3, 4, 4, 4)
    np.testing.assert_array_equal(many[1, 2], tf.axis_angle([0, 0, 1], np.linspace(-3, 3, 12)[6]))


@settings(max_examples=50)
@given(poses(), vectors)
def test_inverse(a_T_b: Array, p_b: Array) -> None:
    np.testing.assert_allclose(tf.invert(a_T_b) @ a_T_b, tf.identity(), atol=1e-13)
    p_a = tf.apply(a_T_b, p_b)
    np.testing.assert_allclose(p_a, (a_T_b @ [*p_b, 1.0])[:3], atol=1e-13)
    np.testing.assert_allclose(tf.apply(tf.invert(a_T_b), p_a), p_b, atol=1e-12)


@settings(max_examples=50)
@given(poses(), poses(), vectors)
def test_composition_is_applying_twice(a_T_b: Array, b_T_c: Array, p_c: Array) -> None:
    np.testing.assert_allclose(tf.apply(a_T_b @ b_T_c, p_c), tf.apply(a_T_b, tf.apply(b_T_c, p_c)), atol=1e-12)


def test_make_broadcasts() -> None:
    T = tf.make(np.eye(3), np.arange(6.0).reshape(2, 3))
    assert T.shape == (2, 4, 4)
    np.testing.assert_array_equal(T[1, :, 3], [3, 4, 5, 1])
    np.testing.assert_array_equal(tf.make(), np.eye(4))


@settings(max_examples=50)
@given(poses(), poses())
def test_slerp_turns_at_a_constant_rate_along_a_line(T0: Array, T1: Array) -> None:
    s = np.linspace(0, 1, 5)
    path = tf.slerp(T0, T1, s)
    np.testing.assert_allclose(path[0], T0, atol=1e-12)
    np.testing.assert_allclose(path[-1], T1, atol=1e-9)
    np.testing.assert_allclose(path[2, :3, 3], (T0[:3, 3] + T1[:3, 3]) / 2, atol=1e-12)
    whole = tf.rotation_angle(T0, T1)
    np.testing.assert_allclose(tf.rotation_angle(np.broadcast_to(T0, path.shape), path), s * whole, atol=1e-9)


@settings(max_examples=50)
@given(poses(), poses())
def test_rotation_angle_agrees_with_scipy(T0: Array, T1: Array) -> None:
    expected = (rotation(T0).inv() * rotation(T1)).magnitude()
    assert float(tf.rotation_angle(T0, T1)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-8, 1e-4, np.pi - 1e-8, np.pi])
def test_rotation_angle_keeps_its_digits_at_the_ends(angle: float) -> None:
    assert float(tf.rotation_angle(np.eye(4), tf.axis_angle([0, 1, 0], angle))) == pytest.approx(angle, abs=1e-15)


@settings(max_examples=50)
@given(poses())
def test_rigid_transforms_pass(T: Array) -> None:
    np.testing.assert_array_equal(tf.require_rigid(T.tolist(), "T"), T)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (np.eye(3), "shape"),
        (np.full((4, 4), np.nan), "NaN"),
        (np.eye(4)[::-1], "last row"),
        (np.diag([1.0, 1.0, 1.001, 1.0]), "differs from I"),
        (np.diag([1.0, 1.0, -1.0, 1.0]), "mirror"),
        (np.diag([1000.0, 1000.0, 1000.0, 1.0]), "differs from I"),
        ([[1, 2], [3]], "not an array of numbers"),
        ("identity", "not an array of numbers"),
    ],
)
def test_non_rigid_matrices_are_refused(bad: object, why: str) -> None:
    with pytest.raises(CameraError, match=why) as caught:
        tf.require_rigid(bad, "base_T_camera")  # type: ignore[arg-type]
    assert caught.value.code == ErrorCode.NOT_A_ROTATION
    assert "base_T_camera" in str(caught.value)
