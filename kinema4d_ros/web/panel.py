"""Widgets of the page: status, buttons, images, playback and report; `Page` sets their content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import viser

from kinema4d_ros.core.outcomes import MAX_OUTCOMES
from kinema4d_ros.web import texts

__all__ = ["Actions", "Panel"]

LEFT_WIDTH, RIGHT_WIDTH = 340, 350
SPEEDS = ("0.25x", "0.5x", "1x", "2x", "4x")
LABEL_LETTERS = 80
_PAPER = 244


@dataclass(frozen=True)
class Actions:
    """Callbacks of the buttons. Each returns immediately; its outcome is shown later."""

    preview_pick: Callable[[str], None]
    preview_home: Callable[[], None]
    approve: Callable[[], None]
    execute: Callable[[], None]
    reset: Callable[[str, int], None]
    play: Callable[[], None]
    pause: Callable[[], None]
    seek: Callable[[float], None]
    speed: Callable[[float], None]
    outcome: Callable[[int], None]


class Panel:
    """All widgets of the page, shared by all open windows."""

    def __init__(
        self,
        server: viser.ViserServer,
        robot: str,
        actions: Actions,
        *,
        lab: bool,
        scenarios: Sequence[str],
        size: tuple[int, int],
    ) -> None:
        self._server = server
        self._actions = actions
        gui = server.gui
        gui.configure_theme(
            dark_mode=False, show_logo=False, show_share_button=False, brand_color=(23, 92, 211), control_width="large"
        )
        gui.main_panel.dock_right()
        gui.main_panel.set_width(RIGHT_WIDTH)
        gui.add_html(texts.headline(robot))
        self.status = gui.add_html(texts.status_rows([("Twin", "quiet", "starting", "")]))
        self.progress = gui.add_progress_bar(0, visible=False, color=(23, 92, 211))
        self.message = gui.add_html("", visible=False)
        with gui.add_folder("1  Plan"):
            self._add_plan(gui, lab)
        with gui.add_folder("2  Decide"):
            self._add_decide(gui)
        with gui.add_folder("Report"):
            self._add_report(gui)
        if lab:
            with gui.add_folder("Lab"):
                self._add_lab(gui, scenarios)
        with gui.add_folder("Show", expand_by_default=False):
            self._add_show(gui)
        self._add_pictures(gui, size)

    def _add_plan(self, gui: Any, lab: bool) -> None:
        self.object = gui.add_dropdown("Object", ("-",), visible=lab, disabled=True)
        self.pick = gui.add_button(
            "Preview pick and place",
            icon=viser.Icon.PLAYER_PLAY,
            visible=lab,
            hint="Publishes a plan on kinema4d/plan. Nothing moves.",
        )
        self.home = gui.add_button(
            "Preview motion home", icon=viser.Icon.HOME, color="gray", hint="Publishes a plan on kinema4d/plan."
        )
        self.pick.on_click(lambda _: self._actions.preview_pick(str(self.object.value)))
        self.home.on_click(lambda _: self._actions.preview_home())

    def _add_decide(self, gui: Any) -> None:
        self.desk = gui.add_html(texts.message_line("quiet", "Preview a plan first"))
        self.approve = gui.add_button(
            "Approve", icon=viser.Icon.CHECK, disabled=True, color="green", hint="I have checked this prediction."
        )
        self.execute = gui.add_button(
            "Execute", icon=viser.Icon.ROBOT, disabled=True, color="red", hint="The robot moves, once."
        )
        self.approve.on_click(lambda _: self._actions.approve())
        self.execute.on_click(lambda _: self._actions.execute())

    def _add_report(self, gui: Any) -> None:
        self.report = gui.add_html(texts.message_line("quiet", "No plan has been previewed yet"))
        self.warnings = gui.add_html("", visible=False)

    def _add_lab(self, gui: Any, scenarios: Sequence[str]) -> None:
        self.scenario = gui.add_dropdown("Scenario", tuple(scenarios))
        self.seed = gui.add_number("Seed", 0, min=0, max=2**31 - 1, step=1)
        self.reset = gui.add_button("Reset the scene", icon=viser.Icon.REFRESH, color="gray")
        self.reset.on_click(lambda _: self._actions.reset(str(self.scenario.value), int(self.seed.value)))

    def _add_show(self, gui: Any) -> None:
        self.show_live = gui.add_checkbox("Live robot", True)
        self.show_planned = gui.add_checkbox("Planned robot", True)
        self.show_points = gui.add_checkbox("Predicted points", True)
        self.show_robot_points = gui.add_checkbox("Predicted points of the robot", False)
        self.show_marks = gui.add_checkbox("Marks of the report", True)
        self.show_camera = gui.add_checkbox("Camera", True)

    def _add_pictures(self, gui: Any, size: tuple[int, int]) -> None:
        blank = np.full((size[1], size[0], 3), _PAPER, np.uint8)
        panel = gui.add_panel()
        with panel.add_tab("Now and predicted", viser.Icon.CAMERA):
            self.camera = gui.add_html(texts.picture("Camera, now", blank))
            self.predicted = gui.add_html(texts.picture("Predicted", blank))
            self.clock = gui.add_html(texts.message_line("quiet", "Nothing to play yet"))
            self.slider = gui.add_slider("Time (s)", 0.0, 1.0, 0.01, 0.0, disabled=True)
            self.play = gui.add_button("Play", icon=viser.Icon.PLAYER_PLAY, disabled=True, color="gray")
            self.pause = gui.add_button("Pause", icon=viser.Icon.PLAYER_PAUSE, visible=False, color="gray")
            self.speed = gui.add_button_group("Speed", SPEEDS)
            self.outcomes = [self._outcome_button(gui, number) for number in range(MAX_OUTCOMES)]
            self.show_guessed = gui.add_checkbox(
                "Show what is guessed", False, hint="Tints predicted points that no camera has measured."
            )
            self.legend = gui.add_html(texts.tint_legend(), visible=False)
            self.plot = gui.add_html("", visible=False)
        panel.dock_left()
        panel.set_width(LEFT_WIDTH)
        self.play.on_click(lambda _: self._actions.play())
        self.pause.on_click(lambda _: self._actions.pause())
        self.speed.on_click(lambda event: self._actions.speed(float(str(event.target.value).rstrip("x"))))
        self.slider.on_update(self._dragged)

    def _outcome_button(self, gui: Any, number: int) -> Any:
        button = gui.add_button(f"Outcome {number}", visible=False, color="gray", hint="Play this outcome.")
        button.on_click(lambda _: self._actions.outcome(number))
        return button

    def set_outcomes(self, outcomes: Sequence[str], shown: int) -> None:
        """Set the outcomes to choose from and the one that is shown; with fewer than two there is no choice."""
        for number, button in enumerate(self.outcomes):
            there = len(outcomes) > 1 and number < len(outcomes)
            if there:
                change(button, "label", outcomes[number][:LABEL_LETTERS])
                change(button, "color", "blue" if number == shown else "gray")
                icon = viser.Icon.EYE if number == shown else None
                change(button, "icon", icon)
            change(button, "visible", there)

    def _dragged(self, event: Any) -> None:
        # Without a client the slider was moved by this program.
        if event.client is not None:
            self._actions.seek(float(event.target.value))

    def set_objects(self, names: Sequence[str]) -> None:
        """Set the objects that can be picked."""
        choices = tuple(names) or ("-",)
        if tuple(self.object.options) != choices:
            self.object.options = choices
        change(self.object, "disabled", not names)

    def set_html(self, handle: Any, content: str) -> None:
        """Set the HTML of a widget; hide the widget when it is empty."""
        change(handle, "content", content)
        change(handle, "visible", bool(content))

    def set_playback(self, time_s: float, duration_s: float, playing: bool, *, move_slider: bool) -> None:
        """Set the state of the playback widgets."""
        if abs(self.slider.max - duration_s) > 1e-6 and duration_s > 0:
            self.slider.max = round(duration_s, 2)
        change(self.slider, "disabled", False)
        change(self.play, "disabled", False)
        change(self.play, "visible", not playing)
        change(self.pause, "visible", playing)
        if move_slider:
            self.slider.value = min(round(time_s, 2), self.slider.max)

    def stop_playback(self) -> None:
        """Disable the playback widgets."""
        for handle in (self.slider, self.play):
            change(handle, "disabled", True)
        change(self.play, "visible", True)
        change(self.pause, "visible", False)


def change(handle: Any, name: str, value: Any) -> None:
    """Set a property only if it differs: every assignment sends a message to all windows."""
    if getattr(handle, name) != value:
        setattr(handle, name, value)
