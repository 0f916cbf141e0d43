"""Compiles every numba kernel once, so that the first preview is as fast as the second.

Kernels are cached beside their sources; `make setup` calls this, and a node that starts later loads the cache.
"""

from __future__ import annotations

import numpy as np

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.generators import best_preset, load_generator
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.lab import LabSimulation, pick_plan
from kinema4d_ros.lab.picture import LabCamera
from kinema4d_ros.previews.preview import preview_offline
from kinema4d_ros.robot import Robot

__all__ = ["main"]


def main() -> None:
    """One small preview of one small lab."""
    robot = Robot.load("yam")
    camera = read_camera(share_path("calibration/demo_lab.yaml")).scaled(180, 120)
    lab = LabSimulation(robot=robot)
    image = LabCamera(robot, camera, room=lab.room).capture(lab.state(), truth=True)
    plan = pick_plan(lab, lab.scenario.target, choose_kinematics(robot))
    for depth in (image.depth_m, None):
        preview = preview_offline(
            robot, camera, plan, load_generator("composite"), image=image.rgb, depth=depth, frames=5
        )
    if best_preset() == "nano":
        nano = load_generator("nano", device="cpu")
        preview = preview_offline(robot, camera, plan, nano, image=image.rgb, frames=25)
    drawn = preview.rollout
    if not np.isfinite(drawn.xyz).any():
        raise SystemExit("error: the warm-up drew nothing")


if __name__ == "__main__":
    main()
