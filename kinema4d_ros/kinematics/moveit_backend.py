"""`MoveItKinematics`: kinematics with MoveIt's robot model and its configured solver, through moveit_py.

`moveit.core.robot_model.RobotModel(urdf, srdf)` has no solver plug-in; only a model that MoveIt loaded together with
kinematics.yaml has one. This back-end therefore uses the model of a running `MoveItPy`, or starts one with the files
of `config/moveit/`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import ErrorCode, KinematicsError
from kinema4d_ros.core.transforms import rotation_angle, to_quaternion
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.kinematics.path import follow, make_path, require_poses, require_seed
from kinema4d_ros.kinematics.protocol import IKPath, LocalSolution
from kinema4d_ros.robot.model import Robot

__all__ = ["MoveItKinematics"]

Array = NDArray[np.float64]

STEP_TIMEOUT_S = 0.005
START_TIMEOUT_S = 0.5
NODE_NAME = "moveit_py"
"""Node name in the parameter file: MoveItPy always uses this one, regardless of the given name."""


class MoveItKinematics:
    """Forward and inverse kinematics through MoveIt; see `protocol.Kinematics`.

    MoveIt's solvers return a solution or nothing. If a pose is out of reach the arm therefore stays in the
    last configuration, which `NoSolution` reports as the closest one.

    Args:
        robot: the same robot that MoveIt has loaded.
        robot_model: a `moveit.core.robot_model.RobotModel` with solvers, as `MoveItPy.get_robot_model()`
            returns it; by default a MoveItPy is started for this robot.
    """

    def __init__(self, robot: Robot, robot_model: Any = None) -> None:
        """Find MoveIt's joint group of the arm."""
        self._robot = robot
        self._moveit = None
        if robot_model is None:
            self._moveit = _start_moveit(robot)
            robot_model = self._moveit.get_robot_model()
        self._solver = _MoveItSolver(robot, robot_model)

    @property
    def robot(self) -> Robot:
        """Robot of this solver."""
        return self._robot

    def forward(self, q: ArrayLike) -> Array:
        """Return (L, 4, 4) `base_T_link` in `robot.links` order at one configuration (J,)."""
        values = np.asarray(q, dtype=np.float64)
        forward_all(self._robot, values[None])  # same checks and messages as the other back-ends
        return self._solver.link_poses(values)

    def forward_all(self, q: ArrayLike) -> Array:
        """Return (T, L, 4, 4) `base_T_link` at configurations (T, J), by the compiled kernel: MoveIt has no batch."""
        return forward_all(self._robot, q)

    def inverse(self, base_T_tool: ArrayLike, seed: ArrayLike | None = None) -> Array:
        """Return (J,) positions for one tool pose (4, 4), or raise `NoSolution`; see `protocol.Kinematics`."""
        path = self.solve_path(np.asarray(base_T_tool, dtype=np.float64)[None], seed)
        path.require_reached()
        q: Array = path.q[0]
        return q

    def solve_path(self, base_T_tool: ArrayLike, seed: ArrayLike | None = None) -> IKPath:
        """Return joint positions along tool poses (T, 4, 4); see `protocol.Kinematics`."""
        poses = require_poses(base_T_tool)
        start = require_seed(self._robot, seed)
        near = start[[self._robot.joint_names.index(joint.name) for joint in self._robot.arm]]
        first = self._solver.solve(poses[0], near, timeout_s=START_TIMEOUT_S)
        return make_path(self._robot, self._solver, follow(self._solver, poses, first), start)


class _MoveItSolver:
    """`path.LocalSolver` on one `moveit.core.robot_state.RobotState`."""

    def __init__(self, robot: Robot, robot_model: Any) -> None:
        from moveit.core.robot_state import RobotState

        self._robot = robot
        self._names = [joint.name for joint in robot.arm]
        self._lower = np.array([joint.limits.lower for joint in robot.arm])
        self._upper = np.array([joint.limits.upper for joint in robot.arm])
        groups = {group.name: list(group.active_joint_model_names) for group in robot_model.joint_model_groups}
        matching = [name for name, joints in groups.items() if joints == self._names]
        if not matching:
            raise KinematicsError(
                f"MoveIt has no group of the joints {', '.join(self._names)}; its groups are {groups}",
                expected=f"an SRDF for robot '{robot.name}' with a group from base to '{robot.tool_link}'",
                hint="start from config/moveit/yam.srdf",
            )
        self._group = matching[0]
        self._state = RobotState(robot_model)
        self._state.set_to_default_values()
        self._state.update()
        self._model_T_base = np.array(self._state.get_global_link_transform(robot.base_link))

    def link_poses(self, q: Array) -> Array:
        self._state.joint_positions = dict(zip(self._robot.joint_names, map(float, q), strict=True))
        self._state.update()
        model_T_link = np.array([self._state.get_global_link_transform(link.name) for link in self._robot.links])
        poses: Array = np.linalg.inv(model_T_link[0]) @ model_T_link
        return poses

    def tool_pose(self, q: Array) -> Array:
        self._set(q)
        model_T_tool = np.array(self._state.get_global_link_transform(self._robot.tool_link))
        pose: Array = np.linalg.inv(self._model_T_base) @ model_T_tool
        return pose

    def solve(
        self, base_T_tool: Array, seed: Array, posture: Array | None = None, timeout_s: float = STEP_TIMEOUT_S
    ) -> LocalSolution:
        start = np.clip(seed, self._lower, self._upper)
        self._set(start)
        pose = _pose_message(self._model_T_base @ base_T_tool)
        found = self._state.set_from_ik(self._group, pose, self._robot.tool_link, timeout_s)
        positions = self._state.joint_positions
        q = np.array([positions[name] for name in self._names]) if found else start
        q = np.clip(q, self._lower, self._upper)
        here = self.tool_pose(q)
        distance = float(np.linalg.norm(here[:3, 3] - base_T_tool[:3, 3]))
        return LocalSolution(q, distance, float(rotation_angle(here, base_T_tool)))

    def _set(self, q: Array) -> None:
        self._state.joint_positions = dict(zip(self._names, map(float, q), strict=True))
        self._state.update()


def _pose_message(model_T_tool: Array) -> Any:
    from geometry_msgs.msg import Pose  # type: ignore[import-untyped, unused-ignore]

    pose = Pose()
    pose.position.x, pose.position.y, pose.position.z = map(float, model_T_tool[:3, 3])
    x, y, z, w = map(float, to_quaternion(model_T_tool))
    pose.orientation.x, pose.orientation.y, pose.orientation.z, pose.orientation.w = x, y, z, w
    return pose


def _start_moveit(robot: Robot) -> Any:
    """Start a MoveItPy with this robot's files in `config/moveit/`."""
    try:
        from moveit.planning import MoveItPy
    except ImportError as error:
        raise KinematicsError(
            f"moveit_py cannot be imported: {error}",
            expected="the Python module moveit",
            hint="sudo apt install ros-jazzy-moveit-py, then source /opt/ros/jazzy/setup.bash",
            code=ErrorCode.BACKEND_MISSING,
        ) from error

    def config(name: str) -> Any:
        return yaml.safe_load(share_path(f"config/moveit/{name}").read_text(encoding="utf-8"))

    parameters = {
        "robot_description": robot.urdf,
        "robot_description_semantic": share_path(f"config/moveit/{robot.name}.srdf").read_text(encoding="utf-8"),
        "robot_description_kinematics": config("kinematics.yaml"),
        "robot_description_planning": config("joint_limits.yaml"),
        "planning_pipelines": {"pipeline_names": ["ompl"]},
        "ompl": config("ompl_planning.yaml"),
    }
    return MoveItPy(node_name=NODE_NAME, config_dict=parameters, provide_planning_service=False)
