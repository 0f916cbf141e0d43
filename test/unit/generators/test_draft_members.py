from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import FileFormatError, KinemaError
from kinema4d_ros.core.transforms import make
from kinema4d_ros.generators.draft.members import CameraSpread, draw_members, open_room
from kinema4d_ros.generators.draft.priors import read_priors
from kinema4d_ros.generators.draft.scene import Estimate, FittedObject, FittedScene
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.lab.simulation import MATERIALS
from kinema4d_ros.robot import Robot


def estimate(weight: float, width: float = 0.04, x: float = 0.3) -> Estimate:
    return Estimate("box", (width, 0.04, 0.05), make(None, [x, 0.0, 0.025]), weight)


def scene_of(*objects: tuple[Estimate, ...], held: bool = False) -> FittedScene:
    mask = np.zeros((2, 2), dtype=bool)
    return FittedScene(
        tuple(FittedObject(f"object_{i}", mask, each, 0.1, "measured", held) for i, each in enumerate(objects, 1)), 0.0
    )


def test_members_cover_hypotheses_by_weight_and_start_with_the_best(yam: Robot) -> None:
    scene = scene_of((estimate(0.6), estimate(0.25, 0.05), estimate(0.15, 0.06)), (estimate(1.0, x=0.4),))
    for seed in range(5):
        members = draw_members(scene, yam, read_priors(), 8, np.random.default_rng(seed))
        widths = [member.objects[0].object.size[0] for member in members]
        assert widths[0] == 0.04
        assert 4 <= widths.count(0.04) <= 6
        assert 1 <= widths.count(0.05) <= 3
        assert 1 <= widths.count(0.06) <= 2
        assert [placed.name for placed in members[3].objects] == ["object_1", "object_2"]


def test_physics_is_stratified_central_first_and_reproducible(yam: Robot) -> None:
    priors = read_priors()
    members = draw_members(scene_of((estimate(1.0),)), yam, priors, 9, np.random.default_rng(1))
    again = draw_members(scene_of((estimate(1.0),)), yam, priors, 9, np.random.default_rng(1))
    assert [m.materials for m in members] == [m.materials for m in again]
    first = members[0]
    assert first.materials.finger_friction == pytest.approx(priors.finger_friction.median)
    assert first.delay_s == pytest.approx(priors.delay_s.median)
    assert first.objects[0].object.mass == pytest.approx(priors.density.median * 0.04 * 0.04 * 0.05)
    frictions = np.array([m.materials.finger_friction for m in members[1:]])
    assert (frictions < priors.finger_friction.median).sum() == 4
    assert len({m.objects[0].object.mass for m in members}) == 9


def test_priors_are_not_the_constants_of_the_lab() -> None:
    priors = read_priors()
    assert abs(priors.finger_friction.median / MATERIALS.finger_friction - 1) > 0.1
    assert abs(priors.table_friction.median / MATERIALS.friction[0] - 1) > 0.1
    assert abs(priors.span_rad.median / MATERIALS.servo_span_rad - 1) > 0.1
    assert abs(priors.span_m.median / MATERIALS.servo_span_m - 1) > 0.1


def test_error_of_the_camera_moves_all_objects_together_on_the_table(yam: Robot) -> None:
    camera = PinholeCamera.look_at((0.9, -0.5, 0.6), (0.3, 0.0, 0.0), width=64, height=48, fov_y_deg=45)
    spread = CameraSpread(camera.base_T_camera, (0.003, 0.003, 0.003, 0.003, 0.003, 0.003))
    scene = scene_of((estimate(1.0, x=0.3),), (estimate(1.0, x=0.33),))
    members = draw_members(scene, yam, read_priors(), 8, np.random.default_rng(0), camera=spread)
    moved = np.array([[p.base_T_object for p in m.objects] for m in members])
    shift = moved[:, :, :3, 3] - moved[:1, :, :3, 3]
    assert np.abs(shift[..., 2]).max() < 1e-12
    assert 0.001 < np.abs(shift[..., :2]).max() < 0.02
    assert np.abs(shift[:, 0] - shift[:, 1]).max() < 0.001
    np.testing.assert_allclose(moved[..., 2, 2], 1.0)
    held = draw_members(
        scene_of((estimate(1.0),), held=True), yam, read_priors(), 4, np.random.default_rng(0), camera=spread
    )
    assert held[1].held == ("object_1",)
    np.testing.assert_array_equal(held[3].objects[0].base_T_object, estimate(1.0).base_T_object)


def test_table_without_known_edges_is_large() -> None:
    room = open_room(-0.1)
    assert room.table_z == -0.1
    assert room.table[1] > 2
    assert open_room(0.0, (0.0, 1.0, -1.0, 1.0)).table == (0.0, 1.0, -1.0, 1.0)


def test_bad_requests_are_refused(yam: Robot) -> None:
    with pytest.raises(KinemaError, match="0 members"):
        draw_members(scene_of((estimate(1.0),)), yam, read_priors(), 0, np.random.default_rng(0))
    with pytest.raises(KinemaError, match="object_1"):
        draw_members(scene_of(()), yam, read_priors(), 2, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("part", "entry", "value", "message"),
    [
        ("objects", "density", None, "lacks objects.density"),
        ("servos", "gain", 3.0, "unknown servos.gain"),
        ("table", "spinning", "1e-3", "table.spinning"),
        ("fingers", "friction", {"median": 2.0, "factor": 1.2, "low": 0.1, "high": 1.0}, "fingers.friction"),
        ("objects", "mass", {"low": 2.0, "high": 1.0}, "objects.mass"),
        ("objects", "center_of_mass", {"mean": [0, 0], "std": [0, 0, 0]}, "center_of_mass.mean"),
    ],
)
def test_reader_names_what_is_wrong(part: str, entry: str, value: object, message: str, tmp_path: Path) -> None:
    document = yaml.safe_load(share_path("config/draft.yaml").read_text())
    if value is None:
        del document[part][entry]
    else:
        document[part][entry] = value
    path = tmp_path / "draft.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(FileFormatError, match=message):
        read_priors(path)
