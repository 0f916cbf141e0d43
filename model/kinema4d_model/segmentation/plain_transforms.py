"""What sam2 takes from torchvision: a picture to a tensor, to another size, normalised. Made for `torch.jit.script`.

No annotations from the future here: the script compiler does not read them.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

__all__ = ["Normalize", "Resize", "ToTensor"]


class ToTensor:
    """(H, W, 3) uint8 to (3, H, W) float32, 0 to 1."""

    def __call__(self, image: np.ndarray) -> torch.Tensor:
        """Convert one image."""
        return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1).to(torch.float32) / 255


class Resize(nn.Module):
    """(C, H, W) to another size, bilinear with antialiasing, as torchvision does with tensors."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = [int(side) for side in size]

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Resize one image."""
        return functional.interpolate(image[None], self.size, mode="bilinear", align_corners=False, antialias=True)[0]


class Normalize(nn.Module):
    """(C, H, W) less the mean, over the deviation of each channel."""

    def __init__(self, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.mean = [float(value) for value in mean]
        self.std = [float(value) for value in std]

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Normalise one image."""
        mean = torch.tensor(self.mean, dtype=image.dtype, device=image.device)
        std = torch.tensor(self.std, dtype=image.dtype, device=image.device)
        return (image - mean[:, None, None]) / std[:, None, None]
