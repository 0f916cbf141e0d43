"""Images with lens distortion: rendered with a larger pinhole camera, then remapped."""

from __future__ import annotations

from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera

__all__ = ["Lens"]

MAX_GROWTH = 1.0
"""Largest growth of the pinhole image on each side, as a fraction of the camera's size; pixels beyond are black."""


class Lens:
    """Remapping of pinhole images to a camera with distortion; the identity for a camera without distortion.

    Attributes:
        pinhole: camera to render with: same pose and focal length, larger where the lens sees more.
    """

    def __init__(self, camera: PinholeCamera) -> None:
        """Compute the pinhole image that covers the lens's field of view, and the remapping."""
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
        # OpenCV's pixel centres are integers; pixels without a ray (NaN) map outside the image.
        source = np.nan_to_num(uv - low - 0.5, nan=-1e6).astype(np.float32)
        self._maps = np.ascontiguousarray(source[..., 0]), np.ascontiguousarray(source[..., 1])

    def bend(self, image: NDArray[Any], sampling: Literal["linear", "nearest"]) -> NDArray[Any]:
        """Remap a pinhole image (h, w[, C]) to the camera's (H, W[, C]); 0 where the pinhole image has no data."""
        if self._maps is None:
            return image
        flags = cv2.INTER_LINEAR if sampling == "linear" else cv2.INTER_NEAREST
        return np.asarray(cv2.remap(image, *self._maps, flags, borderMode=cv2.BORDER_CONSTANT))
