"""What a person may press, and when."""

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


def test_nothing_without_a_plan() -> None:
    assert can(PlanDesk()) == (False, False)


def test_approve_then_execute_then_nothing() -> None:
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


def test_an_approval_ends_with_its_time() -> None:
    desk = shown()
    desk.approved(A, "token", 30.0)
    assert can(desk, 30.0) == (True, False)


def test_a_newer_plan_ends_the_approval() -> None:
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


def test_a_refusal_spends_the_approval() -> None:
    desk = shown()
    desk.approved(A, "token", 30.0)
    desk.refused()
    assert can(desk) == (True, False)


def test_a_table_laid_anew_withdraws_everything() -> None:
    desk = shown()
    desk.approved(A, "token", 30.0)
    desk.withdraw()
    assert can(desk) == (False, False)


def test_a_page_without_control_only_shows() -> None:
    desk = shown(control=False)
    assert can(desk) == (False, False)


def test_a_motion_that_ended_early_leaves_the_desk_free() -> None:
    desk = shown()
    desk.approved(A, "token", 30.0)
    desk.executed(A, 0.0, 9.0)
    assert "moves" in desk.now(1.0).text
    desk.stopped()
    assert desk.now(1.0).text == "Done. Preview the next plan"
