"""See what a robot's plan will do to the world, in 4D, before the robot moves.

    joint states, plans      robot/ + kinematics/      render/              pointmap/
    readers/, trajectory  ->  base_T_link (T, L, 4, 4) -> xyz (T, H, W, 3) -> normalised, masked,
    camera + calibration/  ---------------------------^   mask, link ids      on the wire

The robot is certain: kinematics and rendering compute it exactly, here, with numpy and numba.
What the world does about it is predicted elsewhere.
"""

import os
import sys
from pathlib import Path

__version__ = "0.1.0"

# ROS 2 from wheels makes the venv itself an ament prefix, but only colcon's setup files would say so.
if "AMENT_PREFIX_PATH" not in os.environ and (Path(sys.prefix) / "share" / "ament_index").is_dir():
    os.environ["AMENT_PREFIX_PATH"] = sys.prefix
