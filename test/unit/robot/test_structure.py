from __future__ import annotations

import pytest
from defusedxml.ElementTree import fromstring

from kinema4d_ros.core.errors import ErrorCode, RobotError
from kinema4d_ros.robot.urdf import prune_urdf


def test_extensions_are_removed_and_the_robot_stays() -> None:
    root = fromstring(
        """<robot name="r" xmlns:d="urn:drake"><link name="a" kind="x"><visual><geometry><box size="1 1 1"/></geometry>
        <verbose value="1"/></visual><self_collision_checking/><d:proximity/></link>
        <material name="m"/><gazebo/><transmission name="t"/><ros2_control name="c"/><sensor name="s"/></robot>"""
    )
    prune_urdf(root, "r.urdf")
    assert [child.tag for child in root] == ["link"]
    assert root[0].attrib == {"name": "a"}
    assert [child.tag for child in root[0]] == ["visual"]
    assert [child.tag for child in root[0][0]] == ["geometry"]


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        ("<robot><links name='a'/></robot>", "links", "link"),
        ("<robot><joint name='j'><orgin xyz='0 0 1'/></joint></robot>", "orgin", "origin"),
        ("<robot><joint name='j'><origin xzy='0 0 1'/></joint></robot>", "xzy", "xyz"),
        ("<robot><joint name='j'><mimick joint='x'/></joint></robot>", "mimick", "mimic"),
        ("<robot><link name='a'><visuals/></link></robot>", "visuals", "visual"),
        ("<robot><joint name='j'><limit lowr='0'/></joint></robot>", "lowr", "lower"),
    ],
)
def test_misspelt_parts_are_refused_with_the_right_spelling(text: str, wrong: str, right: str) -> None:
    with pytest.raises(RobotError, match=f"'{wrong}' in .* is not a part of URDF; expected '{right}'") as caught:
        prune_urdf(fromstring(text), "r.urdf")
    assert caught.value.code is ErrorCode.URDF_MALFORMED


def test_repeated_parts_are_refused() -> None:
    text = "<robot><joint name='j'><origin xyz='0 0 1'/><origin xyz='0 0 2'/></joint></robot>"
    with pytest.raises(RobotError, match="<joint name='j'> has <origin> twice"):
        prune_urdf(fromstring(text), "r.urdf")


def test_unknown_shapes_are_unsupported() -> None:
    text = "<robot><link name='a'><visual><geometry><capsule radius='1'/></geometry></visual></link></robot>"
    with pytest.raises(RobotError, match="<capsule>") as caught:
        prune_urdf(fromstring(text), "r.urdf")
    assert caught.value.code is ErrorCode.URDF_UNSUPPORTED


def test_other_documents_are_refused() -> None:
    with pytest.raises(RobotError, match="root element <mujoco>"):
        prune_urdf(fromstring("<mujoco/>"), "x.xml")
