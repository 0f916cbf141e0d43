"""`kinema4d replay BAG`: previews the plans found in a recording, with no robot and no ROS graph.

For each plan: the arm as it stood, the image as it was seen; a rollout folder and a clearance plot in --out.
"""

from __future__ import annotations

import argparse
from functools import lru_cache
from pathlib import Path

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.cli.options import add_robustness_options, camera_spread, robustness_task
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.generators.spec import SPECS
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.previews.report import clearance_text, outcomes_text
from kinema4d_ros.robot import Robot

__all__ = ["register", "run"]


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "replay",
        help="preview the plans found in a bag",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("bag", type=Path, help="a ROS 2 bag: its folder, .mcap or .db3 file")
    add("--robot", default="yam", metavar="NAME|FILE", help="a robot's name, or a .urdf or .xacro file (default: yam)")
    add("--camera", type=Path, metavar="FILE", help="calibration file (default: the demo camera)")
    add("--preset", default="composite", metavar="SPEC", help=f"what predicts the world: {SPECS} (default: composite)")
    add("--checkpoint", default="", metavar="DIR", help="folder of the weights (default: the preset's own)")
    add("--allow-base", action="store_true", help="without an adapter run the base model alone; the results say so")
    add("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    add("--seed", type=int, default=0, help="of the generator (default: 0)")
    add("--out", type=Path, default=Path("out/replay"), help="where the results go (default: out/replay)")
    add_robustness_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Preview every plan; exit code 1 when none could be."""
    from kinema4d_ros.generators import load_generator
    from kinema4d_ros.kinematics import choose_kinematics
    from kinema4d_ros.previews.preview import preview
    from kinema4d_ros.ros.recorded_plans import plans_in_bag

    robot = Robot.load(arguments.robot)
    calibration = arguments.camera or share_path("calibration/demo_lab.yaml")
    lens = read_camera(calibration, base_frame=robot.base_link)
    task = robustness_task(arguments)
    spread = None if task is None else camera_spread(calibration)
    generator = load_generator(
        arguments.preset,
        offered={"device": arguments.device},
        checkpoint=arguments.checkpoint,
        allow_base=arguments.allow_base or None,
    )
    kinematics = lru_cache(maxsize=1)(lambda: choose_kinematics(robot))
    done = found = 0
    for recorded in plans_in_bag(arguments.bag, robot, kinematics, notice=print):
        name = f"plan_{found:03d}"
        found += 1
        try:
            if recorded.plan is None:
                raise recorded.error or KinemaError("the plan could not be read")
            made = preview(
                recorded.plan,
                robot,
                lens.rectified(),
                generator,
                arm=recorded.arm,
                image=None if recorded.image is None else lens.rectify(recorded.image),
                depth=None if lens.has_distortion else recorded.depth,
                seed=arguments.seed,
                robustness=task,
                spread=spread,
            )
            folder = made.save(arguments.out / name)
        except KinemaError as error:
            print(f"{name} ({recorded.topic}): not previewed: {error}")
            continue
        done += 1
        print(f"{name} ({recorded.topic}): {folder}, least clearance {clearance_text(made.report)}")
        if made.report.outcomes:
            print(f"  outcome: {outcomes_text(made.report)}")
        if made.report.robustness is not None:
            print(f"  {made.report.robustness.sentence()}")
        for warning in made.report.warnings:
            print(f"  {warning}")
    print(f"{done} of {found} plans previewed")
    return 0 if done else 1
