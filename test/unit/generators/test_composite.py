"""The composite generator: exact robot, static scene, assumed plane."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.requests import robot_of_a_square
from support.scenes import cast_world, overhead_camera

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.generators import Cancelled, GenerateRequest, Progress, load_generator
from kinema4d_ros.generators.carry import plane_depth
from kinema4d_ros.generators.inpaint import grow_mask
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot


def request(frames: int = 3, *, depth: bool = False, distance_m: float = 0.4, rgb: bool = True) -> GenerateRequest:
    robot = robot_of_a_square(frames=frames, depth_m=distance_m, rgb=rgb)
    rng = np.random.default_rng(0)
    image = rng.integers(60, 200, (48, 72, 3), dtype=np.uint8)
    measured = None
    if depth:
        measured = cast_world(robot.camera, [((0, 0, 0.05), (0.1, 0.1, 0.1))])[..., 2].copy()
        measured[robot.mask[0]] = distance_m
        measured[0, 0] = np.nan
    return GenerateRequest(image, robot, measured, plan_hash="d" * 64, seed=7)


def test_the_robot_is_exact_and_the_scene_is_the_plane() -> None:
    asked = request()
    rollout = load_generator("composite").generate(asked)
    rollout.check_points()
    robot = asked.robot
    assert np.array_equal(rollout.robot_mask, robot.mask)
    assert np.array_equal(rollout.xyz[robot.mask], robot.xyz[robot.mask])
    heights = np.stack([rollout.points_base(t) for t in range(3)])[..., 2][~robot.mask]
    assert np.abs(heights).max() < 1e-6
    assert np.array_equal(rollout.times, robot.times)
    assert rollout.plan_hash == "d" * 64
    assert rollout.provenance.generator == "composite"
    assert rollout.provenance.preset == "plane"
    assert rollout.provenance.seed == 7
    assert rollout.provenance.metric_residual_m == 0.0


def test_measured_depth_is_used_outside_of_the_removed_robot() -> None:
    asked = request(depth=True)
    rollout = load_generator("composite", margin_px=40).generate(asked)
    assert asked.depth is not None
    hole = grow_mask(asked.robot.mask[0], 4)
    far = ~hole & ~asked.robot.mask[2]
    assert np.array_equal(rollout.xyz[2, ..., 2][far], asked.depth[far], equal_nan=True)
    revealed = asked.robot.mask[0] & ~asked.robot.mask[2]
    assert revealed.any()
    assert np.abs(rollout.points_base(2)[revealed][:, 2]).max() < 1e-6
    assert rollout.provenance.preset == "depth"


def test_a_robot_behind_the_scene_is_hidden_except_where_the_first_image_showed_it() -> None:
    asked = request(distance_m=5.0)
    rollout = load_generator("composite", max_range_m=50).generate(asked)
    assert np.array_equal(rollout.robot_mask[0], asked.robot.mask[0])
    shown_first = asked.robot.mask[0]
    assert not rollout.robot_mask[2][~shown_first].any()
    assert np.array_equal(rollout.robot_mask[2], asked.robot.mask[2] & shown_first)


def test_hard_edges_give_the_robots_own_colours() -> None:
    asked = request()
    rollout = load_generator("composite", soft_edges=False).generate(asked)
    assert asked.robot.rgb is not None
    assert np.array_equal(rollout.rgb[asked.robot.mask], asked.robot.rgb[asked.robot.mask])
    untouched = ~grow_mask(asked.robot.mask[0], 6) & ~asked.robot.mask.any(0)
    assert np.array_equal(rollout.rgb[2][untouched], asked.image[untouched])


def test_soft_edges_change_only_the_border() -> None:
    hard = load_generator("composite", soft_edges=False).generate(request())
    soft = load_generator("composite", soft_edges=True).generate(request())
    assert np.array_equal(hard.xyz, soft.xyz, equal_nan=True)
    assert np.array_equal(hard.robot_mask, soft.robot_mask)
    for t in range(3):
        changed = (hard.rgb[t] != soft.rgb[t]).any(-1)
        border = grow_mask(hard.robot_mask[t], 1.5) & grow_mask(~hard.robot_mask[t], 1.5)
        assert changed.any()
        assert not changed[~border].any()


def test_a_robot_without_colours_is_shaded() -> None:
    rollout = load_generator("composite").generate(request(rgb=False))
    pixels = rollout.rgb[rollout.robot_mask].astype(int)
    assert np.ptp(pixels, axis=1).max() <= 60
    assert 60 < pixels.mean() < 230


def test_a_background_plate_replaces_inpainting() -> None:
    plate = np.full((48, 72, 3), 9, np.uint8)
    asked = request()
    rollout = load_generator("composite", background=plate, soft_edges=False).generate(asked)
    revealed = asked.robot.mask[0] & ~asked.robot.mask[2]
    assert (rollout.rgb[2][revealed] == 9).all()
    with pytest.raises(GeneratorError, match="background") as caught:
        load_generator("composite", background=plate[:10]).generate(asked)
    assert caught.value.code == ErrorCode.GENERATOR_BAD_REQUEST


def equal(a: Rollout, b: Rollout) -> bool:
    return np.array_equal(a.rgb, b.rgb) and np.array_equal(a.xyz.view(np.uint32), b.xyz.view(np.uint32))


def test_equal_requests_give_equal_arrays_and_another_identity() -> None:
    first, second = (load_generator("composite").generate(request(depth=True)) for _ in range(2))
    assert equal(first, second)
    assert first.provenance == second.provenance
    assert first.rollout_id != second.rollout_id


def test_progress_counts_up_to_the_end() -> None:
    seen: list[Progress] = []
    load_generator("composite").generate(request(frames=20), seen.append)
    assert seen[0].phase == "background"
    steps = [p.step for p in seen if p.phase == "compose"]
    assert steps == sorted(steps)
    assert steps[-1] == 20
    assert all(p.steps == 20 for p in seen if p.phase == "compose")


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4])
def test_cancel_ends_within_one_step(after: int) -> None:
    asked = 0

    def cancel() -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    with pytest.raises(Cancelled):
        load_generator("composite").generate(request(frames=20), cancel=cancel)
    assert asked == after + 1


@pytest.mark.parametrize(
    "options",
    [{"table_height_m": math.nan}, {"max_range_m": -1.0}, {"margin_px": math.inf}, {"margin_px": -1.0}],
)
def test_bad_options(options: dict[str, float]) -> None:
    with pytest.raises(GeneratorError, match=next(iter(options))):
        load_generator("composite", **options)


@settings(max_examples=40)
@given(height=st.floats(-0.3, 0.4), x=st.floats(-1, 1), y=st.floats(-1, 1), z=st.floats(0.5, 1.5))
def test_the_plane_has_the_given_height(height: float, x: float, y: float, z: float) -> None:
    camera = PinholeCamera.look_at((x, y, z), (0.01, 0.02, 0), up=(0.3, 1, 0.2), width=20, height=14, fov_y_deg=70)
    depth = plane_depth(camera, height, 4.0)
    points = camera.rays() * depth[..., None] @ camera.base_T_camera[:3, :3].T + camera.base_T_camera[:3, 3]
    met = np.isfinite(depth)
    assert met.any()
    assert np.abs(points[met][:, 2] - height).max() < 1e-9
    assert depth[met].min() > 0
    assert np.linalg.norm(points[met] - (x, y, z), axis=1).max() <= 4.0 + 1e-9


def test_no_plane_above_the_horizon_nor_from_below() -> None:
    level = PinholeCamera.look_at((1, 0, 0.5), (0, 0, 0.5), width=20, height=14, fov_y_deg=60)
    depth = plane_depth(level, 0.0, 100.0)
    assert np.isnan(depth[:7]).all()
    assert np.isfinite(depth[8:]).all()
    assert np.isnan(plane_depth(level, 0.6, 100.0)).all()


def test_the_yam_in_its_camera(yam: Robot) -> None:
    camera = overhead_camera(180, 120)
    q = yam.home_position() + np.linspace(0, 0.4, 5)[:, None] * np.eye(len(yam.joint_names))[0]
    drawn = render_pointmaps(yam, q, camera, rgb=True)
    robot = type(drawn)(drawn.xyz, drawn.link_ids, camera, np.arange(5) * 0.2, drawn.rgb)
    rollout = load_generator("composite").generate(GenerateRequest(np.full((120, 180, 3), 90, np.uint8), robot))
    rollout.check_points()
    assert np.array_equal(rollout.robot_mask[0], robot.mask[0])
    shown = rollout.robot_mask
    assert (shown & ~robot.mask).sum() == 0
    assert np.array_equal(rollout.xyz[shown], robot.xyz[shown])
