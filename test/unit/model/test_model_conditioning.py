"""Tests of the conditioning against naive implementations with loops over frames and pixels."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model_inputs import with_variant

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.conditioning import (
    ablate,
    ablation_table,
    build_conditions,
    downsample_mask,
    first_frame_video,
    mask_channels,
    ramp_pointmap,
    robot_videos,
    soften,
)
from kinema4d_model.preset import Preset, load_preset
from kinema4d_model.preset_parts import Ablation, ConditionSpec
from kinema4d_ros.core.errors import ErrorCode, GeneratorError


def brute_force_mask(mask: np.ndarray, height: int, width: int) -> np.ndarray:
    """Take the nearest pixel (at floor(cell * size / cells)), frame 0 alone, then the maximum of four frames."""
    batch, frames, rows, columns = mask.shape
    out = np.zeros((batch, 1 + (frames - 1) // 4, height, width), np.float32)
    for b in range(batch):
        for f in range(out.shape[1]):
            group = [0] if f == 0 else range(4 * f - 3, 4 * f + 1)
            for y in range(height):
                for x in range(width):
                    out[b, f, y, x] = max(mask[b, t, y * rows // height, x * columns // width] for t in group)
    return out


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**31), groups=st.integers(0, 3), h=st.integers(1, 4), w=st.integers(1, 4),
    fy=st.sampled_from([1, 3, 8]), fx=st.sampled_from([1, 5, 8]),
)  # fmt: skip
def test_mask_downsampling_equals_brute_force(seed: int, groups: int, h: int, w: int, fy: int, fx: int) -> None:
    mask = np.random.default_rng(seed).random((2, 1 + 4 * groups, h * fy, w * fx)) < 0.15
    small = downsample_mask(torch.from_numpy(mask), h, w)
    np.testing.assert_array_equal(small.numpy(), brute_force_mask(mask, h, w))


def test_one_pixel_of_one_frame_marks_only_its_cell_and_group() -> None:
    mask = torch.zeros(1, 9, 32, 48)
    mask[0, 6, 8, 16] = 1  # the pixel of latent cell (1, 2); frames 5..8 are group 2
    small = downsample_mask(mask, 4, 6)
    assert small.nonzero().tolist() == [[0, 2, 1, 2]]


def test_a_mask_of_wrong_length_is_refused() -> None:
    with pytest.raises(GeneratorError, match="cannot be grouped") as caught:
        downsample_mask(torch.zeros(1, 8, 32, 48), 4, 6)
    assert caught.value.code is ErrorCode.GENERATOR_BAD_REQUEST


@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), ratio=st.floats(0, 1))
def test_softening_changes_only_the_given_share_of_robot_cells(seed: int, ratio: float) -> None:
    mask = (torch.rand(1, 3, 4, 6, generator=torch.Generator().manual_seed(seed)) < 0.5).float()
    soft = soften(mask, ratio, torch.Generator().manual_seed(seed))
    assert ((soft == mask) | ((mask == 1) & (soft == 0.5))).all()
    assert (soft == 0.5).sum().item() == int(mask.sum().item() * ratio)
    assert torch.equal(soft, soften(mask, ratio, torch.Generator().manual_seed(seed)))


def test_mask_channels_of_both_variants() -> None:
    robot = torch.rand(2, 3, 4, 6)
    for variant in ("act", "pm"):
        channels = mask_channels(robot, (2, 3, 4, 6), variant)
        assert channels.shape == (2, 4, 3, 4, 12)
        for b, c, f, y, x in np.ndindex(2, 4, 3, 4, 12):
            wan = (1.0 if x < 6 else 0.5) if f == 0 else 0.0
            here = float(robot[b, f, y, x % 6])
            told = f > 0 if variant == "act" else x >= 6
            assert float(channels[b, c, f, y, x]) == (here if told else wan)
    nothing = mask_channels(None, (2, 3, 4, 6), "act", environment=True)
    assert (nothing[:, :, 0] == 1).all()
    assert (nothing[:, :, 1:] == 0).all()


def test_the_ramp_grows_right_and_down_and_falls_in_depth() -> None:
    ramp = ramp_pointmap(4, 6)
    for y, x in np.ndindex(4, 6):
        assert ramp[:, y, x].tolist() == pytest.approx([x / 5, y / 3, 1 - y / 3])


def test_the_first_frame_is_beside_its_pointmap_and_later_frames_are_grey() -> None:
    image, measured = torch.rand(2, 3, 4, 6) * 2 - 1, torch.rand(2, 3, 4, 6)
    video = first_frame_video(image, None, 5)
    assert video.shape == (2, 3, 5, 4, 12)
    assert torch.equal(video[:, :, 0, :, :6], image)
    torch.testing.assert_close(video[0, :, 0, :, 6:], 2 * ramp_pointmap(4, 6) - 1)
    assert (video[:, :, 1:] == 0).all()
    torch.testing.assert_close(first_frame_video(image, measured, 5)[:, :, 0, :, 6:], 2 * measured - 1)


INPUTS = ("image", "rgb", "xyz01", "mask")


def inputs(preset: Preset, batch: int = 1, seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    size = (preset.frames, preset.height, preset.width)
    return {
        "image": torch.rand(batch, 3, *size[1:], generator=g) * 2 - 1,
        "rgb": torch.rand(batch, 3, *size, generator=g) * 2 - 1,
        "xyz01": torch.rand(batch, 3, *size, generator=g),
        "mask": torch.rand(batch, *size, generator=g) < 0.3,
    }


def naive_encode(bundle: ModelBundle, video: torch.Tensor) -> torch.Tensor:
    """Return the mode of the posterior, normalised per channel with Wan's statistics."""
    with torch.no_grad():
        raw = bundle.codec.vae.encode(video).latent_dist.mode()
    c = bundle.preset.codec
    return torch.stack([(raw[:, i] - c.latents_mean[i]) / c.latents_std[i] for i in range(16)], dim=1)


@pytest.mark.parametrize("variant", ["act", "pm"])
@pytest.mark.parametrize("ablation", list(Ablation))
def test_conditions_equal_a_naive_implementation(tiny_bundle: ModelBundle, variant: str, ablation: Ablation) -> None:
    preset = with_variant(tiny_bundle.preset, variant)
    preset = dataclasses.replace(preset, robot=dataclasses.replace(preset.robot, action_dim=7))
    preset = preset.with_condition(ConditionSpec(ablation=ablation, soft_ratio=0.0))
    given_ = inputs(preset)
    text, actions = torch.randn(1, 3, 16), torch.randn(1, 9, 7)
    got = build_conditions(tiny_bundle.codec, *(given_[n] for n in INPUTS), preset, text_tokens=text, actions=actions)

    image, rgb, xyz01, mask = (given_[n] for n in INPUTS)
    y, x = torch.meshgrid(torch.linspace(0, 1, 32), torch.linspace(0, 1, 48), indexing="ij")
    first = torch.cat([image[0], torch.stack([2 * x - 1, 2 * y - 1, 1 - 2 * y])], dim=-1)
    video = torch.zeros(1, 3, 9, 32, 96)
    video[0, :, 0] = first
    torch.testing.assert_close(got.condition, naive_encode(tiny_bundle, video), rtol=1e-4, atol=1e-5)

    pictures: dict[str, torch.Tensor | None] = {"left": None, "right": None}
    black = torch.full((1, 3, 9, 32, 48), -1.0)
    inside = mask[:, None].expand(1, 3, 9, 32, 48)
    for side, source, tellers in (
        ("left", rgb, {Ablation.RGB_POINTMAP, Ablation.RGB, Ablation.NO_MASK}),
        ("right", 2 * xyz01 - 1, {Ablation.RGB_POINTMAP, Ablation.POINTMAP, Ablation.NO_MASK}),
        ("right", 2 * xyz01[:, [2, 2, 2]] - 1, {Ablation.DEPTH}),
        ("left", torch.ones_like(rgb), {Ablation.BINARY_MASK}),
        ("right", torch.ones_like(rgb), {Ablation.BINARY_MASK}),
    ):
        if ablation in tellers and not (side == "left" and variant == "pm"):
            picture = black.clone()
            picture[inside] = source[inside]
            pictures[side] = picture
    for side, latents in zip(pictures, got.robot_latents.chunk(2, dim=-1), strict=True):
        picture = pictures[side]
        if picture is None:
            assert (latents == 0).all()
        else:
            expected = naive_encode(tiny_bundle, picture)
            if side == "right":
                expected = (expected + 0.17) / 1.36
            torch.testing.assert_close(latents, expected, rtol=1e-4, atol=1e-5)

    told = ablation not in {Ablation.NO_MASK, Ablation.NULL, Ablation.TEXT, Ablation.EMBEDDING}
    small = torch.from_numpy(brute_force_mask(mask.numpy(), 4, 6))
    assert torch.equal(got.robot_mask, small if told else torch.zeros_like(small))
    halves = torch.zeros(1, 3, 4, 12)
    halves[:, 0, :, :6], halves[:, 0, :, 6:] = 1, 0.5
    if told and variant == "act":
        halves[:, 1:] = torch.cat([small, small], dim=-1)[:, 1:]
    elif told:
        halves[..., 6:] = small
    assert torch.equal(got.mask, halves[:, None].repeat(1, 4, 1, 1, 1))
    assert (got.text_tokens is text) == (ablation is Ablation.TEXT)
    assert (got.actions is actions) == (ablation is Ablation.EMBEDDING)


def test_composite_environment_and_soft_mask(tiny_bundle: ModelBundle) -> None:
    preset = dataclasses.replace(tiny_bundle.preset, prediction="residual").with_condition(
        ConditionSpec(soft_ratio=0.5, environment=True)
    )
    given_ = inputs(preset, batch=2)
    environment = torch.rand(2, 3, 32, 48)
    options: dict[str, Any] = {"composite": (given_["rgb"], given_["xyz01"]), "environment_xyz01": environment}

    def build(**more: Any) -> Any:
        generator = torch.Generator().manual_seed(4)
        return build_conditions(
            tiny_bundle.codec, *(given_[n] for n in INPUTS), preset, generator=generator, **{**options, **more}
        )

    got = build()
    expected = tiny_bundle.codec.encode_pair(given_["rgb"], 2 * given_["xyz01"] - 1)
    torch.testing.assert_close(got.base_latents, expected)
    assert (got.mask[:, :, 0] == 1).all()
    video = first_frame_video(given_["image"], environment, 9)
    torch.testing.assert_close(got.condition, naive_encode(tiny_bundle, video), rtol=1e-4, atol=1e-5)
    small = downsample_mask(given_["mask"], 4, 6)
    assert (got.robot_mask == 0.5).sum() == int(small.sum() * 0.5)
    assert torch.equal(got.robot_mask, build().robot_mask)
    for missing in options:
        with pytest.raises(GeneratorError, match=f"{missing} is missing"):
            build(**{missing: None})


def test_another_length_and_resolution(tiny_bundle: ModelBundle) -> None:
    preset = tiny_bundle.preset.with_size(13, 48, 64)
    given_ = inputs(preset)
    tokens = torch.randn(1, 5, 32)
    got = build_conditions(tiny_bundle.codec, *(given_[n] for n in INPUTS), preset, image_tokens=tokens)
    assert got.condition.shape == (1, 16, 4, 6, 16)
    with torch.no_grad():
        network = tiny_bundle.transformer
        assert network(got.condition, torch.tensor([1.0]), network.prepare(got)).shape == got.condition.shape


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("image", torch.zeros(1, 3, 32, 32), "image is"),
        ("rgb", torch.zeros(1, 3, 8, 32, 48), "robot_rgb is"),
        ("xyz01", torch.full((1, 3, 9, 32, 48), float("nan")), "robot_xyz01 holds NaN"),
        ("mask", torch.zeros(9, 32, 48), "beside a mask of"),
    ],
)
def test_bad_arrays_are_refused_with_their_name(
    tiny_bundle: ModelBundle, name: str, value: torch.Tensor, words: str
) -> None:
    given_ = inputs(tiny_bundle.preset) | {name: value}
    with pytest.raises(GeneratorError, match=words) as caught:
        build_conditions(tiny_bundle.codec, *(given_[n] for n in INPUTS), tiny_bundle.preset)
    assert caught.value.code is ErrorCode.GENERATOR_BAD_REQUEST


def test_sizes_that_leave_half_a_patch_are_refused(tiny_bundle: ModelBundle) -> None:
    given_ = {n: t[..., :40] for n, t in inputs(tiny_bundle.preset).items()}
    with pytest.raises(GeneratorError, match="the images are 32 x 40"):
        build_conditions(tiny_bundle.codec, *(given_[n] for n in INPUTS), tiny_bundle.preset)


def test_the_ablation_table_has_every_row_of_the_paper() -> None:
    table = ablation_table()
    assert {spec.ablation for spec in table.values()} == set(Ablation)
    assert sorted(spec.soft_ratio for name, spec in table.items() if name.startswith("soft")) == [0, 0.1, 0.2, 0.5, 0.7]
    assert len(set(table.values())) == len(table)


@pytest.mark.parametrize(
    ("trained", "possible"),
    [
        (ConditionSpec(), {"no_mask", "soft_0", "soft_10", "soft_20", "soft_50", "soft_70"}),
        (ConditionSpec(mask=False), {"no_mask"}),
        (ConditionSpec(Ablation.NO_MASK), {"no_mask"}),
        (ConditionSpec(Ablation.POINTMAP), {"pointmap"}),
    ],
)
def test_only_the_mask_can_be_ablated_without_training(
    tiny: Preset, trained: ConditionSpec, possible: set[str]
) -> None:
    preset = tiny.with_condition(trained)
    for name, row in ablation_table().items():
        if name in possible:
            changed = ablate(preset, name)
            assert changed.condition.ablation is row.ablation
            assert changed.condition.soft_ratio == row.soft_ratio
            continue
        with pytest.raises(GeneratorError, match=f"'{name}' needs a network trained for it") as caught:
            ablate(preset, name)
        assert caught.value.code is ErrorCode.ARGUMENT_INVALID
        listed = caught.value.expected.removeprefix("one of ").partition(" for ")[0].split(", ")
        assert set(listed) == possible
        assert "kinema4d train" in caught.value.hint
    with pytest.raises(GeneratorError, match="'soft_33' is unknown"):
        ablate(preset, "soft_33")


def test_an_ablation_keeps_the_rest_of_the_condition() -> None:
    nano = load_preset("nano")
    assert ablate(nano, "soft_10") == nano
    assert ablate(nano, "soft_70").condition == dataclasses.replace(nano.condition, soft_ratio=0.7)


def test_robot_videos_ignore_what_lies_outside_the_mask() -> None:
    rgb, xyz01, mask = torch.rand(1, 3, 2, 4, 6), torch.rand(1, 3, 2, 4, 6), torch.rand(1, 2, 4, 6) < 0.5
    other = torch.where(mask[:, None], xyz01, torch.full_like(xyz01, 7.0))
    for a, b in zip(
        robot_videos(rgb, xyz01, mask, Ablation.RGB_POINTMAP),
        robot_videos(rgb, other, mask, Ablation.RGB_POINTMAP),
        strict=True,
    ):
        assert a is not None
        assert b is not None
        assert torch.equal(a, b)
