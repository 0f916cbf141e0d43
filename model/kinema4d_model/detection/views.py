"""Training views and what the detector should say about each pixel of them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_model.pipeline.lifting.geometry import level_frame
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, ErrorCode
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.generators.draft.detection import DIRECTIONS
from kinema4d_ros.io.files import replacing_file
from kinema4d_ros.lab.shapes import object_geometries
from kinema4d_ros.physics.objects import PlacedObject

__all__ = ["CLASSES", "HELD", "NONE", "ROBOT", "SIDE", "TOP", "Views", "faces_of", "footprint_row"]

CLASSES = ("box", "cylinder", "sphere", "bin", "other")
"""Shape classes; "other" is everything that the physics has no primitive for."""


HELD, ROBOT = 200, 255
"""Instances from 1 up stand on the table or on each other; HELD is a held object, ROBOT its links, 0 the rest."""
NONE, TOP, SIDE = range(3)
"""Faces: no object, a surface that faces up (normal within 45 degrees), any other surface of an object."""
_UP = np.cos(np.radians(45.0))


@dataclass(frozen=True, eq=False)
class Views:
    """N views of one size.

    Attributes:
        rgb: (N, H, W, 3) uint8.
        instance: (N, H, W) uint8, see HELD and ROBOT.
        face: (N, H, W) uint8: NONE, TOP or SIDE.
        height_m: (N, H, W) float16, of the visible surface above the table, metres; 0 where nothing is seen.
        objects: (N, 16, 9) float32, row i of instance i + 1, 0 of a held one: x, y of its centre, four widths
            (DIRECTIONS), heights of its bottom and top above the table (metres, frame of `level_frame`), index in
            CLASSES. 0 = unused.
        K: (N, 3, 3) float64.
        base_T_camera: (N, 4, 4) float64.
        seed: (N,) int64.
    """

    rgb: NDArray[np.uint8]
    instance: NDArray[np.uint8]
    face: NDArray[np.uint8]
    height_m: NDArray[np.float16]
    objects: NDArray[np.float32]
    K: NDArray[np.float64]
    base_T_camera: NDArray[np.float64]
    seed: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rgb)

    def camera(self, number: int) -> PinholeCamera:
        """Return the camera of a view."""
        rows, columns = self.rgb.shape[1:3]
        return PinholeCamera(columns, rows, self.K[number], base_T_camera=self.base_T_camera[number])

    def part(self, rows: slice) -> Views:
        """Return some of the views."""
        return Views(*(getattr(self, f.name)[rows] for f in fields(self)))

    @classmethod
    def join(cls, parts: list[Views]) -> Views:
        """Concatenate several sets."""
        return cls(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)))

    def save(self, path: Path) -> None:
        """Write a compressed shard."""
        with replacing_file(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **{f.name: getattr(self, f.name) for f in fields(self)})

    @classmethod
    def load(cls, folder: Path) -> Views:
        """Read all shards of a folder."""
        parts = []
        for path in sorted(folder.glob("views-*.npz")):
            with np.load(path, allow_pickle=False) as stored:
                parts.append(cls(*(stored[f.name] for f in fields(cls))))
        if not parts:
            raise DataError(
                f"{folder} holds no views",
                expected="shards views-SEED.npz",
                hint="make them with python -m kinema4d_model.detection.scenes --out FOLDER",
                code=ErrorCode.FILE_MISSING,
            )
        return cls.join(parts)


def footprint_row(placed: PlacedObject, camera: PinholeCamera, table_height_m: float = 0.0) -> NDArray[np.float32]:
    """Describe an object as a row of `Views.objects`."""
    level_T_object = level_frame(camera, table_height_m) @ placed.base_T_object
    points = np.concatenate(
        [apply(level_T_object @ g.link_T_geometry, g.mesh.vertices) for g in object_geometries(placed.object)]
    )
    along = points[:, :2] @ np.stack([np.cos(DIRECTIONS), np.sin(DIRECTIONS)])
    shape = CLASSES.index(placed.object.shape) if placed.object.shape in CLASSES else len(CLASSES) - 1
    centre = level_T_object[:2, 3]
    return np.array(
        [*centre, *(along.max(0) - along.min(0)), points[:, 2].min(), points[:, 2].max(), shape], np.float32
    )


def faces_of(depth_m: NDArray[np.float32], labels: NDArray[np.uint8], camera: PinholeCamera) -> NDArray[np.uint8]:
    """Classify pixels by the direction of their surface: (H, W) uint8, TOP or SIDE, NONE without depth.

    Normals are differences to the neighbour of the same label with the nearer depth, left or right, above or below.
    """
    rays = np.asarray(camera.rays(), np.float64) @ camera.base_T_camera[:3, :3].T
    points = rays * depth_m[..., None]
    across, down = (_difference(points, depth_m, labels, axis) for axis in (1, 0))
    normal = np.cross(across, down)
    normal /= np.maximum(np.linalg.norm(normal, axis=-1, keepdims=True), 1e-12)
    faces = np.where(np.abs(normal[..., 2]) > _UP, TOP, SIDE).astype(np.uint8)
    faces[~np.isfinite(depth_m)] = NONE
    # Single pixels on an edge have no reliable normal.
    return np.asarray(cv2.medianBlur(faces, 3)) if min(faces.shape) > 3 else faces


def _difference(
    points: NDArray[np.float64], depth_m: NDArray[np.float32], labels: NDArray[np.uint8], axis: int
) -> NDArray[np.float64]:
    best = np.zeros_like(points)
    cost = np.full(depth_m.shape, np.inf)
    for sign in (1, -1):
        other = np.roll(points, -sign, axis)
        jump = np.abs(np.roll(depth_m, -sign, axis) - depth_m).astype(np.float64)
        jump[(np.roll(labels, -sign, axis) != labels) | ~np.isfinite(jump)] = np.inf
        edge = [slice(None)] * 2
        edge[axis] = slice(-1, None) if sign > 0 else slice(0, 1)
        jump[tuple(edge)] = np.inf
        better = jump < cost
        best[better] = sign * (other - points)[better]
        cost[better] = jump[better]
    return best
