"""`kinema4d data`: make, check, show and convert training episodes.

make    record episodes in the MuJoCo lab; resumes an interrupted run
check   list every defect of a dataset
stats   count episodes by task and outcome
sheet   draw a contact sheet of episodes
import  convert Robo4D, LeRobot, rosbag2 or RLDS recordings to episodes; resumes an interrupted run
export  write episodes as a LeRobot v3.0 dataset
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.cli.options import add_joint_options, joint_options
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.io.joint_match import JointOptions
from kinema4d_ros.robot import Robot
from kinema4d_ros.runtime.pool import ENGINES

__all__ = ["register", "register_import", "run"]


def register_import(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `import` to the parser of `kinema4d data`."""
    bring = actions.add_parser("import", help="convert recordings to episodes; resumes an interrupted run")
    add = bring.add_argument
    add("kind", choices=("robo4d", "lerobot", "bag", "rlds"))
    add("source", type=Path, metavar="SOURCE", help="folder or bag of recordings")
    add("--out", type=Path, required=True, metavar="DIR", help="the dataset's folder")
    add("--frames", type=int, default=49, help="frames of an episode, uniform in time (default: 49)")
    add("--width", type=int, default=720, help="image width, pixels (default: 720)")
    add("--height", type=int, default=480, help="image height, pixels (default: 480)")
    add(
        "--robot",
        default="",
        metavar="NAME|FILE",
        help="the recorded robot (default: yam; for rlds none, so that joints of another arm are not read)",
    )
    add_joint_options(bring)
    add("--camera", type=Path, metavar="FILE", help="calibration of the images; without it nothing is metric")
    add(
        "--lifter",
        "--lift",
        default="",
        metavar="shipped|DIR|COMMAND",
        help="depth estimator for plain video: the shipped weights, a folder of other weights, or COMMAND IN OUT",
    )
    add(
        "--table-height",
        type=float,
        default=0.0,
        metavar="M",
        help="height of the table, for --lifter shipped (default: 0)",
    )
    add(
        "--segmenter",
        default="rendered",
        metavar="rendered|classical|sam2|DIR|COMMAND",
        help="source of robot masks: rendered from joints and camera (default), a segmenter, a folder of masks, "
        "or COMMAND IN OUT; see docs/data.md",
    )
    add("--segmenter-weights", type=Path, metavar="DIR", help="checkpoint folder of SAM 2")
    add("--segmenter-detector", type=Path, metavar="DIR", help="text detector, used where the robot cannot be rendered")
    add("--view", default="", help="camera of a LeRobot dataset (default: its first)")
    add("--rate", type=float, metavar="HZ", help="steps per second of RLDS (default: the dataset's rate, if known)")
    add(
        "--depth-topic",
        default="",
        help="depth topic of a bag, registered to the images (default: camera/depth and similar)",
    )
    add("--actions-topic", default="", help="command topic of a bag (default: *_controller/joint_trajectory)")
    add("--scene-key", default="", metavar="KEY", help="scene name: a metadata field, or a pattern in paths")
    add("--val", type=float, default=0.05, metavar="SHARE", help="share of scenes held out (default: 0.05)")
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
        if arguments.kind != "rlds":  # RLDS items hold their recordings and stay a stream
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
    """Collect all options that determine an episode's content and its split, as plain JSON."""
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
"""Options that must not change when an import is resumed."""


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "data",
        help="make, check, show and convert training episodes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    make = actions.add_parser("make", help="record episodes in the MuJoCo lab")
    add = make.add_argument
    add("--config", default="nano", metavar="NAME|FILE", help="ranges and sizes, config/data/*.yaml (default: nano)")
    add("--out", type=Path, required=True, metavar="DIR", help="the dataset's folder")
    add("--episodes", type=int, default=100, metavar="N", help="episodes of the training split (default: 100)")
    add("--val", type=int, default=0, metavar="N", help="held-out episodes (default: 0)")
    add("--ood", type=int, default=0, metavar="N", help="episodes outside the training ranges (default: 0)")
    add("--workers", type=int, default=1, metavar="N", help="worker processes (default: 1)")
    add("--engine", default="local", help=f"where workers run: {ENGINES} (default: local)")
    add("--seed", type=int, default=0, help="random seed (default: 0)")
    add(
        "--failures",
        action="store_true",
        help="also record nine failures of every demonstration, by adding noise to its motion",
    )
    make.set_defaults(run=_make)

    check = actions.add_parser("check", help="list every defect of a dataset (exit code 1 if any) and warnings")
    add = check.add_argument
    add("folder", type=Path, metavar="DIR")
    add("--limit", type=int, metavar="N", help="check N episodes of each shard (default: all)")
    add("--no-redraw", action="store_true", help="do not render the robot again for comparison; three times faster")
    check.set_defaults(run=_check)

    stats = actions.add_parser("stats", help="count episodes by task and outcome")
    stats.add_argument("folder", type=Path, metavar="DIR")
    stats.add_argument("--json", action="store_true", help="print JSON")
    stats.set_defaults(run=_stats)

    sheet = actions.add_parser("sheet", help="draw a contact sheet, PNG or HTML")
    add = sheet.add_argument
    add("folder", type=Path, metavar="DIR")
    add("--split", default="train", help="default: train")
    add("--task", default="", help="only episodes of this task")
    add("--count", type=int, default=16, metavar="N", help="number of episodes (default: 16)")
    add(
        "--out", type=Path, default=Path("out/sheet.png"), metavar="FILE", help=".png or .html (default: out/sheet.png)"
    )
    sheet.set_defaults(run=_sheet)

    register_import(actions)

    export = actions.add_parser("export", help="write episodes as a LeRobot v3.0 dataset")
    add = export.add_argument
    add("folder", type=Path, metavar="DIR")
    add("--split", default="train", help="default: train")
    add("--out", type=Path, required=True, metavar="DIR", help="the LeRobot dataset's folder")
    add("--fps", type=float, default=10.0, help="frame rate of the result (default: 10)")
    export.set_defaults(run=_export)


def run(arguments: argparse.Namespace) -> int:
    """Run the chosen action."""
    return int(arguments.run(arguments))


def _make(arguments: argparse.Namespace) -> int:
    from kinema4d_model.data.lab_config import load_config
    from kinema4d_model.data.make import make_dataset

    counts = {"train": arguments.episodes, "val": arguments.val, "ood": arguments.ood}
    with tqdm(total=sum(counts.values()), unit="episode", desc="make", mininterval=1.0) as bar:

        def show(done: int, total: int) -> None:
            if bar.n == 0 and done < total:
                bar.initial = done
            bar.total, bar.n = total, done
            bar.refresh()

        dataset = make_dataset(
            load_config(arguments.config),
            arguments.out,
            counts,
            arguments.seed,
            arguments.workers,
            show,
            failures=arguments.failures,
            engine=arguments.engine,
        )
    print(f"{dataset.path}: " + ", ".join(f"{dataset.count(s)} {s}" for s in dataset.splits))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from kinema4d_model.data.check import check_dataset, dataset_warnings

    with tqdm(total=1, unit="shard", desc="check", leave=False) as bar:

        def show(done: int, total: int) -> None:
            bar.total, bar.n = total, done
            bar.refresh()

        defects = check_dataset(arguments.folder, limit=arguments.limit, redraw=not arguments.no_redraw, progress=show)
    for defect in defects:
        print(defect)
    for warning in dataset_warnings(arguments.folder):
        print(f"warning: {warning}")
    print(f"{arguments.folder}: " + (f"{len(defects)} defects" if defects else "no defects"))
    return 1 if defects else 0


def _stats(arguments: argparse.Namespace) -> int:
    from kinema4d_model.data.overview import dataset_stats, stats_table

    stats = dataset_stats(arguments.folder)
    print(json.dumps(stats) if arguments.json else stats_table(stats))
    return 0


def _sheet(arguments: argparse.Namespace) -> int:
    from kinema4d_model.data.overview import choose_episodes, write_sheet

    chosen = list(choose_episodes(arguments.folder, arguments.split, arguments.count, arguments.task))
    print(f"{write_sheet(chosen, arguments.out)}: {len(chosen)} episodes")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from kinema4d_model.data.dataset_folder import DatasetFolder
    from kinema4d_model.data.lerobot_export import export_lerobot
    from kinema4d_model.data.shards import read_episode

    indices = DatasetFolder.open(arguments.folder).indices(arguments.split)
    chosen = (read_episode(index, i, ()) for index in indices for i in range(len(index.episodes)))
    print(f"{arguments.out}: {export_lerobot(chosen, arguments.out, fps=arguments.fps)} episodes")
    return 0
