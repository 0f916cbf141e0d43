"""The generator on another machine whose network is cut: previews answer in time, and work again when it is healed."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.figures import Figures
from support.ros_graph import ROOT
from support.sim_graph import START_S, NodeProcess, process_environment, small_camera
from support.slow_generator import SPEC, VARIABLE
from support.two_machines import Cable, two_machines

from kinema4d_ros.core.errors import ErrorCode

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(1800)]

LEASE_S = 20.0
"""How long DDS believes in a participant that it no longer hears, by default."""

LOOK_S = 5.0
"""`server_timeout_s` of the preview: how long it looks for the generator, and misses it."""

RESULT_S = 10.0
"""`result_timeout_s` of the preview: how long a finished rollout may be under way."""

ANSWER_S = 60.0
"""Ten times what a preview may take here when all is well: against hangs, not a measure."""


class RobotSide:
    """The process on the robot's machine, told what to do."""

    def __init__(self, prefix: list[str], environment: Mapping[str, str], camera: str) -> None:
        script = str(ROOT / "test" / "support" / "robot_side.py")
        self.process = subprocess.Popen(
            [*prefix, sys.executable, script, camera],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=process_environment(environment),
        )
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))

    def tell(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def until(self, timeout_s: float, **wanted: Any) -> dict[str, Any]:
        """The next line that has these fields; any line with a code ends the wait as well."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {wanted or 'answer'} within {timeout_s} s") from None
            if "code" in line or (wanted and all(line.get(key) == value for key, value in wanted.items())):
                return line

    def preview(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """One preview's code and seconds."""
        self.tell("preview")
        return self.until(timeout_s)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=10)


class Setup:
    """Robot's machine with drivers and preview, another with the generator, and the cable between them."""

    def __init__(self, cable: Cable, robot: RobotSide, nodes: dict[str, NodeProcess], seconds: Path) -> None:
        self.cable, self.robot, self.nodes = cable, robot, nodes
        self._seconds = seconds

    def work_for(self, seconds: float) -> None:
        """How long a generation takes from now on."""
        self._seconds.write_text(str(seconds))

    def heal(self, *also: str) -> float:
        """Plug the cable in; seconds until a preview works again, those in between refused with a code."""
        self.cable.heal()
        began = time.monotonic()
        while True:
            answer = self.robot.preview()
            if answer["code"] == ErrorCode.NONE.name:
                return time.monotonic() - began
            assert answer["code"] in (*LOST, *also), answer
            assert time.monotonic() - began < 300.0, "the network is back, the preview is not"


POOR: dict[str, float] = {"loss_percent": 5.0, "delay_ms": 50.0}
POOR_WORDS = "network loses 5 %, delays 50 ms"
LOST = (ErrorCode.GENERATOR_UNAVAILABLE.name, ErrorCode.GENERATOR_TIMEOUT.name)
BUSY = ErrorCode.GENERATOR_BUSY.name
"""Goals that were given up on their way fill the queue until they are cancelled."""


@contextmanager
def joined(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[Setup]:
    """Both machines at work; `more` is added to their environment."""
    seconds = folder / "seconds"
    seconds.write_text("0")
    camera = small_camera(folder)
    # As the README says for a generator on another machine: discovery on the subnet, no profile.
    environment = {"ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET", VARIABLE: str(seconds), **(more or {})}
    profile = os.environ.pop("FASTRTPS_DEFAULT_PROFILES_FILE", None)
    nodes: dict[str, NodeProcess] = {}
    robot: RobotSide | None = None
    try:
        with two_machines() as cable:
            try:
                nodes["generator"] = NodeProcess(
                    "generator",
                    {"preset": SPEC, "cancel_grace_s": 1.0},
                    prefix=cable.server.prefix(),
                    environment=environment,
                )
                nodes["preview"] = NodeProcess(
                    "preview",
                    {"calibration": camera, "frames": 9, "server_timeout_s": LOOK_S, "result_timeout_s": RESULT_S},
                    prefix=cable.robot.prefix(),
                    environment=environment,
                )
                for node in nodes.values():
                    node.wait_for_line("ready")
                robot = RobotSide(cable.robot.prefix(), environment, camera)
                assert robot.until(START_S, phase="started")["phase"] == "started"
                robot.tell("health ready for a plan")
                assert robot.until(START_S)["code"] == ErrorCode.NONE.name
                yield Setup(cable, robot, nodes, seconds)
            finally:
                if robot is not None:
                    robot.close()
                codes = [node.stop() for node in nodes.values()]
            assert codes == [0, 0], [node.text for node in nodes.values()]
    finally:
        if profile is not None:
            os.environ["FASTRTPS_DEFAULT_PROFILES_FILE"] = profile


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    with joined(tmp_path_factory.mktemp("network")) as made:
        yield made


@pytest.fixture(autouse=True)
def healed(setup: Setup) -> Iterator[None]:
    """Each test begins and ends with a network that works."""
    yield
    setup.work_for(0.0)
    setup.cable.heal()


def test_previews_work_over_the_network(setup: Setup, figures: Figures) -> None:
    taken = []
    for _ in range(5):
        answer = setup.robot.preview()
        assert answer["code"] == ErrorCode.NONE.name, answer
        taken.append(answer["seconds"])
    figures.note("generator on another machine", "preview, median of 5", sorted(taken)[2], "s")


def test_a_poor_network_is_answered_in_time(setup: Setup, figures: Figures) -> None:
    """DDS's large datagrams hardly ever arrive whole: that is said, and forgotten when the network is well."""
    setup.cable.worsen(**POOR)
    answers = [setup.robot.preview() for _ in range(5)]
    assert {answer["code"] for answer in answers} <= {ErrorCode.NONE.name, BUSY, *LOST}, answers
    done = sum(answer["code"] == ErrorCode.NONE.name for answer in answers)
    figures.note(POOR_WORDS, "previews that work, as DDS is", f"{done} of 5")
    figures.note(POOR_WORDS, "slowest answer", max(answer["seconds"] for answer in answers), "s")
    figures.note(POOR_WORDS, "healed: next preview done after", round(setup.heal(BUSY), 2), "s")


def test_a_poor_network_loses_no_preview_with_the_profile_for_it(tmp_path: Path, figures: Figures) -> None:
    profile = {"FASTRTPS_DEFAULT_PROFILES_FILE": str(ROOT / "config" / "fastdds_network.xml")}
    with joined(tmp_path, profile) as setup:
        well = [setup.robot.preview() for _ in range(5)]
        setup.cable.worsen(**POOR)
        poorly = [setup.robot.preview() for _ in range(20)]
        for answer in (*well, *poorly):
            assert answer["code"] == ErrorCode.NONE.name, answer
    figures.note(POOR_WORDS, "previews that work with fastdds_network.xml", f"{len(poorly)} of {len(poorly)}")
    figures.note(POOR_WORDS, "median of them", sorted(a["seconds"] for a in poorly)[len(poorly) // 2], "s")
    figures.note(POOR_WORDS, "worst of them", max(a["seconds"] for a in poorly), "s")
    figures.note(
        "fastdds_network.xml, a good network", "preview, median of 5", sorted(a["seconds"] for a in well)[2], "s"
    )


def test_a_cut_of_two_seconds_during_generation_costs_nothing_but_time(setup: Setup, figures: Figures) -> None:
    setup.work_for(6.0)
    setup.robot.tell("preview")
    assert "phase" in setup.robot.until(ANSWER_S, phase="denoise")
    setup.cable.cut()
    time.sleep(2.0)
    setup.cable.heal()
    answer = setup.robot.until(ANSWER_S)
    assert answer["code"] == ErrorCode.NONE.name, answer
    figures.note("network cut for 2 s during generation", "the preview", "is finished as if nothing had been")
    figures.note("network cut for 2 s during generation", "preview of 6 s of work", answer["seconds"], "s")


def test_a_cut_before_a_goal_is_answered_in_time(setup: Setup, figures: Figures) -> None:
    setup.cable.cut()
    time.sleep(1.0)
    answer = setup.robot.preview()
    assert answer["code"] in LOST, answer
    healed_s = setup.heal()
    fault = "network cut just before a goal"
    figures.note(fault, "code", answer["code"])
    figures.note(fault, "answered after", answer["seconds"], "s")
    figures.note(fault, "healed: next preview done after", round(healed_s, 2), "s")


def test_a_long_cut_during_generation_is_noticed_and_healed(setup: Setup, figures: Figures) -> None:
    setup.work_for(15.0)
    setup.robot.tell("preview")
    assert "phase" in setup.robot.until(ANSWER_S, phase="denoise")
    setup.cable.cut()
    began = time.monotonic()
    answer = setup.robot.until(10 * (LEASE_S + LOOK_S))
    noticed_s = time.monotonic() - began
    assert answer["code"] in LOST, answer
    # Cut long since: both machines have forgotten each other, and the preview says so before anybody asks.
    setup.robot.tell("health no generator answers")
    assert setup.robot.until(ANSWER_S)["code"] == ErrorCode.NONE.name
    refused = setup.robot.preview()
    assert refused["code"] == ErrorCode.GENERATOR_UNAVAILABLE.name, refused
    setup.work_for(0.0)
    healed_s = setup.heal()
    fault = "network cut during generation, for longer than the DDS lease"
    figures.note(fault, "code", answer["code"])
    figures.note(fault, "answered after", round(noticed_s, 2), "s")
    figures.note(fault, "next plan while cut refused after", refused["seconds"], "s")
    figures.note(fault, "healed: next preview done after", round(healed_s, 2), "s")


def test_a_plan_refused_for_a_cut_leaves_the_generator_free(setup: Setup, figures: Figures) -> None:
    """An abandoned goal does not delay the next one until its own timeout."""
    setup.work_for(120.0)
    setup.robot.tell("preview")
    assert "phase" in setup.robot.until(ANSWER_S, phase="denoise")
    setup.cable.cut()
    answer = setup.robot.until(10 * (LEASE_S + LOOK_S))
    assert answer["code"] in LOST, answer
    setup.work_for(0.0)
    healed_s = setup.heal()
    assert healed_s < 60.0, "the next preview waited for an abandoned goal"
    figures.note("network cut, work of 120 s abandoned", "healed: next preview done after", round(healed_s, 2), "s")
