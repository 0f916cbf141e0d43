"""Request guard of the page: checks Host, Origin and token, and sets the security headers of every response.

request ── Host allowed? ── Origin allowed? ── signed in? ──> the page, or a WebSocket
             no: 403          no: 403            no: 401 and the sign-in page

The token is sent once, in a header of a request to /sign-in, and never in a URL, so it appears in no history, log or
Referer. The browser keeps a session cookie that is valid until the server restarts.
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
"""Maximum number of distinct refused origins that are counted."""

MAX_CONNECTIONS = 64
"""Maximum number of sockets; one more closes the oldest socket that has not sent a request."""

MAX_WINDOWS = 16
MAX_MESSAGE_BYTES = 2**20
"""Browsers only send slider positions and button clicks; viser would accept 50 MB."""

SIGN_IN = "/sign-in"
SOCKET_PROTOCOL = f"viser-v{viser.__version__}"

_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob: data:; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' {sockets} data: blob:;"
    " worker-src 'self' blob: data:; media-src 'self' data: blob:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
# The part of a URL after # stays in the browser: http://lab-pc:8080/#TOKEN signs in automatically.
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
    """Connection with a limit on their number: when exceeded, the oldest one without a request is closed."""

    def connection_made(self, transport: Any) -> None:
        """Accept the connection, and close another one when there are too many."""
        super().connection_made(transport)
        # Many arrive in one event loop iteration, and closed ones are removed only in the next.
        present = [other for other in self.server.handlers if not other.transport.is_closing()]
        if len(present) > MAX_CONNECTIONS:
            next((other for other in present if other.request is None), self).transport.abort()


class FrontDoor:
    """Check of every request before viser handles it.

    Args:
        inner: viser's `process_request`, which serves the files.
        host: address that the server listens on.
        port: port that the server listens on.
        allowed_hosts: further host names of this machine.
        token: token required to sign in; "" = none.
        refused: counts refused requests by their origin or host name.
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
        # A policy cannot contain IPv6 addresses; 'self' covers them in browsers that apply it to WebSockets.
        sockets = " ".join(f"ws://{name} wss://{name}" for name in sorted(self._hosts) if "[" not in name)
        self._policy = _POLICY.format(sockets=sockets)
        # Browsers send a cookie to every port of a host: the name identifies the server, the value is not the token.
        self._cookie, self._session = f"kinema4d_{port}", secrets.token_urlsafe(32)

    def look(self, connection: Any, request: Request) -> Any:
        """Handle a request (the `process_request` of websockets): return a response, or None to open the WebSocket."""
        # A foreign name that resolves to this machine (DNS rebinding) is visible in the Host header.
        named, origin = _one(request, "Host").lower(), _one(request, "Origin")
        socket_wanted = "Upgrade" in request.headers
        path = request.path.partition("?")[0]
        if named not in self._hosts:
            return self._refuse(connection, named, "Host name not allowed.")
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
            # Uncompressed, because the title is replaced below; the connection is usually local.
            _set(request.headers, "Accept-Encoding", "identity")
        try:
            response = self._inner(connection, request)
        except (ValueError, OSError):  # invalid file names: with a NUL, or too long
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
        """Return why this WebSocket is refused; "" when it is accepted."""
        if _one(request, "Sec-WebSocket-Protocol") != SOCKET_PROTOCOL:
            return "The page has another version. Reload it."
        open_now = sum(1 for other in connection.server.handlers if other.state is OPEN)
        return f"Too many windows: {open_now} are open." if open_now >= MAX_WINDOWS else ""

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
    """Return an address as written in a URL; the loopback address for a wildcard address."""
    if host in ("", "0.0.0.0", "::"):  # noqa: S104  # nosec B104 - compared, not bound
        return "127.0.0.1" if host != "::" else "[::1]"
    return f"[{host}]" if ":" in host else host


def _names(host: str, allowed_hosts: tuple[str, ...]) -> set[str]:
    names = {"127.0.0.1", "localhost", "[::1]", *allowed_hosts}
    if not is_loopback(host):
        names |= {readable(host), socket.gethostname()}
    return {name.strip().lower() for name in names if name.strip()}


def _one(request: Request, name: str) -> str:
    """Return a header's value; "" for none or for several, which no browser sends."""
    values = request.headers.get_all(name)
    return values[0] if len(values) == 1 else ""


def _set(headers: Headers, name: str, value: str) -> None:
    if name in headers:
        del headers[name]
    headers[name] = value
