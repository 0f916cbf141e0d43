"""`kinema4d render`: render a trajectory as exact robot pointmaps over a camera image.

Writes into --out: overlay.mp4 (the robot over the image), strip.png (some of its frames side by side),
pointmaps/ (depth and link ids of every frame, see docs/formats.md), frame_NNN.ply (one frame as a point
cloud, camera optical frame, metres) and render.json (inputs, sizes and timing).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from kinema4d_ros import __version__
from kinema4d_ros.calibration import read_camera
from kinema4d_ros.cli.options import add_trajectory_options, read_plan
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, RenderError, TrajectoryError
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.trajectory import FRAMES, JointTrajectory
from kinema4d_ros.io.files import replacing_folder
from kinema4d_ros.io.images import overlay, read_image, strip, studio, write_image
from kinema4d_ros.io.ply import write_ply
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.io.store import save_pointmaps
from kinema4d_ros.io.video import VideoWriter
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot

__all__ = ["register", "run"]

DEMO_TRAJECTORY = "config/demo/pick_and_place.csv"
DEMO_CAMERA = "calibration/demo_lab.yaml"
STRIP_FRAMES = 8
SUMMARY = "render.json"


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "render",
        help="render a trajectory as exact robot pointmaps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--robot", default="yam", metavar="NAME|FILE", help="a robot's name, or a .urdf or .xacro file (default: yam)")
    add(
        "--trajectory",
        type=Path,
        metavar="FILE",
        help="CSV, JSON, NPZ, rosbag2, MCAP or LeRobot folder (default: a demo)",
    )
    add_trajectory_options(parser)
    add("--camera", type=Path, metavar="FILE", help="calibration file (default: the demo camera)")
    add("--image", type=Path, metavar="FILE", help="camera image to draw over (default: a plain studio)")
    add("--alpha", type=float, help="opacity of the robot, 0 to 1 (default: 1, or 0.7 over --image)")
    add(
        "--frames",
        type=int,
        default=FRAMES,
        help=f"frames, uniform in time; 0 keeps the trajectory's own (default: {FRAMES})",
    )
    add("--size", metavar="WxH", help="render at another size, for example 1440x960 (default: the camera's)")
    add(
        "--ply-frame",
        type=int,
        default=-1,
        metavar="N",
        help="frame to write as PLY; negative counts from the end (default: -1)",
    )
    add("--lossless", action="store_true", help="save pointmaps as float32 instead of 0.1 mm depth")
    add("--backend", choices=("auto", "numba", "warp"), default="auto", help="rasteriser (default: auto)")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="device of the Warp rasteriser (default: cpu)")
    add(
        "--out",
        type=Path,
        default=Path("out/render"),
        metavar="DIR",
        help="output folder (default: out/render)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Render, write the results, and print their folder."""
    robot = Robot.load(arguments.robot)
    source = arguments.trajectory or share_path(DEMO_TRAJECTORY)
    trajectory = _trajectory(robot, source, arguments)
    lens = read_camera(arguments.camera or share_path(DEMO_CAMERA), base_frame=robot.base_link)
    image = None if arguments.image is None else lens.rectify(read_image(arguments.image))
    camera = lens.rectified()
    if arguments.size:
        camera = camera.scaled(*_size(arguments.size))
    background = studio(camera) if image is None else _resized(image, camera)
    alpha = (1.0 if image is None else 0.7) if arguments.alpha is None else arguments.alpha
    frame = _frame(arguments.ply_frame, len(trajectory))

    with replacing_folder(arguments.out, is_ours=lambda folder: (folder / SUMMARY).is_file()) as folder:
        with tqdm(total=len(trajectory), desc="rendering", unit="frame") as bar:
            started, cpu = time.perf_counter(), time.process_time()
            sequence = render_pointmaps(
                robot,
                trajectory,
                camera,
                rgb=True,
                backend=arguments.backend,
                device=arguments.device,
                progress=_advance(bar),
            )
            spent = {"wall_s": time.perf_counter() - started, "cpu_s": time.process_time() - cpu}
        with tqdm(total=len(sequence), desc="video", unit="frame") as bar:
            _write_pictures(folder, sequence, background, alpha, trajectory, lambda: bar.update(1))
        print("writing pointmaps ...", flush=True)
        names = [link.name for link in robot.links]
        save_pointmaps(folder / "pointmaps", sequence, lossless=arguments.lossless, link_names=names)
        if sequence.mask[frame].any():
            write_ply(folder / f"frame_{frame:03d}.ply", sequence.xyz[frame], _colours(sequence)[frame])
        else:
            print(f"note: the robot is outside the view in frame {frame}, so no PLY file is written")
        summary = _summary(robot, source, trajectory, sequence, spent)
        (folder / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
    print(f"{arguments.out}: {', '.join(sorted(path.name for path in arguments.out.iterdir()))}")
    return 0


def _trajectory(robot: Robot, source: Path, arguments: argparse.Namespace) -> JointTrajectory:
    trajectory = read_plan(source, robot, arguments)
    for overshoot in trajectory.validate(robot):
        print(f"note: {overshoot} (within the tolerance)")
    return trajectory if arguments.frames == 0 else trajectory.resample(arguments.frames)


def _size(text: str) -> tuple[int, int]:
    try:
        width, height = (int(part) for part in text.lower().split("x"))
    except ValueError:
        raise TrajectoryError(
            f"--size is '{text}'",
            expected="width and height in pixels, for example 1440x960",
            code=ErrorCode.CAMERA_BAD_SIZE,
        ) from None
    return width, height


def _frame(index: int, count: int) -> int:
    if not -count <= index < count:
        raise TrajectoryError(f"--ply-frame is {index}", expected=f"{-count} to {count - 1}")
    return index % count


def _resized(image: NDArray[np.uint8], camera: PinholeCamera) -> NDArray[np.uint8]:
    if image.shape[:2] == (camera.height, camera.width):
        return image
    import cv2

    resized: NDArray[np.uint8] = cv2.resize(image, (camera.width, camera.height), interpolation=cv2.INTER_AREA)
    return resized


def _advance(bar: tqdm[Any]) -> Callable[[int, int], None]:
    def progress(done: int, _total: int) -> None:
        bar.update(done - bar.n)

    return progress


def _colours(sequence: PointmapSequence) -> NDArray[np.uint8]:
    if sequence.rgb is None:
        raise RenderError("the robot was rendered without colours", expected="rgb=True")
    return sequence.rgb


def _write_pictures(
    folder: Path,
    sequence: PointmapSequence,
    background: NDArray[np.uint8],
    alpha: float,
    trajectory: JointTrajectory,
    advance: Callable[[], object],
) -> None:
    colours = _colours(sequence)
    count = len(sequence)
    fps = max((count - 1) / trajectory.duration_s, 1.0) if count > 1 else 1.0
    shown = sorted(set(np.linspace(0, count - 1, min(STRIP_FRAMES, count)).round().astype(int).tolist()))
    pictures, labels = [], []
    with VideoWriter(folder / "overlay.mp4", fps, (background.shape[1], background.shape[0])) as video:
        for index in range(count):
            picture = overlay(background, colours[index], sequence.mask[index], alpha)
            video.write(picture)
            if index in shown:
                pictures.append(picture)
                labels.append(f"{trajectory.times[index] - trajectory.times[0]:.2f} s")
            advance()
    write_image(folder / "strip.png", strip(pictures, columns=min(4, len(pictures)), labels=labels))


def _summary(
    robot: Robot, source: Path, trajectory: JointTrajectory, sequence: PointmapSequence, spent: dict[str, float]
) -> dict[str, Any]:
    depth = sequence.xyz[..., 2]
    covered = sequence.mask.mean(axis=(1, 2))
    return {
        "version": __version__,
        "robot": robot.name,
        "trajectory": str(source),
        "frames": len(sequence),
        "duration_s": trajectory.duration_s,
        "width": sequence.camera.width,
        "height": sequence.camera.height,
        "robot_covers": [float(covered.min()), float(covered.max())],
        "depth_m": None if not covered.any() else [float(np.nanmin(depth)), float(np.nanmax(depth))],
        "rendering": spent,
    }
