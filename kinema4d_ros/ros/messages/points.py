"""Conversion sensor_msgs/PointCloud2 <-> arrays: organised, NaN = no point, colours packed for RViz."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import PointCloud2, PointField

from kinema4d_ros.core._kernels import pack_cloud
from kinema4d_ros.core.errors import ErrorCode, PointmapError
from kinema4d_ros.ros.messages.images import new_data

__all__ = ["cloud_from_points", "points_from_cloud"]

_TYPES = {
    PointField.INT8: "i1",
    PointField.UINT8: "u1",
    PointField.INT16: "i2",
    PointField.UINT16: "u2",
    PointField.INT32: "i4",
    PointField.UINT32: "u4",
    PointField.FLOAT32: "f4",
    PointField.FLOAT64: "f8",
}


def cloud_from_points(
    xyz: NDArray[np.float32],
    rgb: NDArray[np.uint8] | None,
    header: Any,
    *,
    dense: bool = False,
    basis: NDArray[np.uint8] | None = None,
) -> Any:
    """Convert points (H, W, 3) or (N, 3) float32 in metres, NaN = no point, to a sensor_msgs/PointCloud2.

    Args:
        xyz: in the header's frame. (H, W, 3) becomes an organised cloud, one point per pixel.
        rgb: colours of the same shape, or None for a cloud without colours.
        header: stamp and frame of the points' source.
        dense: True states that no point is NaN.
        basis: source of every point, `PointBasis` of the shape without its last axis, for a field `basis` after `rgb`.
    """
    points = np.asarray(xyz)
    if points.ndim not in (2, 3) or points.shape[-1] != 3 or points.dtype != np.float32:
        raise PointmapError(
            f"points are {points.dtype} of shape {points.shape}", expected="float32 of shape (H, W, 3) or (N, 3)"
        )
    if rgb is not None and (rgb.shape != points.shape or rgb.dtype != np.uint8):
        raise PointmapError(
            f"colours are {rgb.dtype} of shape {rgb.shape}", expected=f"uint8 of shape {points.shape}, like the points"
        )
    if basis is not None and (rgb is None or basis.shape != points.shape[:-1] or basis.dtype != np.uint8):
        raise PointmapError(
            f"the basis is {basis.dtype} of shape {basis.shape}",
            expected=f"uint8 of shape {points.shape[:-1]}, with colours",
        )
    height, width = points.shape[:2] if points.ndim == 3 else (1, points.shape[0])
    names = ("x", "y", "z") if rgb is None else ("x", "y", "z", "rgb")
    message = PointCloud2(header=header, height=height, width=width, is_dense=dense)
    message.fields = [
        PointField(name=name, offset=4 * i, datatype=PointField.FLOAT32, count=1) for i, name in enumerate(names)
    ]
    message.is_bigendian = sys.byteorder == "big"
    if basis is not None:
        message.fields.append(PointField(name="basis", offset=16, datatype=PointField.UINT8, count=1))
    columns = len(names) + (basis is not None)
    message.point_step = 4 * columns
    message.row_step = message.point_step * width
    message.data = new_data(message.row_step * height)
    table = np.frombuffer(message.data, np.float32).reshape(height * width, columns)
    if rgb is None:
        table[:] = points.reshape(-1, 3)
    else:
        # The colour is packed into the bits of a float: PCL's convention, which RViz reads.
        flat = np.ascontiguousarray(points).reshape(-1, 3), np.ascontiguousarray(rgb).reshape(-1, 3)
        pack_cloud(*flat, table, table.view(np.uint32))
    if basis is not None:
        table.view(np.uint32)[:, 4] = 0
        table.view(np.uint8)[:, 16] = basis.reshape(-1)
    return message


def points_from_cloud(message: Any) -> tuple[NDArray[np.float32], NDArray[np.uint8] | None]:
    """Return points (H, W, 3) float32 and colours (H, W, 3) uint8 or None of a sensor_msgs/PointCloud2.

    Accepts any order and spacing of the fields, either byte order and padded rows. An unorganised cloud
    has H = 1. NaN = no point, as in the message.
    """
    height, width = int(message.height), int(message.width)
    step, row = int(message.point_step), int(message.row_step)
    if height * width == 0 or step == 0 or row < step * width or len(message.data) < row * height:
        raise _refuse(
            f"a cloud of {width} x {height} points of {step} bytes, {row} a row, has {len(message.data)} bytes",
            "rows of at least width x point_step bytes, and height rows",
        )
    fields = {field.name: field for field in message.fields}
    missing = [name for name in "xyz" if name not in fields]
    if missing:
        raise _refuse(f"the cloud has fields {', '.join(fields) or 'none'}", "x, y and z among them")
    order = ">" if message.is_bigendian else "<"

    def column(name: str, kind: str | None = None) -> NDArray[Any]:
        field = fields[name]
        code = kind or _TYPES.get(field.datatype)
        dtype = np.dtype(order + (code or "u1"))
        if code is None or field.offset + dtype.itemsize > step:
            raise _refuse(f"field '{name}' has type {field.datatype} at offset {field.offset}", f"inside {step} bytes")
        view: NDArray[Any] = np.ndarray(
            (height, width), dtype, buffer=message.data, offset=field.offset, strides=(row, step)
        )
        return view

    xyz = np.empty((height, width, 3), np.float32)
    for axis, name in enumerate("xyz"):
        xyz[..., axis] = column(name)
    colour = next((name for name in ("rgb", "rgba") if name in fields), None)
    if colour is None:
        return xyz, None
    packed = column(colour, "u4")
    rgb = np.stack([packed >> 16 & 255, packed >> 8 & 255, packed & 255], axis=-1).astype(np.uint8)
    return xyz, rgb


def _refuse(what: str, expected: str) -> PointmapError:
    return PointmapError(what, expected=expected, code=ErrorCode.WIRE_CORRUPT)
