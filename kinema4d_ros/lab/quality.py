"""What a lab picture may save where nobody could see it: small pictures need no fine shadows and textures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from kinema4d_ros.core.errors import RenderError
from kinema4d_ros.lab.materials import TEXTURE_PIXELS
from kinema4d_ros.render.clusters import merge_vertices
from kinema4d_ros.render.packed import Packed
from kinema4d_ros.render.scene import Scene
from kinema4d_ros.robot.model import Robot

__all__ = ["FULL", "SMALL", "Quality"]

_CELLS = 256
"""Along a side of the shadow map: whatever its size, a cell covers the same piece of the room."""


@dataclass(frozen=True)
class Quality:
    """How finely a picture's helpers are drawn; the picture itself, depth and segmentation stay exact.

    Attributes:
        shadow_pixels: side of the shadow map, a multiple of 256.
        texture_pixels: side of the table's texture.
        shadow_grid_m: vertices of the robot nearer than about this are one in its shadow; 0 = the exact robot.
    """

    shadow_pixels: int = 1024
    texture_pixels: int = TEXTURE_PIXELS
    shadow_grid_m: float = 0.0

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be drawn."""
        if self.shadow_pixels < _CELLS or self.shadow_pixels % _CELLS or not 64 <= self.texture_pixels <= 8192:
            raise RenderError(
                f"shadow_pixels is {self.shadow_pixels}, texture_pixels is {self.texture_pixels}",
                expected=f"a multiple of {_CELLS}, and 64 to 8192",
            )
        if not 0.0 <= self.shadow_grid_m <= 0.02:
            raise RenderError(f"shadow_grid_m is {self.shadow_grid_m}", expected="0 to 0.02 metres")

    @property
    def shadow_cells(self) -> int:
        """Cells along a side of the shadow map."""
        return _CELLS

    def shadow_robot(self, robot: Robot) -> Packed:
        """The robot that throws the shadow."""
        return _coarse(robot, self.shadow_grid_m) if self.shadow_grid_m else Scene.from_robot(robot).packed_rgb


FULL = Quality()
SMALL = Quality(shadow_pixels=512, texture_pixels=512, shadow_grid_m=0.004)
"""For pictures of about 150 x 100 pixels: half the time, and no difference that one could point at."""


@lru_cache(maxsize=4)
def _coarse(robot: Robot, grid_m: float) -> Packed:
    parts = [
        (i, replace(shape, mesh=merge_vertices(shape.mesh, grid_m)))
        for i, link in enumerate(robot.links)
        for shape in link.visuals
    ]
    return Scene(parts, len(robot.links)).packed_rgb
