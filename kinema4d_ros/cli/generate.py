"""`kinema4d generate`: what a trajectory would do to the world in an image, without ROS.

Writes into --out the rollout's folder (see docs/formats.md) and beside it OUT_clearance.png, OUT_details.json
(metric fit and drift of every chunk) and, with --seeds 2 or more, OUT_confidence.npz; with --robustness,
OUT_robustness.json and OUT_robustness.svg.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.cli.options import (
    add_model_options,
    add_robustness_options,
    add_trajectory_options,
    camera_spread,
    read_plan,
    robustness_task,
    sampler_options,
    speed_options,
)
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CameraError, ErrorCode
from kinema4d_ros.core.trajectory import FRAMES
from kinema4d_ros.generators import Progress
from kinema4d_ros.generators.spec import SPECS, load_generator
from kinema4d_ros.io.files import replacing_file
from kinema4d_ros.io.images import read_depth, read_image
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.previews.report import clearance_text, outcomes_text
from kinema4d_ros.robot import Robot

__all__ = ["register", "run"]


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "generate",
        help="predict the world of a trajectory from one image",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--image", type=Path, metavar="FILE", help="what the camera sees (default: a plain studio)")
    add("--depth", type=Path, metavar="FILE", help="depth of that image: 16-bit PNG in millimetres, or .npy in metres")
    add("--trajectory", type=Path, required=True, metavar="FILE", help="CSV, JSON, NPZ, bag or LeRobot folder")
    add_trajectory_options(parser)
    add("--camera", type=Path, metavar="FILE", help="calibration file (default: the demo camera)")
    add("--robot", default="yam", metavar="NAME|FILE", help="a robot's name, or a .urdf or .xacro file (default: yam)")
    add("--checkpoint", default="", metavar="DIR", help="folder of the weights (default: the preset's own)")
    add("--allow-base", action="store_true", help="without an adapter run the base model alone; the results say so")
    add("--lora", default="", metavar="FILE", help="another adapter, for example one distilled for few steps")
    add("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    add("--frames", type=int, default=FRAMES, help=f"of the rollout; long ones in chunks (default: {FRAMES})")
    add("--seed", type=int, default=0, help="of all randomness (default: 0)")
    add("--seeds", type=int, default=1, metavar="N", help="rollouts to compare for confidence, 1 to 8 (default: 1)")
    add("--require-metric", action="store_true", help="fail where the robot is too small in view for metres")
    add("--random-weights", action="store_true", help="an untrained network: for trying things out, not for looking at")
    add("--out", type=Path, default=Path("out/generate"), metavar="DIR", help="default: out/generate")
    add_robustness_options(parser)
    add_model_options(parser, "nano", SPECS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Generate, save and tell where the results are."""
    from kinema4d_ros.previews.preview import preview

    robot = Robot.load(arguments.robot)
    plan = read_plan(arguments.trajectory, robot, arguments)
    calibration = arguments.camera or share_path("calibration/demo_lab.yaml")
    lens = read_camera(calibration, base_frame=robot.base_link)
    image = None if arguments.image is None else lens.rectify(read_image(arguments.image))
    depth = None if arguments.depth is None else _depth(arguments.depth, lens)
    task = robustness_task(arguments)
    generator = _generator(arguments)
    with tqdm(total=1, bar_format="{desc:<10} {bar} {n_fmt}/{total_fmt} {elapsed}") as bar:
        made = preview(
            plan,
            robot,
            lens.rectified(),
            generator,
            image=image,
            depth=depth,
            frames=arguments.frames,
            seed=arguments.seed,
            progress=lambda progress: _show(bar, progress),
            robustness=task,
            spread=None if task is None else camera_spread(calibration),
        )
    folder = made.save(arguments.out)
    print(f"{folder}: {len(made.rollout)} frames, seed {arguments.seed}, preset {arguments.preset}")
    for warning in made.report.warnings:
        print(f"warning: {warning}")
    details = getattr(generator, "details", None)
    if details is not None:
        _write_details(folder, details)
        print(f"metres: {details.fits[-1].summary()}")
        for index, drift in enumerate(details.drift):
            print(
                f"chunk {index}: robot off by {1000 * drift.robot_m:.1f} mm, world by {drift.world_rgb:.1f} grey levels"
            )
    if made.report.outcomes:
        print(f"outcome: {outcomes_text(made.report)}")
    print(f"least clearance {clearance_text(made.report)}")
    if made.report.robustness is not None:
        print(made.report.robustness.sentence())
    return 0


def _depth(path: Path, lens: PinholeCamera) -> NDArray[np.float32]:
    if lens.has_distortion:
        raise CameraError(
            "the camera has distortion, and depth is not rectified",
            expected="depth of a rectified image, with its camera",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    return read_depth(path, (lens.width, lens.height))


def _generator(arguments: argparse.Namespace) -> Any:
    # None: not asked for, so that generators without such an option can be chosen too.
    return load_generator(
        arguments.preset,
        offered={"device": arguments.device},
        checkpoint=arguments.checkpoint,
        allow_base=arguments.allow_base or None,
        lora=arguments.lora,
        seeds=None if arguments.seeds == 1 else arguments.seeds,
        require_metric=arguments.require_metric or None,
        random_weights=arguments.random_weights or None,
        sampler=sampler_options(arguments),
        speed=speed_options(arguments),
    )


def _show(bar: Any, progress: Progress) -> None:
    bar.set_description_str(progress.phase)
    bar.total, bar.n = progress.steps or 1, progress.step
    bar.refresh()


def _write_details(folder: Path, details: Any) -> None:
    document = {
        "passes": details.passes,
        "skipped": details.skipped,
        "chunks": [
            {"metric": _fit(fit), "drift": asdict(drift)}
            for fit, drift in zip(details.fits, details.drift, strict=True)
        ],
    }
    with replacing_file(folder.with_name(f"{folder.name}_details.json")) as path:
        path.write_text(json.dumps(document, indent=2) + "\n")
    if details.confidence is not None:
        found = details.confidence
        with replacing_file(folder.with_name(f"{folder.name}_confidence.npz")) as path, path.open("wb") as file:
            np.savez_compressed(
                file,
                confidence=found.value.astype(np.float16),
                spread_m=found.spread_m.astype(np.float16),
                spread_rgb=found.spread_rgb.astype(np.float16),
            )


def _fit(fit: Any) -> dict[str, Any]:
    numbers = {name: np.asarray(getattr(fit, name)).tolist() for name in ("scale", "offset", "axis_residual_m")}
    if not fit.refused:
        numbers |= {"condition": fit.condition.tolist(), "inliers": fit.inliers.tolist()}
    return {**numbers, "residual_m": fit.residual_m, "pixels": fit.pixels, "refused": fit.refused}
