"""Tests of the network against diffusers' own classes, and of the added parts."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel
from diffusers.models.transformers.transformer_wan import WanAttnProcessor, WanRotaryPosEmbed
from support.model_inputs import random_conditions, wake, with_variant

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.network import KinemaTransformer
from kinema4d_model.network.layers import ContextAttentionProcessor, DomainPatchEmbedding, SharedRotaryEmbedding
from kinema4d_model.network.transformer import RobotInjection, RobotTokens
from kinema4d_model.preset import Preset
from kinema4d_model.preset_parts import Ablation
from kinema4d_model.training.stages import set_trainable
from kinema4d_ros.core.errors import ErrorCode, GeneratorError

TIME = torch.tensor([500.0])


def make(preset: Preset, *, awake: bool = True) -> KinemaTransformer:
    network = ModelBundle.from_preset(preset, seed=3).transformer
    if awake:
        wake(network)
    return network


@torch.no_grad()
def run(network: KinemaTransformer, conditions: Any, seed: int = 5, **options: float) -> torch.Tensor:
    noisy = torch.randn(conditions.condition.shape, generator=torch.Generator().manual_seed(seed))
    return network(noisy, TIME.expand(len(noisy)), network.prepare(conditions), **options)


@pytest.mark.parametrize("variant", ["act", "pm"])
@pytest.mark.parametrize(("F", "h", "w"), [(3, 4, 6), (1, 4, 6), (5, 6, 8), (2, 2, 2), (4, 10, 14)])
def test_any_length_and_resolution(tiny: Preset, variant: str, F: int, h: int, w: int) -> None:
    preset = with_variant(tiny, variant)
    network, conditions = make(preset), random_conditions(preset, batch=2, F=F, h=h, w=w)
    assert network.prepare(conditions).context.shape == (
        2, 5 + F * -(-h // 2) * -(-w // 2) * (2 if variant == "act" else 1), 24,
    )  # fmt: skip
    output = run(network, conditions)
    assert output.shape == (2, 16, F, h, 2 * w)
    assert torch.isfinite(output).all()
    assert output.std() > 1e-3


def test_a_latent_grid_not_divisible_by_the_token_patch_is_zero_padded() -> None:
    tokens = RobotTokens(16, 8, 24, patch=4, grid=(2, 2, 2), both_halves=True)
    wake(tokens)
    mask, latents = torch.ones(1, 2, 6, 7), torch.randn(1, 16, 2, 6, 14)
    padded = torch.nn.functional.pad(latents.unflatten(-1, (2, 7)), (0, 1)).flatten(-2)
    padded = torch.nn.functional.pad(padded, (0, 0, 0, 2))
    torch.testing.assert_close(tokens(mask, latents), tokens(torch.nn.functional.pad(mask, (0, 1, 0, 2)), padded))


def test_with_512_tokens_cross_attention_equals_diffusers(tiny: Preset) -> None:
    attention = make(tiny).blocks[0].attn2
    hidden, context = torch.randn(2, 7, 24), torch.randn(2, 5 + 512, 24)
    with torch.no_grad():
        theirs = WanAttnProcessor()(attention, hidden, context)
        ours = ContextAttentionProcessor(image_tokens=5)(attention, hidden, context)
        attention.fuse_projections()
        fused = ContextAttentionProcessor(image_tokens=5)(attention, hidden, context)
    assert torch.equal(ours, theirs)
    torch.testing.assert_close(fused, theirs)


@pytest.mark.parametrize(("variant", "tokens"), [("act", 624), ("pm", 312)])
def test_the_official_numbers_of_tokens_reach_the_right_projections(tiny: Preset, variant: str, tokens: int) -> None:
    """13 x 4 x 6 groups per half, as at 49 x 480 x 720, beside the image tokens."""
    preset = with_variant(tiny, variant)
    network, conditions = make(preset), random_conditions(preset, F=13, h=8, w=12)
    prepared = network.prepare(conditions)
    assert prepared.context.shape == (1, 5 + tokens, 24)
    attention, hidden = network.blocks[0].attn2, torch.randn(1, 3, 24)

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.unflatten(-1, (2, 12)).transpose(1, 2) for x in (query, key, value))
        weights = (q @ k.transpose(-1, -2) / 12**0.5).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)

    image, robot = prepared.context[:, :5], prepared.context[:, 5:]
    query = attention.norm_q(attention.to_q(hidden))
    expected = attention.to_out[0](
        attend(query, attention.norm_k(attention.to_k(robot)), attention.to_v(robot))
        + attend(query, attention.norm_added_k(attention.add_k_proj(image)), attention.add_v_proj(image))
    )
    torch.testing.assert_close(attention(hidden, prepared.context), expected, rtol=1e-4, atol=1e-5)


def test_rope_of_both_halves_equals_diffusers_at_half_width() -> None:
    shared, plain = (cls(12, (1, 2, 2), 64) for cls in (SharedRotaryEmbedding, WanRotaryPosEmbed))
    latents = torch.zeros(1, 36, 3, 4, 20)
    for ours, half in zip(shared(latents), plain(latents[..., :10]), strict=True):
        assert ours.shape == (1, 3 * 2 * 10, 1, 12)
        grid = ours.view(3, 2, 2, 5, 12)  # frame, row, half, column
        assert torch.equal(grid[:, :, 0], grid[:, :, 1])
        assert torch.equal(grid[:, :, 0].reshape(half.shape), half)
    assert not torch.equal(shared(latents)[0], plain(latents)[0])


def test_domain_embeddings_differ_between_the_halves() -> None:
    embed = DomainPatchEmbedding(36, 24, (1, 2, 2))
    half = torch.randn(1, 36, 2, 4, 6)
    both = torch.cat([half, half], dim=-1)
    left, right = embed(both).chunk(2, dim=-1)
    assert torch.equal(left, right)
    with torch.no_grad():
        embed.domain.copy_(torch.randn(2, 24))
    left, right = embed(both).chunk(2, dim=-1)
    expected = (embed.domain[1] - embed.domain[0]).view(1, 24, 1, 1, 1).expand_as(left)
    torch.testing.assert_close(right - left, expected, rtol=1e-4, atol=1e-5)


def test_domain_embeddings_change_the_output_of_equal_halves(tiny: Preset) -> None:
    network, conditions = make(tiny), random_conditions(tiny)

    def mirror(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[..., :6], x[..., :6]], dim=-1)

    conditions = dataclasses.replace(
        conditions, mask=mirror(conditions.mask), condition=mirror(conditions.condition),
        robot_latents=mirror(conditions.robot_latents) * 0,
    )  # fmt: skip
    noisy = mirror(torch.randn(1, 16, 3, 4, 12))
    with torch.no_grad():
        told_apart = network(noisy, TIME, network.prepare(conditions)).chunk(2, dim=-1)
        network.patch_embedding.domain.zero_()
        network.robot_injection.project.bias.zero_()
        equal = network(noisy, TIME, network.prepare(conditions)).chunk(2, dim=-1)
    assert (told_apart[0] - told_apart[1]).abs().max() > 1e-2
    torch.testing.assert_close(equal[0], equal[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", ["act", "pm"])
def test_the_initialised_network_equals_plain_wan(tiny: Preset, variant: str) -> None:
    """With zero-initialised parts the robot has no effect, and diffusers' own class gives the same output."""
    preset = with_variant(tiny, variant)
    network, conditions = make(preset, awake=False), random_conditions(preset)
    base = dict(network.config)
    wan = WanTransformer3DModel(**{k: base[k] for k in WanTransformer3DModel._get_init_keys(WanTransformer3DModel)
                                   if k in base})  # fmt: skip
    weights = {name: p for name, p in network.state_dict().items() if not network.is_added(name)}
    wan.load_state_dict(weights, strict=True)
    wan.rope = SharedRotaryEmbedding(12, (1, 2, 2), 1024)
    with torch.no_grad():
        for parameter in wan.condition_embedder.text_embedder.parameters():
            parameter.zero_()  # an empty text, equal to the zero-initialised robot tokens
        noisy = torch.randn(1, 16, 3, 4, 12)
        stacked = torch.cat([noisy, conditions.mask, conditions.condition], dim=1)
        expected = wan(stacked, TIME, torch.zeros(1, 512, 16), conditions.image_tokens, return_dict=False)[0]
        ours = network(noisy, TIME, network.prepare(conditions))
        doubled = network(noisy, TIME, network.prepare(conditions), injection_scale=2.0)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(ours, doubled)


def test_act_injects_after_the_first_frame_pm_into_the_right_half() -> None:
    latents = torch.randn(2, 16, 3, 4, 12)
    for both in (True, False):
        injection = RobotInjection(16, both_halves=both)
        wake(injection)
        where = torch.zeros(3, 4, 12)
        if both:
            where[1:] = 1
        else:
            where[..., 6:] = 1
        naive = torch.einsum("oc,bcfhw->bofhw", injection.project.weight, latents)
        naive = (naive + injection.project.bias.view(1, 16, 1, 1, 1)) * where
        torch.testing.assert_close(injection(latents), naive, rtol=1e-4, atol=1e-5)


def test_injection_scale_adds_the_robot_that_many_times(tiny: Preset) -> None:
    network, conditions = make(tiny), random_conditions(tiny)
    prepared = network.prepare(conditions)
    twice = dataclasses.replace(prepared, condition=prepared.condition + 2 * prepared.injection)
    noisy = torch.randn(1, 16, 3, 4, 12)
    with torch.no_grad():
        expected = network(noisy, TIME, twice, injection_scale=0.0)
        doubled = network(noisy, TIME, prepared, injection_scale=2.0)
        once = network(noisy, TIME, prepared)
    torch.testing.assert_close(doubled, expected, rtol=1e-4, atol=1e-5)
    assert (once - doubled).abs().max() > 1e-3


def test_position_embeddings_are_interpolated_only_for_other_grids() -> None:
    tokens = RobotTokens(16, 8, 24, patch=2, grid=(3, 2, 3), both_halves=False)
    wake(tokens)
    with torch.no_grad():
        # Interpolation keeps a linear field linear: the middle of five frames equals the middle of three.
        tokens.position.copy_(torch.arange(3.0).view(1, 1, 3, 1, 1).expand(1, 8, 3, 2, 3))
        tokens.patch.weight.zero_()
        tokens.project.weight.copy_(torch.eye(24, 8))
    mask, latents = torch.zeros(1, 5, 4, 6), torch.zeros(1, 16, 5, 4, 12)
    values = tokens(mask, latents).view(5, 2, 3, 24)
    same = tokens(mask[:, :3], latents[:, :, :3]).view(3, 2, 3, 24)
    steps = (values - values[:1])[:, 0, 0, 0]
    torch.testing.assert_close((same - same[:1])[:, 0, 0, 0], torch.arange(3.0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(steps, torch.tensor([0.0, 0.4, 1.0, 1.6, 2.0]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("scope", "ablation"),
    [("all", Ablation.RGB_POINTMAP), ("added", Ablation.RGB_POINTMAP), ("all", Ablation.TEXT),
     ("added", Ablation.EMBEDDING), ("added", Ablation.NULL)],
)  # fmt: skip
@pytest.mark.parametrize("variant", ["act", "pm"])
def test_gradients_reach_exactly_the_trained_parameters(
    tiny: Preset, scope: Any, ablation: Ablation, variant: str
) -> None:
    preset = with_variant(tiny, variant)
    preset = dataclasses.replace(preset, robot=dataclasses.replace(preset.robot, action_dim=7))
    network, conditions = make(preset), random_conditions(preset, batch=2)
    if ablation is Ablation.TEXT:
        conditions = dataclasses.replace(conditions, text_tokens=torch.randn(2, 6, 16))
    if ablation is Ablation.EMBEDDING:
        conditions = dataclasses.replace(conditions, actions=torch.randn(2, 9, 7))
    learning = set(set_trainable(network, scope, ablation))
    network(torch.randn(2, 16, 3, 4, 12), TIME.expand(2), network.prepare(conditions)).square().mean().backward()
    with_gradient = {n for n, p in network.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert with_gradient == learning
    added = {n for n, _ in network.named_parameters() if network.is_added(n)}
    assert learning <= added if scope == "added" else len(learning) > len(added)
    assert "patch_embedding.domain" in learning


def test_gradient_checkpointing_gives_the_same_gradients(tiny: Preset) -> None:
    network, conditions = make(tiny), random_conditions(tiny)
    gradients = []
    for checkpointing in (False, True):
        network.zero_grad()
        if checkpointing:
            network.enable_gradient_checkpointing()
        noisy = torch.randn(1, 16, 3, 4, 12, generator=torch.Generator().manual_seed(0))
        network(noisy, TIME, network.prepare(conditions)).square().mean().backward()
        gradients.append(network.robot_tokens.project.weight.grad.clone())
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image_tokens": None}, "image tokens are missing"),
        ({"image_tokens": torch.zeros(1, 4, 32)}, r"image tokens are \(4, 32\), not \(5, 32\)"),
        ({"condition": torch.zeros(1, 16, 3, 4, 14)}, "do not divide into two halves"),
        ({"actions": torch.zeros(1, 9, 7)}, "no action_dim"),
    ],
)
def test_conditions_of_another_network_are_refused(tiny: Preset, change: dict[str, Any], words: str) -> None:
    conditions = dataclasses.replace(random_conditions(tiny), **change)
    with pytest.raises(GeneratorError, match=words) as caught:
        make(tiny).prepare(conditions)
    assert caught.value.code is ErrorCode.GENERATOR_BAD_REQUEST


def test_a_network_without_image_branch_refuses_image_tokens() -> None:
    nano = ModelBundle.from_preset("nano", device="meta").transformer
    conditions = dataclasses.replace(random_conditions(ModelBundle.from_preset("nano", device="meta").preset),
                                     image_tokens=torch.zeros(1, 257, 1280))  # fmt: skip
    with pytest.raises(GeneratorError, match="takes none"):
        nano.prepare(conditions)
