"""Released files of Kinema4D and 4DNeX: loading, checks of every name and shape, and writing.

kinema4d_ckpt/  or  kinema4d_pmcond_ckpt/
  pytorch_lora_weights.safetensors   LoRA of rank 64; states no alpha, the scale is 0.5 (files we write state it)
  added_weights.safetensors          all parameters that Wan does not have
4DNex-Lora/
  pytorch_lora_weights.safetensors
  learnable_domain_embeddings.pt     a pickle, read by torch's weights-only reader
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file

from kinema4d_model.checkpoints.lora import adapter_metadata, adapter_tensors, add_lora, lora_shapes, stated_alpha
from kinema4d_model.checkpoints.tensor_files import (
    Shape,
    differences,
    load_pickled,
    raise_if,
    read_tensors,
    tensor_shapes,
)
from kinema4d_model.network import KinemaTransformer
from kinema4d_model.preset_parts import LoraSpec
from kinema4d_ros.core.errors import FileFormatError

__all__ = [
    "ADDED_NAMES",
    "OfficialFiles",
    "added_shapes",
    "check_official",
    "find_official",
    "load_4dnex",
    "load_official",
    "require_variant",
    "save_official",
]

LORA_FILE = "pytorch_lora_weights.safetensors"
ADDED_FILE = "added_weights.safetensors"
DOMAIN_FILE = "learnable_domain_embeddings.pt"
SCALE = 0.5
"""alpha / rank of the released adapters' training; their files do not state it."""
ACT_ONLY = "arm_domain_emb"
ADDED_NAMES = {
    "learnable_domain_embeddings": "patch_embedding.domain",
    "patch_embedding_arm.weight": "robot_tokens.patch.weight",
    "patch_embedding_arm.bias": "robot_tokens.patch.bias",
    "arm_ln.weight": "robot_tokens.norm.weight",
    "arm_ln.bias": "robot_tokens.norm.bias",
    "arm_pos_emb": "robot_tokens.position",
    ACT_ONLY: "robot_tokens.domain",
    "arm_patch_proj.weight": "robot_tokens.project.weight",
    "arm_patch_proj.bias": "robot_tokens.project.bias",
    "arm_cond_proj.weight": "robot_injection.project.weight",
    "arm_cond_proj.bias": "robot_injection.project.bias",
}
"""Official name -> name in this network."""


@dataclass(frozen=True)
class OfficialFiles:
    """Folder in the official layout, and its variant."""

    folder: Path
    variant: Literal["act", "pm"]

    @property
    def lora(self) -> Path:
        """Path of the adapter."""
        return self.folder / LORA_FILE

    @property
    def added(self) -> Path:
        """Path of the added weights."""
        return self.folder / ADDED_FILE


def find_official(folder: str | Path) -> OfficialFiles:
    """Detect the variant from a folder's added weights: "act" has a domain embedding of robot tokens, "pm" none."""
    files = OfficialFiles(Path(folder), "act")
    names = set(tensor_shapes(files.added))
    common = set(ADDED_NAMES) - {ACT_ONLY}
    if not names & {name for name in common if name.startswith(("arm_", "patch_embedding_arm"))}:
        raise FileFormatError(
            f"{files.added} is neither of the two variants: it holds {', '.join(sorted(names)) or 'nothing'}",
            expected=f"act ({', '.join(ADDED_NAMES)}) or pm (the same without {ACT_ONLY})",
        )
    return files if ACT_ONLY in names else OfficialFiles(files.folder, "pm")


def added_shapes(transformer: KinemaTransformer) -> dict[str, Shape]:
    """Return official names and shapes of this network's added weights."""
    own = {name: tuple(p.shape) for name, p in transformer.named_parameters()}
    return {official: own[name] for official, name in ADDED_NAMES.items() if name in own}


def check_official(transformer: KinemaTransformer, folder: str | Path, lora: LoraSpec) -> OfficialFiles:
    """Raise unless an official checkpoint matches this network completely; reads only the headers of its files.

    Args:
        transformer: on any device; its variant must be the checkpoint's.
        folder: contains the two files.
        lora: rank and alpha that the adapter must have.
    """
    files = find_official(folder)
    require_variant(files, transformer.config.robot_variant)
    raise_if(differences(added_shapes(transformer), tensor_shapes(files.added)), files.added)
    _check_lora(transformer, files.lora, lora)
    return files


def require_variant(files: OfficialFiles, variant: str) -> None:
    """Raise if a checkpoint has the other variant."""
    if files.variant != variant:
        raise FileFormatError(
            f"{files.folder} is a '{files.variant}' checkpoint, the network is made for '{variant}'",
            expected=f"robot.variant: {files.variant} in the preset",
            hint=f"choose a preset of the variant '{files.variant}', or give a folder of the variant '{variant}'",
        )


def load_official(
    transformer: KinemaTransformer, folder: str | Path, lora: LoraSpec, *, adapter: str = "kinema4d"
) -> OfficialFiles:
    """Load an official checkpoint into a base network; nothing is changed unless both files match completely.

    Args:
        transformer: has the base's weights; its variant must be the checkpoint's.
        folder: contains the two files.
        lora: rank that the file must have, and the alpha that it lacks.
        adapter: name of the new LoRA.
    """
    files = check_official(transformer, folder, lora)
    parameters = dict(transformer.named_parameters())
    with torch.no_grad():
        for name, tensor in read_tensors(files.added):
            target = parameters[ADDED_NAMES[name]]
            target.copy_(tensor.to(target.dtype))
    add_lora(transformer, dict(read_tensors(files.lora)), adapter, rank=lora.rank, alpha=lora.alpha)
    return files


def _check_lora(transformer: KinemaTransformer, path: Path, lora: LoraSpec) -> None:
    found = tensor_shapes(path)
    ranks = sorted({shape[0] for name, shape in found.items() if name.endswith(".lora_A.weight") and shape})
    ours = f"lora: {{rank: {lora.rank}, alpha: {lora.alpha:g}}}, as in the preset"
    if ranks and ranks != [lora.rank]:
        raise_if([f"its rank is {' and '.join(map(str, ranks))}, the preset's is {lora.rank}"], path, expected=ours)
    raise_if(differences(lora_shapes(transformer, lora.rank), found), path)
    stated = stated_alpha(path)
    alpha = SCALE * lora.rank if stated is None else stated
    if alpha != lora.alpha:
        source = f"{SCALE:g} x rank, as released: the file states none" if stated is None else "stated in its header"
        raise_if(
            [f"its alpha is {alpha:g} ({source}), the preset's is {lora.alpha:g}"],
            path,
            expected=ours,
            hint=f"set lora: {{rank: {lora.rank}, alpha: {alpha:g}}} in the preset",
        )


def load_4dnex(transformer: KinemaTransformer, folder: str | Path, lora: LoraSpec, *, adapter: str = "4dnex") -> None:
    """Load 4DNeX's LoRA and domain embeddings, as Kinema4D's training started; the robot parts stay zero."""
    root = Path(folder)
    domain = _read_domain(root / DOMAIN_FILE)
    target = transformer.patch_embedding.domain
    raise_if(
        differences(
            {"learnable_domain_embeddings": tuple(target.shape)}, {"learnable_domain_embeddings": domain.shape}
        ),
        root / DOMAIN_FILE,
    )
    _check_lora(transformer, root / LORA_FILE, lora)
    with torch.no_grad():
        target.copy_(domain.to(target.dtype))
    add_lora(transformer, dict(read_tensors(root / LORA_FILE)), adapter, rank=lora.rank, alpha=lora.alpha)


def _read_domain(path: Path) -> torch.Tensor:
    loaded = load_pickled(path, "one tensor and nothing else")
    if isinstance(loaded, dict) and set(loaded) == {"learnable_domain_embeddings"}:
        loaded = loaded["learnable_domain_embeddings"]
    if not isinstance(loaded, torch.Tensor):
        raise FileFormatError(f"{path} holds {type(loaded).__name__}", expected="one tensor (2, width)")
    return loaded.detach()


def save_official(transformer: KinemaTransformer, folder: str | Path, *, adapter: str = "kinema4d") -> OfficialFiles:
    """Write the adapter and the added weights in the official layout."""
    root = Path(folder)
    tensors = adapter_tensors(transformer, adapter)
    own = dict(transformer.named_parameters())
    added = {official: own[name].detach().clone().contiguous() for official, name in ADDED_NAMES.items() if name in own}
    root.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: t.detach().clone().contiguous() for name, t in tensors.items()},
        root / LORA_FILE,
        metadata=adapter_metadata(transformer, adapter),
    )
    save_file(added, root / ADDED_FILE)
    return OfficialFiles(root, "act" if ACT_ONLY in added else "pm")
