"""The web page in a real browser, on the real graph: look, preview, approve, execute; and who may not."""

from __future__ import annotations

import http.server
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cv2
import numpy as np
import pytest
import viser
from support.browser import CHROMIUM, MISSING, Window, chromium
from support.motions import arm, wait_until_ready
from support.sim_graph import NodeProcess, running

from kinema4d_msgs.srv import Playback
from kinema4d_ros.ros import names
from kinema4d_ros.ros.client import PreviewClient
from kinema4d_ros.web.server import TOKEN_VARIABLE

pytest.importorskip("playwright", reason="needs playwright")

NODES = ("lab", "twin", "preview", "generator", "playback", "gate", "viewer")
WAIT_S = 180.0
"""WebGL on a loaded CPU is slow; nothing here asserts how slow."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not CHROMIUM, reason=MISSING),
]


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[str, NodeProcess]]:
    # Slow sources leave the CPU to the browser, which draws without a GPU.
    slow = {"joint_rate_hz": 25.0, "image_rate_hz": 2.0}
    with running(NODES, {"lab": slow, "viewer": {"port": 0, "lab": True, "max_points": 20_000}}) as made:
        yield made


@pytest.fixture(scope="module")
def graph(nodes: dict[str, NodeProcess]) -> Iterator[PreviewClient]:
    with PreviewClient() as made:
        for endpoint in (names.JOINT_STATES, names.CAMERA_IMAGE):
            made.listen(endpoint)
        made.wait_for(lambda: made.newest(names.CAMERA_IMAGE) is not None, WAIT_S, "the camera")
        wait_until_ready(made, "preview", "gate")
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


@pytest.fixture
def window(browser: Any, nodes: dict[str, NodeProcess], graph: PreviewClient) -> Iterator[Window]:
    made = Window(browser, url_of(nodes["viewer"]), wait_s=WAIT_S)
    made.page.wait_for_selector("canvas")
    made.wait_for_text("Preview pick and place")
    yield made
    made.page.close()


def url_of(viewer: NodeProcess) -> str:
    viewer.wait_for_line("the page is at")
    found = re.search(r"the page is at (http://\S+)", viewer.text)
    assert found is not None
    return found[1]


def playback(graph: PreviewClient) -> Any:
    return graph.call(names.PLAYBACK, Playback.Request(command=Playback.Request.STATUS), WAIT_S)


def scene_pixels(window: Window) -> np.ndarray:
    """What the 3D view shows, without the panels at its sides."""
    shot = window.page.screenshot(timeout=1000 * WAIT_S)
    picture = cv2.imdecode(np.frombuffer(shot, np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    height, width = picture.shape[:2]
    return picture[round(0.36 * height) :, round(0.36 * width) : round(0.64 * width)]


@pytest.mark.full
def test_a_visitor_previews_looks_approves_and_executes(window: Window, graph: PreviewClient, tmp_path: Path) -> None:
    assert window.page.title() == "Kinema4D"
    window.wait_for("() => (document.body.innerText.match(/live/g) || []).length >= 2", None, "both sources to be live")
    window.wait_until("Approve", enabled=False)
    window.wait_until("Execute", enabled=False)
    empty = scene_pixels(window)

    window.press("Preview pick and place")
    window.wait_until("Approve", enabled=True)
    window.wait_for_text("Nearest")
    position, end = window.slider()
    assert end == pytest.approx(playback(graph).duration_s, abs=0.02)
    window.wait_for(
        "now => Number(document.querySelector('[role=slider]').getAttribute('aria-valuenow')) !== now",
        position,
        "the slider to move",
    )

    def changed() -> float:
        return float((np.abs(scene_pixels(window).astype(int) - empty).max(axis=2) > 24).mean())

    graph.wait_for(lambda: changed() > 0.2, WAIT_S, "the predicted points on the page")

    before = arm(graph)[1]
    window.press("Approve")
    window.press("Execute")
    window.wait_for_text("The robot follows the plan")
    graph.wait_for(lambda: np.abs(arm(graph)[1] - before).max() > 0.2, WAIT_S, "motion")
    picture = tmp_path / "page.png"
    window.page.screenshot(path=picture, timeout=1000 * WAIT_S)
    assert picture.stat().st_size > 20_000
    assert window.complaints == []


@pytest.mark.full
def test_nothing_is_loaded_from_elsewhere(window: Window) -> None:
    assert len(window.addresses) >= 2
    outside = [a for a in window.addresses if urlsplit(a).scheme not in ("data", "blob")]
    assert {urlsplit(a).hostname for a in outside} == {"127.0.0.1"}


@pytest.mark.full
def test_the_slider_seeks_and_the_playback_pauses(window: Window, graph: PreviewClient) -> None:
    if not playback(graph).rollout_id:
        window.press("Preview motion home")
    graph.wait_for(lambda: bool(playback(graph).rollout_id), WAIT_S, "a rollout")
    window.press("Pause")
    graph.wait_for(lambda: not playback(graph).playing, WAIT_S, "the pause")
    thumb = window.page.get_by_role("slider").first
    thumb.focus()
    thumb.press("End")
    end = playback(graph).duration_s
    graph.wait_for(lambda: playback(graph).time_s == pytest.approx(end, abs=0.02), WAIT_S, "the end")
    thumb.press("Home")
    graph.wait_for(lambda: playback(graph).time_s == 0.0, WAIT_S, "the beginning")
    window.press("2x")
    graph.wait_for(lambda: playback(graph).speed == 2.0, WAIT_S, "the speed")
    window.press("Play")
    graph.wait_for(lambda: playback(graph).playing, WAIT_S, "play")
    assert window.complaints == []


@pytest.mark.full
def test_two_windows_show_the_same_until_somebody_else_changes_the_world(
    window: Window, browser: Any, nodes: dict[str, NodeProcess], graph: PreviewClient
) -> None:
    other = Window(browser, url_of(nodes["viewer"]), wait_s=WAIT_S)
    try:
        other.page.wait_for_selector("canvas")
        other.wait_for_text("Reset the scene")
        window.press("Reset the scene")
        for one in (window, other):
            one.wait_for_text("On the table: ")
            one.wait_for_text("No plan has been previewed yet")
        other.press("Preview pick and place")
        for one in (window, other):
            one.wait_until("Approve", enabled=True)
        other.press("Approve")
        window.wait_until("Execute", enabled=True)
        graph.call(names.LAB_RESET, names.LAB_RESET.interface().Request(scenario="canonical", seed=5), WAIT_S)
        for one in (window, other):
            one.wait_until("Execute", enabled=False)
            one.wait_for_text("Preview a plan first")
        assert window.complaints == other.complaints == []
    finally:
        other.page.close()


@pytest.fixture
def foreign_page() -> Iterator[str]:
    """A web page of somebody else, on the same machine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>foreign</title>")

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(timeout=10)


@pytest.mark.full
def test_another_web_page_can_neither_speak_to_it_nor_frame_it(
    browser: Any, nodes: dict[str, NodeProcess], foreign_page: str
) -> None:
    url = url_of(nodes["viewer"])
    page = browser.new_page()
    try:
        page.goto(foreign_page)
        outcome = page.evaluate(
            """([address, protocol]) => new Promise(resolve => {
                const socket = new WebSocket(address, [protocol]);
                socket.onopen = () => resolve("open");
                socket.onerror = () => resolve("refused");
            })""",
            [url.replace("http", "ws"), f"viser-v{viser.__version__}"],
        )
        assert outcome == "refused"
        page.evaluate(
            "url => { const f = document.createElement('iframe'); f.src = url; document.body.append(f); }", url
        )
        page.wait_for_timeout(1500)
        assert all(frame.locator("canvas").count() == 0 for frame in page.frames)
        assert not any(frame.url.startswith(url) for frame in page.frames)
    finally:
        page.close()


@pytest.mark.full
def test_a_page_without_a_graph_says_what_is_missing(browser: Any) -> None:
    # In a namespace of its own it hears nothing of the graph of the other tests.
    node = NodeProcess("viewer", {"port": 0, "lab": True}, ["-r", "__ns:=/alone"])
    try:
        window = Window(browser, url_of(node), wait_s=WAIT_S)
        window.page.wait_for_selector("canvas")
        window.press("Preview motion home")
        window.wait_for_text("JOINT_STATES_STALE")
        window.wait_for_text("no joint state has arrived")
        window.press("Reset the scene")
        window.wait_for_text("no server on kinema4d/lab/reset")
        window.page.close()
    finally:
        assert node.stop() == 0


def test_a_taken_port_ends_the_node_with_its_name() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        node = NodeProcess("viewer", {"port": port})
        assert node.process.wait(timeout=WAIT_S) == 2
        node.wait_for_line(f"port {port}")
        assert "'port'" in node.text


@pytest.mark.full
def test_a_page_for_the_whole_network_only_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    token = secrets.token_urlsafe(24)
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    with running(("viewer",), {"viewer": {"port": 0, "host": "0.0.0.0"}}) as alone:  # noqa: S104
        alone["viewer"].wait_for_line("Approve and Execute are disabled")
    options = {"port": 0, "host": "0.0.0.0", "allow_remote_control": True}  # noqa: S104
    with running(("viewer",), {"viewer": options}) as alone:
        alone["viewer"].wait_for_line("Any client with the token can approve and execute")
    assert token not in alone["viewer"].text


def test_a_page_for_the_whole_network_does_not_start_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    node = NodeProcess("viewer", {"port": 0, "host": "0.0.0.0"})  # noqa: S104
    assert node.process.wait(timeout=WAIT_S) == 2
    node.wait_for_line("there is no token")
    assert TOKEN_VARIABLE in node.text
