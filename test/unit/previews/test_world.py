"""Implausible stamps of images and scene changes."""

from __future__ import annotations

import pytest

from kinema4d_ros.previews.checks import AHEAD_NS, WorldChanges, believed

NOW = 1_700_000_000 * 10**9
FAR = (2**31 - 1) * 10**9 + 2**32 - 1


@pytest.mark.parametrize("stamp", [1, NOW - 10**12, NOW, NOW + AHEAD_NS])
def test_a_plausible_stamp_is_used(stamp: int) -> None:
    assert believed(stamp, NOW) == stamp


@pytest.mark.parametrize("stamp", [0, -(10**18), NOW + AHEAD_NS + 1, FAR])
def test_an_implausible_stamp_counts_from_its_arrival(stamp: int) -> None:
    assert believed(stamp, NOW) == NOW
    assert WorldChanges().hear(stamp, NOW) == NOW


def test_a_change_in_the_far_future_is_not_permanent() -> None:
    changes = WorldChanges()
    changes.hear(FAR, NOW)
    assert believed(NOW + 1, NOW + 1) > changes.newest_ns


def test_a_replayed_change_does_not_make_an_old_image_valid() -> None:
    changes = WorldChanges()
    changes.hear(NOW, NOW)
    assert changes.hear(NOW - 10**9, NOW + 1) == NOW


def test_a_clock_that_goes_back_resets_the_change() -> None:
    changes = WorldChanges()
    changes.hear(NOW, NOW)
    assert changes.hear(2 * 10**9, 3 * 10**9) == 2 * 10**9
