"""`kinema4d preview --trajectory FILE`: send a plan to a running graph and show the progress of its preview.

The robot does not move: execution needs an approval, which this command does not give. With --robustness, the image
and the measured depth of the graph's rollout are simulated here with shifted objects; OUT_robustness.json and
OUT_robustness.svg are written.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kinema4d_ros.cli.options import (
    add_robustness_options,
    add_trajectory_options,
    camera_spread,
    read_plan,
    robustness_task,
)
from kinema4d_ros.cli.sim import graph_environment
from kinema4d_ros.previews.report import clearance_text, outcomes_text
from kinema4d_ros.robot import Robot

__all__ = ["register", "run"]


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "preview",
        help="send a plan to a running graph",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--trajectory", type=Path, required=True, metavar="FILE", help="CSV, JSON, NPZ, bag or LeRobot folder")
    add_trajectory_options(parser)
    add("--robot", default="yam", metavar="NAME|FILE", help="a robot's name, or a .urdf or .xacro file (default: yam)")
    add("--namespace", default="", help="namespace of the graph (default: none)")
    add("--timeout", type=float, default=1800.0, metavar="S", help="timeout of the preview (default: 1800)")
    add_robustness_options(parser)
    add("--camera", type=Path, metavar="FILE", help="calibration with the covariance for --robustness (default: none)")
    add("--out", type=Path, default=Path("out/preview"), metavar="NAME", help="of --robustness (default: out/preview)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Send the plan, show its progress, and print the result."""
    robot = Robot.load(arguments.robot)
    plan = read_plan(arguments.trajectory, robot, arguments)
    plan.validate(robot)
    os.environ.update(graph_environment())
    from kinema4d_ros.previews.preview import robustness_of, save_robustness
    from kinema4d_ros.ros.client import PreviewClient

    asked = robustness_task(arguments)
    rollout = None
    with PreviewClient(arguments.namespace) as client, tqdm(bar_format="{desc} {bar} {n_fmt}/{total_fmt}") as bar:
        report = client.preview(plan, lambda status: _show(bar, client, status), timeout_s=arguments.timeout)
        if asked is not None:
            rollout = client.rollout(report.rollout_id)
    print(f"rollout {report.rollout_id}, plan {report.plan_hash}")
    if report.outcomes:
        print(f"outcome: {outcomes_text(report)}")
    print(f"least clearance {clearance_text(report)}")
    for warning in report.warnings:
        print(f"  {warning}")
    if asked is not None and rollout is not None:
        found = robustness_of(
            rollout,
            plan,
            robot,
            task=asked,
            spread=None if arguments.camera is None else camera_spread(arguments.camera),
        )
        print(f"{found.sentence()} ({save_robustness(found, arguments.out)})")
    return 0


def _show(bar: Any, client: Any, status: Any) -> None:
    bar.set_description_str(f"{client.phase_name(status.phase)}{' ' + status.detail if status.detail else ''}")
    if status.steps:
        bar.total = status.steps
        bar.n = status.step
    bar.refresh()
