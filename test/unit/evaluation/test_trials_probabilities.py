"""Stated probabilities in the summary: soft rates, Brier score, calibration, undecided runs, by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_ros.core.errors import EvaluationError
from kinema4d_ros.evaluation.judges import Verdict
from kinema4d_ros.evaluation.report.sections import calibration_plot, report_sections
from kinema4d_ros.evaluation.report.tables import calibration_table, soft_table
from kinema4d_ros.evaluation.report.text import probability_words
from kinema4d_ros.evaluation.report.write import trials_csv
from kinema4d_ros.evaluation.summary import EvaluationSummary, summarise
from kinema4d_ros.evaluation.summary.cells import Pair
from kinema4d_ros.evaluation.summary.probabilities import calibrate, soft_cell
from kinema4d_ros.evaluation.trial import LabOutcome, ModelOutcome, Trial, TrialRecord

LABEL = "draft/open"
RUNS: list[tuple[bool, bool | None, float | None, bool | None]] = [
    # lab, verdict, probability, forced
    (True, True, 0.9, None),
    (True, True, 0.8, None),
    (False, True, 0.6, None),
    (False, False, 0.1, None),
    (True, None, 0.5, True),
    (False, None, None, True),
    (False, False, None, None),
    (True, None, None, None),
]


def pairs() -> list[Pair]:
    return [
        Pair(Trial("a", "canonical", i), lab, verdict, 0.9, probability, forced)
        for i, (lab, verdict, probability, forced) in enumerate(RUNS)
    ]


def summary(stated: bool = True) -> EvaluationSummary:
    records = [
        TrialRecord(
            Trial(policy, "canonical", i),
            LabOutcome(lab),
            {LABEL: ModelOutcome(verdict, probability=probability if stated else None, forced=forced)},
        )
        for policy in ("a", "b")
        for i, (lab, verdict, probability, forced) in enumerate(RUNS)
    ]
    document = {
        "policies": {"a": "a", "b": "b"}, "scenarios": ["canonical"], "runs": len(RUNS), "models": ["draft"],
        "modes": ["open"], "task": "pick", "seed": 0,
    }  # fmt: skip
    return summarise(document, records, repeats=5)


def test_a_soft_cell_has_the_numbers_computed_by_hand() -> None:
    cell = soft_cell(pairs())
    soft = np.array([0.9, 0.8, 0.6, 0.1, 0.5, 0.5, 0.0, 0.5])
    hard = np.array([1.0, 1.0, 1.0, 0.0, 0.5, 0.5, 0.0, 0.5])
    lab = np.array([1.0, 1, 0, 0, 1, 0, 0, 1])
    assert (cell.count, cell.stated) == (8, 5)
    assert cell.rate is not None
    assert cell.bias is not None
    assert cell.right is not None
    assert cell.rate.estimate == pytest.approx(soft.mean())
    assert cell.bias.estimate == pytest.approx((soft - lab).mean())
    assert cell.brier == pytest.approx(((soft - lab) ** 2).mean())
    assert cell.brier_verdict == pytest.approx(((hard - lab) ** 2).mean())
    # "cannot tell" is never right.
    assert cell.right.estimate == pytest.approx(4 / 8)
    assert cell.rate.low < cell.rate.estimate < cell.rate.high
    again = np.random.default_rng(9).choice(soft, (4000, 8)).mean(1)
    assert (cell.rate.low, cell.rate.high) == pytest.approx(tuple(np.percentile(again, [2.5, 97.5])), abs=0.03)


def test_runs_on_one_scene_are_drawn_together() -> None:
    alone = [Pair(Trial("a", "canonical", i), True, True, 1.0, 0.1 + 0.8 * (i % 2)) for i in range(10)]
    shared = [*alone, *(Pair(Trial("b", "canonical", p.trial.seed), True, True, 1.0, p.probability) for p in alone)]
    one, both = soft_cell(alone).rate, soft_cell(shared).rate
    assert one is not None
    assert both is not None
    assert (both.low, both.high) == pytest.approx((one.low, one.high))
    single = soft_cell(alone[:1])
    assert single.rate is not None
    assert single.bias is not None
    assert (single.rate.low, single.rate.high, single.bias.low) == (0.0, 1.0, -1.0)
    assert soft_cell([]).rate is None


def test_calibration_has_the_numbers_computed_by_hand() -> None:
    found = calibrate(pairs())
    assert found is not None
    assert found.count == 5
    assert [(one.low, one.count) for one in found.bins] == [(0.1, 1), (0.5, 1), (0.6, 1), (0.8, 1), (0.9, 1)]
    assert found.error == pytest.approx((0.1 + 0.5 + 0.6 + 0.2 + 0.1) / 5)
    assert calibrate([pair for pair in pairs() if pair.probability is None]) is None
    sure = calibrate([Pair(Trial("a", "s", i), True, True, 1.0, 1.0) for i in range(3)])
    assert sure is not None
    assert (sure.error, sure.bins[0].low, sure.bins[0].high) == (0.0, 0.9, 1.0)


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.integers(0, 2**32 - 1))
def test_every_stated_probability_is_in_one_bin(stated: list[float], seed: int) -> None:
    lab = np.random.default_rng(seed).random(len(stated)) < stated
    found = calibrate([Pair(Trial("a", "s", i), bool(lab[i]), True, 1.0, p) for i, p in enumerate(stated)])
    assert found is not None
    assert sum(one.count for one in found.bins) == len(stated)
    assert 0 <= found.error <= 1
    assert all(one.low <= one.stated <= one.high for one in found.bins)


def test_the_summary_counts_what_cannot_be_told() -> None:
    said = summary().models[0].probabilities
    assert said.undecided.count == 6
    assert said.undecided.share is not None
    assert said.undecided.share.estimate == pytest.approx(6 / 16)
    assert said.undecided.forced == 4
    assert said.undecided.right is not None
    assert said.undecided.right.estimate == pytest.approx(0.5)
    assert [cell.policy for cell in said.policies] == ["a", "b"]
    document = summary().to_json()["models"][0]["probabilities"]
    json.dumps(document, allow_nan=False)
    assert document["overall"]["stated"] == 10


def test_the_report_shows_probabilities_and_the_calibration_curve() -> None:
    found = summary()
    model = found.models[0]
    words = probability_words(model)
    assert "states a probability in 10 of 16 runs" in words
    assert "In 6 runs (38\u00a0%) it cannot tell" in words
    assert "right in 50\u00a0% of 4 runs" in words
    assert len(calibration_plot(model).marks) == len(calibration_table(model).rows) == 5
    assert soft_table(model).rows[-1][2] == "10 of 16"
    part = next(one for one in report_sections(found, [], [])[1].parts if one.title == "Probabilities")
    assert len(part.plots) == 1
    assert len(part.tables) == 2


def test_a_model_without_probabilities_is_scored_by_its_verdicts() -> None:
    found = summary(stated=False)
    said = found.models[0].probabilities
    assert said.calibration is None
    assert said.overall.brier == said.overall.brier_verdict
    assert "states no probabilities" in probability_words(found.models[0])
    part = next(one for one in report_sections(found, [], [])[1].parts if one.title == "Probabilities")
    assert (len(part.plots), len(part.tables)) == (0, 1)


def test_records_keep_probabilities_and_old_ones_load() -> None:
    verdict = Verdict(None, 0.0, 0.0, 3, None, "why", probability=0.61239, forced=True)
    record = TrialRecord(Trial("a", "canonical", 1), LabOutcome(True), {LABEL: ModelOutcome.of(verdict, 1.0)})
    document = json.loads(json.dumps(record.to_json()))
    back = TrialRecord.from_json(document).models[LABEL]
    assert (back.probability, back.forced) == (0.6124, True)
    lines = trials_csv([record]).splitlines()
    line = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
    assert (line["probability"], line["forced"]) == ("0.6124", "1")
    for name in ("probability", "forced"):
        del document["models"][LABEL][name]
    old = TrialRecord.from_json(document).models[LABEL]
    assert (old.probability, old.forced) == (None, None)
    document["models"][LABEL]["probability"] = 1.5
    with pytest.raises(EvaluationError, match=r"probability 1\.5"):
        TrialRecord.from_json(document)
