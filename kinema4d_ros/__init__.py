"""See what a robot's plan will do to the world, in 4D, before the robot moves.

    plan ────────┐  robot/ + kinematics/       render/                  generators/          previews/
    joint states ┼─> base_T_link (T, L, 4, 4) ─> robot (T, H, W, 3) ─┬─> Rollout: RGB + XYZ ─> report, gate
    calibration ─┘                               exact, in metres    │   predicted
    camera image ────────────────────────────────────────────────────┘

`Robot`, `PinholeCamera`, `JointTrajectory` and `Task` go in; `preview` returns a rollout with its report.
The robot is computed exactly. The world's reaction is predicted, and the rollout says by what.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinema4d_ros.calibration import read_camera
    from kinema4d_ros.core.camera import PinholeCamera
    from kinema4d_ros.core.errors import ErrorCode, KinemaError
    from kinema4d_ros.core.rollout import Rollout
    from kinema4d_ros.core.task import Task
    from kinema4d_ros.core.trajectory import JointTrajectory
    from kinema4d_ros.generators import Generator, load_generator
    from kinema4d_ros.io.trajectories import read_trajectory
    from kinema4d_ros.previews.preview import Preview, preview
    from kinema4d_ros.render import render_pointmaps
    from kinema4d_ros.robot import Robot

__version__ = "0.1.0"

_WHERE = {
    "ErrorCode": "core.errors",
    "Generator": "generators",
    "JointTrajectory": "core.trajectory",
    "KinemaError": "core.errors",
    "PinholeCamera": "core.camera",
    "Preview": "previews.preview",
    "Robot": "robot",
    "Rollout": "core.rollout",
    "Task": "core.task",
    "load_generator": "generators",
    "preview": "previews.preview",
    "read_camera": "calibration",
    "read_trajectory": "io.trajectories",
    "render_pointmaps": "render",
}
"""The public API and its modules; each is imported on first use, so that a command starts without all of them."""

__all__ = [
    "ErrorCode",
    "Generator",
    "JointTrajectory",
    "KinemaError",
    "PinholeCamera",
    "Preview",
    "Robot",
    "Rollout",
    "Task",
    "load_generator",
    "preview",
    "read_camera",
    "read_trajectory",
    "render_pointmaps",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'; it exports {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# ROS 2 from wheels makes the venv itself an ament prefix, but only colcon's setup files would say so.
if "AMENT_PREFIX_PATH" not in os.environ and (Path(sys.prefix) / "share" / "ament_index").is_dir():
    os.environ["AMENT_PREFIX_PATH"] = sys.prefix
