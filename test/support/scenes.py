"""Worlds of planes and boxes whose every distance is known, as rollouts; and robots of one shape on a slide."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.camera import PinholeCamera
from kinema4d_ros.robot import Robot
from kinema4d_ros.rollout import Provenance, Rollout

Box = tuple[Sequence[float], Sequence[float]]
"""Centre and full size, metres, base frame, along the axes."""


def overhead_camera(width: int = 180, height: int = 120) -> PinholeCamera:
    """Looks down at the origin from 0.9 m away, from the side."""
    return PinholeCamera.look_at((0.5, -0.45, 0.6), (0, 0, 0), width=width, height=height, focal_px=width)


def cast_world(camera: PinholeCamera, boxes: Sequence[Box] = (), plane_z: float | None = 0.0) -> NDArray[np.float32]:
    """(H, W, 3) float32, metres, camera frame, NaN = nothing: a horizontal plane and boxes, by their equations."""
    rays = camera.rays()
    d = rays @ camera.base_T_camera[:3, :3].T
    o = camera.base_T_camera[:3, 3]
    depth = np.full(d.shape[:2], np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        if plane_z is not None:
            s = (plane_z - o[2]) / d[..., 2]
            depth = np.where(s > 0, s, depth)
        for centre, size in boxes:
            half = np.asarray(size) / 2
            near, far = (np.asarray(centre) - half - o) / d, (np.asarray(centre) + half - o) / d
            enter, leave = np.minimum(near, far).max(-1), np.maximum(near, far).min(-1)
            hit = (enter < leave) & (enter > 0) & (enter < depth)
            depth = np.where(hit, enter, depth)
    depth[~np.isfinite(depth)] = np.nan
    points: NDArray[np.float32] = (rays * depth[..., None]).astype(np.float32)
    return points


def rollout_of(
    camera: PinholeCamera,
    frames: Sequence[NDArray[np.float32]],
    masks: Sequence[NDArray[np.bool_]] | None = None,
    step_s: float = 0.1,
) -> Rollout:
    """A rollout of world frames (H, W, 3); `masks` say where the robot hides them."""
    xyz = np.stack(frames)
    mask = np.zeros(xyz.shape[:3], np.bool_) if masks is None else np.stack(masks)
    return Rollout(
        rgb=np.zeros(xyz.shape, np.uint8),
        xyz=xyz,
        robot_mask=mask,
        camera=camera,
        times=np.arange(len(xyz)) * step_s,
        provenance=Provenance("test"),
    )


def slider(folder: Path, shape: str) -> Robot:
    """A robot with one shape at the end of a vertical slide: q = (height,) in metres above the base."""
    path = folder / "slider.urdf"
    path.write_text(
        f"""<robot name="slider">
          <link name="base_link"/>
          <link name="foot"><visual><geometry><box size="0.05 0.05 0.02"/></geometry></visual></link>
          <joint name="bolt" type="fixed"><parent link="base_link"/><child link="foot"/></joint>
          <link name="body"><visual><geometry>{shape}</geometry></visual></link>
          <joint name="slide" type="prismatic">
            <parent link="foot"/><child link="body"/><axis xyz="0 0 1"/>
            <limit lower="-0.5" upper="1.0" velocity="0.5" effort="10"/>
          </joint>
        </robot>"""
    )
    return Robot.load(path)
