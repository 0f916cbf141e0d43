"""Markers of the lab's objects keep what a plan needs: shape, size, colour, and which one is the target."""

from __future__ import annotations

import pytest
from std_msgs.msg import Header
from visualization_msgs.msg import Marker, MarkerArray

from kinema4d_ros.physics.objects import ODD_SHAPES, LabObject, PlacedObject
from kinema4d_ros.physics.parts import Shape, odd_size
from kinema4d_ros.ros.messages.page import objects_from_markers
from kinema4d_ros.ros.messages.poses import matrix_to_pose
from kinema4d_ros.ros.nodes.lab import _marker


@pytest.mark.parametrize("shape", ["box", *ODD_SHAPES])
def test_objects_round_trip_as_markers(shape: Shape) -> None:
    size = odd_size(shape, 0.05, 0.06)
    placed = [
        PlacedObject.standing(LabObject(name, shape, size, (0.5, 0.25, 0.75), 0.05), 0.3, y, 0.4)
        for name, y in (("other", 0.1), ("wanted", -0.1))
    ]
    markers = [
        _marker(Header(), i, p, matrix_to_pose(p.base_T_object), target=p.name == "wanted")
        for i, p in enumerate(placed)
    ]
    assert all(marker.type == Marker.CUBE for marker in markers)
    found = objects_from_markers(MarkerArray(markers=markers))
    assert list(found) == ["wanted", "other"]
    for p in placed:
        assert found[p.name].object.shape == shape
        assert found[p.name].object.size == pytest.approx(size)
        assert found[p.name].position == pytest.approx(p.position)
