"""Guaranteed process exit: a deadline that no library can block, and exit together with the launcher."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import select
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence

__all__ = [
    "END_SIGNALS",
    "deadline_on_signal",
    "end_with_launcher",
    "exit_within",
    "launched_by_me",
    "on_end_signal",
    "tied_to_me",
]

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals sent by Ctrl-C, by a supervisor and by a closing terminal."""

LAUNCHER = "KINEMA4D_LAUNCHER"
"""Environment variable with the process id of the launcher that a node must not outlive."""

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
        threading.Thread(target=_wait_for_end, args=(int(launcher),), name="launcher", daemon=True).start()


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
