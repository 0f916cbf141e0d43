"""Viewer node: serves the web page, an ordinary client of the graph's topics and services."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kinema4d_msgs.msg import ExecutionStatus, PreviewStatus
from kinema4d_msgs.srv import Playback
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.kinematics.protocol import Kinematics, choose_kinematics
from kinema4d_ros.lab.scenario import scenario_names
from kinema4d_ros.physics.objects import PlacedObject
from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import ServiceCalls, missing
from kinema4d_ros.ros.messages.errors import error_from_msg, raise_from_msg
from kinema4d_ros.ros.messages.page import objects_from_markers, progress_from_msg, report_from_msg
from kinema4d_ros.ros.messages.stamps import header, nanoseconds
from kinema4d_ros.ros.messages.trajectories import trajectory_to_msg
from kinema4d_ros.ros.nodes.common import WARN, Health, KinemaNode, load_scene, run_node
from kinema4d_ros.ros.nodes.desk import DeskCalls
from kinema4d_ros.ros.nodes.inputs import ArmInput, CameraInput
from kinema4d_ros.ros.nodes.viewer_prediction import PlaybackFollower, PredictionShow
from kinema4d_ros.ros.params import declare, parameter
from kinema4d_ros.web.approval import PlanDesk
from kinema4d_ros.web.demo import plan_home, plan_pick_and_place
from kinema4d_ros.web.page import Page
from kinema4d_ros.web.panel import Actions
from kinema4d_ros.web.server import TOKEN_VARIABLE, PageServer, is_loopback

__all__ = ["Buttons", "Viewer", "main"]

# Actions of the page's buttons: ordinary messages and service calls of the graph.

RESET_S, SETTLE_S = 30.0, 5.0
"""Timeouts in seconds: for a reset of the scene, and until messages of the new scene have arrived."""


class Buttons:
    """Actions of the buttons; they run in the caller's thread and show their outcome on the page."""

    def __init__(
        self, node: KinemaNode, page: Page, desk: PlanDesk, calls: ServiceCalls, arm: ArmInput, kinematics: Kinematics
    ) -> None:
        self._node = node
        self._page = page
        self._desk = desk
        self._calls = calls
        self._arm = arm
        self._kinematics = kinematics
        self._plans = node.publisher(names.PLAN)
        self.gate = DeskCalls(node, desk, calls)

    def preview_pick(self, name: str, objects: Mapping[str, PlacedObject]) -> None:
        """Plan a pick and place of an object, and send the plan for preview."""
        self._send(plan_pick_and_place(self._kinematics, self._arm.state().positions, dict(objects), name))

    def preview_home(self) -> None:
        """Plan a motion to the home position, and send the plan for preview."""
        self._send(plan_home(self._kinematics, self._arm.state().positions))

    def _send(self, plan: JointTrajectory) -> None:
        if self._plans.get_subscription_count() == 0:
            raise missing(names.PLAN, "no subscriber")
        self._page.say("busy", f"A plan of {plan.duration_s:.1f} s was sent for preview")
        base = self._kinematics.robot.base_link
        self._plans.publish(trajectory_to_msg(plan, header(self._node.get_clock().now().to_msg(), base)))

    def approve(self, approver: str) -> None:
        """Approve the current plan."""
        desk = self._desk.now(self._node.now_s())
        if not desk.may_approve:
            self._page.say("bad", f"Not approved. {desk.text}")
            return
        self.gate.approve(desk, approver)
        self._page.say("good", "Approved. The robot moves when Execute is pressed")

    def execute(self) -> None:
        """Execute the approved plan."""
        desk = self._desk.now(self._node.now_s())
        if not desk.may_execute:
            self._page.say("bad", f"Not executed. {desk.text}")
            return
        duration_s = self.gate.execute(desk)
        self._page.say("good", f"The robot follows the plan, {duration_s:.1f} s")

    def reset(self, scenario: str, seed: int, forget: Callable[[], None], settled: Callable[[int], bool]) -> None:
        """Reset the scene of the lab.

        `forget` discards the predictions of the old scene; `settled` returns whether all inputs of a plan have
        arrived since a stamp in nanoseconds.
        """
        request = names.LAB_RESET.interface().Request(scenario=scenario, seed=seed)
        self._page.say("busy", f"Resetting the scene: {scenario}, seed {seed}")
        answer = self._calls.call(names.LAB_RESET, request, RESET_S)
        raise_from_msg(answer.error)
        laid_ns = self._node.get_clock().now().nanoseconds
        forget()
        deadline = time.monotonic() + SETTLE_S
        while not settled(laid_ns) and time.monotonic() < deadline:
            if self._node.closing.wait(0.02):
                return
        self._page.say("good", f"On the table: {', '.join(answer.objects)}")


DRAW_S, STATUS_S, PLAYBACK_S = 1 / 15, 0.5, 0.1
PICTURE_S = 0.15


@dataclass(frozen=True)
class Settings:
    """Parameters of the page."""

    robot: str = parameter("yam", "A robot's name, or the path of a .urdf or .xacro file.", read_only=True)
    calibration: str = parameter("demo_lab", "The camera: a path, or a name in calibration/.", read_only=True)
    lab: bool = parameter(False, "Show the controls of the lab: objects and scenarios.", read_only=True)
    host: str = parameter(
        "127.0.0.1",
        f"Address to listen on; any address but loopback requires a token in {TOKEN_VARIABLE}.",
        read_only=True,
    )
    port: int = parameter(8080, "TCP port; 0 takes any free one.", low=0, high=65535, read_only=True)
    allowed_hosts: str = parameter("", "Further host names of this machine, comma-separated.", read_only=True)
    allow_remote_control: bool = parameter(
        False, "Enable Approve and Execute even if other machines can reach the page.", read_only=True
    )
    max_points: int = parameter(60_000, "Predicted points shown at once, at most.", low=100, high=1_000_000)
    max_age_s: float = parameter(1.0, "Joint states older than this are stale.", low=0.05, high=10.0, read_only=True)
    image_max_age_s: float = parameter(3.0, "Images older than this are stale.", low=0.05, high=60.0, read_only=True)


class Viewer(KinemaNode):
    """Connection between the graph and the web page: shows topics, and runs the actions of its buttons."""

    def __init__(self) -> None:
        super().__init__("viewer")
        self._settings = settings = declare(self, Settings)
        self._robot, lens = load_scene(settings.robot, settings.calibration)
        control = is_loopback(settings.host) or settings.allow_remote_control
        self._desk = PlanDesk(control)
        self._lock = threading.Lock()
        self._work: queue.Queue[tuple[str, Callable[[], None]]] = queue.Queue(maxsize=8)
        self._objects: dict[str, PlacedObject] = {}
        self._objects_ns = 0
        extra = tuple(name.strip() for name in settings.allowed_hosts.split(",") if name.strip())
        self._server = PageServer(settings.host, settings.port, extra, os.environ.get(TOKEN_VARIABLE, ""))
        self._page = Page(
            self._server,
            self._robot,
            lens.rectified(),
            self._actions(),
            lab=settings.lab,
            scenarios=scenario_names() if settings.lab else (),
        )
        self._connect(lens)
        self._threads = [
            threading.Thread(target=self._forever, args=(name, work, period), name=name, daemon=True)
            for name, work, period in (
                ("draw", self._draw, DRAW_S),
                ("status", self._show_status, STATUS_S),
                ("playback", self._playback.follow, PLAYBACK_S),
                ("rollouts", lambda: self._future.take(self._settings.max_points), 0.0),
                ("buttons", self._press, 0.0),
            )
        ]
        for thread in self._threads:
            thread.start()
        self._announce(control)

    def _connect(self, lens: Any) -> None:
        self._arm = ArmInput(self, self._robot, self._settings.max_age_s)
        self._eye = CameraInput(self, lens, self._settings.image_max_age_s)
        self._future = future = PredictionShow(self, self._page, self._desk, self._robot, self._arm)
        self._picture_ns, self._picture_due = 0, 0.0
        calls = ServiceCalls(self, self.closing, (names.PLAYBACK, names.APPROVE, names.EXECUTE, names.LAB_RESET))
        self._buttons = Buttons(self, self._page, self._desk, calls, self._arm, choose_kinematics(self._robot))
        self._playback = PlaybackFollower(self, self._page, calls, future)
        self.subscription(names.PREDICTED_ROLLOUT, future.hear_rollout)
        self.subscription(names.PLAN_REPORT, self._hear_report)
        self.subscription(names.PREVIEW_STATUS, self._hear_status)
        self.subscription(names.PREVIEWED_PLAN, lambda plan: self._guarded("plan", lambda: future.hear_plan(plan)))
        self.subscription(names.WORLD_CHANGED, lambda at: self._guarded("world", lambda: future.hear_change(at)))
        self.subscription(names.EXECUTION_STATUS, self._hear_execution)
        if self._settings.lab:
            self.subscription(names.LAB_OBJECTS, self._hear_objects)

    def _announce(self, control: bool) -> None:
        self.get_logger().info(f"the page is at {self._server.url}")
        if is_loopback(self._settings.host):
            return
        who = "Any client with the token can approve and execute" if control else "Approve and Execute are disabled"
        self.get_logger().warning(f"the page listens on {self._settings.host}, reachable from the network. {who}")

    def _actions(self) -> Actions:
        playback = Playback.Request
        return Actions(
            preview_pick=lambda name: self._enqueue("preview", lambda: self._preview_pick(name)),
            preview_home=lambda: self._enqueue("preview", lambda: self._buttons.preview_home()),
            approve=lambda: self._enqueue("approve", lambda: self._buttons.approve(f"page {self._server.url}")),
            execute=lambda: self._enqueue("execute", lambda: self._buttons.execute()),
            reset=lambda scenario, seed: self._enqueue("reset", lambda: self._reset(scenario, seed)),
            play=lambda: self._playback.wish(playback.PLAY),
            pause=lambda: self._playback.wish(playback.PAUSE),
            seek=lambda time_s: self._playback.seek(time_s),
            speed=lambda speed: self._playback.wish(playback.SPEED, speed),
            outcome=lambda number: self._playback.wish(playback.OUTCOME, number),
        )

    # Subscriptions.

    def _hear_report(self, message: Any) -> None:
        self._guarded("report", lambda: self._page.show_report(report_from_msg(message)))

    def _hear_status(self, message: Any) -> None:
        progress, error = progress_from_msg(message)
        self._page.show_progress(progress)
        if error is not None:
            self._page.say("bad", str(error))
        elif message.phase == PreviewStatus.DONE:
            self._page.say("quiet", "")

    def _hear_execution(self, message: Any) -> None:
        self._buttons.gate.execution = message
        if not self._future.shows_plan(message.plan_hash) or message.phase == ExecutionStatus.SENT:
            return
        self._desk.stopped()
        if message.phase == ExecutionStatus.ABORTED:
            self._page.say("bad", str(error_from_msg(message.error) or "the arm's controller aborted the plan"))
        else:
            self._page.say("good", "The robot followed the plan to its end")

    def _hear_objects(self, message: Any) -> None:
        def take() -> None:
            objects = objects_from_markers(message)
            with self._lock:
                self._objects = objects
                self._objects_ns = max((nanoseconds(marker.header.stamp) for marker in message.markers), default=0)
            self._page.show_objects(list(objects))

        self._guarded("objects", take)

    # Drawing.

    def _draw(self) -> None:
        if not self._page.windows:
            return
        with contextlib.suppress(KinemaError):  # the status line shows stale joint states
            self._page.show_arm(self._arm.state().positions)
        newest, now = self._eye.newest_stamp_ns(), time.monotonic()
        if newest != self._picture_ns and now >= self._picture_due:
            self._picture_ns, self._picture_due = newest, now + PICTURE_S
            self._page.show_camera(self._eye.picture().rgb)

    def _show_status(self) -> None:
        self._page.show_desk(self._desk.now(self.now_s()))
        try:
            self._arm.state()
            rate_hz = self._arm.monitor.counts(self.now_s()).rate_hz
            self._page.show_source("Twin", "good", "live", f"about {float(f'{rate_hz:.1g}'):g} joint states a second")
        except KinemaError as error:
            self._page.show_source("Twin", "bad", "stale", error.what)
        try:
            self._eye.picture()
            self._page.show_source("Camera", "good", "live", "")
        except KinemaError as error:
            self._page.show_source("Camera", "bad", "stale", error.what)

    # Buttons.

    def _enqueue(self, what: str, work: Callable[[], None]) -> None:
        try:
            self._work.put_nowait((what, work))
        except queue.Full:
            self._page.say("bad", f"Too many pending actions: '{what}' was discarded")

    def _press(self) -> None:
        try:
            what, work = self._work.get(timeout=0.5)
        except queue.Empty:
            return
        try:
            work()
        except KinemaError as error:
            self.get_logger().warning(f"{what}: {error}")
            self._page.say("bad", str(error))
        self._page.show_desk(self._desk.now(self.now_s()))

    def _preview_pick(self, name: str) -> None:
        with self._lock:
            objects = self._objects
        self._buttons.preview_pick(name, objects)

    def _reset(self, scenario: str, seed: int) -> None:
        if self._settings.lab:
            self._buttons.reset(scenario, seed, self._future.forget, self._heard_all_since)

    def _heard_all_since(self, stamp_ns: int) -> bool:
        try:
            arm_ns = self._arm.state().stamp_s * 1e9
        except KinemaError:
            return False
        return min(arm_ns, self._eye.newest_stamp_ns(), self._objects_ns) > stamp_ns

    # Threads.

    def _forever(self, name: str, work: Callable[[], None], period_s: float) -> None:
        while not self.closing.wait(period_s):
            self._guarded(name, work)

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            if not self.closing.is_set():
                self.complain(error, f"{name}: ")

    def health(self) -> Health:
        """Report the page's URL, the number of windows and refused requests."""
        refused = sum(self._server.refused.values())
        values = {"page": self._server.url, "windows": self._page.windows, "requests refused": refused}
        if refused:
            origins = ", ".join(name or "(none)" for name in list(self._server.refused)[:3])
            return Health(WARN, f"requests from other origins were refused: {origins}", values)
        return Health(message=f"{self._page.windows} windows", values=values)

    def close(self) -> None:
        """Close the page."""
        super().close()
        self._future.wake()
        for thread in self._threads:
            thread.join(timeout=5.0)
        self._server.stop()


def main() -> int:
    """Run the node."""
    return run_node(Viewer, threads=4)


if __name__ == "__main__":
    raise SystemExit(main())
