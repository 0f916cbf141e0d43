"""The whole page: live state, prediction, report and buttons. No ROS here.

    joint positions ─┐                    ┌─> 3D scene: twin, ghost, cloud, marks
    camera image ────┤                    ├─> images: now, predicted
    prediction ──────┼─> Page.show_* ────>├─> playback slider
    report, status ──┘                    └─> report, buttons ──> Actions

Every `show_*` may be called from any thread; one lock serialises them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.previews.report import PlanReport
from kinema4d_ros.previews.report.plot import clearance_plot
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.web import texts
from kinema4d_ros.web.approval import Desk
from kinema4d_ros.web.panel import Actions, Panel, change
from kinema4d_ros.web.prediction import Prediction, small_picture
from kinema4d_ros.web.scene import Scene3D
from kinema4d_ros.web.server import PageServer

__all__ = ["Page", "Progress"]

SLIDER_REST_S = 0.6
"""Seconds after user input during which the playback does not move the slider."""
PLOT_PERIOD_S = 0.25
PLOT_SIZE = (420, 210)
FRUSTUM_WIDTH, FRUSTUM_PERIOD_S = 240, 1.0
"""The image in the scene is small and updated slowly: each update redraws the whole scene in every browser."""


@dataclass(frozen=True)
class Progress:
    """Progress of a preview.

    Attributes:
        tone, word, detail: texts of the status line.
        fraction: 0 to 1, or None when no preview is running.
        known: whether `fraction` is known; otherwise the bar is only animated.
    """

    tone: texts.Tone
    word: str
    detail: str = ""
    fraction: float | None = None
    known: bool = False


class Page:
    """The page: displays the inputs of its `show_*` methods, and calls `actions` for its buttons."""

    def __init__(
        self,
        server: PageServer,
        robot: Robot,
        camera: PinholeCamera,
        actions: Actions,
        *,
        lab: bool = False,
        scenarios: Sequence[str] = (),
    ) -> None:
        self._server = server
        self._robot = robot
        self._lock = threading.RLock()
        self.scene = Scene3D(server, robot, camera)
        self.panel = Panel(
            server, robot.name, actions, lab=lab, scenarios=scenarios, size=(camera.width // 2, camera.height // 2)
        )
        self._prediction: Prediction | None = None
        self._planned: NDArray[np.float64] | None = None
        self._report: PlanReport | None = None
        self._frame = -1
        self._plot_due_s = self._frustum_due_s = 0.0
        self._touched_s = -math.inf
        self._rows: dict[str, tuple[texts.Tone, str, str]] = {
            "Twin": ("quiet", "waiting", "for joint states"),
            "Camera": ("quiet", "waiting", "for images"),
        }
        self._progress = Progress("quiet", "idle", "send a plan, or press Preview")
        self._watch_choices()

    @property
    def windows(self) -> int:
        """Number of open browser windows."""
        return len(self._server.get_clients())

    def show_arm(self, q: NDArray[np.float64]) -> None:
        """Show the arm at positions (J,)."""
        with self._lock, self._server.atomic():
            self.scene.live.move(q)

    def show_source(self, name: Literal["Twin", "Camera"], tone: texts.Tone, word: str, detail: str) -> None:
        """Show whether joint states or images arrive."""
        with self._lock:
            self._rows[name] = (tone, word, detail)
            self._show_status()

    def show_camera(self, rgb: NDArray[np.uint8]) -> None:
        """Show the newest camera image (H, W, 3) uint8."""
        with self._lock:
            small = small_picture(rgb)
            self.panel.set_html(self.panel.camera, texts.picture("Camera, now", small))
            now = time.monotonic()
            if self.scene.camera_visible and now >= self._frustum_due_s:
                self._frustum_due_s = now + FRUSTUM_PERIOD_S
                self.scene.show_camera(small_picture(small, FRUSTUM_WIDTH))

    def show_progress(self, progress: Progress) -> None:
        """Show the progress of the preview."""
        with self._lock:
            self._progress = progress
            bar: Any = self.panel.progress
            change(bar, "visible", progress.fraction is not None)
            if progress.fraction is not None:
                change(bar, "animated", not progress.known)
                bar.value = 100.0 if not progress.known else round(100.0 * min(max(progress.fraction, 0.0), 1.0))
            self._show_status()

    def show_prediction(self, prediction: Prediction | None, planned: NDArray[np.float64] | None = None) -> None:
        """Show a new rollout and the planned positions (T, J) at its frames; None clears the page."""
        with self._lock:
            self._prediction, self._planned, self._frame = prediction, planned, -1
            if prediction is None:
                self.scene.points_visible = self.scene.planned.visible = False
                self.panel.stop_playback()
                self.panel.set_outcomes((), 0)
                self.panel.set_html(self.panel.clock, texts.message_line("quiet", "Nothing to play yet"))
                return
            self._show_frame(0)
            self.panel.set_outcomes(prediction.outcomes, prediction.outcome)
            self.panel.set_playback(0.0, prediction.duration_s, False, move_slider=True)

    def show_outcome(self, prediction: Prediction) -> None:
        """Show another outcome of the same rollout; the playback goes on where it is."""
        with self._lock:
            if self._prediction is None or self._prediction.rollout_id != prediction.rollout_id:
                return
            self._prediction = prediction
            self.panel.set_outcomes(prediction.outcomes, prediction.outcome)
            self._show_frame(max(self._frame, 0), again=True)

    def show_planned(self, planned: NDArray[np.float64] | None) -> None:
        """Show the planned positions (T, J) at the frames of the rollout on the page."""
        with self._lock:
            self._planned = planned
            self._show_frame(max(self._frame, 0), again=True)

    def show_playback(self, time_s: float, playing: bool, speed: float) -> None:
        """Show the state of the playback."""
        with self._lock:
            prediction = self._prediction
            if prediction is None:
                return
            rested = time.monotonic() - self._touched_s > SLIDER_REST_S
            self.panel.set_playback(time_s, prediction.duration_s, playing, move_slider=rested)
            state = "playing" if playing else "paused"
            line = f"{time_s:4.1f} of {prediction.duration_s:.1f} s, {state}, {speed:g}x, by {prediction.maker}"
            self.panel.set_html(self.panel.clock, texts.message_line("quiet", line))
            self._show_frame(prediction.frame_at(time_s))

    def touched_slider(self) -> None:
        """Record user input on the slider: the playback does not move it for `SLIDER_REST_S`."""
        self._touched_s = time.monotonic()

    def playback_missing(self, why: str) -> None:
        """Show that the playback node is not available."""
        with self._lock:
            self.panel.stop_playback()
            self.panel.set_html(self.panel.clock, texts.message_line("bad", why))

    def show_report(self, report: PlanReport | None) -> None:
        """Show the plan report; None clears it."""
        with self._lock:
            self._report = report
            self.scene.show_report(report)
            if report is None:
                self.panel.set_html(self.panel.report, texts.message_line("quiet", "No plan has been previewed yet"))
                self.panel.set_html(self.panel.plot, "")
                self.panel.set_html(self.panel.warnings, "")
                return
            self.panel.set_html(self.panel.report, texts.report_table(report))
            self.panel.set_html(self.panel.warnings, texts.warning_list(report))
            self._show_plot(0.0)

    def show_desk(self, desk: Desk) -> None:
        """Show the allowed actions on the plan."""
        with self._lock:
            change(self.panel.approve, "disabled", not desk.may_approve)
            change(self.panel.execute, "disabled", not desk.may_execute)
            tone: texts.Tone = "good" if desk.may_execute else "busy" if desk.may_approve else "quiet"
            self.panel.set_html(self.panel.desk, texts.message_line(tone, desk.text))

    def show_objects(self, names: Sequence[str]) -> None:
        """Show the objects on the lab's table."""
        with self._lock:
            self.panel.set_objects(names)

    def say(self, tone: texts.Tone, text: str) -> None:
        """Show one line about the last action; "" clears it."""
        with self._lock:
            self.panel.set_html(self.panel.message, texts.message_line(tone, text) if text else "")

    def _show_status(self) -> None:
        progress = self._progress
        rows = [(name, *row) for name, row in self._rows.items()]
        rows.append(("Preview", progress.tone, progress.word, progress.detail))
        change(self.panel.status, "content", texts.status_rows(rows))

    def _show_frame(self, frame: int, *, again: bool = False) -> None:
        prediction = self._prediction
        if prediction is None or (frame == self._frame and not again):
            return
        self._frame = frame
        panel, scene = self.panel, self.scene
        panel.set_html(panel.predicted, texts.picture("Predicted", prediction.pictures[frame]))
        with self._server.atomic():
            if panel.show_points.value:
                scene.show_points(
                    prediction, frame, robot=panel.show_robot_points.value, guessed=panel.show_guessed.value
                )
            scene.points_visible = panel.show_points.value
            ghost = self._planned is not None and panel.show_planned.value
            if self._planned is not None and ghost:
                scene.planned.move(self._planned[frame])
            scene.planned.visible = ghost
        if time.monotonic() >= self._plot_due_s:
            self._show_plot(float(prediction.times[frame]))

    def _show_plot(self, cursor_s: float) -> None:
        if self._report is None or not len(self._report.times):
            return
        self._plot_due_s = time.monotonic() + PLOT_PERIOD_S
        drawn = clearance_plot(self._report, *PLOT_SIZE, cursor_s=cursor_s)
        self.panel.set_html(self.panel.plot, texts.picture("Clearance over time", drawn, ".png"))

    def _watch_choices(self) -> None:
        panel, scene = self.panel, self.scene

        def redraw(_: Any) -> None:
            with self._lock:
                scene.live.visible = panel.show_live.value
                scene.camera_visible = panel.show_camera.value
                scene.set_marks_visible(panel.show_marks.value)
                change(panel.legend, "visible", panel.show_guessed.value)
                self._show_frame(max(self._frame, 0), again=True)

        for choice in (
            panel.show_live,
            panel.show_planned,
            panel.show_points,
            panel.show_robot_points,
            panel.show_marks,
            panel.show_camera,
            panel.show_guessed,
        ):
            choice.on_update(redraw)
