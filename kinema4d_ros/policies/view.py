"""`WorkspaceView`: the part of a fixed camera's image that a learned policy uses, downsized from any image size.

It is a rectangle of viewing directions, so that a scaled or cropped image of the same camera gives the same view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.core.transforms import rotation_angle
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.policies.protocol import PolicyError

__all__ = ["WorkspaceView", "demo_view"]

MOVED_M, MOVED_RAD = 0.02, 0.035
"""Maximum displacement of the camera from its pose in training."""

_DEMO_BOX = (222, 215, 300, 200)
"""Left, top, width and height in the demonstration camera's 720 x 480 pixels: the table within the arm's reach."""


@dataclass(frozen=True, eq=False)
class WorkspaceView:
    """A rectangle of a camera's view and its size in pixels.

    Attributes:
        box: x0, y0, x1, y1 in the plane z = 1 of the camera's optical frame.
        width, height: pixels.
        base_T_camera: (4, 4) pose of the camera.
    """

    box: tuple[float, float, float, float]
    width: int
    height: int
    base_T_camera: NDArray[np.float64]

    def camera(self) -> PinholeCamera:
        """Return the camera that sees exactly this view."""
        x0, y0, x1, y1 = self.box
        fx, fy = self.width / (x1 - x0), self.height / (y1 - y0)
        K = np.array([[fx, 0.0, -fx * x0], [0.0, fy, -fy * y0], [0.0, 0.0, 1.0]])
        return PinholeCamera(self.width, self.height, K, base_T_camera=self.base_T_camera)

    def of(self, image: NDArray[np.uint8], camera: PinholeCamera) -> NDArray[np.uint8]:
        """Crop and resize an image of that camera, at any scale, to (height, width, 3) uint8 RGB.

        Raises:
            PolicyError: the camera has moved, or its image does not show the whole view.
        """
        away = float(np.linalg.norm(camera.base_T_camera[:3, 3] - self.base_T_camera[:3, 3]))
        turned = float(rotation_angle(camera.base_T_camera, self.base_T_camera))
        if away > MOVED_M or turned > MOVED_RAD:
            raise PolicyError(
                f"the camera is {1000 * away:.0f} mm and {np.degrees(turned):.1f} degrees from its pose in training",
                expected=f"within {1000 * MOVED_M:.0f} mm and {np.degrees(MOVED_RAD):.0f} degrees",
                hint="train on demonstrations of this camera",
            )
        K = camera.K
        left, right = (K[0, 0] * x + K[0, 2] for x in (self.box[0], self.box[2]))
        top, bottom = (K[1, 1] * y + K[1, 2] for y in (self.box[1], self.box[3]))
        if left < -1 or top < -1 or right > camera.width + 1 or bottom > camera.height + 1:
            raise PolicyError(
                f"the view spans pixels {left:.0f} to {right:.0f} and {top:.0f} to {bottom:.0f}",
                expected=f"inside the image of {camera.width} x {camera.height}",
            )
        if right - left >= self.width:  # average when downsizing, interpolate otherwise
            x = [round(max(left, 0)), round(min(right, camera.width))]
            y = [round(max(top, 0)), round(min(bottom, camera.height))]
            part = image[y[0] : y[1], x[0] : x[1]]
            return np.asarray(cv2.resize(part, (self.width, self.height), interpolation=cv2.INTER_AREA), np.uint8)
        columns = left - 0.5 + (np.arange(self.width) + 0.5) * (right - left) / self.width
        rows = top - 0.5 + (np.arange(self.height) + 0.5) * (bottom - top) / self.height
        u, v = (m.astype(np.float32) for m in np.meshgrid(columns, rows))
        return np.asarray(cv2.remap(image, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE), np.uint8)

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain numbers for a JSON file."""
        return {
            "box": list(self.box),
            "width": self.width,
            "height": self.height,
            "base_T_camera": self.base_T_camera.tolist(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> WorkspaceView:
        """Create from the output of `as_dict`.

        Raises:
            PolicyError: a key is missing or not a number.
        """
        try:
            x0, y0, x1, y1 = (float(v) for v in values["box"])
            pose = np.array(values["base_T_camera"], dtype=np.float64).reshape(4, 4)
            width, height = int(values["width"]), int(values["height"])
        except (KeyError, TypeError, ValueError) as error:
            raise PolicyError(f"the view cannot be read: {error!r}", expected="box, width, height, base_T_camera",
                              code=ErrorCode.POLICY_UNAVAILABLE) from None  # fmt: skip
        return cls((x0, y0, x1, y1), width, height, pose)


def demo_view(width: int = 96, height: int = 64) -> WorkspaceView:
    """Return the workspace view of the demonstration camera."""
    camera = read_camera(share_path("calibration/demo_lab.yaml"))
    left, top, w, h = _DEMO_BOX
    x = [(u - camera.K[0, 2]) / camera.K[0, 0] for u in (left, left + w)]
    y = [(v - camera.K[1, 2]) / camera.K[1, 1] for v in (top, top + h)]
    return WorkspaceView((x[0], y[0], x[1], y[1]), width, height, camera.base_T_camera)
