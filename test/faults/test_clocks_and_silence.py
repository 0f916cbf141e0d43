"""Drivers that fall silent, clocks that jump: said within seconds, refused meanwhile, over when they are back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.drivers import Drivers
from support.figures import Figures
from support.health import ERROR, OK, WARN, HealthWatch
from support.motions import WAIT_S, code_of, refused, swing, wait_until_ready
from support.ros_graph import Graph, own_domain, wait_for
from support.sim_graph import NodeProcess, client
from support.slow_generator import SPEC, VARIABLE

from kinema4d_ros.calibration import read_camera, read_pose, save_camera
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.client import PreviewClient
from kinema4d_ros.ros.messages.images import image_from_array
from kinema4d_ros.ros.messages.stamps import header, nanoseconds, time_from_ns
from kinema4d_ros.ros.qos import profile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HOUR_NS = 3600 * 10**9


class Scene:
    """A graph whose arm and camera are this test's own, and what it says."""

    def __init__(self, graph: Graph, drivers: Drivers, made: PreviewClient, seconds: Path) -> None:
        self.drivers, self.client, self._seconds = drivers, made, seconds
        self.health = HealthWatch(graph)
        self.commands: list[Any] = []
        endpoint = names.ARM_TRAJECTORY
        drivers.node.create_subscription(endpoint.interface(), endpoint.name, self.commands.append, profile(endpoint))
        self.shift_ns = 0
        """Added to the arm's stamps."""
        self.silent = False
        drivers.alter = self._alter

    def _alter(self, state: Any) -> Any:
        if self.silent:
            return None
        state.header.stamp = time_from_ns(nanoseconds(state.header.stamp) + self.shift_ns)
        return state

    def work_for(self, seconds: float) -> None:
        """How long a generation takes from now on."""
        self._seconds.write_text(str(seconds))

    def previewed(self) -> Any:
        """The report of a plan from where the arm is."""
        return self.client.preview(swing(self.client), timeout_s=WAIT_S)

    def well(self) -> float:
        """Seconds until twin, preview and gate say that all is well again."""
        began = time.monotonic()
        for node, text in (("twin", "live"), ("preview", "ready for a plan"), ("gate", "closed")):
            self.health.wait(node, OK, text)
        return time.monotonic() - began


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("scene")
    camera = str(folder / "camera.yaml")
    demo = share_path("calibration/demo_lab.yaml")
    # With its residuals: nothing but what the test does shall be worth a warning.
    save_camera(camera, read_camera(demo).scaled(90, 60), read_pose(demo))
    seconds = folder / "seconds"
    seconds.write_text("0")
    options: dict[str, dict[str, Any]] = {
        "twin": {"calibration": camera, "drift_period_s": 0.0},
        "preview": {"calibration": camera, "frames": 5},
        "gate": {"approval_ttl_s": 60.0},
        "generator": {"preset": SPEC},
    }
    with own_domain():
        graph = Graph()
        nodes = {
            name: NodeProcess(
                name,
                parameters,
                environment={VARIABLE: str(seconds)} if name == "generator" else {},
            )
            for name, parameters in options.items()
        }
        try:
            drivers = Drivers(graph, Robot.load("yam"), read_camera(camera))
            for node in nodes.values():
                node.wait_for_line("ready")
            with client() as made:
                made.wait_for(lambda: made.newest(names.JOINT_STATES) is not None, WAIT_S, "the arm")
                wait_until_ready(made)
                yield Scene(graph, drivers, made, seconds)
        finally:
            codes = {name: node.stop() for name, node in nodes.items()}
            graph.close()
    assert set(codes.values()) == {0}, {n: (codes[n], nodes[n].text) for n in codes if codes[n]}
    assert not any("Traceback" in node.text for node in nodes.values()), {n: nodes[n].text for n in nodes}


@pytest.mark.full
def test_joint_states_stop_while_nothing_happens(scene: Scene, figures: Figures) -> None:
    report = scene.previewed()
    scene.silent = True
    seen_s = scene.health.wait("twin", ERROR, "stale")
    scene.health.wait("preview", WARN, "stale")
    scene.health.wait("gate", WARN, "stale")
    assert refused(scene.client, swing(scene.client)) == ErrorCode.JOINT_STATES_STALE
    assert code_of(scene.client.approve, report.plan_hash, "test") == ErrorCode.JOINT_STATES_STALE
    scene.silent = False
    well_s = scene.well()
    scene.previewed()
    fault = "joint states stop"
    figures.note(fault, "diagnostics at ERROR after", round(seen_s, 2), "s")
    figures.note(fault, "plans and approvals refused with", ErrorCode.JOINT_STATES_STALE.name)
    figures.note(fault, "back: all well after", round(well_s, 2), "s")


@pytest.mark.full
def test_joint_states_stop_during_a_preview(scene: Scene) -> None:
    """The prediction is of the arm as it was when the plan came; it can be looked at, and not be approved."""
    scene.work_for(1.5)

    def fall_silent(status: Any) -> None:
        scene.silent = scene.silent or status.detail == "denoise"

    report = scene.client.preview(swing(scene.client), fall_silent, timeout_s=WAIT_S)
    scene.work_for(0.0)
    assert scene.silent
    assert code_of(scene.client.approve, report.plan_hash, "test") == ErrorCode.JOINT_STATES_STALE
    scene.silent = False
    scene.well()
    scene.client.approve(report.plan_hash, "test")


@pytest.mark.parametrize("moved", [False, True])
def test_joint_states_stop_between_approval_and_execution(scene: Scene, moved: bool, figures: Figures) -> None:
    home = scene.drivers.positions.copy()
    report = scene.previewed()
    token = scene.client.approve(report.plan_hash, "test")
    scene.commands.clear()
    scene.silent = True
    scene.health.wait("gate", WARN, "stale")
    assert code_of(scene.client.execute, report.plan_hash, token) == ErrorCode.JOINT_STATES_STALE
    if moved:
        scene.drivers.positions = home + np.eye(len(home))[0] * 0.1
    scene.silent = False
    scene.health.wait("gate", OK)
    try:
        if moved:
            assert code_of(scene.client.execute, report.plan_hash, token) == ErrorCode.ARM_MOVED
            assert not scene.commands
            figures.note("joint states stop after an approval", "arm elsewhere when they are back", "ARM_MOVED")
        else:
            scene.client.execute(report.plan_hash, token)
            wait_for(lambda: len(scene.commands) == 1, WAIT_S, "the plan at the arm's controller")
            time.sleep(report_duration_s(scene))
    finally:
        scene.drivers.positions = home
    figures.note("joint states stop after an approval", "executions refused with", "JOINT_STATES_STALE")


def report_duration_s(scene: Scene) -> float:
    """How long the arm counts as busy with the plan that it was given last."""
    last = scene.commands[-1].points[-1].time_from_start
    return float(last.sec + last.nanosec * 1e-9)


@pytest.mark.full
def test_the_camera_stops(scene: Scene, figures: Figures) -> None:
    scene.drivers.pictures = False
    seen_s = scene.health.wait("preview", WARN, "camera image is")
    scene.health.wait("twin", WARN, "camera image is")
    assert refused(scene.client, swing(scene.client)) == ErrorCode.CAMERA_STALE
    scene.drivers.pictures = True
    well_s = scene.well()
    scene.previewed()
    figures.note("camera stops", "diagnostics at WARN after", round(seen_s, 2), "s")
    figures.note("camera stops", "plans refused with", ErrorCode.CAMERA_STALE.name)
    figures.note("camera stops", "back: all well after", round(well_s, 2), "s")


def _zoom(info: Any) -> None:
    info.k = [v * 1.1 if i in (0, 4) else v for i, v in enumerate(info.k)]
    info.p = [v * 1.1 if i in (0, 5) else v for i, v in enumerate(info.p)]


def _halve(info: Any) -> None:
    info.width, info.height = info.width // 2, info.height // 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "code"), [(_zoom, ErrorCode.CALIBRATION_INVALID), (_halve, ErrorCode.CAMERA_BAD_SIZE)]
)
def test_the_camera_s_description_changes(
    scene: Scene, change: Callable[[Any], None], code: ErrorCode, figures: Figures
) -> None:
    scene.drivers.describe = change
    seen_s = scene.health.wait("preview", ERROR, code.name)
    scene.health.wait("twin", ERROR, code.name)
    assert refused(scene.client, swing(scene.client)) == code
    scene.drivers.describe = lambda info: None
    well_s = scene.well()
    fault = f"camera info changes ({change.__name__.strip('_')})"
    figures.note(fault, "diagnostics at ERROR after", round(seen_s, 2), "s")
    figures.note(fault, "plans refused with", code.name)
    figures.note(fault, "back: all well after", round(well_s, 2), "s")


@pytest.mark.long
@pytest.mark.parametrize("jump_ns", [HOUR_NS, -HOUR_NS, 3 * 10**9, -3 * 10**9])
def test_the_arm_s_clock_jumps(scene: Scene, jump_ns: int, figures: Figures) -> None:
    """An approval given before the jump moves nothing unless the arm is heard of again, at its place and still."""
    report = scene.previewed()
    token = scene.client.approve(report.plan_hash, "test")
    stale: list[float] = []
    began = time.monotonic()
    scene.shift_ns = jump_ns
    if jump_ns == -3 * 10**9:
        # Later than what was heard before the jump only after three seconds: nothing older is believed.
        assert scene.health.wait("twin", ERROR, "stale") < 3.0
        assert code_of(scene.client.execute, report.plan_hash, token) == ErrorCode.JOINT_STATES_STALE
        stale.append(time.monotonic() - began)
    scene.health.wait("twin", OK, "live")
    back_s = time.monotonic() - began
    scene.previewed()
    scene.shift_ns = 0
    scene.well()
    if jump_ns > 10**10:
        scene.health.wait("twin", OK, "live")
    fault = f"arm's stamps jump by {jump_ns // 10**9:+d} s"
    figures.note(fault, "twin live again after", round(back_s, 2), "s")
    figures.note(fault, "meanwhile", "JOINT_STATES_STALE" if stale else "nothing is missed")


@pytest.mark.long
def test_one_stamp_from_the_future_stops_nothing(scene: Scene, figures: Figures) -> None:
    scene.shift_ns = HOUR_NS
    time.sleep(0.025)
    scene.shift_ns = 0
    scene.health.wait("twin", OK, "live")
    scene.previewed()
    figures.note("one joint state from an hour ahead", "twin", "stays live")


@pytest.mark.full
def test_depth_stops(scene: Scene, figures: Figures) -> None:
    """Depth is a help, not a need: previews go on without it, and that is said. The last test of this scene."""
    camera = scene.drivers.camera
    publisher = scene.drivers.publisher(names.CAMERA_DEPTH)
    metres = np.full((camera.height, camera.width), 0.8, np.float32)
    sending = True

    def send() -> None:
        if sending:
            publisher.publish(image_from_array(metres, "32FC1", header(scene.drivers.now(), camera.frame_id)))

    timer = scene.drivers.node.create_timer(0.1, send)
    try:
        wait_for(lambda: "ms" in scene.health.value("preview", "depth image age"), WAIT_S, "depth that is heard of")
        scene.health.wait("preview", OK, "ready for a plan")
        sending = False
        seen_s = scene.health.wait("preview", WARN, "ready for a plan; the depth image is")
        scene.previewed()
        sending = True
        well_s = scene.health.wait("preview", OK, "ready for a plan")
    finally:
        scene.drivers.node.destroy_timer(timer)
    figures.note("depth stops", "diagnostics at WARN after", round(seen_s, 2), "s")
    figures.note("depth stops", "plans", "are previewed from the picture alone")
    figures.note("depth stops", "back: all well after", round(well_s, 2), "s")
