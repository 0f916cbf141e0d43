"""Codec without a training loop: principal components of 4 x 8 x 8 patches, in Wan's latent layout.

    frame 0      -> 8 x 8 x 3 values per patch     -> C numbers   \\  one orthonormal basis each,
    4 frames     -> 4 x 8 x 8 x 3 values per patch -> C numbers   /   for images and for pointmaps

Encoding is one matrix product, decoding its transpose: milliseconds. A latent depends only on its patch's own pixels
and frames. `training/fit_codec.py` computes the bases.
"""

from __future__ import annotations

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin

from kinema4d_model.codec.video_codec import VideoCodec
from kinema4d_model.preset_parts import CodecSpec
from kinema4d_ros.core.errors import ErrorCode, GeneratorError

__all__ = ["MODALITIES", "LinearAutoencoder", "LinearCodec"]

MODALITIES = ("rgb", "xyz")
"""Order of the rows in every table: images, pointmaps."""


class LinearAutoencoder(ModelMixin, ConfigMixin):
    """Bases, means and scales; saved and loaded like any diffusers model.

    For modality m: `first_basis[m]` (C, 3 s s) and `group_basis[m]` (C, 3 t s s) have orthonormal rows,
    `*_mean[m]` is the mean patch and `*_scale[m]` (C,) the size of one latent unit.
    Values of a patch are ordered (channel, frame, row, column).
    """

    config_name = "config.json"

    @register_to_config
    def __init__(self, latent_channels: int = 48, spatial_factor: int = 8, temporal_factor: int = 4) -> None:
        super().__init__()
        for part, frames in (("first", 1), ("group", temporal_factor)):
            size = 3 * frames * spatial_factor**2
            if latent_channels > size:
                raise GeneratorError(
                    f"cannot make {latent_channels} latent channels from patches of {size} values",
                    expected=f"at most {size}",
                    code=ErrorCode.GENERATOR_BAD_REQUEST,
                )
            # Until fitted, copy the first values of a patch.
            basis = torch.eye(latent_channels, size).repeat(2, 1, 1)
            self.register_buffer(f"{part}_basis", basis)
            self.register_buffer(f"{part}_mean", torch.zeros(2, size))
            self.register_buffer(f"{part}_scale", torch.ones(2, latent_channels))

    def encode(self, video: torch.Tensor, modality: int) -> torch.Tensor:
        """Encode (B, 3, 1 + t k, s h, s w) in [-1, 1] to (B, C, 1 + k, h, w) float32."""
        s, t = self.config.spatial_factor, self.config.temporal_factor
        frames, rows, columns = video.shape[2:]
        if (frames - 1) % t or rows % s or columns % s:
            raise GeneratorError(
                f"cannot encode a video of {frames} x {rows} x {columns}",
                expected=f"1 + a multiple of {t} frames, rows and columns in multiples of {s}",
                code=ErrorCode.GENERATOR_BAD_REQUEST,
            )
        video = video.to(self.first_basis.device, torch.float32)
        parts = [self._project("first", modality, self._patches(video[:, :, :1], 1))]
        if frames > 1:
            parts.append(self._project("group", modality, self._patches(video[:, :, 1:], t)))
        return torch.cat(parts, dim=1).movedim(-1, 1)

    def decode(self, latents: torch.Tensor, modality: int) -> torch.Tensor:
        """Decode (B, C, 1 + k, h, w) to (B, 3, 1 + t k, s h, s w) float32, not clamped."""
        cells = latents.to(self.first_basis.device, torch.float32).movedim(1, -1)
        parts = [self._video(self._unproject("first", modality, cells[:, :1]), 1)]
        if cells.shape[1] > 1:
            parts.append(self._video(self._unproject("group", modality, cells[:, 1:]), self.config.temporal_factor))
        return torch.cat(parts, dim=2)

    def enable_tiling(self) -> None:
        """Do nothing: a patch does not depend on other patches, so tiles save no memory."""

    def _patches(self, video: torch.Tensor, frames: int) -> torch.Tensor:
        """Reshape (B, 3, n f, s h, s w) to (B, n, h, w, 3 f s s)."""
        s = self.config.spatial_factor
        split = video.unflatten(-1, (-1, s)).unflatten(-3, (-1, s)).unflatten(2, (-1, frames))
        return split.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(-4)

    def _video(self, patches: torch.Tensor, frames: int) -> torch.Tensor:
        s = self.config.spatial_factor
        split = patches.unflatten(-1, (3, frames, s, s)).permute(0, 4, 1, 5, 2, 6, 3, 7)
        return split.flatten(6, 7).flatten(4, 5).flatten(2, 3)

    def _project(self, part: str, m: int, patches: torch.Tensor) -> torch.Tensor:
        basis, mean, scale = self._table(part, m)
        # Subtracting the mean after the product saves one pass over the pixels.
        return (patches @ basis.T - mean @ basis.T) / scale

    def _unproject(self, part: str, m: int, cells: torch.Tensor) -> torch.Tensor:
        basis, mean, scale = self._table(part, m)
        return (cells * scale) @ basis + mean

    def _table(self, part: str, m: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        named = (getattr(self, f"{part}_{name}")[m] for name in ("basis", "mean", "scale"))
        basis, mean, scale = named
        return basis, mean, scale


class LinearCodec(VideoCodec):
    """`VideoCodec` on a `LinearAutoencoder`: each modality has its own basis instead of statistics."""

    vae: LinearAutoencoder

    def __init__(self, vae: LinearAutoencoder) -> None:
        super().__init__(vae, 0.0, 1.0)

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> LinearCodec:
        """Make a codec of these sizes that is not fitted yet."""
        return cls(LinearAutoencoder(spec.latent_channels, spec.spatial_factor, spec.temporal_factor))

    def encode(self, video: torch.Tensor) -> torch.Tensor:
        """Encode (B, 3, T, H, W) in [-1, 1] to (B, C, F, h, w) float32 with the image basis."""
        return self.vae.encode(video, 0)

    def encode_xyz(self, video: torch.Tensor) -> torch.Tensor:
        """Encode (B, 3, T, H, W) in [-1, 1] to (B, C, F, h, w) float32 with the pointmap basis."""
        return self.vae.encode(video, 1)

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Decode (B, C, F, h, w) with the image basis to (B, 3, T, H, W) float32 in [-1, 1]."""
        return self.vae.decode(latents, 0).clamp_(-1, 1)

    def encode_first(self, video: torch.Tensor) -> torch.Tensor:
        """Encode (B, 3, T, H, 2W), image beside pointmap, to (B, C, F, h, 2w), each half with its own basis."""
        left, right = video.chunk(2, dim=-1)
        return self.encode_pair(left, right)

    def encode_pair(self, rgb: torch.Tensor, xyz: torch.Tensor) -> torch.Tensor:
        """Encode two videos (B, 3, T, H, W) in [-1, 1] to (B, C, F, h, 2w): RGB left, XYZ right."""
        return torch.cat([self.encode(rgb), self.encode_xyz(xyz)], dim=-1)

    def decode_pair(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Decode (B, C, F, h, 2w) to RGB and XYZ videos (B, 3, T, H, W) in [-1, 1]."""
        left, right = latents.chunk(2, dim=-1)
        return self.decode(left), self.vae.decode(right, 1).clamp_(-1, 1)

    def decode_joint(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Decode like `decode_pair`: cells do not see each other, so the halves have no common border."""
        return self.decode_pair(latents)

    def to_xyz(self, latents: torch.Tensor) -> torch.Tensor:
        """Raise GeneratorError: a latent cannot be converted to another basis."""
        raise _bases()

    def from_xyz(self, latents: torch.Tensor) -> torch.Tensor:
        """Raise GeneratorError: a latent cannot be converted to another basis."""
        raise _bases()


def _bases() -> GeneratorError:
    return GeneratorError(
        "a linear codec has one basis for images and one for pointmaps",
        expected="encode_xyz, encode_pair or decode_pair",
        code=ErrorCode.GENERATOR_BAD_REQUEST,
    )
