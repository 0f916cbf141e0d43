"""The worker process: results, errors, cancellation, timeouts and crashes, with real processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from kinema4d_ros.core.errors import Cancelled, ErrorCode, KinemaError
from kinema4d_ros.runtime import Worker, WorkerTimes
from kinema4d_ros.runtime.worker import error_from_json, error_to_json

CHILD = """
import ctypes, os, signal, sys, time
from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.runtime import serve

def handle(request, job):
    verb = request.decode()
    if verb.startswith("echo"):
        print("libraries print to stdout")
        return request
    if verb == "pid":
        return str(os.getpid()).encode()
    if verb == "steps":
        for i in range(300):
            if job.cancelled():
                raise RuntimeError("stopped")
            job.progress("denoise", i, 300)
            time.sleep(0.005)
        return b"done"
    if verb == "big":
        return bytes(50_000_000)
    if verb == "hang":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        time.sleep(60)
    if verb == "memory":
        raise MemoryError("no more")
    if verb == "bug":
        raise ValueError("a bug")
    if verb == "known":
        raise GeneratorError("bad seed", expected="a number", hint="try 0", code=ErrorCode.GENERATOR_BAD_REQUEST)
    if verb == "exit":
        os._exit(7)
    if verb == "segfault":
        ctypes.string_at(0)
    raise AssertionError(verb)

def load():
    if "broken" in sys.argv:
        raise GeneratorError("no weights", code=ErrorCode.FILE_MISSING)
    return handle

sys.exit(serve(int(sys.argv[1]), load))
"""


@pytest.fixture
def child(tmp_path: Path) -> Path:
    path = tmp_path / "child.py"
    path.write_text(CHILD)
    return path


@pytest.fixture
def worker(child: Path) -> Iterator[Worker]:
    made = Worker([sys.executable, str(child), "{fd}"], WorkerTimes(load_s=60, run_s=30, grace_s=0.5))
    yield made
    made.stop()


def code_of(worker: Worker, request: bytes, **options: object) -> ErrorCode:
    with pytest.raises(KinemaError) as caught:
        worker.run(request, **options)  # type: ignore[arg-type]
    return caught.value.code


def test_requests_share_one_process(worker: Worker) -> None:
    assert worker.run(b"echo hello") == b"echo hello"
    first = worker.run(b"pid")
    assert worker.run(b"pid") == first
    assert int(first) == worker.pid
    assert worker.starts == 1


def test_large_requests_and_results(worker: Worker) -> None:
    assert len(worker.run(b"big")) == 50_000_000
    request = b"echo" + os.urandom(5_000_000).hex().encode()
    assert worker.run(request) == request


def test_reports_progress_in_order(worker: Worker) -> None:
    seen: list[tuple[str, int, int]] = []
    assert worker.run(b"steps", lambda *progress: seen.append(progress), timeout_s=60) == b"done"
    assert seen == [("denoise", i, 300) for i in range(300)]


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (b"memory", ErrorCode.GENERATOR_OUT_OF_MEMORY),
        (b"bug", ErrorCode.GENERATOR_FAILED),
        (b"known", ErrorCode.GENERATOR_BAD_REQUEST),
    ],
)
def test_errors_keep_their_code_and_the_process_lives(worker: Worker, request_bytes: bytes, code: ErrorCode) -> None:
    assert code_of(worker, request_bytes) == code
    assert worker.run(b"echo") == b"echo"
    assert worker.starts == 1


@pytest.mark.parametrize("way", [b"exit", b"segfault"])
def test_a_crash_is_an_error_and_the_next_request_works(worker: Worker, way: bytes) -> None:
    assert code_of(worker, way) == ErrorCode.GENERATOR_FAILED
    assert worker.run(b"echo") == b"echo"
    assert worker.starts == 2


def test_the_error_of_a_killed_worker_names_the_signal(worker: Worker) -> None:
    worker.start()
    pid = worker.pid
    assert pid is not None
    threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(KinemaError, match="ended: signal SIGKILL, which the kernel sends when memory runs out"):
        worker.run(b"hang")
    assert worker.run(b"echo") == b"echo"


def test_a_worker_killed_while_idle_is_restarted(worker: Worker) -> None:
    worker.start()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    time.sleep(0.2)
    assert worker.run(b"echo") == b"echo"


def test_cancels_within_a_step_and_keeps_the_process(worker: Worker) -> None:
    steps = 0

    def count(_phase: str, step: int, _steps: int) -> None:
        nonlocal steps
        steps = step

    with pytest.raises(Cancelled):
        worker.run(b"steps", count, cancelled=lambda: steps >= 10)
    assert steps < 150
    assert worker.run(b"echo") == b"echo"
    assert worker.starts == 1


def test_a_hung_worker_is_killed_at_the_timeout(worker: Worker) -> None:
    worker.start()
    assert code_of(worker, b"hang", timeout_s=0.3) == ErrorCode.GENERATOR_TIMEOUT
    assert worker.pid is None
    assert worker.run(b"echo") == b"echo"


def test_a_hung_worker_can_be_cancelled(worker: Worker) -> None:
    worker.start()
    assert code_of(worker, b"hang", cancelled=lambda: True) == ErrorCode.CANCELLED
    assert worker.run(b"echo") == b"echo"


def test_an_error_while_loading_reaches_the_caller(child: Path) -> None:
    worker = Worker([sys.executable, str(child), "{fd}", "broken"])
    for _ in range(2):
        with pytest.raises(KinemaError, match="no weights") as caught:
            worker.run(b"echo")
        assert caught.value.code == ErrorCode.FILE_MISSING
    worker.stop()


def test_a_process_that_never_loads_times_out(tmp_path: Path) -> None:
    worker = Worker([sys.executable, "-c", "import time; time.sleep(60)", "{fd}"], WorkerTimes(load_s=0.5))
    with pytest.raises(KinemaError, match="did not load"):
        worker.start()
    assert worker.pid is None


def test_the_worker_exits_with_its_parent(worker: Worker) -> None:
    pid = int(worker.run(b"pid"))
    connection = worker._connection
    assert connection is not None
    connection.close()
    process = worker._process
    assert process is not None
    assert process.wait(10.0) == 0
    assert not Path(f"/proc/{pid}").exists()


def _torch_memory() -> None:
    torch = pytest.importorskip("torch")
    torch.empty(1 << 50, dtype=torch.uint8)


def _opencv_memory() -> None:
    cv2.copyMakeBorder(np.zeros((1000, 1000), np.uint8), 0, 2_000_000, 0, 2_000_000, cv2.BORDER_CONSTANT)


def _numpy_memory() -> None:
    np.empty(1 << 50, np.uint8)


@pytest.mark.parametrize("allocate", [_torch_memory, _opencv_memory, _numpy_memory])
def test_failed_allocations_of_any_library_keep_their_code(allocate: Callable[[], None]) -> None:
    with pytest.raises(Exception, match="allocate") as caught:
        allocate()
    assert error_from_json(error_to_json(caught.value)).code == ErrorCode.GENERATOR_OUT_OF_MEMORY


def test_other_errors_of_the_same_types_are_failures() -> None:
    for error in (RuntimeError("shapes do not fit"), cv2.error("bad argument")):
        assert error_from_json(error_to_json(error)).code == ErrorCode.GENERATOR_FAILED
