"""`ModelBundle`: preset, network, codec and image encoder as one thing, made from a preset or a folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from kinema4d_model.codec import VideoCodec
from kinema4d_model.image_encoder import ImageEncoder
from kinema4d_model.network import KinemaTransformer
from kinema4d_model.preset import Preset, load_preset

__all__ = ["ModelBundle"]


@dataclass
class ModelBundle:
    """A model that can be sampled from.

    >>> bundle = ModelBundle.from_preset("tiny", seed=0)
    >>> sum(p.numel() for p in bundle.transformer.parameters()) < 100_000
    True
    """

    preset: Preset
    transformer: KinemaTransformer
    codec: VideoCodec
    image_encoder: ImageEncoder | None = None
    origin: str = field(default="", repr=False)

    @classmethod
    def from_preset(
        cls, preset: Preset | str, seed: int = 0, device: Literal["cpu", "meta"] | torch.device = "cpu"
    ) -> ModelBundle:
        """A bundle with random weights (the same for the same seed); on "meta" it has shapes and no memory."""
        chosen = load_preset(preset) if isinstance(preset, str) else preset
        with torch.random.fork_rng(devices=[]), torch.device(device):
            torch.manual_seed(seed)
            return cls(
                chosen,
                KinemaTransformer.from_preset(chosen).eval(),
                VideoCodec.from_spec(chosen.codec).eval(),
                None if chosen.image_encoder is None else ImageEncoder.from_spec(chosen.image_encoder).eval(),
            )
