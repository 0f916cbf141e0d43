from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError, RobotError
from kinema4d_ros.core.transforms import from_rpy
from kinema4d_ros.robot import Robot
from kinema4d_ros.robot.urdf import available_robots, load_robot

Write = Callable[[str], Path]


def test_a_small_robot(write_urdf: Write, two_links: str) -> None:
    path = write_urdf(two_links)
    robot = load_robot(path)
    joint = robot.joint("j")
    assert robot.name == "two"
    assert robot.joint_names == ("j",)
    assert robot.tool_link == "b"
    assert robot.gripper is None
    assert robot.urdf == two_links
    assert robot.path == path
    np.testing.assert_array_equal(joint.axis, [0, 0, 1])
    np.testing.assert_allclose(joint.parent_T_joint, from_rpy([0.1, 0.2, 0.3], [0.1, 0.2, 0.3]))
    limits = joint.limits
    assert (limits.lower, limits.upper, limits.velocity, limits.effort) == (-1, 2, 4, 3)


def test_continuous_and_default_axis(write_urdf: Write, two_links: str) -> None:
    text = two_links.replace("revolute", "continuous").replace('<axis xyz="0 0 2"/>', "")
    limits = load_robot(write_urdf(text)).joint("j").limits
    assert (limits.lower, limits.upper, limits.velocity) == (-np.inf, np.inf, 4)
    bare = text.replace('<limit lower="-1" upper="2" effort="3" velocity="4"/>', "")
    joint = load_robot(write_urdf(bare)).joint("j")
    assert joint.limits.velocity == np.inf
    np.testing.assert_array_equal(joint.axis, [1, 0, 0])


def test_inertia_is_turned_into_the_link_frame(write_urdf: Write, two_links: str) -> None:
    inertial = """<link name="a"><inertial><origin xyz="1 2 3" rpy="0 0 1.5707963267948966"/><mass value="2"/>
    <inertia ixx="1" ixy="0" ixz="0" iyy="2" iyz="0" izz="3"/></inertial></link>"""
    body = load_robot(write_urdf(two_links.replace('<link name="a"/>', inertial))).link("a").inertial
    assert body is not None
    assert body.mass == 2
    np.testing.assert_allclose(body.center, [1, 2, 3])
    np.testing.assert_allclose(body.inertia, np.diag([2, 1, 3]), atol=1e-12)


@pytest.mark.parametrize(
    ("old", "new", "complaint", "code"),
    [
        ("</robot>", "", "well-formed", "URDF_MALFORMED"),
        ("<robot", "<!DOCTYPE r [<!ENTITY x 'y'>]><robot", "DTD", "URDF_UNSAFE"),
        ('name="two"', "", "Required attribute not set in XML: name", "URDF_MALFORMED"),
        ("0.1 0.2 0.3", "nan 0 0", "joint 'j' origin xyz is .nan", "URDF_MALFORMED"),
        ('rpy="0.1 0.2 0.3"', 'rpy="0 inf 0"', "joint 'j' origin rpy is", "URDF_MALFORMED"),
        ('xyz="0.1 0.2 0.3"', 'xyz="0.1 0.2"', "Invalid vector length", "URDF_MALFORMED"),
        ('xyz="0.1 0.2 0.3"', 'xyz="0,1,2"', "Invalid vector length", "URDF_MALFORMED"),
        ("0 0 2", "0 0 0", "axis .0.0, 0.0, 0.0.; expected a direction", "URDF_MALFORMED"),
        ("0 0 2", "0 nan 2", "joint 'j' axis is", "URDF_MALFORMED"),
        ("revolute", "floating", "type 'floating'", "URDF_UNSUPPORTED"),
        ("revolute", "planar", "type 'planar'", "URDF_UNSUPPORTED"),
        ("revolute", "hinge", "Invalid joint type: hinge|type 'hinge'", None),
        ('<limit lower="-1" upper="2" effort="3" velocity="4"/>', "", "no <limit>", "URDF_MALFORMED"),
        ('lower="-1"', 'lower="5"', r"limits \[5.0, 2.0\]", "URDF_MALFORMED"),
        ('upper="2"', 'upper="inf"', "joint 'j' limit is", "URDF_MALFORMED"),
        ('velocity="4"', "", "Required attribute not set in XML: velocity", "URDF_MALFORMED"),
        ('velocity="4"', 'velocity="-4"', "velocity -4.0", "URDF_MALFORMED"),
        ('<parent link="a"/>', "", "Required element not set in XML: parent", "URDF_MALFORMED"),
        ('<parent link="a"/>', '<parent link="c"/>', "unknown parent link 'c'", "URDF_MALFORMED"),
        ('<link name="a"/>', '<link name="b"/>', "2 links are called 'b'", "URDF_MALFORMED"),
        ("</joint>", '<mimic joint="k"/></joint>', "unknown joint 'k'", "URDF_MALFORMED"),
        ("</joint>", '<mimic joint="j" multiplier="nan"/></joint>', "joint 'j' mimic is", "URDF_MALFORMED"),
        ("</joint>", '<mimic joint="j"/></joint>', "in a loop", "URDF_MALFORMED"),
        ('<link name="a"/>', '<link name="a"><inertial><mass value="-1"/></inertial></link>', "mass -1", None),
    ],
)
def test_bad_urdfs(write_urdf: Write, two_links: str, old: str, new: str, complaint: str, code: str | None) -> None:
    assert old in two_links
    with pytest.raises(RobotError, match=complaint) as caught:
        load_robot(write_urdf(two_links.replace(old, new, 1)))
    if code is not None:
        assert caught.value.code.name == code
    assert caught.value.expected


def test_nothing_is_printed_for_extensions(
    write_urdf: Write, two_links: str, capfd: pytest.CaptureFixture[str]
) -> None:
    extended = two_links.replace("</robot>", "<gazebo><plugin/></gazebo><transmission/></robot>")
    load_robot(write_urdf(extended.replace('<link name="a"/>', '<link name="a"><selfCollide/></link>')))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("no_such_robot", ErrorCode.FILE_MISSING),
        ("no/such/robot.urdf", ErrorCode.FILE_MISSING),
        ("robot.sdf", ErrorCode.FILE_UNSUPPORTED),
        (Path("folder"), ErrorCode.FILE_UNSUPPORTED),
        ("../../etc/passwd", ErrorCode.FILE_UNSUPPORTED),
    ],
)
def test_invalid_sources(source: str | Path, code: ErrorCode) -> None:
    with pytest.raises(KinemaError) as caught:
        load_robot(source)
    assert caught.value.code is code


def test_an_unknown_name_lists_the_known_ones() -> None:
    assert {"yam", "primitive_arm"} <= set(available_robots())
    with pytest.raises(RobotError, match="primitive_arm, yam"):
        Robot.load("yamm")


def test_other_encodings(write_urdf: Write, two_links: str, tmp_path: Path) -> None:
    path = tmp_path / "latin.urdf"
    text = "<?xml version='1.0' encoding='latin-1'?>" + two_links.strip().replace('name="two"', 'name="zwölf"')
    path.write_bytes(text.encode("latin-1"))
    assert load_robot(path).name == "zwölf"


def test_xacro(write_urdf: Callable[..., Path], two_links: str) -> None:
    text = two_links.replace("<robot", '<robot xmlns:xacro="http://www.ros.org/wiki/xacro"', 1)
    text = text.replace('upper="2"', 'upper="${1 + 0.5}"')
    robot = load_robot(write_urdf(text, "two.urdf.xacro"))
    assert robot.joint("j").limits.upper == 1.5
    assert "${" not in robot.urdf


def test_the_primitive_arm(primitive_arm: Robot) -> None:
    kinds = {g.kind for link in primitive_arm.links for g in link.visuals}
    assert kinds == {"box", "cylinder", "sphere"}
    assert primitive_arm.joint("wrist_roll").kind == "continuous"
    assert len(primitive_arm.arm) == 6
    assert primitive_arm.base_link == "base_link"
    assert primitive_arm.tool_link == "tool"
    assert primitive_arm.gripper is not None
    np.testing.assert_array_equal(primitive_arm.joint("elbow").axis, [0, 1, 0])
    named = primitive_arm.link("right_finger").visuals[0]
    inline = primitive_arm.link("left_finger").visuals[0]
    assert named.material == "orange"
    assert named.rgba == inline.rgba == (0.9, 0.45, 0.1, 1.0)


def test_a_directory_called_like_a_robot_is_missing(tmp_path: Path) -> None:
    (tmp_path / "x.urdf").mkdir()
    with pytest.raises(FileFormatError) as caught:
        load_robot(tmp_path / "x.urdf")
    assert caught.value.code is ErrorCode.FILE_MISSING
