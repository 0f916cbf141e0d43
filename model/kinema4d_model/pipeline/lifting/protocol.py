"""What a lifter is: one picture of a table in, the depth of every pixel out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera

__all__ = ["LiftedDepth", "Lifter"]


@dataclass(frozen=True, eq=False)
class LiftedDepth:
    """Depth that was guessed from one picture.

    Attributes:
        depth_m: (H, W) float32, metres along the optical axis: of the thing where `thing` is above 0.5, of the
            table's plane elsewhere, robot included. NaN = the plane is not met within range.
        thing: (H, W) float32 in [0, 1]: probability that the pixel shows something standing on the table. 0 on the
            robot and where `depth_m` is NaN.
    """

    depth_m: NDArray[np.float32]
    thing: NDArray[np.float32]


class Lifter(Protocol):
    """Anything that gives depth to one picture."""

    def lift(
        self,
        image: NDArray[np.uint8],
        camera: PinholeCamera,
        robot_mask: NDArray[np.bool_] | None = None,
        table_height_m: float = 0.0,
    ) -> LiftedDepth:
        """The depth of a picture (H, W, 3), rectified, sRGB.

        Args:
            image: what the camera saw.
            camera: without distortion, with its pose in the robot's base.
            robot_mask: (H, W) where the robot is; None = the robot is not in the picture.
            table_height_m: of the plane that things stand on, above the robot's base.
        """
        ...
