"""Training samples per CPU second, against plain loops on diffusers' own Wan transformer.

    python bench/train.py            the nano size: 25 frames of 96 x 144, batch 8
    python bench/train.py --quick    the tiny size, a few steps: a smoke test

All candidates use the same number of tokens per sample, width, depth and batch, float32, one thread:

    ours, muon      `Trainer` on latents from disk, every feature on: weight maps, soft masks, average, clipping
    ours, adamw     the same with AdamW
    plain, latents  a tutorial loop: latents in memory, WanTransformer3DModel, AdamW, nothing else
    plain, pixels   the same, encoding both videos with AutoencoderKLWan in every step, as scripts without a cache do

They alternate; the best step of each counts, in CPU seconds of the process. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from diffusers import WanTransformer3DModel

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.codec.video_codec import VideoCodec
from kinema4d_model.pipeline.inputs import NetworkInputs
from kinema4d_model.preset import Preset, load_preset
from kinema4d_model.preset_parts import CodecSpec, ConditionSpec
from kinema4d_model.training.config import DataSpec, ObjectiveSpec, OptimiserSpec, RunSpec, TrainConfig
from kinema4d_model.training.examples import Example
from kinema4d_model.training.latents import LatentSet, encode_source
from kinema4d_model.training.loop import Trainer, make_accelerator
from kinema4d_model.training.network_task import NetworkTask
from kinema4d_model.training.stages import set_trainable

EPISODES = 16


class Random:
    """Make episodes of noise; only their size matters."""

    def __init__(self, preset: Preset) -> None:
        self._preset = preset
        self.names = [f"noise-{i}" for i in range(EPISODES)]
        self.identity = "noise"

    def load(self, number: int) -> Example:
        p, rng = self._preset, np.random.default_rng(number)
        shape = (p.frames, p.height, p.width)
        rgb = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
        xyz = rng.random((*shape, 3), dtype=np.float32)
        mask = rng.random(shape) < 0.2
        inputs = NetworkInputs(rgb[0], rgb, xyz, mask, rgb, xyz, np.zeros((2, 3)), p.frames)
        return Example(self.names[number], inputs, rgb, xyz, mask)


def quick_preset() -> Preset:
    tiny = load_preset("tiny")
    return dataclasses.replace(
        tiny,
        transformer=dataclasses.replace(tiny.transformer, image_dim=None),
        image_encoder=None,
        codec=CodecSpec(kind="linear"),
        prediction="residual",
        condition=ConditionSpec(soft_ratio=0.1, fill="composite"),
    )


def ours(preset: Preset, kind: str, batch: int, steps: int, folder: Path) -> list[float]:
    """Measure the CPU seconds of each step."""
    config = TrainConfig(
        name=kind,
        preset="nano_linear",
        data=DataSpec(latents=str(folder)),
        objective=ObjectiveSpec(timesteps="logit_normal", shift=3.0, dynamic_weight=4.0, focus_weight=4.0),
        optimiser=OptimiserSpec(kind=kind, lr=1e-3, warmup_steps=1),  # type: ignore[arg-type]
        run=RunSpec(steps=steps + 1, batch=batch, ema_decay=0.999, log_every=1, checkpoint_every=10**6, threads=1),
    )
    bundle = ModelBundle.from_preset(preset)
    if not (folder / "index.json").is_file():
        encode_source(bundle, Random(preset), folder, shard_episodes=8)
    names = set_trainable(bundle.transformer, "all", preset.condition.ablation)
    task = NetworkTask(bundle, names, config, LatentSet(folder, preset), None)
    stamps: list[float] = []

    def after_step() -> bool:
        stamps.append(time.process_time())
        return len(stamps) > steps

    with tempfile.TemporaryDirectory() as out:
        Trainer(task, config, Path(out), make_accelerator(config), bar=False).run(after_step)
    return list(np.diff(stamps))


def plain(preset: Preset, batch: int, steps: int, autoencoder: CodecSpec | None) -> list[float]:
    """Measure the CPU seconds of each step of a loop without our code."""
    t = preset.transformer
    channels = preset.codec.latent_channels if autoencoder is None else autoencoder.latent_channels
    network = WanTransformer3DModel(
        patch_size=t.patch,
        num_attention_heads=t.heads,
        attention_head_dim=t.head_dim,
        in_channels=2 * channels + 4,
        out_channels=channels,
        text_dim=t.text_dim,
        freq_dim=t.freq_dim,
        ffn_dim=t.ffn_dim,
        num_layers=t.layers,
    )
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3)
    size = (preset.latent_frames, preset.latent_height, 2 * preset.latent_width)
    text = torch.zeros(batch, 2 * int(np.prod(preset.robot.position_grid)), t.text_dim)
    vae = None if autoencoder is None else VideoCodec.from_spec(autoencoder).vae.eval()
    latents = torch.randn(EPISODES, channels, *size)
    videos = torch.rand(2, 3, preset.frames, preset.height, preset.width) * 2 - 1
    seconds = []
    for step in range(steps + 1):
        start = time.process_time()
        if vae is None:
            clean = latents[torch.randint(EPISODES, (batch,))]
        else:
            with torch.no_grad():
                pairs = [vae.encode(videos).latent_dist.mode() for _ in range(batch)]
            clean = torch.stack([torch.cat([rgb, xyz], dim=-1) for rgb, xyz in pairs])
        noise, sigma = torch.randn_like(clean), torch.rand(batch)
        s = sigma.view(-1, 1, 1, 1, 1)
        noisy = torch.cat([(1 - s) * clean + s * noise, torch.zeros(batch, channels + 4, *size)], dim=1)
        said = network(noisy, 1000 * sigma, text, return_dict=False)[0]
        torch.nn.functional.mse_loss(said, noise - clean).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if step:
            seconds.append(time.process_time() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny networks, few steps")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    preset = quick_preset() if arguments.quick else load_preset("nano_linear")
    batch, steps = (4, 2) if arguments.quick else (8, 2)
    autoencoder = load_preset("tiny" if arguments.quick else "nano_vae").codec
    with tempfile.TemporaryDirectory() as folder:
        candidates: dict[str, Callable[[], list[float]]] = {
            "ours, muon": lambda: ours(preset, "muon", batch, steps, Path(folder)),
            "ours, adamw": lambda: ours(preset, "adamw", batch, steps, Path(folder)),
            "plain, latents": lambda: plain(preset, batch, steps, None),
            "plain, pixels": lambda: plain(preset, batch, steps, autoencoder),
        }
        found: dict[str, list[float]] = {name: [] for name in candidates}
        for _ in range(1 if arguments.quick else arguments.rounds):
            for name, run in candidates.items():
                found[name] += run()
    rates = {name: batch / min(seconds) for name, seconds in found.items()}
    for name, rate in rates.items():
        print(f"{name:16} {rate:8.2f} samples per CPU second")
    print(
        json.dumps(
            {
                "bench": "train",
                "size": [preset.frames, preset.height, preset.width],
                "batch": batch,
                "samples_per_cpu_s": {name: round(rate, 3) for name, rate in rates.items()},
                "ours_over_plain_latents": round(rates["ours, adamw"] / rates["plain, latents"], 3),
                "ours_over_plain_pixels": round(rates["ours, muon"] / rates["plain, pixels"], 3),
                "torch": torch.__version__,
                "machine": platform.processor() or platform.machine(),
            }
        )
    )


if __name__ == "__main__":
    main()
