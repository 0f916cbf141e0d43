"""`kinema4d doctor --live` over DDS: a healthy graph, and drivers that are wrong in one way each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from geometry_msgs.msg import TransformStamped
from rclpy.action import ActionClient
from rclpy.qos import QoSProfile, QoSReliabilityPolicy
from sensor_msgs.msg import JointState
from support.drivers import Drivers
from support.ros_graph import DISCOVERY_S, Graph, own_domain, wait_for
from support.sim_graph import START_S, client, kinema4d, running

from kinema4d_ros.calibration import Extrinsics, read_camera, save_camera
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.live import Snapshot, observe
from kinema4d_ros.ros.live_checks import Finding, check_live
from kinema4d_ros.ros.messages.poses import matrix_to_transform
from kinema4d_ros.ros.messages.stamps import header, nanoseconds, time_from_ns
from kinema4d_ros.ros.tf import StaticTransformBroadcaster

SECONDS = 1.5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Scene:
    """Drivers of an arm and a camera that are right unless the test changes them, and TF of the camera."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.robot = Robot.load("yam")
        self.camera: PinholeCamera = read_camera(share_path("calibration/demo_lab.yaml"))
        self.drivers = Drivers(graph, self.robot, self.camera)
        self.static = StaticTransformBroadcaster(self.drivers.node)

    def place_camera(self, base_T_camera: Any, parent: str = "base_link") -> None:
        frame = TransformStamped(child_frame_id=self.camera.frame_id)
        frame.header = header(self.drivers.now(), parent)
        frame.transform = matrix_to_transform(base_T_camera)
        self.static.sendTransform(frame)

    def look(self, seconds: float = SECONDS) -> list[Finding]:
        wait_for(lambda: self.drivers.node.count_publishers("joint_states") > 0, DISCOVERY_S)
        return check_live(observe(seconds))


@pytest.fixture
def scene() -> Iterator[Scene]:
    with own_domain():
        graph = Graph(2)
        yield Scene(graph)
        graph.close()


def wrong(found: list[Finding]) -> dict[str, str]:
    """What is wrong, by name."""
    out: dict[str, str] = {}
    for finding in found:
        if finding.status == "wrong":
            assert finding.fix, finding
            out[finding.name] = f"{out.get(finding.name, '')}{finding.detail}\n"
    return out


def status_of(found: list[Finding], name: str) -> set[str]:
    return {finding.status for finding in found if finding.name == name}


def test_right_drivers_without_a_graph(scene: Scene) -> None:
    """Nothing wrong with joint states and camera; what is missing, and what could not be checked, is named."""
    scene.place_camera(scene.camera.base_T_camera)
    found = scene.look()
    assert {"joint states", "joint names", "camera", "camera_info"}.isdisjoint(wrong(found)), found
    assert status_of(found, "joint names") == {"ok"}
    assert "twin, preview, playback, gate not running" in wrong(found)["nodes"]
    assert "links are not connected" in wrong(found)["tf"]
    assert status_of(found, "controllers") == status_of(found, "clocks") == {"unchecked"}


def hour_ago(stamp: Any) -> Any:
    return time_from_ns(nanoseconds(stamp) - 3600 * 10**9)


def late(scene: Scene) -> None:
    def alter(state: JointState) -> JointState:
        state.header.stamp = hour_ago(state.header.stamp)
        return state

    scene.drivers.alter = alter


def unstamped(scene: Scene) -> None:
    def alter(state: JointState) -> JointState:
        state.header.stamp = time_from_ns(0)
        return state

    scene.drivers.alter = alter


def backwards(scene: Scene) -> None:
    count = [0]

    def alter(state: JointState) -> JointState:
        count[0] += 1
        if count[0] % 5 == 0:
            state.header.stamp = time_from_ns(nanoseconds(state.header.stamp) - 10**9)
        return state

    scene.drivers.alter = alter


def renamed(scene: Scene) -> None:
    def alter(state: JointState) -> JointState:
        state.name = ["joint7" if name == "left_finger_joint" else name for name in state.name]
        return state

    scene.drivers.alter = alter


def degrees(scene: Scene) -> None:
    scene.drivers.positions = np.degrees(scene.drivers.positions)


def broken_positions(scene: Scene) -> None:
    def alter(state: JointState) -> JointState:
        state.position = state.position[:-1]
        return state

    scene.drivers.alter = alter


def other_frame(scene: Scene) -> None:
    scene.drivers._image.header.frame_id = "camera_link"


def other_size(scene: Scene) -> None:
    scene.drivers.describe = lambda info: setattr(info, "width", 1280)


def uncalibrated(scene: Scene) -> None:
    scene.drivers.describe = lambda info: setattr(info, "k", [0.0] * 9)


def other_encoding(scene: Scene) -> None:
    scene.drivers.encoding = "32FC1"


def camera_elsewhere(scene: Scene) -> None:
    moved = scene.camera.base_T_camera.copy()
    moved[0, 3] += 0.05
    scene.place_camera(moved)


def camera_on_another_tree(scene: Scene) -> None:
    scene.place_camera(scene.camera.base_T_camera, parent="world")


def best_effort_plans(scene: Scene) -> None:
    best_effort = QoSProfile(depth=1, reliability=QoSReliabilityPolicy.BEST_EFFORT)
    scene.drivers.node.create_publisher(names.PLAN.interface(), names.PLAN.name, best_effort)


def wants_more(scene: Scene) -> None:
    reliable = QoSProfile(depth=1, reliability=QoSReliabilityPolicy.RELIABLE)
    scene.graph.node("logger").create_subscription(JointState, names.JOINT_STATES.name, lambda _: None, reliable)


def other_type(scene: Scene) -> None:
    scene.drivers.node.create_publisher(JointState, names.PLAN.name, 1)


def other_commander(scene: Scene) -> None:
    node = scene.graph.node("moveit_simple_controller_manager")
    scene.keep = ActionClient(node, names.FOLLOW_TRAJECTORY.interface(), names.FOLLOW_TRAJECTORY.name)  # type: ignore[attr-defined]


WRONG: list[tuple[Callable[[Scene], None], str, str, str]] = [
    (late, "joint states", "before this machine's clock", "chrony"),
    (unstamped, "joint states", "stamp is 0", "stamp messages"),
    (backwards, "joint states", "go back in time", "one publisher"),
    (renamed, "joint names", "no position of left_finger_joint; the messages name joint7", "joint7 times -1 is"),
    (degrees, "joint states", "outside", "unit"),
    (broken_positions, "joint states", "7 names and 6 positions", "one position per name"),
    (other_frame, "camera", "the frame of the images is 'camera_link'", "frame_id"),
    (other_size, "camera", "images of 720 x 480, camera_info of 1280 x 480", "one resolution"),
    (uncalibrated, "camera_info", "all zero", "calibrate"),
    (other_encoding, "camera", "32FC1", "the driver must publish"),
    (camera_elsewhere, "tf", "50 mm and 0.0 deg away from the calibration", "another calibration"),
    (camera_on_another_tree, "tf", "its tree ends at 'world'", "base_frame"),
    (best_effort_plans, "qos", "/kinema4d/plan: this graph gets nothing from /drivers", "reliable"),
    (wants_more, "qos", "/joint_states: /logger gets nothing from /drivers", "reliable"),
    (other_type, "qos", "/kinema4d/plan is used with sensor_msgs/msg/JointState", "remap"),
    (other_commander, "commanders", "moveit_simple_controller_manager uses", "allow_trajectory_execution"),
]


@pytest.mark.full
@pytest.mark.parametrize(("spoil", "name", "text", "fix"), WRONG, ids=[case[0].__name__ for case in WRONG])
def test_what_is_wrong_is_said_with_its_remedy(
    scene: Scene, spoil: Callable[[Scene], None], name: str, text: str, fix: str
) -> None:
    spoil(scene)
    # What was published before the change must have left the queues.
    time.sleep(0.3)
    found = scene.look()
    matching = [f for f in found if f.status == "wrong" and f.name == name and text in f.detail]
    assert matching, wrong(found)
    assert fix in matching[0].fix


@pytest.mark.full
def test_an_old_calibration_is_a_warning(scene: Scene, tmp_path: Path) -> None:
    path = tmp_path / "camera.yaml"
    pose = Extrinsics("base_link", scene.camera.frame_id, scene.camera.base_T_camera, date="2020-01-31")
    save_camera(path, scene.camera, pose)
    found = check_live(observe(0.5), calibration=str(path))
    assert any(f.status == "warning" and "days old" in f.detail for f in found if f.name == "calibration")


@pytest.mark.full
def test_a_healthy_graph_has_nothing_wrong_and_a_stopped_node_is_missed() -> None:
    everything = ("lab", "twin", "preview", "generator", "playback", "gate")
    with own_domain(), running(everything) as nodes:
        with client() as heard:
            heard.wait_for(lambda: heard.newest(names.ROBOT_OVERLAY) is not None, START_S, "the live twin")
        done = kinema4d("doctor", "--live", "--json", "--seconds", "5")
        found = json.loads(done.stdout)
        # A loaded test machine has gaps and late messages of its own.
        slow = [f for f in found if any(word in f["detail"] for word in ("no message for", "no image for", "late"))]
        assert [f for f in found if f["status"] == "wrong" and f not in slow] == [], done.stdout
        assert done.returncode == int(any(f["status"] == "wrong" for f in slow)), done.stdout + done.stderr
        fine = {f["name"] for f in found if f["status"] == "ok"} | {f["name"] for f in slow}
        assert {"nodes", "clocks", "joint names", "camera_info", "depth"} <= fine, found
        assert {"tf", "qos", "controllers", "commanders", "generator"} <= fine, found
        # Its end is discovered by the next observer.
        nodes["generator"].stop()
        nodes["playback"].stop()
        done = kinema4d("doctor", "--live", "--seconds", "2")
        assert done.returncode == 1
        assert "playback not running in /" in done.stdout
        assert "no server of /kinema4d/generate" in done.stdout
        assert "nothing is wrong" not in done.stdout


@pytest.mark.full
def test_a_namespace_is_looked_into(scene: Scene) -> None:
    seen: Snapshot = observe(0.5, "lab1")
    assert "no node publishes /lab1/joint_states" in wrong(check_live(seen))["joint states"]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "1e9"])
def test_a_senseless_time_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    from kinema4d_ros.cli import main

    assert main(["doctor", "--live", f"--seconds={seconds}"]) == 2
    assert "0.5 to 600" in capsys.readouterr().err
