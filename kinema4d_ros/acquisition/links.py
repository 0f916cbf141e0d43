"""Segmentation of a reconstruction into links by the robot's kinematics.

With masks and camera poses every link is carved in its own frame, from all views of all joint configurations at once:
a point of a link moves with it, so it must be inside the outlines in every configuration. Neighbouring links are
separated where both descriptions are equally near; both sides are closed there. Or Open3D fuses the depth images, each
pixel in the frame of the link whose description is nearest; the links are then open. A mesh without camera poses is cut
face by face, and the holes are closed by flat caps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from kinema4d_ros.acquisition.backends import Shot, fuse_depth, measured_pixels
from kinema4d_ros.acquisition.hull import ColouredMesh, Grid, Outlines, carve, drop_crumbs, surface_net
from kinema4d_ros.acquisition.views import View
from kinema4d_ros.calibration.surfaces import Surface, sample_surface
from kinema4d_ros.core.errors import MeshError
from kinema4d_ros.core.transforms import apply, invert
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.robot.model import Robot

__all__ = ["LinkShapes", "boundary_loops", "cap_holes", "carve_links", "cut_mesh", "fuse_links"]

# Hole filling: close the holes of an open mesh by triangle fans, as flat caps where links were separated.


def boundary_loops(faces: NDArray[np.int64]) -> list[list[int]]:
    """Find closed loops of vertices along edges that belong to only one face, in the direction of those faces."""
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    low, high = edges.min(axis=1), edges.max(axis=1)
    _, inverse, count = np.unique(low * (edges.max() + 1) + high, return_inverse=True, return_counts=True)
    after: dict[int, list[int]] = {}
    for a, b in edges[count[inverse.ravel()] == 1].tolist():
        after.setdefault(a, []).append(b)
    loops = []
    while after:
        start = next(iter(after))
        loop = [start]
        while True:
            ways = after.get(loop[-1])
            if not ways:
                break
            step = ways.pop()
            if not ways:
                del after[loop[-1]]
            if step == start:
                loops.append(loop)
                break
            loop.append(step)
    return [loop for loop in loops if len(loop) >= 3]


def cap_holes(mesh: ColouredMesh) -> tuple[ColouredMesh, int]:
    """Close every hole by a fan with the colour of its rim; return the mesh and the number of holes."""
    if not len(mesh.faces):
        return mesh, 0
    loops = boundary_loops(mesh.faces)
    vertices, faces = [mesh.vertices], [mesh.faces]
    rgb = None if mesh.rgb is None else [mesh.rgb]
    next_ = len(mesh.vertices)
    for loop in loops:
        rim = np.array(loop)
        vertices.append(mesh.vertices[rim].mean(axis=0, keepdims=True))
        # Opposite to the direction of the adjacent faces, so that the cap faces outwards.
        faces.append(np.stack([np.roll(rim, -1), rim, np.full(len(rim), next_)], axis=1))
        if rgb is not None and mesh.rgb is not None:
            rgb.append(mesh.rgb[rim].mean(axis=0, keepdims=True).round().astype(np.uint8))
        next_ += 1
    colours = None if rgb is None else np.concatenate(rgb)
    return ColouredMesh(np.concatenate(vertices), np.concatenate(faces), colours), len(loops)


Array = NDArray[np.float64]
Progress = Callable[[int, int], None]

MARGIN_M = 0.03
"""Largest extent of the real link beyond its description."""

FAR_M = 0.06
"""Faces further than this from every link are discarded."""

_POINTS = 6000
_STEP = 2


@dataclass(frozen=True, eq=False)
class LinkShapes:
    """Surface samples of each link's description.

    Attributes:
        robot: with shapes.
        surfaces: by link name, link frame, metres; links without shapes are not included.
    """

    robot: Robot
    surfaces: dict[str, Surface]

    @classmethod
    def of(cls, robot: Robot) -> LinkShapes:
        """Sample the visual shapes."""
        surfaces = {}
        for link in robot.links:
            vertices, faces, start = [], [], 0
            for shape in link.visuals:
                vertices.append(apply(shape.link_T_geometry, shape.mesh.vertices))
                faces.append(shape.mesh.faces + start)
                start += len(shape.mesh.vertices)
            if vertices:
                surfaces[link.name] = sample_surface(np.concatenate(vertices), np.concatenate(faces), _POINTS)
        return cls(robot, surfaces)

    def poses(self, q: Array) -> dict[str, Array]:
        """Compute `base_T_link` (K, 4, 4) by name of the links with shapes, for joint positions (K, J)."""
        all_ = forward_all(self.robot, q)
        return {link.name: all_[:, i] for i, link in enumerate(self.robot.links) if link.name in self.surfaces}


def carve_links(
    shapes: LinkShapes,
    q: Array,
    outlines: Outlines,
    orbit: NDArray[np.int64],
    voxel: float,
    *,
    misses: int = 0,
    floor: Array | None = None,
    progress: Progress = lambda done, total: None,
) -> dict[str, ColouredMesh]:
    """Carve closed meshes by link name, link frame, metres, without colours; empty links are not included.

    Args:
        shapes: the description.
        q: (K, J) joint positions, one row per orbit.
        outlines: of all views, in the base frame.
        orbit: (N,) int64, row of q for each view.
        voxel: side of a voxel, metres.
        misses: number of views that may disagree about a point.
        floor: (4,) plane in the base frame: only n p + d > 0 is kept; None = no floor.
        progress: called with (links done, total links).
    """
    poses = shapes.poses(q)
    found = {}
    for done, (name, surface) in enumerate(shapes.surfaces.items()):
        grid = Grid.over(surface.points.min(axis=0) - MARGIN_M, surface.points.max(axis=0) + MARGIN_M, voxel)
        values = carve(outlines.moved(poses[name][orbit]), grid, misses=misses)
        values = np.minimum(values, _membership(name, shapes, poses, grid, values))
        if floor is not None:
            at = grid.centres()
            for pose in poses[name]:
                n, d = floor[:3] @ pose[:3, :3], floor[3] + floor[:3] @ pose[:3, 3]
                values = np.minimum(values, (at @ n + d).astype(np.float32))
        mesh = drop_crumbs(surface_net(values, grid), 0.05)
        if len(mesh.faces):
            found[name] = mesh
        progress(done + 1, len(shapes.surfaces))
    if not found:
        raise MeshError("no link was found in the outlines", expected="masks that show the described robot")
    return found


def fuse_links(
    shapes: LinkShapes,
    q: Array,
    views: Sequence[View],
    voxel: float,
    *,
    floor: Array | None = None,
    progress: Progress = lambda done, total: None,
) -> dict[str, ColouredMesh]:
    """Fuse open meshes by link name, link frame, metres, without colours; links that were not measured are left out.

    A pixel belongs to the link whose description is nearest to it; FAR_M from all of them it belongs to none.

    Args:
        shapes: the description.
        q: (K, J) joint positions, one row per orbit.
        views: with masks and depth, in the base frame.
        voxel: side of a voxel, metres.
        floor: (4,) plane in the base frame: only n p + d > 0 is kept; None = no floor.
        progress: called with (links done, total links).
    """
    poses, names = shapes.poses(q), list(shapes.surfaces)
    owner = np.repeat(np.arange(len(names)), [len(shapes.surfaces[n].points) for n in names])
    trees = [
        cKDTree(np.concatenate([apply(poses[n][k], shapes.surfaces[n].points) for n in names])) for k in range(len(q))
    ]
    labels = []
    for view in views:
        row, column, p = measured_pixels(view, floor, voxel)
        distance, nearest = trees[view.orbit].query(p, distance_upper_bound=FAR_M)
        near = np.isfinite(distance)
        label = np.full(view.robot.shape, -1, np.int16)
        label[row[near], column[near]] = owner[nearest[near]]
        labels.append(label)
    found = {}
    for i, name in enumerate(names):
        shots: list[Shot] = [(v, label == i, poses[name][v.orbit]) for v, label in zip(views, labels, strict=True)]
        mesh = fuse_depth(shots, voxel)
        if len(mesh.faces):
            found[name] = mesh
        progress(i + 1, len(names))
    if not found:
        raise MeshError("no link was measured", expected="depth inside masks that show the described robot")
    return found


def _membership(
    name: str, shapes: LinkShapes, poses: dict[str, Array], grid: Grid, values: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Compute (X, Y, Z) half the difference of a voxel's distances to the nearest other link and to this one.

    Metres, mean over all configurations; positive = nearer to this link.
    """
    at = grid.centres(_STEP)
    coarse = np.full(at.shape[:3], -grid.voxel, np.float32)
    # Only voxels inside the outlines matter, with a margin for the interpolation.
    ask = (values > -2 * grid.voxel)[::_STEP, ::_STEP, ::_STEP]
    for _ in range(2):
        for axis in range(3):
            ask = ask | np.roll(ask, 1, axis) | np.roll(ask, -1, axis)
    points = at[ask]
    if not len(points):
        return np.full(values.shape, -grid.voxel, np.float32)
    own = _signed(shapes.surfaces[name], points)
    total = np.zeros(len(points))
    count = len(poses[name])
    for k in range(count):
        link_T_base = invert(poses[name][k])
        others = [
            Surface(
                apply(link_T_base @ poses[other][k], s.points), s.normals @ (link_T_base @ poses[other][k])[:3, :3].T
            )
            for other, s in shapes.surfaces.items()
            if other != name
        ]
        if not others:
            return np.full(values.shape, np.inf, np.float32)
        rivals = Surface(np.concatenate([s.points for s in others]), np.concatenate([s.normals for s in others]))
        total += (_signed(rivals, points) - own) / 2
    coarse[ask] = total / count
    return _doubled(coarse, values.shape)


def _doubled(coarse: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Upsample (X, Y, Z) by two with linear interpolation, cropped to `shape`."""
    for axis in range(3):
        between = (coarse + np.roll(coarse, -1, axis)) / 2
        last = [slice(None)] * 3
        last[axis] = slice(-1, None)
        between[tuple(last)] = coarse[tuple(last)]
        both = np.stack([coarse, between], axis=axis + 1)
        size = [*coarse.shape]
        size[axis] *= 2
        cut = [slice(None)] * 3
        cut[axis] = slice(0, shape[axis])
        coarse = both.reshape(size)[tuple(cut)]
    return np.ascontiguousarray(coarse, np.float32)


def _signed(surface: Surface, points: Array) -> Array:
    """Compute (N,) distances to a surface, negative inside according to the normal of the nearest sample."""
    distance, nearest = cKDTree(surface.points).query(points)
    inside = ((points - surface.points[nearest]) * surface.normals[nearest]).sum(axis=1) < 0
    return np.asarray(np.where(inside, -distance, distance))


def cut_mesh(mesh: ColouredMesh, shapes: LinkShapes, q: Array) -> tuple[dict[str, ColouredMesh], list[str]]:
    """Cut a mesh face by face; return link meshes in link frames, metres, and notes for the user.

    Args:
        mesh: of one configuration, base frame, metres.
        shapes: the description.
        q: (1, J) joint positions.
    """
    poses = shapes.poses(q)
    names = list(shapes.surfaces)
    centres = mesh.vertices[mesh.faces].mean(axis=1)
    distance = np.stack(
        [
            cKDTree(apply(poses[n][0], shapes.surfaces[n].points)).query(centres, distance_upper_bound=FAR_M)[0]
            for n in names
        ]
    )
    nearest, least = distance.argmin(axis=0), distance.min(axis=0)
    found, notes = {}, []
    for i, name in enumerate(names):
        part = mesh.part((nearest == i) & np.isfinite(least))
        if not len(part.faces):
            notes.append(f"no face of the mesh is nearest to link '{name}'")
            continue
        moved = ColouredMesh(apply(invert(poses[name][0]), part.vertices), part.faces, part.rgb)
        found[name], holes = cap_holes(moved)
        if holes:
            notes.append(f"link '{name}': {holes} holes where it was cut, closed by flat caps")
    if np.isinf(least).any():
        notes.append(f"{np.isinf(least).mean():.1%} of the faces are further than {FAR_M} m from every link: left out")
    if not found:
        raise MeshError("no face of the mesh is near the description", expected="a mesh aligned to the robot")
    return found, notes
