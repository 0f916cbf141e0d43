"""Inception v3 as FID uses it: TensorFlow's network of 2015-12-05, under the names of its PyTorch conversion.

It differs from torchvision's: averages do not count the padding, and the last block takes a maximum.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

__all__ = ["InceptionFeatures"]


class _Conv(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int = 1) -> None:
        super().__init__()
        size = (kernel, kernel) if isinstance(kernel, int) else kernel
        # Only convolutions with stride or at the stem are without padding, and these are given by `valid`.
        self.conv = nn.Conv2d(inputs, outputs, size, stride, (size[0] // 2, size[1] // 2), bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.bn(self.conv(x)))


def _valid(inputs: int, outputs: int, kernel: int, stride: int = 1) -> _Conv:
    made = _Conv(inputs, outputs, kernel, stride)
    made.conv.padding = (0, 0)
    return made


def _average(x: torch.Tensor) -> torch.Tensor:
    return functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


class _A(nn.Module):
    def __init__(self, inputs: int, pooled: int) -> None:
        super().__init__()
        self.branch1x1 = _Conv(inputs, 64, 1)
        self.branch5x5_1, self.branch5x5_2 = _Conv(inputs, 48, 1), _Conv(48, 64, 5)
        self.branch3x3dbl_1, self.branch3x3dbl_2 = _Conv(inputs, 64, 1), _Conv(64, 96, 3)
        self.branch3x3dbl_3 = _Conv(96, 96, 3)
        self.branch_pool = _Conv(inputs, pooled, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        five = self.branch5x5_2(self.branch5x5_1(x))
        three = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch1x1(x), five, three, self.branch_pool(_average(x))], 1)


class _B(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch3x3 = _valid(inputs, 384, 3, 2)
        self.branch3x3dbl_1, self.branch3x3dbl_2 = _Conv(inputs, 64, 1), _Conv(64, 96, 3)
        self.branch3x3dbl_3 = _valid(96, 96, 3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch3x3(x), double, functional.max_pool2d(x, 3, 2)], 1)


class _C(nn.Module):
    def __init__(self, inputs: int, c: int) -> None:
        super().__init__()
        self.branch1x1 = _Conv(inputs, 192, 1)
        self.branch7x7_1, self.branch7x7_2 = _Conv(inputs, c, 1), _Conv(c, c, (1, 7))
        self.branch7x7_3 = _Conv(c, 192, (7, 1))
        self.branch7x7dbl_1, self.branch7x7dbl_2 = _Conv(inputs, c, 1), _Conv(c, c, (7, 1))
        self.branch7x7dbl_3, self.branch7x7dbl_4 = _Conv(c, c, (1, 7)), _Conv(c, c, (7, 1))
        self.branch7x7dbl_5 = _Conv(c, 192, (1, 7))
        self.branch_pool = _Conv(inputs, 192, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seven = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        return torch.cat([self.branch1x1(x), seven, double, self.branch_pool(_average(x))], 1)


class _D(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch3x3_1, self.branch3x3_2 = _Conv(inputs, 192, 1), _valid(192, 320, 3, 2)
        self.branch7x7x3_1, self.branch7x7x3_2 = _Conv(inputs, 192, 1), _Conv(192, 192, (1, 7))
        self.branch7x7x3_3, self.branch7x7x3_4 = _Conv(192, 192, (7, 1)), _valid(192, 192, 3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        three = self.branch3x3_2(self.branch3x3_1(x))
        seven = self.branch7x7x3_4(self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x))))
        return torch.cat([three, seven, functional.max_pool2d(x, 3, 2)], 1)


class _E(nn.Module):
    def __init__(self, inputs: int, pool: str) -> None:
        super().__init__()
        self._pool = pool
        self.branch1x1 = _Conv(inputs, 320, 1)
        self.branch3x3_1 = _Conv(inputs, 384, 1)
        self.branch3x3_2a, self.branch3x3_2b = _Conv(384, 384, (1, 3)), _Conv(384, 384, (3, 1))
        self.branch3x3dbl_1, self.branch3x3dbl_2 = _Conv(inputs, 448, 1), _Conv(448, 384, 3)
        self.branch3x3dbl_3a, self.branch3x3dbl_3b = _Conv(384, 384, (1, 3)), _Conv(384, 384, (3, 1))
        self.branch_pool = _Conv(inputs, 192, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        three = self.branch3x3_1(x)
        double = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        pooled = _average(x) if self._pool == "average" else functional.max_pool2d(x, 3, 1, 1)
        parts = [self.branch1x1(x), self.branch3x3_2a(three), self.branch3x3_2b(three)]
        parts += [self.branch3x3dbl_3a(double), self.branch3x3dbl_3b(double), self.branch_pool(pooled)]
        return torch.cat(parts, 1)


class InceptionFeatures(nn.Module):
    """2048 numbers for each picture, the last average pool."""

    num_features = 2048

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3, self.Conv2d_2a_3x3 = _valid(3, 32, 3, 2), _valid(32, 32, 3)
        self.Conv2d_2b_3x3 = _Conv(32, 64, 3)
        self.Conv2d_3b_1x1, self.Conv2d_4a_3x3 = _Conv(64, 80, 1), _valid(80, 192, 3)
        self.Mixed_5b, self.Mixed_5c, self.Mixed_5d = _A(192, 32), _A(256, 64), _A(288, 64)
        self.Mixed_6a = _B(288)
        self.Mixed_6b, self.Mixed_6c = _C(768, 128), _C(768, 160)
        self.Mixed_6d, self.Mixed_6e = _C(768, 160), _C(768, 192)
        self.Mixed_7a = _D(768)
        self.Mixed_7b, self.Mixed_7c = _E(1280, "average"), _E(2048, "maximum")

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """(N, 2048) of pictures (N, 3, H, W) uint8."""
        x = functional.interpolate(pictures.float(), (299, 299), mode="bilinear", align_corners=False) / 127.5 - 1
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(functional.max_pool2d(x, 3, 2)))
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(functional.max_pool2d(x, 3, 2))))
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))
        return x.mean(dim=(2, 3))
