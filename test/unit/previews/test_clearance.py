"""Clearance in scenes with known results, and against all triangles of the YAM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trimesh
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree
from support.scenes import cast_world, overhead_camera, rollout_of, slider

from kinema4d_ros.core.errors import ErrorCode, KinemaError, RobotError, RolloutError, TrajectoryError
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.previews.report.clearance import clearance_over_time, hidden_pixels, resting_links
from kinema4d_ros.robot import Robot

CAMERA = overhead_camera()
TABLE = cast_world(CAMERA)
PIXEL_M = 0.008
"""More than the distance between neighbouring points of the table in that camera."""

BALL = '<sphere radius="0.05"/>'
BRICK = '<box size="0.08 0.06 0.04"/>'


def test_a_ball_over_a_table(tmp_path: Path) -> None:
    robot = slider(tmp_path, BALL)
    heights = np.array([0.30, 0.20, 0.10, 0.06])
    found = clearance_over_time(rollout_of(CAMERA, [TABLE] * 4), robot, heights[:, None])
    # Pixels do not hit the foot of the perpendicular: h' = sqrt(h^2 + e^2) with e below half a pixel's diagonal.
    assert np.all(found.distance_m >= heights - 0.05 - 1e-4)
    assert np.all(found.distance_m <= np.hypot(heights, PIXEL_M / 2**0.5) - 0.05 + 3e-4)
    assert found.link == ("body",) * 4
    assert np.allclose(found.world_point[:, 2], 0.0, atol=1e-6)
    assert np.allclose(np.linalg.norm(found.robot_point - found.world_point, axis=1), found.distance_m, atol=1e-9)
    assert np.allclose(found.robot_point[:, 2], heights - 0.05, atol=3e-4)


@pytest.mark.parametrize("depth", [0.001, 0.004, 0.012, 0.019])
def test_a_brick_pressed_into_a_table_is_as_deep_as_it_is(tmp_path: Path, depth: float) -> None:
    robot = slider(tmp_path, BRICK)
    found = clearance_over_time(rollout_of(CAMERA, [TABLE]), robot, [[0.02 - depth]])
    assert found.distance_m[0] == pytest.approx(-depth, abs=1e-6)
    assert found.link == ("body",)


def test_the_deepest_point_of_a_ball_in_a_table(tmp_path: Path) -> None:
    robot = slider(tmp_path, BALL)
    # The table's points nearest to the axis are deepest: (radius - distance from the centre) inside.
    found = clearance_over_time(rollout_of(CAMERA, [TABLE]), robot, [[0.03]])
    assert -0.02 - 3e-4 <= found.distance_m[0] <= -(0.05 - np.hypot(0.03, PIXEL_M / 2**0.5)) + 3e-4


@settings(max_examples=30)
@given(x=st.floats(-0.1, 0.1), y=st.floats(-0.1, 0.1), height=st.floats(0.08, 0.25), gap=st.floats(0.002, 0.08))
def test_a_brick_over_a_box(
    x: float, y: float, height: float, gap: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its underside over a larger box's top: the gap itself, wherever the box is as long as it is below."""
    robot = slider(tmp_path_factory.mktemp("robot"), BRICK)
    world = cast_world(CAMERA, [((x, y, height / 2), (0.16, 0.14, height))])
    found = clearance_over_time(rollout_of(CAMERA, [world]), robot, [[height + gap + 0.02]])
    over = abs(x) < 0.08 + 0.04 - PIXEL_M and abs(y) < 0.07 + 0.03 - PIXEL_M
    if over:
        assert found.distance_m[0] == pytest.approx(gap, abs=1e-5)
    assert found.distance_m[0] > gap - 1e-5


def test_every_point_against_every_triangle(yam: Robot) -> None:
    """The YAM over clutter: the result equals a brute-force search over all triangles of all moving links."""
    camera = overhead_camera(90, 60)
    world = cast_world(camera, [((0.25, 0.02, 0.05), (0.06, 0.06, 0.1)), ((0.1, -0.2, 0.04), (0.05, 0.1, 0.08))])
    rng = np.random.default_rng(3)
    q = np.clip(yam.home_position() + rng.uniform(-0.3, 0.3, (2, len(yam.joint_names))), yam.lower, yam.upper)
    found = clearance_over_time(rollout_of(camera, [world] * 2), yam, q)
    points = apply(camera.base_T_camera, world[np.isfinite(world[..., 2])])
    poses = forward_all(yam, q)
    for t in range(2):
        least = np.inf
        for i, link in enumerate(yam.links):
            for shape in () if link.name in resting_links(yam) else link.visuals:
                vertices = apply(poses[t, i] @ shape.link_T_geometry, shape.mesh.vertices)
                corners = vertices[shape.mesh.faces]
                # A point can be nearer to a face than to its corners, by less than the longest edge.
                to_corner = cKDTree(vertices).query(points)[0]
                edge = np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=-1).max()
                candidates = np.flatnonzero(to_corner - edge <= min(least, to_corner.min()))
                for k in candidates[np.argsort(to_corner[candidates])[:12]]:
                    closest = trimesh.triangles.closest_point(corners, np.tile(points[k], (len(corners), 1)))
                    least = min(least, np.linalg.norm(closest - points[k], axis=1).min())
        assert found.distance_m[t] == pytest.approx(least, abs=1e-6)


def test_the_base_is_ignored_by_default(tmp_path: Path) -> None:
    robot = slider(tmp_path, BALL)
    assert resting_links(robot) == ("base_link", "foot")
    rollout = rollout_of(CAMERA, [TABLE])
    assert clearance_over_time(rollout, robot, [[0.3]]).distance_m[0] > 0.2
    everything = clearance_over_time(rollout, robot, [[0.3]], ignore_links=())
    assert everything.link == ("foot",)
    assert everything.distance_m[0] == pytest.approx(-0.01, abs=1e-6)
    nothing = clearance_over_time(rollout, robot, [[0.3]], ignore_links=("foot", "body"))
    assert np.isnan(nothing.distance_m[0])
    assert nothing.link == ("",)


def test_hidden_points_are_kept(tmp_path: Path) -> None:
    """A box seen in the first frame stays an obstacle while the robot covers it."""
    robot = slider(tmp_path, BRICK)
    box = cast_world(CAMERA, [((0, 0, 0.05), (0.06, 0.06, 0.1))])
    clear = np.zeros(box.shape[:2], np.bool_)
    covered = clear.copy()
    covered[30:90, 50:130] = True
    assert np.all(np.isin(np.argwhere(np.abs(box - TABLE).max(-1) > 0)[:, 0], range(30, 90)))
    near_robot = np.where(covered[..., None], np.float32(0.3) * CAMERA.rays().astype(np.float32), TABLE)
    masks = [clear, covered, covered]
    found = clearance_over_time(rollout_of(CAMERA, [box, near_robot, near_robot], masks), robot, [[0.2]] * 3)
    assert np.allclose(found.distance_m, 0.2 - 0.02 - 0.1, atol=1e-5)
    # Seen only later: it counts from the beginning, because it did not move.
    later = rollout_of(CAMERA, [near_robot, box], [covered, clear])
    assert np.allclose(clearance_over_time(later, robot, [[0.2]] * 2).distance_m, 0.08, atol=1e-5)


def test_a_moving_scene_is_updated(tmp_path: Path) -> None:
    robot = slider(tmp_path, BRICK)
    rise = [cast_world(CAMERA, [((0, 0, h / 2), (0.1, 0.1, h))]) for h in (0.05, 0.10, 0.15, 0.02)]
    found = clearance_over_time(rollout_of(CAMERA, rise), robot, [[0.25]] * 4)
    assert np.allclose(found.distance_m, 0.23 - np.array([0.05, 0.10, 0.15, 0.02]), atol=1e-5)


def test_an_empty_scene_gives_nan(tmp_path: Path) -> None:
    robot = slider(tmp_path, BALL)
    found = clearance_over_time(rollout_of(CAMERA, [np.full_like(TABLE, np.nan)]), robot, [[0.3]])
    assert np.isnan(found.distance_m[0])
    assert np.isnan(found.robot_point).all()


def test_the_silhouettes_border_is_hidden_too() -> None:
    mask = np.zeros(TABLE.shape[:2], np.bool_)
    mask[50, 60] = True
    hidden = hidden_pixels(rollout_of(CAMERA, [TABLE], [mask]))[0]
    v, u = np.nonzero(hidden)
    assert hidden[47:54, 60].all()
    assert np.hypot(v - 50, u - 60).max() < 4.3


@pytest.mark.parametrize(
    ("q", "ignore", "error", "code"),
    [
        ([[0.1], [0.2]], None, RolloutError, ErrorCode.ROLLOUT_INVALID),
        ([[0.1, 0.2]], None, TrajectoryError, ErrorCode.TRAJECTORY_BAD_SHAPE),
        ([[np.nan]], None, TrajectoryError, ErrorCode.TRAJECTORY_NOT_FINITE),
        ([[0.1]], ("elbow",), RobotError, ErrorCode.UNKNOWN_LINK),
    ],
)
def test_bad_input(tmp_path: Path, q: list, ignore: tuple | None, error: type[KinemaError], code: ErrorCode) -> None:
    robot = slider(tmp_path, BALL)
    with pytest.raises(error) as caught:
        clearance_over_time(rollout_of(CAMERA, [TABLE]), robot, q, ignore_links=ignore)
    assert caught.value.code == code
