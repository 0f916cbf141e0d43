"""Which kinematics this machine uses: MoveIt where it is installed, pinocchio elsewhere, or the one asked for."""

from __future__ import annotations

from importlib.util import find_spec

from kinema4d_ros.core.errors import ErrorCode, KinematicsError
from kinema4d_ros.kinematics.protocol import Kinematics
from kinema4d_ros.robot.model import Robot

__all__ = ["BACKENDS", "choose_kinematics"]

BACKENDS = {
    "moveit": ("moveit", "sudo apt install ros-jazzy-moveit-py"),
    "pinocchio": ("pinocchio", "pip install pin"),
}
"""Name of each back-end: the module it needs and the command that installs it, best first."""


def choose_kinematics(robot: Robot, name: str = "auto") -> Kinematics:
    """The kinematics of a robot by back-end name; "auto" takes the first one that is installed.

    A back-end that is asked for by name and missing is an error, never silently replaced.
    """
    if name not in {"auto", *BACKENDS}:
        raise KinematicsError(
            f"there is no kinematics back-end '{name}'", expected=f"one of auto, {', '.join(BACKENDS)}"
        )
    installed = [key for key, (module, _) in BACKENDS.items() if find_spec(module) is not None]
    wanted = installed if name == "auto" else [key for key in installed if key == name]
    if not wanted:
        missing = list(BACKENDS) if name == "auto" else [name]
        raise KinematicsError(
            f"kinematics back-end {' or '.join(missing)} is not installed",
            expected=f"the Python module {' or '.join(BACKENDS[key][0] for key in missing)}",
            hint=" or ".join(BACKENDS[key][1] for key in missing),
            code=ErrorCode.BACKEND_MISSING,
        )
    if wanted[0] == "moveit":
        from kinema4d_ros.kinematics.moveit_backend import MoveItKinematics

        return MoveItKinematics(robot)
    from kinema4d_ros.kinematics.pinocchio_backend import PinocchioKinematics

    return PinocchioKinematics(robot)
