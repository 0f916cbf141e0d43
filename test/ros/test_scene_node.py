"""The scene node over DDS: table and objects as a move_group hears them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from rclpy.qos import QoSProfile
from shape_msgs.msg import SolidPrimitive
from std_msgs.msg import ColorRGBA
from support.drivers import Drivers
from support.motions import WAIT_S
from support.ros_graph import Graph, wait_for
from support.sim_graph import running
from visualization_msgs.msg import Marker, MarkerArray

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.transforms import make
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.poses import matrix_to_pose, pose_to_matrix
from kinema4d_ros.ros.messages.stamps import header

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SERVICES = QoSProfile(depth=10)
"""Of MoveIt's subscription (rclcpp::ServicesQoS): reliable, volatile, ten messages."""


class PlanningScene:
    """What a move_group makes of the messages: ADD replaces, REMOVE removes."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.objects: dict[str, Any] = {}
        self.additions: list[str] = []
        self._lock = threading.Lock()
        endpoint = names.COLLISION_OBJECT
        graph.node(name).create_subscription(endpoint.interface(), endpoint.name, self._take, SERVICES)

    def _take(self, message: Any) -> None:
        with self._lock:
            if message.operation == message.REMOVE:
                self.objects.pop(message.id, None)
            else:
                assert len(message.primitives) == len(message.primitive_poses) > 0
                self.objects[message.id] = message
                self.additions.append(message.id)


def marker(number: int, name: str, kind: int, size: tuple[float, float, float], at: Any, text: str = "") -> Marker:
    made = Marker(header=header(1, "base_link"), ns=name, id=number, type=kind, action=Marker.ADD, text=text)
    made.pose = matrix_to_pose(make(None, at))
    made.scale.x, made.scale.y, made.scale.z = size
    made.color = ColorRGBA(r=1.0, a=1.0)
    return made


@pytest.fixture
def graph() -> Iterator[Graph]:
    made = Graph(threads=2)
    yield made
    made.close()


def test_table_and_objects_come_move_and_go(graph: Graph, yam: Robot) -> None:
    drivers = Drivers(graph, yam, read_camera(share_path("calibration/demo_lab.yaml")))
    drivers.pictures = False
    objects = drivers.publisher(names.LAB_OBJECTS)
    scene = PlanningScene(graph, "move_group")

    def place(x: float, *, bin_too: bool = True) -> None:
        markers = [Marker(action=Marker.DELETEALL), marker(0, "cube", Marker.CUBE, (0.04, 0.05, 0.06), (x, 0.1, 0.03))]
        markers.append(marker(1, "can", Marker.CYLINDER, (0.05, 0.05, 0.1), (0.3, -0.2, 0.05)))
        if bin_too:
            markers.append(marker(2, "tray", Marker.CUBE, (0.2, 0.2, 0.1), (0.5, 0.2, 0.05), "hollow_box"))
        objects.publish(MarkerArray(markers=markers))

    with running(("scene",)):
        wait_for(lambda: "table" in scene.objects, WAIT_S, "the table")
        table = scene.objects["table"]
        assert table.header.frame_id == yam.base_link
        (box,) = table.primitives
        top = table.pose.position.z + box.dimensions[2] / 2
        assert -0.01 < top < 0.0, "below the base that stands on it"

        place(0.3)
        wait_for(lambda: set(scene.objects) == {"table", "cube", "can", "tray"}, WAIT_S, "the objects")
        (cube,) = scene.objects["cube"].primitives
        assert (cube.type, list(cube.dimensions)) == (SolidPrimitive.BOX, [0.04, 0.05, 0.06])
        (can,) = scene.objects["can"].primitives
        assert can.type == SolidPrimitive.CYLINDER
        np.testing.assert_allclose(list(can.dimensions), [0.1, 0.025])
        assert len(scene.objects["tray"].primitives) == 5, "open at the top"

        place(0.33)
        wait_for(lambda: abs(scene.objects["cube"].pose.position.x - 0.33) < 1e-9, WAIT_S, "the moved cube")
        place(0.33, bin_too=False)
        wait_for(lambda: "tray" not in scene.objects, WAIT_S, "the tray to go")

        # A move_group that starts later is told of everything.
        late = PlanningScene(graph, "another_move_group")
        wait_for(lambda: set(late.objects) == {"table", "cube", "can"}, WAIT_S, "the late one to know")

        # What the gripper holds is left out, and comes back.
        tool = forward_all(yam, drivers.positions[None])[0, [link.name for link in yam.links].index(yam.tool_link)]
        objects.publish(MarkerArray(markers=[marker(0, "cube", Marker.CUBE, (0.04, 0.04, 0.04), tool[:3, 3])]))
        wait_for(lambda: set(scene.objects) == {"table"}, WAIT_S, "the held cube to go")
        away = tool[:3, 3] + [0.0, 0.0, 0.2]
        objects.publish(MarkerArray(markers=[marker(0, "cube", Marker.CUBE, (0.04, 0.04, 0.04), away)]))
        wait_for(lambda: "cube" in scene.objects, WAIT_S, "the released cube")
        np.testing.assert_allclose(pose_to_matrix(scene.objects["cube"].pose)[:3, 3], away, atol=1e-9)
