"""3D view of the page: live twin, planned robot, camera, table, predicted points and report marks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import viser
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.transforms import to_quaternion
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.previews.report import PlanReport
from kinema4d_ros.previews.report.plan_report import BASIS_TEXT
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.web.display_mesh import DisplayMesh, robot_display
from kinema4d_ros.web.prediction import Prediction

__all__ = ["RobotFigure", "Scene3D"]

GHOST_RGB = (34, 116, 214)
GREEN, AMBER, RED, BLUE = (22, 150, 84), (226, 146, 20), (208, 40, 44), (34, 116, 214)
STILL = 3e-4
"""Smallest visible change of a link pose: metres, and entries of the rotation matrix."""
NEAR_M = 0.03
"""Clearance below this is drawn in amber, contact in red."""

_GRID_BELOW_M = 0.004
"""Distance of the grid below the table's points, which avoids z-fighting."""
_DARKEST = 0.12
"""Lower bound on brightness; the shape of a black robot would not be visible."""


def wxyz(a_T_b: ArrayLike) -> NDArray[np.float64]:
    """Return the rotation of a (4, 4) matrix as a w, x, y, z quaternion for viser."""
    return np.roll(to_quaternion(a_T_b), 1)


class RobotFigure:
    """Robot in the scene, posed by joint positions."""

    def __init__(
        self,
        server: viser.ViserServer,
        name: str,
        robot: Robot,
        meshes: dict[str, tuple[DisplayMesh, ...]],
        *,
        rgb: tuple[int, int, int] | None = None,
        opacity: float | None = None,
        visible: bool = True,
    ) -> None:
        self._server = server
        self._robot = robot
        self._root = server.scene.add_frame(name, show_axes=False, visible=visible)
        self._links: list[tuple[int, Any]] = []
        self._last: NDArray[np.float64] | None = None
        for index, link in enumerate(robot.links):
            moves = any(robot.joint(joint).moves for joint in robot.chain(link.name))
            # A second base in the same place would cause z-fighting.
            if link.name not in meshes or (opacity is not None and not moves):
                continue
            frame = server.scene.add_frame(f"{name}/{link.name}", show_axes=False)
            self._links.append((index, frame))
            for k, mesh in enumerate(meshes[link.name]):
                server.scene.add_mesh_simple(
                    f"{name}/{link.name}/{k}",
                    mesh.vertices,
                    mesh.faces,
                    color=rgb or _visible(mesh.rgb),
                    opacity=opacity,
                    cast_shadow=opacity is None,
                    receive_shadow=opacity is None,
                )

    @property
    def visible(self) -> bool:
        """Whether it is drawn."""
        return bool(self._root.visible)

    @visible.setter
    def visible(self, value: bool) -> None:
        if self._root.visible != value:
            self._root.visible = value

    def move(self, q: NDArray[np.float64]) -> None:
        """Set joint positions (J,) in `robot.joint_names` order."""
        poses = forward_all(self._robot, q[None])[0]
        last = self._last
        for index, frame in self._links:
            # Changes below encoder noise are skipped: every update makes the browsers redraw.
            if last is None or np.abs(poses[index] - last[index]).max() > STILL:
                frame.wxyz = wxyz(poses[index])
                frame.position = poses[index, :3, 3]
                if last is not None:
                    last[index] = poses[index]
        if last is None:
            self._last = poses


class Scene3D:
    """Content of the 3D view."""

    def __init__(self, server: viser.ViserServer, robot: Robot, camera: PinholeCamera) -> None:
        self._server = server
        meshes = robot_display(robot)
        scene = server.scene
        scene.configure_environment_map("studio", environment_intensity=0.55)
        scene.configure_default_lights(cast_shadow=True)
        self.live = RobotFigure(server, "/live", robot, meshes)
        self.live.move(robot.home_position())
        self.planned = RobotFigure(server, "/planned", robot, meshes, rgb=GHOST_RGB, opacity=0.45, visible=False)
        scene.add_grid(
            "/table",
            width=1.6,
            height=1.6,
            cell_size=0.05,
            section_size=0.2,
            cell_color=(222, 226, 230),
            section_color=(190, 197, 205),
            plane_color=(247, 248, 250),
            plane_opacity=1.0,
            shadow_opacity=0.18,
            position=(0.25, 0.0, -_GRID_BELOW_M),
        )
        self._camera = scene.add_camera_frustum(
            "/camera",
            fov=2 * math.atan2(camera.height / 2, float(camera.K[1, 1])),
            aspect=camera.width / camera.height,
            scale=0.12,
            thickness=1.5,
            thickness_units="screen",
            color=(60, 66, 74),
            wxyz=wxyz(camera.base_T_camera),
            position=camera.base_T_camera[:3, 3],
            cast_shadow=False,
            receive_shadow=False,
        )
        self._cloud = scene.add_point_cloud(
            "/predicted",
            np.zeros((1, 3), np.float32),
            np.zeros((1, 3), np.uint8),
            point_size=0.004,
            point_shape="circle",
            point_shading="flat",
            precision="float32",
            visible=False,
        )
        self._marks: list[Any] = []
        self.marks_visible = True
        self._look_from(camera)

    def _look_from(self, camera: PinholeCamera) -> None:
        """Set the initial view beside the camera, so that the scene can be compared with the camera image."""
        eye = camera.base_T_camera[:3, 3]
        reach = float(np.linalg.norm(eye[:2])) or 1.0
        target = np.array([0.2 * reach, 0.0, 0.2])
        start = self._server.initial_camera
        start.up = (0.0, 0.0, 1.0)
        start.look_at = tuple(target)
        turned = math.radians(-28.0)
        c, s = math.cos(turned), math.sin(turned)
        x, y = eye[:2] - target[:2]
        start.position = (
            float(target[0] + 1.18 * (c * x - s * y)),
            float(target[1] + 1.18 * (s * x + c * y)),
            float(max(eye[2] * 0.92, 0.4)),
        )
        start.fov = math.radians(42.0)

    def show_camera(self, rgb: NDArray[np.uint8]) -> None:
        """Show the live image on the camera's frustum."""
        self._camera.image = rgb

    @property
    def camera_visible(self) -> bool:
        """Whether the camera is drawn."""
        return bool(self._camera.visible)

    @camera_visible.setter
    def camera_visible(self, value: bool) -> None:
        self._camera.visible = value

    def show_points(self, prediction: Prediction, frame: int, *, robot: bool, guessed: bool = False) -> None:
        """Show one frame of the predicted cloud, with or without the robot's points, and `guessed` ones with a tint."""
        cloud = prediction.clouds[frame]
        keep = slice(None) if robot else ~cloud.robot
        with self._server.atomic():
            self._cloud.point_size = float(np.clip(1.15 * prediction.spacing_m, 0.001, 0.02))
            self._cloud.wxyz = wxyz(prediction.base_T_camera)
            self._cloud.position = prediction.base_T_camera[:3, 3]
            self._cloud.points = cloud.points[keep]
            self._cloud.colors = (cloud.tinted() if guessed else cloud.rgb)[keep]

    @property
    def points_visible(self) -> bool:
        """Whether the predicted cloud is drawn."""
        return bool(self._cloud.visible)

    @points_visible.setter
    def points_visible(self, value: bool) -> None:
        if self._cloud.visible != value:
            self._cloud.visible = value

    def show_report(self, report: PlanReport | None) -> None:
        """Show the closest approach, the first contact and moved objects of a report; None clears the marks."""
        for mark in self._marks:
            mark.remove()
        self._marks = []
        if report is None:
            return
        robot_point, world_point = report.min_clearance_robot_point, report.min_clearance_world_point
        if np.isfinite(robot_point).all() and np.isfinite(world_point).all() and not report.contact:
            measured = report.clearance_basis == "measured"
            rgb = GREEN if measured and report.min_clearance_m >= NEAR_M else AMBER
            basis = "" if measured else f", {BASIS_TEXT[report.clearance_basis]}"
            self._mark("nearest", world_point, rgb, f"{1000 * report.min_clearance_m:.0f} mm{basis}", robot_point)
        if report.contact and np.isfinite(report.first_contact_point).all():
            self._mark("contact", report.first_contact_point, RED, f"contact {report.first_contact_s:.1f} s")
        for k, region in enumerate(report.moved[:3]):
            if np.isfinite([*region.start, *region.end]).all():
                self._arrow(f"moved{k}", region.start, region.end)
        self.set_marks_visible(self.marks_visible)

    def set_marks_visible(self, value: bool) -> None:
        """Show or hide the report marks."""
        self.marks_visible = value
        for mark in self._marks:
            mark.visible = value

    def _mark(
        self,
        name: str,
        point: NDArray[np.float64],
        rgb: tuple[int, int, int],
        text: str,
        other: NDArray[np.float64] | None = None,
    ) -> None:
        scene = self._server.scene
        root = f"/report/{name}"
        self._marks.append(scene.add_icosphere(f"{root}/ball", radius=0.007, color=rgb, position=point))
        if other is not None:
            self._marks.append(
                scene.add_line_segments(
                    f"{root}/line",
                    np.array([[point, other]], dtype=np.float32),
                    np.array(rgb, dtype=np.uint8),
                    thickness=0.003,
                )
            )
        self._marks.append(
            scene.add_label(
                f"{root}/label",
                text,
                position=np.add(point, (0.0, 0.0, 0.03)),
                anchor="bottom-center",
                font_screen_scale=0.9,
            )
        )

    def _arrow(self, name: str, start: NDArray[np.float64], end: NDArray[np.float64]) -> None:
        if np.linalg.norm(np.asarray(end) - start) < 0.01:
            return
        self._marks.append(
            self._server.scene.add_arrows(
                f"/report/{name}",
                np.array([[start, end]], dtype=np.float32),
                np.array(BLUE, dtype=np.uint8),
                shaft_radius=0.003,
                head_radius=0.008,
                head_length=0.02,
            )
        )


def _visible(rgb: tuple[int, int, int]) -> tuple[int, int, int]:
    lift = [round(255 * (_DARKEST * (1 - c / 255) + c / 255)) for c in rgb]
    return lift[0], lift[1], lift[2]
