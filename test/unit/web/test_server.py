"""The page's server: allowed origins, response headers and listening address."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import Iterator

import pytest
import viser
import websockets
from websockets.asyncio.client import connect

from kinema4d_ros.core.errors import ErrorCode, KinemaError, SetupError
from kinema4d_ros.web import server as module
from kinema4d_ros.web.server import TITLE, PageServer, is_loopback


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    server = PageServer(port=0)
    yield server
    server.stop()


def port_of(server: PageServer) -> int:
    return int(server.url.rsplit(":", 1)[1])


def get(server: PageServer, path: str = "/", host: str | None = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=20)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port_of(server)}"})
    return connection.getresponse()


def knock(server: PageServer, origin: str | None, host: str | None = None) -> str:
    """Return "in" when the server accepts a WebSocket of that origin, otherwise the HTTP status."""

    async def attempt() -> str:
        try:
            async with connect(
                f"ws://127.0.0.1:{port_of(server)}",
                origin=origin,
                additional_headers={"Host": host} if host else None,
                subprotocols=[f"viser-v{viser.__version__}"],
                max_size=None,
                open_timeout=20,
            ) as connection:
                await asyncio.wait_for(connection.recv(), 20)
                return "in"
        except websockets.exceptions.InvalidStatus as refusal:
            return str(refusal.response.status_code)

    return asyncio.run(attempt())


def test_the_page_itself_may_connect(server: PageServer) -> None:
    assert knock(server, server.url) == "in"
    assert knock(server, f"http://localhost:{port_of(server)}") == "in"


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://evil.example:443",
        "null",
        "http://127.0.0.1",
        "http://127.0.0.1:1",
        "http://127.0.0.1.evil.example:{port}",
        "file://",
        "",
        None,
    ],
)
def test_a_forged_origin_is_refused(server: PageServer, origin: str | None) -> None:
    before = sum(server.refused.values())
    assert knock(server, origin.format(port=port_of(server)) if origin else origin) == "403"
    assert sum(server.refused.values()) == before + 1


def test_other_host_names_are_refused(server: PageServer) -> None:
    assert get(server, host=f"rebound.example:{port_of(server)}").status == 403
    assert get(server, host="127.0.0.1").status == 403


def test_security_headers_forbid_framing_and_external_content(server: PageServer) -> None:
    answer = get(server)
    body = answer.read()
    assert answer.status == 200
    assert f"<title>{TITLE}</title>".encode() in body
    assert answer.headers["X-Frame-Options"] == "DENY"
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
    assert policy["frame-ancestors"] == "'none'"
    assert policy["default-src"] == "'none'"
    for directive, sources in policy.items():
        hosts = [s for s in sources.split() if "://" in s]
        assert all(s.split("://")[1].split(":")[0] in ("127.0.0.1", "localhost") for s in hosts), directive
        assert "*" not in sources


def test_files_outside_the_client_are_not_served(server: PageServer) -> None:
    assert get(server, "/../__init__.py").status == 404
    assert get(server, "/%2e%2e/%2e%2e/__init__.py").status == 404


def test_a_tunnel_to_the_internet_is_refused(server: PageServer) -> None:
    assert server.request_share_url() is None


def test_the_error_of_a_used_port_names_its_parameter(server: PageServer) -> None:
    with pytest.raises(KinemaError, match=rf"port {port_of(server)}: .*'port'") as caught:
        PageServer(port=port_of(server))
    assert caught.value.code == ErrorCode.PARAMETER_INVALID


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(KinemaError, match=r"192\.0\.2\.1") as caught:
        PageServer("192.0.2.1", 0)
    assert caught.value.code == ErrorCode.PARAMETER_INVALID


def test_further_host_names_must_be_listed() -> None:
    server = PageServer(port=0, allowed_hosts=("lab-pc",))
    try:
        assert knock(server, f"http://lab-pc:{port_of(server)}") == "in"
        assert knock(server, f"http://other-pc:{port_of(server)}") == "403"
    finally:
        server.stop()


def test_a_server_that_cannot_be_guarded_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_forged_status", lambda _host, _port: 101)
    with pytest.raises(SetupError, match="other web pages"):
        PageServer(port=0)


def test_stop_frees_the_port() -> None:
    server = PageServer(port=0)
    port = port_of(server)
    server.stop()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_loopback_addresses_are_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "lab-pc", "::", ""])  # noqa: S104
def test_other_addresses_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)
