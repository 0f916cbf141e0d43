"""Child processes: how they are ended in stages and as a group, what is said of their end, and orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kinema4d_ros.runtime.child import Child, Ran, end_all, how_it_ended, run_program

STAGES = ((signal.SIGINT, 3.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 10.0))
WITH_A_CHILD = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print(child.pid, flush=True)\n"
)


def started(code: str) -> Child:
    """A Python program that has printed its first line."""
    child = Child.start([sys.executable, "-c", code], piped=True)
    assert next(child.lines()).strip()
    return child


def deaf_to(*names: str) -> str:
    ignored = "".join(f"signal.signal(signal.{name}, signal.SIG_IGN)\n" for name in names)
    return f"import signal, time\n{ignored}print('up', flush=True)\ntime.sleep(600)"


def gone(pid: int, timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-signal.SIGSEGV, "signal SIGSEGV"),
        (-signal.SIGKILL, "signal SIGKILL, which the kernel sends when memory runs out"),
        (-40, "signal 40"),
    ],
)
def test_the_end_in_words(code: int, words: str) -> None:
    assert how_it_ended(code) == words


def test_each_child_gets_the_signals_that_it_needs() -> None:
    children = [started(deaf_to(*names)) for names in ((), ("SIGINT",), ("SIGINT", "SIGTERM"))]
    assert [child.how_it_ended() for child in children] == ["", "", ""]
    assert end_all(children, STAGES[:1]) == children[1:]
    assert end_all(children, STAGES[1:]) == []
    # Python turns SIGINT into an exception and then ends itself by it.
    assert [child.poll() for child in children] == [-signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL]
    assert children[2].end(STAGES)


def test_a_session_of_its_own_ends_as_a_whole() -> None:
    for code in (f"{WITH_A_CHILD}time.sleep(600)", WITH_A_CHILD):
        child = Child.start([sys.executable, "-c", code], own_session=True, piped=True)
        grandchild = int(next(child.lines()))
        if code == WITH_A_CHILD:
            assert child.wait(20.0) == 0
        child.kill_group()
        assert gone(grandchild)
    assert child.poll() == 0


def test_programs_run_to_their_end_or_to_the_timeout(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['A']); print(os.getcwd(), file=sys.stderr); sys.exit(5)"
    ran = run_program([sys.executable, "-c", code], 60.0, environment={"A": "b"}, cwd=tmp_path)
    assert ran == Ran(5, b"b\n", f"{tmp_path}\n".encode())
    pid = tmp_path / "pid"
    code = f"{WITH_A_CHILD}open({str(pid)!r}, 'w').write(str(child.pid))"
    # It has ended, and its child holds the pipe.
    assert run_program([sys.executable, "-c", code], 3.0, own_session=True) == Ran(None)
    assert gone(int(pid.read_text()))
    with pytest.raises(FileNotFoundError):
        run_program(["/no/such/program"], 1.0)


ORPHAN = """
import os, sys, time
from kinema4d_ros.runtime.child import Child

def hang():
    print(os.getpid(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    Child.spawn(hang, name="hanging", environment={"NOT_KEPT": "1"})
    assert "NOT_KEPT" not in os.environ
    time.sleep(600)
"""


def test_a_spawned_function_ends_with_its_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(ORPHAN)
    parent = subprocess.Popen([sys.executable, str(tmp_path / "parent.py")], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(child, signal.SIGINT)  # Ctrl-C is the parent's to handle
    time.sleep(0.2)
    assert not gone(child, 0.1)
    parent.kill()
    parent.wait()
    assert gone(child)
    parent.stdout.close()
