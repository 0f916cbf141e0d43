"""The policy server's door: `kinema4d policy serve` against web pages, wrong tokens, crowds, giants and rubbish.

After each attack an honest client gets its actions, and the process has neither grown nor kept a socket or thread.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.figures import Figures
from support.knocking import ask, can_have_own_network, crowd, in_own_network, listening, raw, rubbish, status, upgrade
from support.proc import open_files, resident_mb
from support.ros_graph import ROOT, wait_for
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.tables import write_trajectory
from kinema4d_ros.policies import EpisodeStart, Observation, PolicyError
from kinema4d_ros.policies.remote import TOKEN_VARIABLE, RemotePolicy
from kinema4d_ros.policies.server import MAX_CLIENTS, MAX_CONNECTIONS, PolicyServer
from kinema4d_ros.policies.wire import pack, unpack
from kinema4d_ros.robot import Robot

pytestmark = pytest.mark.timeout(900)

WAIT_S = 120.0
GROWTH_MB = 200.0
"""Of 800 MB that are sent; the largest message that is read, 32 MB, exists two or three times while it is unpacked."""

CAMERA = PinholeCamera(4, 3, [[4, 0, 2], [0, 4, 1.5], [0, 0, 1]])
Choose = Callable[[int, int], int]


@dataclass
class Served:
    """A policy server in a process of its own."""

    process: subprocess.Popen[str]
    port: int

    @property
    def pid(self) -> int:
        return self.process.pid

    def socket(self, **options: Any) -> ClientConnection:
        return connect(
            f"ws://127.0.0.1:{self.port}", open_timeout=WAIT_S, close_timeout=5, max_size=None, proxy=None, **options
        )

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory, yam: Robot) -> Path:
    path = tmp_path_factory.mktemp("policy") / "run.npz"
    times = np.arange(31) / 10
    q = yam.home_position() + np.outer(0.05 * times, [1, 1, 1, 1, 1, 1, 0])
    write_trajectory(JointTrajectory(yam.joint_names, times, q), path)
    return path


@contextlib.contextmanager
def serving(recording: Path) -> Iterator[Served]:
    command = [sys.executable, "-u", "-m", "kinema4d_ros.cli", "policy", "serve", f"replay:{recording}", "--port", "0"]
    environment = {**os.environ, TOKEN_VARIABLE: ""}
    log = recording.with_name("server.log")
    with log.open("w") as errors:
        process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=errors, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"remote:127\.0\.0\.1:(\d+) serves", line)
        assert found is not None, line + log.read_text()
        yield Served(process, int(found[1]))
        assert process.poll() is None, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(scope="module")
def server(recording: Path, yam: Robot) -> Iterator[Served]:
    with serving(recording) as made:
        assert_serves(made, yam)
        yield made


@pytest.fixture
def unharmed(server: Served, yam: Robot) -> Iterator[Served]:
    before = resident_mb(server.pid), open_files(server.pid), server.threads()
    yield server
    wait_for(lambda: open_files(server.pid) <= before[1] + 1, WAIT_S, "every socket to be let go")
    wait_for(lambda: server.threads() <= before[2] + 1, WAIT_S, "every thread to end")
    assert resident_mb(server.pid) - before[0] < GROWTH_MB
    assert_serves(server, yam)


def assert_serves(server: Served | PolicyServer, robot: Robot) -> None:
    """An honest client gets its actions."""
    client = RemotePolicy(f"127.0.0.1:{server.port}")
    client.reset(EpisodeStart(robot))
    chunk = client.act(Observation(np.zeros((3, 4, 3), np.uint8), CAMERA, robot.home_position(), 0.05, 0.0))
    assert len(chunk.times) == 10
    client.close()


def test_it_listens_on_loopback_alone(server: Served) -> None:
    assert listening(server.pid) == {f"127.0.0.1:{server.port}"}


@pytest.mark.skipif(not can_have_own_network(), reason="needs unshare, ip and the right to make a network namespace")
def test_another_address_reaches_it_with_a_token_only(recording: Path, figures: Figures) -> None:
    said = in_own_network(f"""
import secrets
from kinema4d_ros.policies.server import PolicyServer
from kinema4d_ros.robot import Robot
from support.knocking import raw, status, upgrade
def reached(server, host, *lines):
    fields = [f"{{name}}: {{value}}" for name, value in upgrade(Host=f"{{host}}:{{server.port}}").items()]
    request = "\\r\\n".join(["GET / HTTP/1.1", *fields, *lines]) + "\\r\\n\\r\\n"
    try:
        return status(raw(server.port, request.encode(), host=host, wait_s=5))
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "in"
robot = Robot.load("yam")
with PolicyServer("replay:{recording}", robot) as local:
    print("default:", reached(local, "127.0.0.1"), reached(local, "10.99.0.1"))
token = secrets.token_urlsafe(24)
with PolicyServer("replay:{recording}", robot, host="10.99.0.1", token=token) as wide:
    print("without:", reached(wide, "10.99.0.1"))
    print("with:", reached(wide, "10.99.0.1", f"Authorization: Bearer {{token}}"))
""")
    assert "default: in refused" in said
    assert "without: 401" in said
    assert "with: in" in said
    figures.note("policy server from another address", "reached by default", 0)


@pytest.mark.long
def test_a_host_for_others_without_a_token_is_refused_in_words(recording: Path) -> None:
    command = [sys.executable, "-m", "kinema4d_ros.cli", "policy", "serve", f"replay:{recording}", "--host", "0.0.0.0"]  # noqa: S104
    for token, said in (("", "there is no token"), ("short", "at least 16 characters")):
        done = subprocess.run(
            [*command, "--port", "0"],
            cwd=ROOT,
            env={**os.environ, TOKEN_VARIABLE: token},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode != 0
        assert said in done.stderr
        assert TOKEN_VARIABLE in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:{port}"},
        {"Origin": ""},
        {"Host": "evil.example"},
        {"Host": "rebound.example:{port}"},
        {"Host": "127.0.0.1.evil.example:{port}"},
        {"Host": "10.0.0.1:{port}"},
        {"Host": "127.0.0.1:{port}\r\nHost: evil.example"},
    ],
    ids=repr,
)
def test_web_pages_and_rebound_names_are_refused(server: Served, headers: dict[str, str]) -> None:
    forged = {name: value.format(port=server.port) for name, value in headers.items()}
    assert status(ask(server.port, headers={**upgrade(), **forged})) == 403


def test_a_token_is_asked_for_and_never_told(
    recording: Path, yam: Robot, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, figures: Figures
) -> None:
    token = secrets.token_urlsafe(24)
    caplog.set_level("DEBUG")
    with PolicyServer(f"replay:{recording}", yam, token=token) as server:
        wrong = ["", token, "Bearer", "Bearer ", f"Bearer {token[:-1]}", f"Bearer {token}x", f"Basic {token}",
                 f"Bearer {token.swapcase()}", "Bearer \xff\xfe"]  # fmt: skip
        for given in wrong:
            assert status(ask(server.port, headers=upgrade(**({"Authorization": given} if given else {})))) == 401
        assert status(ask(server.port, f"/?token={token}", headers=upgrade())) == 401
        monkeypatch.setenv(TOKEN_VARIABLE, token[::-1])
        with pytest.raises(PolicyError, match="401"):
            RemotePolicy(f"127.0.0.1:{server.port}").reset(EpisodeStart(yam))
        monkeypatch.setenv(TOKEN_VARIABLE, token)
        assert_serves(server, yam)
    ours = [record for record in caplog.records if record.name.startswith("kinema4d_ros")]
    assert not [record for record in ours if token in record.getMessage()]
    figures.note("policy server with a token", "wrong or missing tokens refused", len(wrong) + 2)


@pytest.mark.full
def test_silent_crowds_leave_room(unharmed: Served, full: Choose, yam: Robot, figures: Figures) -> None:
    count = full(1000, 200)
    before = unharmed.threads()
    for words in (b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1:"):
        with crowd(unharmed.port, count, words):
            assert_serves(unharmed, yam)
            # Each connection has a thread that talks and one that listens; a few are on their way out.
            assert unharmed.threads() - before <= 2 * MAX_CONNECTIONS + 20
    figures.note("silent connections to the policy server", "at once", count)


@pytest.mark.full
def test_more_clients_than_places_are_told_so(unharmed: Served, figures: Figures) -> None:
    with contextlib.ExitStack() as stack:
        inside = [stack.enter_context(unharmed.socket()) for _ in range(MAX_CLIENTS)]
        assert all(unpack(one.recv(timeout=WAIT_S))["protocol"] for one in inside)
        one_more = stack.enter_context(unharmed.socket())
        with pytest.raises(ConnectionClosed):
            one_more.recv(timeout=WAIT_S)
        assert one_more.close_code == 1013
    figures.note("clients of the policy server at once", "served, further ones told to come later", MAX_CLIENTS)


def test_giant_messages_end_the_connection(unharmed: Served, full: Choose, figures: Figures) -> None:
    before_mb, most_mb = resident_mb(unharmed.pid), 0.0
    for i in range(full(8, 2)):
        message = b"\0" * 100_000_000 if i % 2 else (b"\0" * (1 << 20) for _ in range(100))
        with unharmed.socket() as client:
            client.recv(timeout=WAIT_S)
            with contextlib.suppress(ConnectionClosed):
                client.send(message)
            with pytest.raises(ConnectionClosed):
                client.recv(timeout=WAIT_S)
            assert client.close_code in (1009, 1006), "too big, or hung up while it was still being sent"
        most_mb = max(most_mb, resident_mb(unharmed.pid) - before_mb)
    assert most_mb < GROWTH_MB
    figures.note("100 MB messages to the policy server", "memory grew by, at most", round(most_mb, 1), "MB")


def test_rubbish_gets_an_error_or_is_hung_up_on(unharmed: Served, full: Choose, figures: Figures) -> None:
    chance = random.Random(11)  # noqa: S311 - rubbish, no secret
    count = full(1000, 40)
    for _ in range(count):
        assert status(raw(unharmed.port, rubbish(chance, 3000))) in (0, 400, 403, 426)
    answered = 0
    with unharmed.socket() as client:
        client.recv(timeout=WAIT_S)
        for i in range(full(5000, 300)):
            good = pack({"type": "act", "image": np.zeros((3, 4, 3), np.uint8), "joints": np.zeros(7), "camera": {}})
            cut = chance.randrange(len(good))
            message = (chance.randbytes(200), good[:cut] + chance.randbytes(20) + good[cut:], good[:cut])[i % 3]
            client.send(message)
            answered += unpack(client.recv(timeout=WAIT_S))["type"] == "error"
    assert answered == full(5000, 300)
    figures.note("rubbish sent to the policy server", "connections", count)
    figures.note("rubbish sent to the policy server", "messages, each answered with an error", answered)
