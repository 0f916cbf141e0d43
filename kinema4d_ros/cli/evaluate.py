"""`kinema4d evaluate`: success rates of policies in the lab and in a world model, and how well the two agree.

kinema4d evaluate --policies expert,off=expert:offset_m=0.03 --runs 50 --models composite,nano --out out/evaluation
kinema4d evaluate --recordings DATASET --models nano              recorded runs of a dataset
kinema4d evaluate --report out/evaluation                         write the report again from the saved trials
kinema4d evaluate --workers 16 --engine ray:HOST:PORT ...         workers on a Ray cluster that shares the folder

A policy is [LABEL=]KIND[:OPTIONS]. Join the options of one policy by "+", because "," separates policies:
off=expert:offset_m=0.03+height_m=0.01. The same command resumes an interrupted evaluation.

The whole setup is checked before the first trial; on an error the exit code is 2 and nothing is written.
Exit code 1: no run has an outcome both in the lab and in a model.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kinema4d_ros.core.errors import ErrorCode, KinemaError, SetupError
from kinema4d_ros.runtime.pool import ENGINES

if TYPE_CHECKING:
    from kinema4d_ros.evaluation.settings import EvaluationSettings
    from kinema4d_ros.evaluation.trial import TrialRecord

__all__ = ["register", "run"]


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "evaluate",
        help="measure success rates of policies in the lab and in a world model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    # Options left at None keep the defaults of EvaluationSettings, which other verbs must not import.
    add("--policies", type=_policies, metavar="SPEC,...", help="such as expert,off=expert:offset_m=0.03")
    add("--scenarios", type=_words, metavar="NAME,...", help="scenarios of the lab (canonical,cluttered,dynamic)")
    add("--runs", type=int, metavar="N", help="scenes of each scenario (50)")
    add(
        "--models",
        type=_words,
        default=["auto"],
        metavar="NAME,...",
        help="composite, carry, draft, draft+nano, presets, package.module:Class, or generator nodes: ros:gpu1, or "
        "ros:gpu1+ros:gpu2 for one model on two nodes (auto)",
    )
    add("--modes", type=_words, metavar="NAME,...", help="open, closed (open)")
    add("--task", help="pick, place or push (pick)")
    add("--seed", type=int, metavar="N", help="seed of the first scene (0)")
    add("--robot", metavar="NAME|FILE", help="a robot's name or file (yam)")
    add("--camera", metavar="FILE", help="calibration file (the demo camera)")
    add("--width", type=int, metavar="PX", help="image width (360)")
    add("--frames", type=int, metavar="N", help="frames of a rollout (49)")
    add("--depth", action="store_true", default=None, help="give the models the measured depth of the first image")
    add("--limit", type=float, dest="limit_s", metavar="S", help="longest episode (30)")
    add("--act-timeout", type=float, dest="act_timeout_s", metavar="S", help="timeout of one policy query (60)")
    add("--checkpoint", action="append", default=[], metavar="MODEL=DIR", help="weights of a preset; may be repeated")
    add("--judge", metavar="NAME", help="judge of predictions: geometric, or vlm:URL,MODEL (geometric)")
    add(
        "--profile",
        metavar="NAME",
        help="physics and camera of the lab: constant, or hidden, drawn per scene (constant)",
    )
    add("--judge-truth", action="store_true", help="also judge the lab's own images, to measure the judge's errors")
    add("--workers", type=int, metavar="N", help="worker processes; 0 = run in this process (1, or one for each node)")
    add("--engine", default="local", help=f"where workers run: {ENGINES} (default: local)")
    add("--retry-failed", action="store_true", help="retry all failed trials, not only those that failed by an outage")
    add("--out", type=Path, default=Path("out/evaluation"), metavar="DIR", help="output folder (out/evaluation)")
    add("--recordings", type=Path, metavar="DATASET", help="evaluate recorded runs instead of running policies")
    add("--split", default="val", help="split of the recordings (val)")
    add("--limit-recordings", type=int, metavar="N", help="the first N recordings only")
    add("--report", type=Path, metavar="DIR", help="only write the report of an evaluation folder")
    add("--strips", type=int, default=60, metavar="N", help="disagreements shown in the report; 0 = all (60)")
    add("--real", type=Path, metavar="CSV", help="outcomes of real trials: policy,scenario,seed,success")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the remaining trials, then write the report."""
    if arguments.strips < 0:
        raise KinemaError(f"strips is {arguments.strips}", expected="0 (all) or more", code=ErrorCode.ARGUMENT_INVALID)
    if arguments.report is not None:
        return _report(arguments, arguments.report)
    if arguments.recordings is not None:
        return _recordings(arguments)
    if not arguments.policies:
        raise KinemaError(
            "no policy is given",
            expected="--policies SPEC,...",
            hint="kinema4d policy list",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    from kinema4d_ros.evaluation.campaign import Campaign
    from kinema4d_ros.evaluation.preflight import check_apart, check_setup
    from kinema4d_ros.evaluation.settings import node_names

    _refuse_ranks()
    settings = _settings(arguments)
    workers = arguments.workers
    if workers is None:
        workers = max(1, *(len(node_names(model)) for model in settings.models))
    setup = check_setup(settings) if workers == 0 else check_apart(settings)
    for note in setup.notes:
        print(f"kinema4d: {note}", file=sys.stderr)
    campaign = Campaign(settings, arguments.out, retry_failed=arguments.retry_failed, provenance=setup.provenance())
    trials, left = len(campaign.trials()), len(campaign.pending())
    print(f"{trials} trials, {trials - left} of them done before")
    campaign.run(workers=workers, engine=arguments.engine, progress=_progress(sys.stdout))
    outages = len(campaign.outages())
    if outages:
        print(f"kinema4d: {outages} trials failed by an outage; run the same command to retry them", file=sys.stderr)
    return _report(arguments, arguments.out)


def _refuse_ranks() -> None:
    """Raise under a launcher of several ranks: each of them would run every trial."""
    world = os.environ.get("WORLD_SIZE", "1")
    if world != "1":
        raise KinemaError(
            f"WORLD_SIZE is {world}: started by a launcher of several ranks",
            expected="one process",
            hint="use --workers N on one machine, or --engine ray:ADDRESS on a cluster",
            code=ErrorCode.ARGUMENT_INVALID,
        )


def _recordings(arguments: argparse.Namespace) -> int:
    if arguments.profile is not None:
        raise KinemaError(
            f"recordings were made before: --profile {arguments.profile} cannot change them",
            expected="--profile only with runs in the lab",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    try:
        from kinema4d_model.assessment.recorded import evaluate_recordings
    except ImportError as error:
        raise SetupError(
            f"package '{error.name}' is not installed", hint="make setup TORCH=cpu, or TORCH=cuda"
        ) from None
    models = _models(arguments)
    if "truth" in models:
        raise KinemaError(
            "recordings have no true images with depth for every frame",
            expected="--judge-truth only with runs in the lab",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    tell = _progress(sys.stdout)
    evaluate_recordings(
        arguments.recordings,
        arguments.split,
        arguments.out,
        models=models,
        checkpoints=_checkpoints(arguments, models),
        limit=arguments.limit_recordings,
        depth=bool(arguments.depth),
        **({"judge": arguments.judge} if arguments.judge else {}),
        progress=lambda record, done: tell(record, done, done),
    )
    return _report(arguments, arguments.out)


def _models(arguments: argparse.Namespace) -> list[str]:
    models = list(arguments.models)
    if "auto" in models:
        from kinema4d_ros.generators import best_preset

        best = best_preset(depth=bool(arguments.depth))
        models = list(dict.fromkeys(best if model == "auto" else model for model in models))
    if arguments.judge_truth and "truth" not in models:
        models.append("truth")
    return models


def _checkpoints(arguments: argparse.Namespace, models: list[str]) -> dict[str, str]:
    checkpoints = {}
    for text in arguments.checkpoint:
        model, equals, folder = text.partition("=")
        if not equals or model not in models:
            raise KinemaError(
                f"--checkpoint {text}",
                expected=f"MODEL=DIR with a model of {', '.join(models)}",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        checkpoints[model] = folder
    return checkpoints


def _settings(arguments: argparse.Namespace) -> EvaluationSettings:
    from kinema4d_ros.evaluation.settings import EvaluationSettings

    models = _models(arguments)
    checkpoints = _checkpoints(arguments, models)
    names = [field.name for field in fields(EvaluationSettings)]
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name, None) is not None}
    return EvaluationSettings(**{**given, "models": models, "checkpoints": checkpoints})


def _report(arguments: argparse.Namespace, folder: Path) -> int:
    from kinema4d_ros.evaluation.report import write_report

    for path in write_report(folder, max_strips=arguments.strips or None, real=arguments.real):
        print(path)
    models = json.loads((folder / "summary.json").read_text())["models"]
    empty = [model["label"] for model in models if not sum(model["overall"]["pairs"].values())]
    for label in empty:
        print(f"kinema4d: no run has an outcome both in the lab and in {label}", file=sys.stderr)
    return 1 if len(empty) == len(models) else 0


def _progress(out: TextIO) -> Callable[[TrialRecord, int, int], None]:
    words = {True: "success", False: "failure", None: "-"}

    def tell(record: TrialRecord, done: int, total: int) -> None:
        models = ", ".join(f"{name} {words[one.success]}" for name, one in record.models.items())
        trouble = record.lab.error or next((one.error for one in record.models.values() if one.error), "")
        trial = record.trial
        where = f"[{done}/{total}] {trial.policy} on {trial.scenario} {trial.seed}"
        print(f"{where}: lab {words[record.lab.success]}, {models} {trouble}".rstrip(" ,"), file=out, flush=True)

    return tell


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _policies(text: str) -> list[str]:
    return [word.replace("+", ",") for word in _words(text)]
