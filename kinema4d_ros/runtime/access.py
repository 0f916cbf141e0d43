"""Who may reach a server of ours: this machine without more ado, any other only with a token."""

from __future__ import annotations

import hmac
import ipaddress
import re

from kinema4d_ros.core.errors import ErrorCode, KinemaError

__all__ = ["MIN_TOKEN_LENGTH", "is_loopback", "is_own_name", "require_token", "same_secret"]

MIN_TOKEN_LENGTH = 16
"""Characters: a shorter token could be found by trying, from another machine."""

_TOKEN = re.compile(r"[\x21-\x7e]+")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_own_name(host_header: str) -> bool:
    """Whether an HTTP `Host` header names this machine's loopback; a name that only resolves to it does not.

    >>> is_own_name("localhost:8080"), is_own_name("[::1]:8080"), is_own_name("rebound.example:8080")
    (True, True, False)
    """
    found = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9.-]+))(?::\d{1,5})?", host_header.strip().lower())
    return found is not None and is_loopback(found[1] or found[2])


def same_secret(given: str, expected: str) -> bool:
    """Compares in a time that does not tell how much was right; whatever bytes came over the wire."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode("utf-8", "surrogateescape"))


def require_token(
    host: str,
    token: str,
    variable: str,
    error: type[KinemaError] = KinemaError,
    code: ErrorCode = ErrorCode.ARGUMENT_INVALID,
) -> None:
    """Refuse an address that other machines can reach unless a token that cannot be guessed goes with it.

    Raises:
        KinemaError: or the given child of it: there is no token, or a weak one; the message never holds the token.
    """
    if is_loopback(host):
        return
    hint = f"export {variable}=$(python3 -c 'import secrets; print(secrets.token_urlsafe(24))') makes a good one"
    if not token:
        raise error(
            f"host {host} can be reached from other machines and there is no token",
            expected=f"127.0.0.1, or a token in the environment variable {variable}",
            hint=hint,
            code=code,
        )
    if len(token) < MIN_TOKEN_LENGTH or not _TOKEN.fullmatch(token):
        raise error(
            f"the token in {variable} has {len(token)} characters, or some that are no letters, digits or signs",
            expected=f"at least {MIN_TOKEN_LENGTH} characters of ASCII without spaces",
            hint=hint,
            code=code,
        )
