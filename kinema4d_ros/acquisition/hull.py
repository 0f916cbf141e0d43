"""The visual hull: what is inside the robot's outline in every view, cut out of a block of voxels.

masks ─> distance to each outline ─┐
cameras ───────────────────────────┼─> field of signed distances ─> triangles
depth pictures, a floor (if any) ──┘
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.acquisition._carve_kernels import MOST_MISSES, carve_field
from kinema4d_ros.acquisition.frames import looked_at
from kinema4d_ros.acquisition.grid import ColouredMesh, Grid, drop_crumbs, surface_net
from kinema4d_ros.acquisition.views import View
from kinema4d_ros.calibration.silhouette import signed_distance
from kinema4d_ros.core.errors import AssetError, ErrorCode, MeshError

__all__ = ["Outlines", "carve", "find_volume", "visual_hull"]

Array = NDArray[np.float64]
Field = NDArray[np.float32]

_COARSE = 96
"""Voxels along the side of the first, coarse block."""


@dataclass(frozen=True, eq=False)
class Outlines:
    """Masks and cameras as the carving reads them.

    Attributes:
        P: (N, 3, 4) float64, from the world to pixels (centres at integers) times depth.
        sizes: (N, 2) int64 rows, columns.
        distance: (N, H, W) float32 pixels to the outline, positive inside, NaN = not seen.
        focal: (N,) float64, pixels.
        depth: (N, H, W) float32, units of the world, NaN = unknown; (0, 0, 0) without depth.
    """

    P: Array
    sizes: NDArray[np.int64]
    distance: Field
    focal: Array
    depth: Field

    @classmethod
    def of(cls, views: Sequence[View]) -> Outlines:
        """From views that have masks."""
        rows, columns = (max(getattr(v.camera, side) for v in views) for side in ("height", "width"))
        distance = np.full((len(views), rows, columns), np.nan, np.float32)
        with_depth = any(v.depth_m is not None for v in views)
        depth = np.full((len(views), rows, columns) if with_depth else (0, 0, 0), np.nan, np.float32)
        for i, view in enumerate(views):
            h, w = view.robot.shape
            distance[i, :h, :w] = -signed_distance(view.robot)
            if view.depth_m is not None:
                # What is not robot says nothing about the robot's surface; the mask already excludes it.
                depth[i, :h, :w] = np.where(view.robot, view.depth_m, np.nan)
        return cls(
            projections([v.camera.K_opencv for v in views], [v.camera.camera_T_base for v in views]),
            np.array([[v.camera.height, v.camera.width] for v in views], np.int64),
            distance,
            np.array([np.sqrt(v.camera.K[0, 0] * v.camera.K[1, 1]) for v in views]),
            depth,
        )

    def moved(self, world_T_frame: Array) -> Outlines:
        """The same views, with the world replaced by a frame (N, 4, 4), for each view where it was then."""
        return Outlines(self.P @ world_T_frame, self.sizes, self.distance, self.focal, self.depth)


def projections(K: Sequence[Array], camera_T_world: Sequence[Array]) -> Array:
    """(N, 3, 4) matrices from the world to pixels times depth."""
    return np.stack([k @ T[:3] for k, T in zip(K, camera_T_world, strict=True)])


def carve(outlines: Outlines, grid: Grid, *, misses: int = 0) -> Field:
    """(X, Y, Z) float32 signed distance, positive inside all outlines (but `misses` of them), units of the world."""
    if not 0 <= misses <= MOST_MISSES:
        raise AssetError(f"{misses} misses", expected=f"0 to {MOST_MISSES}", code=ErrorCode.ARGUMENT_INVALID)
    values = np.empty(grid.shape, np.float32)
    has_depth = outlines.depth.size > 0
    depth = outlines.depth if has_depth else np.empty((1, 1, 1), np.float32)
    least = max(3, len(outlines.P) // 3)
    carve_field(
        values, grid.origin, float(grid.voxel), np.ascontiguousarray(outlines.P), outlines.sizes, outlines.distance,
        outlines.focal, depth, has_depth, 3.0 * grid.voxel, misses, least,
    )  # fmt: skip
    return values


def find_volume(views: Sequence[View], outlines: Outlines, *, misses: int = 0) -> tuple[Array, Array]:
    """Lowest and highest corner of what the outlines hold, world frame, found on a coarse block."""
    poses = np.stack([v.camera.base_T_camera for v in views])
    rays, reach = [], []
    for view in views:
        rows, columns = np.nonzero(view.robot)
        uv = np.array([columns.mean() + 0.5, rows.mean() + 0.5])
        rays.append(view.camera.base_T_camera[:3, :3] @ view.camera.unproject(uv, 1.0))
        span = np.array([[columns.min(), rows.min()], [columns.max() + 1, rows.max() + 1]]) - uv
        reach.append(float(np.abs(span).max()) * np.sqrt(2) / view.camera.K[0, 0])
    centre = looked_at(poses, np.stack(rays))
    depth = np.linalg.norm(poses[:, :3, 3] - centre, axis=1)
    radius = 1.2 * float((np.array(reach) * depth).max())
    grid = Grid.over(centre - radius, centre + radius, 2 * radius / _COARSE)
    found = grid.bounds(carve(outlines, grid, misses=misses) > -grid.voxel)
    if found is None:
        raise MeshError(
            "the masks have nothing in common: no point is inside all of them",
            expected="masks of one thing that stands still, and poses that fit them",
            hint="look at the contact sheets of the poses and masks; --misses allows for a few bad masks",
            code=ErrorCode.MESH_MALFORMED,
        )
    return found[0] - grid.voxel, found[1] + grid.voxel


def visual_hull(
    views: Sequence[View],
    voxel: float,
    *,
    misses: int = 0,
    floor: Array | None = None,
) -> ColouredMesh:
    """The hull of views with masks, carved further by depth where there is some; world frame, without colours.

    Args:
        views: of one joint configuration.
        voxel: side, units of the world.
        misses: how many views may disagree about a point.
        floor: (4,) plane n, d: only n p + d > 0 is kept.
    """
    outlines = Outlines.of(views)
    grid = Grid.over(*find_volume(views, outlines, misses=misses), voxel)
    values = carve(outlines, grid, misses=misses)
    if floor is not None:
        values = np.minimum(values, above(grid, floor))
    mesh = drop_crumbs(surface_net(values, grid))
    if not len(mesh.faces):
        raise MeshError("the hull is empty", expected="something inside all outlines", hint="a smaller --voxel")
    return mesh


def above(grid: Grid, plane: Array) -> Field:
    """(X, Y, Z) float32 distance from a plane (4,) n, d."""
    return np.asarray(grid.centres() @ plane[:3] + plane[3], np.float32)
