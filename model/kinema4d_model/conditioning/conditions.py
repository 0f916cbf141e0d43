"""`Conditions`: all conditions of a rollout as latents, encoded once; and the paper's ablation table."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from kinema4d_model.preset import Preset
from kinema4d_model.preset_parts import Ablation, ConditionSpec
from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.generators.carry import DESCRIPTION

__all__ = ["Conditions", "ablate", "ablation_table", "shapes_only"]


@dataclass(frozen=True)
class Conditions:
    """Latents of the known inputs. F, h, w are latent frames, rows and columns of one half; RGB left, XYZ right."""

    mask: torch.Tensor
    """(B, 4, F, h, 2w): in frame 0 how well the first frame is known, later where the robot is."""
    condition: torch.Tensor
    """(B, 16, F, h, 2w): the first image beside a ramp, then zeros; without the robot."""
    robot_latents: torch.Tensor
    """(B, 16, F, h, 2w): the robot alone, RGB half and XYZ half; zeros for an empty half."""
    robot_mask: torch.Tensor
    """(B, F, h, w) in [0, 1]: 1 = robot, 0 = none, 0.5 = softened."""
    image_tokens: torch.Tensor | None = None
    """(B, 257, 1280) of the image encoder, or None for networks without it."""
    base_latents: torch.Tensor | None = None
    """(B, 16, F, h, 2w) of the composite, for presets that predict a residual to it."""
    carried: torch.Tensor | None = None
    """(B, C, F, h, 2w): the carry hypothesis minus the composite, for presets with `condition.carry`."""
    description: torch.Tensor | None = None
    """(B, 20): poses of the object and the closing fingers; comes with `carried`."""
    text_tokens: torch.Tensor | None = None
    """(B, L, text_dim): the "text" ablation only."""
    actions: torch.Tensor | None = None
    """(B, T, A): the "embedding" ablation only."""

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Conditions:
        """Convert to another device or precision."""
        moved: dict[str, Any] = {
            f.name: None if value is None else value.to(device=device, dtype=dtype)
            for f in dataclasses.fields(self)
            for value in [getattr(self, f.name)]
        }
        return Conditions(**moved)


def shapes_only(preset: Preset) -> Conditions:
    """Make the conditions of one rollout at the preset's size on "meta": shapes without values, for counting."""

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device="meta")

    grid = (preset.latent_frames, preset.latent_height, preset.latent_width)
    wide = (*grid[:2], 2 * grid[2])
    t, channels = preset.transformer, preset.codec.latent_channels
    carry = preset.condition.carry
    return Conditions(
        mask=empty(1, preset.codec.temporal_factor, *wide),
        condition=empty(1, channels, *wide),
        robot_latents=empty(1, channels, *wide),
        robot_mask=empty(1, *grid),
        image_tokens=None if t.image_dim is None else empty(1, t.image_tokens, t.image_dim),
        carried=empty(1, channels, *wide) if carry else None,
        description=empty(1, len(DESCRIPTION)) if carry else None,
    )


# The paper's ablation table: one `ConditionSpec` per row, for `Preset.with_condition`.

SOFT_RATIOS = (0.0, 0.1, 0.2, 0.5, 0.7)
DEFAULT_RATIO = 0.1


def ablation_table() -> dict[str, ConditionSpec]:
    """Return rows by name: each kind of condition at the paper's soft ratio, then the full one at each soft ratio."""
    kinds = {
        kind.value: ConditionSpec(kind, soft_ratio=DEFAULT_RATIO)
        for kind in Ablation
        if kind is not Ablation.RGB_POINTMAP
    }
    ratios = {
        f"soft_{round(100 * ratio)}": ConditionSpec(Ablation.RGB_POINTMAP, soft_ratio=ratio) for ratio in SOFT_RATIOS
    }
    return kinds | ratios


def ablate(preset: Preset, name: str) -> Preset:
    """Return the preset of trained weights with one row of `ablation_table`; all else of its condition is kept.

    Only the mask can change without training: a network of the full condition can run at any soft ratio and without the
    mask, any other network at the paper's soft ratio.

    Raises:
        GeneratorError: ARGUMENT_INVALID with the rows that these weights can run.
    """
    table, own = ablation_table(), preset.condition
    trained = own.ablation
    if trained is Ablation.RGB_POINTMAP and not own.mask:
        trained = Ablation.NO_MASK
    kinds = {trained, Ablation.NO_MASK} if trained is Ablation.RGB_POINTMAP else {trained}
    possible = [row for row, spec in table.items() if spec.ablation in kinds]
    if name in possible:
        row = table[name]
        return preset.with_condition(dataclasses.replace(own, ablation=row.ablation, soft_ratio=row.soft_ratio))
    expected = f"one of {', '.join(possible)} for the weights of preset '{preset.name}'"
    if name not in table:
        raise GeneratorError(f"ablation '{name}' is unknown", expected=expected, code=ErrorCode.ARGUMENT_INVALID)
    raise GeneratorError(
        f"ablation '{name}' needs a network trained for it",
        expected=expected,
        hint=f"`kinema4d train` a preset with condition.ablation: {table[name].ablation.value}, assess its checkpoint",
        code=ErrorCode.ARGUMENT_INVALID,
    )
