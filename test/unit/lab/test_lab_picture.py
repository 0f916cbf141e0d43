from __future__ import annotations

import time

import numpy as np
import pytest

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import RenderError
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.lab import LabCamera, LabSimulation, Style
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot

SMALL = (180, 120)


@pytest.fixture(scope="module")
def small_camera(lab_camera: LabCamera) -> PinholeCamera:
    return lab_camera.camera.scaled(*SMALL)


def test_image_shows_robot_table_wall_and_target(shared_lab: LabSimulation, lab_camera: LabCamera) -> None:
    state = shared_lab.reset("dynamic", 1)
    image = lab_camera.capture(state, truth=True)
    assert image.rgb.shape == (480, 720, 3)
    assert image.rgb.std() > 20
    assert image.time_s == state.time_s
    for name in ("table", "back_wall", "link2", "gripper", state.target):
        assert image.mask(name).sum() > 100, name
    assert np.all(np.isfinite(image.depth_m[image.segmentation > 0]))  # type: ignore[index]


def test_robot_pixels_and_depth_match_the_twin(shared_lab: LabSimulation, lab_camera: LabCamera, yam: Robot) -> None:
    state = shared_lab.reset("canonical", 0)
    image = lab_camera.capture(state, truth=True)
    assert image.segmentation is not None
    assert image.depth_m is not None
    twin = render_pointmaps(yam, state.positions[None], lab_camera.camera)
    drawn = (image.segmentation > 0) & (image.segmentation <= len(yam.links))
    expected = twin.mask[0]
    assert (drawn & expected).sum() / (drawn | expected).sum() > 0.999
    both = drawn & expected & (image.segmentation == twin.link_ids[0])
    assert both.sum() > 0.999 * expected.sum()
    # The fingers settle within microns; all other links are exact.
    assert np.median(np.abs(image.depth_m[both] - twin.xyz[0, both, 2])) < 1e-5


def test_depth_matches_table_and_object(shared_lab: LabSimulation, lab_camera: LabCamera) -> None:
    state = shared_lab.reset("canonical", 2)
    image = lab_camera.capture(state, truth=True)
    camera = lab_camera.camera
    assert image.depth_m is not None
    p_base = apply(camera.base_T_camera, camera.rays() * image.depth_m[..., None])
    p_table = p_base[image.mask("table")]
    x0, x1, y0, y1 = shared_lab.room.table
    low, high = np.array([x0, y0]) + 0.005, np.array([x1, y1]) - 0.005
    inner = np.all((p_table[:, :2] > low) & (p_table[:, :2] < high), axis=1)
    assert inner.mean() > 0.9
    assert np.abs(p_table[inner, 2]).max() < 1e-6
    target = state.objects[state.target]
    away = np.abs(p_base[image.mask(state.target)] - target.position)
    assert away.max() < np.hypot(target.object.radius, target.object.height / 2) + 1e-3


def test_object_pixels_have_the_object_colour(shared_lab: LabSimulation, lab_camera: LabCamera) -> None:
    state = shared_lab.reset("cluttered", 0)
    image = lab_camera.capture(state, truth=True)
    for name, placed in state.objects.items():
        mask = image.mask(name)
        if mask.sum() < 80 or max(placed.object.rgb) - min(placed.object.rgb) < 0.3:
            continue
        mean = image.rgb[mask].mean(axis=0)
        assert np.argmax(mean) == np.argmax(placed.object.rgb), name
        assert np.argmin(mean) == np.argmin(placed.object.rgb), name


def test_arm_casts_a_shadow_on_the_table(shared_lab: LabSimulation, lab_camera: LabCamera) -> None:
    state = shared_lab.reset("canonical", 0)
    image = lab_camera.capture(state, truth=True)
    camera = lab_camera.camera
    tool = state.base_T_link[[link.name for link in shared_lab.robot.links].index("gripper"), :3, 3]
    lamp = np.array(Style().lamp)
    shaded = lamp + (tool - lamp) * (lamp[2] / (lamp[2] - tool[2]))
    lit = shaded + np.array([0.25, 0.0, 0.0])
    means = []
    for point in (shaded, lit):
        u, v = camera.project(apply(camera.camera_T_base, point[None]))[0].astype(int)
        assert image.mask("table")[v, u]
        means.append(image.rgb[v - 3 : v + 4, u - 3 : u + 4].mean())
    assert means[0] < 0.85 * means[1]


def test_equal_states_give_equal_images_for_any_thread_count(
    shared_lab: LabSimulation, small_camera: PinholeCamera
) -> None:
    state = shared_lab.reset("dynamic", 2)
    one = LabCamera.of(shared_lab, small_camera).capture(state)
    three = LabCamera.of(shared_lab, small_camera, threads=3).capture(state)
    assert np.array_equal(one.rgb, three.rgb)


def test_image_is_rendered_again_only_when_the_scene_changes(
    shared_lab: LabSimulation, small_camera: PinholeCamera
) -> None:
    camera = LabCamera.of(shared_lab, small_camera)
    state = shared_lab.reset("canonical", 0)
    first = camera.capture(state, truth=True)
    first.rgb[:] = 0
    again = camera.capture(state, truth=True)
    assert again.rgb.std() > 20
    pose = state.objects[state.target].base_T_object.copy()
    pose[1, 3] -= 0.05
    shared_lab.move_object(state.target, pose)
    moved = camera.capture(shared_lab, truth=True)
    assert not np.array_equal(moved.rgb, again.rgb)
    assert not np.array_equal(moved.mask(state.target), again.mask(state.target))
    # Another scene with the same number of objects also gives another image.
    other = camera.capture(shared_lab.reset("canonical", 1), truth=True)
    assert not np.array_equal(other.rgb, again.rgb)


def test_styles_differ_and_noise_is_seeded(shared_lab: LabSimulation, small_camera: PinholeCamera) -> None:
    state = shared_lab.reset("canonical", 0)
    pictures = [
        LabCamera.of(shared_lab, small_camera, style=Style.varied(seed)).capture(state).rgb for seed in range(3)
    ]
    assert not np.array_equal(pictures[0], pictures[1])
    assert not np.array_equal(pictures[1], pictures[2])
    assert Style.varied(1) == Style.varied(1)
    clean = LabCamera.of(shared_lab, small_camera).capture(state).rgb.astype(float)
    noisy = [LabCamera.of(shared_lab, small_camera, noise=4.0).capture(state).rgb for _ in range(2)]
    assert np.array_equal(noisy[0], noisy[1])
    assert 2.5 < (noisy[0] - clean)[(clean > 40).all(axis=-1) & (clean < 215).all(axis=-1)].std() < 4.5


@pytest.mark.parametrize("options", [{"threads": 0}, {"noise": -1.0}, {"noise": float("nan")}])
def test_bad_options_are_rejected(yam: Robot, options: dict[str, float]) -> None:
    with pytest.raises(RenderError):
        LabCamera(yam, **options)  # type: ignore[arg-type]


def test_masks_need_truth_and_a_known_name(shared_lab: LabSimulation, small_camera: PinholeCamera) -> None:
    camera = LabCamera.of(shared_lab, small_camera)
    with pytest.raises(RenderError, match="no segmentation"):
        camera.capture(shared_lab).mask("table")
    with pytest.raises(RenderError, match="teapot"):
        camera.capture(shared_lab, truth=True).mask("teapot")


def test_lens_distortion_follows_the_camera_model(shared_lab: LabSimulation, small_camera: PinholeCamera) -> None:
    state = shared_lab.reset("canonical", 0)
    bent_camera = PinholeCamera(
        *SMALL, small_camera.K, small_camera.base_T_camera, distortion=(-0.25, 0.06, 0.0, 0.0, 0.0)
    )
    bent = LabCamera.of(shared_lab, bent_camera).capture(state, truth=True)
    straight = LabCamera.of(shared_lab, small_camera).capture(state, truth=True)
    assert bent.rgb.shape == straight.rgb.shape
    # Barrel distortion widens the view beyond the pinhole image: the corners must not be black.
    assert bent.segmentation is not None
    assert (bent.segmentation > 0).mean() > 0.999
    inside = np.zeros(SMALL[::-1], bool)
    inside[8:-8, 8:-8] = True
    flat = straight.mask("table") & inside
    errors = []
    for depth in (bent.depth_m, bent_camera.rectify(bent.depth_m, "nearest")):
        errors.append(float(np.mean(np.abs(depth - straight.depth_m)[flat])))
    assert errors[1] < 0.001 < 0.004 < errors[0]
    rectified = bent_camera.rectify(bent.rgb).astype(float)
    before, after = np.abs(bent.rgb.astype(float) - straight.rgb), np.abs(rectified - straight.rgb)
    assert after[inside].mean() < 0.8 * before[inside].mean()
    # The remaining difference is from two interpolations at edges.
    assert np.median(after[inside]) <= 1.0
    assert after[inside].mean() < 4.0


def test_speed_of_the_camera(shared_lab: LabSimulation, lab_camera: LabCamera) -> None:
    states = []
    shared_lab.reset("dynamic", 0)
    for name in list(shared_lab.state().objects)[:3]:
        pose = shared_lab.state().objects[name].base_T_object.copy()
        pose[2, 3] += 0.002
        shared_lab.move_object(name, pose)
        states.append(shared_lab.state())
    lab_camera.capture(states[0])
    started = time.process_time()
    pictures = [lab_camera.capture(state).rgb for state in states[1:]]
    print(f"{(len(states) - 1) / (time.process_time() - started):.1f} images of 480 x 720 per second on one core")
    assert not np.array_equal(*pictures)
