"""A generator that runs out of memory or stops answering: a code each time, and how long until the next goal works."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.figures import Figures
from support.goals import WAIT_S, Goals, goal
from support.proc import family
from support.ros_graph import Graph, own_domain, wait_for
from support.sim_graph import NodeProcess
from support.slow_generator import SPEC, VARIABLE

from kinema4d_ros.core.errors import ErrorCode

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]

GRACE_S = 0.5
MB = 1 << 20


class Server:
    """A generator node, its worker and a client."""

    def __init__(self, node: NodeProcess, goals: Goals) -> None:
        self.node, self.goals = node, goals

    @property
    def worker(self) -> int:
        """Process number of what generates now."""
        (found,) = family(self.node.process.pid)[1:]
        return found

    def recovered(self, small: Any) -> float:
        """Seconds until a goal has worked."""
        began = time.monotonic()
        result = self.goals.ask(small)
        assert result.error.code == ErrorCode.NONE, result.error.message
        return time.monotonic() - began


def served(preset: str = "composite", **options: Any) -> Iterator[Server]:
    """A server and its client in a domain of their own: there must be one server of the action."""
    with own_domain():
        graph = Graph(threads=1)
        node = NodeProcess("generator", {"preset": preset, "queue": 1, "cancel_grace_s": GRACE_S}, **options)
    try:
        node.wait_for_line("is loaded")
        yield Server(node, Goals(graph))
    finally:
        code = node.stop()
        graph.close()
    assert code == 0, node.text


@pytest.fixture(scope="module")
def composite() -> Iterator[Server]:
    """The generator that learns nothing."""
    yield from served()


@pytest.fixture(scope="module")
def seconds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("slow") / "seconds"
    path.write_text("0")
    return path


def limit(pid: int, more_mb: int) -> Callable[[], None]:
    """Let a process take this much more address space and no more; returns what lifts that again."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + more_mb * MB, before[1]))

    def lift() -> None:
        resource.prlimit(pid, resource.RLIMIT_AS, before)

    return lift


def test_a_real_allocation_that_fails(composite: Server, figures: Figures) -> None:
    small, large = goal(), goal(frames=49, width=720, height=480)
    assert composite.recovered(small) >= 0.0
    worker = composite.worker
    lift = limit(worker, more_mb=40)
    began = time.monotonic()
    failed = composite.goals.ask(large)
    told_s = time.monotonic() - began
    assert failed.error.code == ErrorCode.GENERATOR_OUT_OF_MEMORY, failed.error.message
    assert "memory" in failed.error.message
    # What fits still works, in the same process and under the same limit.
    again_s = composite.recovered(small)
    assert composite.worker == worker
    lift()
    assert composite.goals.ask(large).error.code == ErrorCode.NONE
    fault = "generator out of memory (address space limited, a real allocation fails)"
    figures.note(fault, "code", ErrorCode(failed.error.code).name)
    figures.note(fault, "told after", round(told_s, 2), "s")
    figures.note(fault, "next goal done after", round(again_s, 2), "s")


def test_a_real_allocation_of_torch_that_fails(figures: Figures) -> None:
    """torch tells of main memory with a plain RuntimeError, of a GPU's with torch.OutOfMemoryError."""
    for server in served("support.torch_generator:TorchGenerator"):
        small, large = goal(), goal(frames=9)
        assert server.recovered(small) >= 0.0
        lift = limit(server.worker, more_mb=200)
        began = time.monotonic()
        failed = server.goals.ask(large)
        told_s = time.monotonic() - began
        assert failed.error.code == ErrorCode.GENERATOR_OUT_OF_MEMORY, failed.error.message
        again_s = server.recovered(small)
        lift()
        assert server.goals.ask(large).error.code == ErrorCode.NONE
        fault = "generator out of memory (torch, a real allocation fails)"
        figures.note(fault, "code", ErrorCode(failed.error.code).name)
        figures.note(fault, "told after", round(told_s, 2), "s")
        figures.note(fault, "next goal done after", round(again_s, 2), "s")


@pytest.fixture(scope="module")
def slow(seconds: Path) -> Iterator[Server]:
    """One that works as long as the file says."""
    yield from served(SPEC, environment={VARIABLE: str(seconds)})


def begun(server: Server, seconds: Path, work_s: float, timeout_s: float = 0.0) -> Any:
    """A goal that is being worked on."""
    seconds.write_text(str(work_s))
    handle = server.goals.send(goal(), timeout_s)
    assert handle.accepted
    wait_for(lambda: "denoise" in server.goals.phases, WAIT_S, "work on the goal")
    seconds.write_text("0")
    return handle


def test_the_kernel_ends_the_worker(slow: Server, seconds: Path, figures: Figures) -> None:
    handle = begun(slow, seconds, work_s=60.0)
    began = time.monotonic()
    os.kill(slow.worker, signal.SIGKILL)
    failed = slow.goals.result(handle)
    told_s = time.monotonic() - began
    assert failed.error.code == ErrorCode.GENERATOR_FAILED
    assert "memory runs out" in failed.error.message
    again_s = slow.recovered(goal())
    fault = "generator's worker ended by the kernel (SIGKILL, as when memory runs out)"
    figures.note(fault, "code", ErrorCode(failed.error.code).name)
    figures.note(fault, "told after", round(told_s, 2), "s")
    figures.note(fault, "next goal done after, with a new worker", round(again_s, 2), "s")


def test_a_worker_that_stops_answering_ends_at_the_goal_s_time_out(
    slow: Server, seconds: Path, figures: Figures
) -> None:
    handle = begun(slow, seconds, work_s=60.0, timeout_s=3.0)
    stopped = slow.worker
    began = time.monotonic()
    os.kill(stopped, signal.SIGSTOP)  # neither works nor reads its cancellation
    failed = slow.goals.result(handle)
    told_s = time.monotonic() - began
    assert failed.error.code == ErrorCode.GENERATOR_TIMEOUT
    again_s = slow.recovered(goal())
    assert slow.worker != stopped
    assert not Path(f"/proc/{stopped}").exists()
    fault = "back-end hangs and ignores its cancellation"
    figures.note(fault, "code", ErrorCode(failed.error.code).name)
    figures.note(fault, "told after, with a time-out of 3 s and 0.5 s of grace", round(told_s, 2), "s")
    figures.note(fault, "next goal done after, with a new worker", round(again_s, 2), "s")


def test_cancelling_a_worker_that_stops_answering(slow: Server, seconds: Path, figures: Figures) -> None:
    handle = begun(slow, seconds, work_s=60.0)
    os.kill(slow.worker, signal.SIGSTOP)
    began = time.monotonic()
    slow.goals.cancel(handle)
    failed = slow.goals.result(handle)
    told_s = time.monotonic() - began
    assert failed.error.code == ErrorCode.CANCELLED
    assert slow.recovered(goal()) >= 0.0
    figures.note("goal cancelled while the back-end hangs", "told after, with 0.5 s of grace", round(told_s, 2), "s")


def test_a_worker_that_stops_between_goals(slow: Server, figures: Figures) -> None:
    """A request without a reader: the goal's timeout counts from its first byte."""
    assert slow.recovered(goal()) >= 0.0
    os.kill(slow.worker, signal.SIGSTOP)
    began = time.monotonic()
    failed = slow.goals.ask(goal(frames=49, width=720, height=480), timeout_s=3.0)
    told_s = time.monotonic() - began
    assert failed.error.code in (ErrorCode.GENERATOR_TIMEOUT, ErrorCode.GENERATOR_FAILED), failed.error.message
    again_s = slow.recovered(goal())
    fault = "back-end hangs before it takes a goal"
    figures.note(fault, "code", ErrorCode(failed.error.code).name)
    figures.note(fault, "told after, with a time-out of 3 s", round(told_s, 2), "s")
    figures.note(fault, "next goal done after, with a new worker", round(again_s, 2), "s")
