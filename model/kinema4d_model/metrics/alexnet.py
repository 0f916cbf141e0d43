"""LPIPS: the distance of two pictures as AlexNet sees them (Zhang et al. 2018), version 0.1 with linear heads."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["AlexNetLpips"]

_TAPS = (1, 4, 7, 9, 11)
_CHANNELS = (64, 192, 384, 256, 256)


class AlexNetLpips(nn.Module):
    """Backbone under torchvision's names (`features.N`), heads as `lin0` to `lin4`, each (1, C, 1, 1)."""

    shift: torch.Tensor
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
        )
        for i, channels in enumerate(_CHANNELS):
            self.register_parameter(f"lin{i}", nn.Parameter(torch.rand(1, channels, 1, 1)))
        self.register_buffer("shift", torch.tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor([0.458, 0.448, 0.450]).view(1, 3, 1, 1), persistent=False)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """(N,) distances of pictures (N, 3, H, W) in [-1, 1]."""
        x, y = (a - self.shift) / self.scale, (b - self.shift) / self.scale
        total = torch.zeros(len(a), device=a.device)
        head = 0
        for number, layer in enumerate(self.features):
            x, y = layer(x), layer(y)
            if number in _TAPS:
                squared = (_unit(x) - _unit(y)) ** 2
                total = total + (squared * getattr(self, f"lin{head}")).sum(1).mean(dim=(1, 2))
                head += 1
        return total


def _unit(features: torch.Tensor) -> torch.Tensor:
    return features / torch.sqrt(1e-8 + (features * features).sum(1, keepdim=True))
