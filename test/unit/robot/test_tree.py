from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.core.errors import RobotError
from kinema4d_ros.robot.model import Joint, JointLimits, Link, Mimic
from kinema4d_ros.robot.urdf import order_tree, resolve_mimics


def joint(name: str, parent: str = "a", child: str = "b", kind: str = "revolute", mimic: Mimic | None = None) -> Joint:
    return Joint(name, kind, parent, child, np.eye(4), np.array([0, 0, 1.0]), JointLimits(-1, 1, 1, 1), mimic)  # type: ignore[arg-type]


def links(names: str) -> list[Link]:
    return [Link(name) for name in names]


def test_depth_first_in_the_files_order() -> None:
    joints = [joint("ef", "e", "f"), joint("ac", "a", "c"), joint("ab", "a", "b"), joint("ce", "c", "e")]
    ordered_links, ordered_joints = order_tree(links("fecab"), joints)
    assert "".join(link.name for link in ordered_links) == "acefb"
    assert [j.child for j in ordered_joints] == [link.name for link in ordered_links[1:]]


@pytest.mark.parametrize(
    ("names", "joints", "complaint"),
    [
        ("", [], "no links"),
        ("aa", [], "2 links are called 'a'"),
        ("abc", [joint("j"), joint("j", "b", "c")], "2 joints are called 'j'"),
        ("ab", [joint("j", "x", "b")], "unknown parent link 'x'"),
        ("ab", [joint("j", "a", "y")], "unknown child link 'y'"),
        ("abc", [joint("j"), joint("k", "c", "b")], "child of joints 'j' and 'k'"),
        ("abc", [joint("j")], "2 root links: a, c"),
        ("ab", [joint("j"), joint("k", "b", "a")], "0 root links.*form a loop"),
        ("abc", [joint("j", "b", "c"), joint("k", "c", "b")], "links b, c form a loop"),
    ],
)
def test_invalid_trees(names: str, joints: list[Joint], complaint: str) -> None:
    with pytest.raises(RobotError, match=complaint):
        order_tree(links(names), joints)


def test_mimic_chains_lead_to_the_actuated_joint() -> None:
    joints = resolve_mimics(
        [
            joint("third", mimic=Mimic("second", 2.0, 0.5)),
            joint("first"),
            joint("second", mimic=Mimic("first", -3.0, 0.25)),
            joint("welded", kind="fixed", mimic=Mimic("first")),
        ]
    )
    # third = 2 * (-3 * first + 0.25) + 0.5
    assert [j.mimic for j in joints] == [Mimic("first", -6.0, 1.0), None, Mimic("first", -3.0, 0.25), None]


@pytest.mark.parametrize(
    ("joints", "complaint"),
    [
        ([joint("a", mimic=Mimic("none"))], "mimics the unknown joint 'none'"),
        ([joint("a", mimic=Mimic("a"))], "a -> a mimic each other"),
        ([joint("a", mimic=Mimic("b")), joint("b", mimic=Mimic("a"))], "a -> b -> a"),
        ([joint("x", mimic=Mimic("a")), joint("a", mimic=Mimic("b")), joint("b", mimic=Mimic("a"))], "in a loop"),
        ([joint("a", mimic=Mimic("f")), joint("f", kind="fixed")], "fixed joint 'f'"),
    ],
)
def test_mimics_without_a_leader(joints: list[Joint], complaint: str) -> None:
    with pytest.raises(RobotError, match=complaint):
        resolve_mimics(joints)
