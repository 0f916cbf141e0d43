"""Assessment on lab episodes: scores of the truth and of baselines, twins, tables and reports."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.own_generator import documented

from kinema4d_model.assessment.report import markdown, strip, write_assessment
from kinema4d_model.assessment.run import (
    Outcomes,
    Scored,
    Setup,
    assess,
    assess_episode,
    degradation_seed,
    episodes_of,
    make_twin,
    moved_by,
    out_of_sight,
    outcomes_of,
    summaries,
)
from kinema4d_model.assessment.scores import (
    NAMES,
    carry,
    composite,
    episode_region,
    episode_request,
    first_frame,
    held_pixels,
    holds,
    score,
    summarise,
    truth,
)
from kinema4d_model.data.episode import Episode
from kinema4d_model.data.lab_config import LabConfig, load_config, parse_config
from kinema4d_model.data.make import make_dataset
from kinema4d_model.pipeline.backend import DiffusionGenerator
from kinema4d_model.shipped import shipped_weights
from kinema4d_ros.cli import main
from kinema4d_ros.core.degrade import Degradation
from kinema4d_ros.core.errors import DataError, GeneratorError
from kinema4d_ros.generators import load_generator

SEED = 3


@pytest.fixture(scope="module")
def config() -> LabConfig:
    document = {**load_config("nano").document, "frames": 13, "width": 96, "height": 64, "shard_episodes": 4}
    return parse_config({**document, "kinds": {"pick": 0.5, "miss": 0.5}}, "grasps")


@pytest.fixture(scope="module")
def folder(config: LabConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "grasps"
    make_dataset(config, out, {"val": 8}, seed=SEED, workers=1)
    return out


@pytest.fixture(scope="module")
def episodes(folder: Path) -> list[Episode]:
    return list(episodes_of(folder, "val"))


def pick_of(episodes: list[Episode]) -> Episode:
    return next(e for e in episodes if e.outcome.success)


def test_the_truth_has_perfect_scores(episodes: list[Episode]) -> None:
    episode = pick_of(episodes)
    region = episode_region(episode)
    assert 0.05 < region.mean() < 0.9
    numbers = score(truth(episode), episode, region)
    assert set(numbers) == set(NAMES)
    assert numbers["psnr"] == numbers["psnr_dynamic"] == np.inf
    assert numbers["ssim"] == pytest.approx(1)
    assert numbers["chamfer_l1_mm"] == 0
    assert numbers["f_score"] == numbers["f_score_dynamic"] == 1


def test_better_informed_predictors_score_better(episodes: list[Episode]) -> None:
    episode = pick_of(episodes)
    region, request = episode_region(episode), episode_request(episode, depth=True)
    still, robot, taken = (score(predict(request), episode, region) for predict in (first_frame, composite, carry))
    assert still["psnr_dynamic"] < robot["psnr_dynamic"] < taken["psnr_dynamic"]
    assert still["chamfer_l1_dynamic_mm"] > robot["chamfer_l1_dynamic_mm"] > taken["chamfer_l1_dynamic_mm"]
    assert robot["f_score_dynamic"] < taken["f_score_dynamic"]


def test_held_object_is_detected_in_the_last_frame(episodes: list[Episode]) -> None:
    for episode in episodes:
        grip = episode_request(episode, depth=True).robot.grip
        assert grip is not None
        assert holds(truth(episode), grip) is episode.outcome.success
        assert held_pixels(composite(episode_request(episode, depth=True)), grip) == 0


def test_a_small_rise_is_not_a_lift(episodes: list[Episode]) -> None:
    episode = pick_of(episodes)
    grip = episode_request(episode, depth=True).robot.grip
    assert grip is not None
    poses = grip.base_T_grip.copy()
    poses[:-1, 2, 3] += poses[-1, 2, 3] - poses[:-1, 2, 3].min() - 0.035
    assert holds(truth(episode), grip)
    assert not holds(truth(episode), dataclasses.replace(grip, base_T_grip=poses)), "3.5 cm is not a lift"


def test_outcomes_are_counted_by_judge_and_by_held_object(episodes: list[Episode]) -> None:
    by_key = {e.key: e for e in episodes}
    predictors = {"composite": composite, "carry": carry}
    rows = [row for episode in episodes for row in assess_episode(episode, predictors, depth=True)]
    assert len(rows) == 2 * len(episodes)
    picks = sum(bool(e.outcome.success) for e in episodes)
    for judge in (True, False):
        # A static scene never lifts an object: wrong for every pick, right for every miss.
        assert outcomes_of(rows, "composite", judge=judge) == Outcomes(0, 0, picks, len(by_key) - picks)
        # The carry hypothesis is right for picks.
        taken = outcomes_of(rows, "carry", judge=judge)
        assert taken.held_success >= picks - 1
        assert taken.count == len(by_key)
    text = markdown(rows, [], "val", True)
    assert f"| composite | 0 | 0 | {picks} | {len(by_key) - picks} | 0 |" in text
    table = summaries(rows)
    assert table["carry"]["psnr"].count == len(by_key)
    assert table["carry"]["psnr"].low <= table["carry"]["psnr"].mean <= table["carry"]["psnr"].high
    assert all(row.judged is not None for row in rows)
    moved = dataclasses.replace(rows[0], judged=None)
    assert outcomes_of([moved], rows[0].predictor).undecided == 1


def test_a_twin_has_the_same_motion_and_another_outcome(config: LabConfig, episodes: list[Episode]) -> None:
    episode = pick_of(episodes)
    found = make_twin(config, episode, moved_by(0.10))
    assert found is not None
    twin = found.twin
    assert twin.actions is not None
    assert episode.actions is not None
    assert np.array_equal(twin.actions, episode.actions)
    assert np.array_equal(twin.camera.base_T_camera, episode.camera.base_T_camera)
    name = episode.outcome.target
    before, after = (
        next(t for t in e.outcome.objects if t.name == name).base_T_object[0, :3, 3] for e in (episode, twin)
    )
    assert np.hypot(*(after - before)[:2]) == pytest.approx(0.10, abs=0.004)
    assert episode.outcome.success
    assert not twin.outcome.success
    request = episode_request(twin, depth=True)
    assert request.robot.grip is not None
    assert not holds(carry(request), request.robot.grip), "no object is between the fingers"


def test_a_target_out_of_sight_is_not_in_the_image(config: LabConfig, episodes: list[Episode]) -> None:
    episode = pick_of(episodes)
    found = make_twin(config, episode, out_of_sight)
    assert found is not None
    name = episode.outcome.target
    assert name in episode.names
    assert episode.object_mask(name)[0].sum() > 20
    assert name not in found.twin.names or not found.twin.object_mask(name).any()
    assert not found.twin.outcome.success


def test_a_missing_depth_is_named(episodes: list[Episode]) -> None:
    with pytest.raises(DataError, match=f"{episodes[0].key}' has no depth"):
        episode_request(dataclasses.replace(episodes[0], depth_m=None), depth=True)


def test_intervals_contain_the_mean_and_ignore_nan() -> None:
    rows = [{"psnr": float(v)} for v in (20, 22, 24, np.nan)]
    found = summarise(rows)["psnr"]
    assert found.count == 3
    assert found.mean == 22
    assert 20 <= found.low < 22 < found.high <= 24
    assert summarise([{"psnr": float("nan")}])["psnr"].count == 0


def test_degraded_robots_get_rows_of_their_own(episodes: list[Episode]) -> None:
    degradations = [Degradation.parse(text) for text in ("drop=0.2", "noise")]
    one, other = episodes[:2]
    rows = assess_episode(one, {"composite": composite}, depth=True, degradations=degradations)
    table = summaries(rows)
    assert list(table) == ["composite", "composite, drop 20 %", "composite, noise 10 mm"]
    assert table["composite, drop 20 %"]["psnr_dynamic"].mean < table["composite"]["psnr_dynamic"].mean
    assert table["composite, noise 10 mm"]["chamfer_l1_mm"].mean > table["composite"]["chamfer_l1_mm"].mean
    again = assess_episode(one, {"composite": composite}, depth=True, degradations=degradations[1:])
    assert numbers_of(again) == numbers_of([rows[0], rows[2]]), "rows do not depend on each other"
    assert degradation_seed(one.key) != degradation_seed(other.key)


def numbers_of(rows: list[Scored]) -> list[tuple[Any, ...]]:
    return [(row.key, row.predictor, row.held, row.judged, dict(row.numbers)) for row in rows]


@pytest.mark.skipif(shipped_weights("nano") is None, reason="the weights are not in this copy")
def test_the_command_adds_ablations_and_degradations(folder: Path, tmp_path: Path) -> None:
    command = ["assess", "--data", str(folder), "--limit", "1", "--strips", "0", "--out", str(tmp_path)]
    chosen = ["--ablation", "no_mask", "--ablation", "soft_10", "--degrade", "drop", "--degrade", "drop=0.05"]
    assert main([*command, *chosen]) == 0
    document = json.loads((tmp_path / "assessment.json").read_text())
    scores = {row["predictor"]: row["numbers"] for row in document["episodes"]}
    plain = ["first frame", "composite", "carry", "model", "model, no_mask", "model, soft_10"]
    assert list(scores) == [*plain, *(f"{name}, drop 5 %" for name in plain)]
    assert scores["model, soft_10"] == scores["model"], "what the weights were trained for"
    assert scores["model, no_mask"] != scores["model"]
    assert scores["model, drop 5 %"] != scores["model"]
    assert document["ablations"] == ["no_mask", "soft_10"]
    key = document["episodes"][0]["key"]
    seeds = {key: degradation_seed(key)}
    assert document["degradations"] == [{"label": "drop 5 %", "name": "drop", "value": 0.05, "seeds": seeds}]
    assert "| model, no_mask, drop 5 % |" in (tmp_path / "assessment.md").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--degrade", "blur"], "expected NAME or NAME=VALUE with one of drop, noise, shift, rotate"),
        (["--ablation", "pointmap"], "needs a network trained for it; expected one of no_mask, soft_0, soft_10"),
        (["--ablation", "no_mask", "--preset", "composite"], "generator 'composite' has no ablation 'no_mask'"),
        (["--engine", "ray"], "engine 'ray' with 0 workers"),
        (["--limit", "0"], "no episode of split 'val'"),
    ],
)
@pytest.mark.skipif(shipped_weights("nano") is None, reason="the weights are not in this copy")
def test_rows_that_cannot_be_made_are_refused(
    options: list[str], words: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["assess", "--data", str(folder), "--out", str(tmp_path / "out"), *options]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out" / "assessment.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(shipped_weights("nano") is None, reason="the weights are not in this copy")
def test_any_number_of_workers_gives_the_same_rows(folder: Path) -> None:
    load = functools.partial(load_generator, "nano", sampler={"steps": 1})
    setup = Setup(load, degradations=(Degradation.parse("drop"),), ablations=("no_mask",))
    torch.set_num_threads(2)
    here, found = assess(setup, folder, "val", limit=2, twins=1)
    there, same = assess(setup, folder, "val", limit=2, twins=1, workers=2)
    assert [row.key for row in here] == [key for key in ("val-000000", "val-000001") for _ in range(2 * 5)]
    assert numbers_of(here) == numbers_of(there)
    assert [table.change for table in found] == ["moved by 10 cm", "out of sight"]
    assert found == same


@pytest.mark.full
@pytest.mark.slow
def test_a_killed_worker_costs_time_only(folder: Path, tmp_path: Path) -> None:
    plain, _ = assess(Setup(functools.partial(load_generator, "composite")), folder, "val", limit=2)
    load = functools.partial(load_generator, "support.own_generator:Killed", marks=str(tmp_path), times=1)
    rows, _ = assess(Setup(load), folder, "val", limit=2, workers=2)
    assert len(list(tmp_path.iterdir())) == 1
    assert numbers_of(rows) == numbers_of(plain)


@pytest.mark.full
@pytest.mark.slow
def test_a_lost_episode_is_named(folder: Path, tmp_path: Path) -> None:
    load = functools.partial(load_generator, "support.own_generator:Killed", marks=str(tmp_path), times=2)
    with pytest.raises(GeneratorError, match=r"'val-000000' was not assessed: the process died \(signal SIGKILL"):
        assess(Setup(load), folder, "val", limit=1, workers=1)


def test_strips_show_every_video_in_a_row() -> None:
    videos = [np.full((9, 8, 12, 3), level, np.uint8) for level in (0, 100, 200)]
    picture = strip(videos, frames=4, scale=2)
    assert picture.shape == (3 * 16, 4 * 24, 3)
    assert [int(picture[y, 5, 0]) for y in (3, 20, 40)] == [0, 100, 200]


def test_the_command_assesses_a_user_defined_generator(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["assess", "--data", str(folder), "--limit", "1", "--strips", "0", "--out", str(tmp_path / "out")]
    assert main([*command, "--preset", documented(tmp_path, monkeypatch)]) == 0
    rows = json.loads((tmp_path / "out" / "assessment.json").read_text())["episodes"]
    scores = {row["predictor"]: row["numbers"] for row in rows}
    # The composite in grey: the same points, images that differ more from the truth.
    assert scores["model"]["chamfer_l1_mm"] == scores["composite"]["chamfer_l1_mm"]
    assert scores["model"]["psnr"] < scores["composite"]["psnr"]


def test_an_assessment_is_written(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = DiffusionGenerator(preset="nano", random_weights=True, sampler={"steps": 1}, device="cpu")
    assert write_assessment(lambda: generator, folder, "val", tmp_path, limit=2, strips=2) == 0
    document = json.loads((tmp_path / "assessment.json").read_text())
    assert document["depth"] == "from the picture"
    assert len(document["episodes"]) == 8
    assert set(document["summaries"]) == {"first frame", "composite", "carry", "model"}
    text = (tmp_path / "assessment.md").read_text()
    assert "Split val, 2 episodes, given: first image alone." in text
    assert text.strip() in capsys.readouterr().out
    assert len(list(tmp_path.glob("*.png"))) == 2
    films = list(tmp_path.glob("*.gif"))
    assert len(films) == 2
    with Image.open(films[0]) as film:
        assert (film.width, film.height) == (3 * 192 + 2 * 4, 128)
        assert getattr(film, "n_frames", 1) == 13
