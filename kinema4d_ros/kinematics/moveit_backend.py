"""`MoveItKinematics`: inverse kinematics by the solver that MoveIt is configured with, in a child process.

this process                                            child (moveit_child.py)
forward_all, follow() along a path ──solve(pose)──>     MoveItPy, its robot model and solver plug-in
self-test at the start: forward, then inverse

The child brings a ROS node and C++ that may crash: a crash is a `KinematicsError` here, and the next call starts
another child.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import weakref
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import ErrorCode, KinematicsError
from kinema4d_ros.core.transforms import rotation_angle
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.kinematics.path import follow, make_path, require_poses, require_seed
from kinema4d_ros.kinematics.protocol import (
    BACKENDS,
    POSITION_TOLERANCE_M,
    ROTATION_TOLERANCE_RAD,
    IKPath,
    LocalSolution,
)
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.robot.moveit_files import MoveItFiles
from kinema4d_ros.runtime.child import Child

__all__ = ["MoveItKinematics"]

Array = NDArray[np.float64]

STEP_TIMEOUT_S = 0.005
START_TIMEOUT_S = 0.5
CHILD_START_S = 180.0
"""Seconds for MoveIt to load: robot model, solver and planning pipeline."""

ANSWER_S = 30.0
"""Seconds for an answer beyond the timeout given to the solver."""

TESTED = 8
"""Configurations of the self-test."""

ALONE = {"ROS_AUTOMATIC_DISCOVERY_RANGE": "OFF", "ROS_SECURITY_ENABLE": "false"}
"""Environment of the child: its node takes no part in the graph, and so needs no place in the graph's policy."""

MOVEIT = (sys.executable, "-m", "kinema4d_ros.kinematics.moveit_child")


class MoveItKinematics:
    """Forward and inverse kinematics with MoveIt's solver; see `protocol.Kinematics`.

    MoveIt's solvers return a solution or nothing. If a pose is out of reach the arm therefore stays in the
    last configuration, which `NoSolution` reports as the closest one.

    Args:
        robot: a robot with an SRDF; see `robot.moveit_files`.
        command: the child's program; its socket's descriptor is appended.

    Raises:
        RobotError: the robot has no SRDF, or no group of its arm's joints.
        KinematicsError: BACKEND_MISSING: MoveIt is not installed, does not start, knows another robot, or has no
            solver that works.
    """

    def __init__(self, robot: Robot, command: Sequence[str] = MOVEIT) -> None:
        """Start MoveIt and test it."""
        if tuple(command) == MOVEIT and find_spec("moveit") is None:
            module, install = BACKENDS["moveit"]
            raise KinematicsError(f"{module}_py is not installed", expected=f"the Python module {module}", hint=install)
        self._robot = robot
        self._solver = _ChildSolver(MoveItFiles.find(robot), command)

    @property
    def robot(self) -> Robot:
        """Robot of this solver."""
        return self._robot

    def close(self) -> None:
        """End the child."""
        self._solver.close()

    def forward(self, q: ArrayLike) -> Array:
        """Return (L, 4, 4) `base_T_link` in `robot.links` order at one configuration (J,)."""
        return self.forward_all(np.asarray(q, dtype=np.float64)[None])[0]  # type: ignore[no-any-return, unused-ignore]

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


class _ChildSolver:
    """`path.LocalSolver` by questions to the child. Thread-safe."""

    def __init__(self, files: MoveItFiles, command: Sequence[str]) -> None:
        self._files, self._command = files, tuple(command)
        self._robot = robot = files.robot
        self._columns = [robot.joint_names.index(joint.name) for joint in robot.arm]
        self._tool = [link.name for link in robot.links].index(robot.tool_link)
        self._rest = robot.home_position()
        self.lower, self.upper = robot.lower[self._columns], robot.upper[self._columns]
        self._lock = threading.RLock()
        self._connection: _Connection | None = None
        self._connect()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def tool_pose(self, q: Array) -> Array:
        positions = self._rest.copy()
        positions[self._columns] = q
        pose: Array = forward_all(self._robot, positions[None])[0, self._tool]
        return pose

    def solve(
        self, base_T_tool: Array, seed: Array, posture: Array | None = None, timeout_s: float = STEP_TIMEOUT_S
    ) -> LocalSolution:
        start = np.clip(seed, self.lower, self.upper)
        found = self._ask({"solve": base_T_tool.ravel().tolist(), "seed": start.tolist(), "timeout_s": timeout_s}, "q")
        # MoveIt's limits may be wider than the robot's by the margin for noise.
        q = start if found is None else np.clip(np.array(found), self.lower, self.upper)
        here = self.tool_pose(q)
        distance = float(np.linalg.norm(here[:3, 3] - base_T_tool[:3, 3]))
        return LocalSolution(q, distance, float(rotation_angle(here, base_T_tool)))

    def _ask(self, question: dict[str, Any], key: str) -> Any:
        with self._lock:
            if self._connection is None:
                self._connect()
            assert self._connection is not None  # noqa: S101 - for mypy
            try:
                return self._connection.ask(question, key)
            except _Lost as lost:
                self.close()
                raise _broken(str(lost), "try again: another process is started") from None

    def _connect(self) -> None:
        self._connection = _Connection(self._command)
        robot, files = self._robot, self._files
        start = {
            "parameters": files.moveit_py(),
            "group": files.group,
            "joints": [joint.name for joint in robot.arm],
            "base": robot.base_link,
            "tool": robot.tool_link,
        }
        try:
            solver = self._connection.ask({"start": start}, "solver", CHILD_START_S)
            self._test(str(solver))
        except _Lost as lost:
            self.close()
            raise _broken(str(lost), "its output is above; kinematics: pinocchio needs no MoveIt") from None
        except BaseException:
            self.close()
            raise

    def _test(self, solver: str) -> None:
        """Compare MoveIt's tool poses with ours and solve for them, starting nearby."""
        rng = np.random.default_rng(0)
        lower = np.where(np.isfinite(self.lower), self.lower, -np.pi)
        upper = np.where(np.isfinite(self.upper), self.upper, np.pi)
        assert self._connection is not None  # noqa: S101 - for mypy
        reached = 0
        for share in rng.uniform(0.2, 0.8, (TESTED, lower.size)):
            q = lower + share * (upper - lower)
            mine = self.tool_pose(q)
            theirs = np.array(self._connection.ask({"forward": q.tolist()}, "pose")).reshape(4, 4)
            apart_m = float(np.linalg.norm(theirs[:3, 3] - mine[:3, 3]))
            if not (apart_m < POSITION_TOLERANCE_M and rotation_angle(theirs, mine) < ROTATION_TOLERANCE_RAD):
                raise _broken(
                    f"MoveIt places '{self._robot.tool_link}' {1000 * apart_m:.1f} mm from where the URDF does",
                    f"compare {self._files.path} and the robot's URDF",
                )
            reached += self.solve(mine, q + 0.02 * (upper - lower) * (0.5 - share), timeout_s=START_TIMEOUT_S).reached
        if 2 * reached < TESTED:
            raise _broken(
                f"MoveIt solved {reached} of {TESTED} tool poses that the arm can reach, with {solver}",
                "install the solver's package (ros-jazzy-moveit-kinematics for KDL), and name the group "
                f"'{self._files.group}' in kinematics.yaml",
            )


class _Lost(Exception):  # noqa: N818 - why there is no answer
    """The child ended or does not answer."""


class _Connection:
    """A running child and its socket."""

    def __init__(self, command: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            try:
                # A session of its own: Ctrl-C is this process's to handle.
                self._child = Child.start(
                    [*command, str(number)], own_session=True, tied=True, environment=ALONE, pass_fds=[number]
                )
            except OSError as error:
                ours.close()
                raise _broken(f"{command[0]} cannot be started: {error}", "check the installation") from None
        self._socket = ours
        self._stream = ours.makefile("rw")
        # The child ends when the socket closes; kill it too, because MoveIt may hang.
        self._end = weakref.finalize(self, _end, self._child, ours)

    def ask(self, question: dict[str, Any], key: str, patience_s: float | None = None) -> Any:
        """Return one value of the answer; raise `_Lost` without an answer, KinematicsError for a refusal."""
        patience_s = ANSWER_S if patience_s is None else patience_s
        self._socket.settimeout(patience_s + float(question.get("timeout_s", 0.0)))
        try:
            self._stream.write(json.dumps(question) + "\n")
            self._stream.flush()
            line = self._stream.readline()
            answer = json.loads(line) if line.endswith("\n") else None
        except TimeoutError:
            raise _Lost(f"MoveIt's process did not answer within {self._socket.gettimeout():g} s") from None
        except (OSError, ValueError):
            answer = None
        if not isinstance(answer, dict):
            self._child.wait(ANSWER_S)
            raise _Lost(f"MoveIt's process ended: {self._child.how_it_ended() or 'it closed its connection'}")
        if "error" in answer:
            error = answer["error"]
            raise KinematicsError(error["what"], expected=error["expected"], hint=error["hint"])
        return answer[key]

    def close(self) -> None:
        """End the child."""
        self._end()


def _end(child: Child, connection: socket.socket) -> None:
    connection.close()
    child.kill(ANSWER_S)


def _broken(what: str, hint: str) -> KinematicsError:
    return KinematicsError(
        what, expected="a MoveIt that solves this robot's kinematics", hint=hint, code=ErrorCode.BACKEND_MISSING
    )
