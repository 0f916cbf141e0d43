"""Lab episodes: deterministic, conditioned on commands, resumable after a kill, balanced, disjoint splits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kinema4d_model.data.check import check_dataset
from kinema4d_model.data.dataset_folder import DatasetFolder, lock_folder
from kinema4d_model.data.episode import Episode, load_robot
from kinema4d_model.data.episode_files import encode_episode
from kinema4d_model.data.lab_config import LabConfig, load_config, parse_config
from kinema4d_model.data.lab_episode import episode_kind, make_episode
from kinema4d_model.data.lab_layout import _beside
from kinema4d_model.data.lab_plans import SIGMAS, VARIANTS, Grasp, Plan, disturb, grasp_plan, place_plan
from kinema4d_model.data.lab_record import outcome_of
from kinema4d_model.data.lab_scene import SceneDraw, colour_word
from kinema4d_model.data.make import Demonstration, make_dataset, pending_jobs
from kinema4d_model.data.shards import open_index, read_episode
from kinema4d_ros.cli import main
from kinema4d_ros.core.errors import DataError
from kinema4d_ros.core.task import make_task
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.evaluation import TruthJudge
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.kinematics.gripping import finger_shape
from kinema4d_ros.lab import LabObject, PlacedObject
from kinema4d_ros.lab.scripted import tool_down
from kinema4d_ros.physics.objects import ODD_SHAPES
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot

SMALL = {"frames": 6, "width": 48, "height": 32, "shard_episodes": 1}


def small_config(**changes: object) -> LabConfig:
    document = {**load_config("nano").document, **SMALL, **changes}
    return parse_config(document, "test")


def only(kind: str) -> LabConfig:
    return small_config(kinds={kind: 1.0})


@pytest.fixture(scope="module")
def pick() -> Episode:
    return make_episode(only("pick"), 3, "train", 0)


def test_the_same_numbers_give_the_same_bytes(pick: Episode) -> None:
    again = make_episode(only("pick"), 3, "train", 0)
    assert encode_episode(again) == encode_episode(pick)
    other = make_episode(only("pick"), 3, "val", 0)
    assert not np.array_equal(other.rgb, pick.rgb)


def test_the_condition_comes_from_commands_not_measured_fingers(pick: Episode) -> None:
    assert pick.actions is not None
    assert pick.joints is not None
    assert pick.outcome.success
    robot = load_robot("yam")
    finger = robot.joint_names.index(robot.gripper.joint)  # type: ignore[union-attr]
    held = pick.joints[-1, finger] - pick.actions[-1, finger]
    assert held > 0.002, "fingers that hold an object stay wider open than commanded"
    drawn = render_pointmaps(robot, pick.actions, pick.camera)
    assert np.array_equal(drawn.link_ids, pick.condition_ids)
    assert not np.array_equal(render_pointmaps(robot, pick.joints, pick.camera).link_ids, pick.condition_ids)
    assert np.array_equal(pick.robot_condition().link_ids, pick.condition_ids)


def test_an_episode_is_consistent(pick: Episode) -> None:
    assert pick.shape == (6, 32, 48)
    steps = np.diff(pick.times)
    assert steps == pytest.approx(steps[0])
    assert pick.bounds is not None
    assert pick.known_bounds is not None
    xyz = pick.points()
    known = xyz[np.isfinite(xyz).all(-1)]
    assert known.min(0) == pytest.approx(pick.bounds[0], abs=1e-6)
    assert known.max(0) == pytest.approx(pick.bounds[1], abs=1e-6)
    target = next(o for o in pick.outcome.objects if o.name == pick.outcome.target)
    rise = target.base_T_object[-1, 2, 3] - target.base_T_object[0, 2, 3]
    assert rise == pytest.approx(pick.outcome.facts["lifted_m"])
    assert rise > 0.04
    # The target's pixels match its pose: the mean of its points is within its size of its centre.
    mask = pick.object_mask(target.name)[0]
    camera_T_base = pick.camera.camera_T_base
    centre = camera_T_base[:3, :3] @ target.base_T_object[0, :3, 3] + camera_T_base[:3, 3]
    assert np.linalg.norm(xyz[0][mask].mean(axis=0) - centre) < max(target.size)
    assert not set(np.unique(pick.condition_ids)) - set(range(pick.link_count + 1))


@pytest.mark.parametrize("kind", ["miss", "push", "place", "stack", "slip", "noise"])
def test_every_kind_gives_an_episode_with_an_outcome(kind: str) -> None:
    episode = make_episode(only(kind), 1, "train", 4)
    assert episode.task == kind
    assert episode.outcome.success is not None
    if kind == "miss":
        assert episode.outcome.success is False
        assert episode.outcome.facts["lifted_m"] < 0.04
    if kind == "noise":
        assert episode.details["sigma"] in SIGMAS


@pytest.mark.parametrize(("moved_m", "done"), [(0.025, False), (0.031, True)])
def test_a_push_is_labelled_by_the_limit_that_judges_use(moved_m: float, done: bool) -> None:
    thing = LabObject("cube", "box", (0.04, 0.04, 0.04), (0.8, 0.1, 0.1), 0.05)
    ways = [PlacedObject.standing(thing, 0.3, y, 0.0) for y in (0.0, moved_m)]
    states = [SimpleNamespace(objects={"cube": placed}) for placed in ways]
    plan = SimpleNamespace(goal=None, facts={})
    scene = SimpleNamespace(kind="push", cast=SimpleNamespace(target=ways[0], plan=plan, details={}))
    outcome = outcome_of(scene, states)  # type: ignore[arg-type]
    assert outcome.facts["moved_m"] == pytest.approx(moved_m)
    assert outcome.success is done
    poses = next(o.base_T_object for o in outcome.objects if o.name == outcome.target)
    assert TruthJudge(poses).judge(None, make_task("push")).success is done


def test_shares_of_kinds_are_kept_and_their_order_is_seeded() -> None:
    config = load_config("nano")
    kinds = [episode_kind(config, 0, "train", i) for i in range(400)]
    counts = Counter(kinds)
    assert {k: counts[k] for k in ("pick", "miss", "push")} == {"pick": 160, "miss": 120, "push": 80}
    assert kinds != [episode_kind(config, 1, "train", i) for i in range(400)]
    assert kinds[:100] != kinds[100:200]


def test_ood_is_outside_the_training_ranges() -> None:
    config = load_config("nano")
    assert not set(config.ood["looks"]["tables"]) & set(config.scene["looks"]["tables"])
    for section, name in (("camera", "azimuth_deg"), ("camera", "elevation_deg"), ("target", "width_m")):
        low, high = config.ood[section][name]
        other_low, other_high = config.scene[section][name]
        assert low >= other_high or high <= other_low
    rng = np.random.default_rng(0)
    for _ in range(40):
        assert colour_word(SceneDraw(config.ood, rng).colour()) in ("purple", "pink")
        assert colour_word(SceneDraw(config.scene, rng).colour()) not in ("purple",)


def test_nine_failures_do_not_change_the_gripper() -> None:
    kinematics = choose_kinematics(load_robot("yam"))
    robot = kinematics.robot
    ghost = PlacedObject.standing(LabObject("cube", "box", (0.04, 0.04, 0.04), (1, 0, 0), 0.05), 0.32, 0.05, 0.2)
    rng = np.random.default_rng(0)
    demonstration = grasp_plan(kinematics, robot.home_position(), ghost, Grasp.drawn(rng), rng).trajectory
    assert set(VARIANTS) == {(s, g) for s in range(3) for g in SIGMAS}
    failures = [
        (s, g, disturb(kinematics, demonstration, s, g, np.random.default_rng([4, s, SIGMAS.index(g)])))
        for s, g in VARIANTS
    ]
    finger = robot.joint_names.index(robot.gripper.joint)  # type: ignore[union-attr]
    tool = [link.name for link in robot.links].index(robot.tool_link)
    moved: dict[float, list[float]] = {}
    for segment, sigma, failure in failures:
        failure.validate(robot, check_velocity=True)
        plain = demonstration.resample(len(failure)).for_robot(robot)
        q = failure.for_robot(robot)
        assert q[:, finger] == pytest.approx(plain[:, finger])
        away = np.array([
            np.linalg.norm(kinematics.forward(a)[tool, :3, 3] - kinematics.forward(b)[tool, :3, 3])
            for a, b in zip(q, plain, strict=True)
        ])  # fmt: skip
        assert away[: len(q) * segment // 3].max(initial=0.0) < 1e-3, "the motion before its segment is unchanged"
        assert away[-1] > 1e-3
        moved.setdefault(sigma, []).append(float(away.max()))
    assert np.mean(moved[1.2]) > np.mean(moved[0.5])
    with pytest.raises(DataError, match="segment"):
        disturb(kinematics, demonstration, 3, 0.5, rng)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kinds": {"pick": 0.5}}, "add up"),
        ({"kinds": {"fly": 1.0}}, "kinds"),
        ({"frames": 1}, "frames"),
        ({"quality": "best"}, "quality"),
        ({"surprise": 1}, "unknown surprise"),
        ({"ood": {"camera": {"azimuth_deg": [40, 5]}}}, "azimuth_deg"),
        ({"ood": {"camera": {"zoom": 2}}}, "zoom"),
    ],
)
def test_bad_configurations_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        small_config(**change)
    with pytest.raises(DataError, match="nano"):
        load_config("nothing_like_that")


@pytest.mark.full
def test_a_killed_run_resumes_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    config = only("push")
    counts = {"train": 2, "val": 1, "ood": 1}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    make_dataset(config, whole, counts, seed=7)
    script = (
        "import sys, json\nfrom pathlib import Path\n"
        "from kinema4d_model.data.lab_config import parse_config\nfrom kinema4d_model.data.make import make_dataset\n"
        "document = json.loads(sys.argv[2])\n"
        "make_dataset(parse_config(document, 'test'), sys.argv[1], {'train': 2, 'val': 1, 'ood': 1}, 7)\n"
    )

    child = subprocess.Popen([sys.executable, "-c", script, str(killed), json.dumps(config.document)])
    deadline = time.monotonic() + 120
    while not list(killed.glob("*/[!.]*.tar")) and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait(30)
    (killed / "train").mkdir(exist_ok=True)
    (killed / "train" / ".train-000000.0123456789ab.tar").write_bytes(b"half a shard")
    left = len(pending_jobs(config, killed, counts, 7))
    assert left < 4, "at least one shard existed before the kill"
    make_dataset(config, killed, counts, seed=7)
    names = sorted(p.relative_to(whole) for p in whole.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(killed) for p in killed.rglob("*") if p.is_file())
    for name in names:
        assert (whole / name).read_bytes() == (killed / name).read_bytes(), name
    dataset = DatasetFolder.open(killed)
    keys = [e.key for split in dataset.splits for i in dataset.indices(split) for e in i.episodes]
    assert sorted(keys) == ["ood-000000", "train-000000", "train-000001", "val-000000"]
    assert read_episode(dataset.indices("ood")[0], 0).details["table"] == "checker"

    shard = killed / "train" / "train-000001.tar"
    shard.write_bytes(shard.read_bytes()[:5000])
    assert [job.path.name for job in pending_jobs(config, killed, counts, 7)] == ["train-000001.tar"]
    with pytest.raises(DataError, match="another seed"):
        make_dataset(config, killed, counts, seed=8)
    with pytest.raises(DataError, match="another config"):
        make_dataset(replace(config, document={**config.document, "tail_s": 0.1}), killed, counts, seed=7)
    with lock_folder(killed), pytest.raises(DataError, match="another process"):
        make_dataset(config, killed, counts, seed=7)


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=[pytest.mark.full, pytest.mark.slow])])
def test_workers_of_either_engine_make_the_same_bytes(engine: str, tmp_path: Path) -> None:
    if engine == "ray":
        pytest.importorskip("ray", reason="needs Ray")
    config = only("push")
    for name, options in (("one", {}), ("two", {"workers": 2, "engine": engine})):
        make_dataset(config, tmp_path / name, {"train": 2}, seed=7, **options)
    shards = sorted((tmp_path / "one").rglob("*.tar"))
    assert len(shards) == 2
    for shard in shards:
        assert shard.read_bytes() == (tmp_path / "two" / shard.relative_to(tmp_path / "one")).read_bytes()


@pytest.mark.full
def test_every_demonstration_has_nine_failures_in_a_shard_beside_it(tmp_path: Path) -> None:
    document = {**only("push").document, "kinds": {"push": 1.0}}
    (tmp_path / "push.yaml").write_text(json.dumps(document))
    folder = tmp_path / "data"
    arguments = ["data", "make", "--config", str(tmp_path / "push.yaml"), "--out", str(folder), "--episodes", "1"]
    assert main([*arguments, "--seed", "7"]) == 0
    dataset = DatasetFolder.open(folder)
    before = {p.name: p.read_bytes() for p in dataset.shards("train")}
    episodes = [read_episode(index, 0) for index in dataset.indices("train")]
    parents = [e for e in episodes if e.outcome.success]
    assert parents, "a seed with a successful push"
    assert main([*arguments, "--seed", "7", "--failures"]) == 0

    dataset = DatasetFolder.open(folder)
    assert dataset.document["failures"] == {"train": 9 * len(parents), "val": 0, "ood": 0}
    assert check_dataset(folder, redraw=False) == []
    assert all((folder / "train" / name).read_bytes() == data for name, data in before.items()), "demonstrations stay"
    robot = load_robot("yam")
    finger = robot.joint_names.index(robot.gripper.joint)  # type: ignore[union-attr]
    shards = [s for s in dataset.shards("train") if "failures" in s.name]
    assert len(shards) == len(parents)
    for parent, shard in zip(parents, shards, strict=True):
        index = open_index(shard)
        nine = [read_episode(index, i) for i in range(len(index.episodes))]
        assert [(e.details["segment"], e.details["sigma"]) for e in nine] == list(VARIANTS)
        assert {e.details["parent"] for e in nine} == {parent.key}
        assert len({e.details["table"] for e in nine}) > 1, "each has another room"
        assert len({e.rgb[0].tobytes() for e in nine}) == 9
        for e in nine:
            assert (e.task, e.details["split"]) == (parent.task, "train")
            assert np.array_equal(e.camera.base_T_camera, parent.camera.base_T_camera)
            for t in (0, -1):
                assert e.actions[t, finger] == pytest.approx(parent.actions[t, finger], abs=1e-6)  # type: ignore[index]
            assert np.abs(e.actions[-1] - parent.actions[-1]).max() > 1e-3, "the arm ends at another pose"  # type: ignore
            moved = e.outcome.facts["moved_m"]
            assert e.outcome.success is (moved > 0.03), "the physics decides"
            target = next(o for o in e.outcome.objects if o.name == e.outcome.target)
            same = next(o for o in parent.outcome.objects if o.name == parent.outcome.target)
            assert (target.size, target.shape) == (same.size, same.shape)
            assert np.array_equal(target.base_T_object[0, :2, 3], same.base_T_object[0, :2, 3])
            assert target.rgb != same.rgb

    # A run with a missing shard writes the same bytes again; a complete run does nothing.
    whole = shards[0].read_bytes()
    shards[0].write_bytes(whole[:2000])
    assert "count" in [d.name for d in check_dataset(folder, redraw=False)]
    assert main([*arguments, "--seed", "7", "--failures"]) == 0
    assert shards[0].read_bytes() == whole
    stamp = shards[0].stat().st_mtime_ns
    assert main([*arguments, "--seed", "7"]) == 0
    assert shards[0].stat().st_mtime_ns == stamp
    assert DatasetFolder.open(folder).document["failures"]["train"] == 9 * len(parents)


def test_only_successes_without_noise_are_demonstrations(pick: Episode) -> None:
    document = json.loads(encode_episode(pick)["json"])
    found = Demonstration.of(document)
    assert found is not None
    assert (found.key, found.kind, found.split, found.seed) == (pick.key, "pick", "train", 3)
    assert len(set(found.failure_keys)) == 9
    assert Demonstration.of({**document, "task": "noise"}) is None
    assert Demonstration.of({**document, "outcome": {**document["outcome"], "success": False}}) is None
    with pytest.raises(DataError, match=pick.key):
        Demonstration.of({**document, "seeds": {}})


def test_misses_depend_on_the_robot_s_finger_size() -> None:
    """With pads 20 mm wider, the same random numbers place an object across the fingers 10 mm farther away."""
    fingers = finger_shape(Robot.load("yam"))
    wider = replace(fingers, pad_width_m=fingers.pad_width_m + 0.02, width_m=fingers.width_m + 0.02)
    still = JointTrajectory.from_positions(["joint"], [[0.0], [0.0]], times=[0.0, 1.0])
    plan = Plan(still, tool_down(0.3, 0.0, 0.02, 0.0), 0.06)
    thing = LabObject("target", "box", (0.04, 0.04, 0.05), (0.5, 0.5, 0.5), 0.05)
    moved = []
    for seed in range(8):
        spots = []
        for shape in (fingers, wider):
            draw = SceneDraw(load_config("nano").scene, np.random.default_rng(seed))
            spots.append(_beside(draw, thing, plan, shape, np.random.default_rng(seed)).position[:2])
        moved.append(float(np.linalg.norm(spots[1] - spots[0])))
    assert set(np.round(moved, 9)) == {0.0, 0.01}, (
        "across the fingers, or along them, where the pad width does not matter"
    )


@pytest.mark.parametrize("shape", ODD_SHAPES)
def test_odd_shapes_have_grasps_whose_opening_fits_their_width(shape: str) -> None:
    robot = Robot.load("yam")
    kinematics, rng = choose_kinematics(robot), np.random.default_rng(4)
    config = small_config()
    draw = SceneDraw({**config.scene, "target": {**config.scene["target"], "shapes": [shape]}}, rng)
    target = draw.thing("target", width_m=(0.046, 0.050), height_m=(0.045, 0.055))
    assert target.shape == shape
    ghost = draw.standing(target, np.array([0.3, 0.0]))
    grasp = Grasp.drawn(rng)
    plan = place_plan(kinematics, robot.home_position(), ghost, np.array([0.28, 0.1]), 0.0, grasp, rng)
    width = plan.open_m - 2 * grasp.gap_m
    assert 0.015 < width <= target.size[1] + 1e-9
    assert np.hypot(*(plan.tool[:2, 3] - ghost.position[:2])) < 0.03
