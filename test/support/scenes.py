"""Rollouts of planes and boxes with analytic geometry, and simple robots on prismatic joints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.rollout import Provenance, Rollout
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot

Box = tuple[Sequence[float], Sequence[float]]
"""Centre and full size, metres, base frame, axis-aligned."""


def overhead_camera(width: int = 180, height: int = 120) -> PinholeCamera:
    """Return a camera that looks down at the origin from 0.9 m away, from the side."""
    return PinholeCamera.look_at((0.5, -0.45, 0.6), (0, 0, 0), width=width, height=height, focal_px=width)


def cast_world(camera: PinholeCamera, boxes: Sequence[Box] = (), plane_z: float | None = 0.0) -> NDArray[np.float32]:
    """Return (H, W, 3) float32, metres, camera frame, NaN = nothing, of a horizontal plane and boxes."""
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
    """Return a rollout of scene frames (H, W, 3); `masks` mark pixels occluded by the robot."""
    xyz = np.stack(frames)
    mask = np.zeros(xyz.shape[:3], np.bool_) if masks is None else np.stack(masks)
    return Rollout(
        rgb=np.zeros(xyz.shape, np.uint8),
        xyz=xyz,
        robot_mask=mask,
        camera=camera,
        times=np.arange(len(xyz)) * step_s,
        provenance=Provenance("test", depth="measured"),
    )


def slider(folder: Path, shape: str) -> Robot:
    """Make a robot with one shape on a vertical prismatic joint: q = (height,) in metres above the base."""
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


def grabber(folder: Path) -> Robot:
    """Make a gripper above the table that moves along z and y; q = (height of the grasp point, y, finger), metres.

    Fingers of 10 x 20 x 60 mm close along x; the pads are 2 * finger apart, 80 mm at most.
    """
    path = folder / "grabber.urdf"
    slides = (("lift", "base_link", "column", "0 0 1", 1.0), ("shift", "column", "hand", "0 1 0", 0.5))
    joints = "".join(
        f"""<joint name="{name}" type="prismatic"><parent link="{parent}"/><child link="{child}"/><axis xyz="{axis}"/>
          <limit lower="{-limit}" upper="{limit}" velocity="5" effort="10"/></joint>"""
        for name, parent, child, axis, limit in slides
    )
    for name, side, more in (("left", 1, ""), ("right", -1, '<mimic joint="left_joint"/>')):
        box = f'<origin xyz="{side * 0.005} 0 0.03"/><geometry><box size="0.01 0.02 0.06"/></geometry>'
        joints += f"""<link name="{name}_finger"><visual>{box}</visual><collision>{box}</collision></link>
          <joint name="{name}_joint" type="prismatic"><parent link="hand"/><child link="{name}_finger"/>
          <axis xyz="{side} 0 0"/><limit lower="0" upper="0.04" velocity="1" effort="10"/>{more}</joint>"""
    path.write_text(
        f"""<robot name="grabber"><link name="base_link"/><link name="column"/>
          <link name="hand"><visual><origin xyz="0 0 0.075"/>
            <geometry><box size="0.11 0.03 0.03"/></geometry></visual></link>
          <link name="tool"/><joint name="tool_joint" type="fixed"><parent link="hand"/><child link="tool"/>
            <origin rpy="3.14159265358979 0 0"/></joint>{joints}</robot>"""
    )
    path.with_name("grabber.robot.yaml").write_text(
        "tool_link: tool\n"
        "gripper: {joint: left_joint, closed: 0.0, open: 0.04, width_closed_m: 0.0, width_open_m: 0.08}\n"
    )
    return Robot.load(path)


def rollout_with(
    robot: Robot, q: NDArray[np.float64], camera: PinholeCamera, worlds: Sequence[NDArray[np.float32]]
) -> Rollout:
    """Return a rollout of scene frames (H, W, 3) with the robot at q (T, J) rendered into them."""
    drawn = render_pointmaps(robot, q, camera)
    frames, masks = [], []
    for world, xyz in zip(worlds, drawn.xyz, strict=True):
        with np.errstate(invalid="ignore"):
            mask = np.isfinite(xyz[..., 2]) & ~(xyz[..., 2] > world[..., 2])
        frames.append(np.where(mask[..., None], xyz, world))
        masks.append(mask)
    return rollout_of(camera, frames, masks)
