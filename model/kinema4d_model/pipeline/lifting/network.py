"""`HeightNet`: a small U-Net that predicts per pixel whether an object stands on the table, and its height.

    colours, plane geometry, robot mask (B, 12, H, W)
      stem /2 ── block ───────────────────── cat ── block ── pixel shuffle x2 ── cat ── head ── (B, 2, H, W)
                  └ /2 ── block ───── cat ── block ┘                              │
                           └ /2 ── block x2 ┘              colours at full size ──┘

It predicts heights above the plane, not depths: an object's height does not change when the camera moves.
"""

from __future__ import annotations

import math

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import nn
from torch.nn.functional import interpolate, pixel_shuffle, silu

__all__ = ["HEIGHT_UNIT_M", "INPUT_CHANNELS", "STRIDE", "THING_WEIGHT", "HeightNet", "UBlock", "probability"]

INPUT_CHANNELS = 12
"""3 colours, 8 of `geometry.PlaneView.channels`, 1 robot mask."""
STRIDE = 8
"""The sides of the input must be multiples of this."""
HEIGHT_UNIT_M = 0.1
THING_WEIGHT = 4.0
"""Weight of an object's pixel in training: objects cover few pixels."""
_GROUP = 8


class UBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.first_norm = nn.GroupNorm(outputs // _GROUP, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.second_norm = nn.GroupNorm(outputs // _GROUP, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H, W)."""
        y = silu(self.first_norm(self.first(x)))
        return y + silu(self.second_norm(self.second(y)))


class HeightNet(ModelMixin, ConfigMixin):
    """U-Net in diffusers format, saved and loaded like any diffusers model.

    Args:
        widths: channels at 1/2, 1/4 and 1/8 of the size; multiples of 8.
        head_width: channels at full size.
    """

    config_name = "config.json"

    @register_to_config
    def __init__(self, widths: tuple[int, int, int] = (24, 48, 96), head_width: int = 16) -> None:
        super().__init__()
        a, b, c = widths
        self.stem = nn.Conv2d(INPUT_CHANNELS, a, 5, stride=2, padding=2)
        self.down1 = UBlock(a, a)
        self.to2 = nn.Conv2d(a, b, 3, stride=2, padding=1)
        self.down2 = UBlock(b, b)
        self.to3 = nn.Conv2d(b, c, 3, stride=2, padding=1)
        self.down3 = nn.Sequential(UBlock(c, c), UBlock(c, c))
        self.from3 = nn.Conv2d(c, b, 1)
        self.up2 = UBlock(2 * b, b)
        self.from2 = nn.Conv2d(b, a, 1)
        self.up1 = UBlock(2 * a, a)
        self.to_head = nn.Conv2d(a, 4 * head_width, 1)
        self.head1 = nn.Conv2d(head_width + 3, head_width, 3, padding=1)
        self.head2 = nn.Conv2d(head_width, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map (B, 12, H, W) to two (B, H, W): logit of "an object stands here" and its height in units of 0.1 m."""
        one = self.down1(silu(self.stem(x)))
        two = self.down2(silu(self.to2(one)))
        three = self.down3(silu(self.to3(two)))
        two = self.up2(torch.cat([_double(self.from3(three)), two], 1))
        one = self.up1(torch.cat([_double(self.from2(two)), one], 1))
        full = torch.cat([pixel_shuffle(silu(self.to_head(one)), 2), x[:, :3]], 1)
        out = self.head2(silu(self.head1(full)))
        return out[:, 0], out[:, 1]


def probability(logit: torch.Tensor) -> torch.Tensor:
    """Return the probability of an object; subtracts the bias that THING_WEIGHT adds to the logit in training."""
    return (logit - math.log(THING_WEIGHT)).sigmoid()


def _double(x: torch.Tensor) -> torch.Tensor:
    return interpolate(x, scale_factor=2, mode="nearest")
