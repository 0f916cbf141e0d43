"""Calibration in operation over real DDS: residuals in diagnostics and reports, and a camera that is bumped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from support.motions import WAIT_S, swing, wait_until_ready
from support.ros_graph import ROOT, Graph, wait_for
from support.sim_graph import NodeProcess, running

from kinema4d_ros.calibration import Extrinsics, Residuals, read_camera, save_camera
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.ros import names
from kinema4d_ros.ros.client import PreviewClient
from kinema4d_ros.ros.messages.images import rgb_from_image

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(600)]

CHECKS = 12
"""So many checks in a row must find nothing."""


class Told:
    """The newest diagnostics of a node, and every level it had."""

    def __init__(self, graph: PreviewClient, node: str) -> None:
        self._node, self._lock = node, threading.Lock()
        self.levels: list[Any] = []
        self.message, self.values = "", dict[str, str]()
        graph.listen(names.DIAGNOSTICS, self._hear)

    def _hear(self, message: Any) -> None:
        for status in message.status:
            if status.name == self._node:
                with self._lock:
                    self.levels.append(status.level)
                    self.message = status.message
                    self.values = {pair.key: pair.value for pair in status.values}


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The lab's camera at half its size, with a residual as `kinema4d calibrate` writes it."""
    camera = read_camera(share_path("calibration/demo_lab.yaml")).scaled(480, 320)
    pose = Extrinsics(camera.base_frame, camera.frame_id, camera.base_T_camera, method="hand-eye")
    path = tmp_path_factory.mktemp("camera") / "lab.yaml"
    save_camera(path, camera, replace(pose, residuals=Residuals(px=0.31, mm=0.4, poses=15)))
    return str(path)


@pytest.fixture(scope="module")
def graph(calibration: str) -> Iterator[PreviewClient]:
    scene = {"calibration": calibration}
    options: dict[str, dict[str, Any]] = {
        "lab": {**scene, "joint_rate_hz": 50.0, "image_rate_hz": 4.0},
        "twin": {**scene, "drift_period_s": 0.5},
        "preview": {**scene, "frames": 5, "calibration_warn_px": 0.3},
        "generator": {},
    }
    with running(tuple(options), options), PreviewClient() as made:
        for endpoint in (names.JOINT_STATES, names.CAMERA_IMAGE, names.ROBOT_OVERLAY):
            made.listen(endpoint)
        yield made


def bump(graph: Graph, **values: float) -> None:
    client = graph.node("hand").create_client(SetParameters, "lab/set_parameters")
    assert client.wait_for_service(WAIT_S)
    request = SetParameters.Request(parameters=[Parameter(n, value=v).to_parameter_msg() for n, v in values.items()])
    future = client.call_async(request)
    wait_for(future.done, WAIT_S, "the lab's answer")
    assert all(result.successful for result in future.result().results)


def test_the_residual_is_shown_and_a_poor_one_is_warned_of(graph: PreviewClient) -> None:
    twin, preview = Told(graph, "twin"), Told(graph, "preview")
    graph.wait_for(lambda: twin.values and preview.values, WAIT_S, "diagnostics")
    assert twin.values["calibration"] == "good"
    assert twin.values["calibration residual"] == "0.31 px, 0.40 mm, 15 poses"
    assert preview.values["calibration"] == "poor"
    wait_until_ready(graph)
    answer = graph.preview(swing(graph), timeout_s=WAIT_S)
    graph.wait_for(lambda: graph.newest(names.PLAN_REPORT) is not None, WAIT_S, "a report")
    report = graph.newest(names.PLAN_REPORT)
    assert report.plan_hash == answer.plan_hash
    assert "Calibration: its residual is 0.31 px, 0.40 mm, 15 poses, above 0.3 px." in report.warnings


def test_the_overlay_has_a_legend(graph: PreviewClient) -> None:
    for endpoint in (names.ROBOT_OVERLAY, names.CAMERA_IMAGE):
        graph.wait_for(lambda e=endpoint: graph.newest(e) is not None, WAIT_S, endpoint.name)  # type: ignore[misc]
    overlay = graph.newest(names.ROBOT_OVERLAY)
    picture = rgb_from_image(graph.newest(names.CAMERA_IMAGE)).astype(int)
    strip = rgb_from_image(overlay).astype(int)[-12:, :180]
    assert np.abs(strip - picture[-12:, :180]).mean() > 30
    assert (strip[..., 1] > strip[..., 0] + 60).any(), "the residual is good: it is written in green"


def test_a_bumped_camera_is_noticed_and_an_unmoved_one_is_not(graph: PreviewClient) -> None:
    twin = Told(graph, "twin")

    def checked(count: int) -> bool:
        return int(twin.values.get("camera drift checks", 0)) >= count

    graph.wait_for(lambda: checked(CHECKS), WAIT_S, f"{CHECKS} checks")
    assert twin.values["camera drift"] == "still", twin.values
    assert float(twin.values["camera drift px"]) < 0.5
    assert set(twin.levels) == {DiagnosticStatus.OK}, twin.message

    hands = Graph()
    try:
        bump(hands, bump_mm=5.0)
        graph.wait_for(lambda: twin.values["camera drift"] == "moved", WAIT_S, "a warning")
        assert "the camera was bumped" in twin.message
        assert twin.levels[-1] == DiagnosticStatus.WARN
        # 5 mm sideways, about 1.2 m away with 480 px: 2 px, and 5 mm where the robot is.
        assert float(twin.values["camera drift px"]) == pytest.approx(2.0, abs=0.4)
        assert float(twin.values["camera drift mm"]) == pytest.approx(5.0, abs=0.8)
        bump(hands, bump_mm=5.0, bump_deg=2.0)
        graph.wait_for(lambda: twin.levels[-1] == DiagnosticStatus.ERROR, WAIT_S, "an error")
        bump(hands, bump_mm=0.0, bump_deg=0.5)
        graph.wait_for(lambda: twin.levels[-1] == DiagnosticStatus.WARN, WAIT_S, "half a degree")
        bump(hands, bump_mm=0.0, bump_deg=0.0)
        graph.wait_for(lambda: twin.levels[-1] == DiagnosticStatus.OK, WAIT_S, "the camera back in its place")
        assert twin.values["camera drift"] == "still"
    finally:
        hands.close()


@pytest.mark.parametrize("own", [False, True], ids=["drift_mask classical", "a segmenter of one's own"])
def test_the_mask_of_a_segmenter_shows_the_bump_too(graph: PreviewClient, calibration: str, own: bool) -> None:
    script = ROOT / "test" / "support" / "segmenting_twin.py" if own else None
    parameters = {"calibration": calibration, "drift_period_s": 0.5, **({} if own else {"drift_mask": "classical"})}
    name = "masked_twin" if own else "cut_out_twin"
    node = NodeProcess(name if own else "twin", parameters, ["-r", f"__node:={name}"], script=script)
    hands = Graph()
    try:
        node.wait_for_line("ready")
        twin = Told(graph, name)
        graph.wait_for(lambda: twin.values.get("camera drift") == "still", WAIT_S, "an unmoved camera")
        bump(hands, bump_mm=-5.0)
        graph.wait_for(lambda: twin.values["camera drift"] == "moved", WAIT_S, "a warning")
        assert float(twin.values["camera drift mm"]) == pytest.approx(5.0, abs=1.2)
    finally:
        bump(hands, bump_mm=0.0)
        hands.close()
        assert node.stop() == 0, node.text


def test_sam2_without_weights_is_refused_with_words(calibration: str) -> None:
    node = NodeProcess("twin", {"calibration": calibration, "drift_mask": "sam2"}, ["-r", "__node:=weightless_twin"])
    assert node.process.wait(WAIT_S) != 0
    wait_for(lambda: "drift_weights is empty" in node.text, 10.0, "the reason")
    assert "Traceback" not in node.text
