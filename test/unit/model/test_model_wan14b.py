"""Tests of the 14B network on the meta device: parameter counts, official names and shapes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from support.model_inputs import random_conditions

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.checkpoints.lora import lora_shapes
from kinema4d_model.checkpoints.official import added_shapes
from kinema4d_model.network import KinemaTransformer
from kinema4d_model.preset import load_preset

OFFICIAL_ADDED = {
    "learnable_domain_embeddings": (2, 5120),
    "patch_embedding_arm.weight": (128, 20, 1, 15, 15),
    "patch_embedding_arm.bias": (128,),
    "arm_ln.weight": (128,),
    "arm_ln.bias": (128,),
    "arm_pos_emb": (1, 128, 13, 4, 6),
    "arm_domain_emb": (2, 128),
    "arm_patch_proj.weight": (5120, 128),
    "arm_patch_proj.bias": (5120,),
    "arm_cond_proj.weight": (16, 16),
    "arm_cond_proj.bias": (16,),
}


@pytest.fixture(scope="module")
def wan14b() -> ModelBundle:
    return ModelBundle.from_preset("wan14b", device="meta")


def count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_the_network_has_wan_s_parameters_and_the_added_ones(wan14b: ModelBundle) -> None:
    with torch.device("meta"):
        wan = WanTransformer3DModel(
            in_channels=36, out_channels=16, image_dim=1280, added_kv_proj_dim=5120, num_layers=40
        )
    assert count(wan14b.transformer) == count(wan) + 1_287_568
    own = {n: tuple(p.shape) for n, p in wan14b.transformer.named_parameters() if not wan14b.transformer.is_added(n)}
    assert own == {n: tuple(p.shape) for n, p in wan.named_parameters()}


def test_the_codec_is_wan_2_1_s(wan14b: ModelBundle) -> None:
    with torch.device("meta"):
        vae = AutoencoderKLWan()
    assert {n: p.shape for n, p in wan14b.codec.vae.named_parameters()} == {
        n: p.shape for n, p in vae.named_parameters()
    }
    assert wan14b.codec.vae.config.latents_std == list(vae.config.latents_std)


def test_added_weights_have_the_official_names_and_shapes(wan14b: ModelBundle) -> None:
    assert added_shapes(wan14b.transformer) == OFFICIAL_ADDED
    preset = load_preset("wan14b")
    preset = dataclasses.replace(preset, robot=dataclasses.replace(preset.robot, variant="pm"))
    with torch.device("meta"):
        pm = KinemaTransformer.from_preset(preset)
    assert added_shapes(pm) == {n: s for n, s in OFFICIAL_ADDED.items() if n != "arm_domain_emb"}
    assert count(pm) == count(wan14b.transformer) - 2 * 128


def test_all_640_lora_tensors_have_a_place(wan14b: ModelBundle) -> None:
    expected = {
        f"transformer.blocks.{block}.attn{attention}.{layer}.lora_{half}.weight": (64, 5120)
        if half == "A"
        else (5120, 64)
        for block in range(40)
        for attention in (1, 2)
        for layer in ("to_q", "to_k", "to_v", "to_out.0")
        for half in "AB"
    }
    shapes = lora_shapes(wan14b.transformer, rank=64)
    assert shapes == expected
    assert len(shapes) == 640
    assert sum(a * b for a, b in shapes.values()) == 209_715_200


def test_two_of_its_blocks_keep_the_official_shapes(wan14b: ModelBundle) -> None:
    preset = wan14b.preset
    preset = dataclasses.replace(preset, transformer=dataclasses.replace(preset.transformer, layers=2))
    conditions = random_conditions(preset).to("meta")
    with torch.no_grad(), torch.device("meta"):
        network = KinemaTransformer.from_preset(preset)
        prepared = network.prepare(conditions)
        assert prepared.context.shape == (1, 257 + 624, 5120)
        output = network(conditions.condition, torch.zeros(1), prepared)
    assert output.shape == (1, 16, 13, 60, 180)
