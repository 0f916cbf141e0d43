"""Tests of the pipeline on the tiny model: determinism, and the error bound of every speed option."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.model_inputs import wake

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.pipeline.inputs import NetworkInputs
from kinema4d_model.pipeline.kinema_pipeline import KinemaPipeline
from kinema4d_model.preset import Preset
from kinema4d_model.preset_parts import SpeedSpec
from kinema4d_model.sampling import initial_noise
from kinema4d_model.speed import attention_backends
from kinema4d_ros.core.errors import Cancelled, GeneratorError, SetupError
from kinema4d_ros.generators import Progress

SEED = 3
STEPS = 4


@pytest.fixture(scope="module")
def inputs() -> NetworkInputs:
    rng = np.random.default_rng(0)
    shape = (9, 32, 48)
    mask = np.zeros(shape, bool)
    mask[:, 8:20, 10:30] = True

    def picture(*size: int) -> np.ndarray:
        return rng.integers(0, 256, (*size, 3), dtype=np.uint8)

    return NetworkInputs(
        picture(*shape[1:]),
        picture(*shape) * mask[..., None],
        rng.random((*shape, 3)).astype(np.float32),
        mask,
        picture(*shape),
        rng.random((*shape, 3)).astype(np.float32),
        np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]),
        shape[0],
    )


def pipeline(preset: Preset, sampler: dict | None = None, **speed: object) -> KinemaPipeline:
    bundle = ModelBundle.from_preset(preset, seed=1)
    wake(bundle.transformer)
    chosen = replace(preset.sampler, **{"steps": STEPS, **(sampler or {})})
    return KinemaPipeline(bundle, sampler=chosen, speed=SpeedSpec(**speed), device="cpu")  # type: ignore[arg-type]


def latents(pipe: KinemaPipeline, inputs: NetworkInputs, seed: int = SEED) -> torch.Tensor:
    return pipe.sample(pipe.encode(inputs, SEED), seed)[0]


@pytest.fixture(scope="module")
def plain(inputs: NetworkInputs) -> torch.Tensor:
    from kinema4d_model.preset import load_preset

    torch.set_num_threads(1)
    return latents(pipeline(load_preset("tiny")), inputs)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_the_same_seed_inputs_and_weights_give_the_same_prediction(tiny: Preset, inputs: NetworkInputs) -> None:
    first, second = pipeline(tiny), pipeline(tiny)
    one, two = first(inputs, SEED), second(inputs, SEED)
    assert np.array_equal(one.rgb, two.rgb)
    assert np.array_equal(one.values, two.values)
    assert one.rgb.shape == one.values.shape == (9, 32, 48, 3)
    assert np.array_equal(first(inputs, SEED).values, one.values)
    assert not np.array_equal(first(inputs, SEED + 1).values, one.values)
    shared = first.encode(inputs, SEED)
    assert np.array_equal(first(inputs, SEED, encoded=shared).values, one.values)


@pytest.mark.parametrize(
    "speed",
    [{"cache_threshold": 0.0}, {"attention": "native"}, {"offload": "model"}, {"tiling": True}],
    ids=lambda s: next(iter(s)),
)
def test_options_that_keep_the_result(
    tiny: Preset, inputs: NetworkInputs, plain: torch.Tensor, speed: dict[str, object]
) -> None:
    assert torch.equal(latents(pipeline(tiny, **speed), inputs), plain)


@pytest.mark.parametrize(
    ("speed", "bound"),
    [
        ({"attention": "_native_math"}, 1e-5),
        ({"offload": "group"}, 1e-5),
        ({"compile": True, "compile_backend": "eager"}, 1e-5),
        ({"dtype": "bfloat16"}, 0.03),
        ({"quantise": "int8"}, 0.02),
        ({"quantise": "fp8"}, 0.08),
        ({"dtype": "bfloat16", "quantise": "int8", "tiling": True, "offload": "model"}, 0.04),
    ],
    ids=lambda s: "+".join(s) if isinstance(s, dict) else "",
)
def test_options_that_stay_within_a_bound(
    tiny: Preset, inputs: NetworkInputs, plain: torch.Tensor, speed: dict[str, object], bound: float
) -> None:
    pipe = pipeline(tiny, **speed)
    off = relative(latents(pipe, inputs), plain)
    assert off < bound
    if "dtype" in speed or "quantise" in speed:
        assert off > 0
    assert pipe.notes


def test_quantised_blocks_hold_one_byte_weights(tiny: Preset) -> None:
    pipe = pipeline(tiny, quantise="int8")
    weight = pipe.bundle.transformer.blocks[0].ffn.net[2].weight
    assert weight.qdata.dtype == torch.int8
    assert pipe.bundle.transformer.proj_out.weight.dtype == torch.float32


def test_a_cache_skips_passes_and_stays_close(tiny: Preset, inputs: NetworkInputs, plain: torch.Tensor) -> None:
    pipe = pipeline(tiny, cache_threshold=0.9)
    encoded = pipe.encode(inputs, SEED)
    found, passes, skipped = pipe.sample(encoded, SEED)
    assert passes == STEPS
    assert 0 < skipped < STEPS
    assert relative(found, plain) < 0.5
    # A second rollout starts without cached state of the first.
    again, _, skipped_again = pipe.sample(encoded, SEED)
    assert torch.equal(found, again)
    assert skipped == skipped_again


def test_compat_guidance_equals_the_formula(tiny: Preset, inputs: NetworkInputs) -> None:
    pipe = pipeline(tiny, {"guidance": "compat", "guidance_scale": 5.0, "steps": 2})
    encoded = pipe.encode(inputs, SEED)
    found, passes, _ = pipe.sample(encoded, SEED)
    assert passes == 4
    network = pipe.bundle.transformer
    x = initial_noise(encoded.shape, SEED)
    levels = [3 * s / (1 + 2 * s) for s in (1.0, 0.5, 0.0)]
    with torch.inference_mode():
        for now, then in ((levels[0], levels[1]), (levels[1], levels[2])):
            time = torch.tensor([1000 * now])
            prepared = encoded.prepared
            once = network(x, time, prepared)
            doubled = replace(prepared, condition=prepared.condition + prepared.injection)
            twice = network(x, time, doubled)
            x = x + (then - now) * (5 * once - 4 * twice)
    assert relative(found, x) < 1e-4
    single = latents(pipeline(tiny, {"steps": 2}), inputs)
    assert relative(found, single) > 1e-3


def test_residual_presets_start_from_the_composite(tiny: Preset, inputs: NetworkInputs) -> None:
    preset = replace(tiny, prediction="residual")
    pipe = pipeline(preset)
    with torch.no_grad():
        pipe.bundle.transformer.proj_out.weight.zero_()
        pipe.bundle.transformer.proj_out.bias.zero_()
    encoded = pipe.encode(inputs, SEED)
    assert encoded.base_latents is not None
    # A network that predicts a zero residual gives the composite for any noise.
    assert relative(pipe.sample(encoded, SEED)[0], encoded.base_latents) < 1e-4


@pytest.mark.parametrize("stop_at", [0, 1, 2, 3, 4])
def test_cancellation_at_every_step(tiny: Preset, inputs: NetworkInputs, stop_at: int) -> None:
    pipe = pipeline(tiny)
    told: list[Progress] = []
    with pytest.raises(Cancelled):
        pipe(inputs, SEED, told.append, lambda: Progress("sample", stop_at, STEPS) in told)
    assert told[-1] == Progress("sample", stop_at, STEPS)
    assert pipe(inputs, SEED).passes == STEPS


def test_progress_counts_every_step(tiny: Preset, inputs: NetworkInputs) -> None:
    told: list[Progress] = []
    pipeline(tiny)(inputs, SEED, told.append)
    assert [p for p in told if p.phase == "sample"] == [Progress("sample", i, STEPS) for i in range(STEPS + 1)]
    assert [p.phase for p in told if p.phase != "sample"] == ["encode", "encode", "decode", "decode"]


def test_tiles_stay_close_to_the_whole(tiny: Preset, inputs: NetworkInputs, plain: torch.Tensor) -> None:
    pipe = pipeline(tiny, tiling=True)
    whole = pipe.decode(plain, 9).rgb
    vae = pipe.bundle.codec.vae
    vae.tile_sample_min_height = vae.tile_sample_min_width = 32
    vae.tile_sample_stride_height = vae.tile_sample_stride_width = 16
    tiled = pipe.decode(plain, 9).rgb
    assert not np.array_equal(tiled, whole)
    # Blended borders differ where a tile does not see its neighbour; the middle of the first tile is the same.
    assert np.abs(tiled[:, :8, :8].astype(int) - whole[:, :8, :8]).max() <= 24
    assert np.abs(tiled.astype(int) - whole).mean() < 6


def test_an_adapter_changes_the_prediction_and_costs_no_pass(tiny: Preset, inputs: NetworkInputs, tmp_path) -> None:
    from safetensors.torch import save_file

    from kinema4d_model.checkpoints.loading import load_bundle
    from kinema4d_model.checkpoints.lora import lora_shapes

    bundle = ModelBundle.from_preset(tiny, seed=1)
    wake(bundle.transformer)
    bundle.save_pretrained(tmp_path / "model")
    generator = torch.Generator().manual_seed(0)
    shapes = lora_shapes(bundle.transformer, 4)
    save_file(
        {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()},
        tmp_path / "distilled.safetensors",
    )
    few = replace(tiny, sampler=replace(tiny.sampler, steps=1))
    without = load_bundle(few, tmp_path / "model")
    with_it = load_bundle(few, tmp_path / "model", tmp_path / "distilled.safetensors")
    assert not any("lora" in name for name, _ in with_it.transformer.named_parameters())
    assert with_it.sha256 != without.sha256
    first, second = (KinemaPipeline(b, device="cpu")(inputs, SEED) for b in (without, with_it))
    assert first.passes == second.passes == 1
    assert not np.array_equal(first.values, second.values)


def test_warm_up_keeps_the_sampler(tiny: Preset, inputs: NetworkInputs, plain: torch.Tensor) -> None:
    pipe = pipeline(tiny)
    pipe.warm_up()
    assert pipe.sampler.steps == STEPS
    assert torch.equal(latents(pipe, inputs), plain)


@pytest.mark.parametrize(
    ("speed", "error"),
    [
        ({"attention": "telepathy"}, GeneratorError),
        ({"attention": "flash"}, SetupError),
        ({"quantise": "int1"}, GeneratorError),
        ({"offload": "cloud"}, GeneratorError),
        ({"cache_threshold": 2.0}, GeneratorError),
        ({"context_parallel": 2}, SetupError),
    ],
    ids=lambda s: next(iter(s)) if isinstance(s, dict) else "",
)
def test_unsupported_options_are_refused(
    tiny: Preset, inputs: NetworkInputs, speed: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        latents(pipeline(tiny, **speed), inputs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="checks a machine without CUDA")
def test_a_missing_device_is_named(tiny: Preset) -> None:
    with pytest.raises(SetupError, match="cuda"):
        KinemaPipeline(ModelBundle.from_preset(tiny), device="cuda")


def test_the_attention_dispatcher_is_restored(tiny: Preset) -> None:
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry

    before = _AttentionBackendRegistry.get_active_backend()[0]
    pipeline(tiny, attention="_native_math")
    assert _AttentionBackendRegistry.get_active_backend()[0] == before
    assert "native" in attention_backends()
