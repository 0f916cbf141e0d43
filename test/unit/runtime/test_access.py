"""Access to servers: addresses, host names and tokens."""

from __future__ import annotations

import pytest

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.policies import PolicyError
from kinema4d_ros.runtime.access import MIN_TOKEN_LENGTH, is_own_name, require_token, same_secret

GOOD = "x" * MIN_TOKEN_LENGTH


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_no_token(host: str) -> None:
    require_token(host, "", "SOME_TOKEN")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "lab-pc"])  # noqa: S104
@pytest.mark.parametrize("token", ["", "short", "x" * (MIN_TOKEN_LENGTH - 1), f"{GOOD} {GOOD}", f"{GOOD}\n", "ü" * 20])
def test_other_addresses_need_a_strong_token(host: str, token: str) -> None:
    with pytest.raises(KinemaError, match="SOME_TOKEN") as caught:
        require_token(host, token, "SOME_TOKEN")
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID
    assert not token or token not in str(caught.value), "the error message contains the token"


def test_a_strong_token_is_accepted_and_the_error_type_is_configurable() -> None:
    require_token("0.0.0.0", GOOD, "SOME_TOKEN")  # noqa: S104
    with pytest.raises(PolicyError) as caught:
        require_token("10.0.0.1", "", "SOME_TOKEN", PolicyError, ErrorCode.PARAMETER_INVALID)
    assert caught.value.code == ErrorCode.PARAMETER_INVALID


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "127.9.9.9", "[::1]", "[::1]:8080"])
def test_loopback_host_headers(name: str) -> None:
    assert is_own_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1@evil",
     "::1", "10.0.0.1", "localhost:port", "127.0.0.1evil.example", "[::2]:80", "127.0.0.1:8080127.0.0.1:8080"],
)  # fmt: skip
def test_other_host_headers(name: str) -> None:
    assert not is_own_name(name)


def test_same_secret_accepts_any_bytes() -> None:
    assert same_secret("Bearer a", "Bearer a")
    assert not same_secret("Bearer b", "Bearer a")
    assert not same_secret("", "Bearer a")
    assert not same_secret(b"\xff\xfe".decode("ascii", "surrogateescape"), "Bearer a")
