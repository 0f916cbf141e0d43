"""Tests of `DiffusionGenerator`: rollouts, provenance, sessions, chunks, confidence."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.model_inputs import wake
from support.requests import robot_of_a_square

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.pipeline.backend import DiffusionGenerator
from kinema4d_model.pipeline.inputs import prepare_inputs, shrink_request
from kinema4d_model.pipeline.kinema_pipeline import KinemaPipeline, Prediction
from kinema4d_model.pipeline.session import Session, chunk_seed, chunk_slices
from kinema4d_model.preset import Preset
from kinema4d_ros.core.errors import Cancelled, ErrorCode, FileFormatError, GeneratorError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.generators import GenerateRequest, Generator, Progress, load_generator
from kinema4d_ros.generators.composite import CompositeGenerator


def request(frames: int = 9, seed: int = 7, **size: int) -> GenerateRequest:
    robot = robot_of_a_square(frames=frames, **size)
    shape = (robot.camera.height, robot.camera.width, 3)
    image = np.random.default_rng(0).integers(60, 200, shape, dtype=np.uint8)
    return GenerateRequest(image, robot, plan_hash="d" * 64, seed=seed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = ModelBundle.from_preset("tiny", seed=1)
    wake(bundle.transformer)
    path = tmp_path_factory.mktemp("weights") / "tiny"
    bundle.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def generator(folder: Path) -> Generator:
    torch.set_num_threads(1)
    return load_generator("tiny", checkpoint=str(folder), device="cpu")


def same(first: Rollout, second: Rollout) -> bool:
    return np.array_equal(first.rgb, second.rgb) and np.array_equal(first.xyz, second.xyz, equal_nan=True)


def test_the_rollout_is_at_the_cameras_size_with_the_exact_robot(generator: Generator) -> None:
    asked = request()
    rollout = generator.generate(asked)
    rollout.check_points()
    mask = asked.robot.mask
    assert rollout.rgb.shape == (9, 48, 72, 3)
    assert np.array_equal(rollout.robot_mask, mask)
    assert np.array_equal(rollout.xyz[mask], asked.robot.xyz[mask])
    assert asked.robot.rgb is not None
    assert np.array_equal(rollout.rgb[mask], asked.robot.rgb[mask])
    # Every point lies on its pixel's ray, so it projects back to that pixel.
    known = np.isfinite(rollout.xyz[4]).all(-1)
    assert known.any()
    pixels = asked.camera.project(rollout.xyz[4][known].astype(np.float64))
    v, u = np.nonzero(known)
    assert np.abs(pixels - np.stack([u + 0.5, v + 0.5], 1)).max() < 0.01


def test_provenance_records_the_inputs_and_options(generator: Generator, folder: Path, tmp_path: Path) -> None:
    asked = request()
    rollout = generator.generate(asked)
    made = rollout.provenance
    assert (made.generator, made.preset, made.seed) == ("diffusion", "tiny", 7)
    assert made.checkpoint_sha256 == ModelBundle.from_pretrained(folder).sha256
    assert made.input_sha256 == CompositeGenerator().generate(asked).provenance.input_sha256
    assert "resized from and to 72 x 48" in made.versions["network size"]
    assert "2 steps x 1 pass" in made.versions["recipe"]
    assert {"torch", "diffusers", "metric", "chunks", "device"} <= set(made.versions)
    assert made.metric_residual_m > 0
    assert rollout.plan_hash == asked.plan_hash
    assert same(Rollout.load(rollout.save(tmp_path / "rollout")), rollout)


def test_equal_requests_give_equal_rollouts(generator: Generator, folder: Path) -> None:
    first = generator.generate(request())
    other = load_generator("tiny", checkpoint=str(folder), device="cpu")
    assert same(other.generate(request()), first)
    assert not same(generator.generate(request(seed=8)), first)


def test_the_networks_own_size_needs_no_resizing(generator: Generator) -> None:
    asked = request(width=48, height=32)
    rollout = generator.generate(asked)
    rollout.check_points()
    assert rollout.provenance.versions["network size"] == "48 x 32"


def test_long_rollouts_are_chained(generator: Generator) -> None:
    told: list[Progress] = []
    asked = request(20)
    rollout = generator.generate(asked, told.append)
    rollout.check_points()
    assert len(rollout) == 20
    assert rollout.provenance.versions["chunks"] == "3 of up to 9 frames"
    steps = [p for p in told if p.phase == "sample"]
    assert [p.step for p in steps] == [0, 1, 2, 2, 3, 4, 4, 5, 6]
    assert {p.steps for p in steps} == {6}
    assert isinstance(generator, DiffusionGenerator)
    assert generator.details is not None
    assert len(generator.details.drift) == len(generator.details.fits) == 3
    assert all(d.world_rgb > 0 for d in generator.details.drift)
    assert all(d.robot_m > 0 and d.robot_rgb > 0 for d in generator.details.drift[:2])
    # The square has left the image by then, so there is no fit.
    assert not asked.robot.mask[16:].any()
    assert np.isnan(generator.details.drift[2].robot_m)
    # The first chunk does not depend on the others.
    assert np.array_equal(rollout.rgb[:9], generator.generate(request(9)).rgb)


@pytest.mark.parametrize("frames", [1, 2, 9, 10, 17, 18])
def test_chunks_cover_every_frame_and_share_one(frames: int) -> None:
    parts = chunk_slices(frames, 9)
    assert parts[0].start == 0
    assert parts[-1].stop == frames
    for before, after in itertools.pairwise(parts):
        assert after.start == before.stop - 1
    assert all(0 < p.stop - p.start <= 9 for p in parts)
    assert len({chunk_seed(2**64 - 1, i) for i in range(100)}) == 100


@pytest.mark.parametrize("stop_at", range(4))
def test_cancellation_stops_in_any_chunk(generator: Generator, stop_at: int) -> None:
    told: list[Progress] = []
    with pytest.raises(Cancelled):
        generator.generate(request(17), told.append, lambda: Progress("sample", stop_at, 4) in told)
    assert told[-1] in (Progress("sample", stop_at, 4), Progress("decode", 1, 1), Progress("encode", 1, 1))


def test_confidence_comes_from_several_seeds(folder: Path, generator: Generator) -> None:
    several = DiffusionGenerator(preset="tiny", checkpoint=folder, device="cpu", seeds=3)
    asked = request()
    rollout = several.generate(asked)
    assert several.details is not None
    confidence = several.details.confidence
    assert confidence is not None
    assert confidence.seeds == 3
    assert confidence.value.shape == asked.robot.mask.shape
    assert (confidence.value[asked.robot.mask] == 1).all()
    assert 0 < confidence.value[~asked.robot.mask].mean() < 1
    assert several.details.passes == 6
    # The rollout is that of one seed, not a mean.
    assert same(rollout, generator.generate(asked))


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"seeds": 0}, ErrorCode.GENERATOR_BAD_REQUEST),
        ({"colour": "red"}, ErrorCode.GENERATOR_BAD_REQUEST),
        ({"spec": "giant"}, ErrorCode.GENERATOR_UNAVAILABLE),
        ({"spec": "nowhere/giant.yaml"}, ErrorCode.FILE_MISSING),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], code: ErrorCode) -> None:
    with pytest.raises((GeneratorError, FileFormatError)) as caught:
        load_generator(**{"spec": "tiny", "random_weights": True, **options})
    assert caught.value.code == code


@pytest.mark.parametrize("preset", ["nano", "wan14b", "wan14b_fast"])
def test_missing_weights_name_the_folder_and_the_command(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINEMA4D_CHECKPOINTS", str(tmp_path / "nowhere"))
    with pytest.raises(FileFormatError) as caught:
        load_generator(preset)
    assert caught.value.code == ErrorCode.FILE_MISSING
    assert str(tmp_path / "nowhere" / preset.split("_")[0]) in caught.value.what
    assert ("fetch-weights" in caught.value.hint) == preset.startswith("wan14b")
    assert "--checkpoint" in caught.value.hint or "fetch-weights" in caught.value.hint


def test_require_metric_fails_without_a_fit(folder: Path) -> None:
    strict = DiffusionGenerator(preset="tiny", checkpoint=folder, device="cpu", require_metric=True)
    with pytest.raises(GeneratorError) as caught:
        strict.generate(request())
    assert caught.value.code == ErrorCode.METRIC_REFUSED


class Oracle(KinemaPipeline):
    """Pipeline that predicts the composite exactly, in affine units from which metres must be recovered."""

    def __init__(self, bundle: ModelBundle) -> None:
        super().__init__(bundle, device="cpu")

    def __call__(self, inputs, seed, progress=None, cancel=None, encoded=None):
        values = inputs.composite_xyz01[: inputs.frames] * (0.7, 1.3, 0.5) + (0.1, -0.2, 0.3)
        return Prediction(inputs.composite_rgb[: inputs.frames], values.astype(np.float32), 1)


def test_an_affine_prediction_is_converted_to_metres(tiny: Preset) -> None:
    # A square parallel to the image has no depth to fit: tilt it.
    robot = robot_of_a_square(frames=5, width=96, height=64)
    z = np.where(robot.mask, 0.4 + 0.002 * np.arange(64)[:, None], np.nan)
    robot = replace(robot, xyz=(robot.camera.rays() * z[..., None]).astype(np.float32))
    image = np.full((64, 96, 3), 128, np.uint8)
    bundle = ModelBundle.from_preset(tiny.with_size(5, 64, 96))
    session = Session(Oracle(bundle), image, robot.camera)
    chunk = session.advance(robot)
    assert not chunk.fit.refused
    assert chunk.fit.residual_m < 1e-4
    truth = CompositeGenerator().generate(GenerateRequest(image, robot))
    known = np.isfinite(truth.xyz).all(-1)
    assert np.abs(chunk.frames.xyz[known] - truth.xyz[known]).max() < 1e-3
    assert chunk.off_ray_m < 1e-3
    assert chunk.drift.world_rgb < 3


def test_a_session_steps_with_a_policys_actions(generator: Generator) -> None:
    assert isinstance(generator, DiffusionGenerator)
    whole = robot_of_a_square(frames=12)
    image = np.random.default_rng(0).integers(60, 200, (48, 72, 3), dtype=np.uint8)
    position = 0

    def render(actions: list[int]):
        nonlocal position
        frames = [position, *actions]
        position = actions[-1]
        assert whole.rgb is not None
        return replace(whole, xyz=whole.xyz[frames], link_ids=whole.link_ids[frames], times=None, rgb=whole.rgb[frames])

    session = Session(generator.pipeline, image, whole.camera, seed=1, render=render)
    first = session.step([1, 2, 3, 4])
    assert first.rgb.shape == (4, 48, 72, 3)
    assert np.array_equal(first.xyz[3][whole.mask[4]], whole.xyz[4][whole.mask[4]])
    second = session.step([5, 6])
    assert len(second.rgb) == 2
    assert len(session.drift) == 2
    with pytest.raises(GeneratorError):
        Session(generator.pipeline, image, whole.camera).step([1])
    with pytest.raises(GeneratorError):
        session.advance(robot_of_a_square(width=36, height=24))


def test_options_override_the_folders_own_preset(tiny: Preset, tmp_path: Path) -> None:
    from kinema4d_model.checkpoints.loading import load_bundle

    own = replace(tiny, sampler=replace(tiny.sampler, steps=7, shift=2.0), prediction="residual")
    ModelBundle.from_preset(own).save_pretrained(tmp_path / "weights")
    loaded = load_bundle("tiny", tmp_path / "weights").preset
    assert (loaded.sampler.steps, loaded.sampler.shift, loaded.prediction) == (7, 2.0, "residual")
    changed = load_bundle("tiny", tmp_path / "weights", sampler={"steps": 3}, speed={"tiling": True}).preset
    assert (changed.sampler.steps, changed.sampler.shift, changed.speed.tiling) == (3, 2.0, True)
    other = load_bundle(replace(tiny, name="tiny_fast"), tmp_path / "weights").preset
    assert (other.name, other.sampler.steps, other.prediction) == ("tiny_fast", 2, "residual")


def test_compiled_kernels_do_not_change_torchs_thread_count(generator: Generator) -> None:
    assert isinstance(generator, DiffusionGenerator)
    asked = shrink_request(request(), 48, 32)
    inputs, _ = prepare_inputs(asked, CompositeGenerator(), 4)
    generator.pipeline(inputs, 0)
    assert torch.get_num_threads() == 1
