"""`VideoCodec`: images and pointmaps to normalised latents and back, around diffusers' `AutoencoderKLWan`.

`linear.py` has the same interface without a network.
"""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLWan
from torch import nn

from kinema4d_model.preset_parts import CodecSpec

__all__ = ["VideoCodec"]


class VideoCodec(nn.Module):
    """One autoencoder for both modalities; pointmaps have additional statistics of their own.

    A pointmap video is the [0, 1] normalised pointmap mapped to [-1, 1]. T = 1 + 4 k frames make F = 1 + k latent
    frames; h = H / 8, w = W / 8.
    """

    def __init__(self, vae: AutoencoderKLWan, xyz_mean: float, xyz_std: float) -> None:
        super().__init__()
        self.vae = vae
        self.xyz_mean = xyz_mean
        self.xyz_std = xyz_std

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> VideoCodec:
        """Make a codec of these sizes, with random weights of the default generator, or a linear one, not fitted."""
        if spec.kind == "linear":
            from kinema4d_model.codec.linear import LinearCodec

            return LinearCodec.from_spec(spec)
        return cls(make_autoencoder(spec), spec.xyz_mean, spec.xyz_std)

    def encode(self, video: torch.Tensor) -> torch.Tensor:
        """Encode (B, 3, T, H, W) in [-1, 1] to (B, 16, F, h, w) float32: the posterior's mode, RGB statistics."""
        weight = self.vae.encoder.conv_in.weight
        latents = self.vae.encode(video.to(weight.device, weight.dtype)).latent_dist.mode().float()
        mean, std = self._statistics(latents)
        return (latents - mean) / std

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Decode (B, 16, F, h, w) with RGB statistics to (B, 3, T, H, W) float32 in [-1, 1]."""
        mean, std = self._statistics(latents)
        weight = self.vae.decoder.conv_in.weight
        raw = (latents.float() * std + mean).to(weight.device, weight.dtype)
        return self.vae.decode(raw, return_dict=False)[0].float()

    def to_xyz(self, latents: torch.Tensor) -> torch.Tensor:
        """Convert latents from RGB statistics to pointmap statistics."""
        return (latents - self.xyz_mean) / self.xyz_std

    def from_xyz(self, latents: torch.Tensor) -> torch.Tensor:
        """Convert latents from pointmap statistics to RGB statistics."""
        return latents * self.xyz_std + self.xyz_mean

    def encode_xyz(self, video: torch.Tensor) -> torch.Tensor:
        """Encode (B, 3, T, H, W) in [-1, 1] to (B, 16, F, h, w) with pointmap statistics."""
        return self.to_xyz(self.encode(video))

    def encode_first(self, video: torch.Tensor) -> torch.Tensor:
        """Encode (B, 3, T, H, 2W), [image | pointmap], to (B, 16, F, h, 2w), both with RGB statistics, as released."""
        return self.encode(video)

    def encode_pair(self, rgb: torch.Tensor, xyz: torch.Tensor) -> torch.Tensor:
        """Encode two videos (B, 3, T, H, W) in [-1, 1] to (B, 16, F, h, 2w): RGB left, XYZ right."""
        left, right = self.encode(torch.cat([rgb, xyz])).chunk(2)
        return torch.cat([left, self.to_xyz(right)], dim=-1)

    def decode_pair(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Decode (B, 16, F, h, 2w) to RGB and XYZ videos (B, 3, T, H, W) in [-1, 1]."""
        left, right = latents.chunk(2, dim=-1)
        rgb, xyz = self.decode(torch.cat([left, self.from_xyz(right)])).chunk(2)
        return rgb, xyz

    def decode_joint(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Decode (B, 16, F, h, 2w) as one video of double width, as the released code; results as `decode_pair`.

        The halves then mix at their common border, by as far as the decoder sees.
        """
        left, right = latents.chunk(2, dim=-1)
        rgb, xyz = self.decode(torch.cat([left, self.from_xyz(right)], dim=-1)).chunk(2, dim=-1)
        return rgb, xyz

    def _statistics(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (1, -1, 1, 1, 1)
        config = self.vae.config
        mean = torch.tensor(config.latents_mean, device=like.device, dtype=torch.float32).view(shape)
        return mean, torch.tensor(config.latents_std, device=like.device, dtype=torch.float32).view(shape)


def make_autoencoder(spec: CodecSpec) -> AutoencoderKLWan:
    """Make the autoencoder of a preset."""
    channels = 3 if spec.patch_size is None else 3 * spec.patch_size**2
    return AutoencoderKLWan(
        base_dim=spec.base_dim,
        z_dim=spec.latent_channels,
        dim_mult=list(spec.dim_mult),
        num_res_blocks=spec.num_res_blocks,
        temperal_downsample=list(spec.temporal_downsample),
        latents_mean=list(spec.latents_mean),
        latents_std=list(spec.latents_std),
        is_residual=spec.is_residual,
        in_channels=channels,
        out_channels=channels,
        patch_size=spec.patch_size,
        scale_factor_temporal=spec.temporal_factor,
        scale_factor_spatial=spec.spatial_factor,
    )
