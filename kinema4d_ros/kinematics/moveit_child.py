"""The program that runs MoveIt's kinematics for `moveit_backend`: one process, one line of JSON per question.

question                                                  answer
{"start": {"parameters", "group", "joints", "base", "tool"}}    {"solver": "..."}
{"forward": [q]}                                          {"pose": [16 numbers, base_T_tool]}
{"solve": [16 numbers], "seed": [q], "timeout_s": t}      {"q": [q]}, or {"q": null} without a solution
anything that fails                                       {"error": {"what", "expected", "hint"}}

MoveIt runs in a process of its own because its teardown may crash (moveit2 issue 3721) and because it brings a ROS
node: the process ends with `_exit`, its node is in a namespace of its own and no other node discovers it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import IO, Any, Protocol

import numpy as np
import yaml
from numpy.typing import NDArray

from kinema4d_ros.core.transforms import to_quaternion
from kinema4d_ros.runtime.child import end_with_launcher

__all__ = ["Refused", "Solver", "run", "serve"]

Array = NDArray[np.float64]


class Refused(Exception):  # noqa: N818 - an answer, not a failure of this program
    """A problem to report to the parent: what, what was expected, and what to do."""

    def __init__(self, what: str, expected: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.fields = {"what": what, "expected": expected, "hint": hint}


class Solver(Protocol):
    """Kinematics of the arm, behind the protocol."""

    name: str
    """Name of the solver, for messages."""

    def forward(self, q: Array) -> Array:
        """Return (4, 4) `base_T_tool` at arm positions (A,)."""
        ...

    def solve(self, base_T_tool: Array, seed: Array, timeout_s: float) -> Array | None:
        """Return arm positions (A,) for a pose, or None."""
        ...


def serve(stream: IO[str], start: Callable[[dict[str, Any]], Solver]) -> None:
    """Answer questions until the parent closes the stream."""
    solver: Solver | None = None
    for line in stream:
        question = json.loads(line)
        try:
            if "start" in question:
                solver = start(question["start"])
                answer: dict[str, Any] = {"solver": solver.name}
            elif solver is None:
                raise Refused("the first question is not 'start'")
            elif "forward" in question:
                answer = {"pose": solver.forward(np.array(question["forward"])).ravel().tolist()}
            else:
                pose = np.array(question["solve"]).reshape(4, 4)
                q = solver.solve(pose, np.array(question["seed"]), question["timeout_s"])
                answer = {"q": None if q is None else q.tolist()}
        except Refused as refused:
            answer = {"error": refused.fields}
        except Exception as error:  # RuntimeError from C++, and whatever a plug-in raises
            answer = {"error": Refused(f"{type(error).__name__}: {error}", "MoveIt that runs with these files").fields}
        stream.write(json.dumps(answer) + "\n")
        stream.flush()


def run(start: Callable[[dict[str, Any]], Solver]) -> None:
    """Serve the socket whose descriptor is the first argument, then exit without any teardown."""
    end_with_launcher()
    with socket.socket(fileno=int(sys.argv[1])) as connection, connection.makefile("rw") as stream:
        code = 0
        try:
            serve(stream, start)
        except ConnectionError:
            pass  # the parent is gone
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stderr.flush()
        os._exit(code)


class _MoveIt:
    """`Solver` on one `moveit.core.robot_state.RobotState`."""

    def __init__(self, question: dict[str, Any]) -> None:
        try:
            from moveit.core.robot_state import RobotState
            from moveit.planning import MoveItPy
        except ImportError as error:
            raise Refused(
                f"moveit_py cannot be imported: {error}",
                "the Python module moveit",
                "sudo apt install ros-jazzy-moveit-py, then source /opt/ros/jazzy/setup.bash",
            ) from error
        self._names, self._base, self._tool = question["joints"], question["base"], question["tool"]
        self._group = question["group"]
        mine = f"kinema4d_moveit_{os.getpid()}"
        with tempfile.NamedTemporaryFile("w", prefix=mine, suffix=".yaml", encoding="utf-8") as file:
            # A file of our own: the one that MoveItPy writes names no namespace, and stays in /tmp.
            yaml.safe_dump({"/**": {"ros__parameters": question["parameters"]}}, file)
            file.flush()
            self._moveit = MoveItPy(
                node_name=mine, name_space=mine, launch_params_filepaths=[file.name], provide_planning_service=False
            )
        model = self._moveit.get_robot_model()
        groups = {group.name: list(group.active_joint_model_names) for group in model.joint_model_groups}
        if groups.get(self._group) != self._names:
            raise Refused(
                f"MoveIt's group '{self._group}' has not the joints {', '.join(self._names)}: {groups}",
                "an SRDF that fits the URDF",
            )
        self.name = str(question["parameters"]["robot_description_kinematics"][self._group]["kinematics_solver"])
        self._state = RobotState(model)
        self._state.set_to_default_values()
        self._state.update()
        self._model_T_base = np.array(self._state.get_global_link_transform(self._base))

    def forward(self, q: Array) -> Array:
        self._set(q)
        model_T_tool = np.array(self._state.get_global_link_transform(self._tool))
        pose: Array = np.linalg.inv(self._model_T_base) @ model_T_tool
        return pose

    def solve(self, base_T_tool: Array, seed: Array, timeout_s: float) -> Array | None:
        self._set(seed)
        pose = _pose_message(self._model_T_base @ base_T_tool)
        if not self._state.set_from_ik(self._group, pose, self._tool, timeout_s):
            return None
        positions = self._state.joint_positions
        return np.array([positions[name] for name in self._names])

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


if __name__ == "__main__":
    run(_MoveIt)
