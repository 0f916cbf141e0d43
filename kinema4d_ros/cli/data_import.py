"""`kinema4d data import`: its options, and what they mean for the importers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.cli.joint_options import add_joint_options, joint_options
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.io.joint_match import JointOptions
from kinema4d_ros.robot import Robot

__all__ = ["register_import"]


def register_import(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the action to the parser of `kinema4d data`."""
    bring = actions.add_parser("import", help="episodes from what others recorded; goes on where it was stopped")
    add = bring.add_argument
    add("kind", choices=("robo4d", "lerobot", "bag", "rlds"))
    add("source", type=Path, metavar="SOURCE", help="folder, or a bag")
    add("--out", type=Path, required=True, metavar="DIR", help="the dataset's folder")
    add("--frames", type=int, default=49, help="of an episode, uniform in time (default: 49)")
    add("--width", type=int, default=720, help="default: 720")
    add("--height", type=int, default=480, help="default: 480")
    add(
        "--robot",
        default="",
        metavar="NAME|FILE",
        help="whose joints they are (default: yam; for rlds none, so that no joints of another arm are read)",
    )
    add_joint_options(bring)
    add("--camera", type=Path, metavar="FILE", help="calibration of the pictures; without it nothing is metric")
    add(
        "--lifter",
        "--lift",
        default="",
        metavar="shipped|DIR|COMMAND",
        help="gives depth to plain video: the package's own weights, a folder of others, or COMMAND IN OUT",
    )
    add("--table-height", type=float, default=0.0, metavar="M", help="of the table, for --lifter shipped (default: 0)")
    add(
        "--segmenter",
        default="rendered",
        metavar="rendered|classical|sam2|DIR|COMMAND",
        help="finds the robot's pixels: drawn from joints and camera (default), by a segmenter, from a folder of "
        "masks, or by COMMAND IN OUT; see docs/data.md",
    )
    add("--segmenter-weights", type=Path, metavar="DIR", help="of SAM 2")
    add("--segmenter-detector", type=Path, metavar="DIR", help="finds the robot by words where it cannot be drawn")
    add("--view", default="", help="camera of a LeRobot dataset (default: its first)")
    add("--rate", type=float, metavar="HZ", help="steps a second of RLDS (default: the dataset's own, where known)")
    add("--depth-topic", default="", help="of a bag, registered to the pictures (default: camera/depth and its like)")
    add("--actions-topic", default="", help="of a bag's commands (default: *_controller/joint_trajectory)")
    add("--scene-key", default="", metavar="KEY", help="what names the scene: a metadata field, or a pattern in paths")
    add("--val", type=float, default=0.05, metavar="SHARE", help="of scenes held out (default: 0.05)")
    add("--val-episodes", type=int, metavar="N", help="hold out N episodes instead, in whole scenes")
    bring.set_defaults(run=_import)


def _import(arguments: argparse.Namespace) -> int:
    from kinema4d_model.data.importers.collect import Item, collect
    from kinema4d_model.data.importers.lifter import make_lifter
    from kinema4d_model.data.importers.masks import make_mask_source
    from kinema4d_model.data.importers.recording import Missing
    from kinema4d_model.data.importers.run import ImportOptions, items_of

    joints = joint_options(arguments)
    if joints and arguments.kind == "robo4d":
        raise KinemaError(
            f"robo4d has no joints, but {', '.join(joints)} was given",
            expected="neither --joint-map nor --gripper-range",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    name = arguments.robot or ("" if arguments.kind == "rlds" else "yam")
    robot = Robot.load(name) if name else None
    camera = None
    if arguments.camera is not None:
        camera = read_camera(arguments.camera, base_frame="base" if robot is None else robot.base_link)
    options = ImportOptions(
        frames=arguments.frames,
        width=arguments.width,
        height=arguments.height,
        robot=None if robot is None else (name, robot),
        camera=camera,
        lifter=make_lifter(arguments.lifter, arguments.table_height),
        masks=make_mask_source(arguments.segmenter, arguments.segmenter_weights, arguments.segmenter_detector),
        val_share=arguments.val,
        val_episodes=arguments.val_episodes,
        scene_key=arguments.scene_key,
        view=arguments.view,
        depth_topic=arguments.depth_topic,
        actions_topic=arguments.actions_topic,
        rate_hz=arguments.rate,
        joints=JointOptions(**joints),
    )
    with tqdm(total=1, unit="episode", desc="import") as bar:

        def show(done: int, total: int) -> None:
            bar.total, bar.n = total, done
            bar.refresh()

        items: Any = items_of(arguments.kind, arguments.source, options)
        if arguments.kind != "rlds":  # whose items hold their recordings
            listed: list[Item] = list(items)
            items = listed
        said = {**_document(arguments, name, camera), **joints}
        dataset, refused = collect(items, arguments.out, arguments.source.name, progress=show, options=said)
    for note in dataset.document["notes"]:
        print(f"note: {note}")
    for refusal, reason in refused.items():
        print(f"left out {refusal}: {reason}")
    counts = dataset.document["splits"]
    lost = sum(reason.startswith(Missing.MARK) for reason in refused.values())
    print(
        f"{dataset.path}: {', '.join(f'{counts[s]} {s}' for s in dataset.splits)}; "
        f"{len(refused)} of {sum(counts.values()) + len(refused)} left out, {lost} of them missing from the source"
    )
    return 1 if lost or not sum(counts.values()) else 0


def _document(arguments: argparse.Namespace, robot: str, camera: PinholeCamera | None) -> dict[str, Any]:
    """Everything that decides what an episode looks like, and its split, as plain JSON."""
    chosen = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in vars(arguments).items()
        if key in _DECIDING
    }
    calibration = None
    if camera is not None:
        calibration = {
            "width": camera.width,
            "height": camera.height,
            "K": camera.K.tolist(),
            "distortion": [float(v) for v in camera.distortion],
            "base_T_camera": camera.base_T_camera.tolist(),
        }
    return {**chosen, "robot": robot, "camera": calibration}


_DECIDING = (
    *("kind", "frames", "width", "height", "lifter", "table_height", "segmenter", "segmenter_weights"),
    *("segmenter_detector", "view", "rate", "depth_topic", "actions_topic", "scene_key", "val", "val_episodes"),
)
"""Options that an import cannot go on with when they change."""
