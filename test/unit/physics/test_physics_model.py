from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pytest

from kinema4d_ros.core.transforms import make
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.lab.simulation import MATERIALS
from kinema4d_ros.physics.model import Room, build_model
from kinema4d_ros.physics.objects import LabObject, PlacedObject, Shape
from kinema4d_ros.robot import Robot


def simulated_poses(robot: Robot, model: mujoco.MjModel, q: np.ndarray) -> np.ndarray:
    data = mujoco.MjData(model)
    for name, value in zip(robot.joint_names, q, strict=True):
        data.qpos[model.joint(name).qposadr[0]] = value
    for joint in robot.joints:
        if joint.mimic:
            leader = q[robot.joint_names.index(joint.mimic.joint)]
            data.qpos[model.joint(joint.name).qposadr[0]] = joint.mimic.multiplier * leader + joint.mimic.offset
    mujoco.mj_forward(model, data)
    bodies = [model.body(link.name).id for link in robot.links]
    return make(data.xmat[bodies].reshape(-1, 3, 3), data.xpos[bodies])


@pytest.mark.parametrize("name", ["yam", "primitive_arm"])
def test_link_poses_match_forward_kinematics(name: str, request: pytest.FixtureRequest) -> None:
    robot = request.getfixturevalue(name)
    model = build_model(robot, [], MATERIALS)
    rng = np.random.default_rng(1)
    lower, upper = np.maximum(robot.lower, -3.0), np.minimum(robot.upper, 3.0)
    for q in rng.uniform(lower, upper, (20, len(lower))):
        difference = simulated_poses(robot, model, q) - forward_all(robot, q[None])[0]
        assert np.abs(difference).max() < 1e-9


def test_masses_inertias_and_efforts_come_from_the_urdf(yam: Robot) -> None:
    model = build_model(yam, [], MATERIALS)
    for link in yam.links:
        if link.inertial is None:
            continue
        body = model.body(link.name)
        assert body.mass[0] == pytest.approx(link.inertial.mass)
        np.testing.assert_allclose(body.ipos, link.inertial.center, atol=1e-12)
        np.testing.assert_allclose(np.sort(body.inertia), np.linalg.eigvalsh(link.inertial.inertia), rtol=1e-6)
    for joint in yam.actuated:
        assert model.actuator(joint.name).forcerange[1] == joint.limits.effort
        np.testing.assert_allclose(model.joint(joint.name).range, [joint.limits.lower, joint.limits.upper])


def test_fingers_move_together_and_close_on_each_other(yam: Robot) -> None:
    model = build_model(yam, [], MATERIALS)
    data = mujoco.MjData(model)
    home = yam.home_position()
    for name, value in zip(yam.joint_names, home, strict=True):
        data.qpos[model.joint(name).qposadr[0]] = value
    data.qpos[model.joint("right_finger_joint").qposadr[0]] = home[-1]
    data.ctrl[:] = home
    data.ctrl[model.actuator("left_finger_joint").id] = 0.04
    for _ in range(500):
        mujoco.mj_step(model, data)
    left = data.qpos[model.joint("left_finger_joint").qposadr[0]]
    right = data.qpos[model.joint("right_finger_joint").qposadr[0]]
    assert left == pytest.approx(0.04, abs=5e-4)
    assert right == pytest.approx(left, abs=2e-4)


@pytest.mark.parametrize("shape", ["box", "cylinder", "sphere", "bin"])
def test_objects_rest_on_the_table_with_their_mass(shape: str, primitive_arm: Robot) -> None:
    thing = LabObject("thing", shape, (0.06, 0.06, 0.05 if shape != "sphere" else 0.06), (1, 0, 0), 0.08)  # type: ignore[arg-type]
    model = build_model(primitive_arm, [PlacedObject.standing(thing, 0.4, 0.3, 0.4)], MATERIALS)
    data = mujoco.MjData(model)
    for name, value in zip(primitive_arm.joint_names, primitive_arm.home_position(), strict=True):
        data.qpos[model.joint(name).qposadr[0]] = value
    data.ctrl[:] = primitive_arm.home_position()
    for _ in range(500):
        mujoco.mj_step(model, data)
    assert model.body("thing").mass[0] == pytest.approx(0.08)
    assert data.body("thing").xpos[2] == pytest.approx(thing.height / 2, abs=5e-4)
    assert np.hypot(*(data.body("thing").xpos[:2] - (0.4, 0.3))) < 5e-4


def test_walls_and_floor_face_into_the_room(primitive_arm: Robot) -> None:
    room = Room()
    model = build_model(primitive_arm, [], MATERIALS, room)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    for name, normal in (("floor", [0, 0, 1]), ("back_wall", [1, 0, 0]), ("side_wall", [0, -1, 0])):
        np.testing.assert_allclose(data.geom(name).xmat.reshape(3, 3)[:, 2], normal, atol=1e-12)
    assert data.geom("back_wall").xpos[0] == room.back_wall_x
    table = data.geom("table")
    assert table.xpos[2] + model.geom("table").size[2] == pytest.approx(room.table_z)


def test_object_beyond_the_table_edge_falls_to_the_floor(primitive_arm: Robot) -> None:
    room = Room()
    thing = LabObject("thing", "box", (0.05, 0.05, 0.05), (1, 0, 0), 0.05)
    model = build_model(primitive_arm, [PlacedObject.standing(thing, room.table[1] + 0.1, 0.0, 0.0)], MATERIALS, room)
    data = mujoco.MjData(model)
    for _ in range(1000):
        mujoco.mj_step(model, data)
    assert data.body("thing").xpos[2] == pytest.approx(room.floor_z + 0.025, abs=2e-3)


def test_an_offset_centre_of_mass_tips_an_object_at_the_edge(primitive_arm: Robot) -> None:
    room = Room()
    edge = room.table[1]

    def height_after(offset: float) -> float:
        # The middle is 4 mm inside the table's edge: the object stands unless its weight is 8 mm outwards.
        thing = LabObject("thing", "box", (0.05, 0.05, 0.05), (1, 0, 0), 0.05, center_of_mass=(offset, 0.0, 0.0))
        model = build_model(primitive_arm, [PlacedObject.standing(thing, edge - 0.004, 0.0, 0.0)], MATERIALS, room)
        data = mujoco.MjData(model)
        for _ in range(500):
            mujoco.mj_step(model, data)
        return float(data.body("thing").xpos[2])

    assert height_after(-0.008) == pytest.approx(0.025, abs=1e-3)
    assert height_after(0.008) < -0.05


@pytest.mark.parametrize("shape", ["box", "cylinder", "sphere", "bin", "mug", "taper", "ell"])
def test_an_offset_moves_the_centre_of_mass_and_nothing_else(shape: Shape, primitive_arm: Robot) -> None:
    thing = LabObject("thing", shape, (0.06, 0.06, 0.06), (1, 0, 0), 0.08)
    offset = (0.004, -0.003, 0.002)
    models = [
        build_model(primitive_arm, [PlacedObject.standing(one, 0.3, 0.0, 0.2)], MATERIALS)
        for one in (thing, replace(thing, center_of_mass=offset))
    ]
    uniform, moved = (model.body("thing") for model in models)
    np.testing.assert_allclose(moved.ipos - uniform.ipos, offset, atol=1e-12)
    np.testing.assert_allclose(moved.mass, uniform.mass)
    np.testing.assert_allclose(moved.inertia, uniform.inertia, rtol=1e-9)
    np.testing.assert_allclose(np.abs(moved.iquat), np.abs(uniform.iquat), atol=1e-9)
