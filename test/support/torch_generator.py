"""A generator for the generator node that allocates torch memory, more for more frames."""

from __future__ import annotations

from typing import Any

from kinema4d_ros.generators import load_generator

MB_A_FRAME = 100
MANY = 8
"""With fewer frames nothing is allocated."""


class TorchGenerator:
    """The composite generator with additional unused tensors."""

    name = "composite"

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._good = load_generator("composite")

    def generate(self, request: Any, progress: Any = None, cancel: Any = None) -> Any:
        frames = len(request.robot)
        taken = self._torch.empty(0 if frames < MANY else frames * MB_A_FRAME << 20, dtype=self._torch.uint8)
        made = self._good.generate(request, progress, cancel)
        del taken
        return made
