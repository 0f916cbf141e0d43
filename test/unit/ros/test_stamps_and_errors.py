"""Messages of times and errors: nanoseconds and codes are preserved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinema4d_msgs.msg import ErrorCode as ErrorCodeMsg
from kinema4d_ros.core.errors import ErrorCode, KinemaError, TrajectoryError
from kinema4d_ros.ros.messages.errors import error_from_msg, error_to_msg, raise_from_msg
from kinema4d_ros.ros.messages.stamps import duration_from_ns, header, nanoseconds, seconds, seconds_to_ns, time_from_ns


@given(st.integers(0, 2**31 * 10**9 - 1))
def test_times_keep_every_nanosecond(ns: int) -> None:
    assert nanoseconds(time_from_ns(ns)) == ns
    assert header(ns, "a").stamp == time_from_ns(ns)


@given(st.integers(-(10**18), 10**18))
def test_durations_keep_every_nanosecond_and_sign(ns: int) -> None:
    message = duration_from_ns(ns)
    assert nanoseconds(message) == ns
    assert 0 <= message.nanosec < 10**9


@given(st.integers(0, 10**15))
def test_float_seconds_round_to_their_nanosecond(ns: int) -> None:
    assert seconds_to_ns(seconds(duration_from_ns(ns))) == ns


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e12])
def test_times_outside_the_range_of_ros_are_refused(bad: float) -> None:
    with pytest.raises(TrajectoryError, match="does not fit") as caught:
        seconds_to_ns([0.0, bad])
    assert caught.value.code == ErrorCode.TRAJECTORY_NOT_FINITE


@pytest.mark.parametrize("code", [c for c in ErrorCode if c is not ErrorCode.NONE])
def test_every_code_round_trips(code: ErrorCode) -> None:
    sent = KinemaError("the cup is blue", expected="a red cup", hint="paint it", code=code)
    message = error_to_msg(sent)
    assert message.code == getattr(ErrorCodeMsg, code.name)
    received = error_from_msg(message)
    assert received is not None
    assert received.code == code
    assert str(received) == str(sent)


def test_no_error_round_trips_to_none() -> None:
    message = error_to_msg()
    assert (message.code, message.message) == (0, "")
    assert error_from_msg(message) is None
    raise_from_msg(message)


def test_a_surprise_keeps_its_type_and_text() -> None:
    with pytest.raises(KinemaError, match="ZeroDivisionError: by zero") as caught:
        raise_from_msg(error_to_msg(ZeroDivisionError("by zero")))
    assert caught.value.code == ErrorCode.UNKNOWN


def test_an_unknown_code_of_a_newer_peer_is_reported() -> None:
    error = error_from_msg(ErrorCodeMsg(code=64999, message="something new"))
    assert error is not None
    assert "something new" in str(error)
    assert "64999" in str(error)
