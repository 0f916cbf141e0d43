"""The command line: `kinema4d <verb>`. Each verb is a module beside this one with `register` and `run`.

kinema4d doctor    what this machine has and lacks
kinema4d calibrate where the camera is and how it sees
kinema4d segment   the robot's pixels in images or a video
kinema4d acquire   a robot's meshes and URDF from a walk around it
kinema4d render    a trajectory as exact robot pointmaps, over a camera image
kinema4d generate  what a trajectory would do to the world in an image
kinema4d cost      what that takes, in FLOPs and bytes
kinema4d data      make, check, look at and convert training episodes
kinema4d train     a model, taught on episodes
kinema4d metrics   a prediction, measured against the truth
kinema4d policy    what can be judged, and how it is made
kinema4d fetch-weights  the learned generator's weights, from the hub
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
    """The parser with every verb."""
    parser = argparse.ArgumentParser(
        prog="kinema4d", description="See what a robot's plan will do to the world, in 4D, before the robot moves."
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
        # The reader (`| head`) has gone; keep the interpreter from complaining about it at exit.
        sys.stderr.close()
        return 0
