from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.robot import Fingers, Robot, VendorJoint
from kinema4d_ros.robot.robot_file import sidecar_path

ROBOT = """
<robot name="r">
  <link name="base"/><link name="arm"/><link name="flange"/><link name="left"/><link name="right"/><link name="cam"/>
  <joint name="c" type="fixed"><parent link="base"/><child link="cam"/></joint>
  <joint name="j" type="revolute"><parent link="base"/><child link="arm"/>
    <limit lower="-1" upper="1" effort="1" velocity="1"/></joint>
  <joint name="f" type="fixed"><parent link="arm"/><child link="flange"/></joint>
  <joint name="l" type="prismatic"><parent link="flange"/><child link="left"/>
    <limit lower="0" upper="0.1" effort="1" velocity="1"/></joint>
  <joint name="r" type="prismatic"><parent link="flange"/><child link="right"/>
    <limit lower="-1" upper="1" effort="1" velocity="1"/><mimic joint="l" multiplier="-2" offset="0.1"/></joint>
</robot>
"""
FINGERS = ", fingers: {pad_width_m: 0.02, width_m: 0.03, thickness_m: 0.01, tip_m: 0.003, length_m: %s}"
GRIPPER = "{joint: l, closed: 0.0, open: 0.1, width_closed_m: 0.0, width_open_m: 0.2%s}"


@pytest.fixture
def load(write_urdf: Callable[..., Path], tmp_path: Path) -> Callable[[str | None], Robot]:
    def load_with(sidecar: str | None) -> Robot:
        if sidecar is not None:
            (tmp_path / "r.robot.yaml").write_text(sidecar, encoding="utf-8")
        return Robot.load(write_urdf(ROBOT, "r.urdf"))

    return load_with


Load = Callable[[str | None], Robot]


@pytest.mark.parametrize("name", ["yam.urdf", "yam.xacro", "yam.urdf.xacro"])
def test_the_sidecar_is_beside_the_urdf(name: str) -> None:
    assert sidecar_path(Path("/a") / name) == Path("/a/yam.robot.yaml")


@pytest.mark.parametrize("sidecar", [None, "", "{}"])
def test_defaults(load: Load, sidecar: str | None) -> None:
    robot = load(sidecar)
    assert robot.tool_link == "left", "the first of the longest chains of moving joints"
    assert robot.gripper is None
    assert robot.home_position().tolist() == [0, 0]


def test_fingers_are_read(load: Load) -> None:
    more = FINGERS % "0.04, grasp_point_m: [0, 0, 0.1], closing_axis: [0, 3, 0]"
    gripper = load(f"gripper: {GRIPPER % more}").gripper
    assert gripper is not None
    assert gripper.fingers == Fingers(0.02, 0.03, 0.01, 0.04, 0.003, (0, 0, 0.1), (0, 1, 0), "description")
    bare = load(f"gripper: {GRIPPER % ''}").gripper
    assert bare is not None
    assert bare.fingers is None


def test_everything(load: Load) -> None:
    vendor = ", vendor: [{name: a, joint: l, multiplier: -1}, {name: b, joint: r, multiplier: 4, offset: 0.5}]"
    robot = load(
        f"tool_link: flange\nhome: up\nposes: {{up: {{j: 0.5, l: 0.1}}, down: {{j: -1}}}}\ngripper: {GRIPPER % vendor}"
    )
    assert robot.tool_link == "flange"
    assert robot.home_position().tolist() == [0.5, 0.1]
    assert robot.pose("down").tolist() == [-1, 0.1]
    assert robot.gripper is not None
    # r = -2 l + 0.1 and r = 4 b + 0.5 give l = -2 b - 0.2
    assert robot.gripper.vendor == (VendorJoint("a", "l", -1.0, 0.0), VendorJoint("b", "r", -2.0, -0.2))


@pytest.mark.parametrize(
    ("sidecar", "complaint", "code"),
    [
        ("- 1", "the file is list", "FILE_MALFORMED"),
        ("a: [", "is not YAML", "FILE_MALFORMED"),
        ("!!python/object/apply:os.getcwd []", "is not YAML", "FILE_MALFORMED"),
        ("tool: x", "unknown keys tool", "FILE_MALFORMED"),
        ("tool_link: x", "tool_link is 'x'", "UNKNOWN_LINK"),
        ("home: x", "home is 'x'", "FILE_MALFORMED"),
        ("poses: {p: {x: 1}}", "names joint 'x'", "UNKNOWN_JOINT"),
        ("poses: {p: {f: 1}}", "names joint 'f'", "UNKNOWN_JOINT"),
        ("poses: {p: {r: 0}}", "sets the mimic joint 'r'; expected its leader 'l'", "FILE_MALFORMED"),
        ("poses: {p: {j: 1.1}}", "puts 'j' at 1.1", "TRAJECTORY_OUT_OF_LIMITS"),
        ("poses: {p: {j: .nan}}", "poses.p.j is nan", "FILE_MALFORMED"),
        ("poses: {p: {j: yes}}", "poses.p.j is True", "FILE_MALFORMED"),
        ("poses: {p: 3}", "poses.p is int", "FILE_MALFORMED"),
        ("gripper: {joint: l}", "gripper lacks closed, open", "FILE_MALFORMED"),
        ("gripper: " + GRIPPER.replace("joint: l", "joint: r") % "", "'r' is a mimic joint", "FILE_MALFORMED"),
        ("gripper: " + GRIPPER.replace("open: 0.1", "open: 0.3") % "", "puts 'l' at 0.3", "TRAJECTORY_OUT_OF_LIMITS"),
        ("gripper: " + GRIPPER.replace("m: 0.2", "m: 0.0") % "", "0.0 m to 0.0 m wide", "URDF_MALFORMED"),
        ("gripper: " + GRIPPER % ", fingers: 3", "gripper.fingers is int", "FILE_MALFORMED"),
        ("gripper: " + GRIPPER % ", fingers: {width_m: 0.04}", "lacks pad_width_m, thickness_m", "FILE_MALFORMED"),
        ("gripper: " + GRIPPER % (FINGERS % "0.04, depth: 1"), "unknown keys depth", "FILE_MALFORMED"),
        ("gripper: " + GRIPPER % (FINGERS % "0"), "length_m is 0.0", "FILE_MALFORMED"),
        ("gripper: " + GRIPPER % (FINGERS % ".nan"), "length_m is nan", "FILE_MALFORMED"),
        ("gripper: " + GRIPPER % (FINGERS % "45"), "fingers of", "FILE_MALFORMED"),
        ("gripper: " + GRIPPER % (FINGERS % "0.04, closing_axis: [0, 0, 0]"), "close along", "FILE_MALFORMED"),
        ("gripper: " + GRIPPER % (FINGERS % "0.04, grasp_point_m: [0, 0]"), r"is \[0, 0\]", "FILE_MALFORMED"),
        (
            "gripper: " + GRIPPER % (FINGERS % "0.04").replace("m: 0.02,", "m: 0.09,", 1),
            "pads of 0.09",
            "FILE_MALFORMED",
        ),
        ("gripper: " + GRIPPER % ", vendor: 3", "gripper.vendor is not a list", "FILE_MALFORMED"),
        ("gripper: " + GRIPPER % ", vendor: [{name: a}]", "incomplete", "FILE_MALFORMED"),
        ("gripper: " + GRIPPER % ", vendor: [{name: a, joint: j, multiplier: 1}]", "names 'j'", "FILE_MALFORMED"),
        ("gripper: " + GRIPPER % ", vendor: [{name: a, joint: l, multiplier: 0}]", "multiplier is 0", "FILE_MALFORMED"),
    ],
)
def test_bad_sidecars(load: Load, sidecar: str, complaint: str, code: str) -> None:
    with pytest.raises(KinemaError, match=complaint) as caught:
        load(sidecar)
    assert caught.value.code is ErrorCode[code]
    assert caught.value.expected
