"""Summaries against numbers computed by hand and against the plain functions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_ros.core.errors import EvaluationError
from kinema4d_ros.evaluation.ranking import rank_policies
from kinema4d_ros.evaluation.settings import EvaluationSettings
from kinema4d_ros.evaluation.summary import EvaluationSummary, cells, summarise
from kinema4d_ros.evaluation.summary.cells import Pair, draws
from kinema4d_ros.evaluation.summary.correction_check import HELD_OUT, _score, check_correction
from kinema4d_ros.evaluation.summary.order import detectable_bias
from kinema4d_ros.evaluation.trial import LabOutcome, ModelOutcome, Trial, TrialRecord

LABEL = "nano/open"
Outcome = tuple[bool | None, bool | None]


def document(*policies: str, runs: int, scenarios: tuple[str, ...] = ("canonical",)) -> dict[str, object]:
    return {
        "policies": {policy: policy for policy in policies},
        "scenarios": list(scenarios),
        "runs": runs,
        "models": ["nano"],
        "modes": ["open"],
        "task": "pick",
        "seed": 0,
    }


def record(policy: str, seed: int, lab: bool | None, verdict: bool | None, scenario: str = "canonical") -> TrialRecord:
    error = "" if lab is not None else "[POLICY_FAILED] it died"
    models = {LABEL: ModelOutcome(verdict, confidence=0.0 if verdict is None else 0.9)}
    return TrialRecord(Trial(policy, scenario, seed), LabOutcome(lab, error=error), models)


def evaluation(outcomes: dict[str, list[Outcome]], runs: int | None = None) -> EvaluationSummary:
    records = [record(policy, i, *one) for policy, found in outcomes.items() for i, one in enumerate(found)]
    return summarise(document(*outcomes, runs=runs or max(map(len, outcomes.values()))), records, repeats=5)


MIXED: list[Outcome] = (
    [(True, True)] * 8 + [(False, True)] * 5 + [(True, False)] * 1 + [(True, None)] * 1 + [(False, False)] * 4
    + [(False, None)] * 1
)  # fmt: skip


def test_a_cell_has_the_numbers_computed_by_hand() -> None:
    cell = evaluation({"a": MIXED}).models[0].overall
    assert (cell.count, cell.undecided, cell.failed, cell.missing) == (20, 2, 0, 0)
    pairs = cell.pairs
    assert (pairs.both, pairs.only_model, pairs.only_real, pairs.neither) == (8, 5, 2, 5)
    assert cell.lab is not None
    assert cell.model is not None
    assert cell.lab.estimate == pytest.approx(10 / 20)
    # Wilson for 10 of 20: (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), z = 1.959964
    assert (cell.lab.low, cell.lab.high) == pytest.approx((0.299298, 0.700702), abs=1e-6)
    assert cell.model.estimate == pytest.approx(13 / 20)
    assert cell.bias is not None
    assert cell.bias.estimate == pytest.approx(3 / 20)
    assert cell.bias.low < 3 / 20 < cell.bias.high
    assert cell.false_success is not None
    assert cell.false_failure is not None
    assert cell.agreement is not None
    assert cell.false_success.estimate == pytest.approx(5 / 10)
    assert cell.false_failure.estimate == pytest.approx(2 / 10)
    assert cell.agreement.estimate == pytest.approx(13 / 20)
    # 7 disagreements, 2 of them one way: 2 (C(7,0) + C(7,1) + C(7,2)) / 2^7
    assert cell.p_value == pytest.approx(2 * (1 + 7 + 21) / 128)
    matrix = cell.confusion
    assert (matrix.true_success, matrix.false_failure, matrix.unknown_success) == (8, 1, 1)
    assert (matrix.false_success, matrix.true_failure, matrix.unknown_failure) == (5, 4, 1)


def test_cells_of_scenarios_add_up_to_their_policy_and_all() -> None:
    rng = np.random.default_rng(4)
    scenarios = ("canonical", "cluttered", "dynamic")
    records = [
        record(policy, seed, bool(rng.random() < 0.6), bool(rng.random() < 0.7), scenario)
        for policy in ("a", "b")
        for scenario in scenarios
        for seed in range(9)
    ]
    model = summarise(document("a", "b", runs=9, scenarios=scenarios), records, repeats=1).models[0]
    assert len(model.cells) == 6
    for policy in model.policies:
        parts = [cell for cell in model.cells if cell.policy == policy.policy]
        assert sum(cell.count for cell in parts) == policy.count == 27
        assert sum(cell.pairs.only_model for cell in parts) == policy.pairs.only_model
    assert sum(cell.count for cell in model.scenarios) == model.overall.count == 54
    assert sum(cell.pairs.both for cell in model.scenarios) == model.overall.pairs.both
    assert all(cell.p_value is not None for cell in model.policies)
    assert model.overall.p_value is None


def test_correlated_policies_get_a_wider_interval() -> None:
    rng = np.random.default_rng(0)
    luck = [(bool(a), bool(b)) for a, b in zip(rng.random(40) < 0.5, rng.random(40) < 0.5, strict=True)]
    alike = evaluation({name: list(luck) for name in "abcd"}).models[0].overall
    alone = evaluation({"a": list(luck)}).models[0].overall
    for one in (alike, alone):
        assert one.lab is not None
    assert alike.lab.estimate == pytest.approx(alone.lab.estimate)  # type: ignore[union-attr]
    # Four copies of the same 40 runs have no more information than 40; Wilson for 160 would halve the interval.
    width = [one.lab.high - one.lab.low for one in (alike, alone)]  # type: ignore[union-attr]
    assert width[0] == pytest.approx(width[1], rel=0.12)


def test_a_policy_that_depends_on_the_seed_gains_nothing_by_more_scenarios() -> None:
    rng = np.random.default_rng(5)
    luck = rng.random(40) < 0.4
    scenarios = ("canonical", "cluttered", "dynamic")
    records = [record("a", i, bool(luck[i]), True, scenario) for scenario in scenarios for i in range(40)]
    model = summarise(document("a", runs=40, scenarios=scenarios), records, repeats=1).models[0]
    one, together = model.cells[0].lab, model.policies[0].lab
    assert one is not None
    assert together is not None
    assert together.high - together.low == pytest.approx(one.high - one.low, rel=0.12)


def test_the_ranking_equals_the_plain_functions() -> None:
    rng = np.random.default_rng(11)
    lab = rng.random((4, 30)) < np.array([0.9, 0.6, 0.5, 0.1])[:, None]
    verdicts = np.where(rng.random((4, 30)) < 0.25, rng.random((4, 30)) < 0.8, lab)
    outcomes = {
        name: [(bool(a), bool(b)) for a, b in zip(lab[i], verdicts[i], strict=True)] for i, name in enumerate("abcd")
    }
    ranking = evaluation(outcomes).models[0].ranking  # type: ignore[arg-type]
    plain = rank_policies(verdicts, lab)
    for ours, theirs in (
        (ranking.pearson, plain.pearson),
        (ranking.spearman, plain.spearman),
        (ranking.mmrv, plain.mmrv),
    ):
        assert ours is not None
        assert (ours.estimate, ours.low, ours.high) == pytest.approx((theirs.estimate, theirs.low, theirs.high))
    assert ranking.winner_agrees is plain.winner_agrees is True
    assert ranking.lab_best == ranking.model_best == ("a",)
    assert ranking.regret is not None
    assert ranking.regret.estimate == plain.regret.estimate == 0.0
    assert ranking.winner_share is not None
    assert ranking.winner_share == pytest.approx(winner_share_by_hand(verdicts, lab))
    assert (ranking.tables, ranking.why) == (30, "")


def winner_share_by_hand(model: np.ndarray, lab: np.ndarray, draws: int = 2000) -> float:
    chances = []
    for drawn in np.random.default_rng(0).integers(0, model.shape[1], (draws, model.shape[1])):
        m, r = model[:, drawn].sum(1), lab[:, drawn].sum(1)
        chances.append(np.mean([r[i] == r.max() for i in range(len(m)) if m[i] == m.max()]))
    return float(np.mean(chances))


def test_the_regret_of_a_wrong_winner_is_the_difference() -> None:
    model = evaluation(
        {"good": [(True, False)] * 8 + [(False, False)] * 2, "bad": [(False, True)] * 5 + [(True, True)] * 5}
    )
    ranking = model.models[0].ranking
    assert ranking.winner_agrees is False
    assert (ranking.lab_best, ranking.model_best) == (("good",), ("bad",))
    assert ranking.regret is not None
    assert ranking.regret.estimate == pytest.approx(0.8 - 0.5)
    assert ranking.mmrv is not None
    assert ranking.mmrv.estimate == pytest.approx(0.3)
    assert ranking.pearson is not None
    assert ranking.pearson.estimate == pytest.approx(-1)


def test_a_model_that_never_decides_has_no_correlation_and_no_winner() -> None:
    summary = evaluation({"a": [(True, None)] * 9 + [(False, None)], "b": [(False, None)] * 10})
    model = summary.models[0]
    ranking = model.ranking
    assert ranking.pearson is None
    assert ranking.spearman is None
    assert ranking.winner_agrees is None
    assert "level in the model" in ranking.why
    # A random pick of two: half of the time the better one, half of the time a loss of 0.9.
    assert ranking.winner_share == pytest.approx(0.5)
    assert ranking.regret is not None
    assert ranking.regret.estimate == pytest.approx(0.45)
    assert model.overall.undecided == 20
    assert model.overall.model is not None
    assert model.overall.model.estimate == 0
    json.dumps(summary.to_json(), allow_nan=False)


def test_policies_tied_in_the_lab_have_no_winner() -> None:
    ranking = evaluation({"a": [(True, True)] * 5, "b": [(True, False)] * 5}).models[0].ranking
    assert ranking.winner_agrees is None
    assert ranking.winner_share is None
    assert ranking.pearson is None
    assert "level in the lab" in ranking.why
    assert evaluation({"a": [(True, True)] * 5}).models[0].overall.false_success is None


def test_one_policy_has_no_ranking() -> None:
    ranking = evaluation({"a": MIXED}).models[0].ranking
    assert ranking.policies == ("a",)
    assert ranking.pearson is ranking.regret is ranking.winner_agrees is None
    assert "two policies" in ranking.why


def test_failed_runs_are_not_pairs_and_their_reasons_are_counted() -> None:
    records = [record("a", i, True, True) for i in range(4)] + [record("dead", i, None, None) for i in range(4)]
    broken = ModelOutcome(None, error="[OUT_OF_MEMORY] none left")
    records[0] = TrialRecord(records[0].trial, records[0].lab, {LABEL: broken})
    summary = summarise(document("a", "dead", runs=4), records)
    model = summary.models[0]
    assert [(f.where, f.text, f.count, f.policies) for f in summary.lab_failures] == [
        ("lab", "[POLICY_FAILED] it died", 4, ("dead",))
    ]
    assert [(f.where, f.count, f.examples) for f in model.failures] == [(LABEL, 1, ("a|canonical|0",))]
    by_name = {cell.policy: cell for cell in model.policies}
    assert (by_name["a"].count, by_name["a"].failed) == (3, 1)
    dead = by_name["dead"]
    assert (dead.count, dead.failed, dead.missing) == (0, 4, 0)
    assert dead.lab is dead.model is dead.bias is dead.agreement is dead.p_value is None
    assert model.ranking.left_out == ("dead",)
    assert (summary.finished, summary.missing) == (8, 0)
    json.dumps(summary.to_json(), allow_nan=False)


def test_a_run_in_progress_is_summarised() -> None:
    records = [record("a", i, True, True) for i in range(3)] + [record("b", i, False, True) for i in range(2)]
    without_model = TrialRecord(Trial("b", "canonical", 2), LabOutcome(False), {})
    summary = summarise(document("a", "b", runs=10), [*records, without_model])
    assert (summary.planned, summary.finished, summary.missing) == (20, 5, 15)
    model = summary.models[0]
    assert [cell.missing for cell in model.policies] == [7, 8]
    assert model.ranking.tables == 2
    assert "need" in model.correction.why


def test_an_evaluation_without_records_is_summarised() -> None:
    summary = summarise(document("a", "b", runs=3), [])
    assert (summary.finished, summary.missing) == (0, 6)
    model = summary.models[0]
    assert model.overall.lab is None
    assert model.power.rate is None
    json.dumps(summary.to_json(), allow_nan=False)


def test_recorded_runs_need_no_plan() -> None:
    summary = summarise(document("a", runs=0), [record("a", i, i < 3, True) for i in range(5)])
    assert (summary.planned, summary.finished, summary.missing) == (5, 5, 0)
    assert summary.models[0].overall.pairs.only_model == 2


def test_draws_do_not_depend_on_the_blocks_they_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(draws(30)))
    monkeypatch.setattr(cells, "BLOCK", 30 * 7)
    parts = list(draws(30))
    assert whole.shape == (2000, 30)
    assert max(len(part) for part in parts) == 7
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_settings_may_be_the_object_or_its_document() -> None:
    asked = EvaluationSettings(["expert"], ["canonical"], runs=2, models=["nano"])
    records = {one.trial.key: one for one in (record("expert", 0, True, False), record("expert", 1, True, True))}
    assert summarise(asked, records, repeats=1) == summarise(asked.to_json(), records.values(), repeats=1)


@pytest.mark.parametrize("change", [{"policies": {}}, {"models": []}, {"runs": "many"}, {"seed": None}])
def test_invalid_settings_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(EvaluationError, match=r"settings|trials"):
        summarise(document("a", runs=1) | change, [])


@given(
    st.lists(
        st.tuples(st.sampled_from([True, False, None]), st.sampled_from([True, False, None])), min_size=1, max_size=12
    ),
    st.lists(
        st.tuples(st.sampled_from([True, False, None]), st.sampled_from([True, False, None])), min_size=1, max_size=12
    ),
)
@settings(max_examples=25, deadline=None)
def test_any_records_give_a_summary_without_nan(first: list[Outcome], second: list[Outcome]) -> None:
    text = json.dumps(evaluation({"a": first, "b": second}).to_json(), allow_nan=False)
    assert json.loads(text)["planned"] == 2 * max(len(first), len(second))


def test_the_detectable_bias_has_the_given_power() -> None:
    runs, disagreement = 100, 0.3
    found = detectable_bias(runs, disagreement)
    assert found is not None
    # By its definition: (z_level sqrt(psi) + z_power sqrt(psi - d^2)) / sqrt(n) = d
    noise = 1.959964 * math.sqrt(disagreement) + 0.841621 * math.sqrt(disagreement - found**2)
    assert found * math.sqrt(runs) == pytest.approx(noise, rel=1e-5)
    rng = np.random.default_rng(3)
    more = rng.multinomial(runs, [(disagreement + found) / 2, (disagreement - found) / 2, 1 - disagreement], 4000)
    z = (more[:, 0] - more[:, 1]) / np.sqrt(np.maximum(1, more[:, 0] + more[:, 1]))
    assert np.mean(np.abs(z) > 1.959964) == pytest.approx(0.8, abs=0.03)
    assert detectable_bias(10, 0.0) is None
    assert detectable_bias(2, 0.1) is None
    assert detectable_bias(400, disagreement) < found  # type: ignore[operator]


def make_pairs(policy: str, count: int, rate: float, verdict: Callable[[bool, float], bool | None]) -> list[Pair]:
    rng = np.random.default_rng(sum(map(ord, policy)) + count)
    found = []
    for seed in range(count):
        lab = bool(rng.random() < rate)
        found.append(Pair(Trial(policy, "canonical", seed), lab, verdict(lab, rng.random()), 0.9))
    return found


def rows(pairs: dict[str, list[Pair]], k: int) -> dict[str, tuple[float, float | None, float | None]]:
    correction = check_correction(pairs, real_trials=[k], repeats=60)
    return {row.method: (row.error, row.width, row.coverage) for row in correction.rows}


def test_correcting_an_informative_optimistic_model_beats_both_of_its_parts() -> None:
    pairs = {"a": make_pairs("a", 200, 0.45, lambda lab, luck: lab or luck < 0.35)}
    found = rows(pairs, 40)
    assert found["powered"][0] < 0.9 * found["real"][0] < found["model"][0]
    assert found["curve"][0] < 0.9 * found["shrunk"][0]
    for method in ("real", "powered"):
        assert found[method][2] is not None
        assert found[method][2] >= 0.9  # type: ignore[operator]
    assert found["model"][2] is not None
    assert found["model"][2] < 0.3
    assert "transfer" not in found


def test_an_uninformative_model_is_no_better_than_the_real_trials() -> None:
    found = rows({"a": make_pairs("a", 120, 0.7, lambda lab, luck: None)}, 20)
    assert found["powered"][0] == pytest.approx(found["real"][0], abs=1e-9)
    assert found["curve"][0] == pytest.approx(found["shrunk"][0], abs=0.01)
    assert found["model"][0] == pytest.approx(0.7, abs=0.08)
    assert found["model"][2] == 0.0


def test_the_correction_does_not_use_the_outcomes_it_is_scored_by() -> None:
    # Held-out outcomes all differ from the drawn ones in reality but not in the model: no method can predict them.
    pairs = [Pair(Trial("a", "canonical", i), bool(i < 20), True, 0.9) for i in range(60)]

    class InOrder:
        def permutation(self, count: int) -> np.ndarray:
            return np.arange(count)

    found = {row.method: row for row in _score({"a": pairs}, 20, 1, InOrder())}  # type: ignore[arg-type]
    for method in ("real", "powered", "curve", "model"):
        assert found[method].bias > 0.9


def test_the_correction_names_the_numbers_of_real_trials_it_could_not_check() -> None:
    pairs = {"a": make_pairs("a", 20 + HELD_OUT, 0.5, lambda lab, luck: lab), "b": []}
    correction = check_correction(pairs, repeats=3)
    assert sorted(correction.policies) == [10, 20]
    assert correction.policies[20] == ("a",)
    assert "40 real trials need 50" in correction.why
    assert check_correction(pairs, repeats=3) == correction


def test_a_curve_of_other_policies_transfers_where_verdicts_mean_the_same() -> None:
    meaning: Callable[[bool, float], bool] = lambda lab, luck: lab if luck < 0.97 else not lab  # noqa: E731
    pairs = {name: make_pairs(name, 150, rate, meaning) for name, rate in (("a", 0.5), ("b", 0.45), ("c", 0.55))}
    found = rows(pairs, 40)
    assert found["transfer"][0] < 0.6 * found["real"][0]
