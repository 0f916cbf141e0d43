"""The draft generator on scenes of the lab: outcomes, frames, what it refuses and when it cannot tell."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kinema4d_ros
from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import Cancelled, ErrorCode, FileFormatError, GeneratorError
from kinema4d_ros.core.outcomes import PointBasis
from kinema4d_ros.core.rollout import WARNING
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.generators import CommandedMotion, GenerateRequest, load_generator
from kinema4d_ros.generators.draft.generator import FROM_RGB, DraftGenerator
from kinema4d_ros.generators.draft.scene import FittedScene
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.lab.scripted import pick_plan
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.worlds import LabWorld, ModelWorld
from kinema4d_ros.worlds.truth import scene_from_truth

FRAMES = 9


@pytest.fixture(scope="module")
def world(yam: Robot) -> LabWorld:
    camera = read_camera(share_path("calibration/demo_lab.yaml")).rectified().scaled(240, 160)
    return LabWorld.of("canonical", 3, camera, choose_kinematics(yam))


@pytest.fixture(scope="module")
def pick(world: LabWorld) -> JointTrajectory:
    return pick_plan(world.start, world.start.target, world.kinematics)


def request_of(world: LabWorld, plan: JointTrajectory, **changes: object) -> GenerateRequest:
    robot, scene = world.kinematics.robot, world.scene
    drawn = render_pointmaps(robot, plan.resample(FRAMES), scene.camera, rgb=True)
    made = GenerateRequest(scene.image, drawn, scene.depth_m, motion=CommandedMotion.of(robot, plan))
    return replace(made, **changes)


def turned(plan: JointTrajectory, by_rad: float) -> JointTrajectory:
    """The same motion with the arm's first joint turned, after a common start: a miss."""
    moved = plan.positions.copy()
    share = np.clip(np.arange(len(moved)) / (0.3 * len(moved)), 0.0, 1.0)
    moved[:, 0] += by_rad * share
    return JointTrajectory(plan.names, plan.times, moved)


def test_a_pick_is_predicted_as_the_lab_does_it_and_a_miss_is_not(world: LabWorld, pick: JointTrajectory) -> None:
    task = world.task("pick")
    model = ModelWorld(world.scene, DraftGenerator(members=3), world.kinematics, depth=True, frames=FRAMES)
    for plan in (pick, turned(pick, 0.25)):
        truth = world.run(plan, task).verdict.success
        run = model.run(plan, task)
        assert run.verdict.success is truth, run.verdict.reason
        assert run.verdict.probability is not None
        assert (run.verdict.probability > 0.5) is truth
    assert world.run(pick, task).verdict.success is True
    assert world.run(turned(pick, 0.25), task).verdict.success is False


def test_the_rollout_is_the_image_the_exact_robot_and_labelled_outcomes(world: LabWorld, pick: JointTrajectory) -> None:
    request = request_of(world, pick)
    rollout = DraftGenerator(members=3).generate(request)
    rollout.check_points()
    assert np.array_equal(rollout.rgb[0], request.image)
    seen = request.robot.mask
    assert np.array_equal(rollout.xyz[rollout.robot_mask], request.robot.xyz[rollout.robot_mask])
    assert not (rollout.robot_mask & ~seen).any()
    assert "lifted" in rollout.outcomes[0].label
    assert any("finger touches object_1" in text for _, text in rollout.outcomes[0].events)
    # Three members cannot exclude what none of them shows.
    assert 0.5 < sum(outcome.probability for outcome in rollout.outcomes) == pytest.approx(3 / 4)
    assert rollout.provenance.generator == "draft"
    assert rollout.provenance.depth == "measured"
    assert rollout.unknowns == ()


def test_equal_requests_give_equal_rollouts_and_a_kept_scene_changes_nothing(
    world: LabWorld, pick: JointTrajectory
) -> None:
    generator = DraftGenerator(members=2)
    request = request_of(world, pick)
    first, again, fresh = (g.generate(request) for g in (generator, generator, DraftGenerator(members=2)))
    told = [made.provenance.versions["scene"].split()[0] for made in (first, again, fresh)]
    assert told == ["fitted", "kept", "fitted"]
    for other in (again, fresh):
        assert np.array_equal(first.rgb, other.rgb)
        assert np.array_equal(first.xyz, other.xyz, equal_nan=True)
        assert first.outcomes == other.outcomes


def test_without_objects_nothing_moves(world: LabWorld, pick: JointTrajectory) -> None:
    empty = DraftGenerator(members=2, fit=lambda request, cancel: FittedScene((), 0.0))
    rollout = empty.generate(request_of(world, pick))
    assert [outcome.label for outcome in rollout.outcomes] == ["nothing moves"]


def test_a_bad_fit_of_the_object_that_is_grasped_cannot_tell(world: LabWorld, pick: JointTrajectory) -> None:
    good = scene_from_truth(world.start, world.eye.capture(world.start, truth=True))
    bad = replace(good, objects=tuple(replace(one, misfit=1.7) for one in good.objects))
    told = [
        DraftGenerator(members=2, fit=lambda request, cancel, scene=scene: scene).generate(request_of(world, pick))
        for scene in (good, bad)
    ]
    assert told[0].unknowns == ()
    assert "a better view would help" in told[1].unknowns[0]
    assert "misfit 1.7" in told[1].unknowns[0]


def test_a_request_without_commands_is_refused(world: LabWorld, pick: JointTrajectory) -> None:
    with pytest.raises(GeneratorError) as caught:
        DraftGenerator().generate(request_of(world, pick, motion=None))
    assert caught.value.code is ErrorCode.GENERATOR_BAD_REQUEST
    assert "no commands" in str(caught.value)


def test_without_depth_the_missing_detector_is_named_with_what_to_do(
    world: LabWorld, pick: JointTrajectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = pytest.importorskip("kinema4d_model.detection.detector", reason="needs the learned detector")
    monkeypatch.setattr(detector, "WEIGHTS", tmp_path)
    with pytest.raises(FileFormatError) as caught:
        DraftGenerator(members=2).generate(request_of(world, pick, depth=None))
    assert caught.value.code is ErrorCode.FILE_MISSING
    assert "measure depth" in str(caught.value)


def test_without_depth_points_rest_on_the_plane_and_the_fitted_shapes(world: LabWorld, pick: JointTrajectory) -> None:
    scene = scene_from_truth(world.start, world.eye.capture(world.start, truth=True))
    generator = DraftGenerator(members=2, fit=lambda request, cancel: scene)
    rollout = generator.generate(request_of(world, pick, depth=None))
    rollout.check_points()
    assert np.array_equal(rollout.rgb[0], world.scene.image)
    assert rollout.provenance.preset == "rgb"
    assert rollout.provenance.depth == "plane"
    assert rollout.basis is not None
    assert PointBasis.MEASURED not in rollout.basis
    assert PointBasis.FITTED in rollout.basis


def test_a_pick_is_predicted_from_rgb_and_said_to_be(world: LabWorld, pick: JointTrajectory) -> None:
    pytest.importorskip("kinema4d_model.detection.detector", reason="needs the learned detector")
    for plan, wanted in ((pick, True), (turned(pick, 0.25), False)):
        model = ModelWorld(world.scene, DraftGenerator(members=3), world.kinematics, depth=False, frames=FRAMES)
        run = model.run(plan, world.task("pick"))
        assert run.verdict.success is wanted, run.verdict.reason
    said = load_generator("auto").generate(request_of(world, pick, depth=None)).provenance
    assert (said.generator, said.preset, said.versions["auto"]) == (
        "draft",
        "rgb",
        "draft: objects detected in the image",
    )
    assert said.versions[WARNING] == FROM_RGB
    assert len(said.checkpoint_sha256) == 64


def test_a_draft_can_be_cancelled(world: LabWorld, pick: JointTrajectory) -> None:
    with pytest.raises(Cancelled):
        DraftGenerator(members=2).generate(request_of(world, pick), cancel=lambda: True)


@pytest.mark.parametrize("options", [{"members": 0}, {"members": 1000}, {"table_height_m": float("nan")}])
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(GeneratorError) as caught:
        load_generator("draft", **options)
    assert next(iter(options)) in str(caught.value)


def test_a_draft_never_reads_the_lab() -> None:
    """Its priors are one file; nothing of the lab's truth may reach it."""
    root = Path(kinema4d_ros.__file__).parent
    for path in [*(root / "generators").rglob("*.py"), *(root / "physics").rglob("*.py")]:
        tree = ast.parse(path.read_text())
        imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        imported += [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
        assert not [name for name in imported if name.startswith("kinema4d_ros.lab")], path
