"""Page for manual camera calibration: sliders on the right, the robot over the image on the left. No ROS here.

slider ──> six numbers ──> ManualCalibration ──> image with the rendered robot, IoU and residual
Fit, Reset, Save ──┘

Callbacks only enqueue; one thread does the work, so that a dragged slider is drawn at its last position.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import viser
from numpy.typing import NDArray

from kinema4d_ros.calibration import save_camera
from kinema4d_ros.calibration.manual import NUMBERS, ManualCalibration
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.web import texts
from kinema4d_ros.web.panel import change
from kinema4d_ros.web.prediction import small_picture
from kinema4d_ros.web.server import PageServer

__all__ = ["CalibrationPage"]

PICTURE_WIDTH, RIGHT_WIDTH = 900, 360
COARSE, FINE = (0.30, 30.0), (0.02, 2.0)
"""Range of a slider to each side of the start or the last fit, in metres and degrees."""

LIVE_S = 0.25


class CalibrationPage:
    """Page of one manual calibration.

    Args:
        server: the guarded server.
        manual: the calibration to adjust.
        out: the camera file that Save writes.
        refresh: called periodically; puts a live image into `manual` and returns whether there was a new one.
    """

    def __init__(
        self,
        server: PageServer,
        manual: ManualCalibration,
        out: Path,
        refresh: Callable[[], bool] | None = None,
    ) -> None:
        self._server, self._manual, self._out, self._refresh = server, manual, out, refresh
        self._origin = manual.numbers
        self._wake = threading.Condition()
        self._asked: list[str] = []
        self._dirty, self._ending = True, False
        self._add_widgets()
        self._thread = threading.Thread(target=self._work_forever, name="calibration page", daemon=True)
        self._thread.start()

    def _add_widgets(self) -> None:
        gui = self._server.gui
        gui.configure_theme(dark_mode=False, show_logo=False, show_share_button=False, brand_color=(23, 92, 211))
        gui.main_panel.dock_right()
        gui.main_panel.set_width(RIGHT_WIDTH)
        gui.add_html(texts.headline_of("Manual camera calibration", "Align the robot with the image"))
        self._measured = gui.add_html(texts.message_line("quiet", "Measuring"))
        self._message = gui.add_html("", visible=False)
        self._sliders: dict[str, list[Any]] = {}
        for title, (metres, degrees) in (("Coarse", COARSE), ("Fine", FINE)):
            with gui.add_folder(title):
                self._sliders[title] = [
                    self._slider(gui, f"{name} ({'m' if i < 3 else 'deg'})", metres if i < 3 else degrees)
                    for i, name in enumerate(NUMBERS)
                ]
        fit = gui.add_button("Fit", icon=viser.Icon.TARGET, hint="From the masks, or from the edges of the image.")
        reset = gui.add_button("Reset", icon=viser.Icon.REFRESH, color="gray", hint="Back to the start pose.")
        save = gui.add_button("Save", icon=viser.Icon.DEVICE_FLOPPY, color="green", hint=f"Writes {self._out.name}.")
        fit.on_click(lambda _: self._ask("fit"))
        reset.on_click(lambda _: self._ask("reset"))
        save.on_click(lambda _: self._ask("save"))
        with gui.add_folder("Show"):
            self._which = gui.add_dropdown("Picture", self._manual.names)
            self._outline = gui.add_checkbox("Outline only", False)
            self._alpha = gui.add_slider("Opacity", 0.0, 1.0, 0.05, 0.5)
        self._which.on_update(lambda _: self._ask(""))
        self._outline.on_update(lambda _: self._ask(""))
        self._alpha.on_update(lambda _: self._ask(""))
        panel = gui.add_panel()
        with panel.add_tab("Camera", viser.Icon.CAMERA):
            self._picture = gui.add_html("")
        panel.dock_left()
        panel.set_width(PICTURE_WIDTH)

    def _slider(self, gui: Any, label: str, reach: float) -> Any:
        handle = gui.add_slider(label, -reach, reach, reach / 200, 0.0)
        # Without a client the slider was moved by this program.
        handle.on_update(lambda event: self._ask("") if event.client is not None else None)
        return handle

    def _ask(self, what: str) -> None:
        with self._wake:
            self._dirty = True
            if what and what not in self._asked:
                self._asked.append(what)
            self._wake.notify()

    def _work_forever(self) -> None:
        while True:
            with self._wake:
                if not self._dirty:
                    self._wake.wait(timeout=LIVE_S)
                if self._ending:
                    return
                asked, self._asked = self._asked, []
                dirty, self._dirty = self._dirty, False
            try:
                if self._refresh is not None and self._refresh():
                    dirty = True
                if dirty:
                    self._work(asked)
            except KinemaError as error:
                self._say("bad", str(error))
            except Exception as error:  # show the error on the page instead of stopping silently
                self._say("bad", f"{type(error).__name__}: {error}")

    def _work(self, asked: list[str]) -> None:
        which = self._manual.names.index(self._which.value) if self._which.value in self._manual.names else 0
        moved = self._offsets()
        # Only a moved slider changes the pose: the result of a fit is kept exactly.
        if not np.allclose(self._manual.numbers, self._origin + moved, rtol=0, atol=1e-9):
            self._manual.turn(self._origin + moved)
        for what in asked:
            if what == "fit":
                self._say("busy", "Fitting")
                said = self._manual.fit(which)
                self._centre()
                self._say("good", said)
            elif what == "reset":
                self._manual.reset()
                self._centre()
                self._say("quiet", "Reset to the start pose")
            elif what == "save":
                self._save()
        self._show(which)

    def _offsets(self) -> NDArray[np.float64]:
        coarse, fine = (np.array([handle.value for handle in self._sliders[t]], float) for t in ("Coarse", "Fine"))
        return np.asarray(coarse + fine, np.float64)

    def _centre(self) -> None:
        self._origin = self._manual.numbers
        for handles in self._sliders.values():
            for handle in handles:
                change(handle, "value", 0.0)

    def _save(self) -> None:
        extrinsics = self._manual.extrinsics()
        save_camera(self._out, self._manual.camera, extrinsics)
        r = extrinsics.residuals
        residual = "residual unknown" if r.px is None else f"residual {r.px:.2f} px"
        self._say("good", f"Saved {self._out} ({extrinsics.method}, {residual})")

    def _show(self, which: int) -> None:
        numbers = self._manual.numbers
        where = ", ".join(f"{name} {value:.4f}" for name, value in zip(NUMBERS[:3], numbers[:3], strict=True))
        turn = ", ".join(f"{name} {value:.2f}" for name, value in zip(NUMBERS[3:], numbers[3:], strict=True))
        drawn = self._manual.draw(which, float(self._alpha.value), outline=bool(self._outline.value))
        change(self._picture, "content", texts.picture(f"{where} m; {turn} deg", small_picture(drawn, PICTURE_WIDTH)))
        measured = self._manual.measure()
        good = measured.px is not None and measured.px < 2.0 and measured.share > 0.8
        change(self._measured, "content", texts.message_line("good" if good else "busy", measured.text))

    def _say(self, tone: texts.Tone, text: str) -> None:
        change(self._message, "content", texts.message_line(tone, text))
        change(self._message, "visible", bool(text))

    def close(self) -> None:
        """Stop the thread."""
        with self._wake:
            self._ending = True
            self._wake.notify()
        self._thread.join(timeout=5.0)
