"""A rollout's cost as text: one line a stage, against the released recipe."""

from __future__ import annotations

from kinema4d_model.cost.rollout import RolloutCost
from kinema4d_model.preset import Preset

__all__ = ["cost_table", "describe"]


def cost_table(cost: RolloutCost, reference: RolloutCost) -> str:
    """Lines for a terminal: FLOPs, weights and peak activations by stage, then the ratio."""
    lines = [
        describe(cost.preset),
        f"{'stage':<14}{'TFLOPs':>12}{'runs':>6}{'total':>12}{'share':>8}{'weights':>10}{'activations':>13}{'device':>10}",
    ]
    for stage in cost.stages:
        lines.append(
            f"{stage.name:<14}{stage.flops / 1e12:>12.3f}{stage.runs:>6}{stage.total_flops / 1e12:>12.2f}"
            f"{stage.total_flops / cost.flops:>8.1%}{_gb(stage.weight_bytes):>10}{_gb(stage.activation_bytes):>13}"
            f"{_gb(stage.device_bytes):>10}"
        )
    lines.append(
        f"{'rollout':<14}{'':>12}{'':>6}{cost.flops / 1e12:>12.2f}{'':>8}{_gb(cost.weight_bytes):>10}{'':>13}"
        f"{_gb(cost.peak_bytes):>10}"
    )
    lines.append(
        f"{'official':<14}{'':>12}{'':>6}{reference.flops / 1e12:>12.2f}{'':>8}{_gb(reference.weight_bytes):>10}"
        f"{'':>13}{_gb(reference.peak_bytes):>10}"
    )
    lines.append(
        f"{reference.flops / cost.flops:.1f} times fewer FLOPs, {reference.peak_bytes / cost.peak_bytes:.2f} times "
        f"less memory than the official recipe ({describe(reference.preset, short=True)})"
    )
    lines.append("counted on meta tensors; attention as one fused operation; skipped steps of a cache are not counted")
    return "\n".join(lines)


def describe(preset: Preset, *, short: bool = False) -> str:
    """One line about sampler and options."""
    sampler, speed = preset.sampler, preset.speed
    recipe = f"{sampler.steps} steps x {2 if sampler.guidance == 'compat' else 1} pass"
    if short:
        return recipe + ("es" if sampler.guidance == "compat" else "")
    options: list[str] = [speed.dtype]
    if speed.quantise != "none":
        options.append(f"{speed.quantise} weights")
    if speed.offload != "none":
        options.append(f"offload by {speed.offload}")
    if speed.tiling:
        options.append("codec in tiles")
    size = f"{preset.frames} x {preset.height} x {preset.width}"
    return f"{preset.name}: {size}, {sampler.kind}, {recipe}, {', '.join(options)}"


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
