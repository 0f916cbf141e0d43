"""Point clouds as binary PLY, readable by MeshLab, CloudCompare, Blender and Open3D."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, PointmapError
from kinema4d_ros.io.files import replacing_file

__all__ = ["write_ply"]


def write_ply(
    path: str | Path,
    xyz: NDArray[np.floating],
    rgb: NDArray[np.uint8] | None = None,
    *,
    comment: str = "",
) -> int:
    """Write the finite points of xyz (..., 3), metres, with colours rgb (..., 3); return their number.

    Coordinates are written unchanged: name their frame in `comment`.
    """
    if xyz.ndim < 2 or xyz.shape[-1] != 3:
        raise PointmapError(f"xyz has shape {xyz.shape}", expected="(..., 3)")
    if rgb is not None and (rgb.shape != xyz.shape or rgb.dtype != np.uint8):
        raise PointmapError(f"rgb is {rgb.dtype} of shape {rgb.shape}", expected=f"uint8 of shape {xyz.shape}")
    if not (comment.isascii() and comment.isprintable()):
        raise PointmapError(f"the comment is {comment!r}", expected="one line of plain ASCII")
    valid = np.isfinite(xyz).all(-1)
    count = int(valid.sum())
    if count == 0:
        raise PointmapError(
            f"none of the {valid.size} points is finite",
            expected="at least one point to write",
            hint="the robot may be outside the view in this frame",
            code=ErrorCode.POINTMAP_EMPTY,
        )
    axes, colours = ("x", "y", "z"), ("red", "green", "blue") if rgb is not None else ()
    vertices = np.empty(count, dtype=[*((a, "<f4") for a in axes), *((c, "u1") for c in colours)])
    for i, name in enumerate(axes):
        vertices[name] = xyz[..., i][valid]
    for i, name in enumerate(colours):
        vertices[name] = rgb[..., i][valid] if rgb is not None else 0
    lines = [
        "ply",
        "format binary_little_endian 1.0",
        *([f"comment {comment}"] if comment else []),
        f"element vertex {count}",
        *(f"property float {name}" for name in axes),
        *(f"property uchar {name}" for name in colours),
        "end_header",
    ]
    with replacing_file(path) as temporary:
        temporary.write_bytes("\n".join(lines).encode("ascii") + b"\n" + vertices.tobytes())
    return count
