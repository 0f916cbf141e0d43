"""Two machines on one cable, for tests: network namespaces joined by a switch whose port can be cut and healed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NETWORK = "10.213.7"
"""A private range; it exists inside the namespaces only."""


class Machine:
    """One end of the cable."""

    def __init__(self, name: str, link: str, host: int, memory: Path) -> None:
        self.name = name
        self.memory = memory
        self.link = link
        self.port = f"{link}p"
        """The switch's end of its cable."""
        self.address = f"{NETWORK}.{host}"

    def prefix(self) -> list[str]:
        """Put before a command, runs it on this machine, with its shared memory: DDS must not reach across."""
        own_memory = f'mount --bind {self.memory} /dev/shm && exec "$@"'
        return ["ip", "netns", "exec", self.name, "unshare", "--mount", "sh", "-c", own_memory, "sh"]

    def shape(self, *rule: str) -> bool:
        """What happens to packets that leave: netem's words; False where the kernel has no netem."""
        command = ["tc", "-n", self.name, "qdisc", "replace", "dev", self.link, "root", "netem", *rule]
        return subprocess.run(command, capture_output=True).returncode == 0


class Cable:
    """Both machines, and a switch between them."""

    def __init__(self, robot: Machine, server: Machine, switch: str) -> None:
        self.robot = robot
        self.server = server
        self._switch = switch
        self._shaped = False

    def cut(self) -> None:
        """Nothing arrives any more; both machines see their own link up."""
        _run("ip", "-n", self._switch, "link", "set", self.server.port, "nomaster")

    def heal(self) -> None:
        """Everything arrives again."""
        _run("ip", "-n", self._switch, "link", "set", self.server.port, "master", BRIDGE)
        if self._shaped:
            for machine in (self.robot, self.server):
                machine.shape("delay", "0ms")

    def worsen(self, loss_percent: float, delay_ms: float) -> bool:
        """A poor network, in both directions; False where it cannot be made."""
        rule = ("loss", f"{loss_percent}%", "delay", f"{delay_ms}ms")
        self._shaped = all(machine.shape(*rule) for machine in (self.robot, self.server))
        return self._shaped


BRIDGE = "switch"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


@contextmanager
def two_machines() -> Iterator[Cable]:
    """The machines, gone afterwards with all that is between them; skips the test where they cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("network namespaces need root and iproute2 (apt-get install iproute2)")
    mark = os.getpid() % 100_000
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
        # Without snooping: nobody here asks who listens to the discovery's multicast.
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
        yield Cable(robot, server, switch)
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=True)
        shutil.rmtree(memory, ignore_errors=True)
