"""Two virtual machines for tests: network namespaces joined by a bridge whose port can be cut and restored."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NETWORK = "10.213.7"
"""Private address range, used only inside the namespaces."""


class Machine:
    """One end of the cable."""

    def __init__(self, name: str, link: str, host: int, memory: Path) -> None:
        self.name = name
        self.memory = memory
        self.link = link
        self.port = f"{link}p"
        """Name of the bridge port of its cable."""
        self.address = f"{NETWORK}.{host}"

    def prefix(self) -> list[str]:
        """Command prefix that runs a command on this machine with its own shared memory, which DDS must not share."""
        own_memory = f'mount --bind {self.memory} /dev/shm && exec "$@"'
        return ["ip", "netns", "exec", self.name, "unshare", "--mount", "sh", "-c", own_memory, "sh"]


class Cable:
    """Both machines and the bridge between them."""

    def __init__(self, robot: Machine, server: Machine, switch: str) -> None:
        self.robot = robot
        self.server = server
        self._switch = switch
        self._poor: subprocess.Popen[str] | None = None

    def cut(self) -> None:
        """Drop all packets; both machines still see their link up."""
        _run("ip", "-n", self._switch, "link", "set", self.server.port, "nomaster")

    def heal(self) -> None:
        """Restore the connection."""
        if self._poor is not None:
            self._poor.kill()
            self._poor.communicate()
            self._poor = None
        _run("ip", "-n", self._switch, "link", "set", self.server.port, "master", BRIDGE)

    def worsen(self, loss_percent: float, delay_ms: float, seed: int = 0) -> None:
        """Drop and delay frames in both directions until restored, by replacing the bridge with `poor_cable`."""
        self.cut()
        ports = [self.robot.port, self.server.port]
        words = [sys.executable, str(POOR_CABLE), *ports, str(loss_percent), str(delay_ms), str(seed)]
        self._poor = subprocess.Popen(
            ["ip", "netns", "exec", self._switch, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._poor.stdout is not None
        if self._poor.stdout.readline() != "ready\n":
            _, reason = self._poor.communicate()
            self._poor = None
            self.heal()
            raise AssertionError(f"no poor network could be made: {reason}")


_numbers = itertools.count()
BRIDGE = "switch"
POOR_CABLE = Path(__file__).with_name("poor_cable.py")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


@contextmanager
def two_machines() -> Iterator[Cable]:
    """Create the machines for the block and remove them afterwards; skip the test if this is not possible."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2 (apt-get install iproute2)")
    mark = f"{os.getpid() % 100_000}{next(_numbers)}"
    memory = Path(tempfile.mkdtemp(prefix="kinema4d_memory_"))
    robot = Machine(f"kinema4d-{mark}-robot", f"k4r{mark}", 1, memory / "robot")
    server = Machine(f"kinema4d-{mark}-server", f"k4s{mark}", 2, memory / "server")
    switch = f"kinema4d-{mark}-switch"
    made: list[str] = []
    try:
        for name in (switch, robot.name, server.name):
            done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
            if done.returncode != 0:
                pytest.skip(f"no network namespace can be made here: {done.stderr.strip()}")
            made.append(name)
        # No multicast snooping: there is no querier, so discovery multicast would be dropped.
        bridge = ["link", "add", BRIDGE, "type", "bridge", "mcast_snooping", "0", "forward_delay", "0"]
        if subprocess.run(["ip", "-n", switch, *bridge], capture_output=True).returncode != 0:
            pytest.skip("this kernel has no bridge")
        _run("ip", "-n", switch, "link", "set", BRIDGE, "up")
        for machine in (robot, server):
            machine.memory.mkdir()
            ends = ["type", "veth", "peer", "name", machine.port, "netns", switch]
            _run("ip", "link", "add", machine.link, "netns", machine.name, *ends)
            _run("ip", "-n", switch, "link", "set", machine.port, "master", BRIDGE, "up")
            _run("ip", "-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", machine.link)
            _run("ip", "-n", machine.name, "link", "set", "lo", "up")
            _run("ip", "-n", machine.name, "link", "set", machine.link, "up")
            _run("ip", "-n", machine.name, "route", "add", "224.0.0.0/4", "dev", machine.link)
        cable = Cable(robot, server, switch)
        try:
            yield cable
        finally:
            cable.heal()
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=True)
        shutil.rmtree(memory, ignore_errors=True)
