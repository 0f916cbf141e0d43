"""`kinema4d train`: train a model on episodes; every stage can be resumed.

kinema4d train --config nano --out runs/nano            codec, latents, network, export
kinema4d train --config nano --out runs/nano --resume   resume after any interruption
kinema4d train --config lifter --stage lifter           depth from one image, see docs/lifting.md
kinema4d train --config detector --stage detector       objects from one image, see docs/detection.md
kinema4d train --config wan14b_lora --dry-run           count parameters and memory, without weights or a GPU
accelerate launch --config_file config/train/accelerate/fsdp_8.yaml -m kinema4d_ros.cli train --config ...
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinema4d_ros.core.errors import ErrorCode, KinemaError, SetupError
from kinema4d_ros.io.files import writing

if TYPE_CHECKING:
    from kinema4d_model.training.config import TrainConfig

__all__ = ["register", "run"]

STAGES = ("codec", "encode", "network", "export")
LIFTER, DETECTOR = "lifter", "detector"
"""Independent stages: they use no result of the others."""


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "train",
        help="train a model on episodes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, help="name of a file in config/train, or a path")
    parser.add_argument("--out", type=Path, help="folder of the run (default: runs/train/NAME)")
    parser.add_argument("--resume", action="store_true", help="resume from the newest checkpoint")
    parser.add_argument(
        "--stage", choices=(*STAGES, LIFTER, DETECTOR), action="append", help="only this stage; may be repeated"
    )
    parser.add_argument("--minutes", type=float, help="save a checkpoint and stop after this time")
    parser.add_argument("--dry-run", action="store_true", help="count parameters, memory and FLOPs, then exit")
    parser.add_argument("--gpus", type=int, help="number of GPUs of the dry run (default: 8 and 32)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train, or count the cost with --dry-run."""
    try:
        from kinema4d_model.training.config import load_config
    except ImportError as error:
        raise SetupError(
            f"package '{error.name}' for training is not installed", hint="make setup TORCH=cpu, or TORCH=cuda"
        ) from None
    config = load_config(arguments.config)
    if arguments.dry_run:
        from kinema4d_model.training.dry_run import dry_run, dry_run_table

        print(dry_run_table(dry_run(config, [arguments.gpus] if arguments.gpus else [8, 32])))
        return 0
    from kinema4d_model.training.stages import run_stages

    out = arguments.out or Path("runs") / "train" / config.name
    alone = {LIFTER, DETECTOR} & set(arguments.stage or ())
    if alone:
        return _train_alone(config, out, arguments, alone)
    with _stop_flag(arguments.minutes) as stop, writing(out):
        progress = run_stages(
            config,
            out,
            stages=tuple(arguments.stage) if arguments.stage else STAGES,
            resume=arguments.resume,
            stop=stop,
            bar=not arguments.quiet,
        )
    if progress is not None and progress.step < config.run.steps:
        print(f"stopped at step {progress.step} of {config.run.steps}; resume with --resume")
    elif "export" in (arguments.stage or STAGES):
        print(f"{out / 'model'}")
    return 0


def _train_alone(config: TrainConfig, out: Path, arguments: argparse.Namespace, alone: set[str]) -> int:
    from kinema4d_model.detection.train import train_detector
    from kinema4d_model.pipeline.lifting.train import train_lifter

    if len(set(arguments.stage)) > 1:
        raise KinemaError(
            f"stages {', '.join(arguments.stage)} are given together",
            expected=f"{' or '.join(sorted(alone))} alone",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    train = train_lifter if LIFTER in alone else train_detector
    with _stop_flag(arguments.minutes) as stop, writing(out):
        progress = train(config, out, resume=arguments.resume, stop=stop, bar=not arguments.quiet)
    if progress.step < config.run.steps:
        print(f"stopped at step {progress.step} of {config.run.steps}; resume with --resume")
    else:
        print(f"{out / 'model'}")
    return 0


@contextmanager
def _stop_flag(minutes: float | None) -> Iterator[Callable[[], bool]]:
    """Yield a function that is True after SIGTERM, the first Ctrl-C, or the given time; a second Ctrl-C interrupts."""
    asked = threading.Event()
    end = None if minutes is None else time.monotonic() + 60 * minutes
    before: dict[int, Any] = {}

    def ask(number: int, _: object) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked.is_set() or (end is not None and time.monotonic() >= end)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
