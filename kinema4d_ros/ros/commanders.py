"""Nodes that can move the arm: publishers on its controllers' topics and clients of their actions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rclpy.node import Node, NodeNameNonExistentError

__all__ = ["RECORDERS", "UNNAMED", "Commander", "commanders", "full_name"]

RECORDERS = ("recorder", "rosbag2_recorder")
"""Nodes that subscribe to a controller's topic without moving the arm."""

UNNAMED = "_NODE_NAME_UNKNOWN_"
"""Name that rmw reports for an endpoint's node until its name is discovered."""


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
