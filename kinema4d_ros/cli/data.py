"""`kinema4d data`: make, check, look at and convert training episodes.

make    episodes from the MuJoCo lab; goes on where it was stopped
import  episodes from what others recorded; goes on where it was stopped
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tqdm import tqdm

from kinema4d_ros.cli.data_import import register_import

__all__ = ["register", "run"]


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "data",
        help="make, check, look at and convert training episodes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    make = actions.add_parser("make", help="episodes from the MuJoCo lab")
    add = make.add_argument
    add("--config", default="nano", metavar="NAME|FILE", help="ranges and sizes, config/data/*.yaml (default: nano)")
    add("--out", type=Path, required=True, metavar="DIR", help="the dataset's folder")
    add("--episodes", type=int, default=100, metavar="N", help="of the training split (default: 100)")
    add("--val", type=int, default=0, metavar="N", help="held-out episodes (default: 0)")
    add("--ood", type=int, default=0, metavar="N", help="episodes outside the training ranges (default: 0)")
    add("--workers", type=int, default=1, metavar="N", help="processes (default: 1)")
    add("--seed", type=int, default=0, help="of all randomness (default: 0)")
    add("--failures", action="store_true", help="also nine failures of every demonstration: noise on its motion")
    make.set_defaults(run=_make)

    check = actions.add_parser("check", help="every defect of a dataset by name (then exit code 1), and warnings")
    add = check.add_argument
    add("folder", type=Path, metavar="DIR")
    add("--limit", type=int, metavar="N", help="look into N episodes of each shard (default: all)")
    add("--no-redraw", action="store_true", help="do not draw the robot again to compare: three times faster")
    check.set_defaults(run=_check)

    stats = actions.add_parser("stats", help="how many episodes of what, and how they ended")
    stats.add_argument("folder", type=Path, metavar="DIR")
    stats.add_argument("--json", action="store_true", help="for machines")
    stats.set_defaults(run=_stats)

    sheet = actions.add_parser("sheet", help="a contact sheet, PNG or HTML")
    add = sheet.add_argument
    add("folder", type=Path, metavar="DIR")
    add("--split", default="train", help="default: train")
    add("--task", default="", help="only episodes of this task")
    add("--count", type=int, default=16, metavar="N", help="episodes (default: 16)")
    add(
        "--out", type=Path, default=Path("out/sheet.png"), metavar="FILE", help=".png or .html (default: out/sheet.png)"
    )
    sheet.set_defaults(run=_sheet)

    register_import(actions)

    export = actions.add_parser("export", help="episodes as a LeRobot v3.0 dataset")
    add = export.add_argument
    add("folder", type=Path, metavar="DIR")
    add("--split", default="train", help="default: train")
    add("--out", type=Path, required=True, metavar="DIR", help="the LeRobot dataset's folder")
    add("--fps", type=float, default=10.0, help="its frame rate (default: 10)")
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
        )
    print(f"{dataset.path}: " + ", ".join(f"{dataset.count(s)} {s}" for s in dataset.splits))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from kinema4d_model.data.check import check_dataset
    from kinema4d_model.data.warn import dataset_warnings

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
    from kinema4d_model.data.stats import dataset_stats, stats_table

    stats = dataset_stats(arguments.folder)
    print(json.dumps(stats) if arguments.json else stats_table(stats))
    return 0


def _sheet(arguments: argparse.Namespace) -> int:
    from kinema4d_model.data.sheet import choose_episodes, write_sheet

    chosen = list(choose_episodes(arguments.folder, arguments.split, arguments.count, arguments.task))
    print(f"{write_sheet(chosen, arguments.out)}: {len(chosen)} episodes")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from kinema4d_model.data.dataset_folder import DatasetFolder
    from kinema4d_model.data.lerobot_out import export_lerobot
    from kinema4d_model.data.shards import read_episode

    indices = DatasetFolder.open(arguments.folder).indices(arguments.split)
    chosen = (read_episode(index, i, ()) for index in indices for i in range(len(index.episodes)))
    print(f"{arguments.out}: {export_lerobot(chosen, arguments.out, fps=arguments.fps)} episodes")
    return 0
