"""Rendering of robot pointmaps: link poses and a camera in, XYZ, link ids and colours per pixel out.

Robot -> Scene (triangles in clusters, packed once) -> rasteriser (numba or Warp) -> PointmapSequence
"""

from kinema4d_ros.render.api import NEAR_M, render_pointmaps, render_poses
from kinema4d_ros.render.scene import Scene

__all__ = ["NEAR_M", "Scene", "render_pointmaps", "render_poses"]
