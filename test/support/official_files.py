"""Checkpoint files with the official names and layout, of any network's sizes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from diffusers import WanTransformer3DModel
from safetensors.torch import load_file, save_file

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.checkpoints.lora import lora_shapes
from kinema4d_model.checkpoints.official import ADDED_FILE, LORA_FILE, added_shapes
from kinema4d_model.network import KinemaTransformer
from kinema4d_model.preset import Preset


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write_official(folder: Path, transformer: KinemaTransformer, seed: int = 0, rank: int = 4) -> Path:
    """Write files in the released layout with this network's sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(random_tensors(added_shapes(transformer), seed), folder / ADDED_FILE)
    save_file(random_tensors(lora_shapes(transformer, rank), seed + 1), folder / LORA_FILE)
    return folder


def write_wan(tiny: Preset, folder: Path, shift: float = 3.0) -> ModelBundle:
    """Write a tiny plain Wan with diffusers and transformers, including a quirk of the released files."""
    bundle = ModelBundle.from_preset(tiny, seed=6)
    keys = {k: v for k, v in bundle.transformer.config.items() if not k.startswith(("robot_", "_"))}
    wan = WanTransformer3DModel(**{k: v for k, v in keys.items() if k not in ("action_dim", "image_tokens", "carry")})
    wan.load_state_dict(
        {n: t for n, t in bundle.transformer.state_dict().items() if not bundle.transformer.is_added(n)}
    )
    wan.save_pretrained(folder / "transformer", max_shard_size="40KB")
    bundle.codec.vae.save_pretrained(folder / "vae")
    assert bundle.image_encoder is not None
    clip = bundle.image_encoder.clip.state_dict()
    clip = {f"vision_model.{name.removeprefix('vision_model.')}": tensor for name, tensor in clip.items()}
    (folder / "image_encoder").mkdir()
    save_file(clip | {"visual_projection.weight": torch.zeros(16, 32)}, folder / "image_encoder" / "model.safetensors")
    shards = sorted((folder / "transformer").glob("*.safetensors"))
    assert len(shards) > 1
    unused = {n: t.clone() for n, t in load_file(shards[0]).items()}
    shards[0].unlink()
    save_file(unused | {"blocks.0.attn2.norm_added_q.weight": torch.ones(24)}, shards[0])
    (folder / "scheduler").mkdir()
    scheduler = {"_class_name": "UniPCMultistepScheduler", "flow_shift": shift, "use_flow_sigmas": True}
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(scheduler))
    return bundle
