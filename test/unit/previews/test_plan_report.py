"""Plan reports of scenes with known results, and the fields of the message."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from support.scenes import cast_world, overhead_camera, rollout_of, rollout_with, slider

from kinema4d_ros.core.errors import RolloutError
from kinema4d_ros.core.outcomes import ObjectMotion, Outcome, PointBasis, patches_between
from kinema4d_ros.core.rollout import WARNING, Provenance
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.previews.report import PlanReport, clearance_text, make_report, outcomes_text

CAMERA = overhead_camera()
TABLE = cast_world(CAMERA)
BRICK = '<box size="0.08 0.06 0.04"/>'
MESSAGE = Path(__file__).parents[3] / "kinema4d_msgs" / "msg" / "PlanReport.msg"


def test_a_brick_that_comes_down_on_the_table(tmp_path: Path) -> None:
    robot = slider(tmp_path, BRICK)
    heights = np.array([0.10, 0.06, 0.024, 0.015, 0.05])
    rollout = replace(rollout_of(CAMERA, [TABLE] * 5, step_s=0.2), plan_hash="a" * 64)
    report = make_report(rollout, robot, heights[:, None])
    assert np.allclose(report.clearance_m, heights - 0.02, atol=1e-5)
    assert report.min_clearance_m == pytest.approx(-0.005, abs=1e-5)
    assert report.min_clearance_s == pytest.approx(0.6)
    assert report.min_clearance_link == "body"
    assert report.min_clearance_world_point[2] == pytest.approx(0.0, abs=1e-6)
    assert report.contact
    assert report.first_contact_s == pytest.approx(0.4)
    assert report.first_contact_link == "body"
    assert report.first_contact_point[2] == pytest.approx(0.0, abs=1e-6)
    assert report.max_penetration_m == pytest.approx(0.005, abs=1e-5)
    assert (report.plan_hash, report.rollout_id, report.frame_id) == ("a" * 64, rollout.rollout_id, "base_link")
    assert report.moved == ()
    assert "Link 'body' touches the scene at 0.40 s." in report.warnings
    assert "Link 'body' is 5 mm inside the scene at 0.60 s." in report.warnings
    assert report.velocity_ratio == pytest.approx([0.2 / 0.5])


def test_a_safe_plan_has_no_warnings(tmp_path: Path) -> None:
    report = make_report(rollout_of(CAMERA, [TABLE] * 2), slider(tmp_path, BRICK), [[0.2], [0.21]])
    assert not report.contact
    assert np.isnan(report.first_contact_s)
    assert report.first_contact_link == ""
    assert report.max_penetration_m == 0.0
    assert report.warnings == ()


def test_outcomes_and_unknowns_are_listed(tmp_path: Path) -> None:
    still = rollout_of(CAMERA, [TABLE] * 2)
    rollout = replace(
        still,
        times=still.times + 3.0,
        outcomes=(Outcome(0.8, "lifted", ((3.05, "touched"),)), Outcome(0.15, "slips")),
        alternatives=(patches_between(still, still),),
        unknowns=("object_1 is hidden; measured depth would help.",),
    )
    report = make_report(rollout, slider(tmp_path, BRICK), [[0.2], [0.21]])
    assert outcomes_text(report) == "80 % lifted, 15 % slips, 5 % not known"
    assert report.outcomes[0].events[0][0] == pytest.approx(0.05)
    assert report.warnings == ("The outcome cannot be told: object_1 is hidden; measured depth would help.",)
    assert outcomes_text(make_report(still, slider(tmp_path, BRICK), [[0.2], [0.21]])) == ""


def test_margins_come_from_the_plan_itself(tmp_path: Path) -> None:
    """A short peak of speed between two frames is in the plan, not in the frames."""
    robot = slider(tmp_path, BRICK)
    plan = JointTrajectory.from_positions(["slide"], [[0.2], [0.2], [1.1], [0.2]], times=[0, 0.4, 0.5, 1.0])
    report = make_report(rollout_of(CAMERA, [TABLE] * 2), robot, [[0.2], [0.2]], plan=plan)
    assert report.velocity_ratio == pytest.approx([18.0])
    assert report.position_margin == pytest.approx([-0.1])
    assert "Joint 'slide' leaves its limits by 0.1 m." in report.warnings
    assert "Joint 'slide' moves at 18.00 times its speed limit." in report.warnings


def test_an_empty_scene_is_reported(tmp_path: Path) -> None:
    report = make_report(rollout_of(CAMERA, [np.full_like(TABLE, np.nan)]), slider(tmp_path, BRICK), [[0.1]])
    assert np.isnan(report.min_clearance_m)
    assert not report.contact
    assert any("No point of the scene" in warning for warning in report.warnings)


def test_an_assumed_table_is_reported(tmp_path: Path) -> None:
    rollout = replace(rollout_of(CAMERA, [TABLE]), provenance=Provenance("composite", "plane", depth="plane"))
    report = make_report(rollout, slider(tmp_path, BRICK), [[0.1]])
    assert report.clearance_basis == "plane"
    assert clearance_text(report) == "80 mm to the assumed table: 'body' at 0.00 s"
    assert any("No depth was measured" in warning for warning in report.warnings)


def test_estimated_depth_is_reported(tmp_path: Path) -> None:
    rollout = replace(rollout_of(CAMERA, [TABLE]), provenance=Provenance("diffusion", "nano", depth="lifted"))
    report = make_report(rollout, slider(tmp_path, BRICK), [[0.1]])
    assert report.clearance_basis == "lifted"
    assert clearance_text(report) == "80 mm by depth guessed from the picture: 'body' at 0.00 s"
    assert any("estimated by a network" in warning for warning in report.warnings)


def test_clearance_of_unknown_depth_is_nan(tmp_path: Path) -> None:
    """A plane in place of an unknown scene: fingers inside a box would be reported as clear of it."""
    rollout = replace(rollout_of(CAMERA, [TABLE] * 2), provenance=Provenance("diffusion", "nano"))
    robot = slider(tmp_path, BRICK)
    report = make_report(rollout, robot, [[0.12], [0.1]])
    assert report.clearance_basis == "unknown"
    assert np.isnan(report.min_clearance_m)
    assert np.isnan(report.clearance_m).all()
    assert clearance_text(report) == "unknown"
    assert any("clearance is unknown" in warning for warning in report.warnings)
    assert not any(character.isdigit() for warning in report.warnings for character in warning)
    # A plan through the assumed table is still reported.
    through = make_report(rollout, robot, [[0.12], [0.01]])
    assert through.contact
    assert through.first_contact_link == "body"
    assert np.isnan(through.min_clearance_m)
    assert through.max_penetration_m == 0.0


def test_depth_behind_the_robot_is_assumed(tmp_path: Path) -> None:
    """Where the robot of the first image hides the table, its depth is assumed, even if the rest was measured."""
    robot, heights = slider(tmp_path, BRICK), np.array([[0.1], [0.06]])
    rollout = rollout_with(robot, heights, CAMERA, [TABLE] * 2)
    assert make_report(rollout, robot, heights).clearance_basis == "measured"
    hidden = replace(rollout, robot_mask=rollout.robot_mask.copy())
    p = hidden.points_base(1)
    hidden.robot_mask[0] |= np.linalg.norm(p[..., :2], axis=-1) < 0.2
    report = make_report(hidden, robot, heights)
    assert report.clearance_basis == "plane"
    assert any("hidden by the robot" in warning for warning in report.warnings)


def test_warnings_of_the_provenance_are_repeated(tmp_path: Path) -> None:
    rollout = replace(
        rollout_of(CAMERA, [TABLE]), provenance=Provenance("x", versions={WARNING: "No adapter was used."})
    )
    assert "No adapter was used." in make_report(rollout, slider(tmp_path, BRICK), [[0.1]]).warnings


def test_a_pushed_box_is_reported(tmp_path: Path) -> None:
    camera = overhead_camera(360, 240)
    frames = [cast_world(camera, [((x, 0, 0.03), (0.06, 0.06, 0.06))]) for x in (0.0, 0.02, 0.04, 0.06)]
    report = make_report(rollout_of(camera, frames), slider(tmp_path, BRICK), [[0.3]] * 4)
    assert len(report.moved) == 1
    assert report.moved[0].displacement_m == pytest.approx(0.06, abs=0.006)


@pytest.mark.parametrize("name", ["contact_threshold_m", "motion_threshold_m"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_thresholds(tmp_path: Path, name: str, value: float) -> None:
    with pytest.raises(RolloutError, match=name):
        make_report(rollout_of(CAMERA, [TABLE]), slider(tmp_path, BRICK), [[0.1]], **{name: value})


def test_the_report_has_the_fields_of_the_message() -> None:
    lines = re.findall(r"^[\w/\[\]]+ +(\w+)\s*(?:#.*)?$", MESSAGE.read_text(), re.MULTILINE)
    assert len(lines) > 15
    elsewhere = {"frame_id", "clearance_links", "robustness"}  # in the header, in folders, on a topic of its own
    assert set(lines) - {"header", "error"} == {f.name for f in fields(PlanReport)} - elsewhere


def test_moved_objects_are_those_that_the_outcome_states(tmp_path: Path) -> None:
    """A wall that is filled in looks like a moved object in pixels; the stated poses say that it is none."""
    robot = slider(tmp_path, BRICK)
    box = cast_world(CAMERA, boxes=[((0.0, 0.1, 0.03), (0.06, 0.06, 0.06))])
    gone = rollout_of(CAMERA, [box, TABLE, TABLE])
    objects = (
        ObjectMotion("object_1", (0.3, 0.0, 0.0), (0.3, 0.1, 0.0), 0.15, float(gone.times[1])),
        ObjectMotion("object_2", (0.4, 0.0, 0.0), (0.4, 0.0, 0.0), 0.001),
    )
    for stated, moved in ((objects, [0.15]), (objects[1:], []), ((), [])):
        rollout = replace(gone, outcomes=(Outcome(0.9, "x", (), stated),))
        report = make_report(rollout, robot, [[0.3]] * 3)
        assert [one.displacement_m for one in report.moved] == moved
    assert report.warnings == ()


@pytest.mark.parametrize(
    ("source", "basis"),
    [(PointBasis.MEASURED, "measured"), (PointBasis.PLANE, "unknown"), (PointBasis.UNKNOWN, "unknown")],
)
def test_a_clearance_to_the_assumed_table_is_no_number(tmp_path: Path, source: PointBasis, basis: str) -> None:
    still = rollout_of(CAMERA, [TABLE] * 2)
    rollout = replace(still, basis=np.full(still.robot_mask.shape, source, np.uint8))
    report = make_report(rollout, slider(tmp_path, BRICK), [[0.2], [0.21]])
    assert report.clearance_basis == basis
    assert (clearance_text(report) == "unknown") == np.isnan(report.clearance_m).all() == (basis == "unknown")
