"""`PolicyNetwork`: a small Diffusion Policy from image and joints to a chunk of joint targets, by denoising.

image ───> convolutions ─> soft keypoints ─┬─> predicted grasp ─────────┐
joints ────────────────────────────────────┴────────────────────────────┴─> condition ─┐
noisy chunk, noise level ─────────────────────────────────────────────────────────────┴─> residual layers ─> chunk

Sized for a CPU: the image encoder takes 6 million multiplications, a ResNet-18 on the same image 220 million. The
grasp head is trained on the joints at which the fingers begin to close in the demonstrations; it gives every image a
clear target, which helps with the few hundred scenes that one core can demonstrate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from diffusers import DDIMScheduler
from torch import Tensor, nn
from torch.nn import functional

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.policies.protocol import PolicyError

__all__ = ["NetworkConfig", "PolicyNetwork"]


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of the network.

    Attributes:
        joints: J, arm joints first, gripper last.
        image: (height, width) of the view.
        horizon: actions per chunk.
        channels, keypoints: of the convolutions.
        width, depth: of the denoiser's layers.
        train_levels, levels: number of noise levels in training and at inference.
    """

    joints: int
    image: tuple[int, int] = (64, 96)
    horizon: int = 16
    channels: int = 32
    keypoints: int = 32
    width: int = 256
    depth: int = 3
    train_levels: int = 50
    levels: int = 10

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> NetworkConfig:
        """Make the config from a JSON object.

        Raises:
            PolicyError: unknown names or invalid sizes.
        """
        try:
            config = cls(**{**values, "image": tuple(values.get("image", (64, 96)))})
            numbers = [v for k, v in asdict(config).items() if k != "image"] + list(config.image)
            if len(config.image) != 2 or not all(type(n) is int and 1 <= n <= 4096 for n in numbers):
                raise ValueError(f"sizes {numbers}")
        except (TypeError, ValueError) as error:
            raise PolicyError(
                f"the network's sizes cannot be used: {error}",
                expected="the fields of NetworkConfig",
                code=ErrorCode.POLICY_UNAVAILABLE,
            ) from None
        return config


class PolicyNetwork(nn.Module):
    """The network on normalised values; `chunk_policy.py` and `train.py` normalise."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        c = config.channels
        self.eye = nn.Sequential(
            nn.Conv2d(3, c, 8, 4, 2), nn.GroupNorm(4, c), nn.ReLU(),
            nn.Conv2d(c, c, 3, 1, 1), nn.GroupNorm(4, c), nn.ReLU(),
            nn.Conv2d(c, config.keypoints, 1),
        )  # fmt: skip
        seen = 2 * config.keypoints + config.joints
        self.grasp = nn.Sequential(
            nn.Linear(seen, config.width), nn.SiLU(), nn.Linear(config.width, config.width), nn.SiLU(),
            nn.Linear(config.width, config.joints - 1),
        )  # fmt: skip
        flat = config.horizon * config.joints
        self.level = nn.Embedding(config.train_levels, 64)
        self.enter = nn.Linear(flat, config.width)
        self.condition = nn.Sequential(
            nn.Linear(seen + config.joints - 1 + 64, config.width), nn.SiLU(), nn.Linear(config.width, config.width)
        )
        self.layers = nn.ModuleList(
            nn.ModuleDict({"scale": nn.Linear(config.width, 2 * config.width), "norm": nn.LayerNorm(config.width),
                           "up": nn.Linear(config.width, 2 * config.width),
                           "down": nn.Linear(2 * config.width, config.width)})
            for _ in range(config.depth)
        )  # fmt: skip
        self.leave = nn.Linear(config.width, flat)
        self.scheduler = DDIMScheduler(
            num_train_timesteps=config.train_levels,
            beta_schedule="squaredcos_cap_v2",
            prediction_type="sample",
            clip_sample=False,
        )

    def look(self, image: Tensor, joints: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the denoiser's condition and the predicted grasp.

        Args:
            image: (B, 3, H, W) float32, about -1 to 1.
            joints: (B, J) normalised.

        Returns:
            (B, S) features; (B, J - 1) normalised arm joints of the grasp.
        """
        maps = self.eye(image)
        b, k, h, w = maps.shape
        weight = functional.softmax(maps.flatten(2), dim=2).view(b, k, h, w)
        x = torch.linspace(-1.0, 1.0, w, device=maps.device)
        y = torch.linspace(-1.0, 1.0, h, device=maps.device)
        points = torch.cat([(weight.sum(2) * x).sum(2), (weight.sum(3) * y).sum(2)], dim=1)
        seen = torch.cat([points, joints], dim=1)
        grasp = self.grasp(seen)
        return torch.cat([seen, grasp], dim=1), grasp

    def denoise(self, chunk: Tensor, level: Tensor, features: Tensor) -> Tensor:
        """Return (B, horizon, J), the predicted clean chunk of a noisy one."""
        condition = self.condition(torch.cat([features, self.level(level)], dim=1))
        x = self.enter(chunk.flatten(1))
        for layer in self.layers:
            scale, shift = layer["scale"](condition).chunk(2, dim=1)  # type: ignore[index]
            inner = layer["norm"](x) * (1 + scale) + shift  # type: ignore[index]
            x = x + layer["down"](functional.silu(layer["up"](inner)))  # type: ignore[index]
        return self.leave(x).view(chunk.shape)

    def loss(self, image: Tensor, joints: Tensor, chunk: Tensor, grasp: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """Return the mean squared error of the denoised chunk and of the grasp.

        `noise` (R * B, horizon, J) and `level` (R * B,) may hold several draws per sample, since encoding the image
        costs more than denoising.
        """
        features, guessed = self.look(image, joints)
        draws = len(noise) // len(chunk)
        features, wanted = features.repeat(draws, 1), chunk.repeat(draws, 1, 1)
        noisy = self.scheduler.add_noise(wanted, noise, level)
        return functional.mse_loss(self.denoise(noisy, level, features), wanted) + functional.mse_loss(guessed, grasp)

    @torch.no_grad()
    def sample(self, image: Tensor, joints: Tensor, noise: Tensor) -> Tensor:
        """Sample a normalised chunk (B, horizon, J) from noise of that shape."""
        features, _ = self.look(image, joints)
        scheduler = DDIMScheduler.from_config(self.scheduler.config)
        scheduler.set_timesteps(self.config.levels)
        chunk = noise
        for t in scheduler.timesteps:
            level = torch.full((len(chunk),), int(t), dtype=torch.long, device=chunk.device)
            chunk = scheduler.step(self.denoise(chunk, level, features), t, chunk).prev_sample
        return chunk
