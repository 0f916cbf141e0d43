"""Every way in which a node or its launcher ends: the process is gone, with its exit code, and nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.killed_graph import MARK, marked
from support.ros_graph import ROOT, wait_for
from support.sim_graph import process_environment

WAIT_S = 120.0
"""Against hangs; nothing here asserts how long a loaded machine takes."""

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    ("way", "told", "code"),
    [
        pytest.param("refuses", None, 2, id="refuses its parameters"),
        pytest.param("crashes", None, 1, id="constructor crashes"),
        pytest.param("runs", signal.SIGINT, 0, id="Ctrl-C"),
        pytest.param("runs", signal.SIGHUP, 0, id="closed terminal"),
        pytest.param("hangs", signal.SIGTERM, 0, id="told while its constructor hangs"),
    ],
)
def test_a_node_is_gone_with_its_exit_code(way: str, told: signal.Signals | None, code: int) -> None:
    """Whatever hangs at its end; and it has left DDS before, half-made or not."""
    node = subprocess.Popen(
        [sys.executable, str(ROOT / "test" / "support" / "ending_node.py"), way],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=process_environment(),
    )
    try:
        if told is not None:
            assert node.stdout is not None
            while (line := node.stdout.readline().strip()) != "up":
                assert line, "it never came up"
            node.send_signal(told)
        said, _ = node.communicate(timeout=WAIT_S)
    finally:
        node.kill()
        node.wait()
    assert node.returncode == code, said
    assert way == "hangs" or "left DDS" in said, said


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGHUP], ids=lambda how: how.name)
def test_no_process_outlives_the_command_that_started_it(how: signal.Signals, tmp_path: Path) -> None:
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    log = tmp_path / "log.txt"
    with log.open("wb") as out:
        command = subprocess.Popen(
            [sys.executable, "-m", "kinema4d_ros.cli", "generator", "--preset", "composite"],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=process_environment({MARK: mark}),
            cwd=ROOT,
        )
    try:
        wait_for(lambda: "]: ready" in log.read_text() or command.poll() is not None, WAIT_S, "a node")
        wait_for(lambda: len(marked(mark)) >= 3, WAIT_S, "the command, its node and the node's worker")
        command.send_signal(how)
        command.wait(timeout=WAIT_S)
        wait_for(lambda: not marked(mark), WAIT_S, f"the end of {marked(mark)}")
    finally:
        for pid in marked(mark, pids=True):
            os.kill(int(pid), signal.SIGKILL)
        command.wait()
