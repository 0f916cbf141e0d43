"""`kinema4d assess`: score a trained model on held-out episodes, against baselines without learning.

kinema4d assess --data runs/data/nano --split val --out out/assess                the shipped nano
kinema4d assess --data runs/data/nano --split ood --checkpoint runs/nano/model     another checkpoint
kinema4d assess --data runs/data/nano --twins 40                                   test whether it uses the image
kinema4d assess --data runs/data/nano --degrade drop --degrade noise=0.02          also with a degraded robot
kinema4d assess --data runs/data/nano --ablation no_mask --ablation soft_50        also with another soft mask
kinema4d assess --data runs/data/nano --workers 4                                  four episodes at a time
kinema4d assess --data runs/data/nano --split train --leak                         test whether commands reveal outcomes
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

from kinema4d_ros.cli.options import add_model_options, sampler_options, speed_options
from kinema4d_ros.core.degrade import Degradation
from kinema4d_ros.core.errors import SetupError
from kinema4d_ros.generators.spec import SPECS, load_generator
from kinema4d_ros.runtime.pool import ENGINES

__all__ = ["register", "run"]


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "assess",
        help="score a trained model on held-out episodes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="a dataset of `kinema4d data make`")
    parser.add_argument("--split", default="val", help="split of the dataset (default: val)")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N episodes only")
    parser.add_argument(
        "--depth", action="store_true", help="also give the model the measured depth of the first frame"
    )
    parser.add_argument(
        "--twins", type=int, default=0, metavar="N", help="also N picks with the target moved, and removed"
    )
    parser.add_argument(
        "--degrade",
        action="append",
        metavar="NAME[=VALUE]",
        help="also degrade the robot pointmaps given to the predictors: drop (share), noise (metres), shift (pixels) "
        "or rotate (degrees); may be repeated",
    )
    parser.add_argument(
        "--ablation",
        action="append",
        metavar="NAME",
        help="also the model with a row of the paper's ablation table that needs no training: no_mask, soft_0, "
        "soft_10, soft_20, soft_50, soft_70; may be repeated",
    )
    parser.add_argument(
        "--leak", action="store_true", help="only test how well commands alone predict the outcome; needs no model"
    )
    parser.add_argument(
        "--strips",
        type=int,
        default=8,
        metavar="N",
        help="image strips of the worst and the best episodes (default: 8)",
    )
    parser.add_argument(
        "--config", default="nano", metavar="NAME|FILE", help="configuration of the dataset, for --twins"
    )
    parser.add_argument("--out", type=Path, default=Path("out/assess"), metavar="DIR", help="default: out/assess")
    parser.add_argument(
        "--workers", type=int, default=0, metavar="N", help="worker processes; 0 = run in this process (default: 0)"
    )
    parser.add_argument("--engine", default="local", help=f"where workers run: {ENGINES} (default: local)")
    parser.add_argument("--checkpoint", default="", metavar="DIR", help="weights (default: the preset's own)")
    parser.add_argument("--allow-base", action="store_true", help="without an adapter assess the base model alone")
    add_model_options(parser, "nano", SPECS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Predict the episodes, compare with the truth, and write the report."""
    if arguments.leak:
        return _leak(arguments)
    try:
        from kinema4d_model.assessment.report import write_assessment
    except ImportError as error:
        raise SetupError(
            f"package '{error.name}' is not installed", hint="make setup TORCH=cpu, or TORCH=cuda"
        ) from None
    degradations = {one.label: one for one in map(Degradation.parse, arguments.degrade or ())}
    # Called in every worker; an absolute folder, since workers of a cluster start elsewhere.
    load = functools.partial(
        load_generator,
        arguments.preset,
        checkpoint=str(Path(arguments.checkpoint).expanduser().absolute()) if arguments.checkpoint else "",
        allow_base=arguments.allow_base or None,
        sampler=sampler_options(arguments),
        speed=speed_options(arguments),
    )
    return write_assessment(
        load,
        arguments.data,
        arguments.split,
        arguments.out,
        limit=arguments.limit,
        depth=arguments.depth,
        twins=arguments.twins,
        strips=arguments.strips,
        config=arguments.config,
        degradations=tuple(degradations.values()),
        ablations=tuple(dict.fromkeys(arguments.ablation or ())),
        workers=arguments.workers,
        engine=arguments.engine,
    )


def _leak(arguments: argparse.Namespace) -> int:
    try:
        from kinema4d_model.assessment.leak import leak_table
        from kinema4d_model.assessment.run import episodes_of
    except ImportError as error:
        raise SetupError(
            f"package '{error.name}' is not installed", hint="make setup TORCH=cpu, or TORCH=cuda"
        ) from None
    table = leak_table(episodes_of(arguments.data, arguments.split, arguments.limit))
    print(table.text())
    return 1 if table.leaks else 0
