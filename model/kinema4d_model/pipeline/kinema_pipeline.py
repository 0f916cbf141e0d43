"""`KinemaPipeline`: encode once, sample step by step, decode; arrays in, arrays out.

    NetworkInputs ─ encode ─> Conditions ─ prepare ─> Prepared ─ sample ─> latents ─ decode ─> Prediction

The model is loaded once and stays in memory; a pipeline handles one call at a time.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.conditioning import Conditions, ablate, build_conditions
from kinema4d_model.network import Prepared
from kinema4d_model.pipeline.inputs import NetworkInputs
from kinema4d_model.preset_parts import SamplerSpec, SpeedSpec
from kinema4d_model.sampling import StepCache, initial_noise, sample, velocity_from_residual
from kinema4d_model.speed import apply_speed, choose_device
from kinema4d_ros.generators.carry import DESCRIPTION
from kinema4d_ros.generators.protocol import Cancel, Progress, ReportProgress, raise_if_cancelled

__all__ = ["Encoded", "KinemaPipeline", "Prediction", "carry_tensors"]


@dataclass(frozen=True, eq=False)
class Encoded:
    """Encoded inputs shared by all steps of a rollout; several seeds can be sampled from it."""

    prepared: Prepared
    base_latents: torch.Tensor | None
    shape: tuple[int, ...]
    frames: int


@dataclass(frozen=True, eq=False)
class Prediction:
    """Network output at the network's size, before the metric fit makes `Frames` of it.

    Attributes:
        rgb: (T, H, W, 3) uint8.
        values: (T, H, W, 3) float32 in [0, 1], the pointmap, normalised like the inputs, so not in metres.
        passes: number of network passes.
        skipped: passes that the step cache shortened.
    """

    rgb: NDArray[np.uint8]
    values: NDArray[np.float32]
    passes: int = 0
    skipped: int = 0


class KinemaPipeline:
    """Loaded model with its sampler and speed options.

    Args:
        bundle: the model; the speed options change its modules in place.
        sampler: replaces the preset's.
        speed: replaces the preset's.
        device: "auto", "cpu", "cuda" or "cuda:N".
    """

    def __init__(
        self,
        bundle: ModelBundle,
        *,
        sampler: SamplerSpec | None = None,
        speed: SpeedSpec | None = None,
        device: str = "auto",
    ) -> None:
        self.bundle = bundle
        self.preset = bundle.preset
        self.sampler = sampler or bundle.preset.sampler
        self.speed = speed or bundle.preset.speed
        self.device = choose_device(device)
        self._threads = torch.get_num_threads()
        encoder = bundle.image_encoder
        self._residence, self.notes = apply_speed(
            bundle.transformer, bundle.codec.vae, encoder, self.speed, self.device
        )

    def with_sampler(self, **changes: Any) -> KinemaPipeline:
        """Return the same loaded model with changed sampler settings."""
        other = copy.copy(self)
        other.sampler = replace(self.sampler, **changes)
        return other

    def with_condition(self, **changes: Any) -> KinemaPipeline:
        """Return the same loaded model with changed fields of its condition, such as another normalisation."""
        other = copy.copy(self)
        other.preset = self.preset.with_condition(replace(self.preset.condition, **changes))
        return other

    def with_ablation(self, name: str) -> KinemaPipeline:
        """Return the same loaded model with a row of the paper's ablation table, see `conditions.ablate`."""
        other = copy.copy(self)
        other.preset = ablate(self.preset, name)
        return other

    @property
    def decodes_jointly(self) -> bool:
        """Whether both halves are decoded as one image of double width, as by the released code."""
        choice = self.preset.codec.decoding
        return choice == "joint" or (choice == "auto" and self.sampler.guidance == "compat")

    @torch.no_grad()
    def encode(self, inputs: NetworkInputs, seed: int) -> Encoded:
        """Compute everything that does not depend on noise; the seed selects the softened mask cells."""
        self._take_threads()
        bundle, device = self.bundle, self.device
        generator = torch.Generator("cpu").manual_seed(seed if seed < 2**63 else seed - 2**64)
        image = _picture(inputs.image[None]).to(device)
        composite = carried = description = environment = tokens = None
        if self.preset.prediction == "residual":
            composite = (_video(inputs.composite_rgb).to(device), _values(inputs.composite_xyz01).to(device))
        if self.preset.condition.carry:
            carried, description = carry_tensors(inputs, device)
        if self.preset.condition.environment:
            environment = _values(inputs.composite_xyz01[:1])[:, :, 0].to(device)
        if bundle.image_encoder is not None:
            with self._residence.using(bundle.image_encoder):
                tokens = bundle.image_encoder(image)
        with self._residence.using(bundle.codec.vae):
            conditions: Conditions = build_conditions(
                bundle.codec,
                image,
                _video(inputs.robot_rgb).to(device),
                _values(inputs.robot_xyz01).to(device),
                torch.from_numpy(inputs.robot_mask.astype(np.float32))[None].to(device),
                self.preset,
                image_tokens=tokens,
                composite=composite,
                carried=carried,
                description=description,
                environment_xyz01=environment,
                generator=generator,
            )
        with self._residence.using(bundle.transformer):
            # With group offloading the small layers used here are on the host: move the data there.
            where = bundle.transformer.patch_embedding.weight.device
            prepared = bundle.transformer.prepare(conditions.to(where))
        return Encoded(
            prepared.to(device),
            None if conditions.base_latents is None else conditions.base_latents.to(device),
            tuple(conditions.condition.shape),
            inputs.frames,
        )

    @torch.no_grad()
    def sample(
        self, encoded: Encoded, seed: int, progress: ReportProgress | None = None, cancel: Cancel | None = None
    ) -> tuple[torch.Tensor, int, int]:
        """Return latents (1, 16, F, h, 2w) of a seed, the network passes, and how many the cache shortened."""
        self._take_threads()
        network = self.bundle.transformer
        cache = StepCache(network, self.speed.cache_threshold)
        count = 0

        def denoise(noisy: torch.Tensor, timestep: torch.Tensor, injection_scale: float) -> torch.Tensor:
            nonlocal count
            count += 1
            with cache.for_pass(f"injection {injection_scale:g}"):
                out: torch.Tensor = network(noisy, timestep, encoded.prepared, injection_scale=injection_scale)
            if encoded.base_latents is not None and self.preset.prediction == "residual":
                return velocity_from_residual(out, noisy, timestep, encoded.base_latents)
            return out

        noise = initial_noise(encoded.shape, (seed + self.sampler.noise_seed) % 2**64, device=self.device)
        with self._residence.using(network), cache.active():
            latents = sample(
                denoise,
                noise,
                kind=self.sampler.kind,
                steps=self.sampler.steps,
                shift=self.sampler.shift,
                grid=self.sampler.grid,
                guidance=self.sampler.guidance,
                guidance_scale=self.sampler.guidance_scale,
                progress=progress,
                cancel=cancel,
            )
        return latents, count, cache.skipped

    @torch.no_grad()
    def decode(self, latents: torch.Tensor, frames: int, passes: int = 0, skipped: int = 0) -> Prediction:
        """Decode latents to images and normalised pointmaps; the network passes are those that made the latents."""
        self._take_threads()
        codec = self.bundle.codec
        with self._residence.using(codec.vae):
            rgb, xyz = codec.decode_joint(latents) if self.decodes_jointly else codec.decode_pair(latents)
        pixels = ((rgb[0, :, :frames].float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
        values = (xyz[0, :, :frames].float() + 1) / 2
        return Prediction(
            np.ascontiguousarray(pixels.permute(1, 2, 3, 0).cpu().numpy()),
            np.ascontiguousarray(values.permute(1, 2, 3, 0).cpu().numpy()),
            passes,
            skipped,
        )

    def __call__(
        self,
        inputs: NetworkInputs,
        seed: int,
        progress: ReportProgress | None = None,
        cancel: Cancel | None = None,
        encoded: Encoded | None = None,
    ) -> Prediction:
        """Make one prediction; pass `encoded` to skip encoding for another seed of the same inputs."""
        report = progress or (lambda _: None)
        for_encoding = Progress("encode", 0, 1)
        raise_if_cancelled(cancel, for_encoding)
        if encoded is None:
            report(for_encoding)
            encoded = self.encode(inputs, seed)
            report(Progress("encode", 1, 1))
        latents, passes, skipped = self.sample(encoded, seed, progress, cancel)
        for_decoding = Progress("decode", 0, 1)
        raise_if_cancelled(cancel, for_decoding)
        report(for_decoding)
        prediction = self.decode(latents, encoded.frames, passes, skipped)
        report(Progress("decode", 1, 1))
        return prediction

    def _take_threads(self) -> None:
        # A parallel numba kernel sets OpenMP's thread count, which torch shares, to the number of cores: measured
        # eight times slower for small networks that were configured for one thread.
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

    def warm_up(self) -> None:
        """Run one step on empty inputs at the preset's size, to compile and allocate before the first rollout."""
        p = self.preset
        shape = (p.frames, p.height, p.width)
        pictures, points = np.zeros((*shape, 3), np.uint8), np.zeros((*shape, 3), np.float32)
        inputs = NetworkInputs(
            pictures[0], pictures, points, np.zeros(shape, bool), pictures, points, np.zeros((2, 3)), p.frames
        )
        self.with_sampler(steps=1)(inputs, 0)


def carry_tensors(
    inputs: NetworkInputs, device: torch.device
) -> tuple[tuple[torch.Tensor, torch.Tensor] | None, torch.Tensor]:
    """Convert the carry hypothesis to tensors for `build_conditions`."""
    numbers = inputs.description if inputs.description is not None else np.zeros(len(DESCRIPTION), np.float32)
    carried = None
    if inputs.carried_rgb is not None and inputs.carried_xyz01 is not None:
        carried = (_video(inputs.carried_rgb).to(device), _values(inputs.carried_xyz01).to(device))
    return carried, torch.from_numpy(numbers)[None].to(device)


def _picture(images: NDArray[np.uint8]) -> torch.Tensor:
    """Convert (T, H, W, 3) uint8 to (T, 3, H, W) float32 in [-1, 1]."""
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float() / 127.5 - 1


def _video(images: NDArray[np.uint8]) -> torch.Tensor:
    """Convert (T, H, W, 3) uint8 to (1, 3, T, H, W) float32 in [-1, 1]."""
    return _picture(images).transpose(0, 1)[None]


def _values(values: NDArray[np.float32]) -> torch.Tensor:
    """Convert (T, H, W, 3) to (1, 3, T, H, W)."""
    return torch.from_numpy(np.ascontiguousarray(values)).permute(3, 0, 1, 2)[None]
