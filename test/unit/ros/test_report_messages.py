"""The plan report as a message and as markers: lossless, and unmeasured clearance is marked."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.scenes import cast_world, overhead_camera, rollout_of, slider

from kinema4d_ros.core.outcomes import Outcome
from kinema4d_ros.core.rollout import Provenance
from kinema4d_ros.previews.report import MovedRegion, PlanReport, make_report
from kinema4d_ros.ros.messages.page import report_from_msg
from kinema4d_ros.ros.messages.report import AMBER, GREEN, RED, report_to_markers, report_to_msg
from kinema4d_ros.ros.messages.stamps import time_from_ns

STAMP = time_from_ns(1_000)


@pytest.fixture
def report(tmp_path: Path) -> PlanReport:
    camera = overhead_camera()
    robot = slider(tmp_path, '<box size="0.08 0.06 0.04"/>')
    return make_report(rollout_of(camera, [cast_world(camera)] * 2), robot, [[0.2], [0.1]])


def same(a: Any, b: Any) -> bool:
    if isinstance(a, (float, np.ndarray)):
        return bool(np.array_equal(a, b, equal_nan=True))
    return bool(a == b)


def test_a_report_round_trips(report: PlanReport) -> None:
    outcomes = (Outcome(0.8, "lifted", ((0.05, "the fingers touch object_1"),)), Outcome(0.2, "slips"))
    sent = replace(report, grasp_s=0.1, clearance_basis="plane", outcomes=outcomes, unknowns=("it is dark",))
    read = report_from_msg(report_to_msg(sent, STAMP))
    assert read.clearance_basis == "plane"
    assert read.grasp_s == 0.1
    assert math.isnan(read.release_s)
    for field in fields(PlanReport):
        if field.name != "clearance_links":
            assert same(getattr(sent, field.name), getattr(read, field.name)), field.name


def test_an_unrecognised_basis_is_unknown(report: PlanReport) -> None:
    message = report_to_msg(report, STAMP)
    message.clearance_basis = "<b>measured</b>"
    assert report_from_msg(message).clearance_basis == "unknown"


def test_markers_are_green_only_for_measured_clearance(report: PlanReport) -> None:
    texts, colours = {}, {}
    for basis in ("measured", "lifted", "plane"):
        markers = report_to_markers(replace(report, clearance_basis=basis), STAMP).markers
        text = next(m for m in markers if m.text)
        texts[basis], colours[basis] = text.text, text.color
    assert texts["measured"] == "body: 80 mm"
    assert "guessed from the picture" in texts["lifted"]
    assert "assumed table" in texts["plane"]
    assert colours["measured"] == GREEN
    assert colours["lifted"] == colours["plane"] == AMBER


def test_warnings_are_written_where_they_are_about(report: PlanReport) -> None:
    """A contact and a moved object have a label of their own, at the contact and at the object's end."""
    moved = MovedRegion(np.array([0.3, 0.0, 0.02]), np.array([0.3, 0.1, 0.02]), 0.1, 50, 0.4, np.empty((0, 3)))
    point = np.array([0.2, -0.1, 0.05])
    touching = replace(
        report,
        contact=True,
        first_contact_s=1.25,
        first_contact_link="link4",
        first_contact_point=point,
        max_penetration_m=0.012,
        moved=(moved,),
    )
    labels = {m.ns: m for m in report_to_markers(touching, STAMP).markers if m.text}
    assert labels["contact"].text == "link4 touches at 1.2 s, up to 12 mm deep"
    assert labels["contact"].color == RED
    assert labels["moved"].text == "moved 10 cm"
    for space, at in (("contact", point), ("moved", moved.end)):
        place = labels[space].pose.position
        np.testing.assert_allclose([place.x, place.y], at[:2])
        assert abs(place.z - at[2]) < 0.06


def test_an_unknown_clearance_has_no_marker(tmp_path: Path) -> None:
    camera = overhead_camera()
    rollout = replace(rollout_of(camera, [cast_world(camera)]), provenance=Provenance("diffusion"))
    report = make_report(rollout, slider(tmp_path, '<box size="0.08 0.06 0.04"/>'), [[0.2]])
    assert [m.ns for m in report_to_markers(report, STAMP).markers if m.ns] == []
