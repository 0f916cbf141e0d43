"""Topics, services and actions of a node: as declared at run time, and as allowed by a SROS2 policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from defusedxml import ElementTree

Right = tuple[str, str]
"""(publish, subscribe, reply, request, execute or call; full name of a topic, service or action)."""

_GROUPS = {"topics": ("topic", ("publish", "subscribe")), "services": ("service", ("reply", "request")),
           "actions": ("action", ("execute", "call"))}  # fmt: skip


def used(observer: Any, node: str, namespace: str = "/") -> set[Right]:
    """Return the endpoints that a node declares in the graph; the parts of an action count as the action."""
    from rclpy.action import get_action_client_names_and_types_by_node, get_action_server_names_and_types_by_node

    looks = {
        "publish": observer.get_publisher_names_and_types_by_node,
        "subscribe": observer.get_subscriber_names_and_types_by_node,
        "reply": observer.get_service_names_and_types_by_node,
        "request": observer.get_client_names_and_types_by_node,
        "execute": lambda name, ns: get_action_server_names_and_types_by_node(observer, name, ns),
        "call": lambda name, ns: get_action_client_names_and_types_by_node(observer, name, ns),
    }
    return {
        (what, name) for what, look in looks.items() for name, _ in look(node, namespace) if "/_action/" not in name
    }


def allowed(policy: Path) -> dict[str, set[Right]]:
    """Return rights by enclave; raise an error for anything that is not in policy format 0.2.0."""
    root = ElementTree.parse(policy).getroot()
    assert (root.tag, root.attrib) == ("policy", {"version": "0.2.0"})
    (enclaves,) = root
    assert enclaves.tag == "enclaves"
    found: dict[str, set[Right]] = {}
    for enclave in enclaves:
        assert (enclave.tag, list(enclave.attrib)) == ("enclave", ["path"])
        assert enclave.attrib["path"] not in found
        (profiles,) = enclave
        (profile,) = profiles
        assert (profiles.tag, profile.tag, sorted(profile.attrib)) == ("profiles", "profile", ["node", "ns"])
        found[enclave.attrib["path"]] = {right for group in profile for right in _rights(group, profile.attrib)}
    return found


def _rights(group: Any, profile: dict[str, str]) -> list[Right]:
    tag, verbs = _GROUPS[group.tag]
    assert group.attrib, "a group without a right"
    assert set(group.attrib) <= set(verbs)
    assert set(group.attrib.values()) == {"ALLOW"}, "what is not allowed is denied anyway"
    namespace = profile["ns"].rstrip("/")
    rights = []
    for one in group:
        assert one.tag == tag
        assert one.text
        assert not one.attrib
        name = one.text.strip()
        if name.startswith("~"):
            name = f"{namespace}/{profile['node']}{name[1:]}"
        rights += [(verb, name if name.startswith("/") else f"{namespace}/{name}") for verb in group.attrib]
    assert len(set(rights)) == len(rights), "named twice"
    return rights
