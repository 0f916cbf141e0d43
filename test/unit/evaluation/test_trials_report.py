"""Report files: texts, well-formed HTML without active content, and numbers that survive writing and reading."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.evaluation.report.sections import (
    Plot,
    bias_plot,
    choose,
    disagreements,
    rates_plot,
    report_sections,
)
from kinema4d_ros.evaluation.report.tables import (
    confusion_table,
    correction_table,
    paper_table,
    ranking_table,
    rates_table,
)
from kinema4d_ros.evaluation.report.text import (
    NONE,
    Value,
    correction_words,
    headline,
    number,
    percent,
    power_words,
    signed,
    verdict,
)
from kinema4d_ros.evaluation.report.write import CSV_COLUMNS, strip_uri, trials_csv, write_report
from kinema4d_ros.evaluation.store import TrialStore
from kinema4d_ros.evaluation.summary import EvaluationSummary, summarise
from kinema4d_ros.evaluation.trial import LabOutcome, ModelOutcome, Trial, TrialRecord

EVIL = "<script>alert(1)</script>|`*"
TROUBLE = '[POLICY_FAILED] <img src=x onerror="alert(2)"> & "quotes"\nsecond line'
SCENARIOS = ("canonical", "cluttered")
VOID = {"meta", "img", "line", "circle", "polygon", "br"}


class Page(HTMLParser):
    """Tags, text and URLs of a page; unbalanced tags are an error."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "data", "action", "xlink:href"):
                self.loads.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert tag in VOID

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += data


def read_page(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


def fill(folder: Path, policies: tuple[str, ...] = ("expert", EVIL), runs: int = 6) -> dict[str, TrialRecord]:
    """Write an evaluation with every kind of outcome; the first policy is good, the others bad but shown as good."""
    store = TrialStore(folder)
    store.agree(
        {
            "policies": dict.fromkeys(policies, "expert"),
            "scenarios": list(SCENARIOS),
            "runs": runs,
            "models": ["nano", "composite"],
            "modes": ["open"],
            "task": "pick",
            "seed": 0,
            "checkpoints": {},
        }
    )
    strip = np.full((60, 1300, 3), 90, np.uint8)
    for place, policy in enumerate(policies):
        for scenario in SCENARIOS:
            for seed in range(runs):
                trial = Trial(policy, scenario, seed)
                lab = LabOutcome(place == 0 or seed == 0, 0.5, 0.0991, 4.25, 3, 1.5)
                verdict_ = place == 0 or seed < 4
                models = {"composite/open": ModelOutcome(None, reason="lost")}
                picture = ""
                if verdict_ != lab.success:
                    picture = store.picture_name(trial, "nano/open")
                    cv2.imwrite(str(folder / picture), strip)
                models["nano/open"] = ModelOutcome(
                    verdict_, 1.0, round(0.5 + seed / 20, 2), 0.08, 7, "lifted <b>high</b>", picture=picture
                )
                if place == 1 and seed == 5:
                    lab = LabOutcome(None, error=TROUBLE)
                store.add(TrialRecord(trial, lab, models))
    return store.records()


def test_write_report_writes_four_files(tmp_path: Path) -> None:
    fill(tmp_path)
    paths = write_report(tmp_path)
    assert [path.name for path in paths] == ["report.html", "report.md", "trials.csv", "summary.json"]
    page = read_page(paths[0].read_text())
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert page.handlers == []
    assert all(one.startswith(("#", "data:image/webp;base64,")) for one in page.loads)
    assert not re.search(r"https?:|//cdn|@import|url\(", paths[0].read_text())
    # One for each of the 6 disagreements of the bad policy: shown as a success on seeds 1 to 3 of two scenarios.
    assert page.tags.count("img") == 6
    assert page.tags.count("svg") >= 4


def test_texts_of_records_are_escaped(tmp_path: Path) -> None:
    fill(tmp_path)
    paths = write_report(tmp_path)
    html, markdown = paths[0].read_text(), paths[1].read_text()
    page = read_page(html)
    assert "<script" not in html
    assert "<img src=x" not in html
    assert EVIL in page.text
    assert '<img src=x onerror="alert(2)"> & "quotes"' in page.text
    assert "lifted <b>high</b>" in page.text
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert not any(re.search(r"(?<!\\)<script", line) for line in markdown.splitlines() if not line.startswith("- `"))
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in rows]
    heads = [widths[i] for i, line in enumerate(rows) if set(line) <= set("|-")]
    assert set(widths) == set(heads)


def test_page_and_markdown_have_the_same_content_in_the_same_order(tmp_path: Path) -> None:
    found = disagreements(fill(tmp_path).values())
    paths = write_report(tmp_path, max_strips=None)
    page, markdown = read_page(paths[0].read_text()), paths[1].read_text()
    texts = {"page": " ".join(page.text.split()), "markdown": " ".join(re.sub(r"\\(.)", r"\1", markdown).split())}
    store = TrialStore(tmp_path)
    sections = report_sections(summarise(store.settings(), store.records()), found, found)
    parts = [one for section in sections for one in (section, *section.parts)]
    assert page.tags.count("section") == len(parts)
    assert page.tags.count("table") == sum(len(one.tables) for one in parts) == len(re.findall(r"(?m)^\|-", markdown))
    for name, text in texts.items():
        place = 0
        for one in parts:
            for words in (one.title, *one.text, *(table.note for table in one.tables)):
                place = text.find(" ".join(words.split()), place)
                assert place >= 0, f"{words} is missing or too early in the {name}"
    assert [section.title for section in sections] == [
        "How far the models can be trusted",
        "nano/open against the lab",
        "composite/open against the lab",
        "Correction with a few real trials",
        "Comparison with the paper's Table 3",
        "Failed runs",
        "Settings",
        "Disagreements",
    ]


def test_the_report_names_a_profile_that_is_not_the_usual_one(tmp_path: Path) -> None:
    records = fill(tmp_path)
    known = TrialStore(tmp_path).settings()
    for profile, words in (({}, "“pick”:"), ({"profile": "constant"}, "“pick”:"), ({"profile": "hidden"}, "“hidden”:")):
        text = headline(summarise({**known, **profile}, records, repeats=1))
        assert words in text
        assert ("profile" in text) is (profile == {"profile": "hidden"})


def test_numbers_on_the_page_equal_the_summary(tmp_path: Path) -> None:
    records = fill(tmp_path)
    paths = write_report(tmp_path)
    stored = json.loads(paths[3].read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    summary = summarise(TrialStore(tmp_path).settings(), records)
    nano = next(model for model in summary.models if model.label == "nano/open")
    assert stored["disagreements"] == len(disagreements(records.values()))
    one = next(model for model in stored["models"] if model["label"] == "nano/open")
    assert nano.overall.bias is not None
    assert one["overall"]["bias"]["estimate"] == nano.overall.bias.estimate
    page = read_page(paths[0].read_text()).text
    assert verdict(nano) in page
    assert headline(summary) in page
    for row in rates_table(nano).rows:
        for entry in row:
            assert (entry.text if isinstance(entry, Value) else entry) in page
    # By hand: 12 good runs seen as good; of 10 bad ones with an outcome 2 succeed and 6 are shown as successes too.
    assert (nano.overall.pairs.both, nano.overall.pairs.only_model) == (14, 6)
    assert (nano.overall.pairs.only_real, nano.overall.pairs.neither) == (0, 2)
    assert "It is optimistic by 0.27" in verdict(nano)
    assert "as the lab does" in verdict(nano)


def test_csv_round_trip(tmp_path: Path) -> None:
    records = fill(tmp_path)
    records["late|canonical|0"] = TrialRecord(Trial("late", "canonical", 0), LabOutcome(True), {})
    lines = list(csv.DictReader(io.StringIO(trials_csv(records.values()))))
    assert tuple(lines[0]) == CSV_COLUMNS
    assert len(lines) == sum(max(1, len(record.models)) for record in records.values())
    flag = {"1": True, "0": False, "": None}
    for line in lines:
        record = records[f"{line['policy']}|{line['scenario']}|{line['seed']}"]
        assert flag[line["lab_success"]] is record.lab.success
        assert line["lab_error"] == record.lab.error
        assert float(line["lab_motion_s"]) == record.lab.motion_s
        if not line["model"]:
            assert record.models == {}
            continue
        outcome = record.models[line["model"]]
        assert flag[line["model_success"]] is outcome.success
        value = float(line["model_value_m"] or "nan")
        assert value == outcome.value_m or (math.isnan(value) and math.isnan(outcome.value_m))
        assert line["reason"] == outcome.reason
        if record.lab.success is not None:
            assert flag[line["agree"]] is ((outcome.success is True) == record.lab.success)


def test_strips_are_capped_and_the_most_confident_mistakes_come_first(tmp_path: Path) -> None:
    records = fill(tmp_path)
    found = disagreements(records.values())
    wrong = [one for one in found if one.verdict is not None]
    assert [one.confidence for one in wrong] == sorted((one.confidence for one in wrong), reverse=True)
    assert found[: len(wrong)] == wrong
    assert {one.label for one in wrong} == {"nano/open"}
    shown = choose(found, 5)
    assert len(shown) == 5
    assert shown[0] == found[0]
    assert {one.label for one in shown} == {"nano/open", "composite/open"}
    assert choose(found, 1000) == found
    page = read_page(write_report(tmp_path, max_strips=2)[0].read_text())
    assert page.tags.count("img") == 1
    assert "No image." in page.text
    assert f"{len(found) - 2} are left out here" in page.text


def test_all_strips_are_shown_without_a_limit(tmp_path: Path) -> None:
    found = disagreements(fill(tmp_path).values())
    few, everything = (write_report(tmp_path, max_strips=most)[0].read_text() for most in (3, None))
    assert f"{len(found) - 3} are left out here" in few
    assert "All are shown." in everything
    assert everything.count('<figure class="strip">') == len(found)


def test_rollouts_of_several_models_under_one_name_are_reported(tmp_path: Path) -> None:
    records = fill(tmp_path, ("expert",))
    changed = [
        replace(one, models={k: replace(m, made_by=f"diffusion nano {i % 2}") for k, m in one.models.items()})
        for i, one in enumerate(records.values())
    ]
    model = summarise(TrialStore(tmp_path).settings(), changed).models[0]
    assert model.made_by == ("diffusion nano 0", "diffusion nano 1")
    assert "These figures mix rollouts of diffusion nano 0 and diffusion nano 1" in verdict(model)
    assert "mix" not in verdict(summarise(TrialStore(tmp_path).settings(), records).models[0])


def test_images_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "evaluation"
    folder.mkdir()
    cv2.imwrite(str(tmp_path / "secret.png"), np.zeros((8, 8, 3), np.uint8))
    cv2.imwrite(str(folder / "own.png"), np.zeros((8, 8, 3), np.uint8))
    (folder / "broken.jpg").write_bytes(b"no picture")
    assert strip_uri(folder, "own.png").startswith("data:image/webp;base64,")
    for name in ("../secret.png", str(tmp_path / "secret.png"), "missing.jpg", "broken.jpg", "", "."):
        assert strip_uri(folder, name) == ""


def test_reports_of_one_policy_unfinished_runs_and_no_runs(tmp_path: Path) -> None:
    fill(tmp_path / "one", ("expert",))
    page = read_page(write_report(tmp_path / "one")[0].read_text()).text
    assert "No ranking: a ranking needs two policies" in page
    settings = TrialStore(tmp_path / "one").settings() | {"runs": 9}
    (tmp_path / "one" / "evaluation.json").write_text(json.dumps(settings))
    page = read_page(write_report(tmp_path / "one")[0].read_text()).text
    assert "18 trials, 12 of them finished so far. 6 are missing" in page
    TrialStore(tmp_path / "none").agree(settings)
    page = read_page(write_report(tmp_path / "none")[0].read_text()).text
    assert "No run has an outcome both in the lab and in nano/open" in page
    assert "nan" not in page.lower().replace("nano", "")


def test_a_folder_without_an_evaluation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError) as caught:
        write_report(tmp_path / "mistyped")
    assert caught.value.code is ErrorCode.FILE_MISSING
    assert list(tmp_path.iterdir()) == []


def summary_of(pairs: list[tuple[bool, bool | None]], *, policies: int = 2) -> EvaluationSummary:
    names = [f"p{i}" for i in range(policies)]
    records = [
        TrialRecord(Trial(name, "canonical", i), LabOutcome(lab), {"m/open": ModelOutcome(seen, confidence=0.9)})
        for name in names
        for i, (lab, seen) in enumerate(pairs)
    ]
    settings = {
        "policies": {name: name for name in names}, "scenarios": ["canonical"], "runs": len(pairs), "models": ["m"],
        "modes": ["open"], "seed": 0,
    }  # fmt: skip
    return summarise(settings, records, repeats=3)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([(True, True)] * 20 + [(False, False)] * 20, ["single runs are better than that", "No significant bias"]),
        (
            [(False, True)] * 20 + [(True, True)] * 10,
            ["are not better than that", "optimistic by 0.67", "Do not use it to evaluate"],
        ),
        (
            [(True, None)] * 20 + [(False, None)] * 10,
            ["cannot tell", "pessimistic by 0.67", "Do not use it to evaluate"],
        ),
    ],
)
def test_the_verdict_matches_the_numbers(pairs: list[tuple[bool, bool | None]], words: list[str]) -> None:
    text = verdict(summary_of(pairs).models[0])
    assert [word for word in words if word not in text] == []


def test_biases_that_cancel_are_listed() -> None:
    good = [
        TrialRecord(Trial("good", "canonical", i), LabOutcome(True), {"m/open": ModelOutcome(i < 12)})
        for i in range(30)
    ]
    bad = [
        TrialRecord(Trial("bad", "canonical", i), LabOutcome(False), {"m/open": ModelOutcome(i < 18)})
        for i in range(30)
    ]
    model = summarise(summary_of([(True, True)]).settings, good + bad).models[0]
    assert model.overall.bias is not None
    assert model.overall.bias.estimate == 0
    text = verdict(model)
    assert "No significant bias (0.00" in text
    assert "the bias of policies ranges from -0.60 (“good”) to +0.60 (“bad”)" in text
    model = summary_of([(True, True)] * 20 + [(False, True)] * 20 + [(False, False)] * 40).models[0]
    assert "That is a mean" not in verdict(model)


def test_power_and_correction_sentences() -> None:
    model = summary_of([(True, True)] * 20 + [(False, True)] * 15 + [(False, False)] * 15).models[0]
    words = power_words(model)
    assert "50 runs of each policy" in words
    assert model.power.between_policies is not None
    assert f"a difference of {model.power.between_policies:.2f} between two policies" in words
    assert "With 10 real trials" in correction_words(model)
    assert len(correction_table(model).header) == 1 + 3
    few = summary_of([(True, True)] * 3).models[0]
    assert "Not checked: 10 real trials need 20 finished runs" in correction_words(few)


def test_the_paper_table_lists_the_paper_and_our_results() -> None:
    table = paper_table(summary_of([(True, True)] * 6 + [(False, True)] * 4))
    simulation, real, *ours = table.rows
    assert [one.text for one in simulation[2:5] if isinstance(one, Value)] == [
        "0.48 → 0.56",
        "0.38 → 0.46",
        "0.80 → 0.84",
    ]
    assert [one.detail for one in real[2:5] if isinstance(one, Value)] == ["+0.26", "+0.30", "+0.12"]
    # By hand: (0.26 + 0.30 + 0.12) / 3, and the correlation that the rates of the real robot have.
    assert real[5] == "+0.23"
    assert real[6] == "0.96"
    assert isinstance(ours[0][2], Value)
    assert (ours[0][2].text, ours[0][2].detail, ours[0][3], ours[0][6]) == ("0.60 → 1.00", "+0.40", NONE, NONE)


def test_tied_policies_share_their_rank() -> None:
    policies, quality = ranking_table(summary_of([(True, True), (False, False)]).models[0])
    assert [row[2] for row in policies.rows] == ["1 to 2", "1 to 2"]
    assert quality.rows[0][1] == Value(NONE)
    assert "level in the lab" in quality.note


def test_plots_have_a_mark_for_everything_that_has_a_rate() -> None:
    model = summary_of([(True, True)] * 4 + [(False, True)] * 4, policies=10).models[0]
    rates, bias = rates_plot(model), bias_plot(model)
    assert (len(rates.marks), len(bias.marks)) == (10 + 10, 10 + 1)
    assert "optimistic" in words(bias)
    # By hand: 4 of 8 succeed in the lab, all in the model; the plot's square is 376 pixels from (52, 12).
    assert {(mark.x, mark.y) for mark in rates.marks} == {(52 + 376 / 2, 12)}
    empty = summary_of([(True, True)], policies=1)
    blank = summarise(empty.settings, []).models[0]
    assert "no pairs" in words(bias_plot(blank))
    assert rates_plot(blank).marks == ()


def words(plot: Plot) -> list[str]:
    return [label.text for label in plot.labels]


def test_the_page_draws_every_mark(tmp_path: Path) -> None:
    fill(tmp_path)
    page = read_page(write_report(tmp_path)[0].read_text())
    store = TrialStore(tmp_path)
    models = summarise(store.settings(), store.records()).models
    plots = [plot for model in models for plot in (rates_plot(model), bias_plot(model))]
    assert page.tags.count("g") == sum(len(plot.marks) for plot in plots) > 0
    keys = [mark for plot in plots for row in plot.legend for mark, _ in row]
    assert page.tags.count("svg") == len(plots) + len(keys)


def test_the_confusion_table_counts_every_verdict() -> None:
    table = confusion_table(summary_of([(True, True)] * 4 + [(True, None)] + [(False, True)] * 2).models[0])
    assert [row[0] for row in table.rows] == ["p0", "p1", "all"]
    for row, runs in zip(table.rows, (1, 1, 2), strict=True):
        counts = [(one.text, one.tone) for one in row[1:] if isinstance(one, Value)]
        assert counts == [
            (str(4 * runs), "hit"), ("0", ""), (str(runs), "open"),
            (str(2 * runs), "miss"), ("0", ""), ("0", ""),
        ]  # fmt: skip


def test_number_formats() -> None:
    assert [number(None), number(math.nan), number(0.126), number(0.1, 3)] == [NONE, NONE, "0.13", "0.100"]
    assert [signed(0.003), signed(-0.12), signed(0.0), signed(None)] == ["+0.003", "-0.12", "0.00", NONE]
    shown = [percent(value).replace("\u00a0", " ") for value in (0.0, 0.002, 0.998, 1.0, 0.5)]
    assert shown == ["0 %", "0.2 %", "99.8 %", "100 %", "50 %"]
