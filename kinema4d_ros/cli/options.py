"""Shared options of the verbs: joints and gripper of recordings; preset, sampler and speed of models."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kinema4d_ros.core.task import Task, make_task
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.joint_match import parse_gripper_range, parse_joint_map
from kinema4d_ros.io.trajectories import read_with_notes
from kinema4d_ros.robot import Robot

if TYPE_CHECKING:
    from kinema4d_ros.generators.draft.members import CameraSpread

__all__ = [
    "add_joint_options",
    "add_model_options",
    "add_robustness_options",
    "add_trajectory_options",
    "camera_spread",
    "joint_options",
    "read_plan",
    "robustness_task",
    "sampler_options",
    "speed_options",
]


def add_joint_options(parser: argparse.ArgumentParser) -> None:
    """Add --joint-map and --gripper-range."""
    parser.add_argument(
        "--joint-map",
        default="",
        metavar="RECORDED=ROBOT,...|FILE",
        help="joints with other names in the recording; 'gripper' is the robot's gripper, RECORDED= ignores a joint",
    )
    parser.add_argument(
        "--gripper-range",
        default="",
        metavar="OPEN,CLOSED",
        help="recorded values of the open and the closed gripper: 1,0 (1 = open), 0,1 (1 = closed), 0.085,0 (metres)",
    )


def add_trajectory_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a trajectory in a file with several, and `add_joint_options`."""
    parser.add_argument("--topic", help="topic to read from a bag with several")
    parser.add_argument("--episode", type=int, help="episode to read from a LeRobot dataset")
    add_joint_options(parser)


def joint_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Convert the options of `add_joint_options` to keyword arguments of `read_trajectory`."""
    options: dict[str, Any] = {}
    if arguments.joint_map:
        options["joint_map"] = parse_joint_map(arguments.joint_map)
    if arguments.gripper_range:
        options["gripper_range"] = parse_gripper_range(arguments.gripper_range)
    return options


def read_plan(path: Any, robot: Robot, arguments: argparse.Namespace) -> JointTrajectory:
    """Read a trajectory with the options of `add_trajectory_options`; prints the reader's notes on stderr."""
    chosen = {"topic": arguments.topic, "episode": arguments.episode}
    options = {name: value for name, value in chosen.items() if value is not None}
    reading = read_with_notes(path, robot, **options, **joint_options(arguments))
    for note in reading.notes:
        print(f"note: {note}", file=sys.stderr)  # a verb's stdout may be JSON
    return reading.trajectory


ROBUSTNESS = ("auto", "pick", "push")


def add_robustness_options(parser: argparse.ArgumentParser) -> None:
    """Add --robustness."""
    parser.add_argument(
        "--robustness",
        nargs="?",
        const="auto",
        choices=ROBUSTNESS,
        metavar="TASK",
        help="also simulate by how far the grasp may be off, with the calibration's covariance: auto (what the plan "
        "does: pick, place or push), pick or push (default without TASK: auto)",
    )


def robustness_task(arguments: argparse.Namespace) -> Task | Literal["auto"] | None:
    """Return the task of --robustness; None = not asked for."""
    if arguments.robustness is None:
        return None
    return "auto" if arguments.robustness == "auto" else make_task(arguments.robustness)


def camera_spread(path: str | Path) -> CameraSpread | None:
    """Return the covariance of a calibration file; None = it states none."""
    from kinema4d_ros.calibration import read_pose
    from kinema4d_ros.generators.draft.members import CameraSpread

    pose = read_pose(path)
    if pose.covariance is None:
        return None
    return CameraSpread.of_covariance(pose.parent_T_child, pose.covariance)


# Named as in the preset files.

SAMPLER = ("kind", "steps", "shift", "guidance", "guidance_scale")
SPEED = ("dtype", "quantise", "attention", "cache_threshold", "offload", "tiling", "compile", "context_parallel")


def add_model_options(
    parser: argparse.ArgumentParser, preset: str, allowed: str = "a preset's name or a YAML file"
) -> None:
    """Add --preset, with `allowed` as its help, and the options that override the preset."""
    add = parser.add_argument
    add("--preset", default=preset, metavar="SPEC", help=f"{allowed} (default: {preset})")
    group = parser.add_argument_group("overrides of the preset")
    add = group.add_argument
    add("--kind", choices=("euler", "unipc"), help="solver")
    add("--steps", type=int, help="sampling steps")
    add("--shift", type=float, help="shift of the noise levels")
    add(
        "--guidance",
        choices=("none", "compat"),
        help="none: one pass per step; compat: two passes, as the official code",
    )
    add("--guidance-scale", type=float, help="scale of compat guidance")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="precision of the weights")
    add("--quantise", choices=("none", "int8", "fp8"), help="store the blocks' weights in one byte each")
    add("--attention", metavar="BACKEND", help="auto, or a back-end of diffusers' dispatcher")
    add(
        "--cache-threshold", type=float, metavar="T", help="first-block step cache; 0 never skips, 0.05 to 0.1 is usual"
    )
    add("--offload", choices=("none", "model", "group"), help="keep unused weights on the host")
    add("--tiling", action="store_true", default=None, help="run the codec in tiles")
    add("--compile", action="store_true", default=None, help="torch.compile, block by block")
    add("--context-parallel", type=int, metavar="N", help="GPUs for one rollout (with torchrun)")


def sampler_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the sampler options that were given."""
    return {name: getattr(arguments, name) for name in SAMPLER if getattr(arguments, name) is not None}


def speed_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the speed options that were given."""
    return {name: getattr(arguments, name) for name in SPEED if getattr(arguments, name) is not None}
