"""Latents: encode episodes once (`encode_source`) and read them as training samples (`LatentSet`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.conditioning import Conditions, build_conditions, downsample_mask, mask_channels, soft_robot_mask
from kinema4d_model.pipeline.kinema_pipeline import carry_tensors
from kinema4d_model.preset import Preset
from kinema4d_model.training.config import AugmentSpec
from kinema4d_model.training.examples import Example, ExampleSource, picture, values, video
from kinema4d_ros.core.errors import DataError, ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.io.files import read_json, reading, replacing_file

__all__ = ["INDEX", "LatentSet", "Sample", "collate", "encode_example", "encode_source", "fingerprint"]

# Encoding to sharded safetensors: resumable, masks as bits; training then reads no pixels.
#
# LATENTS/index.json          names and fingerprint of data and codec; a mismatch is an error
# LATENTS/00000.safetensors   `shard_episodes` episodes, tensors stacked, complete or absent

INDEX = "index.json"
FORMAT = "kinema4d-latents-1"
STORED = torch.float16


def fingerprint(bundle: ModelBundle, source_identity: str) -> str:
    """Return a hash of everything that latents depend on: examples, sizes, condition, codec and encoder weights."""
    preset = bundle.preset
    document = {
        "source": source_identity,
        "size": [preset.frames, preset.height, preset.width],
        "codec": repr(preset.codec),
        "robot": preset.robot.variant,
        "condition": repr(_hard(preset).condition),
        "prediction": preset.prediction,
    }
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode())
    for module in (bundle.codec, bundle.image_encoder):
        for name, tensor in [] if module is None else sorted(module.state_dict().items()):
            digest.update(name.encode() + tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _hard(preset: Preset) -> Preset:
    """Return the preset without softened cells; training softens them randomly."""
    return preset.with_condition(dataclasses.replace(preset.condition, soft_ratio=0.0))


@torch.no_grad()
def encode_example(bundle: ModelBundle, example: Example) -> dict[str, torch.Tensor]:
    """Return the tensors of one example, without a batch axis; cell maps as bits."""
    preset, codec, inputs = bundle.preset, bundle.codec, example.inputs
    device = next((t.device for t in [*codec.parameters(), *codec.buffers()]), torch.device("cpu"))
    image = picture(inputs.image[None]).to(device)
    composite = None
    if preset.prediction == "residual":
        composite = (video(inputs.composite_rgb).to(device), values(inputs.composite_xyz01).to(device))
    carried = description = None
    if preset.condition.carry:
        carried, description = carry_tensors(inputs, device)
    actions = None if example.actions is None else torch.from_numpy(example.actions)[None].to(device)
    conditions = build_conditions(
        codec,
        image,
        video(inputs.robot_rgb).to(device),
        values(inputs.robot_xyz01).to(device),
        torch.from_numpy(inputs.robot_mask.astype(np.float32))[None].to(device),
        _hard(preset),
        image_tokens=None if bundle.image_encoder is None else bundle.image_encoder(image),
        composite=composite,
        carried=carried,
        description=description,
        environment_xyz01=values(inputs.composite_xyz01[:1])[:, :, 0].to(device),
        actions=actions,
    )
    truth = codec.encode_pair(video(example.truth_rgb).to(device), 2 * values(example.truth_xyz01).to(device) - 1)
    grid = (conditions.robot_mask.shape[-2], conditions.robot_mask.shape[-1], preset.codec.temporal_factor)
    found: dict[str, torch.Tensor | None] = {
        "target": truth,
        "robot": conditions.robot_latents,
        "condition": None if preset.condition.fill == "composite" else conditions.condition,
        "base": conditions.base_latents,
        "carried": conditions.carried,
        "image_tokens": conditions.image_tokens,
    }
    stored = {name: tensor[0].to("cpu", STORED) for name, tensor in found.items() if tensor is not None}
    if conditions.description is not None:
        stored["description"] = conditions.description[0].cpu()
    if conditions.actions is not None:
        stored["actions"] = conditions.actions[0].cpu()
    stored["mask"] = _bits(conditions.robot_mask[0] > 0)
    stored["dynamic"] = _bits(_any_pixel(example.dynamic, *grid))
    stored["focus"] = _bits(_any_pixel(example.focus, *grid))
    bad = [name for name, tensor in stored.items() if tensor.is_floating_point() and not torch.isfinite(tensor).all()]
    if bad:
        raise DataError(f"episode '{example.name}' encodes to values that are not finite ({', '.join(bad)})")
    return stored


def _any_pixel(pixels: NDArray[np.bool_], height: int, width: int, factor: int) -> torch.Tensor:
    """Return (F, h, w) bool: any pixel of the cell in any frame of the group."""
    frames, rows, columns = pixels.shape
    cells = pixels.reshape(frames, height, rows // height, width, columns // width).any((2, 4))
    return downsample_mask(torch.from_numpy(cells)[None], height, width, factor)[0] > 0


def _bits(cells: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.packbits(cells.cpu().numpy().astype(bool).reshape(-1)))


def encode_source(
    bundle: ModelBundle,
    source: ExampleSource,
    folder: Path,
    *,
    shard_episodes: int,
    rank: int = 0,
    processes: int = 1,
    progress: Callable[[int], object] = lambda done: None,
    finish: Callable[[], None] = lambda: None,
) -> None:
    """Encode all examples that are not encoded yet.

    Args:
        bundle: codec and image encoder.
        source: the examples.
        folder: of the latents.
        shard_episodes: episodes per file.
        rank, processes: this process encodes every `processes`-th file.
        progress: called with the number of examples done since the last call.
        finish: called when this process is done; returns when all processes are.
    """
    mark = fingerprint(bundle, source.identity)
    names = list(source.names)
    document: dict[str, Any] = {"format": FORMAT, "fingerprint": mark, "shard_episodes": shard_episodes, "names": names}
    _refuse_other(folder, document)
    folder.mkdir(parents=True, exist_ok=True)
    twice = len(names) - len(set(names))
    if twice:
        raise DataError(f"{twice} episodes have a duplicate name", expected="unique names")
    for shard in range(rank, -(-len(names) // shard_episodes), processes):
        numbers = range(shard * shard_episodes, min(len(names), (shard + 1) * shard_episodes))
        path = folder / f"{shard:05d}.safetensors"
        if not path.is_file():
            _write_shard(bundle, source, numbers, path, mark, progress)
        else:
            progress(len(numbers))
    finish()
    if rank == 0:
        with replacing_file(folder / INDEX) as temporary:
            temporary.write_text(json.dumps(document) + "\n", encoding="utf-8")
    finish()


def _write_shard(
    bundle: ModelBundle,
    source: ExampleSource,
    numbers: range,
    path: Path,
    mark: str,
    progress: Callable[[int], object],
) -> None:
    rows = []
    for number in numbers:
        try:
            rows.append(encode_example(bundle, source.load(number)))
        except KinemaError as error:
            name = source.names[number]
            if name in error.what:
                raise
            raise DataError(f"episode '{name}': {error.what}", expected=error.expected, code=error.code) from error
        progress(1)
    stacked = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    with replacing_file(path) as temporary:
        save_file(stacked, temporary, metadata={"fingerprint": mark})
        with temporary.open("rb") as file:
            os.fsync(file.fileno())


def _refuse_other(folder: Path, document: dict[str, Any]) -> None:
    """Raise DataError if the folder holds latents of other data, another codec or another condition."""
    from safetensors import safe_open

    found = ""
    if (folder / INDEX).is_file():
        document_there = read_json(folder / INDEX)
        found = str(document_there.get("fingerprint")) if isinstance(document_there, dict) else "?"
    else:
        for path in sorted(folder.glob("[0-9]*.safetensors"))[:1]:
            with safe_open(str(path), framework="pt") as file:
                found = str((file.metadata() or {}).get("fingerprint"))
    if found and found != document["fingerprint"]:
        raise DataError(
            f"{folder} holds latents of other episodes, another codec or another condition",
            expected=f"fingerprint {document['fingerprint'][:12]}, found {found[:12]}",
            hint="choose another data.latents or --out, or remove the folder",
            code=ErrorCode.FILE_NOT_WRITABLE,
        )


@dataclass(frozen=True)
class Sample:
    """One episode: F, h, w are latent frames, rows and columns of a half; float32 on the CPU."""

    name: str
    target: torch.Tensor
    """(C, F, h, 2w), latents of the ground truth."""
    conditions: Conditions
    """With a batch axis of one."""
    dynamic: torch.Tensor
    """(F, h, w) bool: the truth differs from the composite."""
    focus: torch.Tensor
    """(F, h, w) bool: the cell shows a movable object."""


class LatentSet:
    """Samples of a folder written by `encode_source`, read in place, so that the set may exceed memory."""

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
                raise ValueError(f"{self._per_shard} episodes per shard")
        except (FileFormatError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise DataError(
                f"{self.folder} holds no latents ({type(error).__name__})",
                expected=f"a complete {INDEX}",
                hint="encode them: `kinema4d train --stage encode`",
                code=ErrorCode.FILE_MISSING,
            ) from None
        if not known or not self.names:
            raise DataError(f"{index} is not an index of latents, or is empty", expected=FORMAT)
        self._files: dict[int, Any] = {}
        with reading(self.folder, "latents of this preset", error=DataError):
            self._check(self._read(0))

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.names)

    def sample(self, number: int, augment: AugmentSpec, generator: torch.Generator) -> Sample:
        """Read sample `number` with random augmentation."""
        with reading(self.folder, "latents of this preset", error=DataError):
            return self._sample(number, augment, generator)

    def _sample(self, number: int, augment: AugmentSpec, generator: torch.Generator) -> Sample:
        row, preset = self._read(number), self._preset
        grid = (preset.latent_frames, preset.latent_height, preset.latent_width)
        mask, dynamic, focus = (_cells(row[name], grid) for name in ("mask", "dynamic", "focus"))
        robot_mask = soft_robot_mask(mask[None].float(), preset.condition, generator, augment.soft_ratio)
        robot = row["robot"].float()[None]
        # Always draw, even if unused, so that later random numbers do not depend on the choice.
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
                    raise DataError(f"{path} is not of the same latents as {INDEX}", hint="encode the episodes again")
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
    """Return targets (B, C, F, h, 2w), conditions, dynamic and focus maps (B, F, h, w) of a batch."""
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
