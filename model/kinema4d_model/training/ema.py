"""The average of the weights over the last steps: what is validated and exported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["Ema"]


class Ema:
    """Float32 copies of named parameters that follow them slowly.

    After n steps the decay is min(`decay`, (1 + n) / (10 + n)): early weights are forgotten soon.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self.decay = decay
        self.average = {name: p.detach().float().clone() for name, p in parameters.items()}

    @torch.no_grad()
    def update(self, parameters: Mapping[str, nn.Parameter], step: int) -> None:
        """Follow the weights after step 1, 2, ..."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, average in self.average.items():
            average.lerp_(parameters[name].detach().float(), 1 - decay)

    @contextmanager
    def applied(self, parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
        """Inside, the parameters hold the averages; after, exactly what they held before."""
        kept = {name: parameters[name].detach().clone() for name in self.average}
        self.copy_to(parameters)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in kept.items():
                    parameters[name].copy_(tensor)

    @torch.no_grad()
    def copy_to(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Write the averages into the parameters."""
        for name, average in self.average.items():
            parameters[name].copy_(average.to(parameters[name]))
