"""NVIDIA Warp rasteriser: one thread per triangle and frame, on the CPU or with CUDA.

Coverage, clipping and shading rules are those of `numba_raster`. Instead of sorting, every pixel keeps the largest
64-bit key (bits of 1 / z, then the face, lowest first), so the result does not depend on the order of the threads.
Tested on Warp's CPU device; CUDA has not been run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import warp as wp
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, RenderError
from kinema4d_ros.render import warp_kernels
from kinema4d_ros.render.numba_raster import place_parts
from kinema4d_ros.render.packed import PART_NUMBERS, Packed
from kinema4d_ros.render.shading import LAMPS

__all__ = ["render_frames"]

_PIXELS_PER_LAUNCH = 8_000_000
"""Limit of the memory for keys on the device."""


def render_frames(
    packed: Packed,
    camera_T_link: NDArray[np.float64],
    camera: NDArray[np.float64],
    xyz: NDArray[np.float32],
    ids: NDArray[np.uint8],
    rgb: NDArray[np.uint8] | None,
    device: str,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Render T frames of poses (T, L, 3, 4) into xyz (T, H, W, 3), ids (T, H, W) and rgb (T, H, W, 3) or None."""
    if device == "cuda" and not wp.is_cuda_available():
        raise RenderError(
            "Warp found no CUDA device",
            expected="an NVIDIA GPU with its driver",
            hint="use device='cpu'",
            code=ErrorCode.BACKEND_MISSING,
        )
    total, height, width = ids.shape
    step = max(1, _PIXELS_PER_LAUNCH // (height * width))
    scene = _Scene(packed, camera, device)
    for first in range(0, total, step):
        frames = slice(first, min(first + step, total))
        scene.draw(camera_T_link[frames], xyz[frames], ids[frames], None if rgb is None else rgb[frames])
        if progress is not None:
            progress(frames.stop, total)


class _Scene:
    """Packed arrays on the device, with corners as indices into the whole vertex table."""

    def __init__(self, packed: Packed, camera: NDArray[np.float64], device: str) -> None:
        self.packed, self.camera, self.device = packed, camera, device
        cluster = np.repeat(np.arange(len(packed.cluster_part)), np.diff(packed.face_start))
        corners = packed.faces + packed.vertex_start[cluster, None]
        self.vertices = self._array(np.stack([packed.x, packed.y, packed.z], axis=1), wp.vec3d)
        self.faces = self._array(corners, wp.int32)
        self.face_part = self._array(packed.cluster_part[cluster], wp.int32)
        self.part_link = self._array(packed.part_link, wp.int32)
        self.numbers = self._array(camera, wp.float64)
        if len(packed.normals):
            normals = packed.normals[packed.tones + packed.normal_start[cluster, None]]
            self.normals = self._array(normals, wp.vec3)
            self.centers = self._array(packed.sphere[cluster, :3], wp.vec3d)
            self.part_closed = self._array(packed.part_closed, wp.int32)
            self.colours = self._array(packed.face_rgb, wp.float32)
            self.lamps = self._array(LAMPS, wp.float64)

    def _array(self, values: NDArray[Any], dtype: Any) -> Any:
        return wp.array(values, dtype=dtype, device=self.device)

    def draw(
        self,
        camera_T_link: NDArray[np.float64],
        xyz: NDArray[np.float32],
        ids: NDArray[np.uint8],
        rgb: NDArray[np.uint8] | None,
    ) -> None:
        """Render some frames into arrays on the host."""
        numbers = np.zeros((len(ids), len(self.packed.part_link), PART_NUMBERS))
        for t in range(len(ids)):
            place_parts(self.packed, camera_T_link[t], self.camera, numbers[t])
        parts = self._array(numbers, wp.float64)
        keys = wp.zeros(ids.shape, dtype=wp.uint64, device=self.device)
        points = wp.empty(xyz.shape, dtype=wp.float32, device=self.device)
        links = wp.empty(ids.shape, dtype=wp.uint8, device=self.device)
        face_of = wp.empty((0, 0, 0) if rgb is None else ids.shape, dtype=wp.int32, device=self.device)
        self._launch(
            warp_kernels.draw_faces,
            (len(ids), self.faces.shape[0]),
            [self.vertices, self.faces, self.face_part, parts, float(self.camera[7]), keys],
        )
        self._launch(
            warp_kernels.resolve,
            ids.shape,
            [keys, self.face_part, self.part_link, self.numbers, points, links, face_of],
        )
        xyz[:] = points.numpy()
        ids[:] = links.numpy()
        if rgb is not None:
            poses = self._array(camera_T_link, wp.float64)
            pixels = wp.empty(rgb.shape, dtype=wp.uint8, device=self.device)
            shape = [self.vertices, self.faces, self.normals, self.face_part, self.centers, self.part_closed]
            self._launch(
                warp_kernels.shade,
                ids.shape,
                [face_of, *shape, self.part_link, parts, poses, self.lamps, points, self.colours, pixels],
            )
            rgb[:] = pixels.numpy()

    def _launch(self, kernel: Any, dim: tuple[int, ...], inputs: list[Any]) -> None:
        wp.launch(kernel, dim=dim, inputs=inputs, device=self.device)
