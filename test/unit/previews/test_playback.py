"""Playback clock: frames in order, loops, pauses, seeks and speeds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.previews.playback import HOLD_S, PlaybackClock

TIMES = np.arange(11) * 0.1


@pytest.fixture
def clock() -> PlaybackClock:
    made = PlaybackClock()
    made.load(TIMES + 100.0, now_s=50.0)
    return made


def test_nothing_to_play() -> None:
    clock = PlaybackClock()
    assert clock.frame(1.0) is None
    assert clock.duration_s == 0.0


def test_frames_come_at_their_times_and_loop(clock: PlaybackClock) -> None:
    assert [clock.frame(50.0 + t) for t in (0.0, 0.05, 0.1, 0.55, 1.0, 1.9)] == [0, 0, 1, 5, 10, 10]
    assert clock.frame(50.0 + 1.0 + HOLD_S + 0.25) == 2
    assert clock.position_s(50.0 + 1.5) == pytest.approx(1.0)


def test_pause_seek_and_play(clock: PlaybackClock) -> None:
    clock.pause(50.35)
    assert clock.frame(50.35) == clock.frame(99.0) == 3
    clock.seek(0.8, 99.0)
    assert clock.frame(200.0) == 8
    clock.play(200.0)
    assert clock.frame(200.1) == 9


def test_speed_changes_without_a_jump(clock: PlaybackClock) -> None:
    clock.set_speed(0.5, 50.4)
    assert clock.position_s(50.4) == pytest.approx(0.4)
    assert clock.position_s(50.8) == pytest.approx(0.6)
    clock.set_speed(2.0, 50.8)
    assert clock.position_s(50.9) == pytest.approx(0.8)


@pytest.mark.parametrize("speed", [0.0, -1.0, 11.0, float("nan"), float("inf")])
def test_bad_speeds(clock: PlaybackClock, speed: float) -> None:
    with pytest.raises(KinemaError) as caught:
        clock.set_speed(speed, 50.0)
    assert caught.value.code == ErrorCode.PLAYBACK_BAD_COMMAND


@pytest.mark.parametrize("position", [-0.1, 1.1, float("nan")])
def test_bad_seeks(clock: PlaybackClock, position: float) -> None:
    with pytest.raises(KinemaError) as caught:
        clock.seek(position, 50.0)
    assert caught.value.code == ErrorCode.PLAYBACK_BAD_COMMAND


@given(st.lists(st.tuples(st.sampled_from(["pause", "play", "seek", "speed"]), st.floats(0.0, 5.0)), max_size=30))
def test_the_frame_is_always_one_of_the_rollout_s(commands: list[tuple[str, float]]) -> None:
    clock = PlaybackClock()
    clock.load(TIMES, 0.0)
    now = 0.0
    for command, value in commands:
        now += value
        if command == "seek":
            clock.seek(value / 5.0, now)
            assert clock.position_s(now) == pytest.approx(value / 5.0)
        elif command == "speed":
            clock.set_speed(value + 0.1, now)
        elif command == "pause":
            clock.pause(now)
        else:
            clock.play(now)
        frame = clock.frame(now)
        assert frame is not None
        assert 0 <= frame < len(TIMES)
        assert 0.0 <= clock.position_s(now) <= clock.duration_s + 1e-9


def test_an_outcome_is_chosen_and_a_new_rollout_starts_with_the_first(clock: PlaybackClock) -> None:
    clock.load(TIMES, 50.0, outcomes=3)
    clock.pause(50.5)
    clock.show_outcome(2.0)
    assert (clock.outcome, clock.frame(60.0)) == (2, 5)
    clock.load(TIMES, 60.0, outcomes=2)
    assert clock.outcome == 0


@pytest.mark.parametrize("number", [-1.0, 0.5, 2.0, float("nan"), float("inf")])
def test_an_outcome_that_the_rollout_lacks_is_refused(clock: PlaybackClock, number: float) -> None:
    clock.load(TIMES, 50.0, outcomes=2)
    clock.show_outcome(1)
    with pytest.raises(KinemaError, match="a whole number from 0 to 1") as caught:
        clock.show_outcome(number)
    assert caught.value.code == ErrorCode.PLAYBACK_BAD_COMMAND
    assert clock.outcome == 1


def test_a_rollout_without_outcomes_has_only_its_own_frames(clock: PlaybackClock) -> None:
    clock.show_outcome(0)
    with pytest.raises(KinemaError, match="states no others"):
        clock.show_outcome(1)
