"""Drawing of a simulated draft: own pixels, exact points, the robot's colours, its missing parts, moving shadows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.scenes import Box, cast_world

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import GeneratorError
from kinema4d_ros.core.outcomes import PointBasis
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.transforms import make
from kinema4d_ros.generators.draft._draw_kernels import cast_shapes
from kinema4d_ros.generators.draft.draw import SceneDrawer
from kinema4d_ros.generators.draft.scene import Estimate, FittedObject, FittedScene
from kinema4d_ros.generators.draft.shadows import estimate_lighting, robot_points
from kinema4d_ros.generators.draft.solids import make_solids

WIDTH, HEIGHT, FRAMES = 240, 160, 3
TABLE = np.array([150, 146, 140])
LAMP = np.array([0.6, 0.9, 1.5])
ARM: tuple[Box, ...] = (((0.0, 0.0, 0.15), (0.06, 0.06, 0.30)), ((0.12, 0.0, 0.27), (0.20, 0.05, 0.05)))
"""A post and a beam: the robot of frame 0."""
CUBE = (0.05, 0.05, 0.05)
SPOT, REST = np.array([0.28, -0.10, 0.025]), np.array([0.30, 0.14, 0.025])


def camera() -> PinholeCamera:
    return PinholeCamera.look_at((0.75, -0.65, 0.7), (0.15, 0.0, 0.08), width=WIDTH, height=HEIGHT, focal_px=250.0)


def boxes_of_arm(turned: bool) -> list[Box]:
    """Return the arm; `turned`: its beam points to the side."""
    beam: Box = ((0.0, 0.12, 0.27), (0.05, 0.20, 0.05)) if turned else ARM[1]
    return [ARM[0], beam]


def robot(colour: tuple[int, int, int] = (90, 90, 90)) -> PointmapSequence:
    """Return three frames: the beam is turned in the last two."""
    view = camera()
    frames = []
    for t in range(FRAMES):
        arm = boxes_of_arm(t > 0)
        xyz = cast_world(view, arm, plane_z=None)
        post = cast_world(view, arm[:1], plane_z=None)
        seen = np.isfinite(xyz[..., 2])
        ids = np.where(seen, np.where(np.isclose(xyz[..., 2], post[..., 2]), 1, 2), 0)
        frames.append((xyz, ids.astype(np.uint8)))
    ids = np.stack([f[1] for f in frames])
    rgb = np.where(ids[..., None] > 0, np.array(colour), 0).astype(np.uint8)
    return PointmapSequence(np.stack([f[0] for f in frames]), ids, view, 0.2 * np.arange(FRAMES), rgb)


def in_shadow(points: NDArray[np.float64], boxes: list[Box], lamp: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether a box is between points (..., 3) and the lamp."""
    d = lamp - points
    hit = np.zeros(points.shape[:-1], np.bool_)
    with np.errstate(divide="ignore", invalid="ignore"):
        for center, size in boxes:
            half = np.asarray(size) / 2
            near, far = (np.asarray(center) - half - points) / d, (np.asarray(center) + half - points) / d
            enter, leave = np.minimum(near, far).max(-1), np.maximum(near, far).min(-1)
            hit |= (enter < leave) & (leave > 1e-3) & (enter < 1)
    return hit


def photo(
    arm: list[Box], cubes: list[Box], *, painted: tuple[int, int, int] = (90, 90, 90), lamp: bool = True
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return image and depth of a table with cubes (their left half red, the right yellow) and the arm."""
    view = camera()
    xyz = cast_world(view, [*arm, *cubes])
    plane, bare = cast_world(view), cast_world(view, cubes)
    p = xyz.astype(np.float64) @ view.base_T_camera[:3, :3].T + view.base_T_camera[:3, 3]
    noise = np.random.default_rng(0).normal(0, 2, xyz.shape[:2])[..., None]
    rgb = TABLE + noise
    if lamp:
        rgb = np.where(in_shadow(p, [*arm, *cubes], LAMP)[..., None], 0.6 * rgb, rgb)
    for center, _ in cubes:
        mine = (bare[..., 2] < plane[..., 2] - 1e-4) & (np.abs(p[..., :2] - np.asarray(center)[:2]).max(-1) < 0.03)
        rgb[mine] = np.where((p[mine][:, 1] < center[1])[:, None], (200, 30, 30), (220, 200, 20))
    rgb[xyz[..., 2] < bare[..., 2] - 1e-4] = painted
    return np.clip(rgb, 0, 255).astype(np.uint8), np.ascontiguousarray(xyz[..., 2])


def fitted(image_boxes: list[Box]) -> FittedScene:
    """Return the true cubes as a fit, with masks as the arm leaves them visible."""
    view, objects = camera(), []
    plane = cast_world(view, boxes_of_arm(False))
    for i, box in enumerate(image_boxes):
        mask = cast_world(view, [*boxes_of_arm(False), box])[..., 2] < plane[..., 2] - 1e-4
        pose = make(None, box[0])
        objects.append(FittedObject(f"object_{i + 1}", mask, (Estimate("box", CUBE, pose),), 0.0, "measured"))
    return FittedScene(tuple(objects), 0.0)


CUBES: list[Box] = [(SPOT.tolist(), CUBE), (REST.tolist(), CUBE)]
AWAY = np.array([0.05, 0.02, 0.06])
"""How far the first cube is carried."""


def motion() -> NDArray[np.float64]:
    poses = np.stack([np.stack([make(None, SPOT), make(None, REST)])] * FRAMES)
    poses[1:, 0, :3, 3] += AWAY
    return poses


def red(rgb: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return (rgb[..., 0] > 140) & (rgb[..., 1] < 90)


def yellow(rgb: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return (rgb[..., 0] > 150) & (rgb[..., 1] > 140) & (rgb[..., 2] < 80)


@pytest.fixture(scope="module", params=["depth", "rgb"])
def drawn(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    """Image, drawer and drawing of the carried cube, with and without measured depth."""
    image, depth = photo(boxes_of_arm(False), CUBES)
    scene = fitted(CUBES)
    drawer = SceneDrawer(image, robot(), scene, depth=depth if request.param == "depth" else None, quick_fill=True)
    drawing = drawer.draw(robot(), motion(), [o.estimates[0] for o in scene.objects])
    return image, drawer, drawing, request.param == "depth"


def test_the_first_frame_is_the_picture(drawn) -> None:  # type: ignore[no-untyped-def]
    image, _, drawing, measured = drawn
    assert np.array_equal(drawing.frames.rgb[0], image)
    mask = drawing.frames.robot_mask[0]
    assert np.array_equal(mask, robot().link_ids[0] != 0)
    assert np.array_equal(drawing.frames.xyz[0][mask], robot().xyz[0][mask])
    true = cast_world(camera(), [*boxes_of_arm(False), *CUBES])
    assert np.nanmedian(np.abs(drawing.frames.xyz[0] - true)) < 1e-4
    codes = set(np.unique(drawing.basis[0]).tolist())
    assert codes <= (
        {PointBasis.MEASURED, PointBasis.ROBOT}
        if measured
        else {PointBasis.PLANE, PointBasis.FITTED, PointBasis.ROBOT, 0}
    )


def test_an_object_at_rest_keeps_its_pixels(drawn) -> None:  # type: ignore[no-untyped-def]
    image, drawer, drawing, _ = drawn
    mask = drawer.scene.objects[1].mask & ~drawing.frames.robot_mask.any(0) & ~drawer._hole
    assert mask.sum() > 100
    for t in range(FRAMES):
        assert np.array_equal(drawing.frames.rgb[t][mask], image[mask])


def test_a_moved_object_has_its_own_pixels_and_the_points_of_its_pose(drawn) -> None:  # type: ignore[no-untyped-def]
    _, _, drawing, _ = drawn
    moved: list[Box] = [((SPOT + AWAY).tolist(), CUBE)]
    true = cast_world(camera(), moved)
    mine = (true[..., 2] < cast_world(camera())[..., 2] - 1e-4) & ~drawing.frames.robot_mask[2]
    assert np.abs(drawing.frames.xyz[2][mine] - true[mine]).max() < 1e-4
    assert (drawing.basis[2][mine] == PointBasis.FITTED).all()
    p = true.astype(np.float64) @ camera().base_T_camera[:3, :3].T + camera().base_T_camera[:3, 3]
    side = p[..., 1] - (SPOT + AWAY)[1]
    assert red(drawing.frames.rgb[2])[mine & (side < -0.006)].mean() > 0.85
    assert yellow(drawing.frames.rgb[2])[mine & (side > 0.006)].mean() > 0.85


def test_where_it_stood_is_table(drawn) -> None:  # type: ignore[no-untyped-def]
    _, drawer, drawing, _ = drawn
    gone = drawer.scene.objects[0].mask & (drawing.basis[2] == PointBasis.PLANE)
    assert gone.sum() > 100
    table = cast_world(camera())
    assert np.abs(drawing.frames.xyz[2][gone] - table[gone]).max() < 1e-4
    assert not (red(drawing.frames.rgb[2]) | yellow(drawing.frames.rgb[2]))[gone].any()


def test_the_shadow_moves_with_the_arm(drawn) -> None:  # type: ignore[no-untyped-def]
    image, drawer, drawing, _ = drawn
    assert drawer.lighting is not None
    there = np.array([0.1, 0.0, 0.1])
    angle = np.degrees(np.arccos(drawer.lighting.direction(there) @ ((LAMP - there) / np.linalg.norm(LAMP - there))))
    assert angle < 8
    after, depth = photo(boxes_of_arm(True), [((SPOT + AWAY).tolist(), CUBE), CUBES[1]])
    table = np.abs(depth - cast_world(camera())[..., 2]) < 1e-4
    first = np.abs(photo(boxes_of_arm(False), CUBES)[1] - cast_world(camera())[..., 2]) < 1e-4
    changed = table & first & (np.abs(after.astype(int) - image).max(-1) > 25)
    assert changed.sum() > 300

    def error(rgb: NDArray[np.uint8]) -> float:
        return float(((rgb.astype(float) - after)[changed] ** 2).mean())

    # + 3 dB against the still world.
    assert error(drawing.frames.rgb[2]) < 0.5 * error(image)


def test_without_a_visible_shadow_there_is_no_lamp() -> None:
    image, _ = photo(boxes_of_arm(False), [], lamp=False)
    arm, view = robot(), camera()
    table = (arm.link_ids[0] == 0) & np.isfinite(cast_world(view)[..., 2])
    points = robot_points(arm.xyz[0], arm.link_ids[0], view, 1)
    assert estimate_lighting(image, table, view, points, 0.0) is None


def test_the_robot_is_drawn_in_the_colours_of_the_picture() -> None:
    image, _ = photo(boxes_of_arm(False), [], painted=(30, 60, 180))
    drawing = SceneDrawer(image, robot((90, 90, 90)), FittedScene((), 0.0), quick_fill=True).draw(
        robot((90, 90, 90)), np.zeros((FRAMES, 0, 4, 4)), []
    )
    inner = drawing.frames.robot_mask[2] & (robot().link_ids[0] == 0)
    colour = np.median(drawing.frames.rgb[2][inner], axis=0)
    assert np.abs(colour - (30, 60, 180)).max() < 25


def test_a_turned_link_wears_its_own_paint() -> None:
    """The far half of the beam is blue, the near half orange; the beam turns by 90 degrees about the post."""
    image, _ = photo(boxes_of_arm(False), [], painted=(200, 120, 30), lamp=False)
    arm, view = robot(), camera()
    p = arm.xyz[0].astype(np.float64) @ view.base_T_camera[:3, :3].T + view.base_T_camera[:3, 3]
    image[(arm.link_ids[0] == 2) & (p[..., 0] > 0.12)] = (30, 60, 200)
    links = np.tile(np.eye(4), (FRAMES, 2, 1, 1))
    links[1:, 1, :2, :2] = [[0, -1], [1, 0]]
    drawer = SceneDrawer(image, arm, FittedScene((), 0.0), quick_fill=True)
    rgb = drawer.frames(arm, np.zeros((FRAMES, 0, 4, 4)), [], links).rgb[2].astype(int)
    p = arm.xyz[2].astype(np.float64) @ view.base_T_camera[:3, :3].T + view.base_T_camera[:3, 3]
    top = (arm.link_ids[2] == 2) & (p[..., 2] > 0.2949)
    far, near = top & (p[..., 1] > 0.14) & (p[..., 1] < 0.20), top & (p[..., 1] < 0.10) & (p[..., 1] > 0.05)
    assert min(far.sum(), near.sum()) > 20
    assert (rgb[far][:, 2] > rgb[far][:, 0] + 60).mean() > 0.9
    assert (rgb[near][:, 0] > rgb[near][:, 2] + 60).mean() > 0.9


def test_shapes_are_cast_where_they_are() -> None:
    """A hull of a box's corners is that box, and every shape spans its size."""
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) * np.asarray(CUBE) / 2
    pose = make(None, SPOT)
    kinds: list[tuple[Any, NDArray[np.float64] | None]] = [
        ("box", None), ("cylinder", None), ("sphere", None), ("bin", None), ("hull", corners)
    ]  # fmt: skip
    seen = []
    for shape, vertices in kinds:
        solids = make_solids([Estimate(shape, CUBE, pose, 1.0, vertices)])
        p = solids.points(0, 0.004)
        assert np.allclose(np.ptp(p, axis=0), CUBE, atol=2e-3)
        z, who = np.full((HEIGHT, WIDTH), np.inf, np.float32), np.zeros((HEIGHT, WIDTH), np.uint8)
        normal, windows = np.zeros((HEIGHT, WIDTH, 3), np.float32), np.zeros((1, 4), np.int64)
        poses = (camera().camera_T_base @ pose)[None]
        cast_shapes(*solids.arrays, poses, np.ones(1, np.bool_), camera().K, z, who, normal, windows)
        seen.append(z)
    true = cast_world(camera(), [(SPOT.tolist(), CUBE)], plane_z=None)[..., 2]
    hit = np.isfinite(true)
    assert np.array_equal(np.isfinite(seen[0]), hit)
    assert np.abs(seen[0][hit] - true[hit]).max() < 1e-5
    assert np.allclose(seen[4], seen[0], atol=1e-5)
    for other in seen[1:4]:
        inside = np.isfinite(other)
        assert 0.4 * hit.sum() < inside.sum() <= hit.sum()
        assert (other[inside] >= true[inside] - 1e-5).all()


@pytest.mark.parametrize("with_depth", [True, False])
def test_a_cable_on_the_arm_does_not_stay_in_the_air(with_depth: bool) -> None:
    cable: Box = ((0.23, 0.0, 0.25), (0.02, 0.02, 0.08))
    image, depth = photo([*boxes_of_arm(False), cable], [], painted=(20, 20, 20), lamp=False)
    scene = FittedScene((), 0.0)
    drawer = SceneDrawer(image, robot(), scene, depth=depth if with_depth else None, quick_fill=True)
    drawing = drawer.draw(robot(), np.zeros((FRAMES, 0, 4, 4)), [])
    view = camera()
    seen = cast_world(view, [*boxes_of_arm(False), cable])[..., 2]
    only = (seen < cast_world(view, boxes_of_arm(False))[..., 2] - 1e-4) & ~drawing.frames.robot_mask[2]
    assert only.sum() > 40
    assert (drawing.frames.rgb[2][only].mean(-1) < 80).mean() < 0.05


def test_a_cable_moves_with_its_link_where_its_depth_is_known() -> None:
    cable: Box = ((0.23, 0.0, 0.25), (0.02, 0.02, 0.08))
    image, depth = photo([*boxes_of_arm(False), cable], [], painted=(20, 20, 20), lamp=False)
    links = np.tile(np.eye(4), (FRAMES, 2, 1, 1))
    links[1:, 1, :2, :2] = [[0, -1], [1, 0]]
    drawer = SceneDrawer(
        image, robot(), FittedScene((), 0.0), depth=depth, quick_fill=True, shadows=False, base_T_link=links[0]
    )
    drawing = drawer.draw(robot(), np.zeros((FRAMES, 0, 4, 4)), [], links)
    view = camera()
    part = drawing.basis[2] == PointBasis.FITTED
    assert part.sum() > 20
    p = drawing.frames.xyz[2][part] @ view.base_T_camera[:3, :3].T + view.base_T_camera[:3, 3]
    assert np.abs(p - (0.0, 0.23, 0.25)).max(0) == pytest.approx((0.01, 0.01, 0.04), abs=0.006)
    assert (drawing.frames.rgb[2][part].mean(-1) < 90).mean() > 0.8
    assert not (part & drawing.frames.robot_mask[2]).any()


def test_poses_must_fit_the_scene() -> None:
    image, depth = photo(boxes_of_arm(False), CUBES)
    scene = fitted(CUBES)
    drawer = SceneDrawer(image, robot(), scene, depth=depth, quick_fill=True, shadows=False)
    with pytest.raises(GeneratorError, match="estimates"):
        drawer.draw(robot(), motion()[:, :1], [o.estimates[0] for o in scene.objects])
