"""Preview a plan without ROS: check it, render the robot, predict the world, report. Saves a rollout folder.

python examples/preview.py --out out/example_preview
"""

import argparse

from kinema4d_ros import Robot, load_generator, preview, read_camera, read_trajectory

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--plan", default="config/demo/pick_and_place.csv")
parser.add_argument("--camera", default="calibration/demo_lab.yaml")
parser.add_argument("--generator", default="composite", help="composite, nano, a preset file, package.module:Class")
parser.add_argument("--frames", type=int, default=13)
parser.add_argument("--out", default="out/example_preview")
options = parser.parse_args()

robot = Robot.load("yam")
plan = read_trajectory(options.plan, robot)
camera = read_camera(options.camera, base_frame=robot.base_link).rectified()
made = preview(plan, robot, camera, load_generator(options.generator), frames=options.frames)

print(f"{len(made.rollout)} frames in {made.save(options.out)}")
for warning in made.report.warnings:
    print(f"warning: {warning}")
