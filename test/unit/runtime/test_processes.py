"""The supervisor with real processes: prefixes, restarts, fatal exits and shutdown."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from kinema4d_ros.runtime.processes import ProcessSpec, Supervisor


def python(name: str, code: str) -> ProcessSpec:
    return ProcessSpec(name, [sys.executable, "-c", code])


def wait_for(predicate: object, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not predicate():  # type: ignore[operator]
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.02)


class Run:
    def __init__(self, *specs: ProcessSpec) -> None:
        self.lines: list[str] = []
        self.supervisor = Supervisor(specs, self.lines.append)
        self.thread = threading.Thread(target=self.supervisor.run)
        self.thread.start()

    def stop(self) -> None:
        self.supervisor.stop.set()
        self.thread.join(timeout=40)
        assert not self.thread.is_alive()


FOREVER = "import time\nprint('up', flush=True)\ntime.sleep(600)"


def test_output_is_prefixed_and_everything_ends() -> None:
    run = Run(python("one", FOREVER), python("two", FOREVER))
    wait_for(lambda: "[one] up" in run.lines and "[two] up" in run.lines)
    pids = [member.process.pid for member in run.supervisor.members if member.process]
    run.stop()
    for pid in pids:
        assert not os.path.exists(f"/proc/{pid}/fd") or open(f"/proc/{pid}/stat").read().split()[2] == "Z"  # noqa: PTH110, PTH123, SIM115


def test_a_crashed_process_is_restarted() -> None:
    run = Run(python("one", FOREVER))
    wait_for(lambda: "[one] up" in run.lines)
    member = run.supervisor.members[0]
    assert member.process is not None
    os.kill(member.process.pid, signal.SIGKILL)
    wait_for(lambda: run.lines.count("[one] up") == 2)
    assert any("one ended (signal SIGKILL, which the kernel" in line for line in run.lines)
    assert member.restarts == 1
    assert "restarted 1 x" in member.state
    run.stop()


def test_a_fatal_exit_is_not_restarted() -> None:
    run = Run(python("one", "import sys; print('no calibration', flush=True); sys.exit(2)"))
    wait_for(lambda: run.supervisor.members[0].failed)
    time.sleep(1.0)
    assert run.lines.count("[one] no calibration") == 1
    assert run.supervisor.members[0].state == "failed"
    run.stop()


def test_a_non_essential_process_may_fail_after_a_restart(tmp_path: Path) -> None:
    """A recorder whose disk is full at its restart must not end the graph and its gate."""
    ran = f"import pathlib, sys\nran = pathlib.Path({str(tmp_path / 'ran')!r})\n"
    once = ran + "sys.exit(2 if ran.exists() else ran.touch() or 1)"
    run = Run(replace(python("one", once), essential=False), python("two", FOREVER))
    wait_for(lambda: run.supervisor.members[0].failed)
    assert run.supervisor.members[0].restarts == 1
    assert not run.supervisor.failed
    run.stop()
    (tmp_path / "ran").unlink()
    essential = Run(python("one", once), python("two", FOREVER))
    wait_for(lambda: essential.supervisor.failed)
    essential.stop()
    never = Run(replace(python("one", once), essential=False), python("two", FOREVER))
    wait_for(lambda: never.supervisor.failed)
    never.stop()


def test_the_restart_delay_grows() -> None:
    run = Run(python("one", "import sys; sys.exit(1)"))
    wait_for(lambda: sum("restarting" in line for line in run.lines) >= 3)
    delays = [float(line.split(" in ")[1].split(" s")[0]) for line in run.lines if "restarting" in line]
    assert delays[:3] == [0.5, 1.0, 2.0]
    run.stop()


def test_a_process_that_ignores_sigint_is_ended() -> None:
    stubborn = (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)"
    )
    run = Run(python("one", stubborn))
    wait_for(lambda: "[one] up" in run.lines)
    run.stop()
    assert run.supervisor.members[0].process is None or run.supervisor.members[0].process.poll() is not None
