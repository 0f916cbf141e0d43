"""HTML fragments of the page: text in messages is always escaped."""

from __future__ import annotations

import base64
import re

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinema4d_ros.core.outcomes import MAX_LETTERS, Outcome
from kinema4d_ros.generators.draft.robustness import Robustness
from kinema4d_ros.previews.report import MovedRegion, PlanReport
from kinema4d_ros.web import texts

EVIL = "<img src=x onerror=alert(1)>\"'&"


def report(**changes: object) -> PlanReport:
    nowhere = np.full(3, np.nan)
    values: dict[str, object] = {
        "plan_hash": "",
        "rollout_id": "",
        "frame_id": "base_link",
        "times": np.array([0.0, 1.0]),
        "clearance_m": np.array([0.1, 0.02]),
        "clearance_basis": "measured",
        "min_clearance_m": 0.02,
        "min_clearance_s": 1.0,
        "min_clearance_link": "gripper",
        "min_clearance_robot_point": nowhere,
        "min_clearance_world_point": nowhere,
        "contact": False,
        "contact_threshold_m": 0.005,
        "first_contact_s": np.nan,
        "first_contact_link": "",
        "first_contact_point": nowhere,
        "max_penetration_m": 0.0,
        "joint_names": ("joint1", "joint2"),
        "position_margin": np.array([0.5, 0.25]),
        "velocity_ratio": np.array([0.2, 0.4]),
        "moved": (),
        "warnings": (),
    }
    return PlanReport(**{**values, **changes})  # type: ignore[arg-type]


@given(st.text(max_size=300))
def test_every_text_is_escaped(text: str) -> None:
    pages = [
        texts.headline(text),
        texts.chip("bad", text),
        texts.message_line("good", text),
        texts.status_rows([(text, "busy", text, text)]),
        texts.warning_list(report(warnings=(text,))),
        texts.report_table(report(min_clearance_link=text, joint_names=(text, text))),
        texts.report_table(report(outcomes=(Outcome(0.5, f"x{text}"[:MAX_LETTERS]),), unknowns=(text,))),
    ]
    for page in pages:
        assert not re.sub(r"</?(div|span|b|ul|li)( style=\"[^\"<>]*\")?>", "", page).count("<")


def test_html_in_messages_is_shown_as_text() -> None:
    page = texts.warning_list(report(warnings=(EVIL,))) + texts.message_line("bad", EVIL)
    assert "<img" not in page
    assert page.count("&lt;img") == 2


def test_the_report_shows_the_least_clearance_and_the_tightest_joint() -> None:
    page = texts.report_table(report())
    assert "20 mm" in page
    assert "gripper at 1.0 s" in page
    assert "0.250" in page
    assert "joint2" in page
    assert "40 %" in page
    assert "nothing within 5 mm" in page


def test_the_most_probable_outcomes_are_shown_with_their_probabilities() -> None:
    outcomes = tuple(
        Outcome(p, label) for p, label in ((0.6, "lifted"), (0.2, "slips"), (0.1, "topples"), (0.05, "stays"))
    )
    page = texts.report_table(report(outcomes=outcomes))
    assert "60 %" in page
    assert "lifted" in page
    assert "topples" in page
    assert "stays" not in page
    assert "cannot tell" not in page
    assert "cannot tell" in texts.report_table(report(outcomes=outcomes, unknowns=("the shape is uncertain",)))
    assert "Outcome" not in texts.report_table(report())


def test_contact_and_motion_are_shown() -> None:
    region = MovedRegion(np.zeros(3), np.ones(3), 0.12, 40, 0.5, np.empty((0, 3)))
    page = texts.report_table(
        report(contact=True, first_contact_s=1.5, first_contact_link="left_finger", moved=(region,))
    )
    assert "at 1.5 s" in page
    assert "left_finger" in page
    assert "1 object<" in page
    assert "120 mm" in page


def test_unknown_clearance_is_not_a_number() -> None:
    page = texts.report_table(report(min_clearance_m=np.nan, min_clearance_s=np.nan, min_clearance_link=""))
    assert "unknown" in page
    assert "nan" not in page


@pytest.mark.parametrize(("basis", "text"), [("lifted", "guessed from the picture"), ("plane", "assumed table")])
def test_an_unmeasured_clearance_is_marked(basis: str, text: str) -> None:
    measured, other = texts.report_table(report()), texts.report_table(report(clearance_basis=basis))
    assert text in other
    assert text not in measured


def test_a_grasp_is_shown() -> None:
    page = texts.report_table(report(grasp_s=2.5, release_s=6.0))
    assert "Grasp" in page
    assert "at 2.5 s" in page
    assert "until 6.0 s" in page
    assert "Grasp" not in texts.report_table(report())
    assert "to the end" in texts.report_table(report(grasp_s=2.5))


def test_contact_is_not_excluded_in_an_unknown_scene() -> None:
    page = texts.report_table(report(clearance_basis="unknown", min_clearance_m=np.nan, min_clearance_s=np.nan))
    assert "nothing within" not in page


def test_long_lists_of_warnings_are_truncated() -> None:
    page = texts.warning_list(report(warnings=tuple(f"warning {i}" for i in range(50))))
    assert page.count("<li") == 7
    assert "and 44 more" in page
    assert texts.warning_list(report()) == ""


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_an_image_is_embedded_in_the_html(suffix: str) -> None:
    rgb = np.full((20, 30, 3), (200, 100, 50), np.uint8)
    page = texts.picture("A & B", rgb, suffix)  # type: ignore[arg-type]
    assert "A &amp; B" in page
    data = re.search(r'src="data:image/\w+;base64,([^"]+)"', page)
    assert data is not None
    back = cv2.imdecode(np.frombuffer(base64.b64decode(data[1]), np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    assert np.abs(back.astype(int) - rgb).max() <= 3


def test_the_report_shows_robustness_as_a_sentence_and_a_plot() -> None:
    found = Robustness("object_1", EVIL, np.nan, 4, False, (), 0.04, 0.0005, 5, (EVIL,))
    page = texts.report_table(report(robustness=found))
    assert "cannot tell" in page
    assert EVIL not in page
    plot = re.search(r"data:image/svg\+xml;base64,([^\"]+)", page)
    assert plot is not None
    assert base64.b64decode(plot.group(1)).startswith(b"<svg")
    assert "svg" not in texts.report_table(report())
