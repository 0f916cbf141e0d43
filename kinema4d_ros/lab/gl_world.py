"""What a MuJoCo model needs for MuJoCo's own pictures and for nothing else: visual meshes and a camera."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.transforms import make, to_quaternion
from kinema4d_ros.robot.model import Robot

__all__ = ["VISUAL_GROUP", "add_camera", "add_visuals"]

VISUAL_GROUP = 2


def add_visuals(spec: Any, robot: Robot) -> None:
    """Add the robot's visual meshes to the bodies of its links; they weigh nothing and touch nothing."""
    for link in robot.links:
        body = spec.body(link.name)
        for i, shape in enumerate(link.visuals):
            name = f"{link.name}_visual_{i}"
            spec.add_mesh(
                name=name, uservert=shape.mesh.vertices.astype(np.float32).ravel(), userface=shape.mesh.faces.ravel()
            )
            geom = body.add_geom(name=name, type=mujoco.mjtGeom.mjGEOM_MESH, meshname=name, contype=0, conaffinity=0)
            x, y, z, w = to_quaternion(shape.link_T_geometry)
            geom.pos, geom.quat = shape.link_T_geometry[:3, 3], [w, x, y, z]
            geom.group, geom.mass = VISUAL_GROUP, 0.0
            geom.rgba = shape.rgba or (0.74, 0.76, 0.79, 1.0)


def add_camera(spec: Any, name: str, camera: PinholeCamera) -> None:
    """Add a fixed camera; the image buffer of the model grows to its size."""
    # MuJoCo's cameras look along -z with y up.
    base_T_camera = camera.base_T_camera @ make(np.diag([1.0, -1.0, -1.0]))
    x, y, z, w = to_quaternion(base_T_camera)
    element = spec.worldbody.add_camera(name=name, pos=base_T_camera[:3, 3], quat=[w, x, y, z])
    width, height = camera.width, camera.height
    element.resolution = [width, height]
    element.sensor_size = [width * 1e-5, height * 1e-5]
    element.focal_pixel = [camera.K[0, 0], camera.K[1, 1]]
    # Measured from the middle of the image, against the direction in which pixels count.
    element.principal_pixel = [width / 2 - camera.K[0, 2], height / 2 - camera.K[1, 2]]
    visual = spec.visual.global_
    visual.offwidth, visual.offheight = max(width, visual.offwidth), max(height, visual.offheight)
