"""viser server that accepts its own page only: own socket, request guard, bounded memory, no sharing.

viser accepts a WebSocket from any web page, so a page in another tab of the same browser could press Execute.
Here `guard.py` checks every request first: `Origin` and `Host` must name this server, no page may embed this one in a
frame, and addresses other than loopback require a token. A server that does not refuse a forged origin does not start.
"""

from __future__ import annotations

import contextlib
import http
import io
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

from kinema4d_ros.core.errors import ErrorCode, KinemaError, SetupError
from kinema4d_ros.runtime.access import is_loopback, require_token
from kinema4d_ros.web.guard import MAX_MESSAGE_BYTES, SOCKET_PROTOCOL, TITLE, BoundedConnection, FrontDoor, readable

__all__ = ["TITLE", "TOKEN_VARIABLE", "PageServer", "is_loopback"]

TOKEN_VARIABLE = "KINEMA4D_PAGE_TOKEN"  # noqa: S105  # nosec B105 - a variable's name, not a token
"""Environment variable with the page's token; parameters and command lines are readable by other users."""

CHECK_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 10.0
"""Timeout for a client to send its request."""

_patching = threading.Lock()
# websockets logs a traceback for every refused connection; they are counted instead.
_logger = logging.getLogger(f"{__name__}.connections")
_logger.setLevel(logging.CRITICAL)


class PageServer(viser.ViserServer):
    """viser server on its own socket.

    Args:
        host: address to listen on.
        port: TCP port; 0 takes any free one.
        allowed_hosts: further host names of this machine, without scheme and port.
        token: token required to sign in, "" = none; loopback needs none, every other address does.

    Raises:
        KinemaError: the address or port cannot be used, or other machines could connect without a token.
        SetupError: the installed viser or websockets cannot be guarded.
    """

    def __init__(  # nosec B107 - "" is no token
        self, host: str = "127.0.0.1", port: int = 8080, allowed_hosts: tuple[str, ...] = (), token: str = ""
    ) -> None:
        require_token(host, token, TOKEN_VARIABLE, code=ErrorCode.PARAMETER_INVALID)
        listener = _listen(host, port)
        self._bound_port = int(listener.getsockname()[1])
        self.refused: Counter[str] = Counter()
        """Number of refused requests by origin or host name."""

        def door(inner: Any) -> FrontDoor:
            return FrontDoor(inner, host, self._bound_port, allowed_hosts, token, self.refused)

        with _guarded(listener, door) as served, _quiet():
            super().__init__(host="127.0.0.1", port=0, label=TITLE, verbose=False)
        self.url = f"http://{readable(host)}:{self._bound_port}"
        try:
            self._require_guard(listener if served else None, readable(host))
        except SetupError:
            self.stop()
            raise
        self.refused.clear()

    def request_share_url(self, verbose: bool = True) -> str | None:
        """Return None: viser's tunnel would expose the buttons to the public internet."""
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
            hint="stop the process that uses it, or set parameter 'port' to another port, or to 0 for any free one",
            code=ErrorCode.PARAMETER_INVALID,
        ) from None
    return listener


@contextlib.contextmanager
def _guarded(listener: socket.socket, door: Callable[[Any], FrontDoor]) -> Iterator[list[bool]]:
    """Patch `websockets.serve` so that viser uses our socket, limits and request guard."""
    original = websockets.asyncio.server.serve
    built = _client_autobuild.ensure_client_is_built
    served: list[bool] = []

    def serve(handler: Any, _host: Any, _port: Any, *, process_request: Any, **options: Any) -> Any:
        served.append(True)
        guard = door(process_request)
        limits = {"max_size": MAX_MESSAGE_BYTES, "open_timeout": REQUEST_TIMEOUT_S}
        return original(
            handler,
            sock=listener,
            origins=guard.origins,
            process_request=guard.look,
            create_connection=BoundedConnection,
            logger=_logger,
            **{**options, **limits},
        )

    with _patching:
        websockets.asyncio.server.serve = serve  # type: ignore[assignment, misc]
        # The package contains a built client. Building it again would download a tool chain.
        _client_autobuild.ensure_client_is_built = lambda: None
        try:
            yield served
        finally:
            websockets.asyncio.server.serve = original  # type: ignore[misc]
            _client_autobuild.ensure_client_is_built = built


def _forged_status(host: str, port: int) -> int:
    """Return the HTTP status of a WebSocket request with a forged origin; 0 without a response."""
    request = (
        f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nOrigin: http://forged.invalid\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        f"Sec-WebSocket-Protocol: {SOCKET_PROTOCOL}\r\n\r\n"
    )
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=CHECK_TIMEOUT_S) as connection:
            connection.sendall(request.encode())
            return int(connection.recv(64).split()[1])
    except (OSError, ValueError, IndexError):
        return 0


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the banner that viser prints to stdout."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
