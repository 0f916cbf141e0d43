"""The paper's ablation table as data: one `ConditionSpec` a row, ready for `Preset.with_condition`."""

from __future__ import annotations

from kinema4d_model.preset_parts import Ablation, ConditionSpec

__all__ = ["ablation_table"]

SOFT_RATIOS = (0.0, 0.1, 0.2, 0.5, 0.7)
DEFAULT_RATIO = 0.1


def ablation_table() -> dict[str, ConditionSpec]:
    """Rows by name: every kind of condition at the paper's soft ratio, then every soft ratio of the full condition."""
    kinds = {
        kind.value: ConditionSpec(kind, soft_ratio=DEFAULT_RATIO)
        for kind in Ablation
        if kind is not Ablation.RGB_POINTMAP
    }
    ratios = {
        f"soft_{round(100 * ratio)}": ConditionSpec(Ablation.RGB_POINTMAP, soft_ratio=ratio) for ratio in SOFT_RATIOS
    }
    return kinds | ratios
