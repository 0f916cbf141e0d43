from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlparse

import numpy as np
import pytest
from defusedxml.ElementTree import fromstring

from kinema4d_ros.core.errors import RobotError
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.robot import Robot, robot_description
from kinema4d_ros.robot.description import description_sha256


def uris(text: str) -> list[str]:
    return [mesh.attrib["filename"] for mesh in fromstring(text).iter("mesh")]


def test_every_uri_opens_and_the_robot_is_the_same(yam: Robot, tmp_path: Path) -> None:
    text = robot_description(yam)
    assert len(uris(text)) == 9
    for uri in uris(text):
        parts = urlparse(uri)
        assert (parts.scheme, parts.netloc) == ("file", "")
        assert Path(unquote(parts.path)).stat().st_size > 1000
    path = tmp_path / "copy.urdf"
    path.write_text(text, encoding="utf-8")
    again = Robot.load(path)
    assert again.joint_names == yam.joint_names
    for ours, theirs in zip(yam.links, again.links, strict=True):
        assert ours.name == theirs.name
        assert [g.mesh is h.mesh for g, h in zip(ours.visuals, theirs.visuals, strict=True)] == [True] * len(
            ours.visuals
        )
    q = yam.home_position()[None]
    np.testing.assert_array_equal(forward_all(yam, q), forward_all(again, q))


def test_package_uris_can_stay(yam: Robot) -> None:
    assert all(uri.startswith("package://i2rt/") for uri in uris(robot_description(yam, "package")))


def test_relative_uris_become_absolute_in_both(tmp_path: Path, cube_stl: bytes) -> None:
    (tmp_path / "my cube.stl").write_bytes(cube_stl)
    path = tmp_path / "r.xacro"
    path.write_text(
        """<robot name="r" xmlns:xacro="http://www.ros.org/wiki/xacro"><link name="a${1}"><visual><geometry>
        <mesh filename="my cube.stl"/></geometry></visual></link></robot>"""
    )
    robot = Robot.load(path)
    for kind in ("file", "package"):
        text = robot_description(robot, kind)  # type: ignore[arg-type]
        assert uris(text) == [(tmp_path / "my cube.stl").as_uri()]
        assert 'name="a1"' in text


def test_robots_without_a_file_have_no_description(yam: Robot) -> None:
    with pytest.raises(RobotError, match="not loaded from a file"):
        robot_description(replace(yam, path=None))
    with pytest.raises(RobotError, match="uri is 'http'"):
        robot_description(yam, "http")  # type: ignore[arg-type]


def test_the_hash_names_the_robot_and_not_its_folder(yam: Robot, tmp_path: Path) -> None:
    """The same URDF elsewhere has the same hash; what changes the motion or a contact changes it."""
    known = description_sha256(yam)
    assert len(known) == 64
    assert description_sha256(Robot.load("yam")) == known
    text = '<robot name="r"><link name="a"><collision><geometry><box size="1 1 {z}"/></geometry></collision></link>'
    text += '<link name="b"/><joint name="j" type="revolute"><parent link="a"/><child link="b"/>'
    text += '<axis xyz="{axis}"/><limit lower="0" upper="1" effort="1" velocity="1"/></joint></robot>'
    found = []
    for folder, z, axis in (
        ("one", "1", "0 0 1"),
        ("two", "1", "0 0 1"),
        ("three", "1", "0 1 0"),
        ("four", "2", "0 0 1"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "r.urdf").write_text(text.format(z=z, axis=axis))
        found.append(description_sha256(Robot.load(tmp_path / folder / "r.urdf")))
    assert found[0] == found[1]
    assert len({known, *found}) == 4
    assert yam.gripper is not None
    wider = replace(yam, gripper=replace(yam.gripper, width_open_m=yam.gripper.width_open_m + 0.01))
    assert description_sha256(wider) != known
