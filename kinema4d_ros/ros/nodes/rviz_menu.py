"""Menu in RViz: which choice of a person counts.

RViz reports a choice as a message with the number of the entry, which anybody can send again: a recording that is
played, a network that delivers twice, another program. Therefore every menu has a random number of its own (its nonce)
in the ids of its entries and in the name of its control. A choice counts only

- as MENU_SELECT of the menu that is shown now, by a client that is a node which publishes feedback;
- once, if it is Approve or Execute: whether it is accepted or refused, the menu is replaced by one with a new nonce;
- as Approve or Execute, if the menu offered that. Execute counts only from the client that approved.

A new preview, an approval, its end and everything else that changes what the menu offers also replaces it. The stamp of
a choice is not used: RViz sends 0, or the time of a transform. No ROS calls; thread-safe.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, replace
from enum import IntEnum

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.web.approval import Desk

__all__ = ["SPEEDS", "Choice", "Entry", "Menu", "Offer"]

SPEEDS = (0.25, 0.5, 1.0, 2.0)
_BITS = 5
"""Bits of an id that number the entry; the nonce has the others, 31 in all: RViz passes ids through a signed int."""

NONCE_BITS = 31 - _BITS
CONTROL = "menu"


class Entry(IntEnum):
    """Entries of the menu, in their order; the speeds follow `SPEED`."""

    PREVIEW = 1
    APPROVE = 2
    EXECUTE = 3
    REPLAY = 4
    PAUSE = 5
    OUTCOME = 6
    DISCARD = 7
    SPEED = 8


_ONCE = (Entry.APPROVE, Entry.EXECUTE)


@dataclass(frozen=True)
class Offer:
    """What the menu offers.

    Attributes:
        desk: what may be done with the plan.
        playing, speed: state of the playback.
        outcomes: number of outcomes of the rollout.
    """

    desk: Desk
    playing: bool = True
    speed: float = 1.0
    outcomes: int = 0


@dataclass(frozen=True)
class Choice:
    """An accepted choice: the entry, the speed for `SPEED`, what the menu offered, and who chose."""

    entry: Entry
    speed: float
    desk: Desk
    client: str


class Menu:
    """The menu that is shown now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offer = Offer(Desk(False, False, ""))
        self._approver = ""
        self._renew()

    def _renew(self) -> None:
        self._nonce = secrets.randbits(NONCE_BITS)
        self.control = f"{CONTROL} {secrets.token_hex(16)}"
        """Name of the control, with a second random part."""

    def renew(self) -> None:
        """Replace the menu: choices of the one that was shown no longer count."""
        with self._lock:
            self._renew()

    def offer(self, offer: Offer) -> None:
        """Set what the menu offers; anything but another state of the playback replaces the menu."""
        desk = replace(offer.desk, text="")  # the text counts seconds
        with self._lock:
            if desk != self._offer.desk:
                self._renew()
            self._offer = replace(offer, desk=desk)

    def approved_by(self, client: str) -> None:
        """Set the client that approved the plan."""
        with self._lock:
            self._approver = client

    def entries(self) -> tuple[str, list[tuple[int, int, str]]]:
        """Return the control's name, and the entries as (id, id of the entry above or 0, text)."""
        with self._lock:
            offer, desk = self._offer, self._offer.desk
            plan = f" plan {desk.plan_hash[:8]}" if desk.plan_hash else ""
            several = f"Next outcome of {offer.outcomes}"
            texts = {
                Entry.PREVIEW: "Preview again",
                Entry.APPROVE: f"Approve{plan}" if desk.may_approve else "(Approve: not now)",
                Entry.EXECUTE: f"Execute{plan}" if desk.may_execute else "(Execute: approve first)",
                Entry.REPLAY: "Replay",
                Entry.PAUSE: "Pause" if offer.playing else "Continue",
                Entry.SPEED: f"Speed ({offer.speed:g} x)",
                Entry.OUTCOME: several if offer.outcomes > 1 else "(Next outcome: one only)",
                Entry.DISCARD: "Discard",
            }
            rows = [(self._id(entry), 0, text) for entry, text in texts.items()]
            above = self._id(Entry.SPEED)
            rows += [(self._id(Entry.SPEED + 1 + i), above, f"{speed:g} x") for i, speed in enumerate(SPEEDS)]
            return self.control, rows

    def _id(self, number: int) -> int:
        return self._nonce << _BITS | number

    def choose(self, entry_id: int, control: str, client: str, known: bool) -> Choice:
        """Return the choice that a client reports, if it counts; Approve and Execute use the menu up either way.

        Args:
            entry_id, control: as reported.
            client: the client's name for itself.
            known: whether a node of this name publishes feedback.

        Raises:
            KinemaError: the choice does not count; the text says why.
        """
        with self._lock:
            nonce, number = entry_id >> _BITS, entry_id & ((1 << _BITS) - 1)
            if nonce != self._nonce or control != self.control:
                raise _refuse("it is not of the menu that is shown now: used before, of an earlier preview, or foreign")
            desk = self._offer.desk
            if number in _ONCE:
                self._renew()
            if not client or not known:
                raise _refuse(f"'{client[:80]}' is not a node that publishes choices")
            if Entry.SPEED < number <= Entry.SPEED + len(SPEEDS):
                return Choice(Entry.SPEED, SPEEDS[number - Entry.SPEED - 1], desk, client)
            if number not in set(Entry) or number == Entry.SPEED:
                raise _refuse(f"the menu has no entry {number}")
            if number == Entry.EXECUTE and desk.may_execute and client != self._approver:
                raise _refuse(f"'{self._approver[:80]}' approved this plan, and only it may execute it")
            return Choice(Entry(number), 0.0, desk, client)


def _refuse(why: str) -> KinemaError:
    return KinemaError(
        f"the choice does not count: {why}",
        expected="a choice in the menu that RViz shows",
        hint="open the menu again",
        code=ErrorCode.APPROVAL_INVALID,
    )
