"""Warm-up that compiles every numba kernel once, so that the first preview is as fast as the second.

Kernels are cached beside their sources; `make setup` runs this, and nodes that start later load the cache.
"""

from __future__ import annotations

import numpy as np

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.generators import best_without_draft, load_generator
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.lab import LabSimulation, pick_plan
from kinema4d_ros.lab.picture import LabCamera
from kinema4d_ros.previews.preview import preview
from kinema4d_ros.robot import Robot

__all__ = ["main"]


def main() -> None:
    """Run one small preview of one small lab."""
    robot = Robot.load("yam")
    camera = read_camera(share_path("calibration/demo_lab.yaml")).scaled(180, 120)
    lab = LabSimulation(robot=robot)
    image = LabCamera(robot, camera, room=lab.room).capture(lab.state(), truth=True)
    plan = pick_plan(lab, lab.scenario.target, choose_kinematics(robot))
    for depth in (image.depth_m, None):
        made = preview(plan, robot, camera, load_generator("composite"), image=image.rgb, depth=depth, frames=5)
    drafted = preview(plan, robot, camera, load_generator("draft"), image=image.rgb, depth=image.depth_m, frames=5)
    if not drafted.rollout.outcomes:
        raise SystemExit("error: the warm-up draft has no outcomes")
    if best_without_draft() == "nano":
        nano = load_generator("nano", device="cpu")
        made = preview(plan, robot, camera, nano, image=image.rgb, frames=25)
    if not np.isfinite(made.rollout.xyz).any():
        raise SystemExit("error: the warm-up preview has no points")


if __name__ == "__main__":
    main()
