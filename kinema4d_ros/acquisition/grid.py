"""Fields on a grid of voxels, and the triangles where a field changes its sign (surface nets)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from kinema4d_ros.core.errors import AssetError, ErrorCode

__all__ = ["ColouredMesh", "Grid", "drop_crumbs", "surface_net", "vertex_normals"]

Array = NDArray[np.float64]

MAX_VOXELS = 120_000_000

_CORNERS = np.array([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
_EDGES = np.array([(a, b) for a in range(8) for b in range(a + 1, 8) if np.abs(_CORNERS[a] - _CORNERS[b]).sum() == 1])


@dataclass(frozen=True, eq=False)
class ColouredMesh:
    """Triangles with a colour at every vertex.

    Attributes:
        vertices: (V, 3) float64; the owner says which frame and unit.
        faces: (F, 3) int64, counter-clockwise seen from outside.
        rgb: (V, 3) uint8, or None = no colours.
    """

    vertices: Array
    faces: NDArray[np.int64]
    rgb: NDArray[np.uint8] | None = None

    def part(self, keep: NDArray[np.bool_]) -> ColouredMesh:
        """Only the faces (F,) that are True, and the vertices they use."""
        used, compact = np.unique(self.faces[keep], return_inverse=True)
        rgb = None if self.rgb is None else self.rgb[used]
        return ColouredMesh(self.vertices[used], compact.reshape(-1, 3).astype(np.int64), rgb)


@dataclass(frozen=True, eq=False)
class Grid:
    """Voxels along the axes of a frame.

    Attributes:
        origin: (3,) of voxel 0, 0, 0.
        voxel: side.
        shape: how many along x, y, z.
    """

    origin: Array
    voxel: float
    shape: tuple[int, int, int] = field(default=(0, 0, 0))

    @classmethod
    def over(cls, low: Array, high: Array, voxel: float) -> Grid:
        """The grid from `low` to `high` with two voxels to spare on each side."""
        if not (np.isfinite(voxel) and voxel > 0):
            raise AssetError(f"a voxel of {voxel}", expected="a length above 0", code=ErrorCode.ARGUMENT_INVALID)
        counts = np.ceil((np.asarray(high) - low) / voxel).astype(np.int64) + 5
        if not np.all(counts > 0) or np.prod(counts, dtype=np.float64) > MAX_VOXELS:
            size = " x ".join(str(c) for c in counts)
            raise AssetError(
                f"{size} voxels of {voxel:g}",
                expected=f"at most {MAX_VOXELS} in all",
                hint="a larger --voxel, or masks that hold the robot alone",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        return cls(np.asarray(low, np.float64) - 2 * voxel, voxel, (int(counts[0]), int(counts[1]), int(counts[2])))

    def centres(self, step: int = 1) -> Array:
        """(X, Y, Z, 3) of every `step`-th voxel."""
        axes = [self.origin[a] + self.voxel * np.arange(0, self.shape[a], step) for a in range(3)]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)

    def bounds(self, inside: NDArray[np.bool_]) -> tuple[Array, Array] | None:
        """Lowest and highest corner of the True voxels, or None without any."""
        if not inside.any():
            return None
        low, high = [], []
        for axis in range(3):
            line = np.flatnonzero(inside.any(axis=tuple(a for a in range(3) if a != axis)))
            low.append(line[0])
            high.append(line[-1])
        return self.origin + self.voxel * np.array(low), self.origin + self.voxel * np.array(high)


def surface_net(values: NDArray[np.float32], grid: Grid) -> ColouredMesh:
    """Where `values` (X, Y, Z), positive inside, change their sign: one vertex a cell, two triangles a crossing."""
    inside = values > 0
    # Nothing may touch the border: the surface is closed there.
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
    # A border voxel was declared outside whatever its value.
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
    # The shorter diagonal makes rounder triangles.
    p = vertices[four]
    short = ((p[:, 0] - p[:, 2]) ** 2).sum(axis=1) <= ((p[:, 1] - p[:, 3]) ** 2).sum(axis=1)
    one = np.where(short[:, None], four[:, [0, 1, 2]], four[:, [0, 1, 3]])
    two = np.where(short[:, None], four[:, [0, 2, 3]], four[:, [1, 2, 3]])
    return ColouredMesh(vertices, np.concatenate([one, two]))


def vertex_normals(mesh: ColouredMesh) -> Array:
    """(V, 3) unit vectors, outward; zero where a vertex has no area around it."""
    a, b, c = (mesh.vertices[mesh.faces[:, i]] for i in range(3))
    normal = np.cross(b - a, c - a)
    total = np.zeros_like(mesh.vertices)
    for i in range(3):
        np.add.at(total, mesh.faces[:, i], normal)
    length = np.linalg.norm(total, axis=1, keepdims=True)
    return np.asarray(total / np.where(length > 0, length, 1.0))


def drop_crumbs(mesh: ColouredMesh, share: float = 0.02) -> ColouredMesh:
    """Without hollows (bodies wound inwards) and without bodies whose volume is below a share of the largest one's."""
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
