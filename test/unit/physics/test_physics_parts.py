from __future__ import annotations

import mujoco
import numpy as np
import pytest
from scipy.spatial import ConvexHull

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.lab.simulation import MATERIALS
from kinema4d_ros.physics.model import build_model
from kinema4d_ros.physics.objects import ODD_SHAPES, LabObject, PlacedObject, part_masses, parts_of, volume_of
from kinema4d_ros.physics.parts import Shape, odd_size
from kinema4d_ros.robot import Robot

RED = (0.8, 0.2, 0.2)
# A slanted wedge: neither its centre of mass nor its principal axes are those of its bounding box.
WEDGE = np.array([[0, 0, 0], [0.06, 0, 0], [0.01, 0.05, 0], [0.06, 0.05, 0], [0.02, 0.02, 0.045], [0.05, 0.03, 0.03]])


def thing(shape: Shape) -> LabObject:
    if shape == "hull":
        return LabObject.hull("thing", WEDGE, RED, 0.08)[0]
    return LabObject("thing", shape, odd_size(shape, 0.05, 0.06), RED, 0.08)


def material(thing: LabObject, count: int = 40000) -> np.ndarray:
    """Points (N, 3) inside the object of `count` random ones in its bounding box, by the half-spaces of its parts."""
    points = np.random.default_rng(0).uniform(-0.5, 0.5, (count, 3)) * thing.size
    inside = np.zeros(count, dtype=bool)
    for part in parts_of(thing):
        planes = ConvexHull(part.corners()).equations
        inside |= np.all(points @ planes[:, :3].T + planes[:, 3] < 0, axis=1)
    return points[inside]


@pytest.mark.parametrize("shape", [*ODD_SHAPES, "hull"])
def test_parts_fill_the_bounding_box(shape: Shape) -> None:
    made = thing(shape)
    corners = np.concatenate([part.corners() for part in parts_of(made)])
    np.testing.assert_allclose(corners.min(axis=0), -np.array(made.size) / 2, atol=1e-9)
    np.testing.assert_allclose(corners.max(axis=0), np.array(made.size) / 2, atol=1e-9)
    assert np.hypot(*corners[:, :2].T).max() <= made.radius + 1e-9


@pytest.mark.parametrize("shape", [*ODD_SHAPES, "hull"])
def test_mass_centre_and_inertia_follow_the_material(shape: Shape, primitive_arm: Robot) -> None:
    made = thing(shape)
    body = build_model(primitive_arm, [PlacedObject.standing(made, 0.4, 0.3, 0.4)], MATERIALS).body("thing")
    points = material(made)
    center = points.mean(axis=0)
    away = points - center
    inertia = made.mass * (np.eye(3) * np.mean(np.sum(away**2, axis=1)) - away.T @ away / len(away))
    assert body.mass[0] == pytest.approx(made.mass)
    np.testing.assert_allclose(body.ipos, center, atol=6e-4)
    np.testing.assert_allclose(np.sort(body.inertia), np.linalg.eigvalsh(inertia), rtol=0.06)
    assert volume_of(made) == pytest.approx(np.prod(made.size) * len(points) / 40000, rel=0.04)
    assert sum(part_masses(made)) == pytest.approx(made.mass)


def test_hulls_are_where_their_vertices_are(primitive_arm: Robot) -> None:
    """The compiler moves a mesh to its principal axes; the geom's pose must undo that."""
    placed = PlacedObject.standing(thing("hull"), 0.4, 0.3, 0.7)
    model = build_model(primitive_arm, [placed], MATERIALS)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    mesh = int(model.geom("thing").dataid[0])
    assert np.linalg.norm(model.geom("thing").pos) > 1e-3
    start, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
    vertices = model.mesh_vert[start : start + count] @ data.geom("thing").xmat.reshape(3, 3).T
    found = vertices + data.geom("thing").xpos
    expected = apply(placed.base_T_object, np.asarray(placed.object.vertices))
    distance = np.linalg.norm(expected[:, None] - found[None], axis=2)
    assert distance.min(axis=1).max() < 1e-6


@pytest.mark.parametrize("shape", ODD_SHAPES)
def test_odd_shapes_stand_still_on_the_table(shape: Shape, primitive_arm: Robot) -> None:
    placed = PlacedObject.standing(thing(shape), 0.4, 0.3, 0.4)
    model = build_model(primitive_arm, [placed], MATERIALS)
    data = mujoco.MjData(model)
    for name, value in zip(primitive_arm.joint_names, primitive_arm.home_position(), strict=True):
        data.qpos[model.joint(name).qposadr[0]] = value
    data.ctrl[:] = primitive_arm.home_position()
    for _ in range(500):
        mujoco.mj_step(model, data)
    np.testing.assert_allclose(data.body("thing").xpos, placed.position, atol=5e-4)
    assert data.body("thing").xmat[8] > 0.9999


def test_a_hull_of_a_box_weighs_like_the_box(primitive_arm: Robot) -> None:
    size = (0.05, 0.04, 0.06)
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)]) * size + [0.3, 0.1, 0.0]
    hull, center = LabObject.hull("thing", corners, RED, 0.08)
    np.testing.assert_allclose(center, np.array(size) / 2 + [0.3, 0.1, 0.0])
    box = LabObject("thing", "box", size, RED, 0.08)
    bodies = [build_model(primitive_arm, [PlacedObject(o, np.eye(4))], MATERIALS).body("thing") for o in (hull, box)]
    np.testing.assert_allclose(np.sort(bodies[0].inertia), np.sort(bodies[1].inertia), rtol=1e-5)
    np.testing.assert_allclose(bodies[0].ipos, bodies[1].ipos, atol=1e-9)


def test_an_object_falls_into_a_mug_and_into_a_hollow_box_but_not_through_the_floor(primitive_arm: Robot) -> None:
    for shape, floor in (("mug", 0.0035), ("hollow_box", 0.008)):
        cup = LabObject("cup", shape, odd_size(shape, 0.056, 0.05), RED, 0.05)  # type: ignore[arg-type]
        inside = PlacedObject.standing(cup, 0.4, 0.3, 0.2)
        x, y, _ = apply(inside.base_T_object, [(cup.size[1] - cup.size[0]) / 2, 0.0, 0.0])
        ball = PlacedObject.standing(LabObject("ball", "sphere", (0.02,) * 3, RED, 0.01), x, y, 0.0, table_z=0.06)
        model = build_model(primitive_arm, [inside, ball], MATERIALS)
        data = mujoco.MjData(model)
        data.ctrl[:] = primitive_arm.home_position()
        for _ in range(600):
            mujoco.mj_step(model, data)
        assert data.body("ball").xpos[2] == pytest.approx(floor + 0.01, abs=1.5e-3), shape


def test_objects_with_equal_vertices_are_equal() -> None:
    first, second = thing("hull"), thing("hull")
    assert first == second
    assert hash(first) == hash(second)
    assert first != LabObject.hull("thing", WEDGE * [1.0, 1.0, 0.9], RED, 0.08)[0]
    moved = np.asarray(first.vertices).copy()
    moved[-1] -= 0.004
    assert first != LabObject("thing", "hull", first.size, RED, 0.08, vertices=moved)


@pytest.mark.parametrize(
    ("shape", "vertices", "message"),
    [
        ("teapot", None, "one of box, cylinder"),
        ("hull", None, "without vertices"),
        ("box", WEDGE, "with vertices"),
        ("hull", np.zeros((3, 3)), "four or more"),
        ("hull", np.full((5, 3), np.nan), "four or more"),
        ("hull", WEDGE, "mm from the bounding box"),
        ("hull", [[-0.03, -0.025, 0], [0.03, -0.025, 0], [-0.03, 0.025, 0], [0.03, 0.025, 0]], "flat"),
    ],
)
def test_impossible_objects_are_refused(shape: str, vertices: object, message: str) -> None:
    with pytest.raises(KinemaError, match=message) as caught:
        LabObject("thing", shape, (0.06, 0.05, 0.045), RED, 0.05, vertices=vertices)  # type: ignore[arg-type]
    assert caught.value.code == ErrorCode.SCENARIO_UNKNOWN
