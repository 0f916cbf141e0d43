"""A program with the protocol of `kinematics.moveit_child`, whose solver is pinocchio instead of MoveIt.

The first argument is a fault to show, or "none"; the last one the socket's descriptor, as in the real program.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d_ros.core.transforms import from_rpy
from kinema4d_ros.kinematics import moveit_child
from kinema4d_ros.kinematics.pinocchio_backend import ArmModel
from kinema4d_ros.robot import Robot


class Pinocchio:
    """`moveit_child.Solver` for the URDF in the question."""

    def __init__(self, question: dict[str, Any], fault: str) -> None:
        if fault == "start":
            raise RuntimeError("Unable to construct robot model")
        if fault == "refuse":
            raise moveit_child.Refused("no such group", "an SRDF that fits", "write one")
        self.name, self._fault, self._asked = "pinocchio", fault, 0
        parameters = question["parameters"]
        assert parameters["robot_description_semantic"].strip().startswith("<?xml")
        assert parameters[parameters["planning_pipelines"]["pipeline_names"][0]]["planning_plugins"]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "robot.urdf"
            path.write_text(parameters["robot_description"])
            (Path(folder) / "robot.robot.yaml").write_text(f"tool_link: {question['tool']}\n")
            robot = Robot.load(path)
        assert [joint.name for joint in robot.arm] == question["joints"]
        self._arm = ArmModel(robot)
        rest = np.clip(np.zeros(len(robot.arm)), self._arm.lower, self._arm.upper)
        self._arm.solve(self._arm.tool_pose(rest), rest)  # compiles

    def forward(self, q: np.ndarray) -> np.ndarray:
        pose = self._arm.tool_pose(q)
        return from_rpy([0.0, 0.0, 0.0], [0.0, 0.0, 0.01]) @ pose if self._fault == "other model" else pose

    def solve(self, base_T_tool: np.ndarray, seed: np.ndarray, timeout_s: float) -> np.ndarray | None:
        self._asked += 1
        if self._asked > 20 and self._fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._asked > 20 and self._fault == "hang":
            time.sleep(3600)
        found = self._arm.solve(base_T_tool, seed)
        return found.q if found.reached and self._fault != "no solver" else None


if __name__ == "__main__":
    shown = sys.argv.pop(1)
    moveit_child.run(lambda question: Pinocchio(question, shown))
