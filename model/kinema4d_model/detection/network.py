"""`DetectorNet`: a small U-Net that says of every pixel what surface it shows and which object that belongs to.

    colours, plane geometry, robot mask (B, 12, H, W)
      stem /2 ── block ───────────────────── cat ── block ─┬─ votes (B, 2 x 9 + 5, H/2, W/2)
                  └ /2 ── block ───── cat ── block ┘       └─ pixel shuffle x2, colours ── head ── faces (B, 3, H, W)
                           └ /2 ── blocks ─┘

Votes are relative to the point of the table that the pixel's ray meets, in the upright frame of the camera: they do not
change when robot base and camera move, and they name the whole object where only a part of it is seen. The trunk is
that of `HeightNet`, so that a lifter's weights are a start.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import nn
from torch.nn.functional import interpolate, pixel_shuffle, silu

from kinema4d_model.detection.views import CLASSES
from kinema4d_model.pipeline.lifting.network import INPUT_CHANNELS, HeightNet, UBlock

__all__ = ["FACES", "STRIDE", "UNIT_M", "VOTES", "DetectorNet", "Output"]

STRIDE = 16
"""The sides of the input must be multiples of this."""
VOTES = ("right", "forward", "width_0", "width_45", "width_90", "width_135", "bottom", "top", "surface")
"""Regressed values per pixel: offset of the object's centre from the pixel's table point, widths of its footprint,
heights of its bottom and top, height of the visible surface; in units of UNIT_M."""
UNIT_M = 0.1
FACES = ("none", "top", "side")
"""Surface of a pixel, logits at full size: no object, a surface that faces up, any other surface of an object."""


class Output(NamedTuple):
    """What the network predicts.

    Attributes:
        values: (B, V, H/2, W/2), VOTES in units of UNIT_M.
        log_scale: (B, V, H/2, W/2), log of the Laplace scale of each.
        classes: (B, C, H/2, W/2) logits of CLASSES.
        faces: (B, 3, H, W) logits of FACES.
    """

    values: torch.Tensor
    log_scale: torch.Tensor
    classes: torch.Tensor
    faces: torch.Tensor


class DetectorNet(ModelMixin, ConfigMixin):
    """U-Net in diffusers format, saved and loaded like any diffusers model.

    Args:
        widths: channels at 1/2, 1/4, 1/8 and 1/16 of the size; multiples of 8.
        vote_width: channels of the head of the votes.
        head_width: channels at full size.
    """

    config_name = "config.json"

    @register_to_config
    def __init__(
        self, widths: tuple[int, int, int, int] = (24, 48, 96, 96), vote_width: int = 64, head_width: int = 16
    ) -> None:
        super().__init__()
        a, b, c, d = widths
        self.stem = nn.Conv2d(INPUT_CHANNELS, a, 5, stride=2, padding=2)
        self.down1 = UBlock(a, a)
        self.to2 = nn.Conv2d(a, b, 3, stride=2, padding=1)
        self.down2 = UBlock(b, b)
        self.to3 = nn.Conv2d(b, c, 3, stride=2, padding=1)
        self.down3 = nn.Sequential(UBlock(c, c), UBlock(c, c))
        self.to4 = nn.Conv2d(c, d, 3, stride=2, padding=1)
        self.down4 = UBlock(d, d)
        self.from4 = nn.Conv2d(d, c, 1)
        self.up3 = UBlock(c, c)
        self.from3 = nn.Conv2d(c, b, 1)
        self.up2 = UBlock(2 * b, b)
        self.from2 = nn.Conv2d(b, a, 1)
        self.up1 = UBlock(2 * a, a)
        self.to_head = nn.Conv2d(a, 4 * head_width, 1)
        self.head1 = nn.Conv2d(head_width + 3, head_width, 3, padding=1)
        self.face_head = nn.Conv2d(head_width, len(FACES), 3, padding=1)
        outputs = 2 * len(VOTES) + len(CLASSES)
        # Votes also see the coarser level directly: an object is wider than the finest level's view.
        self.from2_votes = nn.Conv2d(b, vote_width, 1)
        self.vote1 = nn.Conv2d(a, vote_width, 1)
        self.vote2 = nn.Conv2d(vote_width, vote_width, 1)
        self.vote_head = nn.Conv2d(vote_width, outputs, 1)

    def forward(self, x: torch.Tensor) -> Output:
        """Map (B, 12, H, W) to the predictions."""
        one = self.down1(silu(self.stem(x)))
        two = self.down2(silu(self.to2(one)))
        three = self.down3(silu(self.to3(two)))
        four = self.down4(silu(self.to4(three)))
        three = self.up3(three + _double(self.from4(four)))
        two = self.up2(torch.cat([_double(self.from3(three)), two], 1))
        one = self.up1(torch.cat([_double(self.from2(two)), one], 1))
        full = torch.cat([pixel_shuffle(silu(self.to_head(one)), 2), x[:, :3]], 1)
        faces = self.face_head(silu(self.head1(full)))
        votes = silu(self.vote1(one) + _double(self.from2_votes(two)))
        votes = self.vote_head(silu(self.vote2(votes)))
        count = len(VOTES)
        return Output(votes[:, :count], votes[:, count : 2 * count].clamp(-7.0, 2.0), votes[:, 2 * count :], faces)

    def start_from(self, other: HeightNet | DetectorNet) -> int:
        """Copy the weights that a lifter or detector of the same widths has in common; returns how many tensors."""
        own = self.state_dict()
        shared = {k: v for k, v in other.state_dict().items() if k in own and own[k].shape == v.shape}
        self.load_state_dict(shared, strict=False)
        return len(shared)


def _double(x: torch.Tensor) -> torch.Tensor:
    return interpolate(x, scale_factor=2, mode="nearest")
