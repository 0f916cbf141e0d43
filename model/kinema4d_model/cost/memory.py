"""Memory without a GPU: bytes of parameters, and peak bytes of activations, counted on meta tensors."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import sdpa_flop_count

__all__ = ["PeakActivations", "parameter_bytes"]


def parameter_bytes(module: torch.nn.Module) -> int:
    """Count the bytes of all parameters and buffers; quantised ones by their stored data, scales included."""
    return sum(_bytes(tensor) for tensor in [*module.parameters(), *module.buffers()])


def _bytes(tensor: torch.Tensor) -> int:
    inner = getattr(tensor, "__tensor_flatten__", None)
    if inner is not None:
        return sum(_bytes(getattr(tensor, name)) for name in inner()[0])
    return tensor.numel() * tensor.element_size()


class PeakActivations(TorchDispatchMode):
    """Counter of the live storages that operations create while it is active.

    Attention counts as one fused operation, as every GPU back-end computes it: its score matrix is never stored.
    Rounding by the allocator and work space of kernels are not included.

    Attributes:
        live: bytes alive now.
        peak: maximum of `live`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._known: set[int] = set()
        self._fused = _FusedAttention()

    @property
    def attention_flops(self) -> int:
        """FLOPs of the fused attention by torch's own formula; FlopCounterMode does not see them here."""
        return self._fused.flops

    def __enter__(self) -> PeakActivations:
        self._fused.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *arguments: Any) -> None:
        super().__exit__(*arguments)
        self._fused.__exit__(*arguments)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and track its results."""
        result = func(*args, **(kwargs or {}))
        given = {_key(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and _key(tensor) not in given:
                self._follow(tensor)
        return result

    def _follow(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


class _FusedAttention(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            named = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
            query, value = named["query"], named["value"]
            self.flops += int(sdpa_flop_count(query.shape, named["key"].shape, value.shape))
            return query.new_empty(*query.shape[:-1], value.shape[-1])
        return func(*args, **(kwargs or {}))


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
