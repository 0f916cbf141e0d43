"""Recovery after a kill: time until a node works again, seen from outside, and gaps in its files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.goals import goal
from support.killed_graph import WORKER, Kill, KilledGraph
from support.motions import WAIT_S, swing
from support.ros_graph import Graph, wait_for

from kinema4d_msgs.action import EvaluatePolicy, GenerateRollout
from kinema4d_msgs.srv import Playback
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.io.bags import opened_bag
from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import ActionCaller
from kinema4d_ros.ros.client import PreviewClient
from kinema4d_ros.ros.messages.stamps import nanoseconds

ANSWER_S = 3.0
"""Seconds before a request is retried."""


class Recoveries:
    """Monitors killed nodes until they work again; several at once, each in a thread."""

    def __init__(self, graph: KilledGraph, ros: Graph, user: PreviewClient) -> None:
        self._graph, self._ros, self._user = graph, ros, user
        node = ros.node("recoveries")
        self._generate = ActionCaller(node, GenerateRollout, names.GENERATE.name)
        self._evaluate = ActionCaller(node, EvaluatePolicy, names.EVALUATE.name)
        self._goal = goal()
        self._states: list[int] = []
        user.listen(names.JOINT_STATES, lambda message: self._states.append(nanoseconds(message.header.stamp)))
        self.seconds: dict[str, list[float]] = {}
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._rollout_lives = True

    def watch(self, kills: list[Kill], rollout_lives: bool) -> None:
        """Begin to measure; `rollout_lives`: a rollout was announced as done and the preview that holds it is alive."""
        self._rollout_lives = rollout_lives
        for kill in kills:
            thread = threading.Thread(target=self._measure, args=(kill,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        if self._errors:
            raise AssertionError(f"{self._errors[0]}\n{self._graph.text}") from self._errors[0]

    def _measure(self, kill: Kill) -> None:
        works: dict[str, Callable[[Kill], bool]] = {
            "lab": lambda k: self._newer(k, names.JOINT_STATES) and self._newer(k, names.CAMERA_IMAGE),
            "twin": lambda k: self._newer(k, names.ROBOT_OVERLAY),
            "preview": self._previews,
            "generator": self._generates,
            WORKER: self._generates,
            "playback": self._plays,
            "gate": self._gates,
            "viewer": lambda k: self._graph.page_answers(),
            "recorder": self._records,
            "evaluation": self._evaluates,
        }
        try:
            wait_for(lambda: self._is_another(kill) and works[kill.name](kill), WAIT_S, f"{kill.name} at work again")
            self.seconds.setdefault(kill.name, []).append(time.monotonic() - kill.at_s)
        except BaseException as error:
            self._errors.append(error)

    def _is_another(self, kill: Kill) -> bool:
        if kill.name == WORKER:
            return True
        member = next(m for m in self._graph.supervisor.members if m.spec.name == kill.name)
        return bool(self._graph.pid(kill.name) and member._started_s > kill.at_s)

    def _newer(self, kill: Kill, endpoint: Any) -> bool:
        message = self._user.newest(endpoint)
        return message is not None and nanoseconds(message.header.stamp) > kill.at_ns

    def _previews(self, _kill: Kill) -> bool:
        try:
            return bool(self._user.preview(swing(self._user, 0.02), timeout_s=ANSWER_S + 2.0))
        except KinemaError:
            return False

    def _generates(self, _kill: Kill) -> bool:
        handle = self._asked(self._generate, self._goal)
        if handle is None or not handle.accepted:
            time.sleep(0.05)
            return False
        answer = _answer(handle.get_result_async(), 4 * ANSWER_S)
        return answer is not None and answer.result.error.code == ErrorCode.NONE

    def _plays(self, _kill: Kill) -> bool:
        """Check that the service responds and that a late subscriber gets the announced rollout."""
        try:
            answer = self._user.call(names.PLAYBACK, Playback.Request(command=Playback.Request.STATUS), ANSWER_S)
        except KinemaError:
            return False
        rollout = self._user.newest(names.PREDICTED_ROLLOUT)
        return not self._rollout_lives or rollout is None or answer.rollout_id == rollout.rollout_id

    def _gates(self, _kill: Kill) -> bool:
        try:
            self._user.call(names.APPROVE, names.APPROVE.interface().Request(plan_hash="none"), ANSWER_S)
        except KinemaError:
            return False
        return True

    def _records(self, kill: Kill) -> bool:
        bag = self._graph.newest_bag()
        if bag.stat().st_ctime_ns < kill.at_ns or not bag.stat().st_size:
            return False
        size = bag.stat().st_size
        time.sleep(0.05)
        return bag.stat().st_size > size

    def evaluate(self) -> None:
        """Start an evaluation that is long enough to be killed."""
        wanted = EvaluatePolicy.Goal(task="pick", scenario="canonical", policy="expert", episodes=100)
        wait_for(lambda: self._asked(self._evaluate, wanted), WAIT_S, "an evaluation's begin")

    def _evaluates(self, _kill: Kill) -> bool:
        """Check that the node refuses an invalid goal with its own message."""
        handle = self._asked(self._evaluate, EvaluatePolicy.Goal(policy="expert", episodes=0))
        if handle is None or not handle.accepted:
            return False
        answer = _answer(handle.get_result_async())
        return answer is not None and answer.result.error.code != ErrorCode.NONE

    def _asked(self, caller: ActionCaller, goal: Any) -> Any:
        """Return the goal's handle, or None without a response in time."""
        return _answer(caller.send(goal)) if _answer(caller.heard()) is not None else None

    def lost(self, bag: Path, kill: Kill) -> tuple[float, int]:
        """Return the seconds before the kill that are missing in the bag, and the number of missing joint states."""
        with opened_bag(bag.parent) as (reader, notice):
            assert "never finished" in notice
            wanted = [c for c in reader.connections if c.topic.endswith(names.JOINT_STATES.name)]
            received = [stamp_ns for _, stamp_ns, _ in reader.messages(connections=wanted)]
            last_ns = max((stamp_ns for _, stamp_ns, _ in reader.messages()), default=0)
        assert received, "the bag has no joint states"
        lacking = sum(received[-1] < stamp_ns <= kill.at_ns for stamp_ns in self._states)
        self._states.clear()
        return max(0.0, (kill.at_ns - last_ns) * 1e-9), lacking


def _answer(question: Any, timeout_s: float = ANSWER_S) -> Any:
    """Return the response, or None if there is none in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if question.done():
            return question.result()
        time.sleep(0.005)
    return None
