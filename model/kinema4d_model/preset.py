"""Presets: all settings of a model, from nano to Wan 14B; read from `config/model/*.yaml` and validated.

>>> preset = load_preset("tiny")
>>> preset.frames, preset.latent_frames, preset.latent_height, preset.latent_width
(9, 3, 4, 6)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kinema4d_model.config_files import build, find_named, plain, read_extended
from kinema4d_model.preset_parts import (
    Ablation,
    BlendSpec,
    CodecSpec,
    ConditionSpec,
    ImageEncoderSpec,
    LoraSpec,
    MotionSpec,
    RobotSpec,
    SamplerSpec,
    SpeedSpec,
    TransformerSpec,
    WeightSource,
)
from kinema4d_ros.core.errors import FileFormatError
from kinema4d_ros.generators.carry import DESCRIPTION
from kinema4d_ros.generators.spec import preset_names
from kinema4d_ros.io.files import write_yaml
from kinema4d_ros.io.resources import share_directory

__all__ = ["Preset", "load_preset", "preset_names", "save_preset"]


@dataclass(frozen=True)
class Preset:
    """Settings of one model: sizes, conditioning, sampler and weight sources.

    `frames`, `height` and `width` describe one modality, in pixels; the network works on [RGB | XYZ], which is twice as
    wide. They are the sizes that the model was trained for; others also work.
    """

    name: str
    frames: int
    height: int
    width: int
    transformer: TransformerSpec
    codec: CodecSpec
    robot: RobotSpec
    condition: ConditionSpec = field(default_factory=ConditionSpec)
    blend: BlendSpec = field(default_factory=BlendSpec)
    sampler: SamplerSpec = field(default_factory=SamplerSpec)
    speed: SpeedSpec = field(default_factory=SpeedSpec)
    prediction: Literal["velocity", "residual"] = "velocity"
    image_encoder: ImageEncoderSpec | None = None
    lora: LoraSpec | None = None
    motion: MotionSpec | None = None
    weights: tuple[WeightSource, ...] = ()

    @property
    def latent_frames(self) -> int:
        """Frames of the latent video: the first frame alone, then one for each group of `temporal_factor`."""
        return (self.frames - 1) // self.codec.temporal_factor + 1

    @property
    def latent_height(self) -> int:
        """Rows of the latent video."""
        return self.height // self.codec.spatial_factor

    @property
    def latent_width(self) -> int:
        """Columns of one half of the latent video."""
        return self.width // self.codec.spatial_factor

    def with_size(self, frames: int, height: int, width: int) -> Preset:
        """Return the same model at another length and resolution; position embeddings are interpolated."""
        return dataclasses.replace(self, frames=frames, height=height, width=width)

    def with_condition(self, condition: ConditionSpec) -> Preset:
        """Return the same model with another robot condition."""
        return dataclasses.replace(self, condition=condition)

    def __post_init__(self) -> None:
        problems = [*_size_problems(self), *_part_problems(self)]
        if problems:
            raise FileFormatError(
                f"preset '{self.name}' is inconsistent: " + "; ".join(problems),
                expected="sizes that divide each other, as in config/model/wan14b.yaml",
            )


def _size_problems(p: Preset) -> list[str]:
    found = []
    if p.frames < 1 or (p.frames - 1) % p.codec.temporal_factor:
        found.append(f"frames {p.frames} is not 1 + a multiple of {p.codec.temporal_factor}")
    for name, value, patch in (
        ("height", p.height, p.transformer.patch[1]),
        ("width", p.width, p.transformer.patch[2]),
    ):
        step = p.codec.spatial_factor * patch
        if value < step or value % step:
            found.append(f"{name} {value} is not a multiple of {step}")
    if p.transformer.patch[0] != 1:
        found.append(f"transformer.patch {p.transformer.patch} merges frames; its first number must be 1")
    return found


def _part_problems(p: Preset) -> list[str]:
    found = []
    t, c, e = p.transformer, p.codec, p.image_encoder
    carried = c.latent_channels + len(DESCRIPTION) if p.condition.carry else 0
    if t.in_channels != 2 * c.latent_channels + c.temporal_factor + carried:
        found.append(f"transformer.in_channels {t.in_channels} is not noisy + mask + condition (+ carried)")
    if t.out_channels != c.latent_channels:
        found.append(f"transformer.out_channels {t.out_channels} is not codec.latent_channels")
    if c.kind == "wan" and not len(c.latents_mean) == len(c.latents_std) == c.latent_channels:
        found.append(
            f"codec.latents_mean and latents_std hold {len(c.latents_mean)} and {len(c.latents_std)} values, "
            f"not {c.latent_channels}"
        )
    if c.kind == "linear" and c.latent_channels > 3 * c.spatial_factor**2:
        found.append(f"codec.latent_channels {c.latent_channels} exceeds the {3 * c.spatial_factor**2} of a patch")
    if min([*c.latents_std, c.xyz_std]) <= 0:
        found.append("a standard deviation of the codec is not positive")
    if t.head_dim % 2 or t.head_dim < 6:
        found.append(f"transformer.head_dim {t.head_dim} is not even and at least 6")
    if (t.image_dim is None) != (e is None):
        found.append("transformer.image_dim and image_encoder must be set together")
    elif e is not None and (t.image_dim, t.image_tokens) != (e.hidden, e.tokens):
        found.append(f"image_encoder outputs {e.tokens} tokens of {e.hidden}, the transformer expects "
                     f"{t.image_tokens} of {t.image_dim}")  # fmt: skip
    if not 0 <= p.condition.soft_ratio <= 1:
        found.append(f"condition.soft_ratio {p.condition.soft_ratio} is not in [0, 1]")
    if p.condition.fill == "composite" and p.prediction != "residual":
        found.append("condition.fill composite needs prediction: residual")
    if p.condition.carry and p.prediction != "residual":
        found.append("condition.carry needs prediction: residual")
    if p.condition.ablation is Ablation.EMBEDDING and p.robot.action_dim is None:
        found.append("condition.ablation embedding needs robot.action_dim")
    if min(p.blend.decision, p.blend.colour, p.blend.depth, p.blend.blur_px) < 0:
        found.append("a blend value is negative")
    if p.sampler.steps < 1 or p.sampler.shift <= 0:
        found.append("sampler.steps and sampler.shift must be positive")
    if p.motion is not None and (p.motion.stride < 1 or p.motion.source_hz <= 0):
        found.append("motion.stride and motion.source_hz must be positive")
    if p.motion is not None and p.condition.carry:
        found.append("motion and condition.carry exclude each other: the latter shows a whole motion in one run")
    if not 0 <= p.sampler.noise_seed < 2**64:
        found.append(f"sampler.noise_seed {p.sampler.noise_seed} is not in 0 to 2^64 - 1")
    if p.condition.normalisation == "per_frame" and p.condition.carry:
        found.append("condition.carry needs a normalisation of the whole sequence: per_axis or one_scale")
    return found


def _folder() -> Path:
    return share_directory() / "config" / "model"


def load_preset(name_or_path: str | Path) -> Preset:
    """Load a preset by name, or by the path of a YAML file (anything with a suffix or a separator)."""
    path = find_named(name_or_path, _folder(), "preset")
    preset: Preset = build(Preset, read_extended(path, _folder()), str(path))
    return preset


def save_preset(preset: Preset, path: str | Path) -> None:
    """Write a preset to a file from which `load_preset(path)` returns an equal preset."""
    document: dict[str, Any] = plain(preset)
    write_yaml(path, document, "A kinema4d_model preset.")
