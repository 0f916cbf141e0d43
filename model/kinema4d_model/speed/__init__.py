"""What makes a rollout faster or smaller without other weights: one spec, applied once after loading.

    SpeedSpec: dtype, quantise, attention, cache_threshold, offload, tiling, compile, context_parallel
    apply_speed(transformer, codec, encoder, spec, device) -> where the modules live, what was done

Order matters and is fixed here: precision, then quantisation, then attention, parallelism, compilation,
and placement last, because offloading wants the modules in their final form.
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
