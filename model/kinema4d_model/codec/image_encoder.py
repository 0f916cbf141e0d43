"""CLIP tokens of the first image, for networks that attend to it: resize, crop, normalise, penultimate state."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import nn
from transformers import CLIPVisionConfig, CLIPVisionModel

from kinema4d_model.preset_parts import ImageEncoderSpec

__all__ = ["ImageEncoder"]

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


class ImageEncoder(nn.Module):
    """transformers' `CLIPVisionModel` with its image processing as tensor operations."""

    def __init__(self, clip: CLIPVisionModel) -> None:
        super().__init__()
        self.clip = clip

    @classmethod
    def from_spec(cls, spec: ImageEncoderSpec) -> ImageEncoder:
        """Make an encoder of these sizes, with random weights of the default generator."""
        return cls(CLIPVisionModel(clip_config(spec)))

    def preprocess(self, image: torch.Tensor) -> torch.Tensor:
        """Resize the shorter side of (B, 3, H, W) in [-1, 1], crop the centre to the encoder's square, normalise.

        Pixels are resized as bytes by Pillow, as CLIP's own processing in the released code does: without its rounding
        the tokens differ by 0.8 %.
        """
        size = self.clip.config.image_size
        height, width = image.shape[-2:]
        if image.is_meta:
            return image.new_empty(image.shape[0], 3, size, size)
        short = min(height, width)
        target = (height * size // short, width * size // short)
        pixels = ((image.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        resized = [Image.fromarray(one).resize(target[::-1], Image.Resampling.BICUBIC) for one in pixels]
        top, left = (target[0] - size) // 2, (target[1] - size) // 2
        crop = np.stack([np.asarray(one)[top : top + size, left : left + size] for one in resized])
        values = torch.from_numpy(crop).to(image.device).permute(0, 3, 1, 2).float() / 255
        mean, std = (torch.tensor(v, device=image.device).view(1, 3, 1, 1) for v in (CLIP_MEAN, CLIP_STD))
        return (values - mean) / std

    @torch.no_grad()
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Encode (B, 3, H, W) in [-1, 1] to (B, tokens, hidden): the state before the last layer."""
        weight = next(self.clip.parameters())
        pixels = self.preprocess(image).to(weight.device, weight.dtype)
        return self.clip(pixel_values=pixels, output_hidden_states=True).hidden_states[-2]


def clip_config(spec: ImageEncoderSpec) -> CLIPVisionConfig:
    """Make the encoder's configuration for transformers."""
    return CLIPVisionConfig(
        hidden_size=spec.hidden,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        intermediate_size=spec.mlp,
        image_size=spec.image_size,
        patch_size=spec.patch_size,
        projection_dim=spec.projection_dim,
        hidden_act=spec.hidden_act,
    )
