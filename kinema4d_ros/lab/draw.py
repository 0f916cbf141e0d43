"""Geometry buffers for the lab's pictures: points, ids and faces of every pixel, by the robot's own rasteriser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.render.api import NEAR_M
from kinema4d_ros.render.numba_raster import render_frame
from kinema4d_ros.render.packed import Packed, Scratch, make_scratch
from kinema4d_ros.render.shading import LAMPS

__all__ = ["Drawing", "Painter", "join_packed"]


class Drawing(NamedTuple):
    """What a painter drew; the arrays are the painter's own and change with its next drawing of that size.

    Attributes:
        xyz: (H, W, 3) float32, metres, camera frame, NaN = nothing.
        ids: (H, W) uint8, 1 + link, 0 = nothing.
        face: (H, W) int32, face of `packed`; meaningless where nothing is.
        camera_T_link: (L, 3, 4) float64.
        packed: the triangles.
        face_cluster: (F,) int32, the cluster of each face.
    """

    xyz: NDArray[np.float32]
    ids: NDArray[np.uint8]
    face: NDArray[np.int32]
    camera_T_link: NDArray[np.float64]
    packed: Packed
    face_cluster: NDArray[np.int32]


class _Buffers(NamedTuple):
    scratch: Scratch
    xyz: NDArray[np.float32]
    ids: NDArray[np.uint8]
    rgb: NDArray[np.uint8]


class Painter:
    """Draws packed triangles again and again, in memory that it keeps."""

    def __init__(self, packed: Packed, link_count: int) -> None:
        """Take triangles of `link_count` links."""
        self.packed, self.link_count = packed, link_count
        self._face_cluster = np.repeat(np.arange(len(packed.cluster_part), dtype=np.int32), np.diff(packed.face_start))
        self._buffers: dict[tuple[int, int], _Buffers] = {}

    def draw(self, base_T_link: NDArray[np.float64], camera: PinholeCamera) -> Drawing:
        """Draw links at poses (L, 4, 4) in metres for a camera without distortion."""
        size = (camera.height, camera.width)
        if size not in self._buffers:
            self._buffers[size] = _Buffers(
                make_scratch(self.packed, *size, rgb=True),
                np.empty((*size, 3), np.float32),
                np.empty(size, np.uint8),
                np.empty((*size, 3), np.uint8),
            )
        buffers = self._buffers[size]
        camera_T_link = np.ascontiguousarray((camera.camera_T_base @ base_T_link)[:, :3])
        render_frame(
            self.packed,
            camera_T_link,
            _camera_numbers(camera),
            LAMPS,
            buffers.scratch,
            buffers.xyz,
            buffers.ids,
            buffers.rgb,
            True,
        )
        return Drawing(buffers.xyz, buffers.ids, buffers.scratch.face, camera_T_link, self.packed, self._face_cluster)


def join_packed(packs: Sequence[tuple[Packed, int]]) -> Packed:
    """One `Packed` from several, each with what to add to its link numbers; parts keep their order."""
    joined: dict[str, Any] = {}
    for name in Packed._fields:
        arrays = [getattr(packed, name) for packed, _ in packs]
        if name.endswith("_start"):
            lengths = np.concatenate([np.diff(a) for a in arrays])
            joined[name] = np.concatenate([[0], np.cumsum(lengths)])
        elif name == "cluster_part":
            counts = np.cumsum([0, *(len(packed.part_link) for packed, _ in packs)])
            joined[name] = np.concatenate([a + first for a, first in zip(arrays, counts[:-1], strict=True)])
        elif name == "part_link":
            joined[name] = np.concatenate([a + offset for a, (_, offset) in zip(arrays, packs, strict=True)])
        else:
            joined[name] = np.concatenate(arrays)
    return Packed(**joined)


def _camera_numbers(camera: PinholeCamera) -> NDArray[np.float64]:
    """(9,) as `render_frame` wants them."""
    (fx, skew, cx), (_, fy, cy), _ = camera.K
    corners = np.array([[u, v, 1.0] for u in (0, camera.width) for v in (0, camera.height)])
    reach = float(np.linalg.norm(corners @ np.linalg.inv(camera.K).T, axis=1).max())
    return np.array([fx, skew, cx - 0.5, fy, cy - 0.5, camera.width, camera.height, NEAR_M, NEAR_M * reach])
