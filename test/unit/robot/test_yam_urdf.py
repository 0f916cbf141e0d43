"""urdf/yam.urdf against the vendor's own files, and its collision shapes against the meshes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import mujoco
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial import ConvexHull

from kinema4d_ros.core.transforms import apply, invert, rotation_angle
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.robot import Geometry, Robot

VENDOR_LINKS = {"left_finger": "tip_left", "right_finger": "tip_right"}
LINKS = ("base", "link1", "link2", "link3", "link4", "link5", "gripper", "left_finger", "right_finger")


def vendor_folder() -> Path:
    spec = importlib.util.find_spec("i2rt")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "robot_models"


@pytest.fixture(scope="module")
def vendor() -> Robot:
    return Robot.load(vendor_folder() / "arm/yam/v1/yam.urdf")


@pytest.fixture(scope="module")
def q(yam: Robot) -> NDArray[np.float64]:
    random = np.random.default_rng(7).uniform(yam.lower, yam.upper, (500, 7))
    return np.concatenate([yam.lower[None], yam.upper[None], np.zeros((1, 7)), random])


def vendor_positions(yam: Robot, vendor: Robot, q: NDArray[np.float64]) -> NDArray[np.float64]:
    assert yam.gripper is not None
    fingers = yam.gripper.to_vendor(q[:, 6])
    return vendor.positions([*yam.joint_names[:6], *fingers], np.column_stack([q[:, :6], *fingers.values()]))


def test_link_poses_match_the_vendors(yam: Robot, vendor: Robot, q: NDArray[np.float64]) -> None:
    ours = forward_all(yam, q)
    theirs = forward_all(vendor, vendor_positions(yam, vendor, q))
    index = {link.name: i for i, link in enumerate(vendor.links)}
    for i, link in enumerate(yam.links):
        if link.name in LINKS:
            other = theirs[:, index[VENDOR_LINKS.get(link.name, link.name)]]
            np.testing.assert_allclose(ours[:, i], other, atol=1e-9, err_msg=link.name)


def test_every_mesh_is_placed_as_the_vendors(yam: Robot, vendor: Robot) -> None:
    for name in LINKS:
        (ours,) = yam.link(name).visuals
        (theirs,) = vendor.link(VENDOR_LINKS.get(name, name)).visuals
        assert ours.path is not None
        assert ours.path.samefile(theirs.path or "")
        np.testing.assert_array_equal(ours.link_T_geometry, theirs.link_T_geometry)
        assert ours.mesh.closed
        assert ours.uri.startswith("package://i2rt/")


def test_masses_and_inertias_are_the_vendors(yam: Robot, vendor: Robot) -> None:
    for name in LINKS:
        ours, theirs = yam.link(name).inertial, vendor.link(VENDOR_LINKS.get(name, name)).inertial
        assert ours is not None
        assert theirs is not None
        assert ours.mass == theirs.mass
        np.testing.assert_array_equal(ours.center, theirs.center)
        np.testing.assert_array_equal(ours.inertia, theirs.inertia)
        assert np.all(np.linalg.eigvalsh(ours.inertia) > 0)
    assert yam.link("base_link").inertial is None


def test_limits_are_the_vendors_and_the_motors(yam: Robot, vendor: Robot) -> None:
    for name in yam.joint_names[:6]:
        ours, theirs = yam.joint(name).limits, vendor.joint(name).limits
        assert (ours.lower, ours.upper) == pytest.approx((theirs.lower, theirs.upper), abs=1e-12)
    motors = [(27.0, 52.5 * np.pi / 30.0)] * 3 + [(7.0, 200.0 * np.pi / 30.0)] * 3
    for joint, (peak_torque, no_load_speed) in zip(yam.arm, motors, strict=True):
        assert joint.limits.effort == peak_torque
        assert 0.99 * no_load_speed < joint.limits.velocity <= no_load_speed
    for name in ("left_finger_joint", "right_finger_joint"):
        assert (yam.joint(name).limits.lower, yam.joint(name).limits.upper) == (0.0, 0.04695)


def test_one_width_opens_both_fingers(yam: Robot) -> None:
    closed, opened = forward_all(yam, np.array([[0.0] * 7, [0.0] * 6 + [0.04695]]))
    index = {link.name: i for i, link in enumerate(yam.links)}
    moved = {
        name: (invert(closed[index["gripper"]]) @ (opened[index[name]] - closed[index[name]]))[:3, 3]
        for name in ("left_finger", "right_finger")
    }
    # The gripper's +x is right: left goes to -x, right to +x, 93.9 mm in all.
    np.testing.assert_allclose(moved["left_finger"], [-0.04695, 0, 0], atol=1e-12)
    np.testing.assert_allclose(moved["right_finger"], [0.04695, 0, 0], atol=1e-12)


def test_the_tool_is_between_the_finger_tips(yam: Robot) -> None:
    poses = forward_all(yam, np.zeros((1, 7)))[0]
    index = {link.name: i for i, link in enumerate(yam.links)}
    gripper_T_tool = invert(poses[index["gripper"]]) @ poses[index["tool"]]
    np.testing.assert_allclose(gripper_T_tool[:3, :3], np.eye(3), atol=1e-15)
    np.testing.assert_allclose(gripper_T_tool[:3, 3], [0, 0, 0.1446], atol=1e-15)
    tips = []
    for name in ("left_finger", "right_finger"):
        (visual,) = yam.link(name).visuals
        tool_T_mesh = invert(poses[index["tool"]]) @ poses[index[name]] @ visual.link_T_geometry
        p_tool = apply(tool_T_mesh, visual.mesh.vertices)
        tips.append(p_tool[p_tool[:, 2] > p_tool[:, 2].max() - 1e-3])
    assert max(abs(tip[:, 2].max()) for tip in tips) < 3e-3, "the fingers end at the tool"
    middle = np.mean([(tip.min(axis=0) + tip.max(axis=0)) / 2 for tip in tips], axis=0)
    assert np.abs(middle[:2]).max() < 1e-3, "the tool lies in the middle"


def test_the_tool_is_the_vendors_grasp_site(yam: Robot) -> None:
    model = mujoco.MjModel.from_xml_path(str(vendor_folder() / "gripper/linear_4310/linear_4310.xml"))
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    tool = yam.joint("tool_joint").parent_T_joint[:3, 3]
    assert np.linalg.norm(data.site("grasp_site").xpos - tool) < 2e-4


def test_the_arm_agrees_with_mujoco_on_the_vendors_mjcf(yam: Robot, q: NDArray[np.float64]) -> None:
    model = mujoco.MjModel.from_xml_path(str(vendor_folder() / "arm/yam/v1/yam.xml"))
    data = mujoco.MjData(model)
    ours = forward_all(yam, q)
    order = [model.joint(name).qposadr[0] for name in yam.joint_names[:6]]
    for t, configuration in enumerate(q):
        data.qpos[order] = configuration[:6]
        mujoco.mj_kinematics(model, data)
        for i, link in enumerate(yam.links):
            if link.name not in LINKS[:7]:
                continue
            body = data.body(link.name)
            assert np.abs(body.xpos - ours[t, i, :3, 3]).max() < 1e-5, link.name
            assert rotation_angle(make_pose(body.xmat), ours[t, i]) < 2e-5, link.name


def make_pose(xmat: NDArray[np.float64]) -> NDArray[np.float64]:
    pose = np.eye(4)
    pose[:3, :3] = xmat.reshape(3, 3)
    return pose


# Collision shapes -----------------------------------------------------------------------------


def distance_outside(shape: Geometry, p_link: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (N,) metres from points to a box or cylinder, 0 inside."""
    p = apply(invert(shape.link_T_geometry), p_link)
    if shape.kind == "box":
        beyond = np.abs(p) - np.array(shape.size) / 2.0
    else:
        radius, length = shape.size
        beyond = np.stack([np.hypot(p[:, 0], p[:, 1]) - radius, np.abs(p[:, 2]) - length / 2.0], axis=1)
    distance: NDArray[np.float64] = np.linalg.norm(np.maximum(beyond, 0.0), axis=1)
    return distance


def surface_points(shape: Geometry, count: int, seed: int) -> NDArray[np.float64]:
    """Return (count, 3) points uniform on the triangles, link frame."""
    rng = np.random.default_rng(seed)
    corners = shape.mesh.vertices[shape.mesh.faces]
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
    chosen = corners[rng.choice(len(corners), count, p=area / area.sum())]
    r, s = np.sqrt(rng.random(count)), rng.random(count)
    weights = np.stack([1 - r, r * (1 - s), r * s], axis=1)
    return apply(shape.link_T_geometry, np.einsum("nk,nkd->nd", weights, chosen))


@pytest.mark.parametrize("name", LINKS)
def test_collision_shapes_hold_the_mesh(yam: Robot, name: str) -> None:
    link = yam.link(name)
    (visual,) = link.visuals
    assert {g.kind for g in link.collisions} <= {"box", "cylinder"}
    vertices = apply(visual.link_T_geometry, visual.mesh.vertices)
    for points in (vertices, surface_points(visual, 5000, seed=3)):
        outside = np.min([distance_outside(shape, points) for shape in link.collisions], axis=0)
        assert np.mean(outside > 1e-3) < 0.005
        assert outside.max() < 2.2e-3


@pytest.mark.parametrize("name", LINKS)
def test_collision_shapes_are_not_bloated(yam: Robot, name: str) -> None:
    link = yam.link(name)
    (visual,) = link.visuals
    vertices = apply(visual.link_T_geometry, visual.mesh.vertices)
    hull = ConvexHull(vertices)
    corners = np.concatenate([apply(g.link_T_geometry, g.mesh.vertices) for g in link.collisions])
    beyond = (corners @ hull.equations[:, :3].T + hull.equations[:, 3]).max()
    assert beyond < 9e-3, "no corner sticks out of the mesh's convex hull by 9 mm"
    low, high = corners.min(axis=0), corners.max(axis=0)
    points = np.random.default_rng(5).uniform(low, high, (20_000, 3))
    inside = np.min([distance_outside(shape, points) for shape in link.collisions], axis=0) == 0.0
    union = inside.mean() * np.prod(high - low)
    assert union < 1.04 * hull.volume, "all shapes together take no more room than the convex hull"
