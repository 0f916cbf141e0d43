"""The web page's door: strangers, forged names, floods, giants and rubbish, at the page of the real viewer node.

Afterwards a real browser opens the same page, and the process has neither grown nor kept anybody's socket.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from support.browser import CHROMIUM, MISSING, Window, chromium
from support.figures import Figures
from support.knocking import (
    ask,
    can_have_own_network,
    crowd,
    in_own_network,
    listening,
    raw,
    rubbish,
    status,
    upgrade,
)
from support.proc import open_files, resident_mb
from support.ros_graph import wait_for
from support.sim_graph import NodeProcess
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from kinema4d_ros.web.guard import MAX_CONNECTIONS, MAX_WINDOWS, SOCKET_PROTOCOL
from kinema4d_ros.web.server import TOKEN_VARIABLE

pytestmark = pytest.mark.timeout(900)

WAIT_S = 120.0
GROWTH_MB = 150.0
"""Far below what any of the attacks sends; viser keeps its page in memory, plain and packed."""

Choose = Callable[[int, int], int]


@dataclass
class Served:
    """A page that runs."""

    node: NodeProcess
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def pid(self) -> int:
        return self.node.process.pid

    def socket(self, **options: Any) -> ClientConnection:
        """A WebSocket as the page's own script opens it, unless told otherwise."""
        own = {"origin": self.url, "subprotocols": [SOCKET_PROTOCOL], "max_size": None, "proxy": None}
        return connect(f"ws://127.0.0.1:{self.port}", open_timeout=WAIT_S, close_timeout=5, **{**own, **options})


def started() -> Served:
    node = NodeProcess("viewer", {"port": 0}, ["-r", "__ns:=/doors"])
    node.wait_for_line("ready")
    found = re.search(r"the page is at (http://\S+)", node.text)
    assert found is not None
    return Served(node, found[1])


@pytest.fixture(scope="module")
def page() -> Iterator[Served]:
    made = started()
    assert status(ask(made.port)) == 200
    yield made
    assert made.node.stop() == 0


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[Served, str]]:
    """A page with a token."""
    token = secrets.token_urlsafe(24)
    os.environ[TOKEN_VARIABLE] = token
    try:
        made = started()
    finally:
        del os.environ[TOKEN_VARIABLE]
    yield made, token
    assert made.node.stop() == 0


@pytest.fixture
def unharmed(page: Served) -> Iterator[Served]:
    """The page; afterwards it serves, has let go of every socket, and has not grown."""
    before_mb, before_files = resident_mb(page.pid), open_files(page.pid)
    yield page
    wait_for(lambda: open_files(page.pid) <= before_files + 2, WAIT_S, "every socket to be let go")
    assert page.node.process.poll() is None, page.node.text
    assert status(ask(page.port)) == 200
    with page.socket() as window:
        assert len(window.recv(timeout=WAIT_S)) > 0
    assert resident_mb(page.pid) - before_mb < GROWTH_MB
    assert "Traceback" not in page.node.text


def test_the_page_listens_on_loopback_alone(page: Served) -> None:
    assert listening(page.pid) == {f"127.0.0.1:{page.port}"}


@pytest.mark.skipif(not can_have_own_network(), reason="needs unshare, ip and the right to make a network namespace")
def test_another_address_of_this_machine_does_not_reach_it_without_a_token(figures: Figures) -> None:
    said = in_own_network("""
import secrets, socket
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.web.server import PageServer
from support.knocking import ask, raw, status
def reached(server, host):
    port = int(server.url.rsplit(":", 1)[1])
    try:
        return status(raw(port, f"GET / HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n".encode(), host=host))
    except ConnectionRefusedError:
        return "refused"
local = PageServer(port=0)
print("default:", reached(local, "127.0.0.1"), reached(local, "10.99.0.1"))
local.stop()
for host in ("10.99.0.1", "0.0.0.0"):
    try:
        PageServer(host, 0)
    except KinemaError as error:
        print("without:", error.what)
token = secrets.token_urlsafe(24)
wide = PageServer("10.99.0.1", 0, token=token)
print("with:", reached(wide, "10.99.0.1"))
wide.stop()
""")
    assert "default: 200 refused" in said
    assert said.count("there is no token") == 2
    assert "with: 401" in said
    figures.note("page from another address", "reached by default", 0)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1:1"},
        {"Host": "127.0.0.1.evil.example:{port}"},
        {"Host": "127.0.0.1:{port}@evil.example"},
        {"Host": ""},
        {"Host": "127.0.0.1:{port}\r\nHost: evil.example:{port}"},
        {"X-Forwarded-Host": "127.0.0.1:{port}", "Host": "evil.example:{port}"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "{own}\r\nOrigin: http://evil.example"},
        {"Origin": "\xff\xfe"},
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_forged_names_and_origins_get_nothing(
    page: Served, headers: dict[str, str], kind: str, figures: Figures
) -> None:
    forged = {name: value.format(port=page.port, own=page.url) for name, value in headers.items()}
    opening = upgrade(Origin=page.url, Sec_WebSocket_Protocol=SOCKET_PROTOCOL) if kind == "websocket" else {}
    answer = ask(page.port, headers={**opening, **forged})
    assert status(answer) == 403
    assert len(answer) < 2000, "more than a refusal"
    tried = figures.notes.get("forged Host or Origin", {}).get("refused, of those tried", "0 of 0")
    count = int(str(tried).split()[0]) + 1
    figures.note("forged Host or Origin", "refused, of those tried", f"{count} of {count}")


def test_the_honest_ones_get_in(page: Served) -> None:
    """The control of the test above: the same requests without the forgery."""
    assert status(ask(page.port)) == 200
    assert status(ask(page.port, headers={"Origin": page.url})) == 200
    with page.socket() as window:
        assert len(window.recv(timeout=WAIT_S)) > 0


OUTSIDE = [
    "/../../etc/passwd",
    "/../../../../../../../../etc/passwd",
    "/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/..%2f..%2f..%2f..%2fetc%2fpasswd",
    "/%252e%252e/%252e%252e/etc/passwd",
    "/..%5c..%5c..%5cetc%5cpasswd",
    "/..\\..\\..\\etc\\passwd",
    "//etc/passwd",
    "/etc/passwd",
    "/%2fetc%2fpasswd",
    "/./.././../etc/passwd",
    "/%c0%ae%c0%ae/%c0%ae%c0%ae/etc/passwd",
    "/index.html/../../../__init__.py",
    "/%00/etc/passwd",
    "/index.html%00.png",
    "/proc/self/environ",
    "/..%00/",
    "/" + "a/" * 2000,
    "/" + "a" * 5000,
    "http://127.0.0.1/etc/passwd",
    "file:///etc/passwd",
]


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: path[:40])
def test_no_file_outside_the_page_is_served(page: Served, path: str, figures: Figures) -> None:
    answer = ask(page.port, path)
    assert status(answer) in (400, 404)
    assert b"root:" not in answer
    assert b"import" not in answer
    figures.note("path traversal", "forms tried, none served", len(OUTSIDE))


METHODS = ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "HEAD", "PATCH", "BREW", "G" * 5000, "GET\x00")


@pytest.mark.parametrize("method", METHODS, ids=lambda method: repr(method[:8]))
def test_other_methods_get_nothing(page: Served, method: str) -> None:
    answer = ask(page.port, method=method, headers={"Content-Length": "3"})
    assert status(answer) in (0, 400, 405)
    assert b"<title>" not in answer


@pytest.mark.full
def test_silent_crowds_leave_room(unharmed: Served, full: Choose, figures: Figures) -> None:
    count = full(2000, 200)
    before_files = open_files(unharmed.pid)
    longest_s = 0.0
    for words in (b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1:", b"GET / HTTP/1.1\r\nX-Slow: a"):
        with crowd(unharmed.port, count, words):
            began = time.monotonic()
            assert status(ask(unharmed.port)) == 200, "other clients are refused"
            longest_s = max(longest_s, time.monotonic() - began)
            assert open_files(unharmed.pid) - before_files <= MAX_CONNECTIONS + 5
    figures.note("silent connections to the page", "at once", count)
    figures.note("silent connections to the page", "another visitor served after, at most (shared machine)",
                 round(longest_s, 2), "s")  # fmt: skip


@pytest.mark.full
def test_a_crowd_of_windows_is_bounded(unharmed: Served, figures: Figures) -> None:
    opened, refused = [], 0
    try:
        for _ in range(MAX_WINDOWS + 10):
            try:
                opened.append(unharmed.socket())
            except InvalidStatus as answer:
                refused += answer.response.status_code == 503
        assert len(opened) == MAX_WINDOWS
        assert refused == 10
    finally:
        for window in opened:
            window.close()
    figures.note("windows at once", "served, further ones refused", len(opened))


def test_giant_frames_end_the_connection(unharmed: Served, figures: Figures) -> None:
    """100 MB in one frame, and in frames of 0.5 MB that never end a message."""
    before_mb, most_mb = resident_mb(unharmed.pid), 0.0
    whole, pieces = b"\0" * 100_000_000, (b"\0" * (1 << 19) for _ in range(200))
    for message in (whole, pieces):
        with unharmed.socket() as window:
            with contextlib.suppress(ConnectionClosed):
                window.send(message)
            with pytest.raises(ConnectionClosed):
                wait_until_closed(window)
            assert window.close_code in (1009, 1006), "too big, or hung up while it was still being sent"
        most_mb = max(most_mb, resident_mb(unharmed.pid) - before_mb)
    assert most_mb < GROWTH_MB
    figures.note("100 MB WebSocket messages to the page", "memory grew by, at most", round(most_mb, 1), "MB")


def wait_until_closed(window: ClientConnection) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        window.recv(timeout=WAIT_S)


def send_rubbish(window: ClientConnection, chance: random.Random) -> None:
    for _ in range(5):
        window.send(chance.randbytes(chance.randrange(0, 5000)))
    window.send("text where bytes belong")
    wait_until_closed(window)


def test_rubbish_is_hung_up_on(unharmed: Served, full: Choose, figures: Figures) -> None:
    chance = random.Random(7)  # noqa: S311 - rubbish, no secret
    count = full(2000, 60)
    for _ in range(count):
        assert status(raw(unharmed.port, rubbish(chance, 3000))) in (0, 400, 403)
    for _ in range(full(200, 12)):
        # It may hang up at the first of them, while the others are still being sent.
        with unharmed.socket() as window, pytest.raises(ConnectionClosed):
            send_rubbish(window, chance)
    figures.note("rubbish sent to the page", "connections", count + full(200, 12))


def test_a_page_of_another_version_is_told_so_and_prints_nothing(page: Served) -> None:
    lines = len(page.node.lines)
    for protocol in ("viser-v0.0.1", "viser-v[bold]\x1b[31m", f"{SOCKET_PROTOCOL}, other", f"{SOCKET_PROTOCOL}x"):
        headers = upgrade(Origin=page.url, Sec_WebSocket_Protocol=protocol)
        assert status(ask(page.port, headers=headers)) in (0, 503)  # 0: no header may hold escapes
    assert not [line for line in page.node.lines[lines:] if "ersion" in line]


def test_a_token_opens_the_door_and_nothing_else_does(guarded: tuple[Served, str], figures: Figures) -> None:
    served, token = guarded
    wrong = ["", "Bearer", f"Bearer {token[:-1]}", f"Bearer {token}x", f"Basic {token}", f"Bearer {token.swapcase()}",
             token, "Bearer \xff\xff"]  # fmt: skip
    for given in wrong:
        answer = ask(served.port, "/sign-in", headers={"Authorization": given} if given else {})
        assert status(answer) == 401
        assert b"Set-Cookie" not in answer
    for path in ("/", "/index.html", f"/?token={token}", f"/{token}", "/favicon.svg"):
        for cookie in ("", f"kinema4d_{served.port}={token}", f"kinema4d_{served.port}=", "=;=;=", "\xff"):
            answer = ask(served.port, path, headers={"Cookie": cookie} if cookie else {})
            assert status(answer) == 401
            assert b"canvas" not in answer
            assert token.encode() not in answer
    with pytest.raises(InvalidStatus, match="401"):
        served.socket()

    welcome = ask(served.port, "/sign-in", headers={"Authorization": f"Bearer {token}"})
    assert status(welcome) == 200
    found = re.search(rb"Set-Cookie: ([^;]+); Path=/; HttpOnly; SameSite=Strict\r\n", welcome)
    assert found is not None
    assert token.encode() not in welcome
    cookie = found[1].decode()
    assert status(ask(served.port, headers={"Cookie": cookie})) == 200
    assert status(ask(served.port, headers={"Cookie": cookie, "Host": f"evil.example:{served.port}"})) == 403
    with served.socket(additional_headers={"Cookie": cookie}) as window:
        assert len(window.recv(timeout=WAIT_S)) > 0
    assert token not in served.node.text
    figures.note("page with a token", "wrong or missing tokens refused", len(wrong) + 5 * 5 + 1)


@pytest.mark.full
@pytest.mark.skipif(not CHROMIUM, reason=MISSING)
def test_a_browser_signs_in_by_hand_and_its_addresses_hold_no_token(guarded: tuple[Served, str]) -> None:
    served, token = guarded
    pytest.importorskip("playwright", reason="needs playwright")
    with chromium() as browser:
        window = Window(browser, served.url, wait_s=WAIT_S)
        window.page.locator("input").fill("not the token at all")
        window.press("Sign in")
        window.wait_for_text("That is not the token.")
        window.page.locator("input").fill(token)
        window.press("Sign in")
        window.page.wait_for_selector("canvas")
        assert window.page.url == served.url + "/"
        assert not [address for address in window.addresses if token in address]
        assert window.page.evaluate("document.cookie") == "", "a script could read the cookie"
    assert token not in served.node.text


@pytest.mark.long
@pytest.mark.skipif(not CHROMIUM, reason=MISSING)
def test_a_link_signs_in_and_the_attacked_page_still_opens(guarded: tuple[Served, str], unharmed: Served) -> None:
    served, token = guarded
    pytest.importorskip("playwright", reason="needs playwright")
    with chromium() as browser:
        linked = Window(browser, f"{served.url}/#{token}", wait_s=WAIT_S)
        linked.page.wait_for_selector("canvas")
        linked.wait_for_text("Approve")
        assert linked.page.url == served.url + "/"
        linked.page.close()

        plain = Window(browser, unharmed.url, wait_s=WAIT_S)
        plain.page.wait_for_selector("canvas")
        plain.wait_for_text("Approve")
        assert plain.complaints == []
        plain.page.close()
