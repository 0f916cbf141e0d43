"""The detector: what pixels should vote, how votes become objects, and what the shipped weights find."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from kinema4d_model.detection import load_detector
from kinema4d_model.detection.detector import WEIGHTS
from kinema4d_model.detection.evaluate import lab_image
from kinema4d_model.detection.grouping import Votes, group_votes
from kinema4d_model.detection.network import UNIT_M, VOTES, DetectorNet
from kinema4d_model.detection.samples import augmented_sample, plain_sample
from kinema4d_model.detection.scenes import FIRST_SEED, draw_view
from kinema4d_model.detection.views import CLASSES, HELD, NONE, ROBOT, SIDE, TOP, Views, faces_of, footprint_row
from kinema4d_model.pipeline.lifting import load_lifter
from kinema4d_model.pipeline.lifting.geometry import level_frame
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.evaluation.execute import evaluation_camera
from kinema4d_ros.evaluation.settings import EvaluationSettings
from kinema4d_ros.generators.draft.detection import DIRECTIONS
from kinema4d_ros.generators.draft.outlines import fit_outlines
from kinema4d_ros.physics.objects import LabObject, PlacedObject

CAMERA = PinholeCamera.look_at((1.0, -0.6, 0.7), (0.3, 0.0, 0.0), width=144, height=96, focal_px=180)


@pytest.fixture(scope="module")
def view() -> Views:
    return draw_view(FIRST_SEED + 7)


def test_the_footprint_of_a_turned_box_has_its_widths_along_four_directions() -> None:
    box = PlacedObject.standing(LabObject("a_box", "box", (0.04, 0.06, 0.05), (1, 0, 0), 0.1), 0.3, 0.1, 0.6)
    row = footprint_row(box, CAMERA)
    level = level_frame(CAMERA)
    turn = 0.6 + np.arctan2(level[1, 0], level[0, 0])
    widths = 0.04 * np.abs(np.cos(turn - DIRECTIONS)) + 0.06 * np.abs(np.sin(turn - DIRECTIONS))
    assert row[2:6] == pytest.approx(widths, abs=0.0025)  # rounded edges
    assert row[:2] == pytest.approx((level @ [0.3, 0.1, 0.0, 1.0])[:2], abs=1e-6)
    assert row[6:8] == pytest.approx([0.0, 0.05], abs=1e-4)
    assert CLASSES[int(row[8])] == "box"


def test_a_view_depends_on_its_seed_alone(view: Views) -> None:
    again = draw_view(FIRST_SEED + 7)
    assert all(np.array_equal(getattr(view, f.name), getattr(again, f.name)) for f in fields(Views))
    assert not np.array_equal(view.rgb, draw_view(FIRST_SEED + 8).rgb)


def test_views_are_stored_and_read(view: Views, tmp_path: Path) -> None:
    view.save(tmp_path / "views-1.npz")
    view.save(tmp_path / "views-2.npz")
    both = Views.load(tmp_path)
    assert len(both) == 2
    assert np.array_equal(both.instance[1], view.instance[0])
    with pytest.raises(KinemaError, match="holds no views") as caught:
        Views.load(tmp_path / "elsewhere")
    assert caught.value.code == ErrorCode.FILE_MISSING


def test_surfaces_are_told_apart_by_their_direction(view: Views) -> None:
    on = (view.instance[0] > 0) & (view.instance[0] < HELD)
    assert set(np.unique(view.face[0][on])) <= {TOP, SIDE}
    assert (view.face[0][view.instance[0] == 0] == NONE).all()
    flat = np.asarray(
        CAMERA.base_T_camera[2, 3] / -(np.asarray(CAMERA.rays()) @ CAMERA.base_T_camera[:3, :3].T)[..., 2]
    )
    assert (faces_of(flat.astype(np.float32), np.ones(flat.shape, np.uint8), CAMERA)[2:-2, 2:-2] == TOP).all()


@pytest.mark.parametrize("seed", [None, 1, 2, 3, 4])
def test_every_pixel_of_an_object_votes_for_the_same_centre(view: Views, seed: int | None) -> None:
    sample = plain_sample(view, 0) if seed is None else augmented_sample(view, 0, np.random.default_rng(seed))
    on = sample.weight > 0
    assert on.any()
    centre = (UNIT_M * sample.votes[:2] + sample.x[6:8, ::2, ::2])[:, on]
    # The number of distinct centres is that of the visible objects, whatever the augmentation.
    distinct = np.unique(np.round(centre, 4), axis=1).shape[1]
    standing = view.instance[0][::2, ::2]
    if seed is None:
        assert distinct == len(set(np.unique(standing)) - {0, ROBOT})
    assert distinct <= len(set(np.unique(view.instance[0])) - {0, ROBOT})
    # The surface is never above the object's top.
    top, surface = UNIT_M * sample.votes[7][on], UNIT_M * sample.votes[8][on]
    assert (surface < top + 0.003).all()


def _votes(centres: list[tuple[float, float]], rng: np.random.Generator) -> Votes:
    """Make votes of a picture whose columns show one object after the other, with noise."""
    rows, columns = 12, 16 * len(centres)
    values = np.zeros((rows, columns, len(VOTES)), np.float32)
    table = rng.uniform(-0.3, 0.3, (rows, columns, 2)).astype(np.float32)
    for number, centre in enumerate(centres):
        part = slice(16 * number, 16 * (number + 1))
        values[:, part, :2] = centre - table[:, part] + rng.normal(0, 0.003, (rows, 16, 2))
    values[..., 2:6], values[..., 7] = 0.04, 0.05
    shapes = np.zeros((rows, columns, len(CLASSES)), np.float32)
    shapes[..., 0] = 1.0
    faces = np.zeros((2 * rows, 2 * columns, 3), np.float32)
    faces[..., 2] = 1.0
    scale = np.full_like(values, 0.002)
    return Votes(values, scale, shapes, faces, table, np.ones((rows, columns), bool))


def test_pixels_that_name_one_centre_are_one_object() -> None:
    centres = [(0.0, 1.0), (0.06, 1.0), (-0.02, 1.08)]
    found = group_votes(_votes(centres, np.random.default_rng(0)), np.eye(4))
    assert len(found) == 3
    for centre in centres:
        best = min(found, key=lambda o: float(np.linalg.norm(o.center - centre)))
        assert best.center == pytest.approx(centre, abs=0.002)
        assert best.widths == pytest.approx(np.full(4, 0.04), abs=1e-3)
        assert best.top == pytest.approx(0.05, abs=1e-3)
        assert best.shapes["box"] == pytest.approx(1.0)
        assert 0.001 < best.spread[0] < 0.01
        assert best.share.shape == (24, 96)


def test_an_object_split_by_another_stays_one() -> None:
    votes = _votes([(0.0, 1.0), (0.1, 1.0), (0.0, 1.0)], np.random.default_rng(1))
    assert sorted(o.pixels for o in group_votes(votes, np.eye(4))) == pytest.approx([768, 1536], abs=80)


def test_an_empty_table_has_no_objects() -> None:
    votes = _votes([(0.0, 1.0)], np.random.default_rng(2))
    votes.faces[:] = (1.0, 0.0, 0.0)
    assert group_votes(votes, np.eye(4)) == []


def test_a_network_starts_from_a_lifter() -> None:
    network = DetectorNet()
    assert network.start_from(load_lifter().network) > 20
    assert torch.equal(network.stem.weight, load_lifter().network.stem.weight)
    out = network(torch.zeros(1, 12, 32, 48))
    assert out.faces.shape == (1, 3, 32, 48)
    assert out.values.shape == (1, len(VOTES), 16, 24)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(KinemaError, match="holds no detector") as caught:
        load_detector(tmp_path)
    assert caught.value.code == ErrorCode.FILE_MISSING


@pytest.mark.skipif(not (WEIGHTS / "config.json").is_file(), reason="the package has no weights of a detector")
def test_the_shipped_detector_finds_the_target_within_a_few_millimetres() -> None:
    camera = evaluation_camera(EvaluationSettings(policies=("expert",), models=("composite",), width=360))
    lab, image, robot = lab_image("canonical", 0, camera)
    detection = load_detector().detect(image.rgb, camera, robot)
    fitted = fit_outlines(detection, camera, robot, image=image.rgb)
    target = lab.state().objects[lab.state().target]
    errors = [np.linalg.norm(o.estimates[0].base_T_object[:2, 3] - target.position[:2]) for o in fitted.objects]
    assert min(errors) < 0.006
    best = fitted.objects[int(np.argmin(errors))]
    assert (best.mask & image.mask(target.name)).sum() > 0.8 * image.mask(target.name).sum()
    assert best.misfit < 1.0
    assert detection.faces.sum(-1) == pytest.approx(1.0, abs=1e-3)
    assert (detection.faces[robot, 0] == 1.0).all()
