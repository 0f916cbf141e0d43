"""Small orbit sequences around a robot beside a board: images, masks, cameras and depth, fast to render."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.acquisition.synthetic import orbit_cameras
from kinema4d_ros.acquisition.views import View
from kinema4d_ros.calibration.boards import parse_board
from kinema4d_ros.calibration.synthetic import BoardPainter
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.transforms import from_rpy
from kinema4d_ros.io.images import write_image
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot import Robot
from kinema4d_ros.robot.description import robot_description

BOARD = parse_board("charuco:7x5:0.06:0.045")
BASE_T_BOARD = from_rpy([np.pi, 0.0, 0.0], [0.08, 0.16, 0.0])
BOARD_POSE = ["0.08", "0.16", "0.0", str(np.pi), "0.0", "0.0"]
Q = np.array([0.35, 1.3, 1.5, -0.6, 0.3, 0.3, 0.03])
Q_OTHER = np.array([-0.4, 0.9, 1.0, 0.4, -0.4, -0.6, 0.02])


@dataclass
class SmallOrbit:
    cameras: list[PinholeCamera]
    images: list[NDArray[np.uint8]]
    masks: list[NDArray[np.bool_]]
    depth_m: list[NDArray[np.float32]]

    def views(self, orbit: int = 0, *, depth: bool = False) -> list[View]:
        return [
            View(f"{orbit}_{i:03d}", orbit, image, camera, mask, metres if depth else None)
            for i, (camera, image, mask, metres) in enumerate(
                zip(self.cameras, self.images, self.masks, self.depth_m, strict=True)
            )
        ]

    def write(self, folder: Path, masks: Path, prefix: str = "") -> None:
        for i, (image, mask) in enumerate(zip(self.images, self.masks, strict=True)):
            write_image(folder / f"f{i:03d}.png", image)
            write_image(masks / f"{prefix}f{i:03d}.png", np.repeat(mask[..., None], 3, axis=2).astype(np.uint8) * 255)


def small_orbit(
    robot: Robot,
    q: NDArray[np.float64],
    count: int = 16,
    *,
    width: int = 480,
    height: int = 360,
    seed: int = 0,
    board: bool = True,
    turns: float = 2.0,
    elevation_deg: tuple[float, float] = (25.0, 62.0),
) -> SmallOrbit:
    """Render without lens distortion; the table shows the board on grey."""
    cameras = orbit_cameras(
        count, width=width, height=height, seed=seed, turns=turns, elevation_deg=elevation_deg, distortion=()
    )
    scene, poses = Scene.from_robot(robot), forward_all(robot, q[None])
    out = SmallOrbit(cameras, [], [], [])
    for i, camera in enumerate(cameras):
        drawn = render_poses(scene, poses, camera, rgb=True, threads=1)
        if board:
            painter = BoardPainter(BOARD, camera, blur_px=0.5, noise=1.5, light=0.9, seed=i, subpixels=2)
            grey = painter.draw(camera.camera_T_base @ BASE_T_BOARD)
        else:
            noise = np.random.default_rng(i).normal(110, 1.5, (height, width))
            grey = noise.astype(np.uint8)
        image = np.repeat(grey[..., None], 3, axis=2)
        image[drawn.mask[0]] = drawn.rgb[0][drawn.mask[0]]  # type: ignore[index]
        out.images.append(image)
        out.masks.append(drawn.mask[0])
        out.depth_m.append(drawn.xyz[0, ..., 2])
    return out


def rough_description(robot: Robot, folder: Path) -> Path:
    """Write a URDF of the robot with collision shapes only."""
    root = ElementTree.fromstring(robot_description(robot))  # noqa: S314 - our own text
    for link in root.findall("link"):
        for visual in link.findall("visual"):
            link.remove(visual)
    path = folder / f"{robot.name}.urdf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ElementTree.tostring(root, encoding="unicode"), encoding="utf-8")
    return path
