"""A viser server that only its own page can speak to: own socket, checked origins, no framing, no sharing.

viser accepts a WebSocket from any web page, so a page in another tab of the same browser could press Execute.
Here the browser's `Origin` and `Host` must name this server, no page may put this one into a frame, and the
page may load nothing from elsewhere. A server that does not refuse a forged origin does not start.
"""

from __future__ import annotations

import contextlib
import http
import io
import ipaddress
import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import viser
import websockets.asyncio.server
from viser import _client_autobuild
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.typing import Origin

from kinema4d_ros.errors import ErrorCode, KinemaError, SetupError

__all__ = ["TITLE", "PageServer", "is_loopback"]

TITLE = "Kinema4D"
CHECK_TIMEOUT_S = 5.0
MAX_REFUSED = 100
"""So many different visitors that were turned away are remembered."""

_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob: data:; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' {sockets} data: blob:;"
    " worker-src 'self' blob: data:; media-src 'self' data: blob:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
_patching = threading.Lock()
# The library logs a traceback for every visitor that is turned away; we count them instead.
_logger = logging.getLogger(f"{__name__}.connections")
_logger.setLevel(logging.CRITICAL)


class PageServer(viser.ViserServer):
    """A viser server on a socket of its own.

    Args:
        host: address to listen on.
        port: TCP port; 0 takes any free one.
        allowed_hosts: further names by which browsers reach this machine, without scheme and port.

    Raises:
        KinemaError: the address or port cannot be used.
        SetupError: the installed viser or websockets does not let itself be guarded.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 8080, allowed_hosts: tuple[str, ...] = ()) -> None:
        listener = _listen(host, port)
        self._bound_port = int(listener.getsockname()[1])
        names = _names(host, allowed_hosts)
        hosts = {f"{name}:{self._bound_port}" for name in names}
        if self._bound_port == 80:
            hosts |= names
        self.refused: Counter[str] = Counter()
        """Requests that were turned away, by the origin or name they came with."""
        with _guarded(listener, hosts, self.refused) as served, _quiet():
            super().__init__(host="127.0.0.1", port=0, label=TITLE, verbose=False)
        self.url = f"http://{_readable(host)}:{self._bound_port}"
        try:
            self._require_guard(listener if served else None, _readable(host))
        except SetupError:
            self.stop()
            raise
        self.refused.clear()

    def request_share_url(self, verbose: bool = True) -> str | None:
        """Refused: viser's tunnel would put the buttons on the public internet."""
        return None

    def stop(self) -> None:
        """Close all connections."""
        with _quiet():
            super().stop()

    def _require_guard(self, listener: socket.socket | None, host: str) -> None:
        status = 0 if listener is None else _forged_status(host, self._bound_port)
        if status != http.HTTPStatus.FORBIDDEN:
            raise SetupError(
                f"the page would accept commands from other web pages (forged origin: {status or 'own socket unused'})",
                expected="403 for a WebSocket with a foreign Origin",
                hint=f"install the locked viser and websockets; found viser {viser.__version__}",
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise KinemaError(
            f"parameter 'host' is {host!r}: {error.strerror or error}",
            expected="an address of this machine, such as 127.0.0.1",
            code=ErrorCode.PARAMETER_INVALID,
        ) from None
    if os.name != "nt":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        # Two servers may bind the same port before one of them listens; only one can listen.
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise KinemaError(
            f"the page cannot listen on {host} port {port}: {error.strerror or error}",
            expected="a free port",
            hint="end what uses it, or set parameter 'port' to another one, or to 0 for any free one",
            code=ErrorCode.PARAMETER_INVALID,
        ) from None
    return listener


def _names(host: str, allowed_hosts: tuple[str, ...]) -> set[str]:
    names = {"127.0.0.1", "localhost", "[::1]", *allowed_hosts}
    if not is_loopback(host):
        names |= {_readable(host), socket.gethostname()}
    return {name.strip().lower() for name in names if name.strip()}


def _readable(host: str) -> str:
    if host in ("", "0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return "127.0.0.1" if host != "::" else "[::1]"
    return f"[{host}]" if ":" in host else host


@contextlib.contextmanager
def _guarded(listener: socket.socket, hosts: set[str], refused: Counter[str]) -> Iterator[list[bool]]:
    """While it lasts, viser's call of `serve` gets our socket, our origins and our look at every request."""
    original = websockets.asyncio.server.serve
    built = _client_autobuild.ensure_client_is_built
    served: list[bool] = []

    def serve(handler: Any, _host: Any, _port: Any, *, process_request: Any, **options: Any) -> Any:
        served.append(True)
        return original(
            handler,
            sock=listener,
            origins=_origins(hosts),
            process_request=_front_door(process_request, hosts, refused),
            logger=_logger,
            **options,
        )

    with _patching:
        websockets.asyncio.server.serve = serve  # type: ignore[assignment, misc]
        # The client comes built with the package. Building it again would fetch a tool chain.
        _client_autobuild.ensure_client_is_built = lambda: None
        try:
            yield served
        finally:
            websockets.asyncio.server.serve = original  # type: ignore[misc]
            _client_autobuild.ensure_client_is_built = built


def _origins(hosts: set[str]) -> list[Origin]:
    return [Origin(f"{scheme}://{host}") for host in sorted(hosts) for scheme in ("http", "https")]


def _front_door(
    inner: Callable[[Any, Request], Response | None], hosts: set[str], refused: Counter[str]
) -> Callable[[Any, Request], Any]:
    origins = set(_origins(hosts))
    # A policy cannot name IPv6 addresses; 'self' covers them where the browser counts WebSockets in.
    policy = _POLICY.format(sockets=" ".join(f"ws://{host} wss://{host}" for host in sorted(hosts) if "[" not in host))

    def refuse(connection: Any, who: str, why: str) -> Any:
        key = who[:100] if len(refused) < MAX_REFUSED or who[:100] in refused else "others"
        refused[key] += 1
        return connection.respond(http.HTTPStatus.FORBIDDEN, why + "\n")

    def look(connection: Any, request: Request) -> Any:
        # A foreign name that resolves to this machine (DNS rebinding) still shows in the Host header.
        named, origin = request.headers.get("Host", "").lower(), request.headers.get("Origin", "")
        if named not in hosts:
            return refuse(connection, named, "This server does not go by that name.")
        if "Upgrade" in request.headers and origin not in origins:
            return refuse(connection, origin, "Only this server's own page may connect.")
        is_page = request.path.partition("?")[0] in ("/", "/index.html")
        if is_page:
            # Sent plain, because its title is changed below; it never leaves this machine as a rule.
            _set(request.headers, "Accept-Encoding", "identity")
        response = inner(connection, request)
        if response is None:
            return None
        if is_page and response.status_code == http.HTTPStatus.OK:
            response.body = bytes(response.body).replace(b"<title>Viser</title>", f"<title>{TITLE}</title>".encode(), 1)
            _set(response.headers, "Content-Length", str(len(response.body)))
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

    return look


def _set(headers: Headers, name: str, value: str) -> None:
    if name in headers:
        del headers[name]
    headers[name] = value


def _forged_status(host: str, port: int) -> int:
    """HTTP status with which the server answers a WebSocket of another web page; 0 without an answer."""
    request = (
        f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nOrigin: http://forged.invalid\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        f"Sec-WebSocket-Protocol: viser-v{viser.__version__}\r\n\r\n"
    )
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=CHECK_TIMEOUT_S) as connection:
            connection.sendall(request.encode())
            return int(connection.recv(64).split()[1])
    except (OSError, ValueError, IndexError):
        return 0


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """viser prints a banner to stdout, which belongs to the one who started us."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
