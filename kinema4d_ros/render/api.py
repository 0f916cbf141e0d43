"""Rendering API: robot pointmaps from a trajectory or link poses and a camera."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, RenderError, TrajectoryError
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.kinematics.gripping import grip_track
from kinema4d_ros.render import cpu
from kinema4d_ros.render.scene import GeometryChoice, Scene
from kinema4d_ros.robot.model import Robot

__all__ = ["NEAR_M", "Backend", "Device", "render_pointmaps", "render_poses"]

NEAR_M = 0.01
"""Near plane: surfaces closer to the camera than this, along its axis, are clipped."""

Backend = Literal["auto", "numba", "warp"]
Device = Literal["cpu", "cuda"]
Progress = Callable[[int, int], None]


def render_pointmaps(
    robot: Robot,
    trajectory: JointTrajectory | ArrayLike,
    camera: PinholeCamera,
    *,
    rgb: bool = False,
    backend: Backend = "auto",
    device: Device = "cpu",
    geometry: GeometryChoice = "visual",
    threads: int | None = None,
    progress: Progress | None = None,
    out: PointmapSequence | None = None,
) -> PointmapSequence:
    """Render the robot along a trajectory as seen by a camera.

    Args:
        robot: with shapes.
        trajectory: a `JointTrajectory`, or (T, J) positions in `robot.joint_names` order.
        camera: without distortion.
        rgb: also render shaded colours.
        backend: "numba" (CPU), "warp" (CPU or CUDA), or "auto": Warp for "cuda", numba otherwise.
        device: device of the Warp back-end.
        geometry: render the visual or the collision shapes.
        threads: of the numba back-end, by default all cores the process may use; the result does not depend on it.
        progress: called with (frames done, total frames); an exception in it stops the rendering.
        out: a sequence of the same size whose arrays are written and returned; reused memory is faster.

    Returns:
        XYZ (T, H, W, 3) float32, metres, camera optical frame, NaN = no robot, with link ids; and, for a robot with a
        gripper, its `grip`.
    """
    times: NDArray[np.float64] | None
    if isinstance(trajectory, JointTrajectory):
        q, times = trajectory.for_robot(robot), trajectory.times
    else:
        q, times = np.asarray(trajectory, dtype=np.float64), None
    if q.shape[:1] == (0,):
        raise TrajectoryError("the trajectory has no points", expected="at least one", code=ErrorCode.TRAJECTORY_EMPTY)
    poses = forward_all(robot, q)
    drawn = render_poses(
        Scene.from_robot(robot, geometry),
        poses,
        camera,
        rgb=rgb,
        backend=backend,
        device=device,
        threads=threads,
        progress=progress,
        times=times,
        out=out,
    )
    return replace(drawn, grip=grip_track(robot, q, poses))


def render_poses(
    scene: Scene,
    base_T_link: ArrayLike,
    camera: PinholeCamera,
    *,
    rgb: bool = False,
    backend: Backend = "auto",
    device: Device = "cpu",
    threads: int | None = None,
    progress: Progress | None = None,
    times: NDArray[np.float64] | None = None,
    out: PointmapSequence | None = None,
) -> PointmapSequence:
    """Render link poses (T, L, 4, 4), metres, base frame, `robot.links` order, for live use with a reused `Scene`.

    The other arguments and the result are those of `render_pointmaps`; `times` are copied to the result.
    """
    engine = _require_backend(backend, device)
    _require_rectified(camera)
    poses = _require_poses(scene, base_T_link)
    if threads is not None and threads < 1:
        raise RenderError(f"threads is {threads}", expected="1 or more, or None for all cores")
    xyz, ids, colours = _outputs(len(poses), camera, rgb, out)
    camera_T_link = np.ascontiguousarray((camera.camera_T_base @ poses)[:, :, :3])
    numbers = _camera_numbers(camera)
    packed = scene.packed_rgb if rgb else scene.packed
    if engine == "numba":
        cpu.render_frames(
            packed,
            camera_T_link,
            numbers,
            xyz,
            ids,
            colours,
            threads or cpu.available_cores(),
            progress,
            scene.working_memory(camera.height, camera.width, rgb),
        )
    else:
        _warp().render_frames(packed, camera_T_link, numbers, xyz, ids, colours, device, progress)
    return PointmapSequence(xyz=xyz, link_ids=ids, camera=camera, times=times, rgb=colours)


def _warp() -> ModuleType:
    try:
        return import_module("kinema4d_ros.render.warp_raster")
    except ImportError as error:
        raise RenderError(
            f"NVIDIA Warp cannot be imported: {error}",
            expected="the package warp-lang",
            hint="pip install warp-lang, or use backend='numba'",
            code=ErrorCode.BACKEND_MISSING,
        ) from error


def _require_backend(backend: str, device: str) -> str:
    if backend not in ("auto", "numba", "warp"):
        raise RenderError(f"backend is {backend!r}", expected="'auto', 'numba' or 'warp'")
    if device not in ("cpu", "cuda"):
        raise RenderError(f"device is {device!r}", expected="'cpu' or 'cuda'")
    if backend == "numba" and device == "cuda":
        raise RenderError("the numba back-end runs on the CPU only", expected="backend='warp' for device='cuda'")
    if backend == "auto":
        return "warp" if device == "cuda" else "numba"
    return backend


def _require_rectified(camera: PinholeCamera) -> None:
    if camera.has_distortion:
        raise RenderError(
            f"the camera has lens distortion {list(camera.distortion)}",
            expected="a pinhole camera",
            hint="render with camera.rectified(), and rectify the images with camera.rectify(image)",
        )


def _require_poses(scene: Scene, base_T_link: ArrayLike) -> NDArray[np.float64]:
    poses = np.asarray(base_T_link, dtype=np.float64)
    if poses.ndim != 4 or poses.shape[1:] != (scene.link_count, 4, 4) or len(poses) == 0:
        raise RenderError(
            f"link poses have shape {poses.shape}", expected=f"(T, {scene.link_count}, 4, 4) with at least one frame"
        )
    finite = np.isfinite(poses).all(axis=(2, 3))
    if not finite.all():
        frame, link = np.argwhere(~finite)[0]
        raise RenderError(
            f"the pose of link {link} in frame {frame} contains NaN or infinity", expected="finite metres"
        )
    return poses


def _outputs(
    frames: int, camera: PinholeCamera, rgb: bool, out: PointmapSequence | None
) -> tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.uint8] | None]:
    shape = (frames, camera.height, camera.width)
    if out is None:
        try:
            return (
                np.empty((*shape, 3), np.float32),
                np.empty(shape, np.uint8),
                np.empty((*shape, 3), np.uint8) if rgb else None,
            )
        except MemoryError:
            size = np.prod(shape, dtype=np.float64) * (16 if rgb else 13) / 1e9
            raise RenderError(
                f"{frames} frames of {camera.width} x {camera.height} need {size:.1f} GB",
                expected="less memory than this machine has free",
                hint="render fewer frames at a time, or use camera.scaled(width, height)",
            ) from None
    given: list[tuple[str, NDArray[Any] | None, tuple[int, ...]]] = [
        ("xyz", out.xyz, (*shape, 3)),
        ("link_ids", out.link_ids, shape),
    ]
    if rgb:
        given.append(("rgb", out.rgb, (*shape, 3)))
    for name, array, wanted in given:
        if array is None or array.shape != wanted or not array.flags.c_contiguous or not array.flags.writeable:
            found = "missing" if array is None else f"of shape {array.shape}"
            raise RenderError(f"out.{name} is {found}", expected=f"a writable, contiguous array of shape {wanted}")
    return out.xyz, out.link_ids, out.rgb if rgb else None


def _camera_numbers(camera: PinholeCamera) -> NDArray[np.float64]:
    (fx, skew, cx), (_, fy, cy), _ = camera.K
    corners = np.array([[u, v, 1.0] for u in (0, camera.width) for v in (0, camera.height)])
    reach = float(np.linalg.norm(corners @ np.linalg.inv(camera.K).T, axis=1).max())
    # Subtract half a pixel to move integer coordinates from pixel corners to pixel centres.
    return np.array(
        [fx, skew, cx - 0.5, fy, cy - 0.5, camera.width, camera.height, NEAR_M, NEAR_M * reach * (1 + 1e-9)]
    )
