from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from support.training_examples import SweptSquares
from support.training_runs import make_run, tiny_linear

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.conditioning import build_conditions, downsample_mask
from kinema4d_model.preset import Preset, load_preset
from kinema4d_model.preset_parts import ConditionSpec
from kinema4d_model.training.config import AugmentSpec
from kinema4d_model.training.examples import Example, picture, values, video
from kinema4d_model.training.latents import LatentSet, collate, encode_example, encode_source
from kinema4d_model.training.randomness import generator
from kinema4d_model.training.stages import make_bundle
from kinema4d_ros.core.errors import DataError, ErrorCode

PLAIN = AugmentSpec(soft_ratio=0.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    make_run(folder, episodes=7, validation=0)
    return folder


@pytest.fixture(scope="module")
def bundle(run: Path) -> ModelBundle:
    return make_bundle(make_run(run, validation=0), run)


def test_latents_equal_the_inputs_of_the_sampler(run: Path, bundle: ModelBundle) -> None:
    preset = bundle.preset
    stored = LatentSet(run / "latents" / "train", preset)
    assert len(stored) == 7
    for number in (0, 4, 6):
        example = SweptSquares(preset, 7).load(number)
        sample = stored.sample(number, PLAIN, generator(0))
        assert sample.name == example.name
        inputs = example.inputs
        expected = build_conditions(
            bundle.codec,
            picture(inputs.image[None]),
            video(inputs.robot_rgb),
            values(inputs.robot_xyz01),
            torch.from_numpy(inputs.robot_mask.astype(np.float32))[None],
            preset.with_condition(dataclasses.replace(preset.condition, soft_ratio=0.0)),
            composite=(video(inputs.composite_rgb), values(inputs.composite_xyz01)),
        )
        for name, tensor in vars(expected).items():
            found = getattr(sample.conditions, name)
            assert (found is None) == (tensor is None), name
            if tensor is not None:
                torch.testing.assert_close(found, tensor, rtol=1e-3, atol=1e-3)
        truth = bundle.codec.encode_pair(video(example.truth_rgb), 2 * values(example.truth_xyz01) - 1)
        torch.testing.assert_close(sample.target, truth[0], rtol=1e-3, atol=1e-3)


def test_dynamic_and_focus_maps_mark_moving_objects(run: Path, bundle: ModelBundle) -> None:
    preset = bundle.preset
    example = SweptSquares(preset, 7).load(2)
    sample = LatentSet(run / "latents" / "train", preset).sample(2, PLAIN, generator(0))
    for found, pixels in ((sample.dynamic, example.dynamic), (sample.focus, example.focus)):
        naive = np.zeros(found.shape, bool)
        for t, i, j in zip(*np.nonzero(pixels), strict=True):
            naive[(t + 3) // 4, i // 8, j // 8] = True
        assert np.array_equal(found.numpy(), naive)
        assert naive.any()


def test_masks_are_stored_as_one_bit_per_cell(run: Path) -> None:
    with safe_open(str(run / "latents" / "train" / "00000.safetensors"), framework="pt") as file:
        assert file.get_tensor("mask").shape == (5, 3 * 4 * 6 // 8)
        assert file.get_tensor("mask").dtype == torch.uint8
        assert file.get_tensor("target").dtype == torch.float16


def test_augmentation_follows_the_generator(run: Path, bundle: ModelBundle) -> None:
    stored = LatentSet(run / "latents" / "train", bundle.preset)
    plain = stored.sample(1, PLAIN, generator(0)).conditions
    soft = stored.sample(1, AugmentSpec(soft_ratio=0.5), generator(0)).conditions
    occupied = int((plain.robot_mask == 1).sum())
    assert int((soft.robot_mask == 0.5).sum()) == occupied // 2
    assert torch.equal(soft.mask[0, 0, 1:, :, :6], soft.robot_mask[0, 1:])
    noisy = AugmentSpec(soft_ratio=0.0, pointmap_noise=0.3, noise_ratio=1.0)
    one, same, other = (stored.sample(1, noisy, generator(s)).conditions.robot_latents for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    difference = one - plain.robot_latents
    inside = downsample_mask(plain.robot_mask, 4, 6, 1)[0] > 0
    assert not difference[..., :6].any()
    assert not difference[..., 6:][:, :, ~inside].any()
    assert float(difference[..., 6:][:, :, inside].std()) == pytest.approx(0.3, rel=0.2)
    never = AugmentSpec(soft_ratio=0.0, pointmap_noise=0.3, noise_ratio=0.0)
    assert torch.equal(stored.sample(1, never, generator(1)).conditions.robot_latents, plain.robot_latents)


def test_batches_stack_their_samples(run: Path, bundle: ModelBundle) -> None:
    stored = LatentSet(run / "latents" / "train", bundle.preset)
    samples = [stored.sample(i, PLAIN, generator(i)) for i in (5, 0)]
    target, conditions, dynamic, focus = collate(samples)
    for i, sample in enumerate(samples):
        assert torch.equal(target[i], sample.target)
        assert torch.equal(conditions.mask[i : i + 1], sample.conditions.mask)
        assert torch.equal(dynamic[i], sample.dynamic)
        assert torch.equal(focus[i], sample.focus)


class Counting(SweptSquares):
    """Source that records loaded examples and can fail at one of them."""

    def __init__(self, preset: Preset, count: int, broken: int | None = None, truth: float | None = None) -> None:
        super().__init__(preset, count)
        self.loaded: list[int] = []
        self._broken = broken
        self._truth = truth

    def load(self, number: int) -> Example:
        self.loaded.append(number)
        example = super().load(number)
        if number != self._broken:
            return example
        if self._truth is not None:
            points = example.truth_xyz01.copy()
            points[3, 5, 5] = self._truth
            return dataclasses.replace(example, truth_xyz01=points)
        return dataclasses.replace(example, inputs=dataclasses.replace(example.inputs, image=example.inputs.image[:8]))


def test_encoding_resumes_after_an_interruption(bundle: ModelBundle, tmp_path: Path) -> None:
    broken = Counting(bundle.preset, 7, broken=5)
    with pytest.raises(DataError, match=r"episode 'square-0-0005': image is .*8"):
        encode_source(bundle, broken, tmp_path, shard_episodes=2)
    assert not (tmp_path / "index.json").exists()
    with pytest.raises(DataError, match="no latents"):
        LatentSet(tmp_path, bundle.preset)
    source = Counting(bundle.preset, 7)
    done: list[int] = []
    encode_source(bundle, source, tmp_path, shard_episodes=2, progress=done.append)
    assert source.loaded == [4, 5, 6]
    assert sum(done) == 7
    whole = tmp_path / "whole"
    encode_source(bundle, Counting(bundle.preset, 7), whole, shard_episodes=2)
    names = sorted(path.name for path in whole.glob("*.safetensors"))
    assert names == [f"{i:05d}.safetensors" for i in range(4)]
    for name in names:
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes()


def test_several_processes_share_the_shards(bundle: ModelBundle, tmp_path: Path) -> None:
    sources = [Counting(bundle.preset, 5) for _ in range(2)]
    for rank in (1, 0):
        encode_source(bundle, sources[rank], tmp_path, shard_episodes=1, rank=rank, processes=2)
    assert [s.loaded for s in sources] == [[0, 2, 4], [1, 3]]
    assert len(LatentSet(tmp_path, bundle.preset)) == 5


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_latents_that_are_not_finite_name_the_episode(bundle: ModelBundle, tmp_path: Path, value: float) -> None:
    with pytest.raises(DataError, match=r"square-0-0001.*not finite"):
        encode_source(bundle, Counting(bundle.preset, 2, broken=1, truth=value), tmp_path, shard_episodes=4)


def test_latents_of_other_data_or_codec_are_refused(bundle: ModelBundle, tmp_path: Path) -> None:
    encode_source(bundle, SweptSquares(bundle.preset, 2), tmp_path, shard_episodes=2)
    encode_source(bundle, SweptSquares(bundle.preset, 2), tmp_path, shard_episodes=2)
    with pytest.raises(DataError, match="other episodes") as caught:
        encode_source(bundle, SweptSquares(bundle.preset, 3), tmp_path, shard_episodes=2)
    assert caught.value.code is ErrorCode.FILE_NOT_WRITABLE
    other = ModelBundle.from_preset(bundle.preset)
    other.codec.vae.load_state_dict(bundle.codec.vae.state_dict())
    encode_source(other, SweptSquares(bundle.preset, 2), tmp_path, shard_episodes=2)
    other.codec.vae.first_mean += 0.1
    with pytest.raises(DataError, match="another codec"):
        encode_source(other, SweptSquares(bundle.preset, 2), tmp_path, shard_episodes=2)
    softer = dataclasses.replace(bundle.preset.condition, soft_ratio=0.7)
    bundle_softer = dataclasses.replace(bundle, preset=bundle.preset.with_condition(softer))
    encode_source(bundle_softer, SweptSquares(bundle.preset, 2), tmp_path, shard_episodes=2)


def test_damaged_latents_are_refused_with_the_episode_s_name(bundle: ModelBundle, tmp_path: Path) -> None:
    encode_source(bundle, SweptSquares(bundle.preset, 4), tmp_path, shard_episodes=2)
    shard = tmp_path / "00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    stored = LatentSet(tmp_path, bundle.preset)
    stored.sample(0, PLAIN, generator(0))
    with pytest.raises(DataError, match="square-0-0003"):
        stored.sample(3, PLAIN, generator(0))
    index = json.loads((tmp_path / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(index | {"fingerprint": "another"}))
    with pytest.raises(DataError, match="not of the same latents"):
        LatentSet(tmp_path, bundle.preset)


def test_latents_of_another_size_are_refused(run: Path, bundle: ModelBundle) -> None:
    with pytest.raises(DataError, match=r"expected \(16, 3, 8, 12\)"):
        LatentSet(run / "latents" / "train", bundle.preset.with_size(9, 64, 48))


def test_a_network_with_image_tokens_and_without_a_composite(tmp_path: Path) -> None:
    """Wan's own conditioning: zeros after the first frame, CLIP tokens, no composite."""
    tiny = ModelBundle.from_preset(load_preset("tiny"), seed=1)
    source = SweptSquares(tiny.preset, 2)
    encode_source(tiny, source, tmp_path, shard_episodes=2)
    sample = LatentSet(tmp_path, tiny.preset).sample(1, PLAIN, generator(0))
    assert sample.conditions.base_latents is None
    row = encode_example(tiny, source.load(1))
    assert sorted(row) == ["condition", "dynamic", "focus", "image_tokens", "mask", "robot", "target"]
    assert sample.conditions.image_tokens is not None
    assert sample.conditions.image_tokens.shape == (1, 5, 32)
    assert torch.equal(sample.conditions.condition[0], row["condition"].float())
    assert tiny_linear().condition == ConditionSpec(soft_ratio=0.1, fill="composite")
