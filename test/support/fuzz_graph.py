"""A complete graph for fuzzing: real nodes in processes, drivers next to the fuzzer, and a monitor."""

from __future__ import annotations

import http.client
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.drivers import Drivers
from support.fuzz_seeds import Seeds
from support.motions import WAIT_S
from support.proc import family, resident_mb
from support.ros_graph import Graph, wait_for
from support.sim_graph import NodeProcess, small_camera

from kinema4d_msgs.msg import PreviewStatus
from kinema4d_msgs.srv import Playback, ResetLab
from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.client import PreviewClient
from kinema4d_ros.ros.names import Endpoint
from kinema4d_ros.ros.qos import profile

__all__ = ["LAB", "FuzzGraph"]

LAB = "lab"
"""Namespace of a second lab whose arm any node may move; the first arm is moved only by the gate."""

UNFORESEEN = ("a callback failed", "internal error", "Traceback (most recent", "terminate called", "Fatal Python")
"""Log texts of unexpected errors; a node must not print them, even if it survives."""

HEALS_S = 60.0
"""Seconds within which a graph must work again after the last invalid message; documented times are far below."""


class FuzzGraph:
    """Nodes, drivers and a client, with a record of their messages.

    Args:
        folder: for files written by the nodes.
        robot: the robot.
        which: nodes to start; must include a preview with its generator, a playback and a gate.
    """

    def __init__(self, folder: Path, robot: Robot, which: Sequence[str]) -> None:
        calibration = small_camera(folder, 90, 60)
        self.graph = Graph(threads=1)
        self.drivers = Drivers(self.graph, robot, read_camera(calibration))
        self.node = self.graph.node("fuzzer")
        self.folder = folder
        scene = {"calibration": calibration}
        quiet = {"joint_rate_hz": 20.0, "image_rate_hz": 0.2}
        evaluation = {**scene, "folder": folder / "evaluations", "width": 64, "frames": 3}
        parameters: dict[str, dict[str, Any]] = {
            "lab": {**scene, **quiet},
            "twin": {**scene, "rate_hz": 20.0, "drift_period_s": 2.0},
            "preview": {**scene, "frames": 3},
            "generator": {},
            "playback": {},
            "gate": {},
            "viewer": {**scene, "port": 0, "lab": True, "max_points": 2000},
            "rviz_marker": {},
            "recorder": {"folder": folder / "bags"},
            "evaluation": evaluation,
        }
        self.nodes = {
            name: NodeProcess(name, options, ["-r", f"__ns:=/{LAB}"] if name == "lab" else ())
            for name, options in parameters.items()
            if name in which
        }
        self.seeds = Seeds(robot, read_camera(calibration))
        self.moved: list[Any] = []
        """Trajectories that reached the arm."""
        self.codes: Counter[tuple[str, str]] = Counter()
        """Responses of preview, services and actions: endpoint, and name of the error code."""
        self.findings: list[str] = []
        self.healed_s: dict[str, float] = {}
        """After each batch: seconds from sending a valid plan (with retries if refused) to its approval."""
        self._health: dict[str, tuple[float, Any]] = {}
        self._outputs: dict[str, Any] = {}
        self._read = dict.fromkeys(self.nodes, 0)
        self._base_mb: dict[str, float] = {}
        self._watch()
        for node in self.nodes.values():
            node.wait_for_line("ready")
        if "viewer" in self.nodes:
            self.nodes["viewer"].wait_for_line("the page is at")
        self.pids = {name: node.process.pid for name, node in self.nodes.items()}
        self.client = PreviewClient()
        wait_for(lambda: self.healthy("preview").startswith("ready for a plan"), WAIT_S, "a preview that is ready")
        wait_for(lambda: self.value("generator", "worker starts") == "1", WAIT_S, "the generator's worker")

    def _watch(self) -> None:
        self._listen(names.ARM_TRAJECTORY, self.moved.append)
        self._listen(names.DIAGNOSTICS, self._hear_health)
        self._listen(names.PREVIEW_STATUS, self._hear_status)
        # Subscribe, otherwise the twin renders nothing and the playback decodes nothing.
        for endpoint in (names.ROBOT_POINTS, names.ROBOT_OVERLAY, names.PREDICTED_IMAGE, names.PREDICTED_POINTS):
            self._listen(endpoint, lambda _: None)

    def _listen(self, endpoint: Endpoint, callback: Callable[[Any], None]) -> None:
        self.node.create_subscription(endpoint.interface(), endpoint.name, callback, profile(endpoint))

    def output(self, endpoint: Endpoint, space: str = "") -> Any:
        """Return a publisher, created once: destroying one under a spinning executor is a race in rclpy."""
        topic = f"{space}{endpoint.name}"
        if topic not in self._outputs:
            self._outputs[topic] = self.node.create_publisher(endpoint.interface(), topic, profile(endpoint))
        return self._outputs[topic]

    def _hear_health(self, message: Any) -> None:
        for status in message.status:
            name = status.name.rpartition("/")[2]
            if status.hardware_id == "kinema4d" and name in self.nodes:
                self._health[name] = (time.monotonic(), status)

    def _hear_status(self, status: Any) -> None:
        if status.phase == PreviewStatus.FAILED:
            self.answered("preview", status.error)

    # Messages of the nodes.

    def healthy(self, name: str) -> str:
        """Return the newest health message of a node."""
        return str(self._health[name][1].message) if name in self._health else ""

    def value(self, name: str, key: str) -> str:
        """Return a value of a node's newest health message, "" if there is none."""
        if name not in self._health:
            return ""
        return next((str(entry.value) for entry in self._health[name][1].values if entry.key == key), "")

    def answered(self, where: str, error: Any) -> None:
        """Record a response; a refusal must have a known code and a message."""
        if error.code == ErrorCode.NONE:
            self.codes[where, "NONE"] += 1
            return
        known = {int(code) for code in ErrorCode}
        self.codes[where, ErrorCode(error.code).name if error.code in known else str(error.code)] += 1
        if not error.message or error.code == ErrorCode.UNKNOWN or error.code not in known:
            self.findings.append(f"{where} answered {error.code}: {error.message[:400]!r}")

    def subscribers(self, endpoint: Endpoint) -> set[str]:
        """Return the names of our nodes that subscribe to a topic, in either namespace."""
        topics = {self.node.resolve_topic_name(endpoint.name)}
        topics |= set() if endpoint.name.startswith("/") else {f"/{LAB}/{endpoint.name}"}
        return {
            info.node_name
            for topic in topics
            for info in self.node.get_subscriptions_info_by_topic(topic)
            if info.node_name in self.nodes
        }

    # Conditions after every batch.

    def check(self, batch: str) -> dict[str, float]:
        """Check that nodes are alive, healthy, functional and free of unexpected errors; return memory growth in MB."""
        began = time.monotonic()
        for name, node in self.nodes.items():
            code = node.process.poll()
            assert code is None, f"after {batch}: {name} ended with {code}:\n{node.text[-3000:]}"
            assert node.process.pid == self.pids[name]
        wait_for(
            lambda: all(name in self._health and self._health[name][0] > began for name in self.nodes),
            HEALS_S,
            f"after {batch}: diagnostics of every node",
        )
        assert self.value("generator", "worker starts") == "1", f"after {batch}: the generator's worker was lost"
        assert self.healthy("recorder") == ("recording" if "recorder" in self.nodes else "")
        self._works(batch)
        findings, self.findings = [*self.findings, *self._surprises()], []
        assert not findings, f"after {batch}:\n" + "\n".join(findings[:10])
        assert not self.moved, f"after {batch}: the arm was told to move"
        return self.growth_mb()

    def growth_mb(self) -> dict[str, float]:
        """Return the memory growth of each node with its children since the first call, MB."""
        now = {name: sum(map(resident_mb, family(pid))) for name, pid in self.pids.items()}
        self._base_mb = self._base_mb or now
        return {name: now[name] - self._base_mb[name] for name in now}

    def _surprises(self) -> list[str]:
        found = []
        for name, node in self.nodes.items():
            lines, self._read[name] = node.lines[self._read[name] :], len(node.lines)
            for index, line in enumerate(lines):
                if any(word in line for word in UNFORESEEN):
                    found.append(f"{name}: " + "\n".join(text[:300] for text in lines[index : index + 40]))
        return found

    def _works(self, batch: str) -> None:
        """Check that a valid plan is previewed, approved and played, and that page, lab and evaluation respond."""
        began = time.monotonic()
        report = self.preview(batch)
        self.renew_token(report.plan_hash, batch)
        self.healed_s[batch] = time.monotonic() - began
        wait_for(lambda: self._played() == report.rollout_id, HEALS_S, f"after {batch}: the rollout played")
        if "viewer" in self.nodes:
            url = re.search(r"the page is at (http://\S+)", self.nodes["viewer"].text)
            assert url is not None
            host, _, port = url[1].removeprefix("http://").rstrip("/").partition(":")
            page = http.client.HTTPConnection(host, int(port), timeout=HEALS_S)
            page.request("GET", "/")
            assert page.getresponse().status == 200
            page.close()
        if "lab" in self.nodes:
            answer = self.call(names.LAB_RESET, ResetLab.Request(scenario="canonical", seed=1), LAB)
            assert answer.error.code == ErrorCode.NONE, f"after {batch}: {answer.error.message}"

    def preview(self, batch: str) -> Any:
        """Return the report of the valid plan once it is previewed."""
        refusals: list[str] = []
        deadline = time.monotonic() + HEALS_S
        while time.monotonic() < deadline:
            try:
                # Retry within the timeout: DDS loses messages sent before discovery is complete.
                return self.client.preview(self.seeds.plan, timeout_s=HEALS_S / 4)
            except KinemaError as error:
                refusals.append(str(error))
                time.sleep(0.2)
        raise AssertionError(f"after {batch}: a good plan is refused for {HEALS_S:g} s: {refusals[-1]}")

    def renew_token(self, plan_hash: str | None = None, batch: str = "a preview") -> None:
        """Approve the last previewed plan, so that the execution seeds contain a valid token."""
        wanted = plan_hash or self.seeds.plan_hash
        wait_for(lambda: self._approved(wanted), HEALS_S, f"after {batch}: an approval")

    def _approved(self, plan_hash: str) -> bool:
        try:
            self.seeds.token = self.client.approve(plan_hash, "test")
        except KinemaError:
            time.sleep(0.2)
            return False
        return True

    def _played(self) -> str:
        return str(self.call(names.PLAYBACK, Playback.Request(command=Playback.Request.STATUS)).rollout_id)

    def call(self, endpoint: Endpoint, request: Any, namespace: str = "") -> Any:
        """Call a service and wait for the response."""
        name = f"/{namespace}/{endpoint.name}" if namespace else endpoint.name
        client = self.node.create_client(endpoint.interface(), name)
        try:
            wait_for(client.service_is_ready, WAIT_S, name)
            future = client.call_async(request)
            wait_for(future.done, HEALS_S, f"an answer of {name}")
            return future.result()
        finally:
            self.node.destroy_client(client)

    def close(self) -> None:
        """Stop everything; no node may have crashed."""
        self.client.close()
        codes = {name: node.stop() for name, node in self.nodes.items()}
        self.graph.close()
        assert set(codes.values()) == {0}, {name: self.nodes[name].text[-2000:] for name in codes if codes[name]}
