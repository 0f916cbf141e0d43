"""Forward kinematics against pinocchio and MuJoCo, which use their own parsers."""

from __future__ import annotations

from pathlib import Path

import i2rt
import mujoco
import numpy as np
import pinocchio as pin
import pytest

from kinema4d_ros.core.errors import ErrorCode, TrajectoryError
from kinema4d_ros.kinematics import forward_all
from kinema4d_ros.robot import Robot

VENDOR_MJCF = Path(i2rt.__file__).parent / "robot_models" / "arm" / "yam" / "v1" / "yam.xml"


def random_positions(robot: Robot, count: int, seed: int = 0) -> np.ndarray:
    low, high = np.maximum(robot.lower, -np.pi), np.minimum(robot.upper, np.pi)
    return np.random.default_rng(seed).uniform(low, high, (count, low.size))


def pinocchio_poses(robot: Robot, q: np.ndarray) -> np.ndarray:
    """Return (T, L, 4, 4) from pinocchio's own URDF parser; mimic joints are set as independent joints."""
    model = pin.buildModelFromXML(robot.urdf)
    data = model.createData()
    out = []
    for row in q:
        values = dict(zip(robot.joint_names, row, strict=True))
        for joint in robot.joints:
            if joint.mimic is not None:
                values[joint.name] = joint.mimic.multiplier * values[joint.mimic.joint] + joint.mimic.offset
        configuration = pin.neutral(model)
        for name, value in values.items():
            joint = model.joints[model.getJointId(name)]
            # pinocchio stores joints without limits as a point on the unit circle.
            configuration[joint.idx_q : joint.idx_q + joint.nq] = (
                value if joint.nq == 1 else (np.cos(value), np.sin(value))
            )
        pin.framesForwardKinematics(model, data, configuration)
        out.append([data.oMf[model.getFrameId(link.name, pin.FrameType.BODY)].homogeneous for link in robot.links])
    return np.array(out)


@pytest.mark.parametrize("name", ["yam", "primitive_arm"])
def test_agrees_with_pinocchio_to_1e_12(name: str, request: pytest.FixtureRequest) -> None:
    robot: Robot = request.getfixturevalue(name)
    q = random_positions(robot, 200)
    assert np.max(np.abs(forward_all(robot, q) - pinocchio_poses(robot, q))) < 1e-12


def test_agrees_with_mujoco_on_the_vendors_model(yam: Robot) -> None:
    model = mujoco.MjModel.from_xml_path(str(VENDOR_MJCF))
    data = mujoco.MjData(model)
    q = random_positions(yam, 200, seed=1)
    poses = forward_all(yam, q)
    names = [link.name for link in yam.links]
    bodies = ["link1", "link2", "link3", "link4", "link5", "gripper"]
    for row, links in zip(q, poses, strict=True):
        for name, value in zip(yam.joint_names[:6], row, strict=False):
            data.qpos[model.joint(name).qposadr[0]] = value
        mujoco.mj_kinematics(model, data)
        for body in bodies:
            distance = np.linalg.norm(data.body(body).xpos - links[names.index(body), :3, 3])
            assert distance < 1e-5, body


def test_every_pose_is_rigid_and_the_base_is_the_identity(primitive_arm: Robot) -> None:
    poses = forward_all(primitive_arm, random_positions(primitive_arm, 50, seed=2))
    R = poses[..., :3, :3]
    np.testing.assert_allclose(np.swapaxes(R, -1, -2) @ R, np.broadcast_to(np.eye(3), R.shape), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(R), 1.0, atol=1e-12)
    np.testing.assert_array_equal(poses[..., 3, :], np.broadcast_to([0.0, 0, 0, 1], (*poses.shape[:2], 4)))
    np.testing.assert_array_equal(poses[:, 0], np.broadcast_to(np.eye(4), (50, 4, 4)))


def test_a_batch_equals_its_rows(yam: Robot) -> None:
    q = random_positions(yam, 10)
    np.testing.assert_array_equal(forward_all(yam, q), np.concatenate([forward_all(yam, row[None]) for row in q]))


def test_both_fingers_move_by_the_same_amount(yam: Robot) -> None:
    closed, opened = yam.home_position(), yam.home_position()
    closed[-1], opened[-1] = 0.0, 0.04
    poses = forward_all(yam, np.stack([closed, opened]))
    moved = np.linalg.norm(poses[1, :, :3, 3] - poses[0, :, :3, 3], axis=1)
    names = [link.name for link in yam.links]
    still = [i for i, name in enumerate(names) if "finger" not in name]
    np.testing.assert_allclose(moved[still], 0.0, atol=1e-12)
    assert np.sort(moved)[-2:] == pytest.approx([0.04, 0.04])


def test_no_configurations_give_no_poses(yam: Robot) -> None:
    assert forward_all(yam, np.empty((0, 7))).shape == (0, len(yam.links), 4, 4)


@pytest.mark.parametrize("shape", [(7,), (2, 6), (1, 2, 7)])
def test_wrong_shapes_are_refused(yam: Robot, shape: tuple[int, ...]) -> None:
    with pytest.raises(TrajectoryError, match="joint1, joint2") as caught:
        forward_all(yam, np.zeros(shape))
    assert caught.value.code == ErrorCode.TRAJECTORY_BAD_SHAPE


def test_nan_is_refused(yam: Robot) -> None:
    q = np.zeros((2, 7))
    q[1, 3] = np.nan
    with pytest.raises(TrajectoryError) as caught:
        forward_all(yam, q)
    assert caught.value.code == ErrorCode.TRAJECTORY_NOT_FINITE
