"""By how much a grasp may be off: margins of a made scene with a symmetric box and a symmetric gripper."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from kinema4d_ros.calibration import read_camera, save_camera
from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.cli import main
from kinema4d_ros.core.errors import Cancelled, ErrorCode, GeneratorError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.task import make_task
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import invert, make
from kinema4d_ros.generators import CommandedMotion, GenerateRequest
from kinema4d_ros.generators.draft.generator import DraftGenerator
from kinema4d_ros.generators.draft.members import CameraSpread
from kinema4d_ros.generators.draft.robustness import HALVINGS, Robustness, find_robustness
from kinema4d_ros.generators.draft.scene import Estimate, FittedObject, FittedScene
from kinema4d_ros.io.images import studio, write_image
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.lab.scripted import Motion, pick_plan, tool_down
from kinema4d_ros.previews.preview import robustness_of
from kinema4d_ros.previews.report import robustness_svg
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.worlds import LabWorld

SIDE = 0.04
X = 0.34
"""The box stands in the robot's plane of symmetry; the fingers close along y."""


@pytest.fixture(scope="module")
def plan(yam: Robot) -> JointTrajectory:
    motion = Motion(choose_kinematics(yam), yam.home_position())
    grasp = tool_down(X, 0.0, 0.03, -np.pi / 2)
    raised = grasp.copy()
    raised[2, 3] += 0.09
    motion.grip(SIDE + 0.028).to_pose(raised).line_to(grasp).wait(0.1)
    motion.grip(SIDE - 0.012).wait(0.2).line_to(raised)
    return motion.trajectory()


@pytest.fixture(scope="module")
def request_(yam: Robot, plan: JointTrajectory) -> GenerateRequest:
    camera = read_camera(share_path("calibration/demo_lab.yaml")).rectified().scaled(120, 80)
    drawn = render_pointmaps(yam, plan.resample(25), camera, rgb=True)
    depth = np.full((80, 120), 1.0, np.float32)
    return GenerateRequest(studio(camera), drawn, depth, motion=CommandedMotion.of(yam, plan))


def scene(y: float = 0.0, misfit: float = 0.1, x: float = X) -> FittedScene:
    box = Estimate("box", (SIDE, SIDE, 0.05), make(np.eye(3), [x, y, 0.025]))
    return FittedScene((FittedObject("object_1", np.zeros((80, 120), bool), (box,), misfit, "measured"),), 0.0)


def found(request: GenerateRequest, fitted: FittedScene, **options: object) -> Robustness:
    generator = DraftGenerator(fit=lambda request, cancel: fitted)
    return find_robustness(generator, request, **{"members": 4, "variants": 3, **options})


@pytest.fixture(scope="module")
def centred(request_: GenerateRequest) -> Robustness:
    return found(request_, scene())


def closing(one: Robustness) -> dict[str, float]:
    return {margin.name: margin.offset_m for margin in one.margins if margin.closing}


def test_a_symmetric_grasp_has_the_same_margin_on_both_sides(centred: Robustness) -> None:
    assert centred.known
    assert centred.target == "object_1"
    assert centred.instruction == "pick up the object 1"
    assert centred.probability > 0.8
    left, right = closing(centred).values()
    assert 0.01 < left < 0.04
    # Half of the last interval on each side.
    assert abs(left - right) <= 2 * centred.resolution_m + 1e-9
    assert centred.resolution_m == pytest.approx(0.04 / 5 / 2**HALVINGS / 2)


def test_a_grasp_that_is_off_by_10_mm_has_a_margin_smaller_by_10_mm(
    request_: GenerateRequest, centred: Robustness
) -> None:
    off = found(request_, scene(y=0.01))
    way = next(margin for margin in off.margins if margin.closing and margin.direction[1] > 0.9)
    assert min(closing(off).values()) == closing(off)[way.name]
    assert closing(centred)[way.name] - way.offset_m == pytest.approx(0.01, abs=0.003)


def test_a_plan_that_misses_has_no_margin_and_says_where_it_would_succeed(request_: GenerateRequest) -> None:
    missed = found(request_, scene(y=0.034))
    assert missed.probability < 0.5
    assert {margin.offset_m for margin in missed.margins} == {0.0}
    back = next(margin for margin in missed.margins if margin.closing and margin.direction[1] < -0.9)
    assert (back.share > 0.5).any()
    assert f"mm {back.name}, as the camera sees it" in missed.sentence()
    assert "fails without any offset" in missed.sentence()


def test_directions_are_those_the_camera_sees(request_: GenerateRequest, centred: Robustness) -> None:
    camera = request_.camera
    camera_T_base = invert(camera.base_T_camera)
    assert {margin.name for margin in centred.margins} == {"left", "right", "away", "nearer"}
    for margin in centred.margins:
        seen = camera_T_base[:3, :3] @ margin.direction
        assert margin.direction[2] == 0.0
        assert {"right": seen[0], "left": -seen[0], "away": seen[2], "nearer": -seen[2]}[margin.name] > 0
        assert margin.closing == (abs(margin.direction[1]) > 0.99)


def test_a_poor_fit_cannot_tell(request_: GenerateRequest) -> None:
    poor = found(request_, scene(misfit=1.6))
    assert not poor.known
    assert math.isnan(poor.probability)
    assert poor.margins == ()
    assert "cannot tell" in poor.sentence()
    assert "misfit 1.6" in poor.sentence()
    assert poor.document()["probability"] is None
    assert "cannot tell" in robustness_svg(poor)


@pytest.mark.parametrize(
    ("fitted", "why"),
    [(FittedScene((), 0.0), "no object was found"), (scene(x=X + 0.2), "no object within 100 mm")],
)
def test_without_an_object_at_the_gripper_it_cannot_tell(
    request_: GenerateRequest, fitted: FittedScene, why: str
) -> None:
    assert why in found(request_, fitted).sentence()


def test_the_task_decides(request_: GenerateRequest) -> None:
    # Lifted straight up, the box does not move along the table.
    pushed = found(request_, scene(), task=make_task("push", "named_otherwise"))
    assert pushed.target == "object_1"
    assert pushed.probability < 0.5


def test_a_loose_calibration_lowers_the_probability(request_: GenerateRequest) -> None:
    variance = np.zeros((6, 6))
    variance[1, 1] = 0.03**2
    spread = CameraSpread.of_covariance(request_.camera.base_T_camera, variance)
    loose = found(request_, scene(), camera=spread, members=16, variants=1)
    assert loose.calibration
    assert 0.2 < loose.probability < 0.85


def test_a_covariance_spreads_the_camera_as_the_calibration_defines_it(request_: GenerateRequest) -> None:
    pose = request_.camera.base_T_camera
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6)) * 1e-3
    spread = CameraSpread.of_covariance(pose, root @ root.T)
    assert spread.axes is not None
    for std, axis in zip(spread.std, spread.axes.T, strict=True):
        change = std * axis
        moved = pose @ make(changed(np.eye(4), [0, 0, 0, *change[3:]])[:3, :3], change[:3])
        in_base = np.concatenate([moved[:3, 3] - pose[:3, 3], change[3:]])
        # One standard deviation along a principal axis has the Mahalanobis distance 1.
        assert in_base @ np.linalg.solve(root @ root.T, in_base) == pytest.approx(1.0, rel=1e-3)


def test_the_document_is_json_and_the_plot_shows_every_direction(centred: Robustness) -> None:
    document = json.loads(json.dumps(centred.document(), allow_nan=False))
    assert document["sentence"] == centred.sentence()
    assert set(document["margins"]) == {"left", "right", "away", "nearer"}
    picture = robustness_svg(centred)
    for margin in centred.margins:
        assert f"mm {margin.name}<" in picture
        if math.isfinite(margin.offset_m):
            assert f"{1000 * margin.offset_m:.0f} mm {margin.name}" in centred.sentence()


def test_it_can_be_cancelled_and_refuses_senseless_numbers(request_: GenerateRequest) -> None:
    with pytest.raises(Cancelled):
        found(request_, scene(), cancel=lambda: True)
    with pytest.raises(GeneratorError) as caught:
        found(request_, scene(), reach_m=-1.0)
    assert caught.value.code is ErrorCode.GENERATOR_BAD_REQUEST


def test_the_command_writes_the_robustness_of_a_plan_in_an_image(yam: Robot, tmp_path: Path) -> None:
    camera = read_camera(share_path("calibration/demo_lab.yaml")).rectified().scaled(240, 160)
    world = LabWorld.of("canonical", 3, camera, choose_kinematics(yam))
    pick = pick_plan(world.start, world.start.target, world.kinematics)
    save_camera(tmp_path / "camera.yaml", world.scene.camera)
    write_image(tmp_path / "image.png", world.scene.image)
    np.save(tmp_path / "depth.npy", world.scene.depth_m)
    np.savez(tmp_path / "plan.npz", names=pick.names, times=pick.times, positions=pick.positions)
    given = {name: str(tmp_path / file) for name, file in FILES.items()}
    arguments = ["generate", *(word for pair in given.items() for word in pair), "--preset", "composite"]
    assert main([*arguments, "--robustness", "--frames", "25", "--out", str(tmp_path / "made")]) == 0
    document = json.loads((tmp_path / "made_robustness.json").read_text())
    assert document["known"]
    assert document["probability"] > 0.5
    assert (tmp_path / "made_robustness.svg").read_text().startswith("<svg")
    # As `kinema4d preview` does it: from the rollout of another process.
    again = robustness_of(Rollout.load(tmp_path / "made"), pick, yam)
    assert again.known
    for margin in again.margins:
        told = document["margins"][margin.name]["offset_m"]
        assert min(margin.offset_m, 0.04) == pytest.approx(0.04 if told == "beyond" else told, abs=0.003)


FILES = {
    "--image": "image.png",
    "--depth": "depth.npy",
    "--camera": "camera.yaml",
    "--trajectory": "plan.npz",
}
