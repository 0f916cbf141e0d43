"""Protocol of the kinematics back-ends, its results and errors, and the choice of a back-end."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import ErrorCode, KinematicsError
from kinema4d_ros.robot.model import Robot

__all__ = [
    "BACKENDS",
    "POSITION_TOLERANCE_M",
    "ROTATION_TOLERANCE_RAD",
    "ROTATION_WEIGHT_M",
    "IKPath",
    "Kinematics",
    "LocalSolution",
    "NoSolution",
    "choose_kinematics",
]

POSITION_TOLERANCE_M = 1e-3
"""A pose is reached if the tool is this close to it ..."""

ROTATION_TOLERANCE_RAD = float(np.radians(0.5))
"""... and rotated by at most this angle."""

ROTATION_WEIGHT_M = 0.2
"""Metres per radian of tool rotation: about the distance from wrist to fingertip."""


@dataclass(frozen=True, eq=False)
class LocalSolution:
    """Result of a local search for one pose: arm positions (A,) and the remaining error."""

    q: NDArray[np.float64]
    position_error_m: float
    rotation_error_rad: float

    @property
    def reached(self) -> bool:
        """True within `POSITION_TOLERANCE_M` and `ROTATION_TOLERANCE_RAD`."""
        return self.position_error_m <= POSITION_TOLERANCE_M and self.rotation_error_rad <= ROTATION_TOLERANCE_RAD

    @property
    def cost(self) -> float:
        """Weighted distance to the target in metres."""
        return float(np.hypot(self.position_error_m, ROTATION_WEIGHT_M * self.rotation_error_rad))


class NoSolution(KinematicsError):  # noqa: N818 - it reads as what it is
    """Unreachable tool pose, with the closest reachable one.

    Attributes:
        reason: one line: out of reach, or the joint limits that stop it.
        closest_q: (J,) the closest configuration found, in `robot.joint_names` order.
        closest_base_T_tool: (4, 4) the tool's pose there.
        position_error_m: distance between the two tool positions.
        rotation_error_rad: angle between the two orientations.
        sample: index of the pose in its path, 0 for a single pose.
    """

    default_code = ErrorCode.IK_NO_SOLUTION

    def __init__(
        self,
        reason: str,
        *,
        closest_q: NDArray[np.float64],
        closest_base_T_tool: NDArray[np.float64],
        position_error_m: float,
        rotation_error_rad: float,
        sample: int = 0,
    ) -> None:
        """Build the message from the closest pose and the error."""
        self.reason = reason
        self.closest_q = closest_q
        self.closest_base_T_tool = closest_base_T_tool
        self.position_error_m = position_error_m
        self.rotation_error_rad = rotation_error_rad
        self.sample = sample
        x, y, z = closest_base_T_tool[:3, 3]
        super().__init__(
            f"pose {sample} of the tool cannot be reached: {reason}; the closest pose found is "
            f"{1000 * position_error_m:.1f} mm and {np.degrees(rotation_error_rad):.2f} degrees away",
            expected=f"a pose within reach, for example at xyz ({x:.3f}, {y:.3f}, {z:.3f}) m",
            hint="the exception carries the closest pose and its joint positions",
        )


@dataclass(frozen=True, eq=False)
class IKPath:
    """Joint positions along a path of tool poses.

    Attributes:
        q: (T, J) float64 in `robot.joint_names` order; for a pose out of reach, the closest
            reachable configuration that continues the motion.
        base_T_tool: (T, 4, 4) float64, metres, base frame: the tool's pose at `q`.
        reached: (T,) bool, within `POSITION_TOLERANCE_M` and `ROTATION_TOLERANCE_RAD`.
        position_error_m: (T,) float64.
        rotation_error_rad: (T,) float64.
        reasons: for each pose, "" or the reason why it was not reached.
    """

    q: NDArray[np.float64]
    base_T_tool: NDArray[np.float64]
    reached: NDArray[np.bool_]
    position_error_m: NDArray[np.float64]
    rotation_error_rad: NDArray[np.float64]
    reasons: tuple[str, ...]

    def require_reached(self, first: int = 0) -> None:
        """Raise `NoSolution` for the first pose not reached; `first` is the number of poses before this path."""
        if bool(np.all(self.reached)):
            return
        sample = int(np.argmin(self.reached))
        raise NoSolution(
            self.reasons[sample],
            closest_q=self.q[sample],
            closest_base_T_tool=self.base_T_tool[sample],
            position_error_m=float(self.position_error_m[sample]),
            rotation_error_rad=float(self.rotation_error_rad[sample]),
            sample=first + sample,
        )


class Kinematics(Protocol):
    """Forward and inverse kinematics of one robot. Poses are `base_T_...`, metres, float64.

    Positions are in `robot.joint_names` order; joints outside the arm's chain (the gripper) keep
    their value in the seed.
    """

    @property
    def robot(self) -> Robot:
        """Robot of this solver."""
        ...

    def forward(self, q: ArrayLike) -> NDArray[np.float64]:
        """Return (L, 4, 4) `base_T_link` in `robot.links` order at one configuration (J,)."""
        ...

    def forward_all(self, q: ArrayLike) -> NDArray[np.float64]:
        """Return (T, L, 4, 4) `base_T_link` at configurations (T, J)."""
        ...

    def inverse(self, base_T_tool: ArrayLike, seed: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return (J,) positions inside the limits for a tool pose (4, 4), or raise `NoSolution`.

        With a seed (J,) the result is the solution that continues from it; without one, the solution closest to the
        robot's home.
        """
        ...

    def solve_path(self, base_T_tool: ArrayLike, seed: ArrayLike | None = None) -> IKPath:
        """Return joint positions along poses (T, 4, 4), each continuing from the previous; never raises for reach."""
        ...


# Choice of the back-end by name.

BACKENDS = {
    "pinocchio": ("pinocchio", "ros-jazzy-pinocchio on ROS 2 Jazzy, otherwise pip install pin"),
    "moveit": ("moveit", "sudo apt install ros-jazzy-moveit-py, then source /opt/ros/jazzy/setup.bash"),
}
"""Required module and how to install it, by back-end name; "auto" is the first one."""


def choose_kinematics(robot: Robot, name: str = "auto") -> Kinematics:
    """Return the kinematics of a robot by back-end name; "auto" is pinocchio, and MoveIt is only used by its name.

    A back-end that is not installed is an error; it is never silently replaced.
    """
    if name not in {"auto", *BACKENDS}:
        raise KinematicsError(
            f"there is no kinematics back-end '{name}'", expected=f"one of auto, {', '.join(BACKENDS)}"
        )
    wanted = next(iter(BACKENDS)) if name == "auto" else name
    module, install = BACKENDS[wanted]
    if find_spec(module) is None:
        raise KinematicsError(
            f"kinematics back-end {wanted} is not installed",
            expected=f"the Python module {module}",
            hint=install,
            code=ErrorCode.BACKEND_MISSING,
        )
    if wanted == "moveit":
        from kinema4d_ros.kinematics.moveit_backend import MoveItKinematics

        return MoveItKinematics(robot)
    from kinema4d_ros.kinematics.pinocchio_backend import PinocchioKinematics

    return PinocchioKinematics(robot)
