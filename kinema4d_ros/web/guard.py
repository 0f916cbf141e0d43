"""The page's front door: which requests come in, by name, origin and token, and what every answer carries.

request ── Host one of ours? ── Origin one of ours? ── signed in? ──> the page, or a WebSocket
              no: 403             no: 403                no: 401 and a page that asks for the token

The token travels once, in a header of a request to /sign-in, and never in an address: not in a history, not in a
log, not in a Referer. What the browser keeps is a cookie of this server's life, worth nothing to its successor.
"""

from __future__ import annotations

import base64
import hashlib
import http
import secrets
import socket
from collections import Counter
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Any

import viser
from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.typing import Origin

from kinema4d_ros.runtime.access import is_loopback, same_secret

__all__ = ["MAX_CONNECTIONS", "MAX_MESSAGE_BYTES", "MAX_WINDOWS", "TITLE", "BoundedConnection", "FrontDoor", "readable"]

TITLE = "Kinema4D"
MAX_REFUSED = 100
"""So many different visitors that were turned away are remembered."""

MAX_CONNECTIONS = 64
"""Sockets at once. One more, and the oldest that has not said what it wants has to go."""

MAX_WINDOWS = 16
MAX_MESSAGE_BYTES = 2**20
"""A browser tells where a slider is and which button was pressed; viser would take 50 MB."""

SIGN_IN = "/sign-in"
SOCKET_PROTOCOL = f"viser-v{viser.__version__}"

_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob: data:; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' {sockets} data: blob:;"
    " worker-src 'self' blob: data:; media-src 'self' data: blob:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
# The part of an address after # stays in the browser: http://lab-pc:8080/#TOKEN signs in by itself.
_SCRIPT = """
const field = document.querySelector('input'), told = document.querySelector('p');
async function signIn(token) {
  const answer = await fetch('/sign-in', {headers: {Authorization: 'Bearer ' + token}, cache: 'no-store'});
  if (answer.ok) location.replace('/');
  else told.textContent = 'That is not the token.';
}
field.addEventListener('keydown', event => { if (event.key === 'Enter') signIn(field.value); });
document.querySelector('button').addEventListener('click', () => signIn(field.value));
const given = decodeURIComponent(location.hash.slice(1));
if (given) { history.replaceState(null, '', '/'); signIn(given); }
"""
_SIGN_IN_PAGE = (
    f"<!doctype html><meta charset=utf-8><title>{TITLE}: sign in</title><style>body{{font:16px sans-serif;margin:4em}}"
    "</style><h1>Sign in</h1><label>Token <input type=password autofocus autocomplete=off size=40></label> "
    f"<button>Sign in</button><p>This page needs its token.</p><script>{_SCRIPT}</script>"
)
_SIGN_IN_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; script-src "
    f"'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
)


class BoundedConnection(ServerConnection):
    """A connection that gives way: of those that keep their request to themselves, the oldest goes when it is full."""

    def connection_made(self, transport: Any) -> None:
        """Take the newcomer in, and make room for it."""
        super().connection_made(transport)
        # Many arrive in one round, and those that were sent away leave only in the next.
        present = [other for other in self.server.handlers if not other.transport.is_closing()]
        if len(present) > MAX_CONNECTIONS:
            next((other for other in present if other.request is None), self).transport.abort()


class FrontDoor:
    """Looks at every request before viser does.

    Args:
        inner: viser's own look, which serves the files.
        host: address that the server listens on.
        port: and its port.
        allowed_hosts: further names by which browsers reach this machine.
        token: that a visitor has to know; "" = none.
        refused: counts who was turned away, by the origin or name they came with.
    """

    def __init__(
        self,
        inner: Callable[[Any, Request], Response | None],
        host: str,
        port: int,
        allowed_hosts: tuple[str, ...],
        token: str,
        refused: Counter[str],
    ) -> None:
        self._inner, self._token, self._refused = inner, token, refused
        names = _names(host, allowed_hosts)
        self._hosts = {f"{name}:{port}" for name in names} | (names if port == 80 else set())
        self.origins = [Origin(f"{scheme}://{name}") for name in sorted(self._hosts) for scheme in ("http", "https")]
        # A policy cannot name IPv6 addresses; 'self' covers them where the browser counts WebSockets in.
        sockets = " ".join(f"ws://{name} wss://{name}" for name in sorted(self._hosts) if "[" not in name)
        self._policy = _POLICY.format(sockets=sockets)
        # Browsers send a cookie to every port of a host: its name tells servers apart, its value is not the token.
        self._cookie, self._session = f"kinema4d_{port}", secrets.token_urlsafe(32)

    def look(self, connection: Any, request: Request) -> Any:
        """What the websockets library asks of `process_request`: an answer, or None to open the WebSocket."""
        # A foreign name that resolves to this machine (DNS rebinding) still shows in the Host header.
        named, origin = _one(request, "Host").lower(), _one(request, "Origin")
        socket_wanted = "Upgrade" in request.headers
        path = request.path.partition("?")[0]
        if named not in self._hosts:
            return self._refuse(connection, named, "This server does not go by that name.")
        if (socket_wanted or "Origin" in request.headers) and origin not in self.origins:
            return self._refuse(connection, origin, "Only this server's own page may connect.")
        if self._token and path == SIGN_IN:
            return self._sign_in(connection, request)
        if self._token and not self._signed_in(request):
            return self._ask(connection, is_page=path == "/" and not socket_wanted)
        if socket_wanted and (reason := self._no_window(connection, request)):
            return self._dressed(connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, reason + "\n"), self._policy)
        return self._serve(connection, request, path)

    def _serve(self, connection: Any, request: Request, path: str) -> Any:
        is_page = path in ("/", "/index.html")
        if is_page:
            # Sent plain, because its title is changed below; it never leaves this machine as a rule.
            _set(request.headers, "Accept-Encoding", "identity")
        try:
            response = self._inner(connection, request)
        except (ValueError, OSError):  # names that no file system has: with a NUL, or without end
            response = connection.respond(http.HTTPStatus.NOT_FOUND, "There is no such file.\n")
        if response is None:
            return None
        if is_page and response.status_code == http.HTTPStatus.OK:
            response.body = bytes(response.body).replace(b"<title>Viser</title>", f"<title>{TITLE}</title>".encode(), 1)
            _set(response.headers, "Content-Length", str(len(response.body)))
        return self._dressed(response, self._policy)

    def _refuse(self, connection: Any, who: str, why: str, status: int = http.HTTPStatus.FORBIDDEN) -> Any:
        key = who[:100].encode("ascii", "replace").decode()
        key = key if len(self._refused) < MAX_REFUSED or key in self._refused else "others"
        self._refused[key] += 1
        return self._dressed(connection.respond(status, why + "\n"), _SIGN_IN_POLICY)

    def _sign_in(self, connection: Any, request: Request) -> Any:
        if not same_secret(_one(request, "Authorization"), f"Bearer {self._token}"):
            return self._refuse(connection, "a wrong token", "That is not the token.", http.HTTPStatus.UNAUTHORIZED)
        response = connection.respond(http.HTTPStatus.OK, "Welcome.\n")
        response.headers["Set-Cookie"] = f"{self._cookie}={self._session}; Path=/; HttpOnly; SameSite=Strict"
        return self._dressed(response, _SIGN_IN_POLICY)

    def _signed_in(self, request: Request) -> bool:
        try:
            cookies = SimpleCookie(_one(request, "Cookie"))
        except CookieError:
            return False
        return self._cookie in cookies and same_secret(cookies[self._cookie].value, self._session)

    def _ask(self, connection: Any, *, is_page: bool) -> Any:
        text = _SIGN_IN_PAGE if is_page else "This page needs its token.\n"
        response = connection.respond(http.HTTPStatus.UNAUTHORIZED, text)
        _set(response.headers, "Content-Type", f"text/{'html' if is_page else 'plain'}; charset=utf-8")
        return self._dressed(response, _SIGN_IN_POLICY)

    def _no_window(self, connection: Any, request: Request) -> str:
        """Why this WebSocket gets no window; "" when it does."""
        if _one(request, "Sec-WebSocket-Protocol") != SOCKET_PROTOCOL:
            return "The page is of another version. Load it again."
        open_now = sum(1 for other in connection.server.handlers if other.state is OPEN)
        return f"There are {open_now} windows already." if open_now >= MAX_WINDOWS else ""

    def _dressed(self, response: Any, policy: str) -> Any:
        for name, value in (
            ("Content-Security-Policy", policy),
            ("X-Frame-Options", "DENY"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
        ):
            _set(response.headers, name, value)
        return response


def readable(host: str) -> str:
    """An address as it stands in a URL; that of this machine for "all of them"."""
    if host in ("", "0.0.0.0", "::"):  # noqa: S104  # nosec B104 - compared, not bound
        return "127.0.0.1" if host != "::" else "[::1]"
    return f"[{host}]" if ":" in host else host


def _names(host: str, allowed_hosts: tuple[str, ...]) -> set[str]:
    names = {"127.0.0.1", "localhost", "[::1]", *allowed_hosts}
    if not is_loopback(host):
        names |= {readable(host), socket.gethostname()}
    return {name.strip().lower() for name in names if name.strip()}


def _one(request: Request, name: str) -> str:
    """A header's value; "" for none, or for several, which no browser sends."""
    values = request.headers.get_all(name)
    return values[0] if len(values) == 1 else ""


def _set(headers: Headers, name: str, value: str) -> None:
    if name in headers:
        del headers[name]
    headers[name] = value
