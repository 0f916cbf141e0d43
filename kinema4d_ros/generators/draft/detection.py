"""Objects found in one image, before their geometry is fitted; `load_detector` finds the learned detector."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, GeneratorError

__all__ = ["DETECTOR", "DIRECTIONS", "Detected", "Detection", "Detector", "has_detector", "load_detector"]

DETECTOR = "kinema4d_model.detection:load_detector"
"""Function that loads the detector; torch is imported on first use only."""
DIRECTIONS = np.radians([0.0, 45.0, 90.0, 135.0])
"""Directions of a footprint's four widths, from the camera's right; 90 degrees is away from the camera."""


@dataclass(frozen=True, eq=False)
class Detected:
    """One object, as the pixels of an image vote. Metres; heights are above the table.

    Attributes:
        center: (2,) x, y of the centre of the whole object, hidden parts too, base frame.
        widths: (4,) extent of the footprint along DIRECTIONS.
        bottom, top: heights of its underside and top.
        spread: (8,) standard deviations of centre (to the camera's right, away from it), widths, bottom and top.
        shapes: probability by shape: "box", "cylinder", "sphere", "bin" and "other".
        share: (H, W) float32, 0 to 1: how well the pixel's vote agrees with this object, whether or not it shows any.
        pixels: number of pixels whose best explanation is this object.
    """

    center: NDArray[np.float64]
    widths: NDArray[np.float64]
    bottom: float
    top: float
    spread: NDArray[np.float64]
    shapes: dict[str, float]
    share: NDArray[np.float32]
    pixels: int


@dataclass(frozen=True, eq=False)
class Detection:
    """What was found in an image.

    Attributes:
        objects: the most pixels first.
        faces: (H, W, 3) float32 probabilities: no object; a surface of one that faces up; any other surface of one.
        right: (2,) unit vector to the camera's right on the table, base frame.
    """

    objects: tuple[Detected, ...]
    faces: NDArray[np.float32]
    right: NDArray[np.float64]


class Detector(Protocol):
    """Interface of a detector; `sha256` names its weights, "" without any."""

    sha256: str

    def detect(
        self,
        image: NDArray[np.uint8],
        camera: PinholeCamera,
        robot_mask: NDArray[np.bool_] | None = None,
        table_height_m: float = 0.0,
    ) -> Detection:
        """Find the objects of a rectified image (H, W, 3), sRGB.

        Args:
            image: from the camera.
            camera: without distortion, with its pose in the robot's base.
            robot_mask: (H, W) True where the robot is; None = the robot is not in the image.
            table_height_m: height of the plane that objects stand on, above the robot's base.
        """
        ...


def has_detector() -> bool:
    """Return whether the learned detector and its weights are installed; torch is not imported."""
    if any(find_spec(name) is None for name in ("torch", "kinema4d_model")):
        return False
    found = import_module("kinema4d_model.shipped").shipped_detector()
    return found is not None


def load_detector(weights: str | Path | None = None) -> Detector:
    """Load the learned detector with the weights of a folder, or those of the package; cached per process.

    Raises:
        GeneratorError: GENERATOR_UNAVAILABLE, torch or kinema4d_model is not installed.
        FileFormatError: FILE_MISSING, the folder holds no weights.
    """
    module, _, name = DETECTOR.partition(":")
    try:
        load = getattr(import_module(module), name)
    except ImportError as error:
        raise GeneratorError(
            f"objects cannot be detected in an image without depth: {error}",
            expected="torch, diffusers and the rest of requirements/model.in, or a measured depth image",
            hint="make setup TORCH=cpu",
            code=ErrorCode.GENERATOR_UNAVAILABLE,
        ) from error
    loaded: Detector = load(weights)
    return loaded
