"""What a fit knows about a scene: objects with weighted hypotheses of shape and pose, and what could not be known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.physics.objects import Shape

__all__ = ["Basis", "Estimate", "FittedObject", "FittedScene"]

Basis = Literal["measured", "outline"]
"""What fixed an object's geometry: measured depth, or its outline on the known table."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """One hypothesis of an object's shape and pose.

    Attributes:
        shape: of `physics.objects`.
        size: (x, y, z) of the bounding box in the object's frame, metres.
        base_T_object: (4, 4) float64, metres; the frame is at the centre of the bounding box, z up when it stands.
        weight: of this hypothesis among the object's.
        vertices: (P, 3) float64 of a "hull", object frame, metres; None for other shapes.
    """

    shape: Shape
    size: tuple[float, float, float]
    base_T_object: NDArray[np.float64]
    weight: float = 1.0
    vertices: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class FittedObject:
    """An object and the hypotheses about it.

    Attributes:
        name: "object_1", ..., the nearest to the camera first.
        mask: (H, W) bool, its pixels in the image.
        estimates: draws from the posterior, weights sum to 1; the first is the best one.
        misfit: 0 = explains all its pixels; above 1 = not believable.
        basis: what fixed its geometry.
        held: between the fingers at the start.
    """

    name: str
    mask: NDArray[np.bool_]
    estimates: tuple[Estimate, ...]
    misfit: float
    basis: Basis
    held: bool = False


@dataclass(frozen=True, eq=False)
class FittedScene:
    """The fitted objects of an image.

    Attributes:
        objects: the nearest to the camera first.
        table_height_m: height of the supporting plane above the robot's base, metres.
        notes: what could not be known, one sentence each.
        unexplained: share of the pixels above the table that no object explains, 0 to 1.
        table: (x0, x1, y0, y1) edges of the table, metres, base frame, infinite where none was seen; None = none was.
    """

    objects: tuple[FittedObject, ...]
    table_height_m: float
    notes: tuple[str, ...] = ()
    unexplained: float = 0.0
    table: tuple[float, float, float, float] | None = None
