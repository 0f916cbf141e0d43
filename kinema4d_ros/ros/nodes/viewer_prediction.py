"""Prediction on the page: the newest rollout, its plan, their validity, and the connection to the playback."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_msgs.srv import Playback
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.previews.checks import WorldChanges, believed
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import ServiceCalls
from kinema4d_ros.ros.messages.errors import error_from_msg
from kinema4d_ros.ros.messages.page import prediction_from_msg
from kinema4d_ros.ros.messages.stamps import nanoseconds
from kinema4d_ros.ros.messages.trajectories import trajectory_from_msg
from kinema4d_ros.ros.nodes.common import KinemaNode
from kinema4d_ros.ros.nodes.inputs import ArmInput
from kinema4d_ros.web.approval import PlanDesk
from kinema4d_ros.web.page import Page
from kinema4d_ros.web.prediction import Prediction

__all__ = ["PlaybackFollower", "PredictionShow"]


class PredictionShow:
    """Display of the newest rollout and plan on the page; also updates the approval desk. Thread-safe."""

    def __init__(self, node: KinemaNode, page: Page, desk: PlanDesk, robot: Robot, arm: ArmInput) -> None:
        self._node = node
        self._page = page
        self._desk = desk
        self._robot = robot
        self._arm = arm
        self._lock = threading.Lock()
        self._rollout: Any = None
        self._news = threading.Event()
        self._prediction: Prediction | None = None
        self._outcomes: dict[int, Prediction] = {}
        """Decoded outcomes of the rollout on the page, by their number."""
        self._wanted = 0
        self._plan: tuple[JointTrajectory, str] | None = None
        self._world_ns = 0
        self._changes = WorldChanges()

    def hear_rollout(self, message: Any) -> None:
        """Store a new rollout; `take` decodes it in a worker thread."""
        with self._lock:
            self._rollout = message
        self._news.set()

    def hear_plan(self, message: Any) -> None:
        """Offer a previewed plan for approval once its rollout is on the page."""
        plan = trajectory_from_msg(message.trajectory)
        world_ns = believed(nanoseconds(message.world_stamp), self._node.clock_ns())
        with self._lock:
            if world_ns <= self._changes.newest_ns:
                return  # the gate refuses it: the scene changed after its image
            self._world_ns = world_ns
            self._plan = (plan, message.plan_hash)
        self._desk.offer(message.plan_hash, message.rollout_id)
        self._show_planned()

    def hear_change(self, message: Any) -> None:
        """Discard predictions from before a change of the scene."""
        changed_ns = self._node.hear_change(self._changes, message)
        with self._lock:
            shown = self._plan is not None or self._prediction is not None
            stale = self._world_ns <= changed_ns
        if shown and stale:
            self.forget()

    def take(self, max_points: int) -> None:
        """Show the newest rollout, or outcome of it, that has not been shown yet; wait up to 0.5 s for one."""
        if not self._news.wait(timeout=0.5):
            return
        self._news.clear()
        with self._lock:
            message, shown, wanted = self._rollout, self._prediction, self._wanted
            known = self._outcomes.get(wanted)
        if message is None:
            return
        try:
            if shown is not None and shown.rollout_id == message.rollout_id:
                if wanted != shown.outcome:
                    self._switch(known or prediction_from_msg(message, max_points, self._is_old, wanted))
                return
            prediction = prediction_from_msg(message, max_points, self._is_old)
        except InterruptedError:
            return
        with self._lock:
            self._prediction, self._outcomes, self._wanted = prediction, {0: prediction}, 0
        self._page.show_prediction(prediction, self._planned(prediction))
        self._desk.show(prediction.plan_hash, prediction.rollout_id)
        self._show_planned()

    def want_outcome(self, number: int) -> None:
        """Show the outcome that the playback shows; `take` decodes it once, in a worker thread."""
        with self._lock:
            shown = self._prediction
            if shown is None or not 0 <= number < max(len(shown.outcomes), 1):
                return
            if number == self._wanted:
                return  # shown, or being decoded
            self._wanted = number
        self._news.set()

    def _switch(self, prediction: Prediction) -> None:
        with self._lock:
            if self._prediction is None or self._prediction.rollout_id != prediction.rollout_id:
                return
            self._prediction = self._outcomes[prediction.outcome] = prediction
        self._page.show_outcome(prediction)

    def forget(self) -> None:
        """Discard the prediction, its plan and its report."""
        self._desk.withdraw()
        with self._lock:
            self._prediction = self._plan = self._rollout = None
            self._outcomes = {}
        self._page.show_prediction(None)
        self._page.show_report(None)

    def shows_plan(self, plan_hash: str) -> bool:
        """Return whether the page shows that plan."""
        with self._lock:
            return self._plan is not None and self._plan[1] == plan_hash

    def shown_rollout(self) -> str | None:
        """Return the id of the rollout on the page, or None."""
        with self._lock:
            return None if self._prediction is None else self._prediction.rollout_id

    def wake(self) -> None:
        """Make `take` return immediately, for shutdown."""
        self._news.set()

    def _is_old(self) -> bool:
        return self._news.is_set() or self._node.closing.is_set()

    def _planned(self, prediction: Prediction) -> NDArray[np.float64] | None:
        """Return the (T, J) planned positions at the frames of a prediction; None when its plan is unknown."""
        with self._lock:
            if self._plan is None or self._plan[1] != prediction.plan_hash:
                return None
            plan = self._plan[0]
        try:
            fill = self._arm.state().positions
        except KinemaError:
            fill = None
        return self._robot.positions(plan.names, plan.at(plan.times[0] + prediction.times), fill=fill)

    def _show_planned(self) -> None:
        with self._lock:
            prediction = self._prediction
        if prediction is not None:
            self._page.show_planned(self._planned(prediction))


class PlaybackFollower:
    """Synchronisation of the page's playback controls with the playback node, through its service."""

    def __init__(self, node: KinemaNode, page: Page, calls: ServiceCalls, future: PredictionShow) -> None:
        self._node = node
        self._page = page
        self._calls = calls
        self._future = future
        self._lock = threading.Lock()
        self._wishes: dict[int, float] = {}

    def wish(self, command: int, value: float = 0.0) -> None:
        """Queue a command of kinema4d_msgs/srv/Playback; it replaces a queued one of the same kind."""
        with self._lock:
            self._wishes[command] = value

    def seek(self, time_s: float) -> None:
        """Queue a seek to a time of the rollout."""
        self._page.touched_slider()
        self.wish(Playback.Request.SEEK, time_s)

    def follow(self) -> None:
        """Send the queued commands, or request the playback status, and update the page."""
        with self._lock:
            wishes, self._wishes = self._wishes, {}
        if not wishes and (self._future.shown_rollout() is None or not self._page.windows):
            return
        try:
            for command, value in wishes.items() or ((Playback.Request.STATUS, 0.0),):
                answer = self._calls.call(names.PLAYBACK, Playback.Request(command=command, value=value))
                if (refused := error_from_msg(answer.error)) is not None:
                    self._page.say("bad", str(refused))
        except KinemaError as error:
            self._page.playback_missing(f"The prediction cannot be played: {error.what}")
            self._node.closing.wait(1.0)
            return
        if answer.rollout_id == self._future.shown_rollout():
            self._future.want_outcome(answer.outcome)
            self._page.show_playback(answer.time_s, answer.playing, answer.speed)
