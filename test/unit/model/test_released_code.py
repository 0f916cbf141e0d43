"""Our conditions, network, sampling and decoding against the released code, on the same tiny weights and inputs."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.released import HERE, VARIANTS, every, read_inputs

from kinema4d_model.checkpoints.loading import load_bundle
from kinema4d_model.conditioning import Conditions, build_conditions
from kinema4d_model.network import Prepared
from kinema4d_model.pipeline.kinema_pipeline import Encoded, KinemaPipeline
from kinema4d_model.sampling import initial_noise, make_scheduler
from kinema4d_model.training.examples import picture, video

COMPLETE = os.environ.get("KINEMA4D_PARITY", "")
"""Folder of the complete outputs; the repository has a part of each, see `support.released`."""
STORED, OWN = 1e-4, 1e-3
"""Bounds of rms / std: with the released code's image tokens, and with ours."""
SEED = 42

both = pytest.mark.parametrize("variant", ["act", pytest.param("pm", marks=pytest.mark.full)])


@dataclass(frozen=True, eq=False)
class Case:
    """One variant: our model, our conditions from the same pixels, the released outputs."""

    pipeline: KinemaPipeline
    conditions: Conditions
    outputs: dict[str, torch.Tensor]

    def prepared(self, tokens: str) -> Prepared:
        """Our conditions, with our image tokens ("own") or those of the released code ("stored")."""
        chosen = self.conditions
        if tokens == "stored":
            chosen = dataclasses.replace(chosen, image_tokens=self.outputs["image_embeds"])
        return self.pipeline.bundle.transformer.prepare(chosen)

    def difference(self, ours: torch.Tensor, name: str) -> float:
        """Return rms(ours - theirs) / std(theirs) over the stored numbers."""
        theirs = self.outputs[name].flatten().double()
        kept = ours.flatten() if ours.numel() == theirs.numel() else every(ours, name)
        return float((kept.double() - theirs).square().mean().sqrt() / theirs.std())


@lru_cache(maxsize=2)
def load(variant: str) -> Case:
    folder = Path(COMPLETE) if COMPLETE else HERE
    # The released seed is a preset option: a request with seed 0 then starts from the released noise.
    bundle = load_bundle(folder / f"preset_{variant}.yaml", folder / "model", sampler={"noise_seed": SEED})
    pixels = read_inputs(HERE)
    image = picture(pixels["image"][None])
    points = torch.from_numpy(pixels["xyz"].astype(np.float32) / 255).permute(3, 0, 1, 2)[None]
    mask = torch.from_numpy(pixels["mask"].astype(np.float32))[None]
    assert bundle.image_encoder is not None
    tokens = bundle.image_encoder(image)
    conditions = build_conditions(
        bundle.codec, image, video(pixels["rgb"]), points, mask, bundle.preset, image_tokens=tokens
    )
    outputs = load_file(folder / f"official_{variant}.safetensors")
    return Case(KinemaPipeline(bundle, device="cpu"), conditions, outputs)


@both
def test_conditions_are_those_of_the_released_code(variant: str) -> None:
    case = load(variant)
    conditions = case.conditions
    # Theirs: 4 channels of mask, before the robot's is put in (1 for the image, 0.5 for the ramp), 16 of latents.
    mask = torch.zeros_like(conditions.mask)
    mask[:, :, 0] = 1.0
    mask[:, :, 0, :, mask.shape[-1] // 2 :] = 0.5
    assert case.difference(torch.cat([mask, conditions.condition], 1), "condition") < 1e-5
    robot = conditions.robot_mask[:, None].repeat(1, 4, 1, 1, 1)
    latents = conditions.robot_latents
    if variant == "act":
        robot = robot.repeat(1, 1, 1, 1, 2)
    else:
        latents = latents[..., latents.shape[-1] // 2 :]
    assert case.difference(torch.cat([robot, latents], 1), "arm_cond") < 1e-5
    assert conditions.image_tokens is not None
    assert case.difference(conditions.image_tokens, "image_embeds") < 1e-5


@both
@pytest.mark.parametrize(("tokens", "bound"), [("stored", STORED), ("own", OWN)])
def test_one_pass_is_that_of_the_released_code(variant: str, tokens: str, bound: float) -> None:
    case = load(variant)
    network, prepared = case.pipeline.bundle.transformer, case.prepared(tokens)
    noise = initial_noise(case.conditions.condition.shape, SEED)
    with torch.no_grad():
        middle = network(0.7 * noise, torch.tensor([500.0]), prepared)
        # The second pass of a step, which adds the robot twice.
        passes = [network(noise, case.outputs["t0"], prepared, injection_scale=scale) for scale in (1.0, 2.0)]
    assert case.difference(middle, "single_500") < bound
    for index, velocity in enumerate(passes):
        assert case.difference(velocity, f"pass{index}_out") < bound


@pytest.mark.full
@both
@pytest.mark.parametrize(("tokens", "bound"), [("stored", STORED), ("own", OWN)])
def test_six_double_passes_and_the_decoded_frames_are_those_of_the_released_code(
    variant: str, tokens: str, bound: float
) -> None:
    case = load(variant)
    shape = tuple(case.conditions.condition.shape)
    latents, passes, _ = case.pipeline.sample(Encoded(case.prepared(tokens), None, shape, 9), seed=0)
    assert passes == 12
    assert case.difference(latents, "final") < bound
    assert case.pipeline.decodes_jointly
    prediction = case.pipeline.decode(latents, 9)
    points = np.rint(np.clip(255 * prediction.values, 0, 255)).astype(np.uint8)
    ours = torch.from_numpy(np.concatenate([prediction.rgb, points], axis=2))
    theirs = case.outputs["decoded_u8"]
    kept = ours if theirs.shape == ours.shape else every(ours, "decoded_u8")
    off = (kept.int() - theirs.int()).abs()
    assert off.max() <= 1
    assert (off > 0).float().mean() <= 1e-3


@pytest.mark.parametrize("variant", VARIANTS)
def test_noise_levels_are_those_of_the_released_code(variant: str) -> None:
    outputs = load_file(HERE / f"official_{variant}.safetensors")
    assert make_scheduler("unipc", 6, 3.0).timesteps.tolist() == outputs["timesteps"].tolist()


@pytest.mark.skipif(not COMPLETE, reason="KINEMA4D_PARITY does not name the folder of the complete outputs")
def test_the_stored_part_is_that_of_the_complete_outputs() -> None:
    for variant in VARIANTS:
        complete = load_file(Path(COMPLETE) / f"official_{variant}.safetensors")
        for name, part in load_file(HERE / f"official_{variant}.safetensors").items():
            whole = complete[name]
            assert torch.equal(part, whole if part.shape == whole.shape else every(whole, name))
