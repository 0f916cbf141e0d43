"""`kinema4d cost`: FLOPs and memory of one rollout by stage, against the released recipe of 50 steps x 2 passes.

Counted by torch on the meta device: needs neither the weights nor a GPU.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from kinema4d_ros.cli.options import add_model_options, sampler_options, speed_options
from kinema4d_ros.core.errors import ErrorCode, KinemaError

__all__ = ["register", "run"]


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "cost",
        help="count FLOPs and memory of a rollout",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_options(parser, "wan14b")
    parser.add_argument("--frames", type=int, help="frames of the rollout (default: the preset's)")
    parser.add_argument("--size", metavar="WxH", help="size of the network's images (default: the preset's)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Count the cost and print it."""
    from kinema4d_model.checkpoints.loading import with_options
    from kinema4d_model.cost import cost_table, official, rollout_cost
    from kinema4d_model.preset import load_preset

    preset = load_preset(arguments.preset)
    if arguments.frames or arguments.size:
        width, height = _size(arguments.size) if arguments.size else (preset.width, preset.height)
        preset = preset.with_size(arguments.frames or preset.frames, height, width)
    preset = with_options(preset, sampler_options(arguments), speed_options(arguments))
    cost, reference = rollout_cost(preset), rollout_cost(official(preset))
    if arguments.json:
        print(json.dumps({"rollout": _numbers(cost), "official": _numbers(reference)}))
    else:
        print(cost_table(cost, reference))
    return 0


def _size(text: str) -> tuple[int, int]:
    try:
        width, height = (int(part) for part in text.lower().split("x"))
    except ValueError:
        raise KinemaError(
            f"--size is '{text}'", expected="width x height, for example 720x480", code=ErrorCode.ARGUMENT_INVALID
        ) from None
    return width, height


def _numbers(cost: Any) -> dict[str, Any]:
    stages = {
        stage.name: {
            "flops": stage.flops,
            "runs": stage.runs,
            "weight_bytes": stage.weight_bytes,
            "activation_bytes": stage.activation_bytes,
            "device_bytes": stage.device_bytes,
        }
        for stage in cost.stages
    }
    return {"stages": stages, "flops": cost.flops, "weight_bytes": cost.weight_bytes, "peak_bytes": cost.peak_bytes}
