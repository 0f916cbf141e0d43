"""Which choices in RViz's menu count."""

from __future__ import annotations

import pytest

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.ros.nodes.rviz_menu import NONCE_BITS, SPEEDS, Choice, Entry, Menu, Offer
from kinema4d_ros.web.approval import Desk

PLAN = "a" * 64
MAY_APPROVE, MAY_EXECUTE = Desk(True, False, "x", PLAN), Desk(False, True, "x", PLAN, "token")


def pick(menu: Menu, title: str) -> tuple[int, str]:
    """What RViz reports for the entry with this text."""
    control, rows = menu.entries()
    (entry,) = [number for number, _, text in rows if text.startswith(title)]
    return entry, control


def choose(menu: Menu, report: tuple[int, str], client: str = "/rviz", known: bool = True) -> Choice:
    return menu.choose(*report, client, known)


def refused(menu: Menu, report: tuple[int, str], client: str = "/rviz", known: bool = True) -> str:
    with pytest.raises(KinemaError) as caught:
        choose(menu, report, client, known)
    assert caught.value.code == ErrorCode.APPROVAL_INVALID
    return caught.value.what


@pytest.fixture
def menu() -> Menu:
    made = Menu()
    made.offer(Offer(MAY_APPROVE, outcomes=2))
    return made


def test_an_approval_counts_once_and_names_the_plan_of_the_menu(menu: Menu) -> None:
    report = pick(menu, "Approve plan aaaaaaaa")
    made = choose(menu, report)
    assert (made.entry, made.desk.plan_hash, made.client) == (Entry.APPROVE, PLAN, "/rviz")
    assert "not of the menu" in refused(menu, report)
    assert pick(menu, "Approve plan") != report


def test_a_refused_choice_is_used_up_too(menu: Menu) -> None:
    """Otherwise it could be sent again when the menu offers it."""
    early = pick(menu, "(Execute: approve first)")
    assert not choose(menu, early).desk.may_execute
    refused(menu, early)
    unknown = pick(menu, "Approve plan")
    assert "not a node" in refused(menu, unknown, known=False)
    refused(menu, unknown)
    nameless = pick(menu, "Approve plan")
    refused(menu, nameless, client="")
    refused(menu, nameless)


def test_whatever_changes_the_offer_replaces_the_menu(menu: Menu) -> None:
    reports = [pick(menu, "Approve plan")]
    menu.offer(Offer(MAY_EXECUTE))
    reports.append(pick(menu, "Execute plan"))
    menu.offer(Offer(Desk(True, False, "x", "b" * 64)))
    reports.append(pick(menu, "Approve plan bbbbbbbb"))
    menu.renew()  # the same plan, previewed again
    for report in reports:
        refused(menu, report)
    assert len({report[0] >> 5 for report in reports}) == 3


def test_text_and_playback_do_not_replace_the_menu(menu: Menu) -> None:
    report = pick(menu, "Approve plan")
    menu.offer(Offer(Desk(True, False, "26 s left", PLAN), playing=False, speed=2.0, outcomes=3))
    assert pick(menu, "Approve plan") == report
    assert pick(menu, "Continue")
    assert pick(menu, "Speed (2 x)")
    assert pick(menu, "Next outcome of 3")


def test_only_the_client_that_approved_executes(menu: Menu) -> None:
    menu.approved_by("/rviz")
    menu.offer(Offer(MAY_EXECUTE))
    assert "'/rviz' approved" in refused(menu, pick(menu, "Execute plan"), client="/other")
    assert choose(menu, pick(menu, "Execute plan")).entry is Entry.EXECUTE


def test_control_and_number_must_both_match(menu: Menu) -> None:
    entry, control = pick(menu, "Approve plan")
    nonce = entry & ~31
    for number, name in ((entry, "menu"), (entry, ""), (2, control), (0, control), (entry ^ 32, control)):
        refused(menu, (number, name))
    for number in (0, int(Entry.SPEED), int(Entry.SPEED) + len(SPEEDS) + 1, 31):
        assert "no entry" in refused(menu, (nonce | number, control))
    assert choose(menu, (entry, control)).entry is Entry.APPROVE


def test_ids_fit_into_a_signed_int_and_are_unique(menu: Menu) -> None:
    for _ in range(200):
        menu.renew()
        _, rows = menu.entries()
        ids = [number for number, _, _ in rows]
        assert len(set(ids)) == len(ids)
        assert all(0 < number < 2**31 for number in ids)
        assert all(above in (0, *ids) for _, above, _ in rows)
    assert NONCE_BITS >= 26


@pytest.mark.parametrize("speed", SPEEDS)
def test_a_speed_is_chosen_as_often_as_wanted(menu: Menu, speed: float) -> None:
    report = pick(menu, f"{speed:g} x")
    assert choose(menu, report).speed == choose(menu, report).speed == speed
