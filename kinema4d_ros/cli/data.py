"""`kinema4d data`: make, check, look at and convert training episodes.

make    episodes from the MuJoCo lab; goes on where it was stopped
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tqdm import tqdm

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
    make.set_defaults(run=_make)


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
            bar.n = done
            bar.refresh()

        dataset = make_dataset(
            load_config(arguments.config), arguments.out, counts, arguments.seed, arguments.workers, show
        )
    print(f"{dataset.path}: " + ", ".join(f"{dataset.count(s)} {s}" for s in dataset.splits))
    return 0
