"""The real graph for tests: nodes in separate processes on the test's ROS domain, and a client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.ros_graph import ROOT

from kinema4d_ros.calibration import read_camera, save_camera
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.ros import names
from kinema4d_ros.ros.client import PreviewClient

START_S = 120.0
"""Timeout in seconds for imports, compilation and discovery on a loaded machine; no test asserts the duration."""


def process_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a process that imports the package and the test modules, with unbuffered output."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(more or {})}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "test"), environment.get("PYTHONPATH", "")])
    return environment


class NodeProcess:
    """One node in a process; its output is kept for failure messages.

    `prefix` is put before its command, `environment` is added to this process's environment.
    """

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, Any] | None = None,
        arguments: Sequence[str] = (),
        script: Path | None = None,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        program = ["-m", f"kinema4d_ros.ros.nodes.{name}"] if script is None else [str(script)]
        command = [*prefix, sys.executable, *program, "--ros-args"]
        command += ["--params-file", str(ROOT / "config" / "sim.yaml"), *arguments]
        # Most tests are about the graph: the composite generator needs no model and starts in a second.
        own = {"preset": "composite"} if name == "generator" and script is None else {}
        for key, value in {**own, **(parameters or {})}.items():
            command += ["-p", f"{key}:={str(value).lower() if isinstance(value, bool) else value}"]
        self._command, self._environment = command, process_environment(environment)
        self.lines: list[str] = []
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env=self._environment,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line.rstrip())

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for_line(self, part: str, timeout_s: float = START_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not any(part in line for line in self.lines):
            if self.process.poll() is not None:
                self._reader.join(timeout=timeout_s)  # the last output may still be in the pipe
                assert any(part in line for line in self.lines), f"{self.name} ended:\n{self.text}"
            assert time.monotonic() < deadline, f"{self.name} never printed '{part}':\n{self.text}"
            time.sleep(0.02)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end:\n{self.text}") from None
        self._reader.join(timeout=5)
        return code


@contextmanager
def running(
    which: Sequence[str],
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[dict[str, NodeProcess]]:
    """Start nodes and wait until ready; stop them afterwards and check that none crashed. `arguments` go to all."""
    nodes = {name: NodeProcess(name, (parameters or {}).get(name), arguments) for name in which}
    try:
        for node in nodes.values():
            node.wait_for_line("ready")
        yield nodes
    finally:
        codes = {name: node.stop() for name, node in nodes.items()}
    assert set(codes.values()) == {0}, {n: (codes[n], nodes[n].text) for n in codes if codes[n]}


@contextmanager
def client(namespace: str = "") -> Iterator[PreviewClient]:
    """Return a client that already receives messages of the arm and the camera."""
    with PreviewClient(namespace) as made:
        for endpoint in (names.JOINT_STATES, names.CAMERA_IMAGE, names.ROBOT_OVERLAY):
            made.listen(endpoint)
        yield made


def small_camera(folder: Path, width: int = 180, height: int = 120) -> str:
    """Write a calibration like the demonstration's with fewer pixels, for tests that do not check images."""
    camera = read_camera(share_path("calibration/demo_lab.yaml")).scaled(width, height)
    path = folder / f"small_{width}x{height}.yaml"
    save_camera(path, camera)
    return str(path)


def kinema4d(*arguments: str, timeout_s: float = 300.0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line in a separate process."""
    return subprocess.run(
        [sys.executable, "-m", "kinema4d_ros.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=cwd or ROOT,
        env=dict(os.environ),
    )
