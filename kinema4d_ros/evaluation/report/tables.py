"""Tables of the evaluation report as rows of text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kinema4d_ros.evaluation.ranking import pearson
from kinema4d_ros.evaluation.rates import Interval, wilson
from kinema4d_ros.evaluation.report.text import NONE, Value, number, signed
from kinema4d_ros.evaluation.summary import EvaluationSummary, ModelSummary
from kinema4d_ros.evaluation.summary.cells import Cell
from kinema4d_ros.evaluation.summary.corrected import VERDICTS
from kinema4d_ros.evaluation.summary.correction_check import METHODS, CorrectionRow

__all__ = [
    "PAPER",
    "Table",
    "confusion_table",
    "corrected_table",
    "correction_table",
    "failures_table",
    "paper_table",
    "ranking_table",
    "rates_table",
    "settings_table",
    "worth_table",
    "wrong_table",
]


Entry = Value | str

PAPER: Mapping[str, tuple[tuple[float, float], ...]] = {
    "paper, simulation": ((0.48, 0.56), (0.38, 0.46), (0.80, 0.84)),
    "paper, real and out of distribution": ((0.34, 0.60), (0.46, 0.76), (0.78, 0.90)),
}
"""Table 3 of arXiv 2603.16669: success rates (truth, model) of three setups with 50 runs each."""

PAPER_RUNS = 50
SHORT_TEXT = 300


@dataclass(frozen=True)
class Table:
    """Header, rows and a note; `strong` are indices of emphasised rows, the first `names` columns are names."""

    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    note: str = ""
    strong: frozenset[int] = frozenset()
    names: int = 1


def rates_table(model: ModelSummary) -> Table:
    """Tabulate success rates and bias of every policy on every scenario."""
    header = ("policy", "scenario", "pairs", "lab", "model", "bias", "McNemar p", "cannot tell", "failed", "missing")
    rows, strong = _rows(model, lambda cell: (
        str(cell.count),
        Value.of(cell.lab),
        Value.of(cell.model),
        Value.of(cell.bias, sign=True),
        _p(cell.p_value),
        str(cell.undecided),
        str(cell.failed),
        str(cell.missing),
    ))  # fmt: skip
    note = (
        "95 % intervals: Wilson for rates, Tango's paired score for bias (model - lab). In rows “all” the "
        "intervals also cover a bootstrap over scenes and over seeds, because those runs are not independent. "
        "McNemar's test is exact, assumes independent runs and is not adjusted for the number of rows. “Cannot tell” "
        f"counts as a failure in the model. Failed runs are excluded. {NONE} = not defined."
    )
    return Table(header, rows, note, strong, 2)


def wrong_table(model: ModelSummary) -> Table:
    """Tabulate agreement, false successes and false failures."""
    header = ("policy", "scenario", "agreement", "false success", "false failure")
    rows, strong = _rows(
        model,
        lambda cell: (
            Value.of(cell.agreement),
            _of(cell.false_success, cell.pairs.only_model, cell.pairs.neither),
            _of(cell.false_failure, cell.pairs.only_real, cell.pairs.both),
        ),
    )
    note = (
        "False success: share of the lab's failures that the model shows as successes. False failure: share of the "
        "lab's successes that it does not show as such, “cannot tell” included."
    )
    return Table(header, rows, note, strong, 2)


def soft_table(model: ModelSummary) -> Table:
    """Tabulate soft success rates, their bias and Brier scores of every policy on every scenario."""
    header = ("policy", "scenario", "stated", "soft rate", "verdict rate", "lab", "bias of the soft rate")
    said = model.probabilities
    soft = {(one.policy, one.scenario): one for one in (*said.cells, *said.policies, *said.scenarios, said.overall)}

    def show(cell: Cell) -> tuple[Entry, ...]:
        one = soft[cell.policy, cell.scenario]
        return (
            f"{one.stated} of {one.count}",
            Value.of(one.rate),
            Value.of(cell.model),
            Value.of(cell.lab),
            Value.of(one.bias, sign=True),
            Value(number(one.brier, 3), f"verdicts {number(one.brier_verdict, 3)}"),
            Value.of(one.right),
        )

    rows, strong = _rows(model, show)
    note = (
        "Soft rate: mean probability of success; a run without a stated probability counts by its verdict, “cannot "
        "tell” as 0.5. 95 % intervals: percentile bootstrap over scenes and over seeds. Brier: mean squared error of "
        "the probabilities, 0 is perfect. Right: share of right verdicts; “cannot tell” is never right."
    )
    return Table((*header, "Brier", "right"), rows, note, strong, 2)


def calibration_table(model: ModelSummary) -> Table:
    """Tabulate how often runs of each range of stated probabilities succeed in the lab."""
    calibration = model.probabilities.calibration
    rows = tuple(
        (f"{one.low:.1f} to {one.high:.1f}", str(one.count), number(one.stated), Value.of(one.observed))
        for one in (calibration.bins if calibration else ())
    )
    note = "Observed: share of these runs that succeeds in the lab, with Wilson's 95 % interval."
    return Table(("stated probability", "runs", "mean", "observed"), rows, note)


def _rows(
    model: ModelSummary, show: Callable[[Cell], tuple[Entry, ...]]
) -> tuple[tuple[tuple[Entry, ...], ...], frozenset[int]]:
    rows: list[tuple[Entry, ...]] = []
    strong = set()
    for policy in model.policies:
        for cell in model.cells:
            if cell.policy == policy.policy:
                rows.append((cell.policy, cell.scenario, *show(cell)))
        strong.add(len(rows))
        rows.append((policy.policy, "all", *show(policy)))
    if len(model.policies) > 1:
        for cell in (*(model.scenarios if len(model.scenarios) > 1 else ()), model.overall):
            strong.add(len(rows))
            rows.append(("all", cell.scenario or "all", *show(cell)))
    return tuple(rows), frozenset(strong)


def _of(rate: Interval | None, part: int, rest: int) -> Value:
    shown = Value.of(rate)
    return Value(shown.text, f"{shown.detail}, {part} of {part + rest}".removeprefix(", "))


def _p(value: float | None) -> str:
    if value is None:
        return NONE
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def confusion_table(model: ModelSummary) -> Table:
    """Tabulate how often each outcome in the lab has each verdict, for every policy."""
    seen = ("model\u00a0success", "model\u00a0failure", "cannot\u00a0tell")  # headers break at the comma
    header = ("policy", *(f"lab\u00a0{lab}, {one}" for lab in ("success", "failure") for one in seen))
    rows: list[tuple[Entry, ...]] = []
    for cell in (*(model.policies if len(model.policies) > 1 else ()), model.overall):
        one = cell.confusion
        counts = (
            (one.true_success, "hit"), (one.false_failure, "miss"), (one.unknown_success, "open"),
            (one.false_success, "miss"), (one.true_failure, "hit"), (one.unknown_failure, "open"),
        )  # fmt: skip
        rows.append((cell.policy or "all", *(Value(str(count), tone=tone if count else "") for count, tone in counts)))
    return Table(header, tuple(rows), strong=frozenset({len(rows) - 1}))


def ranking_table(model: ModelSummary) -> tuple[Table, Table]:
    """Tabulate the policies in the lab's order, and how well the model's ranking agrees."""
    ranking = model.ranking
    places = sorted(range(len(ranking.lab_rates)), key=lambda i: -ranking.lab_rates[i])
    policies = Table(
        ("policy", "lab", "rank in the lab", "model", "rank in the model"),
        tuple(
            (
                ranking.policies[i],
                number(ranking.lab_rates[i]),
                _place(ranking.lab_rates, i),
                number(ranking.model_rates[i]),
                _place(ranking.model_rates, i),
            )
            for i in places
        ),
        f"On the {ranking.tables} scenes that all these policies finished."
        + (f" Without a finished run: {', '.join(ranking.left_out)}." if ranking.left_out else ""),
    )
    agrees = {True: "yes", False: "no", None: NONE}[ranking.winner_agrees]
    share = "" if ranking.winner_share is None else f"in {100 * ranking.winner_share:.0f} % of resamples"
    quality = Table(
        ("measure", "value", "policies", "scenes"),
        tuple(
            (name, value, str(len(ranking.policies)), str(ranking.tables))
            for name, value in (
                ("Pearson correlation of rates", Value.of(ranking.pearson)),
                ("Spearman correlation of ranks", Value.of(ranking.spearman)),
                ("MMRV, mean worst rank violation", Value.of(ranking.mmrv)),
                ("same best policy in the model and the lab", Value(agrees, share)),
                ("regret of choosing the model's best policy", Value.of(ranking.regret)),
            )
        ),
        "95 % bootstrap intervals over seeds, with the same resamples for all policies, in the lab and in the model."
        + (f" {NONE} = not defined: {ranking.why}." if ranking.why else ""),
    )
    return policies, quality


def _place(rates: Sequence[float], which: int) -> str:
    better = sum(rate > rates[which] + 1e-12 for rate in rates)
    level = sum(abs(rate - rates[which]) <= 1e-12 for rate in rates)
    return f"{better + 1}" if level == 1 else f"{better + 1} to {better + level}"


def correction_table(model: ModelSummary) -> Table:
    """Tabulate the error of estimates from k real trials on held-out runs."""
    correction = model.correction
    found = {(row.method, row.real_trials): row for row in correction.rows}
    tried = tuple(dict.fromkeys(row.real_trials for row in correction.rows))
    rows = tuple(
        (words, *(_scored(found.get((method, k))) for k in tried))
        for method, words in METHODS.items()
        if any((method, k) in found for k in tried)
    )
    used = "; ".join(f"k = {k}: {len(policies)} policies" for k, policies in correction.policies.items())
    note = (
        f"k real trials of each policy, drawn {correction.repeats} times; fitted on them, scored on the policy's other "
        f"runs ({used or 'none'}). Large: mean absolute error of the success rate of the held-out runs. Below: mean "
        "signed error, Brier score on single runs (an estimate without per-run probabilities uses its rate for every "
        "run), mean width of the 95 % interval, and how many intervals cover that rate. For the coverage, intervals "
        "are widened by the noise of the held-out runs. This favours the prediction-powered estimate, which has used "
        "the model's verdicts on the same runs."
    )
    return Table(("estimate", *(f"k = {k}" for k in tried)), rows, note)


def _scored(row: CorrectionRow | None) -> Entry:
    if row is None:
        return NONE
    interval = "" if row.width is None or row.coverage is None else (
        f", width {row.width:.2f}, {100 * row.coverage:.0f} % covered"
    )  # fmt: skip
    return Value(number(row.error, 3), f"bias {signed(row.bias)}, Brier {row.brier:.2f}{interval}")


def paper_table(summary: EvaluationSummary) -> Table:
    """Tabulate our results in the form of the paper's Table 3, next to the paper's."""
    setups = max([3, *(len(model.scenarios) for model in summary.models)])
    rows = [_setups(name, f"{PAPER_RUNS}", cells, setups) for name, cells in PAPER.items()]
    strong = set()
    for model in summary.models:
        for policy in model.policies:
            found = [cell for cell in model.cells if cell.policy == policy.policy]
            rows.append(_ours(f"{model.label}, {policy.policy}", found, setups))
        if len(model.policies) > 1:
            strong.add(len(rows))
            rows.append(_ours(f"{model.label}, all policies", model.scenarios, setups))
    names = ", ".join(cell.scenario for cell in summary.models[0].scenarios) if summary.models else ""
    header = ("evaluation", "runs each", *(f"setup {i + 1}" for i in range(setups)), "mean bias", "Pearson")
    note = (
        "Success rate in truth → in the model (difference). The paper's truth is a simulator or its robot, ours is the "
        f"lab; our setups are {names}. The paper gives rates only: with {PAPER_RUNS} runs a rate of 0.50 is known to "
        f"{_half_width()}, and the runs that differ are not known. A correlation over so few setups says little; "
        f"{NONE} = not defined."
    )
    return Table(header, tuple(rows), note, frozenset(strong))


def _half_width() -> str:
    interval = wilson(PAPER_RUNS // 2, PAPER_RUNS)
    return f"±{(interval.high - interval.low) / 2:.2f}"


def _ours(name: str, cells: Sequence[Cell], setups: int) -> tuple[Entry, ...]:
    counts = sorted({cell.count for cell in cells})
    runs = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    rates = [
        (cell.lab.estimate, cell.model.estimate) if cell.lab and cell.model else (math.nan, math.nan) for cell in cells
    ]
    return _setups(name, runs, rates, setups)


def _setups(name: str, runs: str, rates: Sequence[tuple[float, float]], setups: int) -> tuple[Entry, ...]:
    known = [(truth, model) for truth, model in rates if math.isfinite(truth)]
    shown: list[Entry] = [
        Value(f"{number(truth)} → {number(model)}", signed(model - truth)) if math.isfinite(truth) else NONE
        for truth, model in rates
    ]
    shown += [NONE] * (setups - len(shown))
    bias = sum(model - truth for truth, model in known) / len(known) if known else None
    correlation = pearson([m for _, m in known], [t for t, _ in known]) if len(known) > 1 else None
    return (name, runs, *shown, signed(bias), number(correlation))


def failures_table(summary: EvaluationSummary) -> Table:
    """Tabulate the runs without an outcome, by reason."""
    failures = [*summary.lab_failures, *(failure for model in summary.models for failure in model.failures)]
    rows = tuple(
        (one.where, str(one.count), ", ".join(one.policies), _short(one.text), ", ".join(one.examples))
        for one in failures
    )
    header = ("where", "runs", "policies", "reason", "examples")
    return Table(header, rows, "Failed runs are excluded from the rates.", names=len(header))


def settings_table(summary: EvaluationSummary) -> Table:
    """Tabulate the settings of the evaluation, and the generators that made the rollouts."""
    rows: list[tuple[Entry, ...]] = []
    for name, value in summary.settings.items():
        if name == "policies" and isinstance(value, Mapping):
            rows += [(f"policy {label}", str(text)) for label, text in value.items()]
        elif name == "software" and isinstance(value, Sequence):
            rows += [(name, _plain(one)) for one in value]
        else:
            rows.append((name, _plain(value)))
    for model in summary.models:
        if model.made_by:
            mixed = ": FIGURES OF SEVERAL MODELS" if len(model.made_by) > 1 else ""
            rows.append((f"rollouts of {model.label}", ", ".join(model.made_by) + mixed))
    return Table(("setting", "value"), tuple(rows), names=2)


def _plain(value: Any) -> str:
    if isinstance(value, str) or not isinstance(value, Iterable):
        return str(value) if value not in ("", None) else NONE
    if isinstance(value, Mapping):
        given = {key: one for key, one in value.items() if one not in ("", None)}
        return json.dumps(given) if given else NONE
    return ", ".join(str(one) for one in value) or NONE


def _short(text: str) -> str:
    return text if len(text) <= SHORT_TEXT else text[: SHORT_TEXT - 1] + "…"


def corrected_table(model: ModelSummary) -> Table:
    """Tabulate each policy's real success rate: from the real trials alone, from the model, and corrected."""
    corrected = model.corrected
    lab = corrected.source == "lab"
    header = ("policy", "real trials", "other runs", "real trials alone", "model uncorrected", "corrected")
    rows = tuple(
        (
            one.policy,
            str(one.real_trials),
            str(one.model_trials),
            _wide(one.real),
            _wide(one.model),
            _wide(one.corrected),
            *((number(one.held_out),) if lab else ()),
        )
        for one in corrected.rates
    )
    who = (
        "Lab runs are used as real trials here: the first scenes of each policy are its real trials, and of the other "
        "runs only the model's verdicts are used. The last column is the lab's success rate of those other runs."
        if lab
        else "Real trials are read from real.csv."
    )
    note = (
        f"{who} Corrected: prediction-powered inference, the rate of all the model's verdicts minus the error measured "
        "on the real trials. 95 % intervals with their width; the model's own interval covers the sampling of its "
        "verdicts, not its bias."
    )
    return Table((*header, "lab, other runs") if lab else header, rows, note)


def _wide(interval: Interval) -> Value:
    return Value(
        number(interval.estimate),
        f"{number(interval.low)} to {number(interval.high)}, width {number(interval.high - interval.low)}",
    )


def worth_table(model: ModelSummary) -> Table:
    """Tabulate the probability of real success for each kind of verdict."""
    calibration = model.corrected.calibration
    rows = tuple(
        (VERDICTS[one.verdict][2], str(one.count), number(one.probability), Value.of(one.observed))
        for one in (calibration.verdicts if calibration else ())
        if one.count
    )
    note = (
        "Calibrated probability: mean of the success curve, fitted to the real trials of all policies together, on "
        "held-out runs. Observed: share of these that succeed in the lab."
        + (f" {NONE} = not known." if model.corrected.source == "real" else "")
    )
    return Table(("verdict of the model", "runs", "probability of real success", "observed"), rows, note)
