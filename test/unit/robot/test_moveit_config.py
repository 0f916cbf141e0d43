"""config/moveit/ against urdf/yam.urdf: every name exists, every number agrees."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

import defusedxml.ElementTree
import numpy as np
import pinocchio
import pytest
import yaml

from kinema4d_ros.io.resources import share_path
from kinema4d_ros.robot import Robot

RATED_SPEED = [36.0 * np.pi / 30.0] * 3 + [120.0 * np.pi / 30.0] * 3
PEAK_TORQUE = np.array([27.0] * 3 + [7.0] * 3)
# Rotor inertia times the squared gear ratio, from the motors' data sheets.
ROTOR_INERTIA = np.array([2.0e-5 * 40**2] * 3 + [1.8e-5 * 10**2] * 3)


def config(name: str) -> dict[str, Any]:
    loaded = yaml.safe_load(share_path(f"config/moveit/{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


@pytest.fixture(scope="module")
def srdf() -> Element:
    root: Element = defusedxml.ElementTree.fromstring(share_path("config/moveit/yam.srdf").read_bytes())
    return root


@pytest.fixture(scope="module")
def groups(srdf: Element) -> dict[str, Element]:
    return {group.attrib["name"]: group for group in srdf.findall("group")}


def test_srdf_names_exist(yam: Robot, srdf: Element) -> None:
    assert srdf.get("name") == yam.name
    links, joints = {link.name for link in yam.links}, {joint.name for joint in yam.joints}
    for element in srdf.iter():
        for attribute in ("base_link", "tip_link", "parent_link", "child_link", "link1", "link2"):
            if attribute in element.attrib:
                assert element.attrib[attribute] in links, element.attrib
        if element.tag in ("joint", "passive_joint"):
            assert element.attrib["name"] in joints
        if element.tag == "link":
            assert element.attrib["name"] in links


def test_srdf_groups(yam: Robot, srdf: Element, groups: dict[str, Element]) -> None:
    assert set(groups) == {"arm", "gripper"}
    chain = groups["arm"].find("chain")
    assert chain is not None
    assert (chain.get("base_link"), chain.get("tip_link")) == (yam.base_link, yam.tool_link)
    fingers = [joint.attrib["name"] for joint in groups["gripper"].findall("joint")]
    assert fingers == ["left_finger_joint", "right_finger_joint"]
    assert not groups["gripper"].findall("link"), "a link would pull in the joint above it"
    assert not set(fingers) & set(yam.chain(yam.tool_link))
    effector = srdf.find("end_effector")
    assert effector is not None
    assert effector.get("group") in groups
    assert effector.get("parent_group") in groups
    assert effector.get("parent_link") == yam.tool_link
    passive = {element.get("name") for element in srdf.findall("passive_joint")}
    assert passive == {joint.name for joint in yam.joints if joint.mimic is not None}


def test_srdf_states_are_the_poses(yam: Robot, srdf: Element) -> None:
    states = {
        (state.attrib["group"], state.attrib["name"]): {
            joint.attrib["name"]: float(joint.attrib["value"]) for joint in state.findall("joint")
        }
        for state in srdf.findall("group_state")
    }
    arm = [joint.name for joint in yam.arm]
    for name in yam.poses:
        assert states["arm", name] == {joint: yam.poses[name][joint] for joint in arm}
    assert states["arm", "home"] == {joint: yam.home[joint] for joint in arm}
    assert yam.gripper is not None
    assert states["gripper", "open"] == {yam.gripper.joint: yam.gripper.open}
    assert states["gripper", "closed"] == {yam.gripper.joint: yam.gripper.closed}


def test_another_srdf_reader_understands_it(yam: Robot) -> None:
    model = pinocchio.buildModelFromXML(yam.urdf)
    path = str(share_path("config/moveit/yam.srdf"))
    pinocchio.loadReferenceConfigurations(model, path)
    np.testing.assert_allclose(model.referenceConfigurations["ready"][:6], yam.pose("ready")[:6])
    shapes = pinocchio.buildGeomFromUrdfString(model, yam.urdf, pinocchio.GeometryType.COLLISION)
    shapes.addAllCollisionPairs()
    before = len(shapes.collisionPairs)
    pinocchio.removeCollisionPairs(model, shapes, path)
    assert 0 < len(shapes.collisionPairs) < before


def test_kinematics_and_planning_groups(groups: dict[str, Element], yam: Robot) -> None:
    kinematics = config("kinematics")
    assert set(kinematics) == {"arm"}
    assert kinematics["arm"]["kinematics_solver"] == "kdl_kinematics_plugin/KDLKinematicsPlugin"
    assert 0.0 < kinematics["arm"]["kinematics_solver_timeout"] <= 0.2
    planning = config("ompl_planning")
    for name in groups:
        for planner in (*planning[name]["planner_configs"], planning[name]["default_planner_config"]):
            assert planning["planner_configs"][planner]["type"].startswith("geometric::")
    projection = planning["arm"]["projection_evaluator"]
    assert {*projection.removeprefix("joints(").removesuffix(")").split(",")} <= set(yam.joint_names)


def test_planning_limits_stay_within_the_motors(yam: Robot) -> None:
    limits = config("joint_limits")["joint_limits"]
    assert set(limits) == {joint.name for joint in yam.joints if joint.moves}
    for name, limit in limits.items():
        # ROS parameters are typed: an integer here would be refused by MoveIt.
        assert isinstance(limit["max_velocity"], float)
        assert isinstance(limit["max_acceleration"], float)
        assert limit["has_velocity_limits"]
        assert limit["has_acceleration_limits"]
        assert 0.0 < limit["max_velocity"] <= yam.joint(name).limits.velocity
    for joint, rated in zip(yam.arm, RATED_SPEED, strict=True):
        assert limits[joint.name]["max_velocity"] <= rated


def test_accelerations_leave_half_of_the_torque(yam: Robot) -> None:
    model = pinocchio.buildModelFromXML(yam.urdf)
    data = model.createData()
    rng = np.random.default_rng(11)
    worst = np.full(6, np.inf)
    for _ in range(2000):
        q = rng.uniform(model.lowerPositionLimit, model.upperPositionLimit)
        gravity = np.abs(pinocchio.computeGeneralizedGravity(model, data, q))[:6]
        inertia = np.diag(pinocchio.crba(model, data, q))[:6] + ROTOR_INERTIA
        worst = np.minimum(worst, (PEAK_TORQUE - gravity) / inertia)
    limits = config("joint_limits")["joint_limits"]
    chosen = np.array([limits[joint.name]["max_acceleration"] for joint in yam.arm])
    assert [model.names[i] for i in range(1, 7)] == [joint.name for joint in yam.arm]
    assert np.all(chosen <= 0.5 * worst), worst
