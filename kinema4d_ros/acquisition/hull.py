"""Visual hull: carve the volume inside the robot's outline in every view from a voxel grid.

masks ─> distance to each outline ─┐
cameras ───────────────────────────┼─> field of signed distances ─> triangles
depth images, a floor (optional) ──┘
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from kinema4d_ros.acquisition._carve_kernels import MOST_MISSES, carve_field
from kinema4d_ros.acquisition.frames import looked_at
from kinema4d_ros.acquisition.views import View
from kinema4d_ros.calibration.silhouette import signed_distance
from kinema4d_ros.core.errors import AssetError, ErrorCode, MeshError

__all__ = [
    "ColouredMesh",
    "Grid",
    "Outlines",
    "carve",
    "drop_crumbs",
    "find_volume",
    "surface_net",
    "vertex_normals",
    "visual_hull",
]

# Voxel grids, and triangle meshes from the zero crossings of a field (surface nets).

MAX_VOXELS = 120_000_000

_CORNERS = np.array([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
_EDGES = np.array([(a, b) for a in range(8) for b in range(a + 1, 8) if np.abs(_CORNERS[a] - _CORNERS[b]).sum() == 1])


@dataclass(frozen=True, eq=False)
class ColouredMesh:
    """Triangle mesh with vertex colours.

    Attributes:
        vertices: (V, 3) float64; frame and unit are defined by the user of the mesh.
        faces: (F, 3) int64, counter-clockwise seen from outside.
        rgb: (V, 3) uint8, or None = no colours.
    """

    vertices: Array
    faces: NDArray[np.int64]
    rgb: NDArray[np.uint8] | None = None

    def part(self, keep: NDArray[np.bool_]) -> ColouredMesh:
        """Return the faces (F,) that are True, and the vertices they use."""
        used, compact = np.unique(self.faces[keep], return_inverse=True)
        rgb = None if self.rgb is None else self.rgb[used]
        return ColouredMesh(self.vertices[used], compact.reshape(-1, 3).astype(np.int64), rgb)


@dataclass(frozen=True, eq=False)
class Grid:
    """Axis-aligned voxel grid.

    Attributes:
        origin: (3,) centre of voxel 0, 0, 0.
        voxel: side of a voxel.
        shape: number of voxels along x, y, z.
    """

    origin: Array
    voxel: float
    shape: tuple[int, int, int] = field(default=(0, 0, 0))

    @classmethod
    def over(cls, low: Array, high: Array, voxel: float) -> Grid:
        """Create a grid from `low` to `high` with a margin of two voxels on each side."""
        if not (np.isfinite(voxel) and voxel > 0):
            raise AssetError(f"the voxel size is {voxel}", expected="a length above 0", code=ErrorCode.ARGUMENT_INVALID)
        counts = np.ceil((np.asarray(high) - low) / voxel).astype(np.int64) + 5
        if not np.all(counts > 0) or np.prod(counts, dtype=np.float64) > MAX_VOXELS:
            size = " x ".join(str(c) for c in counts)
            raise AssetError(
                f"the grid has {size} voxels of size {voxel:g}",
                expected=f"at most {MAX_VOXELS} in total",
                hint="use a larger --voxel, or masks that contain only the robot",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        return cls(np.asarray(low, np.float64) - 2 * voxel, voxel, (int(counts[0]), int(counts[1]), int(counts[2])))

    def centres(self, step: int = 1) -> Array:
        """Compute the centres (X, Y, Z, 3) of every `step`-th voxel."""
        axes = [self.origin[a] + self.voxel * np.arange(0, self.shape[a], step) for a in range(3)]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)

    def bounds(self, inside: NDArray[np.bool_]) -> tuple[Array, Array] | None:
        """Compute the minimum and maximum corner of the True voxels, or None without any."""
        if not inside.any():
            return None
        low, high = [], []
        for axis in range(3):
            line = np.flatnonzero(inside.any(axis=tuple(a for a in range(3) if a != axis)))
            low.append(line[0])
            high.append(line[-1])
        return self.origin + self.voxel * np.array(low), self.origin + self.voxel * np.array(high)


def surface_net(values: NDArray[np.float32], grid: Grid) -> ColouredMesh:
    """Triangulate the zero crossings of `values` (X, Y, Z), positive inside: a vertex per cell, two faces per crossing.

    The surface is closed at the border of the grid.
    """
    inside = values > 0
    # Border voxels are outside, so that the surface is closed there.
    for axis in range(3):
        edge = [slice(None)] * 3
        for end in (0, -1):
            edge[axis] = end  # type: ignore[call-overload]
            inside[tuple(edge)] = False
    shape = np.array(inside.shape) - 1
    total = np.zeros(shape, np.uint8)
    for i, j, k in _CORNERS:
        total += inside[i : i + shape[0], j : j + shape[1], k : k + shape[2]]
    cells = np.argwhere((total > 0) & (total < 8))
    if not len(cells):
        return ColouredMesh(np.zeros((0, 3)), np.zeros((0, 3), np.int64))
    number = np.full(tuple(shape), -1, np.int64)
    number[tuple(cells.T)] = np.arange(len(cells))
    corners = cells[:, None] + _CORNERS
    index = tuple(np.moveaxis(corners, -1, 0))
    value, within = values[index].astype(np.float64), inside[index]
    # Border voxels are outside whatever their value.
    value = np.where(within, np.maximum(value, 1e-9), np.minimum(value, -1e-9))
    point, count = np.zeros((len(cells), 3)), np.zeros(len(cells))
    for a, b in _EDGES:
        crossed = within[:, a] != within[:, b]
        t = np.where(crossed, value[:, a] / np.where(crossed, value[:, a] - value[:, b], 1.0), 0.0)
        at = _CORNERS[a] + t[:, None] * (_CORNERS[b] - _CORNERS[a])
        point += crossed[:, None] * at
        count += crossed
    vertices = grid.origin + grid.voxel * (cells + point / count[:, None])
    quads = []
    for axis in range(3):
        first = [slice(None)] * 3
        second = [slice(None)] * 3
        first[axis], second[axis] = slice(None, -1), slice(1, None)
        low, high = inside[tuple(first)], inside[tuple(second)]
        at = np.argwhere(low != high)
        leaves = low[tuple(at.T)]
        b, c = (axis + 1) % 3, (axis + 2) % 3
        ring = []
        for db, dc in ((-1, -1), (0, -1), (0, 0), (-1, 0)):
            cell = at.copy()
            cell[:, b] += db
            cell[:, c] += dc
            ring.append(number[tuple(cell.T)])
        quad = np.stack(ring, axis=1)
        quads.append(np.where(leaves[:, None], quad, quad[:, ::-1]))
    four = np.concatenate(quads)
    # The shorter diagonal gives better-shaped triangles.
    p = vertices[four]
    short = ((p[:, 0] - p[:, 2]) ** 2).sum(axis=1) <= ((p[:, 1] - p[:, 3]) ** 2).sum(axis=1)
    one = np.where(short[:, None], four[:, [0, 1, 2]], four[:, [0, 1, 3]])
    two = np.where(short[:, None], four[:, [0, 2, 3]], four[:, [1, 2, 3]])
    return ColouredMesh(vertices, np.concatenate([one, two]))


def vertex_normals(mesh: ColouredMesh) -> Array:
    """Compute outward unit normals (V, 3); zero where a vertex has no area around it."""
    a, b, c = (mesh.vertices[mesh.faces[:, i]] for i in range(3))
    normal = np.cross(b - a, c - a)
    total = np.zeros_like(mesh.vertices)
    for i in range(3):
        np.add.at(total, mesh.faces[:, i], normal)
    length = np.linalg.norm(total, axis=1, keepdims=True)
    return np.asarray(total / np.where(length > 0, length, 1.0))


def drop_crumbs(mesh: ColouredMesh, share: float = 0.02) -> ColouredMesh:
    """Remove cavities (components wound inwards) and components with less than `share` of the largest volume."""
    if not len(mesh.faces):
        return mesh
    f = mesh.faces
    links = coo_matrix(
        (np.ones(2 * len(f)), (np.r_[f[:, 0], f[:, 1]], np.r_[f[:, 1], f[:, 2]])), shape=(len(mesh.vertices),) * 2
    )
    body = connected_components(links, directed=False)[1][f[:, 0]]
    a, b, c = (mesh.vertices[f[:, i]] - mesh.vertices.mean(axis=0) for i in range(3))
    volume = np.zeros(int(body.max()) + 1)
    np.add.at(volume, body, (a * np.cross(b, c)).sum(axis=1) / 6)
    return mesh.part((volume >= share * volume.max())[body])


Array = NDArray[np.float64]
Field = NDArray[np.float32]

_COARSE = 96
"""Voxels along the side of the initial coarse grid."""


@dataclass(frozen=True, eq=False)
class Outlines:
    """Masks and cameras as arrays for the carving kernel.

    Attributes:
        P: (N, 3, 4) float64, from world to pixels (centres at integers) times depth.
        sizes: (N, 2) int64, rows and columns.
        distance: (N, H, W) float32, distance to the outline, pixels, positive inside; NaN = not visible.
        focal: (N,) float64, focal length, pixels.
        depth: (N, H, W) float32, world units, NaN = unknown; (0, 0, 0) without depth.
    """

    P: Array
    sizes: NDArray[np.int64]
    distance: Field
    focal: Array
    depth: Field

    @classmethod
    def of(cls, views: Sequence[View]) -> Outlines:
        """Convert views that have masks."""
        rows, columns = (max(getattr(v.camera, side) for v in views) for side in ("height", "width"))
        distance = np.full((len(views), rows, columns), np.nan, np.float32)
        with_depth = any(v.depth_m is not None for v in views)
        depth = np.full((len(views), rows, columns) if with_depth else (0, 0, 0), np.nan, np.float32)
        for i, view in enumerate(views):
            h, w = view.robot.shape
            distance[i, :h, :w] = -signed_distance(view.robot)
            if view.depth_m is not None:
                # Depth outside the mask is not on the robot's surface.
                depth[i, :h, :w] = np.where(view.robot, view.depth_m, np.nan)
        return cls(
            projections([v.camera.K_opencv for v in views], [v.camera.camera_T_base for v in views]),
            np.array([[v.camera.height, v.camera.width] for v in views], np.int64),
            distance,
            np.array([np.sqrt(v.camera.K[0, 0] * v.camera.K[1, 1]) for v in views]),
            depth,
        )

    def moved(self, world_T_frame: Array) -> Outlines:
        """Express the views in a moving frame; `world_T_frame` (N, 4, 4) is its pose at the time of each view."""
        return Outlines(self.P @ world_T_frame, self.sizes, self.distance, self.focal, self.depth)


def projections(K: Sequence[Array], camera_T_world: Sequence[Array]) -> Array:
    """Compute matrices (N, 3, 4) from world to pixels times depth."""
    return np.stack([k @ T[:3] for k, T in zip(K, camera_T_world, strict=True)])


def carve(outlines: Outlines, grid: Grid, *, misses: int = 0) -> Field:
    """Compute signed distances (X, Y, Z) float32, world units, positive inside all outlines except `misses`."""
    if not 0 <= misses <= MOST_MISSES:
        raise AssetError(f"misses is {misses}", expected=f"0 to {MOST_MISSES}", code=ErrorCode.ARGUMENT_INVALID)
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
    """Find the bounding box (minimum, maximum corner) of the hull on a coarse grid, world frame."""
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
            "the masks have no common volume: no point is inside all of them",
            expected="masks of one static object, and camera poses that match them",
            hint="check the contact sheets of the poses and masks; --misses tolerates a few bad masks",
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
    """Compute the visual hull of views with masks, refined by depth where available; world frame, no colours.

    Args:
        views: of one joint configuration.
        voxel: side of a voxel, world units.
        misses: number of views that may disagree about a point.
        floor: (4,) plane n, d: only n p + d > 0 is kept; None = no floor.
    """
    outlines = Outlines.of(views)
    grid = Grid.over(*find_volume(views, outlines, misses=misses), voxel)
    values = carve(outlines, grid, misses=misses)
    if floor is not None:
        values = np.minimum(values, above(grid, floor))
    mesh = drop_crumbs(surface_net(values, grid))
    if not len(mesh.faces):
        raise MeshError("the hull is empty", expected="a volume inside all outlines", hint="use a smaller --voxel")
    return mesh


def above(grid: Grid, plane: Array) -> Field:
    """Compute the distance (X, Y, Z) float32 of all voxels from a plane (4,) n, d."""
    return np.asarray(grid.centres() @ plane[:3] + plane[3], np.float32)
