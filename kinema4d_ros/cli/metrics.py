"""`kinema4d metrics PRED TRUTH`: error metrics of a predicted rollout or video against the true one.

Rollout folders are compared by images and point clouds, videos by images only. Length and size must be equal.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from kinema4d_ros.cli.options import add_trajectory_options, read_plan
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.evaluation.compare import Comparison, Motion, Sight, compare
from kinema4d_ros.io.files import replacing_file
from kinema4d_ros.io.images import strip
from kinema4d_ros.io.video import VideoWriter
from kinema4d_ros.robot import Robot

__all__ = ["register", "run"]


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "metrics",
        help="compare a prediction with the truth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("predicted", type=Path, metavar="PRED", help="folder of a rollout, or a video")
    parser.add_argument("truth", type=Path, metavar="TRUTH", help="folder of a rollout, or a video")
    parser.add_argument(
        "--thresholds", default="0.01", metavar="M,...", help="F-score thresholds, metres (default: 0.01)"
    )
    parser.add_argument("--reach", type=int, metavar="PX", help="margin of the dynamic region (default: width / 24)")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a row for each frame")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON; - prints it instead of the table")
    parser.add_argument("--video", type=Path, metavar="FILE.mp4", help="write prediction, truth and difference")
    parser.add_argument(
        "--learned", default="", metavar="NAME,...", help="learned metrics: lpips, fid, fvd (with --weights), latent_l2"
    )
    parser.add_argument("--weights", type=Path, metavar="DIR", help="folder with the pretrained networks")
    parser.add_argument(
        "--codec", type=Path, metavar="DIR", help="model folder for latent_l2 (default: the shipped nano)"
    )
    parser.add_argument(
        "--trajectory", type=Path, metavar="FILE", help="the plan, to compare PRED's robot with the exact one"
    )
    parser.add_argument("--robot", default="yam", metavar="NAME|FILE", help="robot of --trajectory (default: yam)")
    add_trajectory_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Load both, compute the metrics, print and write them."""
    limits = _numbers(arguments.thresholds)
    predicted, truth = _load(arguments.predicted), _load(arguments.truth)
    motion = _motion(arguments, len(predicted.rgb)) if arguments.trajectory else None
    found = compare(predicted, truth, thresholds_m=limits, reach_px=arguments.reach, motion=motion)
    if arguments.learned:
        from kinema4d_model.metrics import learned_metrics

        names = [name.strip() for name in arguments.learned.split(",")]
        extra = learned_metrics(names, predicted.rgb, truth.rgb, arguments.weights, arguments.codec)
        found = Comparison(found.frames, {**found.overall, **extra}, found.notes, found.counts)
    print(found.json() if arguments.json == "-" else found.table())
    if arguments.json and arguments.json != "-":
        _write(Path(arguments.json), found.json() + "\n")
    if arguments.csv:
        _write(arguments.csv, found.csv())
    if arguments.video:
        _side_by_side(arguments.video, predicted, truth)
    return 0


def _load(path: Path) -> Sight:
    if path.is_dir():
        return Sight.of_rollout(Rollout.load(path))
    from kinema4d_model.data.importers.video import read_video

    pictures, times = read_video(path)
    step_s = float(np.median(np.diff(times))) if len(times) > 1 else 0.1
    return Sight(np.stack(pictures), fps=1.0 / step_s if step_s > 0 else 10.0)


def _motion(arguments: argparse.Namespace, frames: int) -> Motion:
    robot = Robot.load(arguments.robot)
    return Motion(robot, read_plan(arguments.trajectory, robot, arguments).resample(frames).for_robot(robot))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise KinemaError(
            f"--thresholds is '{text}'", expected="metres, such as 0.01,0.05", code=ErrorCode.ARGUMENT_INVALID
        ) from None


def _write(path: Path, text: str) -> None:
    with replacing_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _side_by_side(path: Path, predicted: Sight, truth: Sight) -> None:
    """Write a video of prediction, truth, and three times their difference around grey."""
    fps = min(max(truth.fps, 1.0), 120.0)
    difference = truth.rgb.astype(np.int16) - predicted.rgb
    shown = np.clip(127 + 3 * difference, 0, 255).astype(np.uint8)
    labels = ["predicted", "true", "difference x 3"]
    tiles = [strip([p, t, d], 3, labels) for p, t, d in zip(predicted.rgb, truth.rgb, shown, strict=True)]
    with VideoWriter(path, fps, (tiles[0].shape[1], tiles[0].shape[0])) as video:
        for tile in tiles:
            video.write(tile)
