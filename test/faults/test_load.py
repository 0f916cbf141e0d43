"""Load: rollouts without end, clouds at 30 Hz, a queue that overflows, goals that are cancelled; over real DDS."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from support.faulty_generator import SLOW, SPEC, WORK
from support.figures import Figures
from support.pick_goal import pick_goal
from support.proc import family, open_files, resident_mb
from support.ros_graph import ROOT, Asker, Graph, peer, wait_for
from support.sim_graph import NodeProcess

from kinema4d_model.shipped import shipped_weights
from kinema4d_msgs.action import GenerateRollout
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.ros import names

WAIT_S = 180.0
GROWTH_MB = 20.0
"""Allowed between the first tenth and the last of 1,000 rollouts, in any process. One kept rollout would be 2 MB."""

RATE_HZ = 30.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@contextmanager
def generator(namespace: str, parameters: dict[str, Any]) -> Iterator[tuple[NodeProcess, Asker]]:
    node = NodeProcess("generator", parameters, ["-r", f"__ns:=/{namespace}"])
    graph = Graph(threads=1)
    try:
        node.wait_for_line("ready")
        asker = graph.node("asker", namespace=f"/{namespace}")
        yield node, Asker(asker, GenerateRollout, names.GENERATE.name)
    finally:
        code = node.stop()
        graph.close()
    assert code == 0, node.text


@pytest.mark.full
@pytest.mark.parametrize(
    "preset",
    [
        "composite",
        pytest.param(
            "nano",
            marks=pytest.mark.skipif(shipped_weights("nano") is None, reason="needs the nano model's weights"),
        ),
    ],
)
def test_rollouts_in_a_row_leave_memory_and_files_flat(
    preset: str, figures: Figures, full: Callable[[int, int], int]
) -> None:
    count = full(1000, 20)
    goal = pick_goal(180, 120, frames=25).goal
    memory: list[list[float]] = []
    files: list[list[int]] = []
    with generator(f"load_{preset}", {"preset": preset}) as (node, asker):
        started = time.monotonic()
        for seed in range(count):
            goal.seed = seed
            result = asker.result(asker.send(goal))
            assert result.error.code == ErrorCode.NONE, result.error.message
            assert len(result.rollout.rgb) == 25
            pids = family(node.process.pid)
            assert len(pids) == 2, "node and worker"
            memory.append([resident_mb(pid) for pid in pids])
            files.append([open_files(pid) for pid in pids])
        elapsed_s = time.monotonic() - started
    tenth = max(count // 10, 5)
    early, late = (np.median(part, axis=0) for part in (memory[tenth : 2 * tenth], memory[-tenth:]))
    name = f"{preset}: rollouts in a row"
    figures.note(name, "rollouts", count)
    figures.note(name, "seconds each", round(elapsed_s / count, 3))
    for which, before, after in zip(("node", "worker"), early, late, strict=True):
        figures.note(name, f"{which}'s memory", f"{before:.1f} -> {after:.1f}", "MB")
    figures.note(name, "open files", f"{files[tenth]} -> {files[-1]}")
    assert np.all(late - early < GROWTH_MB)
    assert np.all(np.array(files[-1]) <= np.array(files[tenth]) + 2)


@pytest.mark.long
def test_clouds_at_30_hz_for_ten_minutes_lose_none(figures: Figures) -> None:
    """18,000 organised clouds of 720 x 480 from one process to another, made as playback makes them."""
    script = ROOT / "test" / "support" / "cloud_stream.py"
    count = round(600 * RATE_HZ)
    with peer(script, "receive", str(count), timeout_s=60.0) as receiver, peer(script, "send", str(count)) as sender:
        assert receiver.stdout is not None
        assert sender.stdout is not None
        told = sender.stdout.readline().split()
        came = receiver.stdout.readline().split()
    figures.note("clouds of 5.5 MB at 30 Hz", "sent", int(told[0]))
    figures.note("clouds of 5.5 MB at 30 Hz", "lost", count - int(came[0]))
    figures.note("clouds of 5.5 MB at 30 Hz", "minutes", round(float(told[1]) / 60, 1))
    figures.note("clouds of 5.5 MB at 30 Hz", "latency p50 / p99 / worst", came[1], "ms")
    figures.note("clouds of 5.5 MB at 30 Hz", "receiver's memory", came[2], "MB")
    assert int(came[0]) == count


def test_a_full_queue_rejects_at_once(figures: Figures, full: Callable[[int, int], int]) -> None:
    offered, queue = full(500, 20), 2
    goal = pick_goal(90, 60, frames=3).goal
    with generator("overflow", {"preset": SPEC, "queue": queue}) as (_, asker):
        goal.seed = SLOW
        taken = [asker.send(goal) for _ in range(queue + 1)]
        assert all(handle.accepted for handle in taken)
        waits = []
        for _ in range(offered):
            asked = time.monotonic()
            assert not asker.send(goal).accepted
            waits.append(time.monotonic() - asked)
        for handle in taken:
            asker.cancel(handle)
            assert asker.result(handle).error.code == ErrorCode.CANCELLED
        goal.seed = WORK
        assert asker.result(asker.send(goal)).error.code == ErrorCode.NONE
    p50, p99 = 1e3 * np.percentile(waits, [50, 99])
    figures.note("goals offered to a full queue", "rejected", f"{len(waits)} of {offered}")
    figures.note("goals offered to a full queue", "answered after p50 / p99", f"{p50:.1f} / {p99:.1f}", "ms")


@pytest.mark.full
def test_cancelled_goals_end_soon(figures: Figures, full: Callable[[int, int], int]) -> None:
    """The back-end looks at the cancellation between steps of 20 ms; a goal that is not stopped has 20 s to go."""
    rounds = full(200, 5)
    goal = pick_goal(90, 60, frames=3).goal
    goal.seed = SLOW
    waits, overruns = [], []
    with generator("cancelled", {"preset": SPEC, "queue": 1}) as (_, asker):
        for _ in range(rounds):
            steps: list[int] = []
            handle = asker.send(goal, lambda m, seen=steps: seen.append(m.feedback.step))
            wait_for(lambda seen=steps: seen and seen[-1] >= 2, WAIT_S, "progress")
            asked, at_step = time.monotonic(), steps[-1]
            asker.cancel(handle)
            assert asker.result(handle).error.code == ErrorCode.CANCELLED
            waits.append(time.monotonic() - asked)
            overruns.append(steps[-1] - at_step)
    p50, p95, p99 = 1e3 * np.percentile(waits, [50, 95, 99])
    figures.note("cancellation, steps of 20 ms", "goals", rounds)
    figures.note("cancellation, steps of 20 ms", "p50 / p95 / p99", f"{p50:.0f} / {p95:.0f} / {p99:.0f}", "ms")
    figures.note("cancellation, steps of 20 ms", "steps done meanwhile, at most", max(overruns))
    assert np.percentile(overruns, 95) < 50
