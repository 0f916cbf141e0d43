"""Nodes that can move the arm: publishers on its controllers' topics, clients of their actions, and MoveIt.

A move_group drives controllers through action clients that it may create only when it executes. So one that serves
`execute_trajectory` is asked for its parameter `allow_trajectory_execution`, which MoveIt's stock launch files set to
true. Until it says false it counts as a commander.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rcl_interfaces.msg import ParameterType
from rcl_interfaces.srv import GetParameters
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.node import Node, NodeNameNonExistentError

__all__ = [
    "EXECUTE_TRAJECTORY",
    "EXECUTION_ALLOWED",
    "RECORDERS",
    "UNNAMED",
    "Commander",
    "Commanders",
    "commanders",
    "full_name",
]

RECORDERS = ("recorder", "rosbag2_recorder")
"""Nodes that subscribe to a controller's topic without moving the arm."""

UNNAMED = "_NODE_NAME_UNKNOWN_"
"""Name that rmw reports for an endpoint's node until its name is discovered."""

EXECUTE_TRAJECTORY = "execute_trajectory"
"""MoveIt's action that executes a trajectory on the controllers that it knows."""

EXECUTION_ALLOWED = "allow_trajectory_execution"
"""Parameter of move_group, true by default; read when it starts."""

FRESH_S = 5.0
"""An answer of a move_group counts for this long; another one may take its name."""

AGAIN_S = 2.0
"""Seconds until an unanswered question is asked again."""


@dataclass(frozen=True, order=True)
class Commander:
    """A node that can move the arm, and by what.

    Attributes:
        node: full name; for a node without a name yet, a description in words.
        via: full name of the topic or action.
        action: whether `via` is an action.
    """

    node: str
    via: str
    action: bool

    def __str__(self) -> str:
        """Describe it for an error message."""
        return f"node {self.node} {'uses' if self.action else 'publishes on'} {self.via}"


def commanders(node: Node, topics: Iterable[str], actions: Iterable[str]) -> list[Commander]:
    """Return every node, `node` included, that publishes on one of `topics` or is a client of one of `actions`."""
    found = set()
    for topic in topics:
        for info in node.get_publishers_info_by_topic(topic):
            who = full_name(info.node_namespace, info.node_name)
            if info.node_name == UNNAMED:
                who = "without a name yet (it is starting, or was just killed)"
            found.add(Commander(who, _resolve(node, topic), False))
    asked = {f"{action}/_action/send_goal": action for action in (_resolve(node, name) for name in actions)}
    for name, namespace in set(node.get_node_names_and_namespaces()):
        try:
            services: Any = dict(node.get_client_names_and_types_by_node(name, namespace))
        except NodeNameNonExistentError:
            continue  # it has just exited
        found |= {Commander(full_name(namespace, name), action, True) for s, action in asked.items() if s in services}
    return sorted(found)


def full_name(namespace: str, name: str) -> str:
    """Return a node's full name."""
    return f"{namespace.rstrip('/')}/{name}"


def _resolve(node: Node, name: str) -> str:
    return str(node.resolve_topic_name(name))


@dataclass(eq=False)
class _MoveGroup:
    """A node that serves `execute_trajectory`, and what it says about itself."""

    client: Any
    asked_s: float = 0.0
    future: Any = None
    executes: bool = True
    answered_s: float = float("-inf")


class Commanders:
    """Observer of the graph on behalf of the gate.

    Args:
        node: the gate.
        controllers: name of the topic and of the action of each controller of the arm.
        allowed: full names of other nodes that may command the arm.
    """

    def __init__(self, node: Node, controllers: Sequence[tuple[str, str]], allowed: Sequence[str] = ()) -> None:
        self._node = node
        self._controllers = [(node.resolve_topic_name(topic), node.resolve_topic_name(a)) for topic, a in controllers]
        # A controller is a node of the same name: arm_controller/joint_trajectory belongs to arm_controller.
        self._allowed = {*allowed, *(topic.rpartition("/")[0] for topic, _ in self._controllers)}
        self._execute = str(node.resolve_service_name(EXECUTE_TRAJECTORY))
        self._move_groups: dict[str, _MoveGroup] = {}
        self._group = MutuallyExclusiveCallbackGroup()

    def others(self) -> list[str]:
        """Describe other nodes that could move the arm."""
        node, topics, actions = self._node, *zip(*self._controllers, strict=True)
        mine = self._allowed | {full_name(node.get_namespace(), node.get_name())}
        found = [str(one) for one in commanders(node, topics, actions) if one.node not in mine]
        for who, name, namespace in self._strangers():
            if self._serves_execution(name, namespace):
                asked = self._move_groups.get(who)
                if asked is None or time.monotonic() - asked.answered_s > FRESH_S:
                    found.append(f"node {who} serves {self._execute} and has not said that {EXECUTION_ALLOWED} is off")
                elif asked.executes:
                    found.append(f"node {who} serves {self._execute}, and its {EXECUTION_ALLOWED} is not off")
        return sorted(found)

    def twins(self) -> bool:
        """Return whether another node has the gate's name: a second gate, or one that was just killed."""
        me = (self._node.get_name(), self._node.get_namespace())
        return bool(self._node.get_node_names_and_namespaces().count(me) > 1)

    def look(self) -> None:
        """Ask every move_group whether it may execute; called once a second."""
        serving = {who for who, name, namespace in self._strangers() if self._serves_execution(name, namespace)}
        for who in set(self._move_groups) - serving:
            self._node.destroy_client(self._move_groups.pop(who).client)
        for who in serving:
            if who not in self._move_groups:
                client = self._node.create_client(GetParameters, f"{who}/get_parameters", callback_group=self._group)
                self._move_groups[who] = _MoveGroup(client)
            self._ask(self._move_groups[who])

    def _ask(self, asked: _MoveGroup) -> None:
        now_s = time.monotonic()
        future = asked.future
        if future is not None and future.done():
            asked.future = None
            values = getattr(future.result(), "values", None) if future.exception() is None else None
            if values is not None:
                value = values[0] if len(values) == 1 else None
                is_off = value is not None and value.type == ParameterType.PARAMETER_BOOL and not value.bool_value
                asked.executes, asked.answered_s = not is_off, now_s
        elif future is not None and now_s - asked.asked_s > AGAIN_S:
            asked.client.remove_pending_request(future)
            asked.future = None
        if asked.future is None and asked.client.service_is_ready():
            asked.future = asked.client.call_async(GetParameters.Request(names=[EXECUTION_ALLOWED]))
            asked.asked_s = now_s

    def _strangers(self) -> Iterator[tuple[str, str, str]]:
        """Yield full name, name and namespace of every node that is neither the gate nor allowed."""
        me = full_name(self._node.get_namespace(), self._node.get_name())
        for name, namespace in set(self._node.get_node_names_and_namespaces()):
            who = full_name(namespace, name)
            if who not in self._allowed | {me}:
                yield who, name, namespace

    def _serves_execution(self, name: str, namespace: str) -> bool:
        try:
            services = dict(self._node.get_service_names_and_types_by_node(name, namespace))
        except NodeNameNonExistentError:
            return False  # it has just exited
        return f"{self._execute}/_action/send_goal" in services
