"""I3D (Carreira and Zisserman 2017), the network of FVD: RGB stream, Kinetics-400, under pytorch-i3d's names."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

__all__ = ["I3dFeatures"]

Size = tuple[int, int, int]


def _same(x: torch.Tensor, kernel: Size, stride: Size) -> torch.Tensor:
    """Padded with zeros as TensorFlow does: the odd one at the end."""
    pads: list[int] = []
    for axis in (2, 1, 0):
        length = x.shape[2 + axis]
        needed = max(kernel[axis] - (stride[axis] if length % stride[axis] == 0 else length % stride[axis]), 0)
        pads += [needed // 2, needed - needed // 2]
    return functional.pad(x, pads)


def _pool(x: torch.Tensor, kernel: Size, stride: Size) -> torch.Tensor:
    return functional.max_pool3d(_same(x, kernel, stride), kernel, stride)


class _Unit(nn.Module):
    def __init__(self, inputs: int, outputs: int, size: int = 1, stride: int = 1, *, last: bool = False) -> None:
        super().__init__()
        self._kernel: Size = (size, size, size)
        self._stride: Size = (stride, stride, stride)
        self.conv3d = nn.Conv3d(inputs, outputs, size, stride, bias=last)
        if not last:
            self.bn = nn.BatchNorm3d(outputs, eps=0.001, momentum=0.01)
        self._last = last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv3d(_same(x, self._kernel, self._stride))
        return x if self._last else functional.relu(self.bn(x))


class _Mixed(nn.Module):
    def __init__(self, inputs: int, sizes: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        self.b0 = _Unit(inputs, sizes[0])
        self.b1a, self.b1b = _Unit(inputs, sizes[1]), _Unit(sizes[1], sizes[2], 3)
        self.b2a, self.b2b = _Unit(inputs, sizes[3]), _Unit(sizes[3], sizes[4], 3)
        self.b3b = _Unit(inputs, sizes[5])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = _pool(x, (3, 3, 3), (1, 1, 1))
        return torch.cat([self.b0(x), self.b1b(self.b1a(x)), self.b2b(self.b2a(x)), self.b3b(pooled)], 1)


class I3dFeatures(nn.Module):
    """400 numbers (the logits) for each clip of at least 10 frames."""

    num_features = 400

    def __init__(self) -> None:
        super().__init__()
        self.Conv3d_1a_7x7 = _Unit(3, 64, 7, 2)
        self.Conv3d_2b_1x1, self.Conv3d_2c_3x3 = _Unit(64, 64), _Unit(64, 192, 3)
        self.Mixed_3b = _Mixed(192, (64, 96, 128, 16, 32, 32))
        self.Mixed_3c = _Mixed(256, (128, 128, 192, 32, 96, 64))
        self.Mixed_4b = _Mixed(480, (192, 96, 208, 16, 48, 64))
        self.Mixed_4c = _Mixed(512, (160, 112, 224, 24, 64, 64))
        self.Mixed_4d = _Mixed(512, (128, 128, 256, 24, 64, 64))
        self.Mixed_4e = _Mixed(512, (112, 144, 288, 32, 64, 64))
        self.Mixed_4f = _Mixed(528, (256, 160, 320, 32, 128, 128))
        self.Mixed_5b = _Mixed(832, (256, 160, 320, 32, 128, 128))
        self.Mixed_5c = _Mixed(832, (384, 192, 384, 48, 128, 128))
        self.logits = _Unit(1024, 400, last=True)

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        """(N, 400) of clips (N, 3, T, H, W) uint8."""
        frames = clips.shape[2]
        x = functional.interpolate(clips.float(), (frames, 224, 224), mode="trilinear", align_corners=False) / 127.5 - 1
        x = _pool(self.Conv3d_1a_7x7(x), (1, 3, 3), (1, 2, 2))
        x = _pool(self.Conv3d_2c_3x3(self.Conv3d_2b_1x1(x)), (1, 3, 3), (1, 2, 2))
        x = _pool(self.Mixed_3c(self.Mixed_3b(x)), (3, 3, 3), (2, 2, 2))
        x = self.Mixed_4f(self.Mixed_4e(self.Mixed_4d(self.Mixed_4c(self.Mixed_4b(x)))))
        x = self.Mixed_5c(self.Mixed_5b(_pool(x, (2, 2, 2), (2, 2, 2))))
        x = functional.avg_pool3d(x, (2, 7, 7), 1)
        return self.logits(x).mean(dim=(2, 3, 4))
