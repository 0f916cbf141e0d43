"""Weights of the blocks in one byte each: torchao's weight-only int8 and fp8.

Only the large matrices of the transformer blocks: they are 97 % of Wan 14B's bytes, and embeddings, norms and
output layer, which are sensitive, keep their precision.
"""

from __future__ import annotations

from typing import Any

import torch

from kinema4d_ros.core.errors import ErrorCode, GeneratorError, SetupError

__all__ = ["quantise_blocks"]


def quantise_blocks(transformer: torch.nn.Module, kind: str) -> int:
    """Replace the weights of all linear layers in `transformer.blocks`, in place; how many.

    Args:
        transformer: a network with a module list `blocks`; may be on the meta device.
        kind: "int8" (symmetric, a scale per row) or "fp8" (e4m3, a scale per tensor).
    """
    try:
        from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
    except ImportError as error:
        raise SetupError(
            f"torchao cannot be imported: {error}", expected="torchao", hint="pip install torchao"
        ) from None
    configs: dict[str, Any] = {"int8": Int8WeightOnlyConfig, "fp8": Float8WeightOnlyConfig}
    if kind not in configs:
        raise GeneratorError(
            f"quantisation '{kind}'", expected=" or ".join(configs), code=ErrorCode.GENERATOR_BAD_REQUEST
        )
    changed = [m for m in transformer.blocks.modules() if isinstance(m, torch.nn.Linear)]  # type: ignore[union-attr]
    quantize_(transformer.blocks, configs[kind]())
    return len(changed)
