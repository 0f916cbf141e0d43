"""Episodes to latents, once: sharded safetensors, resumable, masks in bits; training then never sees a pixel.

LATENTS/index.json          what was encoded with which codec: a mismatch is refused
LATENTS/00000.safetensors   `shard_episodes` episodes, tensors stacked, complete or not there
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.conditioning import build_conditions, downsample_mask
from kinema4d_model.pipeline.kinema_pipeline import carry_tensors
from kinema4d_model.preset import Preset
from kinema4d_model.training.examples import Example, ExampleSource, picture, values, video
from kinema4d_ros.core.errors import DataError, ErrorCode, KinemaError
from kinema4d_ros.io.files import read_json, replacing_file

__all__ = ["INDEX", "encode_example", "encode_source", "fingerprint"]

INDEX = "index.json"
FORMAT = "kinema4d-latents-1"
STORED = torch.float16


def fingerprint(bundle: ModelBundle, source_identity: str) -> str:
    """What latents depend on: examples, sizes, condition, weights of codec and image encoder."""
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
    """Cells are softened in training, differently each time."""
    return preset.with_condition(dataclasses.replace(preset.condition, soft_ratio=0.0))


@torch.no_grad()
def encode_example(bundle: ModelBundle, example: Example) -> dict[str, torch.Tensor]:
    """The tensors of one example, without a batch axis; maps of cells as bits."""
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
        raise DataError(f"episode '{example.name}' encodes to numbers that are not finite ({', '.join(bad)})")
    return stored


def _any_pixel(pixels: NDArray[np.bool_], height: int, width: int, factor: int) -> torch.Tensor:
    """(F, h, w) bool: any pixel of the cell in any frame of the group."""
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
    """Encode every example that is not encoded yet.

    Args:
        bundle: codec and image encoder.
        source: the examples.
        folder: of the latents.
        shard_episodes: episodes in a file.
        rank, processes: this process encodes every `processes`-th file.
        progress: told how many examples were done since it was last called.
        finish: called when this process has no more to do; returns when all have.
    """
    mark = fingerprint(bundle, source.identity)
    names = list(source.names)
    document: dict[str, Any] = {"format": FORMAT, "fingerprint": mark, "shard_episodes": shard_episodes, "names": names}
    _refuse_other(folder, document)
    folder.mkdir(parents=True, exist_ok=True)
    twice = len(names) - len(set(names))
    if twice:
        raise DataError(f"{twice} episodes have a name that another has", expected="every name once")
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
    """Latents of other data, another codec or another condition must not be mixed with these."""
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
