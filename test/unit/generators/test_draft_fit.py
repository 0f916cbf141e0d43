"""Objects fitted to an image with depth: known shapes come back, hidden ones spread, and nothing is made up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import Cancelled, GeneratorError
from kinema4d_ros.core.pointmap import GripTrack
from kinema4d_ros.generators.draft._kernels import BIN, BOX, CUP, CYLINDER, LYING, SPHERE, cast_hull, cast_shape
from kinema4d_ros.generators.draft.fit import fit_scene
from kinema4d_ros.generators.draft.scene import FittedObject, FittedScene
from kinema4d_ros.generators.draft.segments import find_edges, observe
from kinema4d_ros.physics.parts import BIN_WALL_M
from kinema4d_ros.robot import Fingers

Thing = tuple[int, Sequence[float], tuple[int, int, int]]
"""Kind, numbers (x, y, yaw, three sizes, underside) and colour."""

RED, BLUE, GREEN, BLACK = (200, 40, 30), (40, 80, 190), (40, 150, 70), (20, 20, 20)
A_BOX: Thing = (BOX, (0.30, 0.02, 0.5, 0.045, 0.06, 0.05, 0.0), RED)


def camera() -> PinholeCamera:
    return PinholeCamera.look_at(
        np.array([0.9, -0.4, 0.7]), np.array([0.3, 0.0, 0.03]), width=180, height=120, focal_px=260.0
    )


class Table:
    """A rendered table: image, exact depth and the robot's pixels."""

    def __init__(self, *things: Thing, robot: Sequence[Thing] = (), height_m: float = 0.0) -> None:
        self.camera, self.height_m = camera(), height_m
        view = self.camera
        rays = np.ascontiguousarray((view.rays() @ view.base_T_camera[:3, :3].T).reshape(-1, 3))
        eye = view.base_T_camera[:3, 3].copy()
        size = (view.height, view.width)
        depth = (height_m - eye[2]) / rays[:, 2]
        owner = np.zeros(len(depth), int)
        for number, (kind, p, _) in enumerate((*things, *robot), 1):
            hit = cast_shape(kind, np.array(p, np.float64), BIN_WALL_M, eye, rays)
            owner[hit < depth] = number
            depth = np.minimum(hit, depth)
        colours = np.array([(150, 140, 120), *(t[2] for t in (*things, *robot))], np.uint8)
        self.owner = owner.reshape(size)
        self.image = colours[self.owner]
        self.depth = depth.reshape(size).astype(np.float32)
        self.ids = (self.owner > len(things)).astype(np.uint8)

    def fit(self, **options: object) -> FittedScene:
        xyz = np.full((*self.ids.shape, 3), np.nan, np.float32)
        options = {"table_height_m": self.height_m, "draws": 16, **options}
        return fit_scene(self.image, self.depth, (self.ids, xyz), self.camera, **options)  # type: ignore[arg-type]


def centre(thing: FittedObject) -> NDArray[np.float64]:
    return np.asarray(thing.estimates[0].base_T_object[:3, 3])


def test_rays_hit_a_box_where_a_brute_force_march_does() -> None:
    rng = np.random.default_rng(1)
    eye = np.array([0.5, -0.2, 0.4])
    for kind in (BOX, CYLINDER, SPHERE, LYING, BIN, CUP):
        p = np.array([0.1, 0.05, 0.7, 0.08, 0.11, 0.06, 0.02])
        aim = np.array([0.1, 0.05, 0.05]) + rng.uniform(-0.06, 0.06, (40, 3))
        rays = aim - eye
        along = np.linspace(0.5, 1.6, 4000)
        points = eye + rays[:, None] * along[:, None]
        inside = _inside(kind, p, points)
        brute = np.where(inside.any(1), along[np.argmax(inside, 1)], np.inf)
        hits = cast_shape(kind, p, BIN_WALL_M, eye, rays)
        agree = np.isclose(hits, brute, atol=4e-4) | (np.isinf(hits) & np.isinf(brute))
        # A march may step over a grazed corner.
        assert agree.mean() > 0.94, kind
        assert np.isfinite(hits).sum() > 10


def _inside(kind: int, p: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.bool_]:
    q = points - np.array([p[0], p[1], p[6]])
    if kind == SPHERE:
        return np.asarray(np.linalg.norm(q - np.array([0, 0, p[3] / 2]), axis=-1) < p[3] / 2)
    if kind == CYLINDER:
        return np.asarray((np.hypot(q[..., 0], q[..., 1]) < p[3] / 2) & (q[..., 2] > 0) & (q[..., 2] < p[5]))
    if kind == CUP:
        room = (np.hypot(q[..., 0], q[..., 1]) < p[3] / 2 - BIN_WALL_M) & (q[..., 2] > BIN_WALL_M)
        return _inside(CYLINDER, p, points) & ~room
    c, s = np.cos(p[2]), np.sin(p[2])
    x, y, z = c * q[..., 0] + s * q[..., 1], c * q[..., 1] - s * q[..., 0], q[..., 2]
    if kind == LYING:
        return np.asarray((np.abs(x) < p[4] / 2) & (np.hypot(y, z - p[3] / 2) < p[3] / 2))
    box = (np.abs(x) < p[3] / 2) & (np.abs(y) < p[4] / 2) & (z > 0) & (z < p[5])
    if kind == BIN:
        room = (np.abs(x) < p[3] / 2 - BIN_WALL_M) & (np.abs(y) < p[4] / 2 - BIN_WALL_M) & (z > BIN_WALL_M)
        return np.asarray(box & ~room)
    return np.asarray(box)


def test_a_box_as_planes_is_hit_like_a_box() -> None:
    p = np.array([0.1, 0.05, 0.0, 0.08, 0.11, 0.06, 0.02])
    low, high = np.array([0.06, -0.005, 0.02]), np.array([0.14, 0.105, 0.08])
    planes = np.concatenate([np.c_[np.eye(3), high], np.c_[-np.eye(3), -low]])
    eye = np.array([0.5, -0.2, 0.4])
    rays = np.array([0.1, 0.05, 0.05]) + np.random.default_rng(2).uniform(-0.09, 0.09, (60, 3)) - eye
    np.testing.assert_allclose(cast_hull(planes, eye, rays), cast_shape(BOX, p, BIN_WALL_M, eye, rays))


@pytest.mark.parametrize(
    ("kind", "p", "shape", "size"),
    [
        (BOX, (0.30, 0.02, 0.5, 0.045, 0.06, 0.05, 0.0), "box", (0.045, 0.06, 0.05)),
        (CYLINDER, (0.32, -0.05, 0.0, 0.05, 0.0, 0.07, 0.0), "cylinder", (0.05, 0.05, 0.07)),
        (SPHERE, (0.28, 0.06, 0.0, 0.05, 0.0, 0.0, 0.0), "sphere", (0.05, 0.05, 0.05)),
        (BIN, (0.30, 0.02, 0.3, 0.09, 0.08, 0.04, 0.0), "bin", (0.09, 0.08, 0.04)),
        (CUP, (0.32, -0.05, 0.0, 0.06, 0.0, 0.06, 0.0), "cylinder", (0.06, 0.06, 0.06)),
        (LYING, (0.30, 0.02, 0.4, 0.04, 0.09, 0.0, 0.0), "cylinder", (0.04, 0.04, 0.09)),
    ],
)
def test_a_known_shape_comes_back(kind: int, p: tuple[float, ...], shape: str, size: tuple[float, ...]) -> None:
    scene = Table((kind, p, RED)).fit()
    (thing,) = scene.objects
    best = thing.estimates[0]
    assert (best.shape, thing.basis, thing.held) == (shape, "measured", False)
    assert thing.misfit < 0.5
    assert scene.unexplained < 0.1
    np.testing.assert_allclose(best.size, size, atol=2.5e-3)
    np.testing.assert_allclose(centre(thing)[:2], p[:2], atol=1.5e-3)
    assert sum(e.weight for e in thing.estimates) == pytest.approx(1.0)
    if kind == LYING:
        assert abs(best.base_T_object[2, 2]) < 1e-6
    np.testing.assert_allclose(np.linalg.det(best.base_T_object[:3, :3]), 1.0)


def test_a_tapered_block_becomes_a_hull() -> None:
    table = Table()
    low, high, tall, middle = 0.035, 0.016, 0.06, np.array([0.30, 0.02])
    slope = (low - high) / tall
    sides = [(*(n := np.array([c, s, slope]) / np.hypot(1, slope)), float(n[:2] @ middle) + low / np.hypot(1, slope))
             for c, s in ((1, 0), (-1, 0), (0, 1), (0, -1))]  # fmt: skip
    planes = np.array([*sides, (0, 0, 1, tall), (0, 0, -1, 0)], np.float64)
    view = table.camera
    rays = np.ascontiguousarray((view.rays() @ view.base_T_camera[:3, :3].T).reshape(-1, 3))
    hits = cast_hull(planes, view.base_T_camera[:3, 3].copy(), rays).reshape(table.depth.shape)
    table.image[hits < table.depth] = RED
    table.depth = np.minimum(hits, table.depth).astype(np.float32)
    (thing,) = table.fit().objects
    best = thing.estimates[0]
    assert best.shape == "hull"
    assert best.vertices is not None
    assert thing.misfit < 0.5
    np.testing.assert_allclose(best.size, (2 * low, 2 * low, tall), atol=6e-3)
    np.testing.assert_allclose(centre(thing)[:2], middle, atol=4e-3)
    np.testing.assert_allclose(np.abs(best.vertices).max(0), np.array(best.size) / 2, atol=1e-9)


def test_a_table_at_another_height() -> None:
    kind, p, colour = A_BOX
    (thing,) = Table((kind, (*p[:6], 0.1), colour), height_m=0.1).fit().objects
    assert centre(thing)[2] == pytest.approx(0.125, abs=1.5e-3)


def test_a_hidden_side_spreads_and_a_seen_one_does_not() -> None:
    # The wall in front is the robot: it hides all but the left part of the box.
    wall: Thing = (BOX, (0.378, -0.003, -0.58, 0.01, 0.065, 0.12, 0.0), BLACK)
    kind, p, colour = (BOX, (0.30, 0.02, -0.58, 0.05, 0.05, 0.05, 0.0), RED)
    hidden = Table((kind, p, colour), robot=[wall]).fit(draws=32).objects
    (free,) = Table((kind, p, colour)).fit(draws=32).objects
    assert len(hidden) == 1

    def spread(thing: FittedObject) -> float:
        return float(np.std([e.size[0] * e.size[1] for e in thing.estimates]))

    assert spread(hidden[0]) > 3 * spread(free)
    areas = [e.size[0] * e.size[1] for e in hidden[0].estimates]
    assert min(areas) < 0.0025 < max(areas)


def test_what_is_seen_behind_refutes() -> None:
    """A box in front of another is not extended over what is seen behind it."""
    front: Thing = (BOX, (0.36, -0.03, -0.58, 0.04, 0.04, 0.03, 0.0), RED)
    back: Thing = (BOX, (0.28, 0.02, -0.58, 0.05, 0.05, 0.08, 0.0), BLUE)
    scene = Table(front, back).fit()
    assert len(scene.objects) == 2
    near, far = scene.objects
    np.testing.assert_allclose(centre(near)[:2], front[1][:2], atol=2e-3)
    np.testing.assert_allclose(centre(far)[:2], back[1][:2], atol=2e-3)
    np.testing.assert_allclose(far.estimates[0].size[2], 0.08, atol=2e-3)
    assert near.name == "object_1"


def test_a_stack_stands_on_the_object_below() -> None:
    below: Thing = (BOX, (0.30, 0.02, 0.2, 0.07, 0.07, 0.04, 0.0), BLUE)
    above: Thing = (BOX, (0.305, 0.02, 0.6, 0.04, 0.04, 0.03, 0.04), RED)
    objects = Table(below, above).fit().objects
    assert len(objects) == 2
    low, high = sorted(objects, key=lambda o: float(centre(o)[2]))
    assert centre(high)[2] == pytest.approx(0.055, abs=2e-3)
    assert high.estimates[0].size[2] == pytest.approx(0.03, abs=3e-3)
    np.testing.assert_allclose(sorted(low.estimates[0].size), (0.04, 0.07, 0.07), atol=3e-3)


def test_a_stack_of_two_similar_colours_is_two_objects() -> None:
    below: Thing = (BOX, (0.30, 0.02, 0.2, 0.08, 0.08, 0.035, 0.0), (225, 224, 220))
    above: Thing = (CYLINDER, (0.302, 0.02, 0.0, 0.04, 0.04, 0.05, 0.035), (168, 150, 132))
    low, high = sorted(Table(below, above).fit().objects, key=lambda o: float(centre(o)[2]))
    np.testing.assert_allclose(centre(high), (0.302, 0.02, 0.06), atol=3e-3)
    assert low.estimates[0].size[2] == pytest.approx(0.035, abs=3e-3)
    # Two levels of one colour may be one object: it stays one.
    assert len(Table((*below[:2], RED), (*above[:2], RED)).fit().objects) == 1


def test_the_table_ends_where_the_depth_shows_what_is_below() -> None:
    view, none = camera(), np.zeros((120, 180), np.bool_)
    rays = view.rays() @ view.base_T_camera[:3, :3].T
    eye = view.base_T_camera[:3, 3]
    p = eye[:2] + rays[..., :2] * (-eye[2] / rays[..., 2:])
    for x1, y0 in ((0.42, np.inf), (0.45, -0.12)):
        ends = (p[..., 0] > x1) | (p[..., 1] < -abs(y0) if np.isfinite(y0) else none)
        z = np.where(ends, -0.7 - eye[2], -eye[2]) / rays[..., 2]
        edges = find_edges(observe(z.astype(np.float32), none, view, 0.0))
        assert edges is not None
        np.testing.assert_allclose(edges, (-np.inf, x1, -np.inf if np.isinf(y0) else y0, np.inf), atol=6e-3)
    flat = (-eye[2] / rays[..., 2]).astype(np.float32)
    assert find_edges(observe(flat, none, view, 0.0)) is None


def test_what_is_left_out_beyond_the_edge_is_said() -> None:
    shelf: Thing = (BOX, (0.52, 0.02, 0.0, 0.05, 0.05, 0.06, 0.0), RED)
    table = Table(A_BOX, shelf)
    view = table.camera
    rays, eye = view.rays() @ view.base_T_camera[:3, :3].T, view.base_T_camera[:3, 3]
    x = eye[0] - rays[..., 0] * eye[2] / rays[..., 2]
    below = (table.owner == 0) & (x > 0.42)
    table.depth[below] = ((-0.7 - eye[2]) / rays[..., 2])[below]
    scene = table.fit()
    assert len(scene.objects) == 1
    assert "1 things beyond the edges of the table were left out" in scene.notes


def test_an_object_in_a_bin_stands_on_its_floor() -> None:
    bin_: Thing = (BIN, (0.30, 0.02, 0.3, 0.11, 0.10, 0.04, 0.0), BLUE)
    inside: Thing = (CYLINDER, (0.30, 0.02, 0.0, 0.035, 0.0, 0.06, BIN_WALL_M), RED)
    objects = Table(bin_, inside).fit().objects
    shapes = {o.estimates[0].shape: o for o in objects}
    assert set(shapes) == {"bin", "cylinder"}
    bottom = centre(shapes["cylinder"])[2] - shapes["cylinder"].estimates[0].size[2] / 2
    assert bottom == pytest.approx(BIN_WALL_M, abs=1e-6)


def gripper(xyz: tuple[float, float, float], width: float) -> GripTrack:
    pose = np.eye(4)
    pose[:3, :3] = np.diag([1.0, -1.0, -1.0])  # the approach is down
    pose[:3, 3] = xyz
    fingers = Fingers(pad_width_m=0.022, width_m=0.044, thickness_m=0.022, length_m=0.045, tip_m=0.0024)
    return GripTrack(pose[None], np.array([width]), fingers)


def test_what_hangs_between_the_fingers_is_held() -> None:
    held: Thing = (BOX, (0.30, 0.02, 0.0, 0.04, 0.04, 0.06, 0.08), RED)
    fingers: list[Thing] = [
        (BOX, (0.30 + side * 0.026, 0.02, 0.0, 0.012, 0.022, 0.06, 0.12), BLACK) for side in (-1, 1)
    ]
    scene = Table(held, robot=fingers).fit(grip=gripper((0.30, 0.02, 0.12), 0.04))
    (thing,) = scene.objects
    assert thing.held
    bottom = centre(thing)[2] - thing.estimates[0].size[2] / 2
    assert bottom == pytest.approx(0.08, abs=4e-3)


def test_fingers_that_an_object_keeps_open_are_found() -> None:
    held: Thing = (BOX, (0.30, 0.02, 0.0, 0.04, 0.04, 0.06, 0.08), RED)

    def fingers(opened: float) -> list[Thing]:
        return [
            (BOX, (0.30 + side * (0.026 + opened / 2), 0.02, 0.0, 0.012, 0.022, 0.06, 0.12), BLACK) for side in (-1, 1)
        ]

    # The commanded fingers are 6 mm inside the object on either side.
    table, commanded = Table(held, robot=fingers(0.0)), Table(robot=fingers(-0.012))
    view = table.camera
    xyz = (view.rays() * commanded.depth[..., None]).astype(np.float32)
    (thing,) = fit_scene(
        table.image, table.depth, (commanded.ids, xyz), view, table_height_m=0.0, draws=16,
        grip=gripper((0.30, 0.02, 0.12), 0.028),
    ).objects  # fmt: skip
    assert thing.held
    np.testing.assert_allclose(thing.estimates[0].size, (0.04, 0.04, 0.06), atol=7e-3)


def test_what_stands_between_open_fingers_is_not_held() -> None:
    scene = Table(A_BOX).fit(grip=gripper((0.30, 0.02, 0.04), 0.09))
    assert [thing.held for thing in scene.objects] == [False]


def test_an_empty_table_has_no_objects() -> None:
    scene = Table().fit()
    assert scene.objects == ()
    assert (scene.unexplained, scene.notes) == (0.0, ())


def test_no_depth_says_so() -> None:
    table = Table(A_BOX)
    table.depth[:] = np.nan
    scene = table.fit()
    assert scene.objects == ()
    assert "depth" in scene.notes[0]


def test_noise_holes_and_mixed_pixels() -> None:
    table = Table(A_BOX, (CYLINDER, (0.36, -0.08, 0.0, 0.04, 0.0, 0.05, 0.0), BLUE))
    rng = np.random.default_rng(3)
    table.depth += rng.normal(0, 0.0015, table.depth.shape).astype(np.float32)
    table.depth = (np.round(table.depth / 0.001) * 0.001).astype(np.float32)
    table.depth[rng.random(table.depth.shape) < 0.1] = np.nan
    scene = table.fit()
    assert len(scene.objects) == 2
    assert {o.estimates[0].shape for o in scene.objects} == {"box", "cylinder"}
    for thing in scene.objects:
        xy = A_BOX[1][:2] if thing.estimates[0].shape == "box" else (0.36, -0.08)
        np.testing.assert_allclose(centre(thing)[:2], xy, atol=4e-3)
        assert thing.misfit < 1


def test_equal_inputs_give_equal_draws_and_another_seed_others() -> None:
    def draws(seed: int) -> NDArray[np.float64]:
        (thing,) = Table(A_BOX).fit(seed=seed).objects
        return np.array([e.base_T_object for e in thing.estimates])

    first = draws(0)
    np.testing.assert_array_equal(first, draws(0))
    assert not np.array_equal(first, draws(1))
    np.testing.assert_array_equal(first[0], draws(1)[0])


def test_objects_away_from_the_path_are_coarse() -> None:
    far: Thing = (CYLINDER, (0.20, 0.22, 0.0, 0.04, 0.0, 0.05, 0.0), BLUE)
    scene = Table(A_BOX, far).fit(draws=32, near=np.array([[0.30, 0.02, 0.10]]))
    counts = sorted(len(o.estimates) for o in scene.objects)
    assert counts == [8, 32]


def test_wrong_sizes_are_refused_and_a_cancelled_fit_stops() -> None:
    table = Table(A_BOX)
    with pytest.raises(Cancelled):
        table.fit(cancel=lambda: True)
    table.depth = table.depth[:-1]
    with pytest.raises(GeneratorError, match="depth"):
        table.fit()
