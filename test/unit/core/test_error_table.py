"""Every error code and the test that forces it: over DDS if it can leave the graph, else where it is raised."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kinema4d_ros.core.errors import ErrorCode

ROOT = Path(__file__).resolve().parents[3]

GRAPH = "test/ros/test_graph.py::"
CODES = "test/ros/test_error_codes.py::"
FAULTS = "test/ros/test_generator_faults.py::"
GATE = "test/ros/test_gate_action.py::"
BAD_PLANS = GRAPH + "test_bad_plans_are_refused_with_their_codes"
BROKEN_PLANS = GRAPH + "test_broken_plan_messages_are_refused_and_the_next_one_works"
OTHER_CAMERA = CODES + "test_a_driver_that_describes_another_camera"
BACK_END = CODES + "test_what_a_back_end_refuses_keeps_its_code"
CANNOT_START = CODES + "test_a_node_that_cannot_start_says_why_and_ends"
REFUSALS = CODES + "test_the_gate_refuses"

OVER_DDS: dict[ErrorCode, str] = {
    ErrorCode.NONE: FAULTS + "test_a_good_goal_gives_a_rollout_with_timings",
    ErrorCode.UNKNOWN_JOINT: BAD_PLANS,
    ErrorCode.IK_NO_SOLUTION: CODES + "test_tool_paths_that_cannot_be_followed",
    ErrorCode.TRAJECTORY_EMPTY: BROKEN_PLANS,
    ErrorCode.TRAJECTORY_NOT_FINITE: BROKEN_PLANS,
    ErrorCode.TRAJECTORY_NOT_MONOTONIC: BROKEN_PLANS,
    ErrorCode.TRAJECTORY_BAD_SHAPE: BROKEN_PLANS,
    ErrorCode.TRAJECTORY_OUT_OF_LIMITS: BAD_PLANS,
    ErrorCode.TRAJECTORY_TOO_FAST: BAD_PLANS,
    ErrorCode.CAMERA_BAD_INTRINSICS: OTHER_CAMERA,
    ErrorCode.CAMERA_BAD_DISTORTION: OTHER_CAMERA,
    ErrorCode.CAMERA_BAD_SIZE: OTHER_CAMERA,
    ErrorCode.CALIBRATION_INVALID: OTHER_CAMERA,
    ErrorCode.NOT_A_ROTATION: CODES + "test_tool_paths_that_cannot_be_followed",
    ErrorCode.CALIBRATION_FRAME_MISMATCH: CODES + "test_tool_paths_that_cannot_be_followed",
    ErrorCode.CALIBRATION_POOR: CODES + "test_a_calibration_that_nobody_measured_is_refused_where_a_limit_is_set",
    ErrorCode.RENDER_BAD_INPUT: BACK_END,
    ErrorCode.POINTMAP_BAD_INPUT: CODES + "test_damaged_goals",
    ErrorCode.POINTMAP_EMPTY: BACK_END,
    ErrorCode.WIRE_CORRUPT: CODES + "test_damaged_goals",
    ErrorCode.GENERATOR_BUSY: CODES + "test_a_busy_generator_refuses_the_next_plan",
    ErrorCode.GENERATOR_FAILED: FAULTS + "test_failures_have_codes_and_the_next_goal_works",
    ErrorCode.GENERATOR_OUT_OF_MEMORY: FAULTS + "test_failures_have_codes_and_the_next_goal_works",
    ErrorCode.GENERATOR_TIMEOUT: FAULTS + "test_a_hang_ends_at_the_goal_s_own_timeout",
    ErrorCode.GENERATOR_UNAVAILABLE: CODES + "test_no_generator",
    ErrorCode.CANCELLED: FAULTS + "test_feedback_then_cancellation_within_a_step",
    ErrorCode.GENERATOR_BAD_REQUEST: FAULTS + "test_broken_requests_are_refused",
    ErrorCode.METRIC_REFUSED: BACK_END,
    ErrorCode.GENERATOR_OTHER_ROBOT: CODES + "test_damaged_goals",
    ErrorCode.NO_ROLLOUT: CODES + "test_nothing_to_play",
    ErrorCode.PLAYBACK_BAD_COMMAND: GRAPH + "test_playback_is_controlled",
    ErrorCode.ROLLOUT_INVALID: BACK_END,
    ErrorCode.PLAN_START_MISMATCH: BAD_PLANS,
    ErrorCode.PLAN_UNKNOWN: REFUSALS,
    ErrorCode.PLAN_STALE: CODES + "test_approvals_and_previews_get_old",
    ErrorCode.PLAN_SUPERSEDED: REFUSALS,
    ErrorCode.WORLD_CHANGED: GATE + "test_a_table_laid_anew_voids_plan_and_approval_until_the_next_preview",
    ErrorCode.APPROVAL_INVALID: REFUSALS,
    ErrorCode.APPROVAL_EXPIRED: CODES + "test_approvals_and_previews_get_old",
    ErrorCode.APPROVAL_USED: REFUSALS,
    ErrorCode.ARM_MOVED: REFUSALS,
    ErrorCode.ARM_BUSY: REFUSALS,
    ErrorCode.ARM_UNAVAILABLE: REFUSALS,
    ErrorCode.ARM_REFUSED: GATE + "test_a_plan_that_the_controller_rejects_is_a_refusal",
    ErrorCode.ARM_ABORTED: GATE + "test_a_motion_that_the_controller_aborts_is_reported",
    ErrorCode.JOINT_STATES_STALE: GRAPH + "test_a_silent_arm_is_refused_and_heard_again",
    ErrorCode.JOINT_STATES_INVALID: CODES + "test_a_displayed_plan_whose_start_cannot_be_read",
    ErrorCode.CAMERA_STALE: CODES + "test_no_picture_and_pictures_that_cannot_be_used",
    ErrorCode.IMAGE_INVALID: CODES + "test_no_picture_and_pictures_that_cannot_be_used",
    ErrorCode.SCENARIO_UNKNOWN: GRAPH + "test_the_table_can_be_laid_anew",
    ErrorCode.GRAPH_UNAVAILABLE: CODES + "test_a_service_that_nobody_offers",
}
"""Codes in messages of the running graph or raised by its client, and the test that forces each."""

POLICIES = "raised in an evaluation: it becomes the outcome of one run, and the other runs continue"
POLICY = "test/unit/policies/test_policy_protocol.py::"
START = "ends a node before it joins the graph"
FILES = "raised while robots or files are read: by commands, or before a node joins the graph"

ELSEWHERE: dict[ErrorCode, tuple[str, str]] = {
    ErrorCode.UNKNOWN: (
        "an unexpected exception: one that could be forced would have its own code",
        "test/unit/ros/test_stamps_and_errors.py::test_a_surprise_keeps_its_type_and_text",
    ),
    ErrorCode.SETUP_MISSING: (
        "a package or device is missing: " + START,
        "test/unit/web/test_server.py::test_a_server_that_cannot_be_guarded_does_not_start",
    ),
    ErrorCode.ARGUMENT_INVALID: (
        "launch arguments, read before any node runs",
        "test/unit/ros/test_graph_spec.py::test_bad_arguments_are_refused",
    ),
    ErrorCode.PARAMETER_INVALID: (START, CANNOT_START),
    ErrorCode.BACKEND_MISSING: (START, CANNOT_START),
    ErrorCode.FILE_MISSING: (START, CANNOT_START),
    ErrorCode.FILE_NOT_WRITABLE: (START, CANNOT_START),
    ErrorCode.URDF_MALFORMED: (FILES, "test/unit/robot/test_xml_screen.py::test_broken_xml_is_malformed"),
    ErrorCode.URDF_UNSAFE: (
        FILES,
        "test/unit/robot/test_xml_screen.py::test_declarations_are_refused_before_they_are_expanded",
    ),
    ErrorCode.URDF_UNSUPPORTED: (FILES, "test/unit/robot/test_structure.py::test_unknown_shapes_are_unsupported"),
    ErrorCode.MESH_MISSING: (FILES, "test/unit/robot/test_meshes.py::test_missing_file"),
    ErrorCode.MESH_UNSAFE_PATH: (FILES, "test/unit/robot/test_packages.py::test_links_out_of_the_package_are_refused"),
    ErrorCode.MESH_MALFORMED: (FILES, "test/unit/robot/test_meshes.py::test_unusable_files"),
    ErrorCode.UNKNOWN_LINK: (FILES, "test/unit/robot/test_robot_model.py::test_unknown_names_list_the_known_ones"),
    ErrorCode.NO_GRIPPER: (
        "a pick plan for a robot without a gripper: refused during planning, before it is sent",
        "test/unit/robot/test_gripper.py::test_a_gripper_without_a_vendor",
    ),
    ErrorCode.FILE_MALFORMED: (
        FILES,
        "test/unit/io/test_images.py::test_other_formats_and_broken_files_are_refused",
    ),
    ErrorCode.FILE_UNSUPPORTED: (
        FILES,
        "test/unit/io/test_images.py::test_other_formats_and_broken_files_are_refused",
    ),
    ErrorCode.POLICY_UNAVAILABLE: (POLICIES, POLICY + "test_a_kind_that_nobody_registered"),
    ErrorCode.POLICY_FAILED: (POLICIES, POLICY + "test_a_policy_that_raises_or_answers_with_garbage"),
    ErrorCode.POLICY_TIMEOUT: (POLICIES, POLICY + "test_a_policy_that_hangs_is_lost_and_nobody_waits_for_it_again"),
    ErrorCode.POLICY_BAD_ACTION: (POLICIES, POLICY + "test_chunks_that_are_no_motion"),
}
"""Codes that no message of the running graph carries: the reason, and the test that forces each where it is raised."""

OTHER_WORDS = {ErrorCode.SETUP_MISSING: "SetupError"}
"""Text that a test uses in place of the name of a code."""


def functions(path: Path) -> dict[str, str]:
    """Return the source of every test function of a file, with its decorators."""
    text = path.read_text()
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[node.name] = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return found


def test_every_code_is_in_the_table_once() -> None:
    assert not set(OVER_DDS) & set(ELSEWHERE)
    missing = [code.name for code in ErrorCode if code not in OVER_DDS and code not in ELSEWHERE]
    assert not missing, f"no test listed for {', '.join(missing)}"


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.name)
def test_the_test_that_forces_it_exists_and_names_it(code: ErrorCode) -> None:
    where = OVER_DDS[code] if code in OVER_DDS else ELSEWHERE[code][1]
    file, _, name = where.partition("::")
    found = functions(ROOT / file)
    assert name in found, f"{file} has no {name}"
    assert OTHER_WORDS.get(code, code.name) in found[name], f"{where} does not mention {code.name}"
    assert (code in OVER_DDS) == (file.startswith("test/ros/") and where != CANNOT_START)
