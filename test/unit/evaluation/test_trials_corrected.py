"""Corrected rates and calibrated verdicts: by hand, by simulation, and never from held-out outcomes."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinema4d_ros.core.errors import FileFormatError
from kinema4d_ros.evaluation.correction import prediction_powered
from kinema4d_ros.evaluation.report import write_report
from kinema4d_ros.evaluation.report.tables import corrected_table, worth_table
from kinema4d_ros.evaluation.report.text import corrected_words, worth_words
from kinema4d_ros.evaluation.store import TrialStore
from kinema4d_ros.evaluation.summary import ModelSummary, summarise
from kinema4d_ros.evaluation.summary.cells import Pair
from kinema4d_ros.evaluation.summary.corrected import STAND_IN, Corrected, correct
from kinema4d_ros.evaluation.summary.correction_check import check_correction
from kinema4d_ros.evaluation.trial import LabOutcome, ModelOutcome, Trial, TrialRecord

LABEL = "nano/open"


def pair(policy: str, seed: int, lab: bool, verdict: bool | None, confidence: float = 0.9) -> Pair:
    return Pair(Trial(policy, "canonical", seed), lab, verdict, confidence)


def drawn(count: int, seed: int, *, rate: float = 0.4, false_success: float = 0.5, policy: str = "a") -> list[Pair]:
    """An optimistic model: shows every success, and some failures as successes."""
    rng = np.random.default_rng(seed)
    labs = rng.random(count) < rate
    shown = labs | (rng.random(count) < false_success)
    return [pair(policy, i, bool(lab), bool(says)) for i, (lab, says) in enumerate(zip(labs, shown, strict=True))]


def test_the_first_scenes_are_used_as_real_trials_and_the_rest_by_the_model_only() -> None:
    pairs = drawn(60, seed=3)
    found = correct({"a": pairs[::-1]})  # in any order
    (rate,) = found.rates
    first, rest = pairs[:STAND_IN], pairs[STAND_IN:]
    assert (found.source, rate.real_trials, rate.model_trials) == ("lab", STAND_IN, 50)
    expected = prediction_powered([p.model for p in rest], [p.model for p in first], [p.lab for p in first])
    assert rate.corrected == expected
    assert rate.real.estimate == np.mean([p.lab for p in first])
    assert rate.held_out == pytest.approx(np.mean([p.lab for p in rest]))


def test_held_out_outcomes_change_only_the_score() -> None:
    pairs = drawn(60, seed=4)
    lies = [p if i < STAND_IN else replace(p, lab=not p.lab) for i, p in enumerate(pairs)]
    honest, lied = correct({"a": pairs}), correct({"a": lies})
    assert [(r.real, r.model, r.corrected) for r in honest.rates] == [
        (r.real, r.model, r.corrected) for r in lied.rates
    ]
    assert honest.probabilities == lied.probabilities
    assert honest.rates[0].held_out != lied.rates[0].held_out
    assert honest.calibration is not None
    assert lied.calibration is not None
    assert honest.calibration.brier != lied.calibration.brier


def test_the_correction_removes_the_bias_and_its_interval_covers_the_truth() -> None:
    rate, off, model_off, holds = 0.4, [], [], []
    for seed in range(300):
        (one,) = correct({"a": drawn(150, seed, rate=rate, false_success=0.3)}).rates
        off.append(one.corrected.estimate - rate)
        model_off.append(one.model.estimate - rate)
        holds.append(one.corrected.low <= rate <= one.corrected.high)
    assert np.mean(model_off) > 0.15
    assert abs(np.mean(off)) < 0.03
    assert np.mean(holds) >= 0.93


def test_given_real_trials_replace_lab_runs() -> None:
    pairs = drawn(40, seed=5)
    real = {p.trial.key: True for p in pairs[:12]}  # whatever the lab says
    found = correct({"a": pairs}, real)
    (rate,) = found.rates
    assert (found.source, rate.real_trials, rate.model_trials, rate.real.estimate) == ("real", 12, 28, 1.0)
    assert rate.held_out is None
    assert found.calibration is not None
    assert found.calibration.brier is None
    assert correct({"a": pairs}, {p.trial.key: True for p in pairs[:2]}).rates == ()


def test_verdicts_are_calibrated_by_the_real_trials() -> None:
    # Sure successes are right in 6 of 8, sure failures in 4 of 4; with half a run at each end added.
    known = [pair("a", i, i < 6, True, 1.0) for i in range(8)] + [pair("a", i, False, False, 1.0) for i in range(8, 12)]
    others = [pair("a", 20 + i, i % 2 == 0, i < 10, 1.0) for i in range(20)]
    found = correct({"a": known + others}, {p.trial.key: p.lab for p in known})
    assert found.probabilities["a|canonical|20"] == pytest.approx(6.5 / 9)
    assert found.probabilities["a|canonical|39"] == pytest.approx(0.5 / 5)
    lab = correct({"a": [*known[:6], *known[8:], *others]})
    assert lab.calibration is not None
    sure = {one.verdict: one for one in lab.calibration.verdicts}
    assert sure["success"].count == 10
    assert sure["success"].observed is not None
    assert sure["success"].observed.estimate == 0.5
    assert sure["unknown"].probability is None
    likely = np.array([lab.probabilities[p.trial.key] for p in others])
    assert lab.calibration.brier == pytest.approx(np.mean((likely - np.array([p.lab for p in others])) ** 2))
    assert lab.calibration.brier_verdict == pytest.approx(0.5)


def test_the_check_scores_single_runs_too() -> None:
    rows = {row.method: row for row in check_correction({"a": drawn(200, 1)}, real_trials=[20], repeats=20).rows}
    wrong = np.mean([p.lab != p.model for p in drawn(200, 1)])
    assert rows["model"].brier == pytest.approx(wrong, abs=0.02)  # a verdict that is wrong costs 1
    assert rows["curve"].brier < rows["real"].brier < 0.3
    assert rows["curve"].brier < rows["model"].brier


def model_of(corrected: Corrected) -> ModelSummary:
    summary = summarise(
        {
            "policies": {"a": "a"},
            "scenarios": ["canonical"],
            "runs": 1,
            "seed": 0,
            "models": ["nano"],
            "modes": ["open"],
        },
        [TrialRecord(Trial("a", "canonical", 0), LabOutcome(True), {LABEL: ModelOutcome(True)})],
        repeats=2,
    )
    return replace(summary.models[0], corrected=corrected)


def test_the_text_says_when_the_model_adds_nothing() -> None:
    poor = model_of(correct({"a": drawn(60, 7, false_success=1.0)}))
    assert "narrower than that of the real trials alone for 0 of 1 policies" in corrected_words(poor)
    assert "the model adds nothing" in corrected_words(poor)
    assert len(corrected_table(poor).header) == 7
    right = drawn(600, 7, false_success=0.0)
    good = model_of(correct({"a": right}, {p.trial.key: p.lab for p in right[:40]}))
    assert "for 1 of 1 policies" in corrected_words(good)
    assert len(corrected_table(good).header) == 6
    assert "The real outcomes of those runs are not known" in worth_words(good)
    assert len(worth_table(good).rows) == 2
    assert "calibration helps" in worth_words(model_of(correct({"a": drawn(600, 7)})))
    few = model_of(correct({"a": drawn(12, 7)}))
    assert "No corrected rates: 10 real trials and 10 other runs of a policy are needed" in corrected_words(few)
    assert "not calibrated" in worth_words(few)


def fill(folder: Path) -> dict[str, TrialRecord]:
    store = TrialStore(folder)
    document = {"policies": {"a": "expert"}, "scenarios": ["canonical"], "runs": 40, "seed": 0}
    store.agree({**document, "models": ["nano"], "modes": ["open"], "task": "pick"})
    for one in drawn(40, seed=2):
        outcome = ModelOutcome(one.verdict, confidence=0.9, picture="pictures/gone.jpg", made_by="diffusion nano aa")
        store.add(TrialRecord(one.trial, LabOutcome(one.lab), {LABEL: outcome}))
    return store.records()


def test_real_trials_are_used_in_the_report_and_kept_in_the_folder(tmp_path: Path) -> None:
    records = fill(tmp_path)
    table = tmp_path / "mine.csv"
    table.write_text("seed,policy,scenario,success\n" + "".join(f"{i},a,canonical,{i % 2}\n" for i in range(12)))
    for real in (table, None):
        paths = write_report(tmp_path, real=real)
        summary = json.loads(paths[3].read_text())["models"][0]["corrected"]
        assert summary["source"] == "real"
        assert summary["rates"][0]["real"]["estimate"] == 0.5
        assert "probabilities" not in summary
        assert "Real trials are read from real.csv" in paths[0].read_text()
        assert "Real trials are read from real.csv" in paths[1].read_text()
    lines = list(csv.DictReader(io.StringIO(paths[2].read_text())))
    assert [bool(line["p_success"]) for line in sorted(lines, key=lambda one: int(one["seed"]))] == [False] * 12 + [
        True
    ] * 28
    # Names of missing images are empty.
    assert {line["picture"] for line in lines} == {""}
    assert {line["made_by"] for line in lines} == {"diffusion nano aa"}
    assert len(records) == 40


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("policy,seed,success\na,1,1\n", "has columns"),
        ("policy,scenario,seed,success\na,canonical,99,1\n", r"line 2 .* a\|canonical\|99"),
        ("policy,scenario,seed,success\na,canonical,1,1\na,canonical,1,0\n", "line 3"),
        ("policy,scenario,seed,success\na,canonical,1,maybe\n", "maybe"),
        ("policy,scenario,seed,success\na,canonical,one,1\n", "line 2"),
        ("policy,scenario,seed,success\na,canonical\n", "line 2"),
    ],
)
def test_an_invalid_file_of_real_trials_is_refused(tmp_path: Path, text: str, words: str) -> None:
    fill(tmp_path)
    table = tmp_path / "mine.csv"
    table.write_text(text)
    with pytest.raises(FileFormatError, match=words):
        write_report(tmp_path, real=table)
    assert not (tmp_path / "real.csv").exists()
