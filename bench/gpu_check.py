"""One page from a GPU: time and memory of a rollout by option, and which normalisation the weights understand.

    kinema4d fetch-weights                                     the official weights
    python bench/gpu_check.py                                  wan14b_pm, as shipped and with every option
    python bench/gpu_check.py --image I --trajectory T --camera C          the same, ranked on a clip of your own
    python bench/gpu_check.py --preset nano --random-weights   any preset, without weights
    python bench/gpu_check.py --preset tiny --random-weights --device cpu --rows none     a smoke test on a CPU

Prints rows for docs/model.md, the normalisations of the pointmap ranked by the robot's residual, and one line of JSON.
Not yet run on a GPU: the development machine has none. Every row is a separate rollout in this process; the first step
is a warm-up and is not counted. A combination that fails prints its error, and the next one follows.

The ranking predicts one clip with each normalisation. The network saw the robot normalised in the same way, so how far
its own robot is from the exact one, in metres after the fit, says which one it was trained with. A clip of your own is
an image, a trajectory that starts in it and its camera; the default is the demonstration in the lab. Two or more GPUs:

    torchrun --nproc-per-node 2 bench/gpu_check.py --rows parallel
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from kinema4d_model.pipeline.inputs import NetworkInputs
    from kinema4d_model.preset import Preset
    from kinema4d_ros.generators import GenerateRequest

ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "official": ({"kind": "unipc", "steps": 50, "guidance": "compat", "guidance_scale": 5.0}, {"dtype": "bfloat16"}),
    "one pass": ({"kind": "unipc", "steps": 50, "guidance": "none"}, {"dtype": "bfloat16"}),
    "cache": ({"kind": "unipc", "steps": 50, "guidance": "none"}, {"dtype": "bfloat16", "cache_threshold": 0.08}),
    "8 steps": ({"kind": "euler", "steps": 8, "guidance": "none"}, {"dtype": "bfloat16"}),
    "4 steps": ({"kind": "euler", "steps": 4, "guidance": "none"}, {"dtype": "bfloat16"}),
    "compile": ({"kind": "euler", "steps": 8, "guidance": "none"}, {"dtype": "bfloat16", "compile": True}),
    "cudnn": ({"kind": "euler", "steps": 8, "guidance": "none"}, {"dtype": "bfloat16", "attention": "_native_cudnn"}),
    "flash": ({"kind": "euler", "steps": 8, "guidance": "none"}, {"dtype": "bfloat16", "attention": "flash"}),
    "sage": ({"kind": "euler", "steps": 8, "guidance": "none"}, {"dtype": "bfloat16", "attention": "sage"}),
    "24 GB": ({"kind": "euler", "steps": 8, "guidance": "none"},
              {"dtype": "bfloat16", "quantise": "int8", "offload": "model"}),
    "fp8": ({"kind": "euler", "steps": 8, "guidance": "none"},
            {"dtype": "bfloat16", "quantise": "fp8", "offload": "model"}),
    "group offload": ({"kind": "euler", "steps": 8, "guidance": "none"},
                      {"dtype": "bfloat16", "offload": "group", "tiling": True}),
}  # fmt: skip
PARALLEL = "parallel"


def random_inputs(preset: Preset) -> NetworkInputs:
    from kinema4d_model.pipeline.inputs import NetworkInputs

    rng = np.random.default_rng(0)
    shape = (preset.frames, preset.height, preset.width)
    mask = np.zeros(shape, bool)
    mask[:, shape[1] // 4 : shape[1] // 2, shape[2] // 4 : shape[2] // 2] = True
    pictures = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
    points = rng.random((*shape, 3), dtype=np.float32)
    return NetworkInputs(
        pictures[0], pictures * mask[..., None], points, mask, pictures, points, np.zeros((2, 3)), preset.frames
    )


def timed(work: Any) -> tuple[float, Any]:
    torch.cuda.synchronize()
    started = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return time.perf_counter() - started, result


def measure(preset: Preset, checkpoint: str, random_weights: bool, counted: int) -> dict[str, Any]:
    """Load, warm up, and time every stage of one rollout."""
    from kinema4d_model.checkpoints.bundle import ModelBundle
    from kinema4d_model.checkpoints.loading import load_bundle
    from kinema4d_model.pipeline.kinema_pipeline import KinemaPipeline

    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    bundle = ModelBundle.from_preset(preset) if random_weights else load_bundle(preset, checkpoint)
    pipeline = KinemaPipeline(bundle, device="cuda")
    pipeline.warm_up()
    torch.cuda.reset_peak_memory_stats()
    inputs = random_inputs(preset)
    encode_s, encoded = timed(lambda: pipeline.encode(inputs, 0))
    sample_s, (latents, passes, skipped) = timed(lambda: pipeline.sample(encoded, 0))
    decode_s, _ = timed(lambda: pipeline.decode(latents, inputs.frames))
    return {
        "encode_s": encode_s,
        "sample_s": sample_s,
        "decode_s": decode_s,
        "total_s": encode_s + sample_s + decode_s,
        "passes": passes,
        "skipped": skipped,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
        "reserved_gb": torch.cuda.max_memory_reserved() / 1e9,
        "tflops_per_s": counted / (encode_s + sample_s + decode_s) / 1e12,
    }


def clip(arguments: argparse.Namespace, frames: int) -> GenerateRequest:
    """Make the request of the given clip, or of the demonstration in the lab."""
    from kinema4d_ros import Robot, read_camera, read_trajectory
    from kinema4d_ros.generators import GenerateRequest
    from kinema4d_ros.io.images import read_image
    from kinema4d_ros.io.resources import share_path
    from kinema4d_ros.lab import LabCamera, LabSimulation
    from kinema4d_ros.render import render_pointmaps

    robot = Robot.load(arguments.robot)
    camera = read_camera(arguments.camera or share_path("calibration/demo_lab.yaml")).rectified()
    motion = read_trajectory(arguments.trajectory or share_path("config/demo/pick_and_place.csv"), robot)
    if arguments.image:
        image = read_image(arguments.image)
    else:
        image = LabCamera(robot, camera).capture(LabSimulation("canonical", 3, robot).state()).rgb
    drawn = render_pointmaps(robot, motion.resample(frames), camera, rgb=True)
    return GenerateRequest(image, drawn)


def rank_normalisations(preset: Preset, arguments: argparse.Namespace) -> dict[str, Any]:
    """Predict one clip with every normalisation; print them from the smallest residual of the robot on."""
    from kinema4d_model.checkpoints.bundle import ModelBundle
    from kinema4d_model.checkpoints.loading import load_bundle
    from kinema4d_model.pipeline.backend import DiffusionGenerator
    from kinema4d_model.pipeline.normalise import NORMALISATIONS, describe_normalisation

    random = arguments.random_weights
    bundle = ModelBundle.from_preset(preset) if random else load_bundle(preset, arguments.checkpoint)
    generator = DiffusionGenerator(bundle=bundle, device=arguments.device)
    request = clip(arguments, preset.frames)
    found: dict[str, Any] = {}
    for kind in NORMALISATIONS:
        try:
            other = generator.with_condition(normalisation=kind)
            other.generate(request)
        except Exception as error:
            found[kind] = {"error": f"{type(error).__name__}: {error}"}
            continue
        details = other.details
        assert details is not None
        found[kind] = {
            "residual_mm": 1000 * max(fit.residual_m for fit in details.fits),
            "axis_mm": (1000 * details.fits[0].axis_residual_m).round(2).tolist(),
            "inliers": float(details.fits[0].inliers.min()),
            "refused": details.fits[0].refused,
        }

    def order(kind: str) -> tuple[bool, bool, float]:
        row = found[kind]
        return "error" in row, bool(row.get("refused")), row.get("residual_mm", 0.0)

    ranked = sorted(found, key=order)
    print("| rank | normalisation | robot's residual | x, y, z | inliers | fit |")
    print("|---|---|---|---|---|---|")
    for place, kind in enumerate(ranked, 1):
        row = found[kind]
        if "error" in row:
            print(f"| {place} | {kind} | {row['error'][:100]} | | | |")
            continue
        axes = ", ".join(f"{value:.1f}" for value in row["axis_mm"])
        print(
            f"| {place} | {describe_normalisation(kind)} | {row['residual_mm']:.1f} mm | {axes} mm | "
            f"{row['inliers']:.0%} | {row['refused'] or 'accepted'} |"
        )
    if random:
        print("Random weights predict nothing: this ranking says nothing about a model.")
    return {"ranked": ranked, "clip": str(arguments.image or "lab"), "by_normalisation": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="wan14b_pm")
    parser.add_argument("--checkpoint", default="", help="folder of the weights (default: the preset's own)")
    parser.add_argument("--random-weights", action="store_true", help="time an untrained network")
    parser.add_argument(
        "--rows", help=f"some of: {', '.join([*ROWS, PARALLEL])} (default: all but {PARALLEL}), or none"
    )
    parser.add_argument("--device", default="cuda", help="of the ranking; the rows always need cuda")
    parser.add_argument("--no-normalisations", action="store_true", help="leave out the ranking")
    parser.add_argument("--image", type=Path, help="first image of the clip (default: the lab)")
    parser.add_argument("--trajectory", type=Path, help="of the clip; starts in the image")
    parser.add_argument("--camera", type=Path, help="calibration of the clip's camera")
    parser.add_argument("--robot", default="yam", help="robot of the clip")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and (arguments.device != "cpu" or arguments.rows != "none"):
        print("gpu_check needs a CUDA device, but torch finds none; run `kinema4d doctor`", file=sys.stderr)
        return 1
    from kinema4d_model.checkpoints.loading import with_options
    from kinema4d_model.cost import rollout_cost
    from kinema4d_model.preset import load_preset

    world = int(os.environ.get("WORLD_SIZE", "1"))
    rows = dict(ROWS)
    rows[PARALLEL] = (ROWS["8 steps"][0], {"dtype": "bfloat16", "context_parallel": world})
    names = arguments.rows.split(",") if arguments.rows else list(ROWS)
    if arguments.rows == "none":
        names = []
    base = load_preset(arguments.preset)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{base.name} on {device}, torch {torch.__version__}, CUDA {torch.version.cuda}, {world} process(es)")
    if names:
        print("| row | encode | sample | decode | total | passes (skipped) | peak memory | counted |")
        print("|---|---|---|---|---|---|---|---|")
    results: dict[str, Any] = {}
    for name in names:
        sampler, speed = rows[name.strip()]
        preset = with_options(base, sampler, speed)
        counted = rollout_cost(replace(preset, speed=replace(preset.speed, tiling=False)))
        try:
            found = measure(preset, arguments.checkpoint, arguments.random_weights, counted.flops)
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"}
            print(f"| {name} | {results[name]['error'][:100]} | | | | | | |", flush=True)
            continue
        results[name] = found
        print(
            f"| {name} | {found['encode_s']:.1f} s | {found['sample_s']:.1f} s | {found['decode_s']:.1f} s | "
            f"{found['total_s']:.1f} s | {found['passes']} ({found['skipped']}) | {found['peak_gb']:.1f} GB | "
            f"{counted.flops / 1e15:.1f} PFLOPs, {counted.peak_bytes / 1e9:.1f} GB |",
            flush=True,
        )
    ranking = None if arguments.no_normalisations or base.condition.carry else rank_normalisations(base, arguments)
    result = {"preset": base.name, "device": device, "torch": torch.__version__, "rows": results}
    print(json.dumps({**result, "normalisations": ranking}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
