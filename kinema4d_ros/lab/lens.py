"""Pictures through a distorting lens: drawn with a pinhole that sees enough, then bent."""

from __future__ import annotations

from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera

__all__ = ["Lens"]

MAX_GROWTH = 1.0
"""The pinhole image may be larger than the camera's by this fraction on each side; what lies beyond is black."""


class Lens:
    """Bends images of a pinhole camera into those of a camera with distortion; does nothing without one.

    Attributes:
        pinhole: what to draw with: same place, same focal length, larger where the lens sees more.
    """

    def __init__(self, camera: PinholeCamera) -> None:
        """Find the pinhole image that covers everything the lens sees."""
        self.pinhole = camera.rectified()
        self._maps: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
        if not camera.has_distortion:
            return
        uv = self.pinhole.project(camera.rays())
        size = np.array([camera.width, camera.height])
        low = np.maximum(np.floor(np.nanmin(uv, axis=(0, 1))) - 1, -MAX_GROWTH * size).astype(int)
        high = np.minimum(np.ceil(np.nanmax(uv, axis=(0, 1))) + 1, (1 + MAX_GROWTH) * size).astype(int)
        width, height = (high - low).tolist()
        self.pinhole = self.pinhole.cropped(int(low[0]), int(low[1]), width, height)
        # OpenCV counts from pixel centres; rays without a direction end outside.
        source = np.nan_to_num(uv - low - 0.5, nan=-1e6).astype(np.float32)
        self._maps = np.ascontiguousarray(source[..., 0]), np.ascontiguousarray(source[..., 1])

    def bend(self, image: NDArray[Any], sampling: Literal["linear", "nearest"]) -> NDArray[Any]:
        """(H, W[, C]) of the camera from (h, w[, C]) of the pinhole; 0 where the lens sees nothing."""
        if self._maps is None:
            return image
        flags = cv2.INTER_LINEAR if sampling == "linear" else cv2.INTER_NEAREST
        return np.asarray(cv2.remap(image, *self._maps, flags, borderMode=cv2.BORDER_CONSTANT))
