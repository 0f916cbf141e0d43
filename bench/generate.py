"""CPU time of a rollout of the learned generator by stage, and the effect of each option.

    python bench/generate.py              nano: 49 frames for a camera of 720 x 480
    python bench/generate.py --quick      the tiny preset, one round: a smoke test

Weights are random unless --checkpoint names a folder. Times do not depend on them, except for the step cache,
whose skips depend on the network's output. "latents differ" is the change of the result by an option; random
weights ignore the robot, so compat changes nothing then. Options alternate with the plain pipeline in the same
process, the best round of each counts, and every ratio is against the plain pipeline of the same run: below 1 is
faster. CPU seconds are user + system of the whole process. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.checkpoints.loading import load_bundle
from kinema4d_model.pipeline.backend import DiffusionGenerator
from kinema4d_model.pipeline.inputs import prepare_inputs, shrink_request
from kinema4d_model.pipeline.kinema_pipeline import KinemaPipeline
from kinema4d_model.pipeline.session import chunk_slices, finish, metres, part_of
from kinema4d_model.preset import Preset, load_preset
from kinema4d_ros.calibration import read_camera
from kinema4d_ros.generators import GenerateRequest
from kinema4d_ros.generators.composite import CompositeGenerator
from kinema4d_ros.io.images import studio
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.io.trajectories import read_trajectory
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot

OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "1 step": ({"steps": 1}, {}),
    "8 steps": ({"steps": 8}, {}),
    "unipc": ({"kind": "unipc"}, {}),
    "guidance compat": ({"guidance": "compat"}, {}),
    "cache 0.1": ({}, {"cache_threshold": 0.1}),
    "int8 weights": ({}, {"quantise": "int8"}),
    "fp8 weights": ({}, {"quantise": "fp8"}),
    "bfloat16": ({}, {"dtype": "bfloat16"}),
    "attention math": ({}, {"attention": "_native_math"}),
    "codec in tiles": ({}, {"tiling": True}),
    "offload model": ({}, {"offload": "model"}),
}
QUICK = ["8 steps", "cache 0.1", "int8 weights"]


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Clock:
    """Smallest wall and CPU seconds of named stages."""

    def __init__(self) -> None:
        self.best: dict[str, tuple[float, float]] = {}

    def run(self, name: str, work: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), cpu_seconds()
        result = work()
        spent = (time.perf_counter() - wall, cpu_seconds() - cpu)
        before = self.best.get(name, (float("inf"), float("inf")))
        self.best[name] = (min(before[0], spent[0]), min(before[1], spent[1]))
        return result


def demo_request(frames: int) -> GenerateRequest:
    """Make a request from the demo's pick and place in front of a plain studio, 720 x 480."""
    robot = Robot.load("yam")
    camera = read_camera(share_path("calibration/demo_lab.yaml"), base_frame=robot.base_link).rectified()
    plan = read_trajectory(share_path("config/demo/pick_and_place.csv"), robot).resample(frames)
    return GenerateRequest(studio(camera), render_pointmaps(robot, plan, camera, rgb=True))


def bundle_of(preset: Preset, checkpoint: str) -> ModelBundle:
    return load_bundle(preset, checkpoint) if checkpoint else ModelBundle.from_preset(preset)


def stages(pipeline: KinemaPipeline, request: GenerateRequest, rounds: int) -> dict[str, tuple[float, float]]:
    """Time every stage of the first chunk, and the whole chunk."""
    clock = Clock()
    preset, composite = pipeline.preset, CompositeGenerator()
    for _ in range(rounds):

        def prepare() -> Any:
            small = shrink_request(request, preset.width, preset.height)
            return small, prepare_inputs(
                small, composite, preset.codec.temporal_factor, preset.condition, preset.frames
            )[0]

        small, inputs = clock.run("inputs", prepare)
        encoded = clock.run("encode", lambda i=inputs: pipeline.encode(i, 0))
        latents, *_ = clock.run("sample", lambda e=encoded: pipeline.sample(e, 0))
        prediction = clock.run("decode", lambda x=latents, i=inputs: pipeline.decode(x, i.frames))

        def output(prediction: Any = prediction, small: Any = small, inputs: Any = inputs) -> Any:
            return finish(metres(prediction, inputs, small)[0], request.robot)

        clock.run("output", output)
    return clock.best


def options(
    preset: Preset, checkpoint: str, request: GenerateRequest, rounds: int, names: list[str]
) -> dict[str, dict[str, Any]]:
    """Time encode, sample and decode with each option, as a ratio to the plain pipeline in the same rounds."""
    small = shrink_request(request, preset.width, preset.height)
    inputs, _ = prepare_inputs(
        small, CompositeGenerator(), preset.codec.temporal_factor, preset.condition, preset.frames
    )
    plain = KinemaPipeline(bundle_of(preset, checkpoint), device="cpu")
    reference = plain.sample(plain.encode(inputs, 0), 0)[0]
    found = {}
    for name in names:
        sampler, speed = OPTIONS[name]
        changed = KinemaPipeline(
            bundle_of(preset, checkpoint),
            sampler=replace(preset.sampler, **sampler),
            speed=replace(preset.speed, **speed),
            device="cpu",
        )
        latents = changed.sample(changed.encode(inputs, 0), 0)[0]
        clock = Clock()
        for _ in range(rounds):
            clock.run("plain", lambda: plain(inputs, 0))
            prediction = clock.run("option", lambda c=changed: c(inputs, 0))
        found[name] = {
            "cpu_ratio": clock.best["option"][1] / clock.best["plain"][1],
            "wall_ratio": clock.best["option"][0] / clock.best["plain"][0],
            "latent_difference": float((latents - reference).norm() / reference.norm()),
            "passes": prediction.passes,
            "skipped": prediction.skipped,
        }
        one = found[name]
        print(
            f"  {name:<18} {one['cpu_ratio']:6.2f} x CPU  {one['wall_ratio']:6.2f} x wall  "
            f"latents differ by {one['latent_difference']:8.2%}  {one['passes']} passes, {one['skipped']} skipped",
            flush=True,
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="nano_vae")
    parser.add_argument("--checkpoint", default="", help="folder of weights (default: random ones)")
    parser.add_argument("--frames", type=int, default=49)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.preset, arguments.frames, arguments.rounds, arguments.threads = "tiny", 10, 1, 1
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    preset = load_preset(arguments.preset)
    request = demo_request(arguments.frames)
    parts = chunk_slices(len(request), preset.frames)
    first = GenerateRequest(request.image, part_of(request.robot, parts[0]))
    size = f"{preset.frames} x {preset.height} x {preset.width}"
    print(
        f"{preset.name}: {size}, {preset.sampler.steps} steps, {arguments.threads} threads, torch {torch.__version__}"
    )

    pipeline = KinemaPipeline(bundle_of(preset, arguments.checkpoint), device="cpu")
    pipeline.warm_up()
    stages(pipeline, first, 1)
    best = stages(pipeline, first, arguments.rounds)
    wall, cpu = (sum(values[i] for values in best.values()) for i in (0, 1))
    print(f"one chunk of {len(first)} frames, camera {request.camera.width} x {request.camera.height}:")
    for name, (stage_wall, stage_cpu) in best.items():
        print(f"  {name:<10} {1000 * stage_wall:8.0f} ms wall {1000 * stage_cpu:8.0f} ms CPU {stage_cpu / cpu:7.1%}")
    print(f"  {'chunk':<10} {1000 * wall:8.0f} ms wall {1000 * cpu:8.0f} ms CPU")

    generator = DiffusionGenerator(bundle=pipeline.bundle, device="cpu")
    clock = Clock()
    rollout = clock.run("rollout", lambda: generator.generate(request))
    rollout.check_points()
    whole = clock.best["rollout"]
    print(f"rollout of {len(rollout)} frames in {len(parts)} chunks: {whole[0]:.2f} s wall, {whole[1]:.2f} s CPU")

    print(f"options, against the plain pipeline of the same rounds (encode, {preset.sampler.steps} steps, decode):")
    names = QUICK if arguments.quick else list(OPTIONS)
    if "bfloat16" in names and not torch.cpu._is_avx512_bf16_supported():
        print("  bfloat16: skipped, this CPU emulates it, which is many times slower")
        names.remove("bfloat16")
    found = options(preset, arguments.checkpoint, first, arguments.rounds, names)
    result = {
        "preset": preset.name,
        "threads": arguments.threads,
        "stages": {name: {"wall_s": w, "cpu_s": c} for name, (w, c) in best.items()},
        "chunk": {"frames": len(first), "wall_s": wall, "cpu_s": cpu},
        "rollout": {"frames": len(rollout), "chunks": len(parts), "wall_s": whole[0], "cpu_s": whole[1]},
        "options": found,
        "finite": bool(np.isfinite(rollout.xyz[rollout.robot_mask]).all()),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
