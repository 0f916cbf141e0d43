"""Hostile clients of a server: raw requests, silent connections, forged names; and its listening sockets."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.ros_graph import ROOT

WAIT_S = 60.0
"""Timeout against hangs, seconds; no test asserts the response time."""

LISTENING = "0A"


def raw(port: int, data: bytes, *, host: str = "127.0.0.1", wait_s: float = WAIT_S) -> bytes:
    """Return the bytes that the server sends until it closes the connection."""
    answer = b""
    with socket.create_connection((host, port), timeout=wait_s) as connection:
        try:
            connection.sendall(data)
            while part := connection.recv(65536):
                answer += part
        except ConnectionError:  # closed while data was in flight
            return answer
    return answer


def status(answer: bytes) -> int:
    """Return the HTTP status of a response; 0 without one."""
    parts = answer.split(maxsplit=2)
    return int(parts[1]) if len(parts) > 1 and parts[0].startswith(b"HTTP/") else 0


def ask(port: int, path: str = "/", *, method: str = "GET", headers: Mapping[str, str] | None = None) -> bytes:
    """Send one request with the correct Host, unless another is given."""
    fields = {"Host": f"127.0.0.1:{port}", "Connection": "close", **(headers or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return raw(port, ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


def upgrade(**further: str) -> dict[str, str]:
    """Return headers of a WebSocket handshake; `Origin`, `Sec_WebSocket_Protocol` and others may be added."""
    own = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    own["Sec-WebSocket-Key"] = "AAAAAAAAAAAAAAAAAAAAAA=="
    return own | {name.replace("_", "-"): value for name, value in further.items()}


@contextlib.contextmanager
def crowd(port: int, count: int, first_words: bytes) -> Iterator[list[socket.socket]]:
    """Open connections that send a few bytes and then nothing; includes those closed by the server."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WAIT_S))
            with contextlib.suppress(ConnectionError):
                one.sendall(first_words)
            made.append(one)
        yield made


def rubbish(chance: random.Random, size: int) -> bytes:
    """Return random bytes, some of them after the beginning of an HTTP request or a TLS record."""
    start = chance.choice((b"", b"GET / HTTP/1.1\r\nHost: ", b"\x16\x03\x01"))
    return start + chance.randbytes(chance.randrange(1, size)) + b"\r\n\r\n"


def listening(pid: int) -> set[str]:
    """Return addresses ("127.0.0.1:8080") of a process's listening TCP sockets, from the kernel."""
    own = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            own.add(str(handle.readlink()))
    return {f"{address}:{port}" for address, port, inode in _listeners() if f"socket:[{inode}]" in own}


def listeners(port: int) -> set[str]:
    """Return the addresses on which any process of this machine listens on a TCP port."""
    return {address for address, used, _ in _listeners() if used == port}


def _listeners() -> Iterator[tuple[str, int, str]]:
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING:
                address, _, port = fields[1].partition(":")
                words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
                yield str(ipaddress.ip_address(b"".join(words))), int(port, 16), fields[9]


def in_own_network(script: str, address: str = "10.99.0.1") -> str:
    """Run a Python script in a network namespace with one more address; return its output.

    Raises:
        AssertionError: the script fails; OSError if the kernel allows no namespace: `can_have_own_network`.
    """
    prepare = f'ip link set lo up && ip addr add {address}/32 dev lo && exec "$0" -c "$1"'
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "test")])}
    done = subprocess.run(
        ["unshare", "--map-root-user", "--net", "sh", "-c", prepare, sys.executable, script],
        capture_output=True,
        text=True,
        timeout=3 * WAIT_S,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def can_have_own_network() -> bool:
    """Return whether this machine allows network namespaces."""
    if not (shutil.which("unshare") and shutil.which("ip")):
        return False
    command = ["unshare", "--map-root-user", "--net", "ip", "link", "set", "lo", "up"]
    return subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False).returncode == 0
