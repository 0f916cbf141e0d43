"""Trajectories from files: CSV, JSON, NPZ, ROS 2 bags (MCAP, SQLite), LeRobot datasets.

>>> from kinema4d_ros.readers import read_trajectory
>>> plan = read_trajectory("config/demo/pick_and_place.csv")                    # doctest: +SKIP
>>> plan = read_trajectory("recording.mcap", robot, topic="/joint_states")      # doctest: +SKIP
>>> plan = read_trajectory("datasets/pick", robot, episode=3)                   # doctest: +SKIP
"""

from kinema4d_ros.readers.common import Reading
from kinema4d_ros.readers.read import read_trajectory, read_with_notes
from kinema4d_ros.readers.tables import write_trajectory

__all__ = ["Reading", "read_trajectory", "read_with_notes", "write_trajectory"]
