"""kill -9 of every node at random moments: it comes back, nothing acknowledged is lost, and the arm never moves for it.

Nodes die in small groups, at a moment of a plan's way chosen anew each time: while it is previewed, generated, played
or executed. Every node is killed once a round; between two kills it runs long enough for the supervisor to trust it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.figures import Figures
from support.killed_graph import WORKER, Kill, KilledGraph, killed_graph
from support.motions import WAIT_S, settle, swing, wait_until_ready
from support.recoveries import Recoveries
from support.ros_graph import Graph, own_domain, wait_for
from support.sim_graph import client

from kinema4d_msgs.msg import PreviewStatus
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory
from kinema4d_ros.evaluation.store import TrialStore
from kinema4d_ros.ros import names
from kinema4d_ros.ros.client import PreviewClient
from kinema4d_ros.ros.messages.trajectories import trajectory_from_msg
from kinema4d_ros.ros.nodes.recorder import FLUSH_S
from kinema4d_ros.ros.qos import profile

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(3600)]

GROUPS = (
    ("generator", "recorder"),
    ("gate",),
    ("preview", "viewer"),
    ("playback", "twin"),
    ("lab",),
    (WORKER, "evaluation"),
)
MOMENTS = ("generation", "motion", "preview", "playback")
FILES_OF_A_NODE = 4
"""In shared memory: two segments and their locks."""

CLIENT_S = 120.0
"""How long the client of a preview waits for its answer; against hangs."""


@dataclass
class Counts:
    """What is wrong if it is not nought, and what was done."""

    kills: int = 0
    executed: list[str] = field(default_factory=list)
    refused_after_kill: int = 0
    in_flight: dict[str, int] = field(default_factory=dict)
    answer_s: list[float] = field(default_factory=list)
    lost_s: list[float] = field(default_factory=list)
    lost_messages: list[int] = field(default_factory=list)
    read_bags: int = 0
    read_trials: int = 0


class Killing:
    """One run of kills over a graph."""

    def __init__(
        self, graph: KilledGraph, ros: Graph, user: PreviewClient, passenger: PreviewClient, seed: int
    ) -> None:
        self.graph, self.user = graph, user
        # Another client for plans in flight: one client waits for one answer at a time.
        self.passenger = passenger
        self.rng = random.Random(seed)  # noqa: S311 - moments, not secrets
        self.counts = Counts()
        self.recoveries = Recoveries(graph, ros, user)
        self.heard: list[str] = []
        """Hashes of what reached the arm's topic."""
        ears = ros.node("ears")
        ears.create_subscription(
            names.ARM_TRAJECTORY.interface(),
            names.ARM_TRAJECTORY.name,
            lambda message: self.heard.append(hash_trajectory(trajectory_from_msg(message))),
            profile(names.ARM_TRAJECTORY),
        )
        self._side, self._ready_s = 1.0, 0.0
        user.listen(names.DIAGNOSTICS, self._look)

    def plan(self) -> JointTrajectory:
        """To one side and back the next time, from where the arm is; never the same twice."""
        settle(self.user)
        position = self.user.newest(names.JOINT_STATES).position[0]
        self._side = -1.0 if position > 0.05 else 1.0
        return swing(self.user, self._side * self.rng.uniform(0.08, 0.12), duration_s=1.5)

    def preview(self, plan: JointTrajectory | None = None) -> str:
        """The hash of a plan that was previewed; tried again while nodes come back."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                return str(self.user.preview(plan or self.plan(), timeout_s=30.0).plan_hash)
            except KinemaError:
                assert time.monotonic() < deadline, self.graph.text

    def approved(self) -> tuple[str, str]:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                plan_hash = self.preview()
                return plan_hash, self.user.approve(plan_hash, "test")
            except KinemaError:
                # The arm's last motion, or a gate that has not heard of the plan: once more.
                assert time.monotonic() < deadline, self.graph.text

    def group(self, victims: tuple[str, ...], moment: str) -> None:
        """Kill a group at a moment; everything is well again when this returns."""
        old: tuple[str, str] | None = None
        if {"gate", "lab"} & set(victims) and moment in ("preview", "generation"):
            old = self.approved()
        if "evaluation" in victims:
            self.recoveries.evaluate()
        flight = _Flight(self.passenger, self.plan()) if moment in ("preview", "generation") else None
        if flight is not None:
            flight.start()
            if moment == "generation":
                flight.reached(PreviewStatus.GENERATING)
        elif moment == "playback":
            old = self.approved()
        else:
            old = self.approved()
            self.user.execute(*old)
            self.counts.executed.append(old[0])
        time.sleep(self.rng.uniform(0.0, 1.2))
        bag = self.graph.newest_bag()
        kills = [self.graph.kill(name) for name in victims]
        self.counts.kills += len(kills)
        self.recoveries.watch(kills, "preview" not in victims and moment in ("playback", "motion"))
        if flight is not None:
            self._landed(flight, victims)
        self.recoveries.join()
        self._look_at_what_is_left(kills, bag)
        if old is not None and {"gate", "lab"} & set(victims):
            self._try_old(old)
        self.user.wait_for(self._is_ready, WAIT_S, "a preview that is ready")

    def _is_ready(self) -> bool:
        """The preview itself says that it hears arm, camera and generator."""
        return self._ready_s > time.monotonic() - 1.5

    def _look(self, message: Any) -> None:
        if any(s.name.endswith("preview") and s.message.startswith("ready for a plan") for s in message.status):
            self._ready_s = time.monotonic()

    def _landed(self, flight: _Flight, victims: tuple[str, ...]) -> None:
        """A preview in flight ends with a rollout or an error code, whichever node died."""
        outcome, seconds = flight.land()
        self.counts.in_flight[outcome] = self.counts.in_flight.get(outcome, 0) + 1
        assert outcome != "silence", f"no answer after a kill of {victims}:\n{self.graph.text}"
        self.counts.answer_s.append(seconds)

    def _look_at_what_is_left(self, kills: list[Kill], bag: Path) -> None:
        for kill in kills:
            if kill.name == "recorder":
                seconds, messages = self.recoveries.lost(bag, kill)
                self.counts.lost_s.append(seconds)
                self.counts.lost_messages.append(messages)
                self.counts.read_bags += 1
            if kill.name == "evaluation":
                for folder in (self.graph.folder / "evaluations").glob("*/"):
                    TrialStore(folder).records()
                    self.counts.read_trials += 1

    def _try_old(self, old: tuple[str, str]) -> None:
        """What was approved before its gate or its world died moves nothing."""
        for attempt in (lambda: self.user.execute(*old), lambda: self.user.approve(old[0], "test")):
            with pytest.raises(KinemaError) as caught:
                attempt()
            assert caught.value.code != ErrorCode.GRAPH_UNAVAILABLE, "no answer"
            self.counts.refused_after_kill += 1


class _Flight:
    """A preview on its way in a thread of its own."""

    def __init__(self, user: PreviewClient, plan: JointTrajectory) -> None:
        self._user, self._plan = user, plan
        self.phase = 0
        self._outcome = ""
        self._began = 0.0
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._fly, daemon=True)

    def start(self) -> None:
        self._began = time.monotonic()
        self._thread.start()

    def _fly(self) -> None:
        def follow(status: Any) -> None:
            self.phase = max(self.phase, status.phase)

        try:
            self._user.preview(self._plan, follow, timeout_s=CLIENT_S)
            self._outcome = "rollout"
        except KinemaError as error:
            self._outcome = "silence" if error.what.startswith("the preview is not complete") else error.code.name
        self._seconds = time.monotonic() - self._began

    def reached(self, phase: int) -> None:
        self._user.wait_for(lambda: self.phase >= phase or bool(self._outcome), WAIT_S, "the generation")

    def land(self) -> tuple[str, float]:
        self._thread.join(timeout=CLIENT_S + 30.0)
        assert self._outcome, "the client itself hangs"
        return self._outcome, self._seconds


def percentiles(values: list[float]) -> dict[str, float]:
    p50, p95 = np.percentile(values, [50, 95])
    return {"p50": round(float(p50), 2), "p95": round(float(p95), 2), "max": round(max(values), 2)}


@pytest.mark.timeout(9000)
def test_every_node_is_killed_at_random_moments(
    tmp_path: Path, full: Callable[[Any, Any], Any], figures: Figures
) -> None:
    rounds, groups = full(20, 1), full(GROUPS, GROUPS[:2])
    # A preview gives a killed generator up when DDS does, which is after 20 s as shipped.
    with own_domain(), killed_graph(tmp_path, lease_s=full(0, 4)) as graph:
        ros = Graph(threads=2)
        try:
            with client() as user, PreviewClient() as passenger:
                for endpoint in (names.PREDICTED_ROLLOUT, names.PREDICTED_IMAGE):
                    user.listen(endpoint)
                user.wait_for(lambda: user.newest(names.JOINT_STATES) is not None, WAIT_S, "the arm")
                killing = Killing(graph, ros, user, passenger, seed=8)
                wait_until_ready(user, "preview", "gate")
                wait_for(graph.bag_has_messages, WAIT_S, "the recorder")
                for number in range(rounds):
                    for place, victims in enumerate(groups):
                        killing.group(victims, MOMENTS[(number + place) % len(MOMENTS)])
                    _check(killing)
                    _note(killing, figures)
        finally:
            ros.close()
    counts = killing.counts
    assert not graph.survivors()
    assert {len(seconds) for seconds in killing.recoveries.seconds.values()} == {rounds}
    assert len(killing.recoveries.seconds) == sum(len(victims) for victims in groups)
    assert counts.refused_after_kill >= 2 * rounds
    assert counts.read_bags == rounds


def _check(killing: Killing) -> None:
    graph, counts = killing.graph, killing.counts
    assert not graph.zombies()
    assert not any(member.failed for member in graph.supervisor.members), graph.text
    # Every message on the arm's topic is a motion that was approved, each once.
    assert set(killing.heard) <= set(counts.executed)
    assert len(killing.heard) == len(set(killing.heard))
    assert max(counts.lost_s) < 5 * FLUSH_S
    # What the dead leave in shared memory goes with the next restart: at most the last one of each node is there.
    files, megabytes = graph.shared_memory()
    assert files <= FILES_OF_A_NODE * len(graph.names), f"{files} files, {megabytes} MB"


def _note(killing: Killing, figures: Figures) -> None:
    counts = killing.counts
    for name, seconds in killing.recoveries.seconds.items():
        row = f"kill -9 of the {name}"
        figures.note(row, "kills", len(seconds))
        for which, value in percentiles(seconds).items():
            figures.note(row, f"works again after, {which}", value, "s")
    row = "kill -9 of every node of the graph"
    figures.note(row, "kills", counts.kills)
    figures.note(row, "motions that were approved and executed", len(counts.executed))
    figures.note(row, "messages to the arm without an approval", len(set(killing.heard) - set(counts.executed)))
    figures.note(row, "old approvals tried after a kill of gate or lab, refused", counts.refused_after_kill)
    for outcome, count in sorted(counts.in_flight.items()):
        figures.note(row, f"previews in flight that ended with {outcome}", count)
    if counts.answer_s:
        figures.note(row, "answer to a preview in flight, max", round(max(counts.answer_s), 1), "s")
    figures.note(row, "left in shared memory", killing.graph.shared_memory()[0], "files")
    figures.note("kill -9 of the recorder", "lost at the end of a bag, max", round(max(counts.lost_s), 2), "s")
    figures.note("kill -9 of the recorder", "joint states lost, max", max(counts.lost_messages))
    figures.note("kill -9 of the recorder", "bags read after their recorder was killed", counts.read_bags)
    if counts.read_trials:
        figures.note("kill -9 of the evaluation", "folders of evaluations read after a kill", counts.read_trials)
