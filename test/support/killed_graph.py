"""The complete graph under its supervisor; tests kill its nodes with SIGKILL and count leftovers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from support.proc import family
from support.ros_graph import PROFILE, wait_for
from support.sim_graph import process_environment, small_camera
from support.slow_generator import SPEC, VARIABLE

from kinema4d_ros.cli.sim import node_process
from kinema4d_ros.ros.graph import SIM_ARGUMENTS, read_arguments, sim_graph
from kinema4d_ros.runtime.processes import Supervisor

WORKER = "generator's worker"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where DDS keeps it
_SEGMENT = re.compile(r"fast(rtps|dds)_[0-9a-f]{16}")
RECORDED_BYTES = 50_000
"""More bytes than the descriptions of all topics at the beginning of a bag."""

MARK = "KINEMA4D_TEST_KILLED_GRAPH"
"""Environment variable of every process of the graph, to find processes that outlive it."""

PARAMETERS = """
/**/preview:
  ros__parameters: {frames: 9}
/**/evaluation:
  ros__parameters: {model: composite, width: 96, frames: 5, folder: FOLDER/evaluations}
/**/recorder:
  ros__parameters: {folder: FOLDER/runs}
/**/lab:
  ros__parameters: {joint_rate_hz: 25.0, image_rate_hz: 3.0}
/**/twin:
  ros__parameters: {rate_hz: 3.0, drift_period_s: 0.0}
"""


@dataclass(frozen=True)
class Kill:
    """A kill and its time: monotonic seconds and wall-clock nanoseconds."""

    name: str
    at_s: float
    at_ns: int


class KilledGraph:
    """Graph of lab, twin, preview, generator, playback, gate, viewer, recorder and evaluation with restarts."""

    def __init__(self, folder: Path, generation_s: float, lease_s: int) -> None:
        self.folder, self.mark = folder, f"{os.getpid()}-{time.monotonic_ns()}"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        (folder / "params.yaml").write_text(PARAMETERS.replace("FOLDER", str(folder)))
        (folder / "seconds").write_text(str(generation_s))
        values = read_arguments(
            SIM_ARGUMENTS,
            {
                "calibration": small_camera(folder),
                "preset": SPEC,  # slow, so that it can be killed while it works
                "record": "true",
                "evaluation": "true",
                "params_file": str(folder / "params.yaml"),
            },
        )
        specs = []
        for spec in sim_graph(values):
            environment = process_environment({VARIABLE: str(folder / "seconds"), MARK: self.mark})
            process = node_process(spec, values)
            command = list(process.command)
            if spec.name == "generator" and lease_s:
                environment = {**environment, "FASTRTPS_DEFAULT_PROFILES_FILE": _short_lease(folder, lease_s)}
            if spec.name == "viewer":
                command += ["-p", f"port:={self.port}"]
            specs.append(replace(process, command=command, environment=environment))
        self.lines: list[str] = []
        self.supervisor = Supervisor(specs, self.lines.append)
        self.names = [spec.name for spec in specs]
        self.segments: set[str] = set()
        self._thread = threading.Thread(target=self.supervisor.run, name="supervisor")
        self._thread.start()

    @property
    def text(self) -> str:
        return "\n".join(self.lines[-200:])

    def pid(self, name: str) -> int | None:
        """Return the process id of a node; None while it is not running."""
        process = next(m for m in self.supervisor.members if m.spec.name == name).process
        return process.pid if process is not None and process.poll() is None else None

    def worker_pid(self) -> int | None:
        node = self.pid("generator")
        if node is None:
            return None
        with contextlib.suppress(OSError):
            return next((pid for pid in family(node)[1:] if "slow_generator" in _command(pid)), None)
        return None

    def kill(self, name: str) -> Kill:
        """Send SIGKILL to a node and its children, or only to the generator's worker."""
        which = self.worker_pid if name == WORKER else lambda: self.pid(name)
        pid = wait_for(which, 120, f"a running {name}")
        if name != WORKER:
            for one in family(pid):
                self.segments |= _segments(one)
        kill = Kill(name, time.monotonic(), time.time_ns())
        if name == WORKER:
            os.kill(pid, signal.SIGKILL)
        else:
            os.killpg(pid, signal.SIGKILL)
        return kill

    def page_answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=2) as page:
            return bool(page.status == 200)
        return False

    def newest_bag(self) -> Path:
        """Return the MCAP file written by the recorder since its last restart."""
        return max((self.folder / "runs").glob("*/*.mcap"), key=lambda path: path.stat().st_ctime_ns)

    def bag_has_messages(self) -> bool:
        """Return whether the recorder has begun to write messages."""
        bags = list((self.folder / "runs").glob("*/*.mcap"))
        return bool(bags) and self.newest_bag().stat().st_size > RECORDED_BYTES

    def shared_memory(self) -> tuple[int, float]:
        """Return the number of files and MB left in shared memory by killed processes."""
        left = [path for name in self.segments if (path := SHARED_MEMORY / name).exists()]
        held = 0
        for path in left:
            with contextlib.suppress(FileNotFoundError):
                held += path.stat().st_blocks * 512
        return len(left), held / 1e6

    def zombies(self) -> list[int]:
        """Return child processes that have ended and were not waited for."""
        return [pid for pid in family(os.getpid()) if _state(pid) == "Z"]

    def survivors(self) -> list[str]:
        """Return the commands of processes of this graph that are still running."""
        return marked(self.mark)

    def close(self) -> None:
        self.supervisor.stop.set()
        self._thread.join(timeout=90)
        assert not self._thread.is_alive(), "the supervisor did not end"


@contextmanager
def killed_graph(folder: Path, generation_s: float = 1.0, lease_s: int = 0) -> Iterator[KilledGraph]:
    """Start the graph; `lease_s` is the DDS lease duration of the generator, 0 = as shipped."""
    made = KilledGraph(folder, generation_s, lease_s)
    try:
        yield made
    finally:
        made.close()
        (folder / "graph.log").write_text("\n".join(made.lines))


def _short_lease(folder: Path, lease_s: int) -> str:
    """Return the shipped profile with another DDS lease duration."""
    text, before = PROFILE.read_text(), "<leaseAnnouncement>"
    assert text.count(before) == 1
    path = folder / "short_lease.xml"
    path.write_text(text.replace(before, f"<leaseDuration><sec>{lease_s}</sec></leaseDuration>{before}"))
    return str(path)


def marked(mark: str, pids: bool = False) -> list[str]:
    """Return commands, or process ids, of the processes with this mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(folder.name if pids else _command(int(folder.name)))
    return found


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _segments(pid: int) -> set[str]:
    """Return the names of a process's own files in shared memory; ports are shared and excluded."""
    paths: set[Path] = set()
    with contextlib.suppress(OSError):
        paths |= {Path(line.split()[-1]) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            paths.add(link.readlink())
    return {path.name for path in paths if path.parent == SHARED_MEMORY and _SEGMENT.match(path.name)}
