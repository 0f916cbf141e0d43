"""Access rules for servers: loopback needs no token; every other address does."""

from __future__ import annotations

import hmac
import ipaddress
import re

from kinema4d_ros.core.errors import ErrorCode, KinemaError

__all__ = ["MIN_TOKEN_LENGTH", "is_loopback", "is_own_name", "require_token", "same_secret"]

MIN_TOKEN_LENGTH = 16
"""Minimum length in characters; a shorter token could be guessed over the network."""

_TOKEN = re.compile(r"[\x21-\x7e]+")


def is_loopback(host: str) -> bool:
    """Return True if the address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_own_name(host_header: str) -> bool:
    """Return True if an HTTP `Host` header is "localhost" or a loopback address, not a name that resolves to one.

    >>> is_own_name("localhost:8080"), is_own_name("[::1]:8080"), is_own_name("rebound.example:8080")
    (True, True, False)
    """
    found = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9.-]+))(?::\d{1,5})?", host_header.strip().lower())
    return found is not None and is_loopback(found[1] or found[2])


def same_secret(given: str, expected: str) -> bool:
    """Compare two secrets in constant time; accepts any received bytes."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode("utf-8", "surrogateescape"))


def require_token(
    host: str,
    token: str,
    variable: str,
    error: type[KinemaError] = KinemaError,
    code: ErrorCode = ErrorCode.ARGUMENT_INVALID,
) -> None:
    """Reject a non-loopback address without a strong token.

    Raises:
        KinemaError: or the given subclass: the token is missing or weak; the message never contains the token.
    """
    if is_loopback(host):
        return
    hint = f"export {variable}=$(python3 -c 'import secrets; print(secrets.token_urlsafe(24))') generates one"
    if not token:
        raise error(
            f"host {host} can be reached from other machines and there is no token",
            expected=f"127.0.0.1, or a token in the environment variable {variable}",
            hint=hint,
            code=code,
        )
    if len(token) < MIN_TOKEN_LENGTH or not _TOKEN.fullmatch(token):
        raise error(
            f"the token in {variable} has {len(token)} characters, or contains spaces or non-ASCII characters",
            expected=f"at least {MIN_TOKEN_LENGTH} characters, printable ASCII without spaces",
            hint=hint,
            code=code,
        )
