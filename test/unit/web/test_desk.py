"""Which buttons of the page are enabled, and when."""

from __future__ import annotations

from kinema4d_ros.web.approval import Desk, PlanDesk

A, B = "a" * 64, "b" * 64


def shown(control: bool = True) -> PlanDesk:
    desk = PlanDesk(control)
    desk.show(A, "rollout-a")
    desk.offer(A, "rollout-a")
    return desk


def can(desk: PlanDesk, now_s: float = 0.0) -> tuple[bool, bool]:
    state = desk.now(now_s)
    assert state.text
    assert bool(state.token) == state.may_execute
    return state.may_approve, state.may_execute


def test_no_action_is_allowed_without_a_plan() -> None:
    assert can(PlanDesk()) == (False, False)


def test_approve_once_then_execute_once() -> None:
    desk = shown()
    assert can(desk) == (True, False)
    desk.approved(A, "token", 30.0)
    assert can(desk, 1.0) == (False, True)
    assert desk.now(1.0) == Desk(False, True, "Approved: execute within 29 s", A, "token")
    desk.executed(A, 2.0, 5.0)
    assert can(desk, 3.0) == (False, False)
    assert "4 s" in desk.now(3.0).text
    assert can(desk, 8.0) == (False, False)


def test_a_plan_whose_prediction_is_not_on_the_page_cannot_be_approved() -> None:
    desk = PlanDesk()
    desk.offer(A, "rollout-a")
    assert can(desk) == (False, False)
    desk.show(A, "another rollout of the same plan")
    assert can(desk) == (False, False)
    desk.show(A, "rollout-a")
    assert can(desk) == (True, False)


def test_an_approval_expires() -> None:
    desk = shown()
    desk.approved(A, "token", 30.0)
    assert can(desk, 30.0) == (True, False)


def test_a_newer_plan_discards_the_approval() -> None:
    desk = shown()
    desk.approved(A, "token", 30.0)
    desk.offer(B, "rollout-b")
    assert can(desk) == (False, False)
    desk.show(B, "rollout-b")
    assert can(desk) == (True, False)
    desk.approved(A, "late answer for the old plan", 30.0)
    assert can(desk) == (True, False)


def test_the_same_plan_offered_again_keeps_its_approval() -> None:
    desk = shown()
    desk.approved(A, "token", 30.0)
    desk.offer(A, "rollout-a")
    desk.show(A, "rollout-a")
    assert can(desk) == (False, True)


def test_a_refusal_discards_the_approval() -> None:
    desk = shown()
    desk.approved(A, "token", 30.0)
    desk.refused()
    assert can(desk) == (True, False)


def test_a_change_of_the_scene_discards_plan_and_approval() -> None:
    desk = shown()
    desk.approved(A, "token", 30.0)
    desk.withdraw()
    assert can(desk) == (False, False)


def test_a_page_without_control_is_view_only() -> None:
    desk = shown(control=False)
    assert can(desk) == (False, False)


def test_a_motion_that_ended_early_is_no_longer_shown_as_moving() -> None:
    desk = shown()
    desk.approved(A, "token", 30.0)
    desk.executed(A, 0.0, 9.0)
    assert "moving" in desk.now(1.0).text
    desk.stopped()
    assert desk.now(1.0).text == "Done. Preview the next plan"
