"""Renderer against an independent float64 ray cast: YAM, primitives, open meshes, clipping, random triangles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.raycast import cast, robot_triangles

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.transforms import from_rpy
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.render import NEAR_M, Scene, render_pointmaps, render_poses
from kinema4d_ros.robot import Geometry, Robot, TriangleMesh
from kinema4d_ros.robot.primitives import box_mesh, sphere_mesh

BACKENDS = ("numba", "warp")


def scene_of(*meshes: TriangleMesh) -> Scene:
    """Build a scene with one link per mesh."""
    return Scene([(i, Geometry("mesh", np.eye(4), mesh)) for i, mesh in enumerate(meshes)], len(meshes))


def soup(corners: NDArray[np.float64], closed: bool = False) -> TriangleMesh:
    """Build a mesh of triangles (N, 3, 3) that share no vertex."""
    return TriangleMesh(
        corners.reshape(-1, 3), np.arange(3 * len(corners), dtype=np.int32).reshape(-1, 3), None, closed
    )


def triangles_of(poses: NDArray[np.float64], *meshes: TriangleMesh) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return triangles and link ids of one frame of `scene_of(*meshes)`, as input of the ray cast."""
    corners = [(mesh.vertices @ T[:3, :3].T + T[:3, 3])[mesh.faces] for mesh, T in zip(meshes, poses, strict=True)]
    ids = [np.full(len(mesh.faces), i + 1) for i, mesh in enumerate(meshes)]
    return np.concatenate(corners), np.concatenate(ids)


def compare(xyz: NDArray[np.float32], ids: NDArray[np.uint8], judge, camera: PinholeCamera) -> tuple[int, int, float]:
    """Count pixels in only one mask and pixels in either; compute the mean distance, metres, where both agree."""
    ours, theirs = ids > 0, judge.ids > 0
    assert np.array_equal(np.isnan(xyz).all(axis=-1), ~ours)
    both = ours & theirs
    reference = camera.rays()[both] * judge.z[both][:, None]
    error = np.linalg.norm(xyz[both] - reference, axis=-1)
    return int((ours ^ theirs).sum()), int((ours | theirs).sum()), float(error.mean()) if both.any() else 0.0


def identity(count: int) -> NDArray[np.float64]:
    return np.tile(np.eye(4), (1, count, 1, 1))


def small_camera(width: int = 64, height: int = 48, focal: float = 50.0) -> PinholeCamera:
    return PinholeCamera(width, height, np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1.0]]))


def yam_path(robot: Robot, frames: int) -> NDArray[np.float64]:
    s = np.linspace(0.1, 0.6, frames)[:, None]
    lower, upper = np.maximum(robot.lower, -3.0), np.minimum(robot.upper, 3.0)
    return lower + s * (upper - lower)


@pytest.fixture(scope="module")
def yam_camera() -> PinholeCamera:
    return PinholeCamera.look_at([0.75, -0.7, 0.5], [0.15, 0.0, 0.25], width=720, height=480, fov_y_deg=34.0)


@pytest.mark.parametrize(("backend", "frames"), [("numba", 4), ("warp", 2)])
def test_yam_agrees_with_ray_cast(yam: Robot, yam_camera: PinholeCamera, backend: str, frames: int) -> None:
    q = yam_path(yam, frames)
    result = render_pointmaps(yam, q, yam_camera, backend=backend)
    camera_T_link = yam_camera.camera_T_base @ forward_all(yam, q)
    different = union = wrong_link = 0
    errors = []
    for t in range(frames):
        judge = cast(*robot_triangles(yam, camera_T_link[t]), yam_camera)
        wrong, pixels, error = compare(result.xyz[t], result.link_ids[t], judge, yam_camera)
        different, union = different + wrong, union + pixels
        errors.append(error)
        both = (result.link_ids[t] > 0) & (judge.ids > 0)
        wrong_link += int((result.link_ids[t] != judge.ids)[both].sum())
    assert union > frames * 20_000
    assert 1 - different / union >= 0.9999
    assert wrong_link / union <= 1e-4
    assert max(errors) <= 1e-6


def test_judge_box_is_wide_enough(yam: Robot) -> None:
    camera = PinholeCamera.look_at([0.5, -0.6, 0.5], [0.1, 0, 0.2], width=24, height=16, fov_y_deg=40.0)
    poses = camera.camera_T_base @ forward_all(yam, yam_path(yam, 1))
    triangles, ids = robot_triangles(yam, poses[0])
    boxed, brute = cast(triangles, ids, camera), cast(triangles, ids, camera, brute_force=True)
    assert np.array_equal(boxed.z, brute.z)
    assert (brute.ids > 0).sum() > 20


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("geometry", ["visual", "collision"])
def test_primitive_arm_agrees_with_ray_cast(primitive_arm: Robot, backend: str, geometry: str) -> None:
    camera = PinholeCamera.look_at([1.2, -1.0, 0.9], [0.0, 0.0, 0.4], width=300, height=200, fov_y_deg=50.0)
    q = primitive_arm.home_position()[None]
    result = render_pointmaps(primitive_arm, q, camera, backend=backend, geometry=geometry)
    poses = camera.camera_T_base @ forward_all(primitive_arm, q)
    judge = cast(*robot_triangles(primitive_arm, poses[0], geometry == "collision"), camera)
    wrong, pixels, error = compare(result.xyz[0], result.link_ids[0], judge, camera)
    assert pixels > 2000
    assert wrong == 0
    assert error <= 1e-6


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("depth", [0.009, 0.011, 0.02, 0.05])
def test_box_through_the_near_plane_is_clipped(backend: str, depth: float) -> None:
    box = box_mesh((0.3, 0.02, 0.4))
    T = from_rpy([0.3, 0.2, 0.1], [0.02, 0.01, depth])
    camera = small_camera(120, 80)
    result = render_poses(scene_of(box), T[None, None], camera, backend=backend)
    judge = cast(*triangles_of(T[None], box), camera, near=NEAR_M)
    wrong, pixels, error = compare(result.xyz[0], result.link_ids[0], judge, camera)
    assert pixels > 500
    assert wrong == 0
    assert error <= 1e-6


@pytest.mark.parametrize("backend", BACKENDS)
def test_camera_inside_a_closed_mesh_sees_its_wall(backend: str) -> None:
    ball = sphere_mesh(0.2)
    result = render_poses(
        scene_of(ball), from_rpy([0, 0, 0], [0.05, -0.03, 0.1])[None, None], small_camera(), backend=backend
    )
    assert np.all(result.link_ids == 1)
    judge = cast(*triangles_of(from_rpy([0, 0, 0], [0.05, -0.03, 0.1])[None], ball), small_camera())
    _, _, error = compare(result.xyz[0], result.link_ids[0], judge, small_camera())
    assert error <= 1e-6


@pytest.mark.parametrize("backend", BACKENDS)
def test_open_mesh_is_seen_from_both_sides(backend: str) -> None:
    plate = soup(np.array([[[-0.2, -0.2, 1.0], [0.2, -0.2, 1.0], [0.0, 0.2, 1.0]]]))
    turned = TriangleMesh(plate.vertices, plate.faces[:, ::-1].copy())
    front = render_poses(scene_of(plate), identity(1), small_camera(), backend=backend)
    back = render_poses(scene_of(turned), identity(1), small_camera(), backend=backend)
    assert (front.link_ids > 0).sum() > 100
    assert np.array_equal(front.link_ids, back.link_ids)
    assert np.allclose(front.xyz, back.xyz, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_shared_edges_through_pixel_centres_leave_no_hole(backend: str) -> None:
    # A plate of squares of 2 x 2 pixels whose edges and diagonals all pass through pixel centres.
    camera = PinholeCamera(32, 32, np.array([[32.0, 0, 16.5], [0, 32.0, 16.5], [0, 0, 1]]))
    n = 12
    ticks = (np.arange(n + 1) * 2 - n) / 32.0
    x, y = np.meshgrid(ticks, ticks)
    vertices = np.stack([x.ravel(), y.ravel(), np.ones(x.size)], axis=1)
    corner = (np.arange(n)[:, None] * (n + 1) + np.arange(n)).ravel()
    faces = np.concatenate(
        [np.stack([corner, corner + 1, corner + n + 2], 1), np.stack([corner, corner + n + 2, corner + n + 1], 1)]
    ).astype(np.int32)
    result = render_poses(scene_of(TriangleMesh(vertices, faces)), identity(1), camera, backend=backend)
    rows, columns = np.nonzero(result.link_ids[0])
    assert len(rows) == (2 * n) ** 2
    assert (rows.min(), columns.min()) == (16 - n, 16 - n)


@pytest.mark.parametrize("backend", BACKENDS)
def test_huge_triangles_keep_their_precision(backend: str) -> None:
    floor = soup(np.array([[[-1000.0, 0.3, -900.0], [1000.0, 0.3, -900.0], [3.0, 0.3, 5000.0]]]))
    camera = small_camera(160, 120, 90.0)
    result = render_poses(scene_of(floor), identity(1), camera, backend=backend)
    judge = cast(*triangles_of(identity(1)[0], floor), camera)
    wrong, pixels, _ = compare(result.xyz[0], result.link_ids[0], judge, camera)
    assert wrong == 0
    assert pixels > 5000
    seen = result.link_ids[0] > 0
    assert np.allclose(result.xyz[0][seen][:, 2], judge.z[seen], rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.02, 0.2, 1.5]), st.integers(1, 80))
def test_random_triangles_agree_with_ray_cast(seed: int, scale: float, count: int) -> None:
    rng = np.random.default_rng(seed)
    center = rng.uniform([-0.8, -0.6, -0.2], [0.8, 0.6, 1.5], (count, 1, 3))
    meshes = [soup(c) for c in np.array_split(center + rng.normal(0, scale, (count, 3, 3)), 2) if len(c)]
    K = np.array(
        [[rng.uniform(20, 80), 0, rng.uniform(0, 40)], [0, rng.uniform(20, 80), rng.uniform(0, 30)], [0, 0, 1]]
    )
    camera = PinholeCamera(40, 30, K)
    result = render_poses(scene_of(*meshes), identity(len(meshes)), camera)
    judge = cast(*triangles_of(identity(len(meshes))[0], *meshes), camera, brute_force=True)
    wrong, pixels, _ = compare(result.xyz[0], result.link_ids[0], judge, camera)
    # A pixel exactly on a silhouette is ambiguous; random triangles have none.
    assert wrong == 0
    both = result.link_ids[0] > 0
    assert np.allclose(result.xyz[0][both][:, 2], judge.z[both], rtol=1e-5, atol=1e-6)
    assert pixels == both.sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nearer_link_wins(backend: str) -> None:
    far, near = box_mesh((0.4, 0.4, 0.1)), box_mesh((0.1, 0.1, 0.1))
    poses = np.stack([from_rpy([0, 0, 0], [0, 0, 1.0]), from_rpy([0, 0, 0], [0, 0, 0.7])])
    for order in ([0, 1], [1, 0]):
        meshes = [(far, near)[i] for i in order]
        result = render_poses(scene_of(*meshes), poses[order][None], small_camera(), backend=backend)
        assert result.link_ids[0, 24, 32] == order.index(1) + 1
        assert result.xyz[0, 24, 32, 2] == pytest.approx(0.65, abs=1e-6)


@pytest.mark.parametrize("eye", [[2.0, 2.0, 2.0], [0.0, 0.0, 50.0]])
@pytest.mark.parametrize("backend", BACKENDS)
def test_robot_out_of_view_gives_empty_frames(primitive_arm: Robot, backend: str, eye: list[float]) -> None:
    camera = PinholeCamera.look_at(eye, [4.0, 4.0, 50.0], width=64, height=48, fov_y_deg=40.0)
    result = render_pointmaps(primitive_arm, primitive_arm.home_position()[None], camera, backend=backend, rgb=True)
    assert not result.link_ids.any()
    assert np.isnan(result.xyz).all()
    assert result.rgb is not None
    assert not result.rgb.any()


def test_same_result_for_any_number_of_threads_and_reused_memory(primitive_arm: Robot) -> None:
    camera = PinholeCamera.look_at([1.2, -1.0, 0.9], [0.0, 0.0, 0.4], width=160, height=120, fov_y_deg=50.0)
    q = yam_path(primitive_arm, 9)
    one = render_pointmaps(primitive_arm, q, camera, rgb=True, threads=1)
    two = render_pointmaps(primitive_arm, q, camera, rgb=True, threads=2)
    dirty = PointmapSequence(
        np.full_like(one.xyz, 7.0), np.full_like(one.link_ids, 9), camera, rgb=np.full_like(one.rgb, 3)
    )
    again = render_pointmaps(primitive_arm, q, camera, rgb=True, threads=3, out=dirty)
    assert again.xyz is dirty.xyz
    for other in (two, again):
        assert one.xyz.tobytes() == other.xyz.tobytes()
        assert one.link_ids.tobytes() == other.link_ids.tobytes()
        assert one.rgb.tobytes() == other.rgb.tobytes()
