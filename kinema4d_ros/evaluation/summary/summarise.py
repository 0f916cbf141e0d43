"""`summarise`: statistics of an evaluation's models and policies, finished or not.

records ─> pairs, missing, failed ─> cells (policy x scenario) ─> ranking, power, correction ─> EvaluationSummary
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from kinema4d_ros.core.errors import ErrorCode, EvaluationError
from kinema4d_ros.evaluation.settings import EvaluationSettings, model_label, model_modes
from kinema4d_ros.evaluation.summary.cells import ALL, Cell, Failure, Outcomes, Pair, collect, count_cell
from kinema4d_ros.evaluation.summary.corrected import Corrected, correct
from kinema4d_ros.evaluation.summary.correction_check import Correction, check_correction
from kinema4d_ros.evaluation.summary.order import PolicyRanking, Power, estimate_power, rank
from kinema4d_ros.evaluation.summary.probabilities import Probabilities, count_probabilities
from kinema4d_ros.evaluation.trial import Trial, TrialRecord

__all__ = ["EvaluationSummary", "ModelSummary", "plain", "summarise"]


@dataclass(frozen=True)
class ModelSummary:
    """A world model in a mode against the lab.

    Attributes:
        label: such as "nano/open".
        overall: everything together.
        policies: each over all scenarios.
        scenarios: each over all policies.
        cells: each policy on each scenario.
        ranking: of the policies.
        power: smallest differences that these runs can detect.
        failures: runs that failed in the model, by reason.
        correction: check of the correction by a few real trials on held-out runs.
        corrected: the corrected rates and calibrated verdicts.
        made_by: generators, presets and weights of the rollouts; more than one = the figures mix models.
        probabilities: soft rates, Brier score, calibration, and runs that it cannot tell.
    """

    label: str
    overall: Cell
    policies: tuple[Cell, ...]
    scenarios: tuple[Cell, ...]
    cells: tuple[Cell, ...]
    ranking: PolicyRanking
    power: Power
    failures: tuple[Failure, ...]
    correction: Correction
    corrected: Corrected
    made_by: tuple[str, ...]
    probabilities: Probabilities


@dataclass(frozen=True)
class EvaluationSummary:
    """Statistics of an evaluation.

    Attributes:
        settings: of the evaluation.
        planned: number of trials in the settings.
        finished: trials with an outcome, or a failure, in the lab and in every model.
        missing: trials not finished.
        lab_failures: runs that failed in the lab, by reason; they form no pair in any model.
        models: one summary for each.
    """

    settings: Mapping[str, Any]
    planned: int
    finished: int
    missing: int
    lab_failures: tuple[Failure, ...]
    models: tuple[ModelSummary, ...]

    def to_json(self) -> dict[str, Any]:
        """Convert to plain types, undefined values to null; probabilities of single runs are only in trials.csv."""
        document: dict[str, Any] = plain(self)
        for model in document["models"]:
            del model["corrected"]["probabilities"]
        return document


def summarise(
    settings: EvaluationSettings | Mapping[str, Any],
    records: Mapping[str, TrialRecord] | Iterable[TrialRecord],
    *,
    repeats: int = 100,
    real: Mapping[str, bool] | None = None,
) -> EvaluationSummary:
    """Summarise the available records; missing trials are counted.

    Args:
        settings: of the evaluation, or its document as `TrialStore.settings` gives it.
        records: by key or in any order.
        repeats: draws of real trials for the check of the correction.
        real: outcomes of real trials by trial key; None = not known.

    Raises:
        EvaluationError: the settings name no policies, scenarios, runs or models.
    """
    document = settings.to_json() if isinstance(settings, EvaluationSettings) else dict(settings)
    known = dict(records) if isinstance(records, Mapping) else {record.trial.key: record for record in records}
    policies, scenarios, trials, labels = _plan(document, known)
    models, sorted_out = [], []
    for label in labels:
        outcomes = collect(label, trials, known)
        sorted_out.append(outcomes)
        made_by = {record.models[label].made_by for record in known.values() if label in record.models}
        models.append(_model(label, outcomes, policies, scenarios, repeats, real, tuple(sorted(made_by - {""}))))
    missing = {trial.key for outcomes in sorted_out for trial in outcomes.missing}
    return EvaluationSummary(
        document,
        len(trials),
        len(trials) - len(missing),
        len(missing),
        sorted_out[0].failures("lab"),
        tuple(models),
    )


def _plan(
    document: Mapping[str, Any], known: Mapping[str, TrialRecord]
) -> tuple[list[str], list[str], list[Trial], list[str]]:
    """List policies, scenarios, trials and labels: those of the settings, and any others that were recorded."""
    try:
        seeds = range(int(document["seed"]), int(document["seed"]) + int(document["runs"]))
        asked = [
            Trial(policy, scenario, seed)
            for seed in seeds
            for scenario in document["scenarios"]
            for policy in document["policies"]
        ]
        labels = [model_label(model, mode) for model, mode in model_modes(document["models"], document["modes"])]
    except (KeyError, TypeError, ValueError) as error:
        raise EvaluationError(
            f"the settings of the evaluation lack {error}",
            expected="policies, scenarios, runs, seed, models and modes",
            code=ErrorCode.FILE_MALFORMED,
        ) from None
    trials = list(dict.fromkeys([*asked, *sorted(record.trial for record in known.values())]))
    labels = list(dict.fromkeys([*labels, *(name for record in known.values() for name in record.models)]))
    if not trials or not labels:
        raise EvaluationError(
            f"{len(trials)} trials in {len(labels)} models", expected="at least one", code=ErrorCode.FILE_MALFORMED
        )
    policies = list(dict.fromkeys(trial.policy for trial in trials))
    return policies, list(dict.fromkeys(trial.scenario for trial in trials)), trials, labels


def _model(
    label: str,
    outcomes: Outcomes,
    policies: list[str],
    scenarios: list[str],
    repeats: int,
    real: Mapping[str, bool] | None,
    made_by: tuple[str, ...],
) -> ModelSummary:
    overall = count_cell(outcomes)
    by_policy = tuple(count_cell(outcomes, policy) for policy in policies)
    cells = tuple(count_cell(outcomes, policy, scenario) for policy in policies for scenario in scenarios)
    pairs: dict[str, list[Pair]] = {policy: [] for policy in policies}
    for pair in outcomes.pairs:
        pairs[pair.trial.policy].append(pair)
    return ModelSummary(
        label,
        overall,
        by_policy,
        tuple(count_cell(outcomes, ALL, scenario) for scenario in scenarios),
        cells,
        rank(outcomes.pairs, policies),
        estimate_power(cells, by_policy, overall),
        outcomes.failures(label),
        check_correction(pairs, repeats=repeats),
        correct(pairs, real),
        made_by,
        count_probabilities(outcomes.pairs, policies, scenarios),
    )


def plain(value: Any) -> Any:
    """Convert dataclasses to dictionaries, tuples to lists, and non-finite numbers to None."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
