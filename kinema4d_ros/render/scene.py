"""Scene: the triangles of a robot, clustered and packed once for all frames."""

from __future__ import annotations

from functools import cached_property
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import RenderError
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.render.clusters import build_clusters
from kinema4d_ros.render.packed import Packed, Scratch
from kinema4d_ros.render.shading import base_colours, cluster_normals, corner_normals
from kinema4d_ros.robot.model import Geometry, Robot, TriangleMesh

__all__ = ["GeometryChoice", "Scene"]

GeometryChoice = Literal["visual", "collision"]

_MAX_LINKS = 255
"""Link ids are one byte and 0 means "no robot"."""

_MAX_SIZES = 4
"""Number of image sizes for which working memory is kept."""

_SCENES: WeakKeyDictionary[Robot, dict[str, Scene]] = WeakKeyDictionary()


class Scene:
    """Clustered triangles of a robot's links, for `render_poses`.

    Attributes:
        link_count: L, number of link poses per frame.
        triangle_count: number of triangles of all shapes.
    """

    def __init__(self, parts: list[tuple[int, Geometry]], link_count: int) -> None:
        if link_count > _MAX_LINKS:
            raise RenderError(f"the robot has {link_count} links", expected=f"at most {_MAX_LINKS}")
        self.link_count = link_count
        self._geometries = [(link, geometry) for link, geometry in parts if len(geometry.mesh.faces)]
        self.triangle_count = sum(len(geometry.mesh.faces) for _, geometry in self._geometries)
        self._meshes = [_in_link_frame(geometry) for _, geometry in self._geometries]
        self._pools: dict[tuple[int, int, bool], list[Scratch]] = {}
        self._clusters = [build_clusters(mesh.vertices, mesh.faces) for mesh in self._meshes]

    @classmethod
    def from_robot(cls, robot: Robot, geometry: GeometryChoice = "visual") -> Scene:
        """Build the scene of a robot's visual or collision shapes; cached after the first call."""
        if geometry not in ("visual", "collision"):
            raise RenderError(f"geometry is {geometry!r}", expected="'visual' or 'collision'")
        known = _SCENES.setdefault(robot, {})
        if geometry not in known:
            parts = [
                (i, shape)
                for i, link in enumerate(robot.links)
                for shape in (link.visuals if geometry == "visual" else link.collisions)
            ]
            scene = cls(parts, len(robot.links))
            if scene.triangle_count == 0:
                raise RenderError(
                    f"robot '{robot.name}' has no {geometry} geometry to render",
                    expected=f"a URDF with <{geometry}> shapes",
                    hint="choose geometry='collision'" if geometry == "visual" else "choose geometry='visual'",
                )
            known[geometry] = scene
        return known[geometry]

    @cached_property
    def packed(self) -> Packed:
        """Arrays for rendering without colours: normals and colours are empty."""
        empty = np.zeros((0, 3))
        clusters = sum(len(c.sphere) for c in self._clusters)
        return self._pack(empty, np.zeros(clusters + 1, np.int64), empty, empty)

    @cached_property
    def packed_rgb(self) -> Packed:
        """Arrays for rendering with colours."""
        normals, starts, tones, colours = [], [np.zeros(1, np.int64)], [], []
        for (_, geometry), mesh, clusters in zip(self._geometries, self._meshes, self._clusters, strict=True):
            normal, start, tone = cluster_normals(corner_normals(mesh), clusters)
            normals.append(normal)
            starts.append(start[1:] + starts[-1][-1])
            tones.append(tone)
            colours.append(base_colours(geometry)[clusters.faces])
        return self._pack(
            np.concatenate(normals), np.concatenate(starts), np.concatenate(tones), np.concatenate(colours)
        )

    def working_memory(self, height: int, width: int, rgb: bool) -> list[Scratch]:
        """Return the pool of working memory for an image size; back-ends take entries from it and put them back."""
        key = (height, width, rgb)
        pool = self._pools.pop(key, [])
        for oldest in list(self._pools)[: -(_MAX_SIZES - 1)]:
            self._pools.pop(oldest, None)
        self._pools[key] = pool
        return pool

    def _pack(
        self,
        normals: NDArray[np.floating],
        normal_start: NDArray[np.int64],
        tones: NDArray[np.integer] | NDArray[np.floating],
        colours: NDArray[np.floating],
    ) -> Packed:
        groups, meshes = self._clusters, self._meshes
        points = np.concatenate([mesh.vertices[c.vertices] for mesh, c in zip(meshes, groups, strict=True)])
        x, y, z = np.ascontiguousarray(points.T)
        return Packed(
            x=x,
            y=y,
            z=z,
            vertex_start=_joined([c.vertex_start for c in groups]),
            face_start=_joined([c.face_start for c in groups]),
            normal_start=normal_start,
            faces=np.concatenate([c.local for c in groups]).astype(np.uint16),
            cluster_part=np.repeat(np.arange(len(groups)), [len(c.sphere) for c in groups]),
            sphere=np.concatenate([c.sphere for c in groups]),
            cone=np.concatenate([c.cone for c in groups]),
            part_link=np.array([link for link, _ in self._geometries], dtype=np.int64),
            part_closed=np.array([mesh.closed for mesh in meshes], dtype=np.bool_),
            part_box=np.array([[*mesh.vertices.min(axis=0), *mesh.vertices.max(axis=0)] for mesh in meshes]),
            normals=normals.astype(np.float32),
            tones=tones.astype(np.uint16),
            face_rgb=colours.astype(np.float32),
        )


def _in_link_frame(geometry: Geometry) -> TriangleMesh:
    mesh = geometry.mesh
    if not np.all(np.isfinite(mesh.vertices)) or not np.all(np.isfinite(geometry.link_T_geometry)):
        raise RenderError(
            f"mesh {geometry.uri or geometry.kind!r} contains NaN or infinity", expected="finite vertices"
        )
    return TriangleMesh(
        vertices=apply(geometry.link_T_geometry, mesh.vertices),
        faces=mesh.faces,
        closed=mesh.closed,
    )


def _joined(starts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    ends = np.concatenate([np.diff(start) for start in starts])
    return np.concatenate([[0], np.cumsum(ends)])
