"""Observe a running graph for a few seconds: messages, endpoints with their QoS, parameters, and who answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import rclpy
from rcl_interfaces.srv import GetParameters
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import NodeNameNonExistentError
from rclpy.parameter import parameter_value_to_python
from rclpy.qos import QoSDurabilityPolicy, QoSProfile, QoSReliabilityPolicy

from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import ActionCaller, Question
from kinema4d_ros.ros.commanders import Commander, commanders
from kinema4d_ros.ros.graph import SIM_ARGUMENTS, sim_graph
from kinema4d_ros.ros.messages.stamps import nanoseconds
from kinema4d_ros.ros.names import Endpoint

__all__ = ["DOCTOR", "OURS", "Snapshot", "Wire", "observe"]

DOCTOR = "kinema4d_doctor"

OURS: tuple[str, ...] = (
    "arm",
    *(
        spec.name
        for spec in sim_graph({a.name: a.default for a in SIM_ARGUMENTS} | {"record": "true", "evaluation": "true"})
    ),
)
"""Names of the nodes of the graph."""

HEARD = (names.JOINT_STATES, names.CAMERA_IMAGE, names.CAMERA_INFO, names.CAMERA_DEPTH, names.TF, names.DIAGNOSTICS)
CLOCK = Endpoint("in", "/clock", "rosgraph_msgs/msg/Clock", "SENSOR_IN", "simulated time")

ASKED: Mapping[str, tuple[str, ...]] = {
    "twin": ("robot", "calibration", "max_age_s", "image_max_age_s"),
    "gate": ("controller", "arm_joints", "gripper_controller", "gripper_joints", "commanders"),
}
"""Parameters that the checks need, by node; every node is asked for `use_sim_time`."""

LOOK_S = 0.05
ASK_AGAIN_S = 1.0
GRACE_S = 2.0
"""Seconds that closing the observer may take."""


@dataclass
class Wire:
    """What arrived on one topic.

    Attributes:
        newest: the newest message, or None.
        count: number of messages.
        first_s, last_s: monotonic arrival times of the first and the newest message.
        longest_gap_s: longest time between two messages.
        ages_ns: system time minus stamp at each arrival, nanoseconds; empty for messages without a header.
        sim_ages_ns: the same with the newest `/clock`, if one had arrived.
        backwards: messages stamped before the message that arrived before them.
        joints: names in the joint states that arrived.
    """

    newest: Any = None
    count: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    longest_gap_s: float = 0.0
    ages_ns: list[int] = field(default_factory=list)
    sim_ages_ns: list[int] = field(default_factory=list)
    backwards: int = 0
    joints: set[str] = field(default_factory=set)

    @property
    def rate_hz(self) -> float:
        """Messages per second; 0 for fewer than two."""
        return (self.count - 1) / (self.last_s - self.first_s) if self.last_s > self.first_s else 0.0


@dataclass(frozen=True)
class Snapshot:
    """A graph as it was observed.

    Attributes:
        seconds: how long.
        delay_s: longest delay of the observer itself: this machine was too busy.
        namespace: namespace of the graph, such as "/" or "/lab1".
        wires: what arrived, by endpoint name.
        frames: parents, stamps and transforms by child frame: newest message of each parent, and whether it is static.
        statuses: newest diagnostic_msgs/DiagnosticStatus by name.
        nodes: (name, namespace) of every node except the observer.
        publishers, subscribers: rclpy's TopicEndpointInfo by endpoint name, without the observer's.
        parameters: values by node; a node that did not answer is missing.
        commanders: nodes that can move the arm.
        servers: full names of services that have a server.
        generator_answers: whether responses of the generator arrive; None: no server was found.
    """

    seconds: float
    delay_s: float
    namespace: str
    wires: Mapping[str, Wire]
    frames: Mapping[str, Mapping[str, tuple[Any, bool]]]
    statuses: Mapping[str, Any]
    nodes: tuple[tuple[str, str], ...]
    publishers: Mapping[str, list[Any]]
    subscribers: Mapping[str, list[Any]]
    parameters: Mapping[str, Mapping[str, Any]]
    commanders: tuple[Commander, ...]
    servers: frozenset[str]
    generator_answers: bool | None

    def ours(self) -> list[str]:
        """Return the names of the graph's own nodes that run, with repetitions."""
        return [name for name, space in self.nodes if name in OURS and space == self.namespace]

    def resolve(self, name: str) -> str:
        """Return the full name of a topic, service or action."""
        return name if name.startswith("/") else f"{self.namespace.rstrip('/')}/{name}"


def observe(seconds: float, namespace: str = "") -> Snapshot:
    """Observe the graph of a namespace for `seconds`; publishes nothing and sends no command."""
    observer = _Observer(f"/{namespace.strip('/')}" if namespace else "/")
    try:
        return observer.run(seconds)
    finally:
        observer.close()


class _Observer:
    """A node in a context of its own, and what it has received."""

    def __init__(self, namespace: str) -> None:
        self._context = Context()
        rclpy.init(context=self._context)
        self._node = node = rclpy.create_node(DOCTOR, namespace=namespace, context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(node)
        self._lock = threading.Lock()
        self._wires = {endpoint.name: Wire() for endpoint in (*HEARD, names.TF_STATIC, CLOCK)}
        self._frames: dict[str, dict[str, tuple[Any, bool]]] = {}
        self._statuses: dict[str, Any] = {}
        self._sim_ns: int | None = None
        for endpoint in (*HEARD, CLOCK):
            self._listen(endpoint, QoSProfile(depth=100, reliability=QoSReliabilityPolicy.BEST_EFFORT))
        self._listen(names.TF_STATIC, QoSProfile(depth=100, durability=QoSDurabilityPolicy.TRANSIENT_LOCAL))
        self._generator = ActionCaller(node, names.GENERATE.interface(), names.GENERATE.name)
        self._thread = threading.Thread(target=self._executor.spin, name="doctor", daemon=True)
        self._thread.start()

    def _listen(self, endpoint: Endpoint, qos: QoSProfile) -> None:
        """Subscribe so that every publisher matches: what is wrong with its QoS is checked apart."""
        self._node.create_subscription(
            endpoint.interface(), endpoint.name, lambda message: self._take(endpoint, message), qos
        )

    def _take(self, endpoint: Endpoint, message: Any) -> None:
        now_s, now_ns = time.monotonic(), time.time_ns()
        with self._lock:
            wire = self._wires[endpoint.name]
            if wire.count:
                wire.longest_gap_s = max(wire.longest_gap_s, now_s - wire.last_s)
            else:
                wire.first_s = now_s
            if endpoint is CLOCK:
                self._sim_ns = nanoseconds(message.clock)
            elif endpoint in (names.TF, names.TF_STATIC):
                for frame in message.transforms:
                    parents = self._frames.setdefault(frame.child_frame_id, {})
                    parents[frame.header.frame_id] = (frame, endpoint is names.TF_STATIC)
            elif endpoint is names.DIAGNOSTICS:
                self._statuses |= {status.name: status for status in message.status}
            else:
                self._take_stamped(wire, message, now_ns)
            wire.newest, wire.count, wire.last_s = message, wire.count + 1, now_s

    def _take_stamped(self, wire: Wire, message: Any, now_ns: int) -> None:
        stamp_ns = nanoseconds(message.header.stamp)
        if wire.newest is not None and stamp_ns < nanoseconds(wire.newest.header.stamp):
            wire.backwards += 1
        wire.ages_ns.append(now_ns - stamp_ns)
        if self._sim_ns is not None:
            wire.sim_ages_ns.append(self._sim_ns - stamp_ns)
        if hasattr(message, "position"):
            wire.joints |= set(message.name)

    def run(self, seconds: float) -> Snapshot:
        """Listen and ask until the time is over, and return what was found."""
        deadline = time.monotonic() + seconds
        asked: dict[str, Question] = {}
        heard: Question | None = None
        looked_s, delay_s = time.monotonic(), 0.0
        while time.monotonic() < deadline:
            for name, space in set(self._node.get_node_names_and_namespaces()):
                if name in OURS and space == self._node.get_namespace() and name not in asked:
                    asked[name] = self._ask(name)
            if heard is None and self._generator.ready():
                heard = self._generator.heard()
            for question in (*asked.values(), *([heard] if heard else [])):
                question.done()  # repeats an unanswered question
            time.sleep(LOOK_S)
            delay_s = max(delay_s, time.monotonic() - looked_s - LOOK_S)
            looked_s = time.monotonic()
        parameters = {name: _values(name, question) for name, question in asked.items() if question.done()}
        return self._snapshot(seconds, delay_s, parameters, None if heard is None else heard.done())

    def _ask(self, name: str) -> Question:
        client = self._node.create_client(GetParameters, f"{name}/get_parameters")
        request = GetParameters.Request(names=["use_sim_time", *ASKED.get(name, ())])
        return Question(lambda: client.call_async(request), ASK_AGAIN_S)

    def _snapshot(
        self,
        seconds: float,
        delay_s: float,
        parameters: Mapping[str, Mapping[str, Any]],
        generator_answers: bool | None,
    ) -> Snapshot:
        node = self._node
        gripper = str(parameters.get("gate", {}).get("gripper_controller") or "")
        followed = [(names.ARM_TRAJECTORY, names.FOLLOW_TRAJECTORY)]
        if gripper:
            followed.append(tuple(names.of_controller(e, gripper) for e in followed[0]))  # type: ignore[arg-type]
        topics = [e for e in (*names.ENDPOINTS, CLOCK, *(topic for topic, _ in followed)) if e.qos]
        every = [e.name for e in topics]
        moving = commanders(node, [t.name for t, _ in followed], [a.name for _, a in followed])
        with self._lock:
            return Snapshot(
                seconds=seconds,
                delay_s=delay_s,
                namespace=node.get_namespace(),
                wires=dict(self._wires),
                frames={child: dict(parents) for child, parents in self._frames.items()},
                statuses=dict(self._statuses),
                nodes=tuple(sorted(found for found in node.get_node_names_and_namespaces() if found[0] != DOCTOR)),
                publishers={name: _foreign(node.get_publishers_info_by_topic(name)) for name in every},
                subscribers={name: _foreign(node.get_subscriptions_info_by_topic(name)) for name in every},
                parameters=parameters,
                commanders=tuple(moving),
                servers=frozenset(self._served()),
                generator_answers=generator_answers,
            )

    def _served(self) -> set[str]:
        """Return the services of other nodes; `get_service_names_and_types` also lists those with clients only."""
        found: set[str] = set()
        for name, space in set(self._node.get_node_names_and_namespaces()):
            if name == DOCTOR:
                continue
            try:
                found |= {service for service, _ in self._node.get_service_names_and_types_by_node(name, space)}
            except NodeNameNonExistentError:  # it has just exited
                continue
        return found

    def close(self) -> None:
        """Stop the thread and leave the graph."""
        self._executor.shutdown(timeout_sec=GRACE_S)
        self._thread.join(timeout=GRACE_S)
        self._node.destroy_node()
        rclpy.shutdown(context=self._context)


def _foreign(infos: list[Any]) -> list[Any]:
    return [info for info in infos if info.node_name != DOCTOR]


def _values(name: str, question: Question) -> dict[str, Any]:
    values = [parameter_value_to_python(value) for value in question.result().values]
    return dict(zip(("use_sim_time", *ASKED.get(name, ())), values, strict=False))
