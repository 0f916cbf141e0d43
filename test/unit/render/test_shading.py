"""Shading: lighting, smooth surfaces, sharp creases, and equal images from both back-ends."""

from __future__ import annotations

import numpy as np

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.transforms import from_rpy
from kinema4d_ros.render import Scene, render_pointmaps, render_poses
from kinema4d_ros.render.clusters import face_normals
from kinema4d_ros.render.shading import base_colours, corner_normals
from kinema4d_ros.robot import Geometry, Robot
from kinema4d_ros.robot.primitives import box_mesh, sphere_mesh


def test_sphere_normals_are_smooth() -> None:
    ball = sphere_mesh(0.1)
    smooth = corner_normals(ball)
    exact = ball.vertices[ball.faces] / 0.1
    assert np.abs(np.linalg.norm(smooth, axis=-1) - 1).max() < 1e-6
    assert np.einsum("fki,fki->fk", smooth, exact).min() > 0.999


def test_box_keeps_its_creases() -> None:
    box = box_mesh((1.0, 2.0, 3.0))
    flat = face_normals(box.vertices, box.faces)
    assert np.allclose(corner_normals(box), flat[:, None], atol=1e-7)


def test_colour_order_is_material_then_file_then_grey() -> None:
    mesh = box_mesh((1.0, 1.0, 1.0))
    red = base_colours(Geometry("box", np.eye(4), mesh, rgba=(1.0, 0.0, 0.0, 1.0)))
    assert np.all(red[:, 0] == 255)
    assert np.all(red[:, 1] < 60)
    grey = base_colours(Geometry("box", np.eye(4), mesh))
    assert grey.shape == (12, 3)
    assert grey.min() > 150


def test_ball_is_brighter_towards_the_key_lamp_and_empty_outside() -> None:
    ball = Geometry("sphere", np.eye(4), sphere_mesh(0.2), rgba=(0.6, 0.6, 0.6, 1.0))
    camera = PinholeCamera(120, 120, np.array([[150.0, 0, 60], [0, 150, 60], [0, 0, 1]]))
    result = render_poses(Scene([(0, ball)], 1), from_rpy([0, 0, 0], [0, 0, 1.0])[None, None], camera, rgb=True)
    assert result.rgb is not None
    grey = result.rgb[0].mean(axis=-1)
    assert grey[45, 50] > grey[75, 70] + 20
    assert not result.rgb[0][result.link_ids[0] == 0].any()
    assert result.rgb[0][result.link_ids[0] > 0].min() > 10


def test_warp_gives_the_same_colours(primitive_arm: Robot) -> None:
    camera = PinholeCamera.look_at([1.2, -1.0, 0.9], [0.0, 0.0, 0.4], width=160, height=120, fov_y_deg=50.0)
    q = primitive_arm.home_position()[None]
    ours = render_pointmaps(primitive_arm, q, camera, rgb=True).rgb
    theirs = render_pointmaps(primitive_arm, q, camera, rgb=True, backend="warp").rgb
    assert ours is not None
    assert theirs is not None
    difference = np.abs(ours.astype(int) - theirs)
    assert ours.any()
    assert np.mean(difference.max(axis=-1) > 2) < 1e-3
