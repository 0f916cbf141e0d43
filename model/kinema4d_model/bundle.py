"""`ModelBundle`: preset, network, codec and image encoder as one thing, made from a preset or from a folder."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from kinema4d_model.checkpoints.folder import PRESET_FILE, load_clip, load_transformer, load_vae, write_folder
from kinema4d_model.checkpoints.manifest import MANIFEST, check_manifest, file_sha256, read_manifest
from kinema4d_model.checkpoints.official import OfficialFiles, find_official, load_official
from kinema4d_model.codec import VideoCodec
from kinema4d_model.image_encoder import ImageEncoder
from kinema4d_model.network import KinemaTransformer
from kinema4d_model.preset import Preset, load_preset
from kinema4d_ros.errors import ErrorCode, FileFormatError

__all__ = ["ModelBundle"]


@dataclass
class ModelBundle:
    """A model that can be sampled from.

    >>> bundle = ModelBundle.from_preset("tiny", seed=0)
    >>> sum(p.numel() for p in bundle.transformer.parameters()) < 100_000
    True
    """

    preset: Preset
    transformer: KinemaTransformer
    codec: VideoCodec
    image_encoder: ImageEncoder | None = None
    origin: str = field(default="", repr=False)
    """What the weights are, as text that is the same for the same weights: hashes of files, or preset and seed."""

    @property
    def sha256(self) -> str:
        """Identifies the weights; a rollout's provenance carries it."""
        return hashlib.sha256(self.origin.encode()).hexdigest()

    @classmethod
    def from_preset(
        cls, preset: Preset | str, seed: int = 0, device: Literal["cpu", "meta"] | torch.device = "cpu"
    ) -> ModelBundle:
        """A bundle with random weights (the same for the same seed); on "meta" it has shapes and no memory."""
        chosen = load_preset(preset) if isinstance(preset, str) else preset
        with torch.random.fork_rng(devices=[]), torch.device(device):
            torch.manual_seed(seed)
            return cls(
                chosen,
                KinemaTransformer.from_preset(chosen).eval(),
                VideoCodec.from_spec(chosen.codec).eval(),
                None if chosen.image_encoder is None else ImageEncoder.from_spec(chosen.image_encoder).eval(),
                origin=f"random weights, seed {seed}: {chosen!r}",
            )

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, dtype: torch.dtype | None = None, verify: bool = False
    ) -> ModelBundle:
        """A bundle that `save_pretrained` wrote.

        Args:
            folder: holds preset.yaml, the parts and the manifest.
            dtype: precision of the network; None keeps the file's. Codec and image encoder keep theirs.
            verify: compare the sha256 of every file, not only sizes.
        """
        root = Path(folder)
        preset = load_preset(_existing(root / PRESET_FILE))
        manifest = check_manifest(root, hashes=verify)
        bundle = cls.from_preset(preset, device="meta")
        load_transformer(bundle.transformer, root / "transformer", dtype)
        bundle._load_rest(root)
        bundle.origin = f"folder {manifest.sha256}"
        return bundle

    @classmethod
    def from_wan(
        cls,
        base: str | Path,
        checkpoint: str | Path | None = None,
        *,
        preset: Preset | str = "wan14b",
        dtype: torch.dtype | None = None,
    ) -> ModelBundle:
        """Plain Wan from its diffusers folder, with an official Kinema4D checkpoint on top when one is given.

        Args:
            base: holds transformer/, vae/ and image_encoder/.
            checkpoint: folder of an official checkpoint; it decides between "act" and "pm".
            preset: sizes; its variant gives way to the checkpoint's.
            dtype: precision of the network.
        """
        root = Path(base)
        chosen = load_preset(preset) if isinstance(preset, str) else preset
        files = None if checkpoint is None else find_official(checkpoint)
        if files is not None:
            chosen = dataclasses.replace(chosen, robot=dataclasses.replace(chosen.robot, variant=files.variant))
        bundle = cls.from_preset(chosen, device="meta")
        load_transformer(bundle.transformer, root / "transformer", dtype, base_only=True)
        bundle._load_rest(root)
        bundle.origin = f"base {_folder_identity(root)}"
        if files is not None:
            bundle._add_official(files)
        return bundle

    def save_pretrained(self, folder: str | Path) -> None:
        """Write everything that `from_pretrained` reads; safetensors, whole or not at all."""
        clip = None if self.image_encoder is None else self.image_encoder.clip
        sha256 = write_folder(Path(folder), self.preset, self.transformer, self.codec.vae, clip)
        self.origin = f"folder {sha256}"

    def _load_rest(self, root: Path) -> None:
        load_vae(self.codec.vae, root / "vae")
        if self.image_encoder is not None:
            load_clip(self.image_encoder.clip, root / "image_encoder")
            _restore_buffers(self.image_encoder)
        self.transformer.eval()
        self.codec.eval()

    def _add_official(self, files: OfficialFiles) -> None:
        if self.preset.lora is None:
            raise FileFormatError(f"preset '{self.preset.name}' has no lora", expected="lora: {rank: 64, alpha: 32}")
        load_official(self.transformer, files.folder, self.preset.lora)
        self.origin += f", lora {file_sha256(files.lora)}, added {file_sha256(files.added)}"


def _restore_buffers(encoder: ImageEncoder) -> None:
    """Position ids are counted, not stored: made on "meta", they have no values yet."""
    for module in encoder.modules():
        ids = getattr(module, "position_ids", None)
        if isinstance(ids, torch.Tensor) and ids.is_meta:
            module.position_ids = torch.arange(ids.shape[-1]).expand(ids.shape)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise FileFormatError(
            f"{path.parent} is not a model folder: {path.name} is missing",
            expected="a folder that ModelBundle.save_pretrained wrote",
            hint="a plain Wan folder is read by ModelBundle.from_wan",
            code=ErrorCode.FILE_MISSING,
        )
    return path


def _folder_identity(root: Path) -> str:
    """The manifest's hash where `kinema4d fetch-weights` wrote one; else names and sizes, which cost nothing."""
    if (root / MANIFEST).is_file():
        return read_manifest(root).sha256
    return ", ".join(f"{p.relative_to(root)} {p.stat().st_size}" for p in sorted(root.rglob("*.safetensors")))
