"""CLIP tokens of the first image, for networks that attend to it: resize, crop, normalise, penultimate state."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
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
        """Resize the shorter side of (B, 3, H, W) in [-1, 1], crop the centre to the encoder's square, normalise."""
        size = self.clip.config.image_size
        height, width = image.shape[-2:]
        scale = size / min(height, width)
        target = (max(size, int(height * scale)), max(size, int(width * scale)))
        resized = functional.interpolate(
            (image.float() + 1) / 2, size=target, mode="bicubic", antialias=True, align_corners=False
        ).clamp(0, 1)
        top, left = (target[0] - size) // 2, (target[1] - size) // 2
        crop = resized[..., top : top + size, left : left + size]
        mean, std = (torch.tensor(v, device=crop.device).view(1, 3, 1, 1) for v in (CLIP_MEAN, CLIP_STD))
        return (crop - mean) / std

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
