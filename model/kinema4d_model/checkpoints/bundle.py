"""`ModelBundle`: preset, network, codec and image encoder of one model, made from a preset or from a folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from kinema4d_model.checkpoints.folder import PRESET_FILE, load_clip, load_transformer, load_vae, write_folder
from kinema4d_model.checkpoints.manifest import check_manifest, file_sha256, weight_files
from kinema4d_model.checkpoints.modules import check_shift
from kinema4d_model.checkpoints.official import check_official, load_official
from kinema4d_model.codec.image_encoder import ImageEncoder
from kinema4d_model.codec.video_codec import VideoCodec
from kinema4d_model.network import KinemaTransformer
from kinema4d_model.pipeline.normalise import describe_normalisation
from kinema4d_model.preset import Preset, load_preset
from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.core.rollout import WARNING

__all__ = ["ModelBundle"]

PARTS = ("transformer", "vae", "image_encoder")


@dataclass
class ModelBundle:
    """Model ready for sampling.

    >>> bundle = ModelBundle.from_preset("tiny", seed=0)
    >>> sum(p.numel() for p in bundle.transformer.parameters()) < 100_000
    True
    """

    preset: Preset
    transformer: KinemaTransformer
    codec: VideoCodec
    image_encoder: ImageEncoder | None = None
    origin: str = field(default="", repr=False)
    """Identity of the weights as text, equal for equal weights: hashes of files, or preset and seed."""
    base_only: bool = False
    """True for plain Wan: the robot parts are not trained."""
    scheduler_shift: float | None = None
    """Flow shift stated in the base's `scheduler/`; None if it states none."""

    @property
    def sha256(self) -> str:
        """Hash that identifies the weights; stored in a rollout's provenance."""
        return hashlib.sha256(self.origin.encode()).hexdigest()

    def describe(self) -> dict[str, str]:
        """Describe the model for provenance: variant, files with their sha256, flow shift, normalisation."""
        stated = "not stated by the base" if self.scheduler_shift is None else f"base {self.scheduler_shift:g}"
        warning = {WARNING: f"The base model without the '{self.preset.robot.variant}' adapter was used."}
        return {
            "variant": self.preset.robot.variant,
            "weights": self.origin.partition(": ")[0],
            "flow shift": f"{self.preset.sampler.shift:g} ({stated})",
            "normalisation": describe_normalisation(self.preset.condition.normalisation),
            **(warning if self.base_only else {}),
        }

    @classmethod
    def from_preset(
        cls, preset: Preset | str, seed: int = 0, device: Literal["cpu", "meta"] | torch.device = "cpu"
    ) -> ModelBundle:
        """Make a bundle with random weights (equal for equal seeds); on "meta" it has shapes and no memory."""
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
        cls, folder: str | Path, *, dtype: torch.dtype | None = None, verify: bool = False, read: bool = True
    ) -> ModelBundle:
        """Load a bundle written by `save_pretrained`.

        Args:
            folder: contains preset.yaml, the parts and the manifest.
            dtype: precision of the network; None keeps the file's. Codec and image encoder keep theirs.
            verify: compare the sha256 of every file, not only sizes.
            read: False checks everything and leaves the weights on "meta".
        """
        root = Path(folder)
        preset = load_preset(_existing(root / PRESET_FILE))
        manifest = check_manifest(root, hashes=verify)
        bundle = cls.from_preset(preset, device="meta")
        bundle._load_parts(root, dtype, base_only=False, read=read)
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
        read: bool = True,
    ) -> ModelBundle:
        """Load plain Wan from its diffusers folder, optionally with an official Kinema4D checkpoint.

        Args:
            base: contains transformer/, vae/, image_encoder/ and, as released, scheduler/.
            checkpoint: folder of an official checkpoint, of the preset's variant.
            preset: sizes, variant, rank and alpha of the adapter, flow shift of the base.
            dtype: precision of the network.
            read: False checks everything and leaves the weights on "meta".
        """
        root = Path(base)
        chosen = load_preset(preset) if isinstance(preset, str) else preset
        bundle = cls.from_preset(chosen, device="meta")
        bundle.base_only = checkpoint is None
        bundle.scheduler_shift = check_shift(root, chosen.sampler.base_shift)
        lora = chosen.lora
        if checkpoint is not None and lora is None:
            raise FileFormatError(f"preset '{chosen.name}' has no lora", expected="lora: {rank: 64, alpha: 32}")
        files = None if checkpoint is None or lora is None else check_official(bundle.transformer, checkpoint, lora)
        bundle._load_parts(root, dtype, base_only=True, read=read)
        parts = weight_files(root, PARTS)
        bundle.origin = f"base of {len(parts.files)} files {parts.sha256}"
        if files is not None and lora is not None:
            bundle.origin += f", {_named(files.lora)}, {_named(files.added)}"
            if read:
                load_official(bundle.transformer, files.folder, lora)
        return bundle

    def save_pretrained(self, folder: str | Path) -> None:
        """Write everything that `from_pretrained` reads, as safetensors and atomically."""
        clip = None if self.image_encoder is None else self.image_encoder.clip
        sha256 = write_folder(Path(folder), self.preset, self.transformer, self.codec.vae, clip)
        self.origin = f"folder {sha256}"

    def _load_parts(self, root: Path, dtype: torch.dtype | None, *, base_only: bool, read: bool) -> None:
        """Check every part before reading the first tensor."""
        for really in (False, True)[: 1 + read]:
            load_transformer(self.transformer, root / "transformer", dtype, base_only=base_only, read=really)
            load_vae(self.codec.vae, root / "vae", read=really)
            if self.image_encoder is not None:
                load_clip(self.image_encoder.clip, root / "image_encoder", read=really)
        if self.image_encoder is not None and read:
            _restore_buffers(self.image_encoder)
        self.transformer.eval()
        self.codec.eval()


def _named(path: Path) -> str:
    return f"{path.parent.name}/{path.name} {file_sha256(path)}"


def _restore_buffers(encoder: ImageEncoder) -> None:
    """Compute the position ids, which files do not store: modules made on "meta" have none."""
    for module in encoder.modules():
        ids = getattr(module, "position_ids", None)
        if isinstance(ids, torch.Tensor) and ids.is_meta:
            module.position_ids = torch.arange(ids.shape[-1]).expand(ids.shape)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise FileFormatError(
            f"{path.parent} is not a model folder: {path.name} is missing",
            expected="a folder written by ModelBundle.save_pretrained",
            hint="load a plain Wan folder with ModelBundle.from_wan",
            code=ErrorCode.FILE_MISSING,
        )
    return path
