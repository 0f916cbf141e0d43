"""The linear codec from data: exact covariances of patches, their principal components, one pass, no gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from kinema4d_model.codec.linear import LinearAutoencoder, LinearCodec
from kinema4d_model.preset_parts import CodecSpec
from kinema4d_model.training.config import CodecFitSpec
from kinema4d_model.training.examples import Example, ExampleSource, values, video
from kinema4d_ros.core.errors import GeneratorError

__all__ = ["PatchStatistics", "fit_linear_codec"]


class PatchStatistics:
    """Weighted count, sum and product of patches (N, D), in float64."""

    def __init__(self, size: int) -> None:
        self.weight = 0.0
        self.total = torch.zeros(size, dtype=torch.float64)
        self.product = torch.zeros(size, size, dtype=torch.float64)

    def add(self, patches: torch.Tensor, weight: torch.Tensor) -> None:
        """Add patches (N, D) with weights (N,)."""
        heavy = patches * weight[:, None]
        self.weight += float(weight.double().sum())
        self.total += heavy.double().sum(0)
        # The product in float32: patches are in [-1, 1], and an episode has few thousand of them.
        self.product += (patches.T @ heavy).double()

    def components(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mean (D,), the first `count` orthonormal components (count, D), and their variances (count,)."""
        if not self.weight:
            raise GeneratorError("no patches to fit a codec to", expected="at least one episode")
        mean = self.total / self.weight
        covariance = self.product / self.weight - torch.outer(mean, mean)
        variances, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
        basis = vectors.flip(1)[:, :count].T
        # A component's sign is arbitrary: the same on every machine, so that latents mean the same.
        signs = torch.sign(basis.gather(1, basis.abs().argmax(1, keepdim=True)))
        return mean, basis * signs, variances.flip(0)[:count].clamp(min=0)

    def variances(self, basis: torch.Tensor) -> torch.Tensor:
        """Variance (C,) of the data along the rows of a basis (C, D)."""
        mean = self.total / self.weight
        covariance = self.product / self.weight - torch.outer(mean, mean)
        return ((basis @ covariance) * basis).sum(1).clamp(min=0)


def fit_linear_codec(
    spec: CodecSpec,
    source: ExampleSource,
    fit: CodecFitSpec,
    progress: Callable[[int], object] = lambda done: None,
) -> LinearCodec:
    """A codec for the examples of a source: truth, composite and robot alike, moving things with more weight."""
    codec = LinearCodec.from_spec(spec)
    vae = codec.vae
    sizes = {"first": vae.first_mean.shape[1], "group": vae.group_mean.shape[1]}
    statistics = {(part, m): PatchStatistics(size) for part, size in sizes.items() for m in range(2)}
    count = len(source.names) if fit.episodes is None else min(fit.episodes, len(source.names))
    # Spread over the whole set: neighbours in it may be of one scene.
    for number in np.linspace(0, len(source.names) - 1, count).astype(int):
        _add(vae, statistics, source.load(int(number)), fit)
        progress(1)
    for m in range(2):
        first_mean, first, variances = statistics["first", m].components(spec.latent_channels)
        group_mean, group, _ = statistics["group", m].components(spec.latent_channels)
        if fit.align:
            group = _align(group, first * variances.sqrt()[:, None], spec.temporal_factor)
        for part, mean, basis in (("first", first_mean, first), ("group", group_mean, group)):
            deviation = statistics[part, m].variances(basis).sqrt()
            typical = deviation.square().mean().sqrt().clamp(min=1e-6)
            scale = deviation.clamp(min=1e-4) ** fit.whiten * typical ** (1 - fit.whiten)
            for name, tensor in (("basis", basis), ("mean", mean), ("scale", scale)):
                getattr(vae, f"{part}_{name}")[m] = tensor.float()
    return codec


def _add(
    vae: LinearAutoencoder,
    statistics: dict[tuple[str, int], PatchStatistics],
    example: Example,
    fit: CodecFitSpec,
) -> None:
    """Truth everywhere; the composite where it differs from it; the robot alone where it is, and once its black."""
    inputs = example.inputs
    moving, robot = _maps((example.dynamic | example.focus), inputs.robot_mask)
    inside = inputs.robot_mask[..., None]
    alone = (np.where(inside, inputs.robot_rgb, 0).astype(np.uint8), np.where(inside, inputs.robot_xyz01, 0))
    clips = [
        (video(rgb), 2 * values(xyz01) - 1)
        for rgb, xyz01 in (
            (example.truth_rgb, example.truth_xyz01),
            (inputs.composite_rgb, inputs.composite_xyz01),
            alone,
        )
    ]
    factor = vae.config.temporal_factor
    for part, frames, chosen in (("first", 1, slice(0, 1)), ("group", factor, slice(1, None))):
        share, robot_share = (vae._patches(w[:, :, chosen], frames).flatten(0, -2).amax(1) for w in (moving, robot))
        if not len(share):
            continue
        weight = (1 + fit.focus_weight * share) * torch.where(robot_share > 0, fit.robot_weight, 1.0)
        for m in range(2):
            truth, composite, drawn = (vae._patches(c[m][:, :, chosen], frames).flatten(0, -2) for c in clips)
            table = statistics[part, m]
            table.add(truth, weight)
            table.add(composite[share > 0], 0.5 * weight[share > 0])
            table.add(drawn[robot_share > 0], 0.25 * weight[robot_share > 0])
            table.add(torch.full_like(truth[:1], -1), 0.25 * (robot_share == 0).sum()[None])


def _maps(*maps: NDArray[np.bool_]) -> list[torch.Tensor]:
    """(1, 3, T, H, W) float32 of maps (T, H, W), to be cut into patches like a picture."""
    return [torch.from_numpy(m.astype(np.float32))[None, None].expand(-1, 3, -1, -1, -1) for m in maps]


def _align(group: torch.Tensor, first: torch.Tensor, frames: int) -> torch.Tensor:
    """The same subspace, turned so that a patch at rest has about the numbers that its first frame has.

    `first` (C, D / frames) has rows as long as they matter.
    """
    still = first.unflatten(1, (3, 1, -1)).expand(-1, -1, frames, -1).flatten(1)
    left, _, right = torch.linalg.svd(still @ group.T)
    return left @ right @ group
