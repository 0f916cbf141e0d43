"""Forward and inverse kinematics with one protocol for every back-end.

>>> from kinema4d_ros.kinematics import choose_kinematics
>>> from kinema4d_ros.robot import Robot
>>> kinematics = choose_kinematics(Robot.load("yam"))        # pinocchio; MoveIt by its name
>>> path = kinematics.solve_path(base_T_tool)                # doctest: +SKIP
"""

from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.kinematics.protocol import IKPath, Kinematics, NoSolution, choose_kinematics

__all__ = ["IKPath", "Kinematics", "NoSolution", "choose_kinematics", "forward_all"]
