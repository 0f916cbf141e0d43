from __future__ import annotations

import doctest

import pytest

from kinema4d_ros.core import errors
from kinema4d_ros.core.errors import ErrorCode, KinemaError


def test_the_text_has_code_what_expected_and_hint() -> None:
    error = KinemaError("the value is -1", expected="a positive one", hint="count again", code=ErrorCode.FILE_MISSING)
    assert str(error) == "[FILE_MISSING] the value is -1; expected a positive one (count again)"
    assert (error.what, error.expected, error.hint) == ("the value is -1", "a positive one", "count again")
    assert isinstance(error, Exception)


def test_expected_and_hint_are_optional() -> None:
    assert str(KinemaError("it broke")) == "[UNKNOWN] it broke"
    assert str(KinemaError("it broke", hint="mend it")) == "[UNKNOWN] it broke (mend it)"


CHILDREN = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]


@pytest.mark.parametrize("kind", CHILDREN)
def test_every_error_has_a_default_code_and_one_base_class(kind: type[KinemaError]) -> None:
    assert issubclass(kind, KinemaError)
    assert kind("x").code is kind.default_code
    assert kind("x", code=ErrorCode.NONE).code is ErrorCode.NONE
    if kind is not KinemaError:
        assert kind.default_code is not ErrorCode.UNKNOWN


def test_codes_fit_the_message_field_and_none_is_zero() -> None:
    assert ErrorCode.NONE == 0
    assert all(0 <= code < 2**16 for code in ErrorCode)
    assert len({int(code) for code in ErrorCode}) == len(ErrorCode)


def test_docstring_examples_hold() -> None:
    result = doctest.testmod(errors)
    assert result.attempted > 0
    assert result.failed == 0
