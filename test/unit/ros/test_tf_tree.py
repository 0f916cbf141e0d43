"""The frame tree: chains, interpolation and newest common times as in tf2; errors without data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_ros.core.transforms import from_rpy, invert, rotation_angle, slerp
from kinema4d_ros.ros._tf_standin import (
    ConnectivityException,
    ExtrapolationException,
    FrameTree,
    InvalidArgumentException,
    LookupException,
)

SECOND = 10**9


def pose(rng: np.random.Generator) -> np.ndarray:
    return from_rpy(rng.uniform(-3, 3, 3), rng.uniform(-2, 2, 3))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 8))
def test_lookups_in_a_random_tree_agree_with_the_world_poses(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    tree = FrameTree()
    world_T = {"world": np.eye(4)}
    for i in range(count):
        parent = str(rng.choice(list(world_T)))
        parent_T_child = pose(rng)
        tree.insert(parent, f"f{i}", parent_T_child, 5 * SECOND, static=bool(rng.integers(2)))
        world_T[f"f{i}"] = world_T[parent] @ parent_T_child
    for target in world_T:
        for source in world_T:
            found, _ = tree.lookup(target, source, 5 * SECOND)
            np.testing.assert_allclose(found, invert(world_T[target]) @ world_T[source], atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_translation_is_linear_and_rotation_slerp_between_samples(seed: int, s: float) -> None:
    rng = np.random.default_rng(seed)
    T0, T1 = pose(rng), pose(rng)
    tree = FrameTree()
    tree.insert("a", "b", T0, 1 * SECOND, static=False)
    tree.insert("a", "b", T1, 2 * SECOND, static=False)
    stamp = SECOND + int(s * SECOND)
    found, when = tree.lookup("a", "b", stamp)
    share = (stamp - SECOND) / SECOND
    assert when == stamp
    np.testing.assert_allclose(found, slerp(T0, T1, share)[0], atol=1e-12)
    np.testing.assert_allclose(found[:3, 3], (1 - share) * T0[:3, 3] + share * T1[:3, 3], atol=1e-12)
    assert rotation_angle(T0, found) == pytest.approx(share * rotation_angle(T0, T1), abs=1e-7)
    # The reverse look-up is the inverse.
    np.testing.assert_allclose(tree.lookup("b", "a", stamp)[0] @ found, np.eye(4), atol=1e-12)


def test_samples_may_arrive_in_any_order() -> None:
    rng = np.random.default_rng(0)
    poses = [pose(rng) for _ in range(6)]
    tree = FrameTree()
    for i in (3, 0, 5, 1, 4, 2):
        tree.insert("a", "b", poses[i], (i + 1) * SECOND, static=False)
    for i in range(6):
        np.testing.assert_array_equal(tree.lookup("a", "b", (i + 1) * SECOND)[0], poses[i])


def test_time_zero_is_the_newest_common_time() -> None:
    tree = FrameTree()
    up = from_rpy((0, 0, 0), (0, 0, 1))
    tree.insert("world", "arm", np.eye(4), 1 * SECOND, static=False)
    tree.insert("world", "arm", up, 3 * SECOND, static=False)
    tree.insert("arm", "hand", np.eye(4), 2 * SECOND, static=False)
    tree.insert("hand", "camera", np.eye(4), 0, static=True)
    found, when = tree.lookup("world", "camera", 0)
    assert when == 2 * SECOND
    assert found[2, 3] == pytest.approx(0.5)
    assert tree.lookup("hand", "camera", 0)[1] == 0


def test_nothing_is_extrapolated() -> None:
    tree = FrameTree()
    tree.insert("a", "b", np.eye(4), 2 * SECOND, static=False)
    with pytest.raises(ExtrapolationException, match="future"):
        tree.lookup("a", "b", 2 * SECOND + 1)
    with pytest.raises(ExtrapolationException, match="past"):
        tree.lookup("a", "b", 2 * SECOND - 1)
    # A static frame is valid at all times.
    tree.insert("a", "c", np.eye(4), 2 * SECOND, static=True)
    assert tree.lookup("a", "c", 99 * SECOND)[1] == 99 * SECOND


def test_unknown_and_unconnected_frames_raise() -> None:
    tree = FrameTree()
    with pytest.raises(LookupException, match="nowhere"):
        tree.lookup("nowhere", "nowhere", 0)
    tree.insert("a", "b", np.eye(4), SECOND, static=False)
    tree.insert("x", "y", np.eye(4), SECOND, static=False)
    with pytest.raises(LookupException, match="ghost"):
        tree.lookup("a", "ghost", 0)
    with pytest.raises(ConnectivityException, match="'b' and 'y'"):
        tree.lookup("b", "y", 0)
    np.testing.assert_array_equal(tree.lookup("b", "b", 0)[0], np.eye(4))


def test_history_is_limited_and_old_samples_are_dropped() -> None:
    tree = FrameTree(keep_s=2.0)
    for i in range(1, 11):
        assert tree.insert("a", "b", np.eye(4), i * SECOND, static=False)
    assert not tree.insert("a", "b", np.eye(4), 7 * SECOND, static=False)
    assert tree.lookup("a", "b", 8 * SECOND)[1] == 8 * SECOND
    with pytest.raises(ExtrapolationException):
        tree.lookup("a", "b", 7 * SECOND)
    tree.clear()
    with pytest.raises(LookupException):
        tree.lookup("a", "b", 0)


def test_a_frame_can_change_its_parent() -> None:
    tree = FrameTree()
    cup = from_rpy((0, 0, 0), (1, 0, 0))
    tree.insert("world", "table", np.eye(4), 0, static=True)
    tree.insert("world", "hand", np.eye(4), 0, static=True)
    tree.insert("table", "cup", cup, 1 * SECOND, static=False)
    tree.insert("hand", "cup", np.eye(4), 2 * SECOND, static=False)
    np.testing.assert_array_equal(tree.lookup("table", "cup", 1 * SECOND)[0], cup)
    np.testing.assert_array_equal(tree.lookup("world", "cup", SECOND + SECOND // 2)[0], cup)
    np.testing.assert_array_equal(tree.lookup("world", "cup", 2 * SECOND)[0], np.eye(4))
    assert tree.frames()["cup"] == "hand"


def test_invalid_frames_are_refused() -> None:
    tree = FrameTree()
    for parent, child, T in (
        ("a", "a", np.eye(4)),
        ("", "b", np.eye(4)),
        ("/a", "b", np.eye(4)),
        ("a", "b", np.full((4, 4), np.nan)),
    ):
        with pytest.raises(InvalidArgumentException):
            tree.insert(parent, child, T, 0, static=False)
    tree.insert("a", "b", np.eye(4), SECOND, static=False)
    tree.insert("b", "a", np.eye(4), SECOND, static=False)
    with pytest.raises(ConnectivityException, match="loop"):
        tree.lookup("a", "b", SECOND)


def test_the_buffer_of_tf2_gives_the_same_results() -> None:
    tf2_ros = pytest.importorskip("tf2_ros", reason="tf2_ros comes with a ROS distribution")
    from geometry_msgs.msg import TransformStamped
    from rclpy.time import Time

    from kinema4d_ros.ros.messages.poses import matrix_to_transform, transform_to_matrix
    from kinema4d_ros.ros.messages.stamps import header

    rng = np.random.default_rng(1)
    ours, theirs = FrameTree(), tf2_ros.BufferCore()
    frames = ["f0"]
    for i in range(1, 8):
        parent = str(rng.choice(frames))
        frames.append(f"f{i}")
        for stamp in range(SECOND, 4 * SECOND, SECOND // 2):
            T = pose(rng)
            ours.insert(parent, f"f{i}", T, stamp, static=False)
            message = TransformStamped(header=header(stamp, parent), child_frame_id=f"f{i}")
            message.transform = matrix_to_transform(T)
            theirs.set_transform(message, "test")
    for _ in range(300):
        target, source = rng.choice(frames, 2)
        stamp = int(rng.integers(SECOND, 3 * SECOND))
        answer = theirs.lookup_transform_core(str(target), str(source), Time(nanoseconds=stamp))
        np.testing.assert_allclose(
            ours.lookup(str(target), str(source), stamp)[0], transform_to_matrix(answer.transform), atol=1e-10
        )
