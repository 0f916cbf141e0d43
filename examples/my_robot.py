"""A robot of your own: a URDF, and beside it ROBOT.robot.yaml with the tool link, home pose and gripper.

python examples/my_robot.py --urdf urdf/primitive_arm.urdf --out out/my_robot.png

`kinema4d_ros/robot/robot_file.py` documents the keys of the .robot.yaml file.
"""

import argparse
import math

import numpy as np

from kinema4d_ros import PinholeCamera, Robot, render_pointmaps
from kinema4d_ros.io.images import studio, write_image

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--urdf", default="urdf/primitive_arm.urdf")
parser.add_argument("--out", default="out/my_robot.png")
options = parser.parse_args()

robot = Robot.load(options.urdf)
print(f"{robot.name}: joints {', '.join(robot.joint_names)}; tool '{robot.tool_link}'")
if robot.gripper is None:
    print("no gripper: add a 'gripper:' section to the .robot.yaml file to grasp")
else:
    width = robot.gripper.width_from_position(robot.gripper.open)
    print(f"gripper: joint '{robot.gripper.joint}', opens to {1000 * width:.0f} mm")

camera = PinholeCamera.look_at([1.1, -0.8, 0.8], [0.2, 0.0, 0.3], width=480, height=320, fov_y_deg=40.0)
drawn = render_pointmaps(robot, robot.home_position()[None], camera, rgb=True)
depth_m = drawn.xyz[0, ..., 2]
if drawn.rgb is None or math.isnan(float(np.nanmin(depth_m))):
    raise SystemExit("the camera does not see the robot")
write_image(options.out, np.where(drawn.mask[0, ..., None], drawn.rgb[0], studio(camera)))
print(f"{options.out}: {int(drawn.mask[0].sum())} pixels, nearest {np.nanmin(depth_m):.3f} m")
