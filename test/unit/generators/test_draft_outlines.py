"""Fit of shapes to what a detector says about one image: a drawn scene, known exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.generators.draft import _outline_kernels as kernels
from kinema4d_ros.generators.draft._kernels import BOX, CYLINDER, SPHERE
from kinema4d_ros.generators.draft.detection import DIRECTIONS, Detected, Detection
from kinema4d_ros.generators.draft.outlines import OutlineOptions, fit_outlines
from kinema4d_ros.generators.draft.scene import FittedObject, FittedScene

CAMERA = PinholeCamera.look_at((1.05, -0.65, 0.75), (0.25, 0.0, 0.03), width=216, height=144, focal_px=430)
RIGHT = CAMERA.base_T_camera[:2, 0] / np.linalg.norm(CAMERA.base_T_camera[:2, 0])
AWAY = np.array([-RIGHT[1], RIGHT[0]])
NAMES = {BOX: "box", CYLINDER: "cylinder", SPHERE: "sphere"}
SPREAD = np.array([0.003, 0.010, 0.004, 0.004, 0.004, 0.004, 0.002, 0.006])
WRONG = np.array([0.002, 0.008, 0.002, -0.002, 0.003, 0.002, 0.001, -0.005])
"""Errors of the votes, within their spread."""
# A tall cylinder hides the lower left of a box; a sphere stands alone.
SCENE = (
    (BOX, np.array([0.26, -0.02, 0.4, 0.042, 0.042, 0.05, 0.0])),
    (CYLINDER, np.array([0.34, -0.10, 0.0, 0.032, 0.032, 0.07, 0.0])),
    (SPHERE, np.array([0.30, 0.10, 0.0, 0.04, 0.04, 0.04, 0.0])),
)


def _detection(scene: tuple[tuple[int, NDArray[np.float64]], ...], table: float = 0.0) -> Detection:
    camera = CAMERA.posed(CAMERA.base_T_camera + table * np.outer([0, 0, 1, 0], [0, 0, 0, 1]))
    rays = np.ascontiguousarray((np.asarray(camera.rays()) @ camera.base_T_camera[:3, :3].T).reshape(-1, 3))
    depth, owner = np.full(len(rays), np.inf), np.full(len(rays), -1)
    up = np.zeros(len(rays), bool)
    for number, (kind, shape) in enumerate(scene):
        hit, face = kernels.cast_faces(kind, shape, 0.005, camera.base_T_camera[:3, 3].copy(), rays)
        nearer = hit < depth
        depth[nearer], owner[nearer], up[nearer] = hit[nearer], number, face[nearer]
    size = (camera.height, camera.width)
    labels = np.where(owner < 0, 0, np.where(up, 1, 2)).reshape(size)
    faces = cv2.GaussianBlur(np.eye(3, dtype=np.float32)[labels], (0, 0), 0.5)
    found = []
    for number, (kind, shape) in enumerate(scene):
        turn = shape[2] - math.atan2(RIGHT[1], RIGHT[0])
        widths = shape[3] * np.abs(np.cos(turn - DIRECTIONS)) + shape[4] * np.abs(np.sin(turn - DIRECTIONS))
        if kind != BOX:
            widths = np.full(4, shape[3])
        own = (owner == number).reshape(size)
        found.append(
            Detected(
                shape[:2] + RIGHT * WRONG[0] + AWAY * WRONG[1],
                widths + WRONG[2:6],
                WRONG[6],
                shape[5] + WRONG[7],
                SPREAD,
                {name: 0.7 if k == kind else 0.15 for k, name in NAMES.items()},
                np.where(own, 0.9, 0.05).astype(np.float32),
                int(own.sum()),
            )
        )
    return Detection(tuple(found), np.asarray(faces, np.float32), RIGHT)


@lru_cache(maxsize=1)
def _fitted() -> FittedScene:
    return fit_outlines(_detection(SCENE), CAMERA)


def _nearest(scene: FittedScene, shape: NDArray[np.float64]) -> FittedObject:
    return min(scene.objects, key=lambda o: float(np.linalg.norm(o.estimates[0].base_T_object[:2, 3] - shape[:2])))


@pytest.mark.parametrize("number", range(len(SCENE)))
def test_outlines_correct_the_votes(number: int) -> None:
    kind, shape = SCENE[number]
    best = _nearest(_fitted(), shape).estimates[0]
    assert best.shape == NAMES[kind]
    assert np.linalg.norm(best.base_T_object[:2, 3] - shape[:2]) < 0.005
    assert best.size == pytest.approx(tuple(shape[3:6]), abs=0.005)


@pytest.mark.parametrize("number", range(len(SCENE)))
def test_the_truth_is_within_the_draws(number: int) -> None:
    _, shape = SCENE[number]
    thing = _nearest(_fitted(), shape)
    rows = np.array([[*e.base_T_object[:2, 3], e.size[2]] for e in thing.estimates])
    weight = np.array([e.weight for e in thing.estimates])
    assert weight.sum() == pytest.approx(1.0)
    mean = weight @ rows
    deviation = np.sqrt(weight @ (rows - mean) ** 2)
    assert np.all(np.abs(mean - [shape[0], shape[1], shape[5]]) < 4 * deviation + 0.001)
    assert np.all(deviation < 0.012)


def test_a_scene_says_what_it_explains() -> None:
    scene = _fitted()
    assert [o.name for o in scene.objects] == ["object_1", "object_2", "object_3"]
    assert all(o.basis == "outline" and o.misfit < 0.5 and not o.held for o in scene.objects)
    assert scene.unexplained < 0.1
    far = [
        float(np.linalg.norm(o.estimates[0].base_T_object[:2, 3] - CAMERA.base_T_camera[:2, 3])) for o in scene.objects
    ]
    assert far[0] == min(far)


def test_hidden_extents_are_less_certain() -> None:
    many = OutlineOptions(draws=40)
    detection = _detection((SCENE[0],))
    alone = fit_outlines(detection, CAMERA, options=many).objects[0]
    robot = np.zeros((CAMERA.height, CAMERA.width), bool)
    _, columns = np.nonzero(alone.mask)
    robot[:, int(np.quantile(columns, 0.35)) :] = True
    hidden = fit_outlines(detection, CAMERA, robot, options=many).objects[0]

    def spread(thing: FittedObject) -> float:
        return float(np.std([e.size[:2] for e in thing.estimates], axis=0).max())

    assert spread(hidden) > 1.2 * spread(alone)
    assert not hidden.mask[robot].any()


def test_a_shape_that_does_not_fit_is_not_believable() -> None:
    detection = _detection(((BOX, np.array([0.26, -0.02, 0.4, 0.14, 0.025, 0.03, 0.0])),))
    wrong = replace(detection.objects[0], shapes={"sphere": 1.0})
    fitted = fit_outlines(Detection((wrong,), detection.faces, RIGHT), CAMERA)
    assert fitted.objects[0].estimates[0].shape == "sphere"
    assert fitted.objects[0].misfit > 1.0


def test_the_table_may_be_at_any_height() -> None:
    raised = tuple((kind, shape + np.array([0, 0, 0, 0, 0, 0, 0.1])) for kind, shape in SCENE)
    camera = CAMERA.posed(CAMERA.base_T_camera + 0.1 * np.outer([0, 0, 1, 0], [0, 0, 0, 1]))
    scene = fit_outlines(_detection(raised, 0.1), camera, table_height_m=0.1)
    same = [o.estimates[0].base_T_object[:3, 3] - [0, 0, 0.1] for o in scene.objects]
    assert np.allclose(same, [o.estimates[0].base_T_object[:3, 3] for o in _fitted().objects], atol=0.002)


def test_nothing_detected_is_an_empty_scene() -> None:
    faces = np.zeros((CAMERA.height, CAMERA.width, 3), np.float32)
    faces[..., 0] = 1.0
    scene = fit_outlines(Detection((), faces, RIGHT), CAMERA)
    assert scene.objects == ()
    assert scene.unexplained == 0.0


def test_equal_seeds_give_equal_draws() -> None:
    few = OutlineOptions(draws=4, sweeps=1, rounds=3)
    a, b = (fit_outlines(_detection((SCENE[2],)), CAMERA, options=few).objects[0] for _ in range(2))
    assert all(np.array_equal(x.base_T_object, y.base_T_object) for x, y in zip(a.estimates, b.estimates, strict=True))
