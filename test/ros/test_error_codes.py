"""Error codes that leave the running graph, each forced over real DDS; `core/test_error_table.py` lists them all.

The test plays the drivers of the arm and the camera; preview, playback, generator and two gates are the real ones.
Tests run in the order of this file: nothing has been previewed, and no generator runs, when the first one starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moveit_msgs.msg import DisplayTrajectory, RobotTrajectory
from support.drivers import Drivers
from support.faulty_generator import REFUSE, SLOW, SPEC, WORK
from support.motions import WAIT_S, code_of, refused, swing
from support.ros_graph import Asker, Graph, wait_for
from support.sim_graph import NodeProcess, client, small_camera

from kinema4d_msgs.action import GenerateRollout
from kinema4d_msgs.msg import PreviewStatus
from kinema4d_msgs.srv import Playback, ResetLab
from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.io.images import studio
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.client import PreviewClient
from kinema4d_ros.ros.messages.images import image_from_array
from kinema4d_ros.ros.messages.poses import matrices_to_pose_array
from kinema4d_ros.ros.messages.request import frames_to_msg
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.messages.trajectories import trajectory_to_msg
from kinema4d_ros.ros.names import Endpoint
from kinema4d_ros.ros.qos import profile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HASTY = "hasty"
"""Namespace of a second gate, for which everything gets old quickly."""

STRICT = "strict"
"""Namespace of a second preview, which asks for a measured calibration."""


class Scene:
    """Drivers, nodes and a client of one graph."""

    def __init__(self, folder: Path, robot: Robot) -> None:
        self.calibration = small_camera(folder)
        self.graph = Graph(threads=1)
        self.drivers = Drivers(self.graph, robot, read_camera(self.calibration))
        self.drivers.pictures = False
        scene = {"calibration": self.calibration}
        hasty = ["-r", f"__ns:=/{HASTY}", "-r", "kinema4d/previewed_plan:=/kinema4d/previewed_plan"]
        hasty += ["-r", "joint_states:=/joint_states", "-r", "arm_controller/joint_trajectory:=/hasty_arm"]
        self.nodes = [
            NodeProcess("preview", {**scene, "frames": 5, "server_timeout_s": 8.0, "image_max_age_s": 1.5}),
            NodeProcess("playback"),
            NodeProcess("gate"),
            NodeProcess("gate", {"approval_ttl_s": 1.0, "plan_max_age_s": 20.0}, hasty),
        ]
        for node in self.nodes:
            node.wait_for_line("ready")

    def start_generator(self) -> None:
        node = NodeProcess("generator", {"preset": SPEC, "queue": 0, "cancel_grace_s": 0.5})
        self.nodes.append(node)
        node.wait_for_line("ready")

    def close(self) -> None:
        codes = {node.name: node.stop() for node in self.nodes}
        self.graph.close()
        assert set(codes.values()) == {0}, [node.text for node in self.nodes]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, yam: Robot) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("camera"), yam)
    yield made
    made.close()


@pytest.fixture(scope="module")
def graph(scene: Scene) -> Iterator[PreviewClient]:
    with client() as made:
        made.wait_for(lambda: made.newest(names.JOINT_STATES) is not None, WAIT_S, "the arm")
        yield made


@pytest.fixture(scope="module")
def generator(scene: Scene) -> Any:
    scene.start_generator()
    return Asker(scene.drivers.node, GenerateRollout, names.GENERATE.name)


@pytest.fixture(scope="module")
def goal(scene: Scene) -> Any:
    camera, robot = scene.drivers.camera, scene.drivers.robot
    drawn = render_pointmaps(robot, np.tile(robot.home_position(), (3, 1)), camera)
    drawn = type(drawn)(drawn.xyz, drawn.link_ids, camera, np.arange(3) * 0.1, None)
    made = GenerateRollout.Goal(robot_frames=frames_to_msg(drawn, header(1).stamp, [link.name for link in robot.links]))
    made.image = image_from_array(studio(camera), "rgb8", header(1, camera.frame_id))
    return made


def ask(generator: Any, goal: Any, seed: int = WORK, **changes: Any) -> Any:
    request = GenerateRollout.Goal(image=goal.image, robot_frames=goal.robot_frames, seed=seed)
    for name, value in changes.items():
        setattr(request, name, value)
    handle = generator.send(request)
    assert handle.accepted
    return handle


def result_code(generator: Any, handle: Any) -> ErrorCode:
    return ErrorCode(generator.result(handle).error.code)


def sent(scene: Scene, graph: PreviewClient, endpoint: Endpoint, message: Any, stamp: Any) -> ErrorCode:
    """The code that the preview refuses a message on one of its other inputs with."""
    publisher = scene.drivers.publisher(endpoint)
    wait_for(lambda: publisher.get_subscription_count() > 0, WAIT_S, "the preview")
    publisher.publish(message)

    def answered() -> bool:
        status = graph.newest(names.PREVIEW_STATUS)
        return status is not None and status.header.stamp == stamp and status.phase == PreviewStatus.FAILED

    graph.wait_for(answered, WAIT_S, f"a refusal on {endpoint.name}")
    return ErrorCode(graph.newest(names.PREVIEW_STATUS).error.code)


def test_nothing_to_play(graph: PreviewClient) -> None:
    answer = graph.call(names.PLAYBACK, Playback.Request(command=Playback.Request.PLAY), WAIT_S)
    assert answer.error.code == ErrorCode.NO_ROLLOUT


def test_a_service_that_nobody_offers(graph: PreviewClient) -> None:
    assert code_of(graph.call, names.LAB_RESET, ResetLab.Request(), 0.5) == ErrorCode.GRAPH_UNAVAILABLE


def test_no_picture_and_pictures_that_cannot_be_used(scene: Scene, graph: PreviewClient) -> None:
    plan = swing(graph)
    # The client hears the arm, the preview perhaps not yet: it says that, and nothing else.
    while (code := refused(graph, plan)) != ErrorCode.CAMERA_STALE:
        assert code == ErrorCode.JOINT_STATES_STALE
    scene.drivers.encoding = "bayer_rggb8"
    scene.drivers.pictures = True
    graph.wait_for(lambda: refused(graph, plan) == ErrorCode.IMAGE_INVALID, WAIT_S, "IMAGE_INVALID")
    scene.drivers.encoding = "rgb8"


def uncalibrated(info: Any) -> None:
    info.k = np.zeros(9)


def mirrored(info: Any) -> None:
    info.k[0] = -info.k[0]


def fisheye(info: Any) -> None:
    info.distortion_model = "equidistant"


def larger(info: Any) -> None:
    info.width, info.height = 2 * info.width, 2 * info.height


@pytest.mark.parametrize(
    ("describe", "code"),
    [
        (uncalibrated, ErrorCode.CALIBRATION_INVALID),
        (mirrored, ErrorCode.CAMERA_BAD_INTRINSICS),
        (fisheye, ErrorCode.CAMERA_BAD_DISTORTION),
        (larger, ErrorCode.CAMERA_BAD_SIZE),
    ],
)
def test_a_driver_that_describes_another_camera(
    scene: Scene, graph: PreviewClient, describe: Callable[[Any], None], code: ErrorCode
) -> None:
    scene.drivers.pictures = True
    scene.drivers.describe = describe
    try:
        graph.wait_for(lambda: refused(graph, swing(graph)) == code, WAIT_S, code.name)
    finally:
        scene.drivers.describe = lambda info: None


def test_no_generator(graph: PreviewClient) -> None:
    graph.wait_for(
        lambda: refused(graph, swing(graph)) == ErrorCode.GENERATOR_UNAVAILABLE, WAIT_S, "GENERATOR_UNAVAILABLE"
    )


def test_tool_paths_that_cannot_be_followed(scene: Scene, graph: PreviewClient, yam: Robot) -> None:
    tool = [link.name for link in yam.links].index(yam.tool_link)
    pose = forward_all(yam, scene.drivers.positions[None])[0, tool]
    far = np.stack([pose, pose])
    far[1, :3, 3] = (3.0, 0.0, 0.3)
    stamp = scene.drivers.now()
    unreachable = matrices_to_pose_array(far, header(stamp, yam.base_link))
    assert sent(scene, graph, names.EE_PATH, unreachable, stamp) == ErrorCode.IK_NO_SOLUTION
    stamp = scene.drivers.now()
    foreign = matrices_to_pose_array(far[:1], header(stamp, "map"))
    assert sent(scene, graph, names.EE_PATH, foreign, stamp) == ErrorCode.CALIBRATION_FRAME_MISMATCH
    stamp = scene.drivers.now()
    flat = matrices_to_pose_array(far[:1], header(stamp, yam.base_link))
    flat.poses[0].orientation.w = flat.poses[0].orientation.x = 9.0
    assert sent(scene, graph, names.EE_PATH, flat, stamp) == ErrorCode.NOT_A_ROTATION


def test_a_displayed_plan_whose_start_cannot_be_read(scene: Scene, graph: PreviewClient) -> None:
    stamp = scene.drivers.now()
    message = DisplayTrajectory(trajectory=[RobotTrajectory()])
    message.trajectory[0].joint_trajectory = trajectory_to_msg(swing(graph), header(stamp))
    message.trajectory_start.joint_state.name = ["joint1"]
    message.trajectory_start.joint_state.position = [float("nan")]
    assert sent(scene, graph, names.DISPLAY_PLAN, message, stamp) == ErrorCode.JOINT_STATES_INVALID


def test_damaged_goals(scene: Scene, generator: Any, goal: Any) -> None:
    assert result_code(generator, ask(generator, goal)) == ErrorCode.NONE
    frames = goal.robot_frames
    whole, times = frames.depth[1].data, list(frames.times)
    try:
        frames.depth[1].data = whole[: len(whole) // 2]
        assert result_code(generator, ask(generator, goal)) == ErrorCode.WIRE_CORRUPT
        frames.depth[1].data = whole
        frames.times = times[::-1]
        assert result_code(generator, ask(generator, goal)) == ErrorCode.POINTMAP_BAD_INPUT
        frames.times = times
        foreign = ask(generator, goal, robot_sha256="f" * 64)
        assert result_code(generator, foreign) == ErrorCode.GENERATOR_OTHER_ROBOT
    finally:
        frames.depth[1].data, frames.times = whole, times


@pytest.mark.parametrize(
    "code",
    [ErrorCode.METRIC_REFUSED, ErrorCode.ROLLOUT_INVALID, ErrorCode.POINTMAP_EMPTY, ErrorCode.RENDER_BAD_INPUT],
)
def test_what_a_back_end_refuses_keeps_its_code(scene: Scene, generator: Any, goal: Any, code: ErrorCode) -> None:
    assert result_code(generator, ask(generator, goal, REFUSE + code)) == code


def test_a_busy_generator_refuses_the_next_plan(scene: Scene, graph: PreviewClient, generator: Any, goal: Any) -> None:
    running = ask(generator, goal, SLOW)
    assert refused(graph, swing(graph)) == ErrorCode.GENERATOR_BUSY
    generator.cancel(running)
    assert result_code(generator, running) == ErrorCode.CANCELLED
    graph.wait_for(lambda: graph.preview(swing(graph), timeout_s=WAIT_S) is not None, WAIT_S, "a preview")


def test_the_gate_refuses(scene: Scene, graph: PreviewClient, generator: Any) -> None:
    assert code_of(graph.approve, "0" * 64, "test") == ErrorCode.PLAN_UNKNOWN
    older = graph.preview(swing(graph, 0.1), timeout_s=WAIT_S).plan_hash
    newest = graph.preview(swing(graph, 0.2, duration_s=6.0), timeout_s=WAIT_S).plan_hash
    assert code_of(graph.approve, older, "test") == ErrorCode.PLAN_SUPERSEDED
    token = graph.approve(newest, "test")
    assert code_of(graph.execute, newest, token) == ErrorCode.ARM_UNAVAILABLE

    taken: list[Any] = []
    endpoint = names.ARM_TRAJECTORY
    scene.drivers.node.create_subscription(endpoint.interface(), endpoint.name, taken.append, profile(endpoint))
    graph.wait_for(
        lambda: code_of(graph.execute, newest, "f" * 32) == ErrorCode.APPROVAL_INVALID, WAIT_S, "the arm's controller"
    )
    joint = scene.drivers.robot.joint_names.index("joint1")
    scene.drivers.positions[joint] += 0.1
    time.sleep(0.5)
    assert code_of(graph.execute, newest, token) == ErrorCode.ARM_MOVED
    assert code_of(graph.approve, newest, "test") == ErrorCode.PLAN_START_MISMATCH
    scene.drivers.positions[joint] -= 0.1
    time.sleep(0.5)
    assert not taken

    token = graph.approve(newest, "test")
    graph.execute(newest, token)
    assert code_of(graph.approve, newest, "test") == ErrorCode.ARM_BUSY
    assert code_of(graph.execute, newest, token) == ErrorCode.APPROVAL_USED
    wait_for(lambda: len(taken) == 1, WAIT_S, "the one plan that was let through")


def test_approvals_and_previews_get_old(scene: Scene, graph: PreviewClient, generator: Any) -> None:
    with PreviewClient(HASTY) as hasty:
        endpoint = names.ARM_TRAJECTORY
        scene.drivers.node.create_subscription(endpoint.interface(), "/hasty_arm", lambda _: None, profile(endpoint))
        plan_hash = graph.preview(swing(graph, 0.15), timeout_s=WAIT_S).plan_hash
        token = hasty.approve(plan_hash, "test")
        previewed = time.monotonic()
        time.sleep(1.2)
        assert code_of(hasty.execute, plan_hash, token) == ErrorCode.APPROVAL_EXPIRED
        time.sleep(max(0.0, previewed + 20.2 - time.monotonic()))
        assert code_of(hasty.approve, plan_hash, "test") == ErrorCode.PLAN_STALE


def test_a_calibration_that_nobody_measured_is_refused_where_a_limit_is_set(scene: Scene, graph: PreviewClient) -> None:
    parameters = {"calibration": scene.calibration, "frames": 5, "calibration_refuse_px": 1.0}
    remap = ["-r", f"__ns:=/{STRICT}", "-r", "joint_states:=/joint_states"]
    node = NodeProcess("preview", parameters, remap)
    scene.nodes.append(node)
    node.wait_for_line("ready")
    with PreviewClient(STRICT) as strict:
        assert refused(strict, swing(graph)) == ErrorCode.CALIBRATION_POOR


def test_a_node_that_cannot_start_says_why_and_ends() -> None:
    """These are not sent over ROS: the terminal shows them; exit code 2 says that a restart will not help."""
    cases = {
        ErrorCode.FILE_MISSING: NodeProcess("twin", {"robot": "/nowhere/arm.urdf"}),
        ErrorCode.BACKEND_MISSING: NodeProcess("preview", {"kinematics": "moveit"}),
        ErrorCode.FILE_NOT_WRITABLE: NodeProcess("recorder", {"folder": "/dev/null/bags"}),
        ErrorCode.PARAMETER_INVALID: NodeProcess("gate", {"approval_ttl_s": 1e9}),
    }
    for code, node in cases.items():
        assert node.process.wait(timeout=WAIT_S) == 2, node.text
        node.wait_for_line(f"cannot start: [{code.name}]", 10.0)
