"""`Sensor`: what a camera's electronics do to an exact image: exposure, white balance, noise, JPEG compression."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import RenderError
from kinema4d_ros.lab.materials import light_to_srgb, srgb_to_light

__all__ = ["Sensor"]


@dataclass(frozen=True)
class Sensor:
    """Faults of a camera's images; by default none. Equal sensors give equal images of equal times.

    Attributes:
        noise: standard deviation of independent Gaussian noise, 8-bit steps.
        exposure_ev: brightness in stops: + 1 doubles the light, with clipping.
        white_balance: gains of the red and the blue light; green keeps its own.
        jpeg_quality: 1 to 100 of a JPEG that the image is stored as in between; None = not compressed.
        seed: of the noise, besides the image's time.
    """

    noise: float = 0.0
    exposure_ev: float = 0.0
    white_balance: tuple[float, float] = (1.0, 1.0)
    jpeg_quality: int | None = None
    seed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Reject values that no image can be made with."""
        quality = 100 if self.jpeg_quality is None else self.jpeg_quality
        if not (self.noise >= 0.0 and abs(self.exposure_ev) <= 8.0 and 1 <= quality <= 100):
            raise RenderError(
                f"noise is {self.noise}, exposure_ev is {self.exposure_ev}, jpeg_quality is {self.jpeg_quality}",
                expected="0 or more, -8 to 8, and 1 to 100",
            )
        if not all(0.1 <= gain <= 10.0 for gain in self.white_balance):
            raise RenderError(f"white_balance is {self.white_balance}", expected="two gains of 0.1 to 10")

    def develop(self, rgb: NDArray[np.uint8], time_s: float) -> NDArray[np.uint8]:
        """Return the image (H, W, 3) uint8 sRGB as this camera gives it; without faults the same array."""
        red, blue = self.white_balance
        gains = 2.0**self.exposure_ev * np.array([red, 1.0, blue])
        if np.any(gains != 1.0):
            table = np.stack([_curve(gain) for gain in gains], axis=1)
            rgb = np.asarray(cv2.LUT(rgb, table[None]), np.uint8)
        if self.noise > 0:
            rng = np.random.default_rng([round(time_s * 1e6), 3, *self.seed])
            grain = rng.standard_normal(rgb.shape, dtype=np.float32) * np.float32(self.noise)
            rgb = np.asarray(np.clip(np.rint(rgb + grain), 0, 255), np.uint8)
        if self.jpeg_quality is not None:
            _, stored = cv2.imencode(".jpg", rgb[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, self.jpeg_quality])
            bgr = np.asarray(cv2.imdecode(stored, cv2.IMREAD_COLOR), np.uint8)
            rgb = np.ascontiguousarray(bgr[..., ::-1])
        return rgb


def _curve(gain: float) -> NDArray[np.uint8]:
    """Compute (256,) 8-bit sRGB values after multiplying their light by a gain."""
    light = np.clip(gain * srgb_to_light(np.arange(256) / 255.0), 0.0, 1.0)
    return np.asarray(np.rint(255 * light_to_srgb(light)), np.uint8)
