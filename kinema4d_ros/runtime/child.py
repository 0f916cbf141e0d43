"""Child processes from both sides: the parent starts, watches and ends one; the child ends in time, with its parent.

parent    Child.start(command), Child.spawn(function) ─> poll, wait, how_it_ended ─> end: signals in stages
          run_program(command, timeout): start, collect the output, end
child     on_end_signal, exit_within, deadline_on_signal: a deadline that no library can block
          end_with_launcher: ends when its parent has ended, however that was
"""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any

__all__ = [
    "END_SIGNALS",
    "Child",
    "Ran",
    "Stages",
    "deadline_on_signal",
    "end_all",
    "end_with_launcher",
    "exit_within",
    "how_it_ended",
    "launched_by_me",
    "on_end_signal",
    "run_program",
    "tied_to_me",
]

Stages = Sequence[tuple[signal.Signals, float]]
"""Signals that end a process, in order, and the seconds to wait after each."""

KILL_S = 10.0
"""Seconds for the kernel to end a killed process."""

LAUNCHER = "KINEMA4D_LAUNCHER"
"""Environment variable with the process id of the launcher that a node must not outlive."""


def how_it_ended(code: int) -> str:
    """Say in words what an exit code means; a negative one is a signal.

    >>> how_it_ended(3), how_it_ended(-9)
    ('exit code 3', 'signal SIGKILL, which the kernel sends when memory runs out')
    """
    if code >= 0:
        return f"exit code {code}"
    if -code == signal.SIGKILL:
        return "signal SIGKILL, which the kernel sends when memory runs out"
    with suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"


class Child:
    """One child process of this one, made by `start` or `spawn`."""

    def __init__(self, process: subprocess.Popen[bytes] | BaseProcess, own_session: bool = False) -> None:
        if process.pid is None:
            raise ValueError("the process is not started")
        self.pid: int = process.pid
        self._process = process
        self._own_session = own_session

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        own_session: bool = False,
        tied: bool = False,
        environment: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        pass_fds: Sequence[int] = (),
        output: IO[bytes] | None = None,
        piped: bool = False,
    ) -> Child:
        """Start a program, without a shell and without input.

        Args:
            command: program and arguments.
            own_session: a session and process group of its own: Ctrl-C in the terminal does not reach it, and a kill
                reaches its children too.
            tied: a program of ours ends with this process, see `end_with_launcher`.
            environment: added to this process's.
            cwd: working directory; None = ours.
            pass_fds: file descriptors that it inherits.
            output: file for stdout and stderr; None = ours.
            piped: stdout and stderr are read with `lines`.

        Raises:
            OSError: the program cannot be started.
        """
        process = _popen(
            command,
            {**(launched_by_me() if tied else {}), **(environment or {})},
            own_session,
            stdout=subprocess.PIPE if piped else output,
            stderr=subprocess.STDOUT if piped or output is not None else None,
            cwd=cwd,
            pass_fds=pass_fds,
        )
        return cls(process, own_session)

    @classmethod
    def spawn(
        cls,
        function: Callable[..., None],
        *arguments: Any,
        name: str,
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Call a function of a module in a new interpreter, which ends with this process and ignores Ctrl-C.

        Spawned, not forked: compiled kernels and MuJoCo keep threads of their own.

        Args:
            function, arguments: pickled.
            name: of the process.
            environment: added to this process's.
        """
        process = multiprocessing.get_context("spawn").Process(
            target=_called, args=(os.getpid(), function, arguments), daemon=True, name=name
        )
        with _environment(environment or {}):
            process.start()
        return cls(process)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        process = self._process
        return process.poll() if isinstance(process, subprocess.Popen) else process.exitcode

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait and return the exit code; None if it still runs after `timeout_s`."""
        process = self._process
        if not isinstance(process, subprocess.Popen):
            process.join(timeout_s)
            return process.exitcode
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout_s)
        return None

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of a piped program until it closes its output."""
        process = self._process
        if isinstance(process, subprocess.Popen) and process.stdout is not None:
            yield from process.stdout

    def how_it_ended(self) -> str:
        """Say how it ended, such as "exit code 3"; empty while it runs."""
        code = self.poll()
        return "" if code is None else how_it_ended(code)

    def send(self, which: signal.Signals) -> None:
        """Send a signal if it runs; SIGKILL goes to its whole group if it has one of its own."""
        if self.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                if which == signal.SIGKILL and self._own_session:
                    os.killpg(self.pid, which)
                else:
                    os.kill(self.pid, which)

    def end(self, stages: Stages) -> bool:
        """End it in stages; return whether it has ended."""
        return not end_all([self], stages)

    def kill(self, patience_s: float) -> bool:
        """End it at once; return whether it has ended."""
        return self.end([(signal.SIGKILL, patience_s)])

    def kill_group(self) -> None:
        """Kill it, and in its own session also the children that it left there if it has ended itself."""
        if self._own_session:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        else:
            self.send(signal.SIGKILL)
        self.wait()


def end_all(children: Sequence[Child], stages: Stages) -> list[Child]:
    """End several at the same time, in stages; return those that still run."""
    for which, patience_s in stages:
        alive = [child for child in children if child.poll() is None]
        for child in alive:
            child.send(which)
        deadline = time.monotonic() + patience_s
        for child in alive:
            child.wait(max(0.0, deadline - time.monotonic()))
    return [child for child in children if child.poll() is None]


@dataclass(frozen=True)
class Ran:
    """What `run_program` found.

    Attributes:
        code: exit code, negative for a signal; None if it was killed at the timeout.
        stdout, stderr: what the program wrote; empty after a timeout.
    """

    code: int | None
    stdout: bytes = b""
    stderr: bytes = b""


def run_program(
    command: Sequence[str],
    timeout_s: float,
    *,
    own_session: bool = False,
    environment: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> Ran:
    """Run a program to its end and collect its output; kill it at the timeout, or when this call is interrupted.

    The arguments are those of `Child.start`.

    Raises:
        OSError: the program cannot be started.
    """
    process = _popen(command, environment or {}, own_session, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd)
    with process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except BaseException as error:
            Child(process, own_session).kill_group()
            if isinstance(error, subprocess.TimeoutExpired):
                return Ran(None)
            raise
    return Ran(process.returncode, stdout, stderr)


def _popen(
    command: Sequence[str], environment: Mapping[str, str], own_session: bool, **options: Any
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - a list, never words of a shell
        list(command),
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
        start_new_session=own_session,
        **options,
    )


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _called(parent: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _end_with(parent)
    function(*arguments)


# The child's side.

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals sent by Ctrl-C, by a supervisor and by a closing terminal."""

_SIGEV_THREAD = 2
_CLOCK_MONOTONIC = 1


class _SigEvent(ctypes.Structure):
    """`struct sigevent` of glibc and musl, 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("padding", ctypes.c_char * 32),
    )


class _TimerSpec(ctypes.Structure):
    """`struct itimerspec`."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns"))


def exit_within(seconds: float, code: int) -> None:
    """Exit with `code` after `seconds` if still running; this cannot be cancelled and the earliest deadline wins.

    Uses a C library timer that calls `_exit` in its own thread. It also ends a process whose interpreter is blocked
    by a library, is being finalised, or has exited while C++ destructors run. Python's own watchdog (`faulthandler`)
    stops with the interpreter and supports only one exit code.
    """
    c = ctypes.CDLL(None)
    event = _SigEvent(value=code, notify=_SIGEV_THREAD, function=ctypes.cast(c._exit, ctypes.c_void_p))
    timer = ctypes.c_void_p()
    spec = _TimerSpec(first_s=int(seconds), first_ns=max(1, int(seconds % 1 * 1e9)))
    if c.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) or c.timer_settime(
        timer, 0, ctypes.byref(spec), None
    ):
        faulthandler.dump_traceback_later(seconds, exit=True)  # no timer available: exit with faulthandler's code


def on_end_signal(end: Callable[[], None]) -> None:
    """Call `end` on SIGINT, SIGTERM and SIGHUP; an ignored SIGHUP (nohup) stays ignored. Main thread only."""
    for which in END_SIGNALS:
        if which != signal.SIGHUP or signal.getsignal(which) is not signal.SIG_IGN:
            signal.signal(which, lambda _number, _frame: end())


def deadline_on_signal(seconds: float, code: int = 0) -> None:
    """Arm `exit_within` on the first end signal, in a thread: a library may block the main one. Main thread only.

    Python runs signal handlers only between two bytecodes of the main thread; the byte that wakes this thread is
    written immediately.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def wait() -> None:
        while os.read(reader, 1)[0] not in END_SIGNALS:
            pass
        exit_within(seconds, code)

    threading.Thread(target=wait, name="deadline", daemon=True).start()


def launched_by_me() -> dict[str, str]:
    """Return the environment for nodes that must end when this process ends, however it ends."""
    return {LAUNCHER: str(os.getpid())}


def end_with_launcher() -> None:
    """Send this process SIGTERM when the launcher named in its environment has exited; without one do nothing.

    A killed launcher cannot stop its nodes. Its process is watched through a pidfd: unlike PR_SET_PDEATHSIG this also
    detects a launcher that has already exited, and works through wrapper processes.
    """
    launcher = os.environ.get(LAUNCHER, "")
    if launcher.isdigit():
        _end_with(int(launcher))


def _end_with(pid: int) -> None:
    threading.Thread(target=_wait_for_end, args=(pid,), name="launcher", daemon=True).start()


def _wait_for_end(pid: int) -> None:
    try:
        watched = select.poll()
        watched.register(os.pidfd_open(pid), select.POLLIN)
        watched.poll()
    except ProcessLookupError:
        pass
    except OSError:  # kernel or container without pidfd
        while _is_alive(pid):
            time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # alive, owned by another user
    return True


def tied_to_me(command: Sequence[str]) -> list[str]:
    """Wrap an external command, such as RViz, so that it receives SIGTERM when the thread that starts it ends."""
    setpriv = shutil.which("setpriv")
    return [*([setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []), *command]
