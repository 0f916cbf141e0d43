"""Folder of weights, ours or Wan's: its parts, written atomically and read strictly.

FOLDER/
  preset.yaml            preset of the weights (not in a Wan folder)
  transformer/ vae/      config.json + safetensors, as diffusers writes them
  image_encoder/         config.json + safetensors, as transformers writes them; only if the network uses it
  manifest.json          size and sha256 of every file
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kinema4d_model.checkpoints.lora import adapter_names
from kinema4d_model.checkpoints.manifest import MANIFEST, write_manifest
from kinema4d_model.checkpoints.modules import check_config, load_module
from kinema4d_model.network import KinemaTransformer
from kinema4d_model.network.layers import SharedRotaryEmbedding
from kinema4d_model.preset import Preset, save_preset
from kinema4d_ros.core.errors import GeneratorError
from kinema4d_ros.io.files import replacing_folder

__all__ = ["PRESET_FILE", "load_clip", "load_transformer", "load_vae", "write_folder"]

PRESET_FILE = "preset.yaml"
DIFFUSERS_STEM = "diffusion_pytorch_model"
TRANSFORMERS_STEM = "model"
UNUSED = re.compile(r"blocks\.\d+\.attn2\.norm_added_q\.weight")
"""A norm in Wan's released files that their code does not use."""
CLIP_KEYS = ("hidden_size", "num_attention_heads", "hidden_act", "image_size", "patch_size", "layer_norm_eps")


def write_folder(folder: Path, preset: Preset, transformer: KinemaTransformer, vae: Any, clip: Any | None) -> str:
    """Write every part and the manifest; return the manifest's sha256."""
    if adapter_names(transformer):
        raise GeneratorError(
            f"the network has adapters ({', '.join(adapter_names(transformer))})",
            expected="a network without adapters",
            hint="write them with save_official, or merge and remove them first",
        )
    with replacing_folder(folder, lambda path: (path / MANIFEST).is_file()) as temporary:
        save_preset(preset, temporary / PRESET_FILE)
        transformer.save_pretrained(temporary / "transformer", safe_serialization=True)
        vae.save_pretrained(temporary / "vae", safe_serialization=True)
        if clip is not None:
            clip.save_pretrained(temporary / "image_encoder", safe_serialization=True)
        return write_manifest(temporary).sha256


def load_transformer(
    transformer: KinemaTransformer,
    folder: Path,
    dtype: torch.dtype | None = None,
    *,
    base_only: bool = False,
    read: bool = True,
) -> None:
    """Load weights into a network made on "meta".

    Args:
        transformer: of the sizes of the folder's weights.
        folder: `transformer/` of a bundle or of a Wan checkpoint.
        dtype: precision of the weights; None keeps the files'.
        base_only: the folder is plain Wan: initialise the parts that it lacks.
        read: False only checks that the folder matches.
    """
    check_config(folder, _public(transformer.config))
    load_module(
        transformer,
        folder,
        DIFFUSERS_STEM,
        dtype=dtype,
        rename=lambda name: None if UNUSED.fullmatch(name) else name,
        without=transformer.is_added if base_only else lambda name: False,
        read=read,
    )
    if not read:
        return
    if base_only:
        _start_added(transformer, transformer.patch_embedding.weight.dtype)
    config = transformer.config
    # Files do not store the rotary table, and a network made on "meta" has no values for it.
    transformer.rope = SharedRotaryEmbedding(config.attention_head_dim, config.patch_size, config.rope_max_seq_len)


def _start_added(transformer: KinemaTransformer, dtype: torch.dtype) -> None:
    for name, parameter in list(transformer.named_parameters()):
        if transformer.is_added(name):
            owner = transformer.get_submodule(name.rpartition(".")[0])
            fresh = torch.zeros(parameter.shape, dtype=dtype)
            if isinstance(owner, nn.LayerNorm) and name.endswith(".weight"):
                fresh += 1
            setattr(owner, name.rpartition(".")[2], nn.Parameter(fresh))
    for part in (transformer.robot_tokens, transformer.robot_injection, transformer.action_tokens):
        if part is not None:
            part.reset_added()


def load_vae(vae: Any, folder: Path, *, read: bool = True) -> None:
    """Load an autoencoder from `vae/`; without `read` only check that the folder matches."""
    check_config(folder, _public(vae.config))
    load_module(vae, folder, DIFFUSERS_STEM, read=read)


def load_clip(clip: Any, folder: Path, *, read: bool = True) -> None:
    """Load an image encoder from `image_encoder/`; older files put `vision_model.` before every name.

    Without `read`, only check that the folder matches.
    """
    check_config(folder, {key: getattr(clip.config, key) for key in CLIP_KEYS})
    own = set(clip.state_dict())

    def rename(name: str) -> str | None:
        # Not used: position ids are computed, and the projection comes after the hidden state in use.
        if name.removeprefix("vision_model.") in ("embeddings.position_ids", "visual_projection.weight"):
            return None
        bare = name.removeprefix("vision_model.")
        return next((n for n in (name, bare, f"vision_model.{bare}") if n in own), name)

    load_module(clip, folder, TRANSFORMERS_STEM, rename=rename, read=read)


def _public(config: Any) -> dict[str, Any]:
    return {key: value for key, value in dict(config).items() if not key.startswith("_")}
