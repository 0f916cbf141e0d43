"""Prompts, rendered masks and the classical segmenter: accuracy, errors, and empty results."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.panda_like import HOME, panda_like

from kinema4d_ros.calibration import save_camera
from kinema4d_ros.calibration.inputs import marked_masks, read_masks
from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.calibration.silhouette import mask_iou
from kinema4d_ros.cli import main
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.io.images import write_image
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.segmentation import (
    ClassicalSegmenter,
    Prompt,
    RenderedSegmenter,
    RobotSegmenter,
    SegmentationError,
    best_method,
    make_segmenter,
    rendered_masks,
)
from kinema4d_ros.segmentation.classical import compare, median_background, relight

CAMERA = PinholeCamera.look_at((0.9, -0.7, 0.6), (0.2, 0.0, 0.2), width=240, height=160, focal_px=210)
Q = np.array(
    [
        [0.0, 1.2, 1.0, -0.6, 0.0, 0.0],
        [0.8, 0.7, 1.4, -0.3, 0.2, 0.0],
        [-0.8, 1.6, 1.2, 0.2, -0.3, 0.5],
        [0.4, 2.0, 1.5, 0.1, 0.1, 0.0],
        [-0.4, 0.9, 0.6, 0.4, 0.0, 1.0],
        [1.2, 1.4, 1.8, -0.4, 0.3, 0.0],
    ]
)


def joints(robot: Robot) -> NDArray[np.float64]:
    q = np.tile(robot.home_position(), (len(Q), 1))
    q[:, :6] = Q
    return q


def empty_scene() -> NDArray[np.uint8]:
    y, x = np.indices((CAMERA.height, CAMERA.width))
    wood = 150 + 30 * np.sin(x / 9 + 3 * np.sin(y / 31)) + 0.2 * y
    return np.clip(np.stack([wood, 0.85 * wood, 0.7 * wood], axis=2), 0, 255).astype(np.uint8)


def pictures(robot: Robot, *, light: float = 0.2, noise: float = 4.0) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Render the robot over the scene with a soft shadow, different light in each image and noise; and its masks."""
    rng = np.random.default_rng(3)
    drawn = render_pointmaps(robot, joints(robot), CAMERA, rgb=True)
    assert drawn.rgb is not None
    y, x = np.indices((CAMERA.height, CAMERA.width))
    out = []
    for rgb, mask in zip(drawn.rgb, drawn.mask, strict=True):
        shadow = cv2.GaussianBlur(np.roll(mask, (25, 40), (0, 1)).astype(np.float32), (0, 0), 5)
        scene = empty_scene() * (1 - 0.35 * shadow[..., None])
        scene = np.where(mask[..., None], 0.45 * rgb + np.array([0, 4, 12]), scene)
        scene = cv2.GaussianBlur(scene, (0, 0), 0.6)
        a = rng.uniform(0, 2 * np.pi)
        slope = (x / CAMERA.width - 0.5) * np.cos(a) + (y / CAMERA.height - 0.5) * np.sin(a)
        gain = (1 + light * slope)[..., None] * (1 + light * rng.uniform(-0.5, 0.5)) * rng.uniform(1 - light / 4, 1, 3)
        out.append(np.clip(np.rint(scene * gain + rng.normal(0, noise, scene.shape)), 0, 255).astype(np.uint8))
    return np.stack(out), drawn.mask


@pytest.fixture(scope="module")
def seen(yam: Robot) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    return pictures(yam)


def test_rendered_mask_equals_the_renderer_output(yam: Robot) -> None:
    segmenter = RenderedSegmenter(yam, CAMERA, joints(yam))
    blank = np.zeros((len(Q), CAMERA.height, CAMERA.width, 3), np.uint8)
    found = segmenter.segment(blank)
    assert np.array_equal(found.masks, render_pointmaps(yam, joints(yam), CAMERA).mask)
    assert found.scores.tolist() == [1.0] * len(Q)
    assert found.empty == ()
    assert isinstance(segmenter, RobotSegmenter)
    one = RenderedSegmenter(yam, CAMERA, joints(yam)[:1])
    assert one.segment(blank[0]).masks.shape == (CAMERA.height, CAMERA.width)
    assert one.segment(blank).masks.shape == blank.shape[:3]


def test_rendered_mask_includes_lens_distortion(yam: Robot) -> None:
    bent = PinholeCamera(240, 160, CAMERA.K, base_T_camera=CAMERA.base_T_camera, distortion=(-0.25, 0.05, 0, 0, 0))
    straight = rendered_masks(yam, joints(yam)[0], CAMERA)[0]
    through = rendered_masks(yam, joints(yam)[0], bent)[0]
    assert not np.array_equal(straight, through)
    # Rectified, it equals the pinhole mask except for sampling errors at the outline.
    again = bent.rectify(through.astype(np.uint8), "nearest") != 0
    assert mask_iou(again, straight) > 0.93


def test_rendered_refuses_mismatched_input(yam: Robot) -> None:
    segmenter = RenderedSegmenter(yam, CAMERA, joints(yam))
    with pytest.raises(SegmentationError, match="6 joint configurations and 2 images"):
        segmenter.segment(np.zeros((2, 160, 240, 3), np.uint8))
    with pytest.raises(SegmentationError) as error:
        segmenter.segment(np.zeros((6, 100, 240, 3), np.uint8))
    assert error.value.code == ErrorCode.CAMERA_BAD_SIZE


def test_robot_out_of_view_gives_an_empty_mask(yam: Robot) -> None:
    away = PinholeCamera.look_at((0.9, -0.7, 0.6), (5.0, -5.0, 0.6), width=60, height=40, focal_px=60)
    found = RenderedSegmenter(yam, away, joints(yam)[:1]).segment(np.zeros((40, 60, 3), np.uint8))
    assert found.empty == (0,)
    assert found.scores.tolist() == [0.0]
    assert "no robot found in 1 of 1" in found.notes[0]


def test_background_image_separates_robot_and_shadow(
    seen: tuple[NDArray[np.uint8], NDArray[np.bool_]],
) -> None:
    images, truth = seen
    told: list[int] = []
    found = ClassicalSegmenter(empty_scene()).segment(images, progress=lambda done, _: told.append(done))
    assert [mask_iou(a, b) > 0.85 for a, b in zip(found.masks, truth, strict=True)] == [True] * len(Q)
    assert told == [1, 2, 3, 4, 5, 6]
    assert (found.scores > 0.6).all()
    assert np.array_equal(ClassicalSegmenter(empty_scene()).segment(images[0]).masks, found.masks[0])


def test_the_median_of_a_video_serves_as_background(seen: tuple[NDArray[np.uint8], NDArray[np.bool_]]) -> None:
    images, truth = seen
    background = median_background(images)
    moved = truth.mean(axis=0) < 0.5
    away = np.abs(background.astype(int) - relight(empty_scene(), images[0]))[moved]
    assert np.median(away) < 6
    found = ClassicalSegmenter().segment(images)
    moving = np.broadcast_to(moved, truth.shape)
    assert mask_iou(found.masks & moving, truth & moving) > 0.75
    assert any("never move" in note for note in found.notes)


def test_rendered_prompt_from_a_wrong_camera_finds_the_robot(
    yam: Robot, seen: tuple[NDArray[np.uint8], NDArray[np.bool_]]
) -> None:
    images, truth = seen
    wrong = CAMERA.posed(changed(CAMERA.base_T_camera, [0.008, -0.006, 0.004, 0.006, 0.008, -0.004]))
    prior = rendered_masks(yam, joints(yam), wrong)
    for i in (0, 1):
        alone = ClassicalSegmenter().segment(images[i], Prompt(mask=prior[i]))
        assert mask_iou(alone.masks, truth[i]) > max(0.8, mask_iou(prior[i], truth[i]))
        assert 0 < alone.scores[0] <= 1
        assert (alone.drawn, alone.doubtful) == ((), ())
    both = ClassicalSegmenter(empty_scene()).segment(images, Prompt(mask=prior))
    assert mask_iou(both.masks, truth) > 0.85


def test_a_mask_worse_than_its_prompt_is_not_returned(tmp_path: Path) -> None:
    """Segment a white arm with a black gripper in front of an equally dark table."""
    robot, q = panda_like(tmp_path), np.array([HOME])
    eye = PinholeCamera.look_at((1.1, -0.9, 0.7), (0.25, 0.0, 0.4), width=240, height=180, focal_px=220)
    drawn = render_pointmaps(robot, q, eye, rgb=True)
    truth = drawn.mask[0]
    assert drawn.rgb is not None
    scene = np.full((180, 240, 3), (150, 140, 120), np.uint8)
    scene[100:] = (35, 35, 38)
    scene = np.where(truth[..., None], drawn.rgb[0], scene)
    noise = np.random.default_rng(0).normal(0, 3, scene.shape)
    image = np.clip(cv2.GaussianBlur(scene.astype(np.float64), (0, 0), 0.6) + noise, 0, 255).astype(np.uint8)
    near, far = (
        rendered_masks(robot, q, eye.posed(changed(eye.base_T_camera, change)))[0]
        for change in ([0.002, -0.002, 0.002, 0.001, 0.002, -0.001], [0.02, -0.02, 0.02, 0.005, 0.01, 0.0])
    )
    found = ClassicalSegmenter().segment(image, Prompt(mask=near))
    assert mask_iou(found.masks, truth) >= mask_iou(near, truth) > 0.9
    assert found.drawn == (0,)
    assert any("the prompt mask was kept" in note for note in found.notes)
    unsure = ClassicalSegmenter().segment(image, Prompt(mask=far))
    assert (unsure.drawn, unsure.doubtful) == ((), (0,))
    assert any("doubtful" in note for note in unsure.notes)


def test_a_box_and_points_work_without_background(seen: tuple[NDArray[np.uint8], NDArray[np.bool_]]) -> None:
    images, truth = seen
    rows, columns = np.nonzero(truth[0])
    box = [max(columns.min() - 4, 0), max(rows.min() - 4, 0), min(columns.max() + 5, 240), min(rows.max() + 5, 160)]
    found = ClassicalSegmenter().segment(images[0], Prompt(boxes=box))
    assert mask_iou(found.masks, truth[0]) > 0.7
    middle = [float(columns[0]) + 0.5, float(rows[0]) + 0.5]
    pointed = ClassicalSegmenter().segment(images[0], Prompt(boxes=box, points=[middle, [1, 1]], labels=[1, 0]))
    assert pointed.masks[rows[0], columns[0]]
    assert not pointed.masks[1, 1]


def test_unchanged_image_gives_an_empty_mask(seen: tuple[NDArray[np.uint8], NDArray[np.bool_]]) -> None:
    scene = empty_scene()
    darker = np.rint(0.8 * scene).astype(np.uint8)
    found = ClassicalSegmenter(scene).segment(darker)
    assert found.empty == (0,)
    assert found.scores.tolist() == [0.0]
    nowhere = ClassicalSegmenter().segment(seen[0][0], Prompt(mask=np.zeros((160, 240), np.bool_)))
    assert nowhere.empty == (0,)


def test_changed_light_is_ignored() -> None:
    scene = empty_scene()
    x = np.linspace(0.75, 1.05, scene.shape[1])[None, :, None]
    lit = np.clip(np.rint(scene * x * (1.0, 0.95, 0.85)), 0, 255).astype(np.uint8)
    assert compare(lit, scene).changed.mean() < 0.002
    assert np.abs(relight(scene, lit) - lit).mean() < 1.0


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((0, 0, 3), np.uint8),
        np.zeros((0, 16, 24, 3), np.uint8),
        np.zeros((16, 24, 3), np.float32),
        np.zeros((16, 24), np.uint8),
        np.zeros((16, 24, 4), np.uint8),
    ],
    ids=["empty", "no images", "float", "grey", "rgba"],
)
def test_invalid_images_are_refused(images: NDArray[np.uint8]) -> None:
    with pytest.raises(SegmentationError) as error:
        ClassicalSegmenter().segment(images, Prompt(boxes=[1, 1, 5, 5]))
    assert error.value.code == ErrorCode.IMAGE_INVALID


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"points": [1, 2, 3]}, "points are"),
        ({"points": [np.nan, 2]}, "points are"),
        ({"points": "here"}, "points are"),
        ({"points": [1, 2], "labels": [1, 0]}, "labels are"),
        ({"points": [1, 2], "labels": [7]}, "labels are"),
        ({"boxes": [5, 5, 1, 9]}, "boxes are"),
        ({"mask": np.zeros((4, 4), np.uint8)}, "mask is uint8"),
        ({"mask": np.zeros(4, np.bool_)}, "shape"),
        ({"frame": -1}, "frame is -1"),
        ({"frame": True}, "frame is True"),
    ],
)
def test_invalid_prompts_are_refused(options: dict[str, object], match: str) -> None:
    with pytest.raises(KinemaError, match=match):
        Prompt(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompt", "match"),
    [
        (Prompt(points=[24.5, 3]), "outside"),
        (Prompt(points=[3, -1]), "outside"),
        (Prompt(boxes=[0, 0, 25, 5]), "outside"),
        (Prompt(mask=np.zeros((24, 16), np.bool_)), "mask has shape"),
        (Prompt(mask=np.zeros((3, 16, 24), np.bool_)), "mask has shape"),
        (Prompt(boxes=[0, 0, 5, 5], frame=1), "image 1 of 1"),
    ],
)
def test_prompts_outside_the_image_are_refused(prompt: Prompt, match: str) -> None:
    with pytest.raises(SegmentationError, match=match):
        ClassicalSegmenter().segment(np.zeros((16, 24, 3), np.uint8), prompt)


@settings(max_examples=40, deadline=None)
@given(st.floats(-5, 30), st.floats(-5, 25))
def test_points_must_be_inside_the_image(x: float, y: float) -> None:
    inside = 0 <= x <= 24 and 0 <= y <= 16
    assert (Prompt(points=[x, y]).misfit(1, 16, 24) is None) == inside


def test_classical_reports_missing_input() -> None:
    images = np.zeros((2, 16, 24, 3), np.uint8)
    with pytest.raises(SegmentationError, match="without a background"):
        ClassicalSegmenter().segment(images)
    with pytest.raises(SegmentationError, match="the background has shape"):
        ClassicalSegmenter(np.zeros((8, 8, 3), np.uint8)).segment(images)
    with pytest.raises(SegmentationError, match="one image"):
        ClassicalSegmenter(images)
    with pytest.raises(SegmentationError, match="margin_px"):
        ClassicalSegmenter(margin_px=-1)


def test_methods_by_name() -> None:
    assert make_segmenter("classical").name == "classical"
    with pytest.raises(SegmentationError, match="unknown method 'magic'"):
        make_segmenter("magic")
    with pytest.raises(SegmentationError, match="does not accept"):
        make_segmenter("rendered", camera=CAMERA)
    assert best_method(weights="somewhere") == "sam2"
    assert best_method(background=True, rendered=True) == "classical"
    assert best_method(pictures=7, rendered=True) == "classical"
    assert best_method(rendered=True) == "rendered"
    assert best_method() == "classical"


def test_segment_command_writes_masks_for_calibration(
    yam: Robot,
    seen: tuple[NDArray[np.uint8], NDArray[np.bool_]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    images, truth = seen
    (tmp_path / "in").mkdir()
    for i, image in enumerate(images[:3]):
        write_image(tmp_path / "in" / f"view_{i}.png", image)
    write_image(tmp_path / "empty.png", empty_scene())
    out = tmp_path / "out"
    arguments = ["segment", str(tmp_path / "in"), "--out", str(out)]
    assert main([*arguments, "--background", str(tmp_path / "empty.png")]) == 0
    files = sorted((out / "masks").iterdir())
    assert [file.name for file in files] == ["view_0.png", "view_1.png", "view_2.png"]
    assert mask_iou(read_masks(files), truth[:3]) > 0.85
    assert (out / "overlay.png").is_file()
    report = json.loads((out / "segmentation.json").read_text())
    assert report["method"] == "classical"
    assert set(report["scores"]) == {"view_0", "view_1", "view_2"}

    save_camera(tmp_path / "camera.yaml", CAMERA)
    header = ",".join(["time", *yam.joint_names])
    rows = [",".join(map(str, [float(i), *q])) for i, q in enumerate(joints(yam)[:3])]
    (tmp_path / "joints.csv").write_text("\n".join([header, *rows]) + "\n")
    drawn = ["--camera", str(tmp_path / "camera.yaml"), "--joints", str(tmp_path / "joints.csv")]
    assert main([*arguments, *drawn]) == 0
    report = json.loads((out / "segmentation.json").read_text())
    assert report["method"] == "rendered"
    assert mask_iou(read_masks(files), truth[:3]) == 1.0

    # Rendered masks would only reproduce the camera they were rendered with.
    assert report["drawn"] == ["view_0", "view_1", "view_2"]
    assert marked_masks(files, "drawn") == [0, 1, 2]
    fit = ["calibrate", "markerless", str(out / "masks"), *drawn, "--guess", str(tmp_path / "camera.yaml")]
    assert main([*fit, "--out", str(tmp_path / "fit.yaml")]) == 2
    assert "all 3 masks are rendered" in capsys.readouterr().err
    assert not (tmp_path / "fit.yaml").exists()

    capsys.readouterr()
    assert main([*arguments, "--camera", str(tmp_path / "camera.yaml")]) == 2
    assert "--joints" in capsys.readouterr().err
    assert main([*arguments, "--method", "sam2", "--box", "1,1,9,9"]) == 2
    assert "--weights" in capsys.readouterr().err
    assert main([*arguments, "--box", "1,1,9"]) == 2
    assert "4 numbers" in capsys.readouterr().err
    assert main([*arguments, "--method", "sam2", "--weights", str(tmp_path / "no"), "--box", "1,1,9,9"]) == 2
    assert "FILE_MISSING" in capsys.readouterr().err
    blank = tmp_path / "blank"
    assert (
        main(["segment", str(tmp_path / "empty.png"), "--out", str(blank), "--background", str(tmp_path / "empty.png")])
        == 1
    )
    assert "no robot found" in capsys.readouterr().out
