"""Joints put in order: one root, no loops, parents first, every mimic joint tied to its real leader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kinema4d_ros.core.errors import RobotError
from kinema4d_ros.robot.model import Joint, Link, Mimic

__all__ = ["order_tree", "resolve_mimics"]


def order_tree(links: Sequence[Link], joints: Sequence[Joint]) -> tuple[tuple[Link, ...], tuple[Joint, ...]]:
    """Links and joints depth first in the file's order, so that `joints[i]` leads to `links[i + 1]`."""
    if not links:
        raise RobotError("the URDF has no links", expected="at least one <link>")
    _refuse_duplicates("link", [link.name for link in links])
    _refuse_duplicates("joint", [joint.name for joint in joints])
    by_name = {link.name: link for link in links}
    for joint in joints:
        for role, name in (("parent", joint.parent), ("child", joint.child)):
            if name not in by_name:
                raise RobotError(
                    f"joint '{joint.name}' has the unknown {role} link '{name}'",
                    expected=f"one of {', '.join(by_name)}",
                )
    parent_joint: dict[str, Joint] = {}
    for joint in joints:
        if joint.child in parent_joint:
            raise RobotError(
                f"link '{joint.child}' is the child of joints '{parent_joint[joint.child].name}' and '{joint.name}'",
                expected="a tree: every link has one parent",
            )
        parent_joint[joint.child] = joint
    roots = [name for name in by_name if name not in parent_joint]
    if len(roots) != 1:
        raise RobotError(
            f"the URDF has {len(roots)} root links{': ' if roots else ''}{', '.join(roots)}",
            expected="exactly one link that is no joint's child",
            hint="join the parts with a fixed joint" if roots else "the joints form a loop",
        )
    children: dict[str, list[Joint]] = {name: [] for name in by_name}
    for joint in joints:
        children[joint.parent].append(joint)
    ordered_links = [by_name[roots[0]]]
    ordered_joints: list[Joint] = []
    stack = children[roots[0]][::-1]
    while stack:
        joint = stack.pop()
        ordered_joints.append(joint)
        ordered_links.append(by_name[joint.child])
        stack.extend(children[joint.child][::-1])
    if len(ordered_links) != len(links):
        lost = sorted(set(by_name) - {link.name for link in ordered_links})
        raise RobotError(f"links {', '.join(lost)} form a loop", expected="a tree that starts at one root")
    return tuple(ordered_links), tuple(ordered_joints)


def resolve_mimics(joints: Sequence[Joint]) -> tuple[Joint, ...]:
    """Every mimic joint tied directly to an actuated leader; chains are multiplied out."""
    by_name = {joint.name: joint for joint in joints}
    return tuple(
        replace(joint, mimic=_leader(joint, by_name)) if joint.mimic is not None else joint for joint in joints
    )


def _leader(joint: Joint, by_name: dict[str, Joint]) -> Mimic | None:
    if not joint.moves or joint.mimic is None:
        return None
    name, multiplier, offset = joint.mimic.joint, joint.mimic.multiplier, joint.mimic.offset
    seen = [joint.name]
    while True:
        if name not in by_name:
            raise RobotError(
                f"joint '{seen[-1]}' mimics the unknown joint '{name}'",
                expected=f"one of {', '.join(by_name)}",
            )
        if name in seen:
            raise RobotError(
                f"joints {' -> '.join([*seen, name])} mimic each other in a loop",
                expected="a joint that moves by itself at the end of the chain",
            )
        leader = by_name[name]
        if not leader.moves:
            raise RobotError(f"joint '{seen[-1]}' mimics the fixed joint '{name}'", expected="a moving joint")
        if leader.mimic is None:
            return Mimic(joint=name, multiplier=multiplier, offset=offset)
        seen.append(name)
        # x = m * y + o and y = m2 * z + o2 give x = (m * m2) * z + (m * o2 + o).
        offset += multiplier * leader.mimic.offset
        multiplier *= leader.mimic.multiplier
        name = leader.mimic.joint


def _refuse_duplicates(kind: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise RobotError(f"{names.count(name)} {kind}s are called '{name}'", expected="unique names")
