"""Where the weights live: on the device, on the host until a part is needed, or block by block in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kinema4d_ros.core.errors import ErrorCode, GeneratorError

__all__ = ["OFFLOADS", "Residence"]

OFFLOADS = ("none", "model", "group")
_GROUP = 2


class Residence:
    """Brings modules to the device for as long as they are used.

    "none": everything is on the device from the start. "model": each part is there only while it works.
    "group": the same for the codec and the image encoder, and the transformer comes two blocks at a time, the
    next ones copied while these compute (diffusers' group offloading).
    On the CPU all three give the same result and save nothing.
    """

    def __init__(self, transformer: Any, others: list[Any], offload: str, device: torch.device) -> None:
        """Place the modules."""
        if offload not in OFFLOADS:
            raise GeneratorError(
                f"offload '{offload}'", expected=" or ".join(OFFLOADS), code=ErrorCode.GENERATOR_BAD_REQUEST
            )
        self.device = device
        self._visiting = [] if offload == "none" else list(others)
        if offload == "none":
            for module in (transformer, *others):
                module.to(device)
        elif offload == "model":
            self._visiting.append(transformer)
        else:
            from diffusers.hooks import apply_group_offloading

            apply_group_offloading(
                transformer,
                onload_device=device,
                offload_device=torch.device("cpu"),
                offload_type="block_level",
                num_blocks_per_group=_GROUP,
                use_stream=device.type == "cuda",
            )

    @contextmanager
    def using(self, *modules: Any) -> Iterator[None]:
        """The modules are on the device inside, and back on the host after if they are only visitors."""
        visitors = [m for m in modules if any(m is v for v in self._visiting)]
        for module in visitors:
            module.to(self.device)
        try:
            yield
        finally:
            for module in visitors:
                module.to("cpu")
