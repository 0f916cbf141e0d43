"""Networks of the metrics: Inception v3 (FID), I3D (FVD), AlexNet (LPIPS), with published parameter names.

Inception is TensorFlow's network of 2015-12-05 under the names of its PyTorch conversion. It differs from
torchvision's: averages do not count the padding, and the last block takes a maximum.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

__all__ = ["AlexNetLpips", "I3dFeatures", "InceptionFeatures"]


class _Conv(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int = 1) -> None:
        super().__init__()
        size = (kernel, kernel) if isinstance(kernel, int) else kernel
        # Convolutions without padding (with stride or at the stem) are made by `_valid`.
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
    """Inception v3 features: 2048 numbers per image, the last average pool."""

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
        """Compute (N, 2048) features of images (N, 3, H, W) uint8."""
        x = functional.interpolate(pictures.float(), (299, 299), mode="bilinear", align_corners=False) / 127.5 - 1
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(functional.max_pool2d(x, 3, 2)))
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(functional.max_pool2d(x, 3, 2))))
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))
        return x.mean(dim=(2, 3))


# I3D (Carreira and Zisserman 2017) for FVD: RGB stream, Kinetics-400, with pytorch-i3d's parameter names.

Size = tuple[int, int, int]


def _same(x: torch.Tensor, kernel: Size, stride: Size) -> torch.Tensor:
    """Pad with zeros as TensorFlow does: an odd one at the end."""
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
    """I3D features: 400 numbers (the logits) per clip of at least 10 frames."""

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
        """Compute (N, 400) features of clips (N, 3, T, H, W) uint8."""
        frames = clips.shape[2]
        x = functional.interpolate(clips.float(), (frames, 224, 224), mode="trilinear", align_corners=False) / 127.5 - 1
        x = _pool(self.Conv3d_1a_7x7(x), (1, 3, 3), (1, 2, 2))
        x = _pool(self.Conv3d_2c_3x3(self.Conv3d_2b_1x1(x)), (1, 3, 3), (1, 2, 2))
        x = _pool(self.Mixed_3c(self.Mixed_3b(x)), (3, 3, 3), (2, 2, 2))
        x = self.Mixed_4f(self.Mixed_4e(self.Mixed_4d(self.Mixed_4c(self.Mixed_4b(x)))))
        x = self.Mixed_5c(self.Mixed_5b(_pool(x, (2, 2, 2), (2, 2, 2))))
        x = functional.avg_pool3d(x, (2, 7, 7), 1)
        return self.logits(x).mean(dim=(2, 3, 4))


# LPIPS: distance of two images in AlexNet features (Zhang et al. 2018), version 0.1 with linear heads.

_TAPS = (1, 4, 7, 9, 11)
_CHANNELS = (64, 192, 384, 256, 256)


class AlexNetLpips(nn.Module):
    """Backbone under torchvision's names (`features.N`), heads as `lin0` to `lin4`, each (1, C, 1, 1)."""

    shift: torch.Tensor
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
        )
        for i, channels in enumerate(_CHANNELS):
            self.register_parameter(f"lin{i}", nn.Parameter(torch.rand(1, channels, 1, 1)))
        self.register_buffer("shift", torch.tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor([0.458, 0.448, 0.450]).view(1, 3, 1, 1), persistent=False)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Compute the (N,) distances of images (N, 3, H, W) in [-1, 1]."""
        x, y = (a - self.shift) / self.scale, (b - self.shift) / self.scale
        total = torch.zeros(len(a), device=a.device)
        head = 0
        for number, layer in enumerate(self.features):
            x, y = layer(x), layer(y)
            if number in _TAPS:
                squared = (_unit(x) - _unit(y)) ** 2
                total = total + (squared * getattr(self, f"lin{head}")).sum(1).mean(dim=(1, 2))
                head += 1
        return total


def _unit(features: torch.Tensor) -> torch.Tensor:
    return features / torch.sqrt(1e-8 + (features * features).sum(1, keepdim=True))
