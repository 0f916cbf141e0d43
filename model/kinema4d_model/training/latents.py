"""Encoded episodes as training samples: read in place from shards, so that any number fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from kinema4d_model.conditioning import Conditions, mask_channels, soft_robot_mask
from kinema4d_model.preset import Preset
from kinema4d_model.training.config import AugmentSpec
from kinema4d_model.training.encode import FORMAT, INDEX
from kinema4d_ros.core.errors import DataError, ErrorCode, FileFormatError
from kinema4d_ros.io.files import read_json, reading

__all__ = ["LatentSet", "Sample", "collate"]


@dataclass(frozen=True)
class Sample:
    """One episode: F, h, w are latent frames, rows and columns of a half; float32 on the CPU."""

    name: str
    target: torch.Tensor
    """(C, F, h, 2w), what really happened."""
    conditions: Conditions
    """Of a batch of one."""
    dynamic: torch.Tensor
    """(F, h, w) bool: the truth differs from the composite."""
    focus: torch.Tensor
    """(F, h, w) bool: an object that can move is seen."""


class LatentSet:
    """A folder that `encode_source` wrote."""

    def __init__(self, folder: str | Path, preset: Preset) -> None:
        self.folder = Path(folder)
        self._preset = preset
        index = self.folder / INDEX
        try:
            document = read_json(index)
            self.fingerprint = str(document["fingerprint"])
            self.names: Sequence[str] = [str(name) for name in document["names"]]
            self._per_shard = int(document["shard_episodes"])
            known = document["format"] == FORMAT
            if self._per_shard < 1:
                raise ValueError(f"{self._per_shard} episodes a shard")
        except (FileFormatError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise DataError(
                f"{self.folder} holds no latents ({type(error).__name__})",
                expected=f"a complete {INDEX}",
                hint="encode them: `kinema4d train --stage encode`",
                code=ErrorCode.FILE_MISSING,
            ) from None
        if not known or not self.names:
            raise DataError(f"{index} is not an index of latents, or an empty one", expected=FORMAT)
        self._files: dict[int, Any] = {}
        with reading(self.folder, "latents of this preset", error=DataError):
            self._check(self._read(0))

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.names)

    def sample(self, number: int, augment: AugmentSpec, generator: torch.Generator) -> Sample:
        """Sample `number`, with what the generator chooses to make worse."""
        with reading(self.folder, "latents of this preset", error=DataError):
            return self._sample(number, augment, generator)

    def _sample(self, number: int, augment: AugmentSpec, generator: torch.Generator) -> Sample:
        row, preset = self._read(number), self._preset
        grid = (preset.latent_frames, preset.latent_height, preset.latent_width)
        mask, dynamic, focus = (_cells(row[name], grid) for name in ("mask", "dynamic", "focus"))
        robot_mask = soft_robot_mask(mask[None].float(), preset.condition, generator, augment.soft_ratio)
        robot = row["robot"].float()[None]
        # Drawn whether it is used or not: what follows must not depend on chance.
        noisy = float(torch.rand((), generator=generator)) < augment.noise_ratio
        if augment.pointmap_noise and noisy:
            half = robot.shape[-1] // 2
            noise = torch.randn(robot[..., half:].shape, generator=generator) * augment.pointmap_noise
            robot[..., half:] += noise * mask[None, None]
        base = row["base"].float()[None] if "base" in row else None
        condition = row["condition"].float()[None] if "condition" in row else base
        conditions = Conditions(
            mask=mask_channels(
                robot_mask,
                (1, *grid),
                preset.robot.variant,
                environment=preset.condition.environment,
                channels=preset.codec.temporal_factor,
            ),
            condition=condition if condition is not None else torch.zeros_like(robot),
            robot_latents=robot,
            robot_mask=torch.zeros(1, *grid) if robot_mask is None else robot_mask,
            image_tokens=row["image_tokens"].float()[None] if "image_tokens" in row else None,
            base_latents=base,
            carried=row["carried"].float()[None] if "carried" in row else None,
            description=row["description"][None] if "description" in row else None,
            actions=row["actions"][None] if "actions" in row else None,
        )
        return Sample(self.names[number], row["target"].float(), conditions, dynamic, focus)

    def _read(self, number: int) -> dict[str, torch.Tensor]:
        shard, within = divmod(number, self._per_shard)
        path = self.folder / f"{shard:05d}.safetensors"
        try:
            if shard not in self._files:
                file = safe_open(str(path), framework="pt")
                if (file.metadata() or {}).get("fingerprint") != self.fingerprint:
                    raise DataError(f"{path} is not of the same latents as {INDEX}", hint="encode them again")
                self._files[shard] = file
            file = self._files[shard]
            return {name: file.get_slice(name)[within] for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, IndexError) as error:
            raise DataError(
                f"latents of episode '{self.names[number]}' in {path} cannot be read: {error}",
                hint="remove the file and encode again",
            ) from None

    def _check(self, row: dict[str, torch.Tensor]) -> None:
        preset = self._preset
        grid = (preset.latent_frames, preset.latent_height, 2 * preset.latent_width)
        expected = (preset.codec.latent_channels, *grid)
        missing = [] if preset.prediction == "velocity" or "base" in row else ["base"]
        if missing or tuple(row["target"].shape) != expected:
            raise DataError(
                f"{self.folder} holds latents of {tuple(row['target'].shape)}{' without a composite' * len(missing)}",
                expected=f"{expected} of preset '{preset.name}'",
            )


def _cells(bits: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
    count = grid[0] * grid[1] * grid[2]
    return torch.from_numpy(np.unpackbits(bits.numpy(), count=count).reshape(grid).astype(bool))


def collate(samples: Sequence[Sample]) -> tuple[torch.Tensor, Conditions, torch.Tensor, torch.Tensor]:
    """Targets (B, C, F, h, 2w), conditions, dynamic and focus maps (B, F, h, w) of a batch."""
    first = samples[0].conditions
    joined: dict[str, Any] = {
        name: None if value is None else torch.cat([getattr(s.conditions, name) for s in samples])
        for name, value in vars(first).items()
    }
    return (
        torch.stack([s.target for s in samples]),
        Conditions(**joined),
        torch.stack([s.dynamic for s in samples]),
        torch.stack([s.focus for s in samples]),
    )
