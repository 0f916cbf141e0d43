"""Grip frame and finger geometry of the YAM and of derived grippers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import PointmapError
from kinema4d_ros.core.pointmap import GripTrack, PointmapSequence
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.kinematics.gripping import finger_links, finger_shape, grip_track, tool_T_grip
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Fingers, Robot


@pytest.fixture(scope="module")
def yam() -> Robot:
    return Robot.load("yam")


def motion(robot: Robot) -> np.ndarray:
    q = np.stack([robot.home_position()] * 3)
    q[:, 0] = -0.4, 0.1, 0.5
    assert robot.gripper is not None
    q[:, robot.joint_names.index(robot.gripper.joint)] = robot.gripper.closed, 0.02, robot.gripper.open
    return q


def test_width_and_axes_are_those_of_the_fingers(yam: Robot) -> None:
    q = motion(yam)
    grip = grip_track(yam, q)
    assert grip is not None
    assert grip.width_m == pytest.approx([0.0, 0.04, 0.0939], abs=1e-6)
    names = [link.name for link in yam.links]
    poses = forward_all(yam, q)
    left, right = (poses[:, names.index(n), :3, 3] for n in ("left_finger", "right_finger"))
    # Between open and closed the fingers move along x, and along nothing else, by half the width each.
    for t in range(3):
        q_closed = q[t : t + 1].copy()
        q_closed[0, -1] = 0.0
        closed = forward_all(yam, q_closed)[0]
        for finger, sign in ((left, 1), (right, -1)):
            name = "left_finger" if sign > 0 else "right_finger"
            way = grip.base_T_grip[t, :3, :3].T @ (finger[t] - closed[names.index(name), :3, 3])
            assert way == pytest.approx([sign * grip.width_m[t] / 2, 0.0, 0.0], abs=1e-6)
    # The home pose points straight down.
    assert grip.base_T_grip[:, :3, 2] == pytest.approx(np.tile([0.0, 0.0, -1.0], (3, 1)), abs=0.02)


def test_the_grip_point_lies_between_the_finger_tips(yam: Robot) -> None:
    q = motion(yam)
    grip = grip_track(yam, q)
    assert grip is not None
    names = [link.name for link in yam.links]
    poses = forward_all(yam, q)
    clouds = []
    for name in ("left_finger", "right_finger"):
        link = yam.link(name)
        points = np.concatenate(
            [v.mesh.vertices @ v.link_T_geometry[:3, :3].T + v.link_T_geometry[:3, 3] for v in link.visuals]
        )
        pose = poses[2, names.index(name)]
        in_base = points @ pose[:3, :3].T + pose[:3, 3]
        clouds.append((in_base - grip.base_T_grip[2, :3, 3]) @ grip.base_T_grip[2, :3, :3])
    tips = [cloud[cloud[:, 2] > -0.03, 0] for cloud in clouds]
    assert tips[0].min() > 0.03
    assert tips[1].max() < -0.03
    for cloud in clouds:
        assert abs(cloud[:, 2].max()) < 0.02, "the tips end within 2 cm of the grip point"


def test_the_described_fingers_match_the_shapes(yam: Robot) -> None:
    """The description rounds the sizes of the collision boxes and must not contradict them."""
    assert yam.gripper is not None
    described = finger_shape(yam)
    assert described.source == "description"
    bare = dataclasses.replace(yam, gripper=dataclasses.replace(yam.gripper, fingers=None))
    derived = finger_shape(bare)
    assert derived.source == "collision"
    assert derived.pad_width_m == pytest.approx(described.pad_width_m, abs=1e-4)
    assert derived.tip_m == pytest.approx(described.tip_m, abs=1e-4)
    assert derived.length_m == pytest.approx(described.length_m, abs=0.005)
    assert derived.thickness_m == pytest.approx(described.thickness_m, abs=0.005)
    assert derived.width_m == pytest.approx(described.width_m, abs=0.013)
    assert tool_T_grip(bare) == pytest.approx(tool_T_grip(yam), abs=1e-9)


def test_fingers_without_a_description_are_derived_from_their_boxes(primitive_arm: Robot) -> None:
    fingers = finger_shape(primitive_arm)
    assert fingers.source == "collision"
    # Boxes of 20 x 12 x 70 mm whose tips end 10 mm beyond the tool point; the gripper opens to 80 mm.
    assert fingers.sizes_m == pytest.approx((0.020, 0.020, 0.012, 0.040, 0.010), abs=1e-6)
    grip = grip_track(primitive_arm, primitive_arm.home_position()[None])
    assert grip is not None
    assert grip.fingers == fingers
    assert finger_links(primitive_arm) == ("left_finger", "right_finger")


def test_a_described_grasp_point_and_axis_move_the_grip_frame(primitive_arm: Robot) -> None:
    assert primitive_arm.gripper is not None
    fingers = Fingers(0.02, 0.02, 0.012, 0.04, 0.01, (0.0, 0.0, -0.01), (0.0, -2.0, 0.0), "description")
    turned = dataclasses.replace(primitive_arm, gripper=dataclasses.replace(primitive_arm.gripper, fingers=fingers))
    assert tool_T_grip(turned)[:3, 3] == pytest.approx([0.0, 0.0, -0.01])
    assert tool_T_grip(turned)[:3, 0] == pytest.approx([0.0, -1.0, 0.0])
    assert tool_T_grip(turned)[:3, 2] == pytest.approx([0.0, 0.0, 1.0])


def test_rendering_includes_the_grip(yam: Robot) -> None:
    camera = PinholeCamera.look_at(
        np.array([0.9, -0.5, 0.6]), np.array([0.3, 0.0, 0.1]), width=60, height=40, focal_px=70.0
    )
    q = motion(yam)
    drawn = render_pointmaps(yam, q, camera)
    expected = grip_track(yam, q)
    assert drawn.grip is not None
    assert expected is not None
    assert np.array_equal(drawn.grip.base_T_grip, expected.base_T_grip)
    assert np.array_equal(drawn.grip.at(np.array([2])).width_m, expected.width_m[2:])
    with pytest.raises(PointmapError, match="grip of 2 frames"):
        PointmapSequence(drawn.xyz, drawn.link_ids, camera, grip=expected.at(slice(0, 2)))


def test_a_robot_without_a_gripper_has_no_grip(tmp_path: Path) -> None:
    path = tmp_path / "arm.urdf"
    path.write_text(
        '<robot name="arm"><link name="base"/><link name="tip"/><joint name="j" type="revolute"><parent link="base"/>'
        '<child link="tip"/><axis xyz="0 0 1"/><limit lower="-1" upper="1" effort="1" velocity="1"/></joint></robot>'
    )
    robot = Robot.load(path)
    assert grip_track(robot, np.zeros((2, 1))) is None
    assert isinstance(GripTrack(np.tile(np.eye(4), (1, 1, 1)), np.zeros(1)), GripTrack)


KNUCKLES = """<robot name="knuckles">
  <link name="base"/>
  <link name="knuckle"><collision><origin xyz="0.015 0 0.02"/>
    <geometry><box size="0.03 0.01 0.01"/></geometry></collision></link>
  <link name="tip"><collision><origin xyz="0.004 0 0.02"/>
    <geometry><box size="0.008 0.022 0.04"/></geometry></collision></link>
  <link name="tool"/>
  <joint name="knuckle_joint" type="revolute"><parent link="base"/><child link="knuckle"/><origin xyz="0.01 0 0"/>
    <axis xyz="0 1 0"/><limit lower="0" upper="0.8" effort="1" velocity="1"/></joint>
  <joint name="tip_joint" type="revolute"><parent link="knuckle"/><child link="tip"/><origin xyz="0 0 0.06"/>
    <axis xyz="0 1 0"/><limit lower="-0.8" upper="0.8" effort="1" velocity="1"/>
    <mimic joint="knuckle_joint" multiplier="-1"/></joint>
  <joint name="tool_joint" type="fixed"><parent link="base"/><child link="tool"/><origin xyz="0.01 0 0.09"/></joint>
</robot>"""


def test_a_finger_behind_a_knuckle_is_measured_at_its_tip(tmp_path: Path) -> None:
    """The gripper's joint rotates a knuckle that ends far behind the grasp point; the tip is its child."""
    (tmp_path / "hand.urdf").write_text(KNUCKLES)
    (tmp_path / "hand.robot.yaml").write_text(
        "tool_link: tool\n"
        "gripper: {joint: knuckle_joint, closed: 0.0, open: 0.8, width_closed_m: 0.0, width_open_m: 0.085}\n"
    )
    hand = Robot.load(tmp_path / "hand.urdf")
    fingers = finger_shape(hand)
    assert fingers.source == "collision"
    assert finger_links(hand) == ("knuckle", "tip")
    assert fingers.pad_width_m == pytest.approx(0.022)
    assert fingers.tip_m == pytest.approx(0.01)
    assert fingers.length_m == pytest.approx(0.0425)
    # The tip swings outwards along x and back along z: only x is the opening direction.
    assert tool_T_grip(hand) == pytest.approx(np.eye(4))
