"""The command line: `kinema4d <verb>`. Each verb is a module in this folder with `register` and `run`.

kinema4d doctor         check the installation
kinema4d calibrate      calibrate camera intrinsics and extrinsics
kinema4d segment        segment the robot in images or a video
kinema4d acquire        reconstruct a robot's meshes and URDF from orbit videos
kinema4d render         render a trajectory as exact robot pointmaps over a camera image
kinema4d sim            run the whole graph on this machine
kinema4d generator      run the generator node alone, for a GPU machine
kinema4d preview        send a plan to a running graph
kinema4d replay         preview the plans of a recording, without a robot or a ROS graph
kinema4d generate       predict a rollout of a trajectory from an image
kinema4d cost           count FLOPs and memory of a rollout
kinema4d data           make, check, show and convert training episodes
kinema4d fetch-weights  download the learned generator's weights from the hub
kinema4d train          train a model on episodes
kinema4d assess         score a trained model on held-out episodes
kinema4d metrics        compare a predicted rollout with the true one
kinema4d evaluate       measure policies' success rates in the lab and in a world model
kinema4d policy         list, try, serve and train policies
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from kinema4d_ros import __version__
from kinema4d_ros.cli import (
    acquire,
    assess,
    calibrate,
    cost,
    data,
    doctor,
    evaluate,
    fetch_weights,
    generate,
    metrics,
    policy,
    preview,
    render,
    replay,
    segment,
    sim,
    train,
)
from kinema4d_ros.core.errors import KinemaError

__all__ = ["main"]

VERBS = (
    doctor,
    calibrate,
    segment,
    acquire,
    render,
    sim,
    preview,
    replay,
    generate,
    cost,
    data,
    fetch_weights,
    train,
    assess,
    metrics,
    evaluate,
    policy,
)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser with every verb."""
    parser = argparse.ArgumentParser(
        prog="kinema4d", description="Predict in 4D what a robot's plan will do to the scene, before the robot moves."
    )
    parser.add_argument("--version", action="version", version=f"kinema4d {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for module in VERBS:
        module.register(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. Exit codes: 0 done, 1 something is missing, 2 bad input, 130 interrupted."""
    arguments = build_parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KinemaError as error:
        print(f"kinema4d: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kinema4d: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of the pipe (`| head`) has closed it; prevent a second error when the interpreter flushes at exit.
        sys.stderr.close()
        return 0
