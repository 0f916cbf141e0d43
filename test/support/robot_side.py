"""The robot's part of a graph in a separate process: arm and camera drivers, and a client that sends plans.

    python test/support/robot_side.py CAMERA.yaml

Reads commands from stdin: "preview" sends a plan from the current joints; "ready SECONDS" waits until the preview
reports that it accepts plans. Prints one JSON object per line: {"phase": ...} during a command,
{"code": ..., "seconds": ...} at its end. Ends when stdin is closed.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import numpy as np
from support.drivers import Drivers
from support.ros_graph import Graph

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.client import PreviewClient

ENOUGH_S = 300.0


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def plan_for(robot: Robot, angle: float) -> JointTrajectory:
    """Return a plan that turns joint1 from home by an angle in two seconds."""
    times = np.linspace(0.0, 2.0, 11)
    path = np.tile(robot.home_position(), (11, 1))
    path[:, 0] += angle * (1 - np.cos(np.pi * times / 2.0)) / 2
    return JointTrajectory.from_positions(robot.joint_names, path, times=times)


def attempt(work: object) -> None:
    began = time.monotonic()
    code, what = ErrorCode.NONE, ""
    try:
        work()  # type: ignore[operator]
    except KinemaError as error:
        code, what = error.code, error.what
    say(code=code.name, seconds=round(time.monotonic() - began, 3), what=what)


def main() -> None:
    robot = Robot.load("yam")
    graph = Graph()
    Drivers(graph, robot, read_camera(sys.argv[1]))
    health = ""
    heard = threading.Event()

    def look(message: object) -> None:
        nonlocal health
        for status in message.status:  # type: ignore[attr-defined]
            if status.name.endswith("preview"):
                health = status.message
                heard.set()

    with PreviewClient() as client:
        client.listen(names.DIAGNOSTICS, look)
        say(phase="started")
        number = 0
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            if word == "preview":
                number += 1
                plan = plan_for(robot, 0.1 + 0.001 * number)
                attempt(lambda plan=plan: client.preview(plan, lambda s: say(phase=s.detail or s.phase), ENOUGH_S))
            elif word == "health":
                heard.clear()
                attempt(lambda wanted=rest: client.wait_for(lambda: health.startswith(wanted), ENOUGH_S, wanted))
    graph.close()


if __name__ == "__main__":
    main()
