from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from support.training_examples import SweptSquares
from support.training_runs import tiny_linear

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.codec.linear import LinearAutoencoder, LinearCodec
from kinema4d_model.codec.video_codec import VideoCodec
from kinema4d_model.preset import load_preset
from kinema4d_model.preset_parts import CodecSpec
from kinema4d_model.training.codec_task import PatchStatistics, fit_linear_codec
from kinema4d_model.training.config import CodecFitSpec
from kinema4d_model.training.examples import values, video
from kinema4d_ros.core.errors import FileFormatError, GeneratorError

SPEC = CodecSpec(kind="linear", latent_channels=16)


SOURCE = SweptSquares(tiny_linear(), 6)


@lru_cache
def fit(channels: int = 16, align: bool = True, whiten: float = 0.5) -> LinearCodec:
    return fit_linear_codec(
        dataclasses.replace(SPEC, latent_channels=channels), SOURCE, CodecFitSpec(align=align, whiten=whiten)
    )


@pytest.fixture
def fitted() -> LinearCodec:
    return fit()


def random_codec(channels: int, seed: int = 0) -> LinearCodec:
    """Set random orthonormal bases, means and scales."""
    codec = LinearCodec.from_spec(dataclasses.replace(SPEC, latent_channels=channels))
    generator = torch.Generator().manual_seed(seed)
    for part in ("first", "group"):
        basis = getattr(codec.vae, f"{part}_basis")
        for m in range(2):
            matrix = torch.randn(basis.shape[2], channels, generator=generator)
            basis[m] = torch.linalg.qr(matrix)[0].T
        getattr(codec.vae, f"{part}_mean").copy_(0.1 * torch.randn(2, basis.shape[2], generator=generator))
        getattr(codec.vae, f"{part}_scale").copy_(0.5 + torch.rand(2, channels, generator=generator))
    return codec


def test_encoding_equals_a_loop_over_patches() -> None:
    codec = random_codec(5)
    clip = torch.rand(1, 3, 9, 16, 24) * 2 - 1
    latents = codec.vae.encode(clip, 1)
    assert latents.shape == (1, 5, 3, 2, 3)
    for f, (frames, part) in enumerate(((slice(0, 1), "first"), (slice(1, 5), "group"), (slice(5, 9), "group"))):
        for i in range(2):
            for j in range(3):
                patch = clip[0, :, frames, 8 * i : 8 * i + 8, 8 * j : 8 * j + 8].reshape(-1)
                table = [getattr(codec.vae, f"{part}_{name}")[1] for name in ("basis", "mean", "scale")]
                expected = table[0] @ (patch - table[1]) / table[2]
                torch.testing.assert_close(latents[0, :, f, i, j], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("modality", [0, 1])
def test_videos_in_the_span_of_the_basis_round_trip(modality: int) -> None:
    codec = random_codec(7)
    latents = torch.randn(2, 7, 3, 2, 3)
    torch.testing.assert_close(
        codec.vae.encode(codec.vae.decode(latents, modality), modality), latents, rtol=1e-4, atol=1e-4
    )


def test_with_as_many_channels_as_a_patch_has_the_first_frame_is_exact() -> None:
    codec = random_codec(192)
    image = torch.rand(1, 3, 1, 16, 24) * 2 - 1
    torch.testing.assert_close(codec.decode(codec.encode(image)), image, rtol=1e-4, atol=1e-5)


def test_decoding_is_the_transpose_of_encoding() -> None:
    """For orthonormal bases without mean and scale: <encode x, z> = <x, decode z>."""
    codec = random_codec(9)
    for part in ("first", "group"):
        getattr(codec.vae, f"{part}_mean").zero_()
        getattr(codec.vae, f"{part}_scale").fill_(1)
    clip, latents = torch.randn(1, 3, 5, 16, 16), torch.randn(1, 9, 2, 2, 2)
    left = (codec.vae.encode(clip, 0) * latents).sum()
    right = (clip * codec.vae.decode(latents, 0)).sum()
    torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("align", [True, False])
def test_fitted_bases_are_orthonormal_and_alignment_keeps_their_span(align: bool) -> None:
    codec = fit(align=align)
    for part in ("first", "group"):
        for m in range(2):
            basis = getattr(codec.vae, f"{part}_basis")[m]
            torch.testing.assert_close(basis @ basis.T, torch.eye(16), rtol=0, atol=1e-5)
    other = fit(align=not align)
    for m in range(2):
        a, b = codec.vae.group_basis[m], other.vae.group_basis[m]
        torch.testing.assert_close(a.T @ a, b.T @ b, rtol=0, atol=1e-4)


def test_alignment_makes_still_patches_similar() -> None:
    """For static images, latents of later groups vary between cells as those of the first frame do."""
    still = torch.cat([video(SOURCE.load(i).truth_rgb)[:, :, :1] for i in range(6)]).repeat(1, 1, 5, 1, 1)
    likeness = []
    for align in (False, True):
        first, second = fit(align=align, whiten=0.0).encode(still).unbind(2)
        centred = [part - part.mean((0, 2, 3), keepdim=True) for part in (first, second)]
        likeness.append(float(torch.nn.functional.cosine_similarity(*centred, dim=1).mean()))
    assert likeness[1] > 0.95
    assert likeness[1] > likeness[0] + 0.05


def test_components_equal_numpys() -> None:
    rng = np.random.default_rng(0)
    patches = rng.normal(size=(400, 12)) @ rng.normal(size=(12, 12)) + 3
    statistics = PatchStatistics(12)
    for part in np.split(patches, 4):
        statistics.add(torch.from_numpy(part).float(), torch.ones(100))
    mean, basis, variances = statistics.components(4)
    _, singular, rows = np.linalg.svd(patches - patches.mean(0), full_matrices=False)
    np.testing.assert_allclose(mean.numpy(), patches.mean(0), rtol=1e-4)
    np.testing.assert_allclose(np.abs((basis.numpy() * rows[:4]).sum(1)), 1, atol=1e-3)
    np.testing.assert_allclose(variances.numpy(), singular[:4] ** 2 / 400, rtol=1e-3)


def test_weighting_equals_repeating_patches() -> None:
    patches = torch.randn(50, 6)
    weighted, repeated = PatchStatistics(6), PatchStatistics(6)
    weighted.add(patches, torch.cat([torch.full((10,), 3.0), torch.ones(40)]))
    repeated.add(torch.cat([patches, patches[:10], patches[:10]]), torch.ones(70))
    for a, b in zip(weighted.components(6), repeated.components(6), strict=True):
        torch.testing.assert_close(a.abs(), b.abs(), rtol=1e-3, atol=1e-4)


def test_more_channels_lower_the_error_on_unseen_images() -> None:
    unseen = SweptSquares(tiny_linear(), 2, seed=9).load(1)
    rgb, xyz = video(unseen.truth_rgb), 2 * values(unseen.truth_xyz01) - 1
    errors = []
    for channels in (4, 16, 64):
        codec = fit(channels)
        said = codec.decode_pair(codec.encode_pair(rgb, xyz))
        errors.append(float((said[0] - rgb).square().mean() + (said[1] - xyz).square().mean()))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.01


@pytest.mark.parametrize("whiten", [0.0, 1.0])
def test_whitening_divides_by_the_components_standard_deviations(whiten: float) -> None:
    scale = fit(whiten=whiten).vae.group_scale[0]
    assert (scale.max() / scale.min() < 1.0001) == (whiten == 0.0)
    basis, weighted = fit(whiten=whiten).vae.group_basis[0], fit(whiten=1.0).vae.group_scale[0]
    assert torch.equal(basis, fit(whiten=1.0).vae.group_basis[0])
    patches = fit().vae._patches(torch.cat([video(SOURCE.load(i).truth_rgb) for i in range(6)])[:, :, 1:], 4)
    spread = (patches.flatten(0, -2) @ basis.T).std(0)
    # The order by size is kept, although moving patches had a higher weight in the fit.
    assert float(torch.corrcoef(torch.stack([spread.log(), weighted.log()]))[0, 1]) > 0.8


def test_each_half_has_its_own_basis(fitted: LinearCodec) -> None:
    example = SOURCE.load(1)
    rgb, xyz = video(example.truth_rgb), 2 * values(example.truth_xyz01) - 1
    pair = fitted.encode_pair(rgb, xyz)
    assert torch.equal(pair[..., : pair.shape[-1] // 2], fitted.encode(rgb))
    assert torch.equal(pair[..., pair.shape[-1] // 2 :], fitted.encode_xyz(xyz))
    assert not torch.allclose(fitted.encode(xyz), fitted.encode_xyz(xyz))
    said = fitted.decode_pair(pair)
    assert all(float(half.abs().max()) <= 1 for half in said)
    wide = torch.cat([rgb, xyz], dim=-1)
    assert torch.equal(fitted.encode_first(wide), pair)
    for refused in (fitted.to_xyz, fitted.from_xyz):
        with pytest.raises(GeneratorError, match="one basis for images"):
            refused(pair)


def test_later_frames_do_not_change_earlier_latents(fitted: LinearCodec) -> None:
    clip = torch.rand(1, 3, 9, 32, 48) * 2 - 1
    other = clip.clone()
    other[:, :, 5:] *= -1
    a, b = fitted.encode(clip), fitted.encode(other)
    assert torch.equal(a[:, :, :2], b[:, :, :2])
    assert not torch.allclose(a[:, :, 2], b[:, :, 2])


@pytest.mark.parametrize("shape", [(2, 16, 16), (9, 12, 16), (9, 16, 20)])
def test_sizes_that_do_not_divide_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(GeneratorError, match="cannot encode a video of"):
        random_codec(4).encode(torch.zeros(1, 3, *shape))


def test_a_bundle_saves_and_loads_the_codec(fitted: LinearCodec, tmp_path: Path) -> None:
    preset = tiny_linear()
    bundle = ModelBundle.from_preset(preset, seed=3)
    bundle.codec.vae.load_state_dict(fitted.vae.state_dict())
    bundle.save_pretrained(tmp_path / "model")
    loaded = ModelBundle.from_pretrained(tmp_path / "model", verify=True)
    assert isinstance(loaded.codec, LinearCodec)
    assert loaded.preset == preset
    clip = torch.rand(1, 3, 9, 32, 48) * 2 - 1
    assert torch.equal(loaded.codec.encode_pair(clip, clip), fitted.encode_pair(clip, clip))


def test_kinds_of_codec() -> None:
    assert isinstance(VideoCodec.from_spec(SPEC), LinearCodec)
    assert type(VideoCodec.from_spec(load_preset("tiny").codec)) is VideoCodec
    with pytest.raises(GeneratorError, match="200 latent channels"):
        LinearAutoencoder(200)
    preset = tiny_linear()
    with pytest.raises(FileFormatError, match="exceeds the 192 of a patch"):
        dataclasses.replace(preset, codec=dataclasses.replace(preset.codec, latent_channels=193))
