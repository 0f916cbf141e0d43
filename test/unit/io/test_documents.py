"""YAML and JSON from untrusted sources: plain data of bounded size is accepted, anything else is rejected."""

from __future__ import annotations

import pytest

from kinema4d_ros.core.errors import FileFormatError
from kinema4d_ros.io.documents import MAX_DEPTH, parse_json, parse_yaml

LAUGHS = b"a: &a [x, x, x, x, x, x, x, x, x, x]\n" + b"".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n".encode() for a, b in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (LAUGHS, "more than 100,000 values"),
        (b"a: &a [*a]", "contains itself"),
        (b"a: 1\nb: 2\na: 3\n", "'a' appears twice"),
        (b"a: 0x" + b"f" * 5000, "whole number of 20000 bits"),
        (b"a: 99999999999999999999999", "whole number"),
        (b"a: " + b"[" * 200 + b"]" * 200, "nested more than"),
        (b"a: [" + b"1, " * 250_000 + b"1]", "more than 100,000 values"),
        (b"a: !!python/object/apply:os.getcwd []", "constructor"),
        (b"a: 2001-99-99 99:99:99", "month must be in"),
    ],
)
def test_yaml_that_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(FileFormatError, match=r"x\.yaml is not YAML") as caught:
        parse_yaml(data, "x.yaml")
    assert why in str(caught.value)


def test_small_aliases_are_accepted() -> None:
    assert parse_yaml(b"a: &a [1, 2]\nb: *a\nc: {d: 2026-01-31, e: 1e-05, f: 0x10}\n", "x")["b"] == [1, 2]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"a": 1', "delimiter"),
        (b"[" * 100_000, ""),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested more than"),
        (b"9" * 5000, "5000 digits"),
        (b"18446744073709551616", "65 bits"),
        (b'"\\ud800"', "surrogates"),
        (b"\xff", "utf-8"),
    ],
)
def test_json_that_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(FileFormatError, match=r"x\.json is not JSON") as caught:
        parse_json(data, "x.json")
    assert why in str(caught.value)


def test_json_that_passes() -> None:
    assert (
        parse_json('{"a": [1, 18446744073709551615, 0.5, "ä", "\\ud83d\\ude00", null]}'.encode(), "x")["a"][4] == "😀"
    )
