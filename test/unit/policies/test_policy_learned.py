"""Demonstrations, the view, training, resuming and running a small Diffusion Policy; and broken folders."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.lab import SMALL, LabCamera, LabSimulation
from kinema4d_ros.policies import EpisodeStart, Observation, PolicyError
from kinema4d_ros.policies.demos import FIRST_SEED, DemoSettings, make_demos, read_demo
from kinema4d_ros.policies.registry import make_policy
from kinema4d_ros.policies.view import WorkspaceView, demo_view
from kinema4d_ros.robot import Robot
from kinema4d_ros.runtime.pool import Finished, Lost, Recipe

torch = pytest.importorskip("torch", reason="learned policies need torch")
torch.set_num_threads(1)

from kinema4d_model.policies.chunk_policy import paced  # noqa: E402
from kinema4d_model.policies.examples import Examples, grasp_joints  # noqa: E402
from kinema4d_model.policies.folder import read_policy  # noqa: E402
from kinema4d_model.policies.train import PolicyTraining, train_policy  # noqa: E402

TINY = PolicyTraining(steps=12, batch=8, draws=2, every=4, warmup=2)


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory, yam: Robot) -> Path:
    folder = tmp_path_factory.mktemp("demos")
    assert make_demos(folder, 2, robot=yam) == (2, 2)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, demos: Path) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train_policy(demos, folder, TINY)
    return folder


def seen(robot: Robot, seed: int = 0, joints: Any = None) -> Observation:
    lab = LabSimulation("canonical", seed, robot)
    lens = LabCamera.of(lab, read_camera(share_path("calibration/demo_lab.yaml")).scaled(360, 240), quality=SMALL)
    q = lab.state().positions if joints is None else joints
    return Observation(lens.capture(lab).rgb, lens.camera, q, 0.05, 0.0)


def red(image: Any) -> tuple[float, float]:
    """Centre of the red pixels."""
    weight = np.clip(image[..., 0].astype(float) - image[..., 1:].max(axis=-1) - 60, 0, None)
    y, x = np.mgrid[: image.shape[0], : image.shape[1]]
    return float((weight * x).sum() / weight.sum()), float((weight * y).sum() / weight.sum())


@pytest.mark.parametrize("size", [(720, 480), (360, 240), (96, 64)])
def test_the_view_is_the_same_from_images_of_any_size(yam: Robot, size: tuple[int, int]) -> None:
    lab = LabSimulation("canonical", 5, yam)  # a red cylinder
    view = demo_view()
    exact = LabCamera.of(lab, view.camera(), quality=SMALL).capture(lab).rgb
    camera = read_camera(share_path("calibration/demo_lab.yaml")).scaled(*size)
    found = view.of(LabCamera.of(lab, camera, quality=SMALL).capture(lab).rgb, camera)
    assert found.shape == exact.shape == (64, 96, 3)
    np.testing.assert_allclose(red(found), red(exact), atol=0.6)


def test_invalid_views() -> None:
    view = demo_view()
    camera = read_camera(share_path("calibration/demo_lab.yaml"))
    picture = np.zeros((480, 720, 3), np.uint8)
    pose = camera.base_T_camera.copy()
    pose[0, 3] += 0.1
    with pytest.raises(PolicyError, match="100 mm"):
        view.of(picture, camera.posed(pose))
    with pytest.raises(PolicyError, match="inside the image"):
        view.of(picture[:200], camera.cropped(0, 0, 720, 200))
    back = WorkspaceView.from_dict(json.loads(json.dumps(view.as_dict())))
    assert back.box == view.box
    with pytest.raises(PolicyError, match="base_T_camera"):
        WorkspaceView.from_dict({"box": [0, 0, 1, 1], "width": 3, "height": 3})


def test_demonstrations_are_complete_repeatable_and_separate_from_evaluation_scenes(
    demos: Path, tmp_path: Path, yam: Robot
) -> None:
    demo = read_demo(demos / "episode_000001.npz")
    assert demo.lifted
    assert demo.image.shape[1:] == (64, 96, 3)
    assert len(demo.image) == len(demo.state) == len(demo.action) > 30
    assert np.abs(demo.state[1:] - demo.action[:-1])[:, :6].max() < 0.08  # the arm followed its commands
    assert make_demos(tmp_path / "again", 2, robot=yam) == (2, 2)
    again = read_demo(tmp_path / "again" / "episode_000001.npz")
    np.testing.assert_array_equal(again.image, demo.image)
    np.testing.assert_array_equal(again.action, demo.action)
    assert FIRST_SEED > 100_000
    before = (demos / "episode_000000.npz").stat().st_mtime_ns
    make_demos(demos, 2, robot=yam)
    assert (demos / "episode_000000.npz").stat().st_mtime_ns == before


SMALL_DEMOS = DemoSettings(rate_hz=2.0)


@pytest.fixture(scope="module")
def small_demos(tmp_path_factory: pytest.TempPathFactory, yam: Robot) -> Path:
    folder = tmp_path_factory.mktemp("small")
    make_demos(folder, 3, SMALL_DEMOS, robot=yam, view=demo_view(48, 32))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_workers_write_the_same_files_even_when_they_are_killed(small_demos: Path, tmp_path: Path, yam: Robot) -> None:
    shutil.copy(small_demos / "episode_000001.npz", tmp_path)
    calls: list[tuple[int, int]] = []
    pids: set[int | None] = set()

    def progress(count: int, lifted: int) -> None:
        calls.append((count, lifted))
        if count == 2:  # the second worker is in its first episode
            for worker in multiprocessing.active_children():
                pids.add(worker.pid)
                worker.kill()

    view = demo_view(48, 32)
    made, lifted = make_demos(tmp_path, 3, SMALL_DEMOS, robot=yam, view=view, workers=2, progress=progress)
    assert len(pids) == 2
    assert [count for count, _ in calls] == [1, 2, 3]
    assert (made, lifted) == (3, calls[-1][1])
    assert content(tmp_path) == content(small_demos)


def test_episodes_whose_workers_die_again_are_named_and_the_others_recorded(
    small_demos: Path, tmp_path: Path, yam: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demos.json").write_bytes((small_demos / "demos.json").read_bytes())

    def run(recipe: Recipe, jobs: list[int], **options: Any) -> Iterator[Finished | Lost]:
        assert options == {"workers": 3, "engine": "ray"}
        yield Lost(jobs[2], "killed", "the process died")
        yield Finished(jobs[1], recipe.build(0)(jobs[1]))
        yield Lost(jobs[0], "killed", "the process died")

    monkeypatch.setattr("kinema4d_ros.policies.demos.run_jobs", run)
    with pytest.raises(PolicyError, match="not recorded: episodes 0, 2; the process died"):
        make_demos(tmp_path, 3, SMALL_DEMOS, robot=yam, view=demo_view(48, 32), workers=3, engine="ray")
    assert content(tmp_path).keys() == {"demos.json", "episode_000001.npz"}


def test_folders_and_files_that_are_not_demonstrations(demos: Path, tmp_path: Path, yam: Robot) -> None:
    with pytest.raises(PolicyError, match="scenario differ"):
        make_demos(demos, 1, DemoSettings("cluttered"), robot=yam)
    (tmp_path / "cut.npz").write_bytes((demos / "episode_000000.npz").read_bytes()[:1000])
    with pytest.raises(PolicyError, match="is not a demonstration"):
        read_demo(tmp_path / "cut.npz")
    with pytest.raises(PolicyError, match="no demonstrations"):
        Examples(tmp_path / "nowhere", 16)
    shutil.copy(demos / "demos.json", tmp_path / "demos.json")
    with pytest.raises(PolicyError, match="none of them a success"):
        Examples(tmp_path, 16)
    for episodes, workers in ((0, 1), (1, 0)):
        with pytest.raises(PolicyError, match=f"{episodes} episodes, {workers} workers"):
            make_demos(tmp_path / "x", episodes, robot=yam, workers=workers)
    with pytest.raises(PolicyError, match="rate_hz"):
        DemoSettings(rate_hz=0.0)


def test_the_grasp_is_where_the_fingers_begin_to_close() -> None:
    fingers = np.array([0.01, 0.03, 0.04, 0.04, 0.04, 0.02, 0.01])
    action = np.column_stack([np.arange(7.0), fingers]).astype(np.float32)
    assert grasp_joints(action).tolist() == [4.0]


def test_examples_are_normalised_and_relative_to_the_arm(demos: Path) -> None:
    examples = Examples(demos, 16)
    assert examples.episodes == 2
    batch = examples.batch(np.random.default_rng(0), 256)
    assert batch.image.shape == (256, 3, 64, 96)
    assert batch.chunk.shape == (256, 16, 7)
    assert abs(float(batch.chunk.mean())) < 0.3
    assert 0.5 < float(batch.chunk.std()) < 1.5
    assert torch.isfinite(batch.grasp).all()


def test_training_reduces_the_loss(demos: Path, tmp_path: Path) -> None:
    losses: list[float] = []
    settings = PolicyTraining(steps=40, batch=16, warmup=5)
    train_policy(demos, tmp_path / "out", settings, progress=lambda _, loss: losses.append(loss))
    assert len(losses) == 40
    assert np.mean(losses[-8:]) < 0.7 * np.mean(losses[:8])


def test_a_resumed_run_ends_like_an_uninterrupted_one(demos: Path, trained: Path, tmp_path: Path) -> None:
    def stop(step: int, loss: float) -> None:
        if step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_policy(demos, tmp_path / "out", TINY, progress=stop)
    steps: list[int] = []
    train_policy(demos, tmp_path / "out", TINY, progress=lambda step, _: steps.append(step))
    assert steps[0] == 5  # from the checkpoint of step 4
    whole, resumed = read_policy(trained / "policy"), read_policy(tmp_path / "out" / "policy")
    for (name, a), b in zip(whole.network.named_parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(a, b), name
    with pytest.raises(PolicyError, match="another folder"):
        train_policy(demos, tmp_path / "out", PolicyTraining(steps=99))


def test_a_trained_policy_acts_within_the_limits_of_the_arm(trained: Path, yam: Robot) -> None:
    policy = make_policy(f"diffusion:{trained}")
    look = seen(yam)
    with pytest.raises(PolicyError, match="no episode"):
        policy.act(look)
    policy.reset(EpisodeStart(yam, seed=4))
    first = policy.act(look)
    assert len(first.times) == 8
    assert first.joints is not None
    np.testing.assert_allclose(first.times, np.arange(1, 9) / 10)
    speeds = np.abs(np.diff(np.vstack([look.joints, first.joints]), axis=0)) / 0.1
    assert np.all(speeds <= np.array([j.limits.velocity for j in yam.actuated]))
    policy.reset(EpisodeStart(yam, seed=4))
    np.testing.assert_array_equal(policy.act(look).joints, first.joints)
    policy.reset(EpisodeStart(yam, seed=5))
    assert np.any(policy.act(look).joints != first.joints)
    late = Observation(look.image, look.camera, look.joints, 0.05, 60.0)
    assert policy.act(late).done
    with pytest.raises(PolicyError, match=r"shape \(3,\)"):
        policy.act(seen(yam, joints=np.zeros(3)))


def test_pacing_keeps_limits_and_speeds(yam: Robot) -> None:
    far = np.full((50, 7), 100.0)
    made = paced(yam, far, yam.home_position(), 0.1)
    assert np.all(made <= yam.upper)
    near = yam.home_position() + 0.001 * np.arange(1, 4)[:, None]
    np.testing.assert_allclose(paced(yam, near, yam.home_position(), 0.1), np.clip(near, yam.lower, yam.upper))


def test_another_robot_is_refused_by_name(trained: Path, primitive_arm: Robot) -> None:
    with pytest.raises(PolicyError, match="not 'primitive_arm'"):
        make_policy(f"diffusion:{trained}").reset(EpisodeStart(primitive_arm))


@pytest.mark.parametrize("options", ["steps=-1", "steps=99", "seed=-1", "steps=many"])
def test_options_that_make_no_sense(trained: Path, options: str) -> None:
    with pytest.raises(PolicyError, match="steps") as caught:
        make_policy(f"diffusion:{trained},{options}")
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda p: (p / "policy.json").unlink(), "no policy.json"),
        (lambda p: (p / "weights.safetensors").write_bytes(b"12345678"), "weights.safetensors cannot be used"),
        (lambda p: (p / "policy.json").write_text("{"), "cannot be used"),
        (lambda p: _change(p, "version", 9), "version 9"),
        (lambda p: _change(p, "joint_names", ["a"]), "1 joints"),
        (lambda p: _change(p, "network", {"joints": 7, "depth": 2}), "cannot be used"),
        (lambda p: _change(p, "numbers", {}), "joints_mean"),
    ],
)
def test_broken_folders_are_named(trained: Path, tmp_path: Path, damage: Any, words: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained / "policy", copy)
    damage(copy)
    with pytest.raises(PolicyError, match=words) as caught:
        make_policy(f"diffusion:{copy}")
    assert caught.value.code == ErrorCode.POLICY_UNAVAILABLE


def test_missing_folders(tmp_path: Path) -> None:
    for spec in ("diffusion", f"diffusion:{tmp_path / 'nowhere'}", f"diffusion:{tmp_path}"):
        with pytest.raises(PolicyError) as caught:
            make_policy(spec)
        assert caught.value.code == ErrorCode.POLICY_UNAVAILABLE


def _change(folder: Path, key: str, value: Any) -> None:
    document = json.loads((folder / "policy.json").read_text())
    document[key] = value
    (folder / "policy.json").write_text(json.dumps(document))
