"""RViz marker node: a menu beside the arm, text above it, and a robot that follows the played plan.

A client of the same services as the page: the gate decides. `rviz_menu` decides which choices count.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from visualization_msgs.msg import InteractiveMarkerFeedback

from kinema4d_msgs.msg import ExecutionStatus, PreviewStatus
from kinema4d_msgs.srv import Playback
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.core.outcomes import outcome_lines
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.previews.checks import WorldChanges, believed
from kinema4d_ros.previews.playback import PlaybackClock
from kinema4d_ros.previews.report import PlanReport
from kinema4d_ros.previews.report.plan_report import BASIS_TEXT
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import ServiceCalls, missing
from kinema4d_ros.ros.interactive import USES_INTERACTIVE_MARKERS, InteractiveMarkerServer
from kinema4d_ros.ros.messages.errors import error_from_msg, raise_from_msg
from kinema4d_ros.ros.messages.page import progress_from_msg, report_from_msg
from kinema4d_ros.ros.messages.rviz import Tone, lines_to_markers, menu_to_marker, robot_to_markers, wipe
from kinema4d_ros.ros.messages.stamps import nanoseconds
from kinema4d_ros.ros.messages.trajectories import trajectory_from_msg
from kinema4d_ros.ros.nodes.common import Health, KinemaNode, run_node
from kinema4d_ros.ros.nodes.desk import DeskCalls
from kinema4d_ros.ros.nodes.inputs import ArmInput
from kinema4d_ros.ros.nodes.rviz_menu import Choice, Entry, Menu, Offer
from kinema4d_ros.ros.params import declare, parameter
from kinema4d_ros.ros.qos import profile
from kinema4d_ros.web.approval import PlanDesk

__all__ = ["RvizMarker", "main"]

MARKER = "kinema4d"
SHOW_S, FOLLOW_S, TICK_S = 0.1, 0.2, 0.02
"""Periods in seconds: of text and menu, of questions to the playback, and of looking for the next frame."""

PLANS = (names.PLAN, names.DISPLAY_PLAN, names.EE_PATH, names.EE_TIMED_PATH)
_UNPLAYED = "The prediction cannot be played"
_WARNINGS = 3
"""Warnings of a report that are shown; its topic has all."""


@dataclass(frozen=True)
class Settings:
    """Parameters of the marker."""

    robot: str = parameter("yam", "A robot's name, or the path of a .urdf or .xacro file.", read_only=True)
    max_age_s: float = parameter(1.0, "Joint states older than this are stale.", low=0.05, high=10.0, read_only=True)
    x_m: float = parameter(0.0, "Place of the menu in the robot's base frame.", low=-10.0, high=10.0, read_only=True)
    y_m: float = parameter(-0.3, "The same.", low=-10.0, high=10.0, read_only=True)
    z_m: float = parameter(0.1, "The same.", low=-10.0, high=10.0, read_only=True)


@dataclass(frozen=True, eq=False)
class Shown:
    """A previewed plan.

    Attributes:
        plan_hash, rollout_id: of the plan and its rollout.
        world_ns: stamp of the image that the preview starts from.
        report: its report, once it arrived; None before.
        base_T_links: (T, L, 4, 4) poses of the links at the frames of the rollout; None before the report.
    """

    plan_hash: str
    rollout_id: str
    world_ns: int
    plan: Any
    report: PlanReport | None = None
    base_T_links: NDArray[np.float64] | None = None


class RvizMarker(KinemaNode):
    """Server of the menu, and publisher of text and planned robot."""

    def __init__(self) -> None:
        super().__init__("rviz_marker")
        self._settings = settings = declare(self, Settings)
        self._robot = Robot.load(settings.robot)
        forward_all(self._robot, self._robot.home_position()[None])  # load compiled code before the first plan
        self._desk, self._menu = PlanDesk(), Menu()
        self._lock = threading.Lock()
        self._shown: Shown | None = None
        self._report: PlanReport | None = None
        self._player = PlaybackClock()
        self._outcome = 0
        self._changes = WorldChanges()
        self._progress: tuple[str, Tone] = ("Waiting for a plan", "quiet")
        self._said: tuple[str, Tone] | None = None
        self._last_plan: tuple[names.Endpoint, Any] | None = None
        self._choices: queue.Queue[Any] = queue.Queue(maxsize=8)
        self._refused = self._taken = 0
        self._arm = ArmInput(self, self._robot, settings.max_age_s)
        self._status = self.publisher(names.RVIZ_STATUS)
        self._ghost = self.publisher(names.PREDICTED_ROBOT)
        self._plans = self._subscribe_plans()
        self._calls = ServiceCalls(self, self.closing, (names.PLAYBACK, names.APPROVE, names.EXECUTE))
        self._gate = DeskCalls(self, self._desk, self._calls)
        self._server = InteractiveMarkerServer(
            self,
            names.MENU_NAMESPACE,
            update_pub_qos=profile(names.MENU_UPDATE),
            feedback_sub_qos=profile(names.MENU_FEEDBACK),
        )
        self.subscription(names.PREVIEW_STATUS, self._hear_status)
        self.subscription(names.PLAN_REPORT, lambda message: self._guarded("report", self._hear_report, message))
        self.subscription(names.PREVIEWED_PLAN, lambda message: self._guarded("plan", self._hear_plan, message))
        self.subscription(names.WORLD_CHANGED, lambda message: self._guarded("scene", self._hear_change, message))
        self.subscription(names.EXECUTION_STATUS, self._hear_execution)
        self._last_menu: Any = None
        self._last_lines: Any = None
        self._show()
        self._threads = [
            threading.Thread(target=self._forever, args=(name, work, period_s), name=name, daemon=True)
            for name, work, period_s in (
                ("show", self._show, SHOW_S),
                ("follow", self._follow, FOLLOW_S),
                ("robot", self._draw_forever, TICK_S),
                ("choices", self._take_choice, 0.0),
            )
        ]
        for thread in self._threads:
            thread.start()

    def _subscribe_plans(self) -> dict[str, Any]:
        """Keep the newest plan of every kind, to preview it again; return the publishers for that."""
        publishers = {}
        for endpoint in PLANS:
            try:
                self.subscription(endpoint, partial(self._keep, endpoint))
                publishers[endpoint.name] = self.publisher(endpoint)
            except ImportError:
                self.get_logger().info(f"{endpoint.type} is not installed: such plans are not previewed again")
        return publishers

    # Subscriptions.

    def _keep(self, endpoint: names.Endpoint, message: Any) -> None:
        with self._lock:
            self._last_plan = (endpoint, message)

    def _hear_status(self, message: Any) -> None:
        progress, error = progress_from_msg(message)
        detail = f", {progress.detail}" if progress.detail else ""
        tone: Tone = progress.tone
        self._progress = (f"Preview: {progress.word}{detail}", tone)
        if error is not None:
            self._say(str(error), "bad")
        elif message.phase in (PreviewStatus.CHECKING, PreviewStatus.DONE):
            self._said = None

    def _hear_report(self, message: Any) -> None:
        report = report_from_msg(message)
        with self._lock:
            self._report = report
        self._join()

    def _hear_plan(self, message: Any) -> None:
        plan = trajectory_from_msg(message.trajectory)
        world_ns = believed(nanoseconds(message.world_stamp), self.clock_ns())
        if world_ns <= self._changes.newest_ns:
            return  # the gate refuses it: the scene changed after its image
        with self._lock:
            self._shown = Shown(message.plan_hash, message.rollout_id, world_ns, plan)
        self._menu.renew()
        self._desk.offer(message.plan_hash, message.rollout_id)
        self._join()

    def _join(self) -> None:
        """Match plan and report; only a plan with its report is drawn and can be approved."""
        with self._lock:
            shown, report = self._shown, self._report
        if shown is None or shown.report is not None or report is None:
            return
        if (report.plan_hash, report.rollout_id) != (shown.plan_hash, shown.rollout_id):
            return
        try:
            fill = self._arm.state().positions
        except KinemaError:
            fill = None
        plan = shown.plan
        positions = self._robot.positions(plan.names, plan.at(plan.times[0] + report.times), fill=fill)
        joined = replace(shown, report=report, base_T_links=forward_all(self._robot, positions))
        with self._lock:
            if self._shown is not shown:
                return
            self._shown = joined
            self._player.load(report.times, self.now_s())

    def _hear_change(self, message: Any) -> None:
        changed_ns = self.hear_change(self._changes, message)
        with self._lock:
            stale = self._shown is not None and self._shown.world_ns <= changed_ns
        if stale:
            self._forget("The scene changed: preview again", "bad")

    def _hear_execution(self, message: Any) -> None:
        self._gate.execution = message
        with self._lock:
            ours = self._shown is not None and self._shown.plan_hash == message.plan_hash
        if not ours:
            return
        if message.phase == ExecutionStatus.SENT:
            duration_s = message.duration_s if math.isfinite(message.duration_s) else 0.0
            self._desk.executed(message.plan_hash, self.now_s(), duration_s)  # by another client, perhaps
            return
        self._desk.stopped()
        if message.phase == ExecutionStatus.ABORTED:
            self._say(str(error_from_msg(message.error) or "the arm's controller aborted the plan"), "bad")
        else:
            self._say("The robot followed the plan to its end", "good")

    def _forget(self, why: str, tone: Tone) -> None:
        self._menu.renew()
        self._desk.withdraw()
        with self._lock:
            self._shown = None
        self._say(why, tone)

    def _say(self, text: str, tone: Tone) -> None:
        self._said = (text, tone)

    # What RViz shows.

    def _show(self) -> None:
        with self._lock:
            shown = self._shown
        desk = self._desk.now(self.now_s())
        outcomes = len(shown.report.outcomes) if shown is not None and shown.report is not None else 0
        self._menu.offer(Offer(desk, self._player.playing, self._player.speed, outcomes))
        control, rows = self._menu.entries()
        ready: Tone = "good" if desk.may_execute else "busy" if desk.may_approve else "quiet"
        if (control, rows, ready) != self._last_menu:
            self._last_menu = (control, rows, ready)
            at = (self._settings.x_m, self._settings.y_m, self._settings.z_m)
            marker = menu_to_marker(rows, self._robot.base_link, MARKER, control, ready, at)
            self._server.insert(marker, feedback_callback=self._enqueue)
            self._server.applyChanges()
        lines = [self._progress, *self._verdict(shown)]
        lines += [self._said] if self._said is not None else []
        lines.append((desk.text, ready))
        if lines != self._last_lines:
            self._last_lines = lines
            self._status.publish(lines_to_markers(lines, self._robot.base_link))

    def _verdict(self, shown: Shown | None) -> list[tuple[str, Tone]]:
        report = None if shown is None else shown.report
        if report is None:
            return []
        lines: list[tuple[str, Tone]] = []
        if report.outcomes:
            line = outcome_lines(report.outcomes)[min(self._outcome, len(report.outcomes) - 1)]
            lines.append((f"{line} (outcome {self._outcome + 1} of {len(report.outcomes)} is played)", "busy"))
        if report.contact:
            lines.append((f"{report.first_contact_link} touches the scene at {report.first_contact_s:.1f} s", "bad"))
        elif math.isfinite(report.min_clearance_m):
            safe: Tone = "good" if report.clearance_basis == "measured" else "doubtful"
            basis = "" if safe == "good" else f" ({BASIS_TEXT[report.clearance_basis]})"
            lines.append((f"Least clearance {1000 * report.min_clearance_m:.0f} mm{basis}", safe))
        lines += [(warning, "doubtful") for warning in report.warnings[:_WARNINGS]]
        if len(report.warnings) > _WARNINGS:
            lines.append((f"and {len(report.warnings) - _WARNINGS} more warnings in the report", "doubtful"))
        return lines

    def _follow(self) -> None:
        """Take the state of the playback; a plan can be approved while its rollout is played."""
        with self._lock:
            shown = self._shown
        if shown is None or shown.report is None:
            return
        try:
            answer = self._calls.call(names.PLAYBACK, Playback.Request(command=Playback.Request.STATUS))
        except KinemaError as error:
            self._desk.show("", "")
            self._say(f"{_UNPLAYED}: {error.what}", "bad")
            return
        if self._said is not None and self._said[0].startswith(_UNPLAYED):
            self._said = None
        self._played(shown, answer)

    def _played(self, shown: Shown, answer: Any) -> None:
        with self._lock:
            if self._shown is not shown:
                return
            if answer.rollout_id == shown.rollout_id:
                now_s = self.now_s()
                self._player.speed = answer.speed
                self._player.playing = answer.playing
                self._player.seek(min(max(answer.time_s, 0.0), self._player.duration_s), now_s)
                self._outcome = answer.outcome
                self._desk.show(shown.plan_hash, shown.rollout_id)
            else:
                self._desk.show("", answer.rollout_id)

    def _draw_forever(self) -> None:
        drawn: tuple[Shown, int] | None = None
        while not self.closing.wait(TICK_S):
            with self._lock:
                shown, frame = self._shown, self._player.frame(self.now_s())
            if shown is None or shown.base_T_links is None or shown.report is None or frame is None:
                if drawn is not None and shown is None:
                    self._ghost.publish(wipe(self._robot.base_link))
                    drawn = None
                continue
            if (shown, frame) != drawn and frame < len(shown.base_T_links):
                drawn = (shown, frame)
                self._ghost.publish(robot_to_markers(self._robot, shown.base_T_links[frame], shown.report.contact))

    # Choices.

    def _enqueue(self, feedback: Any) -> None:
        if feedback.event_type != InteractiveMarkerFeedback.MENU_SELECT:
            return
        try:
            self._choices.put_nowait(feedback)
        except queue.Full:
            self._refused += 1
            self._say("Too many choices at once: some were discarded", "bad")

    def _take_choice(self) -> None:
        try:
            feedback = self._choices.get(timeout=0.5)
        except queue.Empty:
            return
        try:
            known = feedback.client_id in self._choosing_nodes()
            choice = self._menu.choose(feedback.menu_entry_id, feedback.control_name, feedback.client_id, known)
            self._taken += 1
            self._act(choice)
        except KinemaError as error:
            self._refused += 1
            self.get_logger().warning(f"menu: {error}")
            self._say(str(error), "bad")

    def _choosing_nodes(self) -> set[str]:
        """Return the full names of the nodes that publish choices."""
        found = self.get_publishers_info_by_topic(names.MENU_FEEDBACK.name)
        return {f"{one.node_namespace.rstrip('/')}/{one.node_name}" for one in found}

    def _act(self, choice: Choice) -> None:
        playback = Playback.Request
        if choice.entry is Entry.APPROVE:
            self._approve(choice)
        elif choice.entry is Entry.EXECUTE:
            self._execute(choice)
        elif choice.entry is Entry.PREVIEW:
            self._preview_again()
        elif choice.entry is Entry.DISCARD:
            self._forget("Discarded: the plan is no longer offered here", "quiet")
        elif choice.entry is Entry.REPLAY:
            self._command(playback.SEEK, 0.0)
            self._command(playback.PLAY)
        elif choice.entry is Entry.PAUSE:
            self._command(playback.PAUSE if self._player.playing else playback.PLAY)
        elif choice.entry is Entry.SPEED:
            self._command(playback.SPEED, choice.speed)
        elif choice.entry is Entry.OUTCOME:
            with self._lock:
                report = None if self._shown is None else self._shown.report
                following = (self._outcome + 1) % max(len(report.outcomes) if report is not None else 0, 1)
            self._command(playback.OUTCOME, float(following))

    def _approve(self, choice: Choice) -> None:
        desk = self._desk.now(self.now_s())
        if not (choice.desk.may_approve and desk.may_approve and choice.desk.plan_hash == desk.plan_hash):
            self._say(f"Not approved. {desk.text}", "bad")
            return
        self._menu.approved_by(choice.client)
        self._gate.approve(desk, f"RViz {choice.client}")
        self._say("Approved. The robot moves when Execute is chosen", "good")

    def _execute(self, choice: Choice) -> None:
        desk = self._desk.now(self.now_s())
        if not (choice.desk.may_execute and desk.may_execute and choice.desk.plan_hash == desk.plan_hash):
            self._say(f"Not executed. {desk.text}", "bad")
            return
        duration_s = self._gate.execute(desk)
        self._say(f"The robot follows the plan, {duration_s:.1f} s", "good")

    def _preview_again(self) -> None:
        with self._lock:
            last = self._last_plan
        if last is None:
            self._say("No plan has arrived since this node started", "bad")
            return
        endpoint, message = last
        publisher = self._plans[endpoint.name]
        if publisher.get_subscription_count() < 2:  # one is this node's own
            raise missing(endpoint, "no preview node")
        publisher.publish(_stamped(endpoint, message, self.get_clock().now().to_msg()))

    def _command(self, command: int, value: float = 0.0) -> None:
        with self._lock:
            shown = self._shown
        answer = self._calls.call(names.PLAYBACK, Playback.Request(command=command, value=value))
        raise_from_msg(answer.error)
        if shown is not None and shown.report is not None:
            self._played(shown, answer)

    # Threads.

    def _forever(self, name: str, work: Callable[[], None], period_s: float) -> None:
        while not self.closing.wait(period_s):
            self._guarded(name, work)

    def _guarded(self, name: str, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:
            if not self.closing.is_set():
                self.complain(error, f"{name}: ")

    def health(self) -> Health:
        """Report how many choices were taken and refused."""
        server = "interactive_markers" if USES_INTERACTIVE_MARKERS else "stand-in"
        values = {"choices": self._taken, "refused": self._refused, "marker server": server}
        return Health(message=self._desk.now(self.now_s()).text, values=values)

    def close(self) -> None:
        """Wait for the threads and remove the menu."""
        super().close()
        for thread in self._threads:
            thread.join(timeout=5.0)
        self._server.shutdown()


def _stamped(endpoint: names.Endpoint, message: Any, stamp: Any) -> Any:
    """Stamp a plan that is sent again as a new one."""
    if endpoint is names.DISPLAY_PLAN:
        for part in message.trajectory[:1]:
            part.joint_trajectory.header.stamp = stamp
    else:
        message.header.stamp = stamp
    return message


def main() -> int:
    """Run the node."""
    return run_node(RvizMarker)


if __name__ == "__main__":
    raise SystemExit(main())
