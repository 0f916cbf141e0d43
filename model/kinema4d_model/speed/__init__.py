"""Options that make a rollout faster or smaller with the same weights: one spec, applied once after loading.

    SpeedSpec: dtype, quantise, attention, cache_threshold, offload, tiling, compile, context_parallel
    apply_speed(transformer, codec, encoder, spec, device) -> placement of the modules, applied options

The order is fixed: precision, then quantisation, attention, parallelism, compilation, and placement last, because
offloading needs the modules in their final form.
"""

from kinema4d_model.speed.apply import (
    Residence,
    apply_speed,
    attention_backends,
    choose_device,
    quantise_blocks,
    set_attention,
    torch_dtype,
)

__all__ = [
    "Residence",
    "apply_speed",
    "attention_backends",
    "choose_device",
    "quantise_blocks",
    "set_attention",
    "torch_dtype",
]
