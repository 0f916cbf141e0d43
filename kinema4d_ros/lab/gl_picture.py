"""`GlCamera`: the same pictures by MuJoCo's own OpenGL renderer, where a machine has OpenGL.

Plainer than `LabCamera` and not exact at pixel centres; a second opinion, and what MuJoCo users expect.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import RenderError, SetupError
from kinema4d_ros.core.transforms import to_quaternion
from kinema4d_ros.lab.objects import LabObject
from kinema4d_ros.lab.simulation import LabState
from kinema4d_ros.lab.world import Room, build_model
from kinema4d_ros.robot.model import Robot

__all__ = ["GlCamera"]

_CAMERA = "lab_camera"


class GlCamera:
    """Takes pictures of lab states with OpenGL. One thread only: OpenGL belongs to the thread that made it.

    Set the environment variable MUJOCO_GL to egl or osmesa before Python starts where there is no display.
    """

    def __init__(self, robot: Robot, camera: PinholeCamera, room: Room | None = None) -> None:
        """Remember what to draw; OpenGL is started by the first picture."""
        if camera.has_distortion:
            raise RenderError("OpenGL draws no lens distortion", expected="camera.rectified(), or LabCamera")
        if abs(camera.K[0, 1]) > 0:
            raise RenderError(f"the camera has skew {camera.K[0, 1]}", expected="no skew, or LabCamera")
        self.camera, self._robot, self._room = camera, robot, room
        self._objects: tuple[LabObject, ...] | None = None
        self._renderer: Any = None

    def capture(self, state: LabState) -> NDArray[np.uint8]:
        """(H, W, 3) uint8 of a state.

        Raises:
            SetupError: this machine or process has no OpenGL.
        """
        self._build(state)
        model, data = self._model, self._data
        for name, value in zip(state.joint_names, state.positions, strict=True):
            data.qpos[model.joint(name).qposadr[0]] = value
        for joint in self._robot.joints:
            if joint.mimic:
                leader = state.positions[state.joint_names.index(joint.mimic.joint)]
                data.qpos[model.joint(joint.name).qposadr[0]] = joint.mimic.multiplier * leader + joint.mimic.offset
        for name, placed in state.objects.items():
            first = model.joint(name).qposadr[0]
            x, y, z, w = to_quaternion(placed.base_T_object)
            data.qpos[first : first + 7] = [*placed.position, w, x, y, z]
        mujoco.mj_forward(model, data)
        self._renderer.update_scene(data, camera=_CAMERA, scene_option=self._options)
        return np.asarray(self._renderer.render(), np.uint8).copy()

    def close(self) -> None:
        """Give OpenGL back."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _build(self, state: LabState) -> None:
        objects = tuple(o.object for o in state.objects.values())
        if self._renderer is not None and objects == self._objects:
            return
        self.close()
        self._model = build_model(
            self._robot, list(state.objects.values()), self._room, visuals=True, camera=(_CAMERA, self.camera)
        )
        self._data = mujoco.MjData(self._model)
        self._options = mujoco.MjvOption()
        # Group 0 holds furniture and objects, 2 what the robot looks like, 3 what it collides with.
        self._options.geomgroup[:] = [1, 0, 1, 0, 0, 0]
        try:
            self._renderer = mujoco.Renderer(self._model, self.camera.height, self.camera.width)
        except Exception as error:  # MuJoCo raises whatever its OpenGL binding does.
            raise SetupError(
                f"OpenGL did not start: {error!r}",
                expected="a display, or MUJOCO_GL=egl or osmesa with the system's libraries for it",
                hint="LabCamera needs no OpenGL",
            ) from error
        self._objects = objects
