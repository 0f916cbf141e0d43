"""Renderer input checks, progress, and caching between calls."""

from __future__ import annotations

import builtins
import multiprocessing
import sys

import numpy as np
import pytest

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError, RenderError
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.render import Scene, render_pointmaps, render_poses
from kinema4d_ros.robot import Geometry, Link, Robot
from kinema4d_ros.robot.primitives import box_mesh


@pytest.fixture(scope="module")
def camera() -> PinholeCamera:
    return PinholeCamera.look_at([1.2, -1.0, 0.9], [0.0, 0.0, 0.4], width=96, height=64, fov_y_deg=50.0)


@pytest.fixture(scope="module")
def home(primitive_arm: Robot) -> np.ndarray:
    return np.tile(primitive_arm.home_position(), (3, 1))


def refused(code: ErrorCode, part: str, *args, **kwargs) -> None:
    with pytest.raises(KinemaError) as caught:
        render_pointmaps(*args, **kwargs)
    assert caught.value.code is code
    assert part in str(caught.value)


def test_empty_trajectory(primitive_arm: Robot, camera: PinholeCamera, home: np.ndarray) -> None:
    refused(ErrorCode.TRAJECTORY_EMPTY, "no points", primitive_arm, home[:0], camera)


def test_wrong_shape(primitive_arm: Robot, camera: PinholeCamera, home: np.ndarray) -> None:
    refused(ErrorCode.TRAJECTORY_BAD_SHAPE, "(3, 1)", primitive_arm, home[:, :1], camera)
    refused(ErrorCode.TRAJECTORY_BAD_SHAPE, "shape", primitive_arm, home[0], camera)


def test_nan_positions(primitive_arm: Robot, camera: PinholeCamera, home: np.ndarray) -> None:
    q = home.copy()
    q[1, 0] = np.nan
    refused(ErrorCode.TRAJECTORY_NOT_FINITE, "NaN", primitive_arm, q, camera)


def test_nan_pose_names_frame_and_link(primitive_arm: Robot, camera: PinholeCamera, home: np.ndarray) -> None:
    poses = forward_all(primitive_arm, home)
    poses[2, 1, 0, 3] = np.inf
    with pytest.raises(RenderError, match="link 1 in frame 2"):
        render_poses(Scene.from_robot(primitive_arm), poses, camera)


def test_poses_of_another_robot(primitive_arm: Robot, camera: PinholeCamera) -> None:
    with pytest.raises(RenderError, match=r"\(1, 2, 4, 4\)"):
        render_poses(Scene.from_robot(primitive_arm), np.tile(np.eye(4), (1, 2, 1, 1)), camera)


def test_distorted_camera(primitive_arm: Robot, home: np.ndarray) -> None:
    K = np.array([[80.0, 0, 48], [0, 80, 32], [0, 0, 1]])
    lens = PinholeCamera(96, 64, K, distortion=(-0.1, 0.01, 0.0, 0.0, 0.0))
    refused(ErrorCode.RENDER_BAD_INPUT, "camera.rectified()", primitive_arm, home, lens)
    assert render_pointmaps(primitive_arm, home, lens.rectified()).xyz.shape == (3, 64, 96, 3)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"backend": "opengl"}, "opengl"),
        ({"device": "tpu"}, "tpu"),
        ({"backend": "numba", "device": "cuda"}, "backend='warp'"),
        ({"geometry": "inertial"}, "inertial"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_bad_options(
    primitive_arm: Robot, camera: PinholeCamera, home: np.ndarray, options: dict[str, object], part: str
) -> None:
    refused(ErrorCode.RENDER_BAD_INPUT, part, primitive_arm, home, camera, **options)


def test_missing_warp(
    primitive_arm: Robot, camera: PinholeCamera, home: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without_warp(name: str, *args, **kwargs):
        if name == "warp" or name.startswith("warp."):
            raise ImportError("No module named 'warp'")
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "kinema4d_ros.render.warp_raster", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_warp)
    refused(ErrorCode.BACKEND_MISSING, "warp-lang", primitive_arm, home, camera, backend="warp")


def test_missing_cuda(primitive_arm: Robot, camera: PinholeCamera, home: np.ndarray) -> None:
    import warp as wp

    if wp.is_cuda_available():
        pytest.skip("this machine has CUDA")
    refused(ErrorCode.BACKEND_MISSING, "CUDA", primitive_arm, home, camera, device="cuda")


def test_robot_without_shapes(camera: PinholeCamera) -> None:
    bare = Robot(name="bare", links=(Link("base"),), joints=(), tool_link="base")
    refused(ErrorCode.RENDER_BAD_INPUT, "no visual geometry", bare, np.zeros((1, 0)), camera)


def test_too_many_links() -> None:
    with pytest.raises(RenderError, match="256 links"):
        Scene([], 256)


def test_mesh_with_nan() -> None:
    mesh = box_mesh((1.0, 1.0, 1.0))
    mesh.vertices[0, 0] = np.nan
    with pytest.raises(RenderError, match="NaN"):
        Scene([(0, Geometry("mesh", np.eye(4), mesh, uri="broken.stl"))], 1)


def test_out_of_the_wrong_size(primitive_arm: Robot, camera: PinholeCamera, home: np.ndarray) -> None:
    first = render_pointmaps(primitive_arm, home, camera)
    refused(ErrorCode.RENDER_BAD_INPUT, "out.xyz", primitive_arm, home[:2], camera, out=first)
    refused(ErrorCode.RENDER_BAD_INPUT, "out.rgb is missing", primitive_arm, home, camera, out=first, rgb=True)
    fixed = PointmapSequence(first.xyz.copy(), first.link_ids.copy(), camera)
    fixed.xyz.flags.writeable = False
    refused(ErrorCode.RENDER_BAD_INPUT, "writable", primitive_arm, home, camera, out=fixed)


def test_trajectory_carries_its_times(primitive_arm: Robot, camera: PinholeCamera, home: np.ndarray) -> None:
    trajectory = JointTrajectory(primitive_arm.joint_names, np.array([0.0, 0.5, 1.5]), home)
    result = render_pointmaps(primitive_arm, trajectory, camera)
    assert result.times is not None
    assert result.times.tolist() == [0.0, 0.5, 1.5]
    assert np.array_equal(result.link_ids, render_pointmaps(primitive_arm, home, camera).link_ids)


@pytest.mark.parametrize("backend", ["numba", "warp"])
def test_progress_reaches_the_end(primitive_arm: Robot, camera: PinholeCamera, home: np.ndarray, backend: str) -> None:
    seen: list[tuple[int, int]] = []
    render_pointmaps(
        primitive_arm, home, camera, threads=2, backend=backend, progress=lambda *state: seen.append(state)
    )
    assert seen[-1] == (3, 3)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_progress_can_cancel_and_the_next_call_is_clean(primitive_arm: Robot, camera: PinholeCamera) -> None:
    class CancelledError(Exception):
        pass

    def cancel(done: int, total: int) -> None:
        raise CancelledError

    q = np.tile(primitive_arm.home_position(), (40, 1))
    with pytest.raises(CancelledError):
        render_pointmaps(primitive_arm, q, camera, threads=2, progress=cancel)
    result = render_pointmaps(primitive_arm, q, camera, threads=2)
    assert np.array_equal(result.link_ids, np.broadcast_to(result.link_ids[:1], result.link_ids.shape))


def test_scene_is_packed_once(primitive_arm: Robot) -> None:
    assert Scene.from_robot(primitive_arm) is Scene.from_robot(primitive_arm)
    assert Scene.from_robot(primitive_arm) is not Scene.from_robot(primitive_arm, "collision")


def _draw_in_child(robot: Robot, q: np.ndarray, camera: PinholeCamera, answer) -> None:
    answer.put(render_pointmaps(robot, q, camera, threads=2).link_ids)


def test_works_in_a_forked_process(primitive_arm: Robot, camera: PinholeCamera, home: np.ndarray) -> None:
    ours = render_pointmaps(primitive_arm, home, camera, threads=2).link_ids
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    child = context.Process(target=_draw_in_child, args=(primitive_arm, home, camera, answer))
    child.start()
    try:
        assert np.array_equal(answer.get(timeout=60), ours)
    finally:
        child.join(timeout=10)
        if child.is_alive():
            child.kill()
    assert child.exitcode == 0
