"""The menu in RViz over real DDS: a plan is approved and executed by it, and by nothing that only looks like it.

The test plays RViz: it reads the menu as RViz does and reports choices as RViz does, with a stamp of 0 and the name of
its node as client.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moveit_msgs.msg import DisplayTrajectory, RobotTrajectory
from rclpy.serialization import deserialize_message
from rosbags.rosbag2 import Reader
from sensor_msgs.msg import JointState
from support.drivers import Drivers
from support.fuzz_seeds import Seeds
from support.health import HealthWatch
from support.motions import WAIT_S, arm, settle, swing, wait_until_ready
from support.ros_graph import Graph, own_domain, wait_for
from support.sim_graph import NodeProcess, client, running, small_camera
from visualization_msgs.msg import InteractiveMarkerFeedback

from kinema4d_msgs.srv import Playback
from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.trajectory import hash_trajectory
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.messages.trajectories import trajectory_to_msg
from kinema4d_ros.ros.qos import profile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NODES = ("playback", "gate", "rviz_marker")


class Rviz:
    """What RViz's display InteractiveMarkers does, and the text that the user sees."""

    def __init__(self, graph: Graph, name: str = "rviz") -> None:
        self.node = graph.node(name)
        self.client = self.node.get_fully_qualified_name()
        self.marker: Any = None
        self.lines: list[str] = []
        self._used = ""
        self.sequence: list[int] = []
        self.feedback = self._publisher(names.MENU_FEEDBACK)
        self._listen(names.MENU_UPDATE, self._update)
        self._listen(names.RVIZ_STATUS, self._status)
        self._ask = self.node.create_client(names.MENU_MARKERS.interface(), names.MENU_MARKERS.name)
        wait_for(self._ask.service_is_ready, WAIT_S, "the menu's service")
        wait_for(lambda: self.feedback.get_subscription_count() > 0, WAIT_S, "the menu's node")

    def _publisher(self, endpoint: names.Endpoint) -> Any:
        return self.node.create_publisher(endpoint.interface(), endpoint.name, profile(endpoint))

    def _listen(self, endpoint: names.Endpoint, callback: Any) -> None:
        self.node.create_subscription(endpoint.interface(), endpoint.name, callback, profile(endpoint))

    def _update(self, message: Any) -> None:
        self.sequence.append(message.seq_num)
        for marker in message.markers:
            self.marker = marker

    def _status(self, message: Any) -> None:
        self.lines = [marker.text for marker in message.markers if marker.text]

    @property
    def text(self) -> str:
        return " ".join(self.lines)

    def connect(self) -> Any:
        """Ask for the menu, as RViz does at its start."""
        future = self._ask.call_async(names.MENU_MARKERS.interface().Request())
        wait_for(future.done, WAIT_S, "the menu")
        (self.marker,) = future.result().markers
        return future.result()

    def has(self, title: str) -> bool:
        return self.marker is not None and any(e.title.startswith(title) for e in self.marker.menu_entries)

    def choice(self, title: str) -> Any:
        """The report of a choice in the menu that is shown, once it has this entry."""
        wait_for(lambda: self.has(title), WAIT_S, f"the entry '{title}' (now: {self.text})")
        # Approve and Execute use a menu up: the next choice is made in the next one.
        wait_for(lambda: self.marker.controls[0].name != self._used, WAIT_S, "the next menu")
        marker = self.marker
        (entry,) = [e for e in marker.menu_entries if e.title.startswith(title)]
        feedback = InteractiveMarkerFeedback(client_id=self.client, marker_name=marker.name)
        feedback.header.frame_id, feedback.control_name = marker.header.frame_id, marker.controls[0].name
        feedback.event_type, feedback.menu_entry_id = InteractiveMarkerFeedback.MENU_SELECT, entry.id
        return feedback

    def choose(self, title: str) -> Any:
        feedback = self.choice(title)
        if title.lstrip("(").startswith(("Approve", "Execute")):
            self._used = feedback.control_name
        self.feedback.publish(feedback)
        return feedback

    def choose_until(self, title: str, part: str) -> None:
        """Choose again while the menu was replaced under the hand, as a person would."""
        deadline = time.monotonic() + WAIT_S
        while part not in self.text:
            assert time.monotonic() < deadline, f"the text is '{self.text}', without '{part}'"
            self.choose(title)
            with contextlib.suppress(AssertionError):
                wait_for(lambda: part in self.text, 3.0)

    def reads(self, part: str) -> None:
        try:
            wait_for(lambda: part in self.text, WAIT_S)
        except AssertionError:
            raise AssertionError(f"the text is '{self.text}', without '{part}'") from None


@dataclass
class Scene:
    """Gate, playback and marker as processes; arm, preview and RViz are the test."""

    graph: Graph
    nodes: dict[str, NodeProcess]
    drivers: Drivers
    seeds: Seeds
    rviz: Rviz
    health: HealthWatch
    moved: list[Any]
    robots: list[Any]
    folder: Path
    offers: int = 0

    def send(self, endpoint: names.Endpoint, message: Any) -> None:
        publisher = self.publishers.setdefault(endpoint.name, None) or self.drivers.publisher(endpoint)
        self.publishers[endpoint.name] = publisher
        count = 2 if endpoint in (names.PREVIEWED_PLAN, names.WORLD_CHANGED) else 1
        wait_for(lambda: publisher.get_subscription_count() >= count, WAIT_S, endpoint.name)
        publisher.publish(message)

    def __post_init__(self) -> None:
        self.publishers: dict[str, Any] = {}

    def offer(self, angle: float, duration_s: float = 2.0, wait: bool = True) -> str:
        """Publish plan, rollout and report as the preview does; return the hash once the menu offers approval."""
        self.offers += 1
        plan = self.seeds.swing(angle)
        plan = type(plan)(plan.names, plan.times * duration_s / 2.0, plan.positions, plan.velocities * 2.0 / duration_s)
        stamp, plan_hash, rollout_id = self.drivers.now(), hash_trajectory(plan), f"{self.offers:016x}"
        for endpoint in (names.PREDICTED_ROLLOUT, names.PLAN_REPORT):
            message = self.seeds(endpoint, stamp)
            message.plan_hash, message.rollout_id = plan_hash, rollout_id
            self.send(endpoint, message)
        message = self.seeds(names.PREVIEWED_PLAN, stamp)
        message.plan_hash, message.rollout_id = plan_hash, rollout_id
        message.trajectory = trajectory_to_msg(plan, header(stamp))
        self.send(names.PREVIEWED_PLAN, message)
        if wait:
            self.rviz.choice(f"Approve plan {plan_hash[:8]}")
        return plan_hash

    def counted(self, key: str) -> int:
        return int(self.health.value("rviz_marker", key) or -1)

    def refused(self, send: Any) -> None:
        """Send something, and wait until the marker has counted one more refusal."""
        wait_for(lambda: self.counted("refused") >= 0, WAIT_S, "the marker's health")
        settled = self.settled()
        send()
        wait_for(lambda: self.counted("refused") > settled, WAIT_S, f"a refusal; the text says: {self.rviz.text}")

    def settled(self) -> int:
        """The number of refusals once everything sent so far has been counted: health comes once a second."""
        self.health.wait("rviz_marker", 0)
        self.health.wait("rviz_marker", 0)
        return self.counted("refused")

    def gate(self, **parameters: Any) -> None:
        """Replace the gate by one with these parameters."""
        assert self.nodes["gate"].stop() == 0
        self.nodes["gate"] = NodeProcess("gate", parameters)
        self.nodes["gate"].wait_for_line("ready")
        watch = self.graph.node(f"watch_{time.monotonic_ns()}")
        wait_for(lambda: watch.count_subscribers(f"/{names.PREVIEWED_PLAN.name}") == 2, WAIT_S, "one gate")
        self.health.wait("gate", 0, "closed until", WAIT_S)


@pytest.fixture(scope="module")
def scene(yam: Robot, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("marker")
    camera = read_camera(small_camera(folder, 90, 60))
    graph = Graph(threads=2)
    nodes: dict[str, NodeProcess] = {}
    try:
        drivers = Drivers(graph, yam, camera)
        drivers.pictures = False
        nodes = {name: NodeProcess(name) for name in NODES}
        for node in nodes.values():
            node.wait_for_line("ready")
        rviz, moved, robots = Rviz(graph), [], []
        for endpoint, take in ((names.ARM_TRAJECTORY, moved), (names.PREDICTED_ROBOT, robots)):
            rviz.node.create_subscription(endpoint.interface(), endpoint.name, take.append, profile(endpoint))
        health = HealthWatch(graph)
        made = Scene(graph, nodes, drivers, Seeds(yam, camera), rviz, health, moved, robots, folder)
        made.health.wait("gate", 0, "closed until", WAIT_S)
        rviz.connect()
        yield made
    finally:
        codes = {name: node.stop() for name, node in nodes.items()}
        graph.close()
    assert set(codes.values()) == {0}, {name: nodes[name].text for name in codes if codes[name]}


@pytest.fixture
def still(scene: Scene) -> Iterator[Scene]:
    """A scene in which nothing moves during the test, and in which a plan moves afterwards as before."""
    before = len(scene.moved)
    yield scene
    scene.settled()
    assert len(scene.moved) == before


def test_a_plan_is_executed_by_the_menu_once_and_a_repeated_choice_moves_nothing(scene: Scene) -> None:
    before = len(scene.moved)
    assert scene.rviz.has("(Approve")
    assert scene.rviz.has("(Execute")
    scene.offer(0.2)
    scene.rviz.reads("80 % lifted")
    scene.rviz.reads("Check the prediction, then approve")
    approval = scene.rviz.choose("Approve plan")
    scene.rviz.reads("execute within")
    assert len(scene.moved) == before
    execution = scene.rviz.choose("Execute plan")
    wait_for(lambda: len(scene.moved) > before, WAIT_S, "the motion")
    scene.rviz.reads("The robot follows the plan")
    for again in (approval, execution, execution):
        scene.refused(lambda again=again: scene.rviz.feedback.publish(again))
    assert len(scene.moved) == before + 1
    assert [point.positions[0] for point in scene.moved[-1].points] == pytest.approx(
        scene.seeds.swing(0.2).positions[:, 0]
    )
    scene.rviz.reads("does not count")
    # RViz asks for everything again when a number is missing.
    assert scene.rviz.sequence == list(range(scene.rviz.sequence[0], scene.rviz.sequence[0] + len(scene.rviz.sequence)))
    answer = scene.rviz.connect()
    assert answer.sequence_number == scene.rviz.sequence[-1]
    time.sleep(2.5)  # the gate counts the arm as moving for as long as the plan lasts


@pytest.mark.full
def test_superseded_foreign_and_odd_choices_move_nothing(still: Scene) -> None:
    rviz, feedback = still.rviz, still.rviz.feedback
    still.offer(0.10)
    old = rviz.choice("Approve plan")
    still.offer(0.15)
    wait_for(lambda: rviz.choice("Approve plan").menu_entry_id != old.menu_entry_id, WAIT_S, "the new menu")
    still.refused(lambda: feedback.publish(old))

    def changed(**fields: Any) -> None:
        odd = rviz.choice("Approve plan")
        for name, value in fields.items():
            setattr(odd, name, value)
        feedback.publish(odd)

    nonce = rviz.choice("Approve plan").menu_entry_id & ~31
    still.refused(lambda: changed(client_id=""))
    still.refused(lambda: changed(client_id="/unknown"))
    still.refused(lambda: changed(client_id="/health_watch"))
    still.refused(lambda: changed(control_name=""))
    for entry in (0, 1, 2, 3, 2**31 + 2, 2**32 - 1):
        still.refused(lambda entry=entry: changed(menu_entry_id=entry))
    still.refused(lambda: changed(menu_entry_id=nonce | 31))
    # Events other than a choice, and other markers, are not even looked at.
    before = still.settled()
    for event in (0, 1, 3, 4, 5, 255):
        changed(event_type=event)
    changed(marker_name="other")
    assert still.settled() == before
    assert "Approved" not in rviz.text
    assert "execute within" not in rviz.text


@pytest.mark.full
def test_only_the_rviz_that_approved_may_execute(still: Scene) -> None:
    other = Rviz(still.graph, "other_rviz")
    other.connect()
    still.offer(0.12)
    still.rviz.choose("Approve plan")
    still.rviz.reads("execute within")
    still.refused(lambda: other.choose("Execute plan"))
    other.reads("only it may execute")
    # An Execute without an approval, from any client: the entry says so, and the text repeats it.
    # The package interactive_markers drops what a second client sends within a second.
    still.rviz.choose_until("Discard", "Discarded")
    still.offer(0.13)
    still.rviz.choice("Approve plan")
    still.rviz.choose("(Execute")
    still.rviz.reads("Not executed")


@pytest.mark.full
def test_refusals_of_the_gate_are_read_in_rviz(still: Scene) -> None:
    scene, rviz, drivers = still, still.rviz, still.drivers
    home = drivers.positions.copy()

    # The arm stands elsewhere: at the approval, and between approval and execution.
    scene.offer(0.21)
    drivers.positions[0] += 0.1
    time.sleep(0.5)
    rviz.choose("Approve plan")
    rviz.reads("away from the plan's start")
    drivers.positions[:] = home
    time.sleep(0.5)
    rviz.choose("Approve plan")
    rviz.reads("execute within")
    drivers.positions[0] += 0.1
    time.sleep(0.5)
    rviz.choose("Execute plan")
    rviz.reads("[ARM_MOVED]")
    drivers.positions[:] = home

    # The arm is silent.
    drivers.alter = lambda _: None
    scene.health.wait("gate", 1, "", WAIT_S)
    rviz.choose("Approve plan")
    rviz.reads("[JOINT_STATES_STALE]")
    drivers.alter = None
    scene.health.wait("gate", 0, "closed until", WAIT_S)

    # The scene changes: the menu no longer offers the plan, and the choice that was open is void.
    scene.offer(0.22)
    old = rviz.choice("Approve plan")
    scene.send(names.WORLD_CHANGED, header(drivers.now()))
    rviz.reads("The scene changed")
    scene.refused(lambda: rviz.feedback.publish(old))
    assert rviz.has("(Approve")

    # The gate restarted: it knows of no plan, and of no approval.
    scene.offer(0.23)
    rviz.choose("Approve plan")
    rviz.reads("execute within")
    scene.gate(approval_ttl_s=1.0, plan_max_age_s=15.0)
    if rviz.has("Execute plan"):
        rviz.choose("Execute plan")
        rviz.reads("no approval has this token")
    rviz.choose("Approve plan")
    rviz.reads("[PLAN_UNKNOWN]")

    # The approval expires: the menu no longer offers Execute.
    scene.offer(0.24)
    rviz.choose("Approve plan")
    rviz.reads("The approval has expired")
    rviz.choice("Approve plan")
    rviz.choose_until("(Execute", "Not executed. The approval has expired")

    # The preview is old.
    scene.offer(0.25)
    time.sleep(16.0)
    rviz.choose("Approve plan")
    rviz.reads("[PLAN_STALE]")

    # The rollout that is played is another one.
    scene.offer(0.26)
    rviz.choice("Approve plan")
    message = scene.seeds(names.PREDICTED_ROLLOUT, drivers.now())
    message.rollout_id = "f" * 16
    scene.send(names.PREDICTED_ROLLOUT, message)
    wait_for(lambda: rviz.has("(Approve"), WAIT_S, "an approval that is not offered")
    rviz.choose_until("(Approve", "Not approved. Waiting for the prediction")
    scene.gate()


@pytest.mark.full
def test_a_busy_arm_gets_no_second_plan(scene: Scene) -> None:
    before = len(scene.moved)
    scene.offer(0.3, duration_s=600.0)
    scene.rviz.choose("Approve plan")
    scene.rviz.choose("Execute plan")
    wait_for(lambda: len(scene.moved) > before, WAIT_S, "the motion")
    scene.rviz.reads("The arm is moving")
    scene.offer(0.31, wait=False)
    scene.rviz.choose_until("(Approve", "Not approved. The arm is moving")
    assert len(scene.moved) == before + 1
    scene.gate()
    # The marker knows only that a motion was sent: a new one forgets it, as the gate did.
    scene.nodes["rviz_marker"].stop()
    scene.nodes["rviz_marker"].start()
    scene.nodes["rviz_marker"].wait_for_line("ready")
    wait_for(lambda: scene.rviz.has("(Approve"), WAIT_S, "the menu of the new node")


@contextlib.contextmanager
def player(graph: Graph, name: str) -> Iterator[Any]:
    """A node that publishes what a bag says."""
    node = graph.node(name)
    publishers: dict[str, Any] = {}

    def play(bag: Path, topics: dict[str, names.Endpoint]) -> int:
        count = 0
        for endpoint in topics.values():
            publishers.setdefault(
                endpoint.name, node.create_publisher(endpoint.interface(), endpoint.name, profile(endpoint))
            )
        for topic, endpoint in topics.items():
            wait_for(lambda at=endpoint: publishers[at.name].get_subscription_count() > 0, WAIT_S, topic)
        with Reader(bag) as reader:
            for connection, _, raw in reader.messages():
                if connection.topic in topics:
                    endpoint = topics[connection.topic]
                    publishers[endpoint.name].publish(deserialize_message(raw, endpoint.interface()))
                    count += 1
                    time.sleep(0.05)
        return count

    yield play


@pytest.mark.full
def test_a_played_recording_moves_nothing(scene: Scene) -> None:
    before = len(scene.moved)
    with running(["recorder"], {"recorder": {"folder": str(scene.folder / "runs")}}):
        wait_for(lambda: scene.rviz.feedback.get_subscription_count() == 2, WAIT_S, "the recorder")
        wait_for(lambda: scene.publishers[names.PREVIEWED_PLAN.name].get_subscription_count() == 3, WAIT_S, "it")
        scene.offer(0.17)
        scene.rviz.choose("Approve plan")
        scene.rviz.choose("Execute plan")
        wait_for(lambda: len(scene.moved) == before + 1, WAIT_S, "the motion")
        time.sleep(3.0)
    (bag,) = (scene.folder / "runs").iterdir()
    feedback = {f"/{names.MENU_FEEDBACK.name}": names.MENU_FEEDBACK}
    everything = feedback | {
        f"/{endpoint.name}": endpoint
        for endpoint in (names.PREVIEWED_PLAN, names.PREDICTED_ROLLOUT, names.PLAN_REPORT, names.PREVIEW_STATUS)
    }
    # By a player that leaves RViz's name in the messages, and by one that takes RViz's name as its own.
    for name in ("rosbag2_player", "rviz"):
        with player(scene.graph, name) as play:
            scene.refused(lambda play=play: play(bag, feedback))
            assert play(bag, everything) >= 5
            scene.settled()
            assert len(scene.moved) == before + 1, name
    # While a plan waits for its approval, and while an approved one waits for its execution.
    with player(scene.graph, "third_player") as play:
        scene.offer(0.18)
        scene.rviz.choice("Approve plan")
        play(bag, feedback)
        scene.settled()
        assert "execute within" not in scene.rviz.text
        scene.rviz.choose("Approve plan")
        scene.rviz.reads("execute within")
        play(bag, feedback)
        scene.settled()
    assert len(scene.moved) == before + 1


@pytest.mark.full
def test_the_playback_follows_the_menu_and_the_robot_follows_the_playback(still: Scene) -> None:
    still.offer(0.2)
    call = still.graph.node("asker").create_client(names.PLAYBACK.interface(), names.PLAYBACK.name)
    wait_for(call.service_is_ready, WAIT_S, "the playback")

    def state(command: int = Playback.Request.STATUS, value: float = 0.0) -> Any:
        future = call.call_async(Playback.Request(command=command, value=value))
        wait_for(future.done, WAIT_S, "the playback's state")
        return future.result()

    rviz = still.rviz
    rviz.choose("2 x")
    wait_for(lambda: state().speed == 2.0, WAIT_S, "the speed")
    wait_for(lambda: rviz.has("Speed (2 x)"), WAIT_S, "the speed in the menu")
    rviz.choose("Pause")
    wait_for(lambda: not state().playing, WAIT_S, "the pause")
    # Somebody else seeks: the robot goes to where the plan is at that frame.
    state(Playback.Request.SEEK, 1.0)
    robot, plan = still.seeds.robot, still.seeds.swing(0.2)
    hand = max(i for i, link in enumerate(robot.links) if link.visuals)
    base_T_hand = forward_all(robot, robot.positions(plan.names, plan.at([1.0])))[0, hand]
    base_T_shape = base_T_hand @ robot.links[hand].visuals[-1].link_T_geometry

    def there() -> bool:
        place = still.robots[-1].markers[-1].pose.position
        return bool(np.allclose([place.x, place.y, place.z], base_T_shape[:3, 3], atol=1e-6))

    wait_for(there, WAIT_S, "the robot at the frame that is played")
    rviz.choose("Next outcome")
    wait_for(lambda: state().outcome == 1, WAIT_S, "the second outcome")
    rviz.reads("20 % slips (outcome 2 of 2 is played)")
    rviz.choose("Next outcome")
    wait_for(lambda: state().outcome == 0, WAIT_S, "the first outcome again")
    rviz.choose("Continue")
    wait_for(lambda: state().playing, WAIT_S, "playing")
    still.robots.clear()
    wait_for(lambda: len({m.markers[-1].pose.position.y for m in still.robots}) >= 2, WAIT_S, "a robot that moves")
    assert {marker.type for marker in still.robots[-1].markers} == {
        marker.MESH_RESOURCE for marker in still.robots[-1].markers[:1]
    }
    assert all(Path(m.mesh_resource.removeprefix("file://")).is_file() for m in still.robots[-1].markers)
    rviz.choose("1 x")
    rviz.choose("Replay")
    wait_for(lambda: state().time_s < 1.9, WAIT_S, "the beginning")
    still.robots.clear()
    rviz.choose("Discard")
    rviz.reads("Discarded")
    wait_for(lambda: still.robots and still.robots[-1].markers[0].action == 3, WAIT_S, "the robot to vanish")


def display(graph: Any) -> Any:
    """A plan as MoveIt shows it."""
    plan = swing(graph, 0.2)
    joints, q = arm(graph)
    message = DisplayTrajectory(model_id="yam", trajectory=[RobotTrajectory()])
    message.trajectory[0].joint_trajectory = trajectory_to_msg(plan, header(0, "base_link"))
    message.trajectory_start.joint_state = JointState(name=joints, position=q.tolist())
    return message


@pytest.mark.full
def test_from_a_displayed_plan_to_a_motion_through_the_menu_alone(tmp_path: Path) -> None:
    """MoveIt publishes a plan; after that only the menu is used."""
    options: dict[str, dict[str, Any]] = {name: {"calibration": small_camera(tmp_path)} for name in ("lab", "preview")}
    options["preview"]["frames"] = 9
    with own_domain(), running(("lab", "preview", "generator", *NODES), options), client() as planner:
        graph = Graph(threads=2)
        try:
            wait_until_ready(planner, "preview", "gate")
            rviz = Rviz(graph)
            rviz.connect()
            settle(planner)
            before = arm(planner)[1]
            endpoint = names.DISPLAY_PLAN
            publisher = planner.node.create_publisher(endpoint.interface(), endpoint.name, profile(endpoint))
            wait_for(lambda: publisher.get_subscription_count() == 2, WAIT_S, "preview and menu")
            publisher.publish(display(planner))
            first = rviz.choice("Approve plan").menu_entry_id
            rviz.choose("Preview again")
            wait_for(lambda: rviz.choice("Approve plan").menu_entry_id != first, WAIT_S, "the second preview")
            rviz.reads("Preview: done")
            rviz.choose("Approve plan")
            rviz.choose("Execute plan")
            planner.wait_for(lambda: arm(planner)[1][0] - before[0] > 0.19, WAIT_S, "the motion")
            settle(planner)
            np.testing.assert_allclose(arm(planner)[1][0] - before[0], 0.2, atol=0.01)
            rviz.reads("Done. Preview the next plan")
        finally:
            graph.close()
