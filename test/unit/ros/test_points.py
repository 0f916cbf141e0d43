"""Point cloud messages: organised, coloured, NaN kept; other layouts are read, invalid ones refused."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sensor_msgs.msg import PointCloud2, PointField

from kinema4d_ros.core.errors import ErrorCode, PointmapError
from kinema4d_ros.ros.messages.points import cloud_from_points, points_from_cloud
from kinema4d_ros.ros.messages.stamps import header

HEADER = header(7, "camera_optical_frame")


@settings(max_examples=50)
@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_points_and_colours_round_trip(height: int, width: int, data: st.DataObject) -> None:
    xyz = data.draw(arrays(np.float32, (height, width, 3), elements=st.floats(width=32)))
    rgb = data.draw(arrays(np.uint8, (height, width, 3)))
    points, colours = points_from_cloud(cloud_from_points(xyz, rgb, HEADER))
    np.testing.assert_array_equal(points, xyz)
    np.testing.assert_array_equal(colours, rgb)
    points, colours = points_from_cloud(cloud_from_points(xyz.reshape(-1, 3), None, HEADER))
    assert colours is None
    np.testing.assert_array_equal(points, xyz.reshape(1, -1, 3))


def test_the_layout_is_what_rviz_reads() -> None:
    message = cloud_from_points(np.ones((2, 3, 3), np.float32), np.full((2, 3, 3), (1, 2, 3), np.uint8), HEADER)
    assert [(f.name, f.offset, f.datatype, f.count) for f in message.fields] == [
        ("x", 0, PointField.FLOAT32, 1),
        ("y", 4, PointField.FLOAT32, 1),
        ("z", 8, PointField.FLOAT32, 1),
        ("rgb", 12, PointField.FLOAT32, 1),
    ]
    assert (message.height, message.width, message.point_step, message.row_step) == (2, 3, 16, 48)
    assert (message.is_bigendian, message.is_dense, len(message.data)) == (False, False, 96)
    # 0x00RRGGBB, little-endian: blue first in memory.
    assert bytes(message.data[12:16]) == bytes([3, 2, 1, 0])


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_layout_of_a_camera_driver_is_read(order: str) -> None:
    record = np.dtype(
        {"names": ["z", "x", "y", "rgba"], "formats": [order + "f8", order + "f4", order + "f4", order + "u4"],
         "offsets": [8, 0, 20, 28], "itemsize": 32}
    )  # fmt: skip
    table = np.zeros((2, 3), record)
    table["x"], table["y"], table["z"] = np.arange(6).reshape(2, 3), 10.0, 20.0
    table["rgba"] = 0xFF102030
    kinds = {"z": PointField.FLOAT64, "x": PointField.FLOAT32, "y": PointField.FLOAT32, "rgba": PointField.UINT32}
    message = PointCloud2(header=HEADER, height=2, width=3, point_step=32, row_step=100, is_bigendian=order == ">")
    message.fields = [PointField(name=n, offset=record.fields[n][1], datatype=kinds[n], count=1) for n in record.names]
    rows = table.view(np.uint8).reshape(2, 96)
    message.data = array("B", np.hstack([rows, np.zeros((2, 4), np.uint8)]).tobytes())
    points, colours = points_from_cloud(message)
    np.testing.assert_array_equal(points[..., 0], np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(points[..., 1:], np.broadcast_to((10, 20), (2, 3, 2)))
    np.testing.assert_array_equal(colours, np.full((2, 3, 3), (0x10, 0x20, 0x30)))


def _break(message: PointCloud2, how: str) -> None:
    if how == "short":
        message.data = message.data[:-1]
    elif how == "no z":
        message.fields = [f for f in message.fields if f.name != "z"]
    elif how == "offset":
        message.fields[0].offset = 14
    elif how == "type":
        message.fields[0].datatype = 99
    elif how == "row":
        message.row_step = 1
    elif how == "empty":
        message.width = 0


@pytest.mark.parametrize("how", ["short", "no z", "offset", "type", "row", "empty"])
def test_a_broken_cloud_is_refused(how: str) -> None:
    message = cloud_from_points(np.zeros((2, 3, 3), np.float32), np.zeros((2, 3, 3), np.uint8), HEADER)
    _break(message, how)
    with pytest.raises(PointmapError) as caught:
        points_from_cloud(message)
    assert caught.value.code == ErrorCode.WIRE_CORRUPT


def test_arrays_of_wrong_shape_or_dtype_are_refused() -> None:
    with pytest.raises(PointmapError, match="float64"):
        cloud_from_points(np.zeros((2, 3, 3)), None, HEADER)  # type: ignore[arg-type]
    with pytest.raises(PointmapError, match="colours"):
        cloud_from_points(np.zeros((2, 3, 3), np.float32), np.zeros((2, 2, 3), np.uint8), HEADER)


def test_the_source_of_every_point_is_a_field_of_the_cloud() -> None:
    xyz = np.arange(2 * 3 * 3, dtype=np.float32).reshape(2, 3, 3)
    rgb, basis = np.full((2, 3, 3), 77, np.uint8), np.arange(6, dtype=np.uint8).reshape(2, 3)
    message = cloud_from_points(xyz, rgb, header(0, "camera"), basis=basis)
    field = message.fields[-1]
    assert (field.name, field.datatype) == ("basis", PointField.UINT8)
    data = np.frombuffer(bytes(message.data), np.uint8).reshape(2, 3, message.point_step)
    np.testing.assert_array_equal(data[..., field.offset], basis)
    np.testing.assert_array_equal(points_from_cloud(message)[0], xyz)
    np.testing.assert_array_equal(points_from_cloud(message)[1], rgb)
