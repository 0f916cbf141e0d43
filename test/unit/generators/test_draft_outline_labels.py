"""Labels of pixels from a blurred, partly wrong detection and the image's colours: a drawn scene, known exactly."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.generators.draft import _outline_kernels as kernels
from kinema4d_ros.generators.draft._kernels import BOX, CYLINDER
from kinema4d_ros.generators.draft.detection import DIRECTIONS, Detected, Detection
from kinema4d_ros.generators.draft.outline_colours import ground_density, same_colour, surface_density
from kinema4d_ros.generators.draft.outlines import fit_outlines
from kinema4d_ros.generators.draft.scene import FittedScene

CAMERA = PinholeCamera.look_at((1.05, -0.65, 0.75), (0.25, 0.0, 0.03), width=216, height=144, focal_px=430)
RIGHT = CAMERA.base_T_camera[:2, 0] / np.linalg.norm(CAMERA.base_T_camera[:2, 0])
SPREAD = np.array([0.004, 0.015, 0.006, 0.006, 0.006, 0.006, 0.002, 0.010])
SCENE = (
    (BOX, np.array([0.26, 0.06, 0.4, 0.042, 0.042, 0.05, 0.0])),
    (CYLINDER, np.array([0.34, -0.10, 0.0, 0.036, 0.036, 0.07, 0.0])),
)
COLOURS = ((0.75, 0.15, 0.1), (0.1, 0.35, 0.7))
Array = NDArray[np.float64]


@lru_cache(maxsize=1)
def _drawn() -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Return the image, the owner of each pixel (-1 = table) and its face (0 none, 1 up, 2 side)."""
    rays = np.ascontiguousarray((np.asarray(CAMERA.rays()) @ CAMERA.base_T_camera[:3, :3].T).reshape(-1, 3))
    eye = CAMERA.base_T_camera[:3, 3].copy()
    depth, owner, up = np.full(len(rays), np.inf), np.full(len(rays), -1), np.zeros(len(rays), bool)
    for number, (kind, shape) in enumerate(SCENE):
        hit, face = kernels.cast_faces(kind, shape, 0.005, eye, rays)
        nearer = hit < depth
        depth[nearer], owner[nearer], up[nearer] = hit[nearer], number, face[nearer]
    size = (CAMERA.height, CAMERA.width)
    owner, face = owner.reshape(size), np.where(owner < 0, 0, np.where(up, 1, 2)).reshape(size)
    rng = np.random.default_rng(0)
    image = np.full((*size, 3), (0.75, 0.65, 0.5)) * rng.normal(1, 0.04, size)[..., None]
    shaded = cv2.dilate((owner >= 0).astype(np.uint8), np.ones((9, 9))) > 0
    image[shaded & (np.arange(size[1]) % 216 > 80)] *= 0.7  # a shadow beside the objects
    for number, colour in enumerate(COLOURS):
        for value, light in ((1, 1.15), (2, 0.75)):
            image[(owner == number) & (face == value)] = np.array(colour) * light
    image += rng.normal(0, 0.008, image.shape)
    return (255 * image.clip(0, 1)).astype(np.uint8), owner, face


def _blurred(blur: float, shift: tuple[int, int]) -> Detection:
    """Return what a coarse detector says: blurred faces, moved by some pixels, and votes that are off."""
    _, owner, face = _drawn()
    said = np.roll(np.eye(3, dtype=np.float32)[face], shift, axis=(0, 1))
    faces = cv2.GaussianBlur(said, (0, 0), blur)
    found = []
    for number, (kind, shape) in enumerate(SCENE):
        share = cv2.GaussianBlur(np.roll((owner == number).astype(np.float32), shift, axis=(0, 1)), (0, 0), blur + 1)
        widths = np.full(4, shape[3])
        if kind == BOX:
            widths = shape[3] * (np.abs(np.cos(0.4 - DIRECTIONS)) + np.abs(np.sin(0.4 - DIRECTIONS)))
        found.append(
            Detected(
                shape[:2] + np.array([-0.008, 0.004]),
                widths + 0.004,
                0.001,
                shape[5] - 0.006,
                SPREAD,
                {"box": 0.6 if kind == BOX else 0.3, "cylinder": 0.3 if kind == BOX else 0.6},
                share,
                int((owner == number).sum()),
            )
        )
    return Detection(tuple(found), np.asarray(faces, np.float32), RIGHT)


def _error(scene: FittedScene, shape: Array) -> float:
    """Return the largest error of position and sizes of the nearest fitted object, metres."""
    best = min((o.estimates[0] for o in scene.objects), key=lambda e: np.hypot(*(e.base_T_object[:2, 3] - shape[:2])))
    size = np.sqrt(best.size[0] * best.size[1]) - np.sqrt(shape[3] * shape[4])
    return float(max(np.hypot(*(best.base_T_object[:2, 3] - shape[:2])), abs(size), abs(best.size[2] - shape[5])))


def test_colours_correct_a_blurred_and_shifted_detection() -> None:
    detection = _blurred(2.5, (2, 0))
    image = _drawn()[0]
    with_image = fit_outlines(detection, CAMERA, image=image)
    without = fit_outlines(detection, CAMERA)
    errors = [_error(with_image, shape) for _, shape in SCENE]
    assert max(errors) < 0.005
    assert max(errors) < max(_error(without, shape) for _, shape in SCENE)
    assert all(o.misfit < 0.5 for o in with_image.objects)


def test_a_compressed_dark_image_is_enough() -> None:
    image = _drawn()[0]
    noisy = image * 0.7 + np.random.default_rng(1).normal(0, 3, image.shape)
    stored = cv2.imencode(".jpg", noisy.clip(0, 255).astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 60])[1]
    scene = fit_outlines(_blurred(2.0, (1, 0)), CAMERA, image=np.asarray(cv2.imdecode(stored, 1), np.uint8))
    assert max(_error(scene, shape) for _, shape in SCENE) < 0.008


def test_parts_of_one_colour_that_overlap_are_one_object() -> None:
    detection = _blurred(1.0, (0, 0))
    _, owner, face = _drawn()
    whole = detection.objects[1]
    sides, top = (((owner == 1) & (face == value)).astype(np.float32) for value in (2, 1))
    parts = (
        detection.objects[0],
        replace(whole, share=sides, pixels=int(sides.sum())),
        replace(whole, share=top, pixels=int(top.sum()), center=whole.center + np.array([0.01, 0.0])),
    )
    scene = fit_outlines(replace(detection, objects=parts), CAMERA, image=_drawn()[0])
    assert len(scene.objects) == 2
    assert _error(scene, SCENE[1][1]) < 0.006


def test_what_the_detector_hardly_sees_is_no_object() -> None:
    detection = _blurred(1.0, (0, 0))
    faces, share = detection.faces.copy(), np.zeros(detection.faces.shape[:2], np.float32)
    faces[10:22, 100:112] = (0.45, 0.10, 0.45)
    share[10:22, 100:112] = 1.0
    ghost = replace(detection.objects[0], center=np.array([0.0, 0.2]), share=share, pixels=144)
    scene = fit_outlines(
        replace(detection, objects=(*detection.objects, ghost), faces=faces), CAMERA, image=_drawn()[0]
    )
    assert len(scene.objects) == 2


def test_a_surface_has_the_colour_of_most_of_its_pixels() -> None:
    rng = np.random.default_rng(2)
    red, grey = rng.normal((0.7, 0.1, 0.1), 0.01, (70, 3)), rng.normal((0.5, 0.5, 0.5), 0.01, (30, 3))
    density = surface_density(np.concatenate([red, grey]), np.ones(100))
    assert density[:70].min() > 100 * density[70:].max()


def test_a_turned_surface_changes_its_colour() -> None:
    across = np.repeat(np.arange(20.0), 10)
    colours = np.outer(np.linspace(0.3, 0.9, 200), [1.0, 0.4, 0.2])
    turned = surface_density(colours, np.ones(200), across)
    assert np.median(turned) > 5 * np.median(surface_density(colours, np.ones(200)))


def test_ground_is_known_in_shadow_too() -> None:
    ground = np.random.default_rng(3).normal((0.7, 0.6, 0.5), 0.01, (400, 3))
    asked = np.array([[0.7, 0.6, 0.5], [0.53, 0.456, 0.38], [0.2, 0.3, 0.7]])
    light, shade, other = ground_density(asked, np.ones(400), ground)
    assert light > shade > 20 * other


@pytest.mark.parametrize(
    ("seen", "same"),
    [((0.4, 0.05, 0.05), True), ((0.9, 0.5, 0.5), True), ((0.7, 0.5, 0.1), False), ((0.1, 0.2, 0.7), False)],
)
def test_paler_and_darker_is_the_same_colour(seen: tuple[float, ...], same: bool) -> None:
    assert (same_colour(np.array(seen), np.array([0.8, 0.1, 0.1])) > 0.3) == same
