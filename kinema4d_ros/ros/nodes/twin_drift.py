"""Drift check of the twin: compares the rendered robot with the camera image periodically, in its own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration.drift import USELESS_PX, Drift, DriftState, DriftWatch, check_drift_by_edges
from kinema4d_ros.calibration.extrinsics import Extrinsics
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError, SetupError
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros.messages.stamps import nanoseconds
from kinema4d_ros.ros.nodes.common import ERROR, WARN, Health, KinemaNode
from kinema4d_ros.ros.nodes.inputs import ArmInput, CameraInput
from kinema4d_ros.segmentation import Prompt, make_segmenter, rendered_masks

__all__ = ["EDGES", "MASKS", "DriftCheck", "Segment", "masks_by"]

EDGES = "edges"
MASKS = (EDGES, "classical", "sam2")
"""Image features that the rendered outline is compared with: edges of the image, or the mask of a segmenter. Never
"rendered": the rendered robot matches itself wherever the camera is."""

Segment = Callable[[NDArray[np.uint8], NDArray[np.float64]], NDArray[np.bool_]]
"""Returns the robot's pixels (H, W) bool of a rectified image (H, W, 3) uint8 with the arm at positions (J,)."""

STILL_FOR_S, STILL_RAD = 0.4, 2e-3
"""The arm is at rest if no joint moved by more than STILL_RAD (rad or m) during STILL_FOR_S before the image."""

SOON_S = 1.0
"""Period of the checks after one that contradicts the state or is inconclusive."""


def masks_by(method: str, robot: Robot, camera: PinholeCamera, weights: str = "") -> Segment | None:
    """Return the segmenter of that name, prompted with the rendered robot; None for the edges of the image.

    Args:
        method: one of `MASKS`.
        robot, camera: rendered for the prompt; the camera is the rectified one, at its calibrated pose.
        weights: folder of SAM 2's weights.
    """
    if method == EDGES:
        return None
    if method == "sam2" and not weights:
        raise SetupError(
            "drift_mask is sam2 and drift_weights is empty",
            expected="the folder of SAM 2's weights",
            hint="set drift_weights, or use drift_mask: edges, which needs none",
            code=ErrorCode.SETUP_MISSING,
        )
    segmenter = make_segmenter(method, **({"weights": weights} if method == "sam2" else {}))

    def segment(rgb: NDArray[np.uint8], q: NDArray[np.float64]) -> NDArray[np.bool_]:
        drawn: NDArray[np.bool_] = rendered_masks(robot, q[None], camera)[0]
        if not drawn.any():
            return drawn
        found = segmenter.segment(rgb, Prompt(mask=drawn))
        # A mask that only repeats the prompt matches wherever the camera is, so it is discarded.
        return found.masks & False if found.drawn else found.masks

    return segment


class DriftCheck:
    """Periodic drift check on images of an arm at rest.

    Args:
        node: owner of the thread; logs errors.
        robot, arm, eye: the compared inputs.
        period_s: seconds between checks; 0 = never.
        tolerance_px: offsets below this are not reported.
        calibration: its uncertainty from the camera's file is not counted as drift.
        segment: finds the robot's pixels; None uses the edges of the image, which needs no model.
    """

    def __init__(
        self,
        node: KinemaNode,
        robot: Robot,
        arm: ArmInput,
        eye: CameraInput,
        *,
        period_s: float,
        tolerance_px: float,
        calibration: Extrinsics,
        segment: Segment | None = None,
    ) -> None:
        self._node, self._robot, self._arm, self._eye = node, robot, arm, eye
        self._period_s, self._tolerance_px, self._segment = period_s, tolerance_px, segment
        self._calibration = calibration
        self._watch = DriftWatch()
        self._looked_ns = 0
        self._cpu_s = 0.0
        self._thread: threading.Thread | None = None
        if period_s > 0:
            self._thread = threading.Thread(target=self._forever, name="drift", daemon=True)
            self._thread.start()

    @property
    def state(self) -> DriftState:
        """Result of the checks so far."""
        return self._watch.state

    def _forever(self) -> None:
        wait_s = min(SOON_S, self._period_s)
        while not self._node.closing.wait(wait_s):
            state = self._watch.state
            try:
                looked = self._look()
                state = self._watch.state
            except Exception as error:
                self._node.complain(error, "drift check: ")
                looked = True
            wait_s = self._period_s if looked and state.sure else min(SOON_S, self._period_s)

    def _look(self) -> bool:
        """Check the newest image if it is new and the arm is at rest in it; return whether to wait a full period."""
        if self._eye.mismatch is not None:
            return True
        try:
            picture = self._eye.picture()
        except KinemaError:
            return False  # the twin's health reports missing images
        stamp_ns = nanoseconds(picture.stamp)
        q = self._resting(stamp_ns * 1e-9)
        if q is None or stamp_ns == self._looked_ns:
            return False
        self._looked_ns = stamp_ns
        started = time.thread_time()
        state = self._watch.take(self._compare(picture.rgb, q))
        self._cpu_s = time.thread_time() - started
        if state.verdict == "moved" and state.sure:
            self._node.complain(KinemaError(state.text), "the camera was bumped: ")
        return True

    def _compare(self, rgb: NDArray[np.uint8], q: NDArray[np.float64]) -> Drift:
        if self._segment is not None:
            # A mask is an image whose only edges are the robot's.
            rgb = np.repeat(255 * self._segment(rgb, q).astype(np.uint8)[..., None], 3, axis=2)
        known = self._calibration
        return check_drift_by_edges(
            self._robot,
            q,
            rgb,
            self._eye.camera,
            covariance=known.covariance,
            freedom=known.degrees_of_freedom,
            residual_px=known.residuals.px or 0.0,
            tolerance_px=self._tolerance_px,
        )

    def _resting(self, stamp_s: float) -> NDArray[np.float64] | None:
        q = self._arm.monitor.at(stamp_s)
        before = [self._arm.monitor.at(stamp_s - share * STILL_FOR_S) for share in (0.5, 1.0)]
        if q is None or any(b is None or np.abs(q - b).max() > STILL_RAD for b in before):
            return None
        return q

    def values(self) -> dict[str, object]:
        """Return values for diagnostics."""
        if self._thread is None:
            return {"camera drift": "not checked (drift_period_s is 0)"}
        state = self.state
        values: dict[str, object] = {"camera drift": state.verdict, "camera drift checks": state.checks}
        if state.checks:
            values["camera drift says"] = state.text
            values["camera drift check"] = f"{1e3 * self._cpu_s:.0f} ms of CPU"
        if np.isfinite(state.seen_px):
            values["camera drift px"] = f"{state.seen_px:.2f}"
            values["camera drift mm"] = f"{state.seen_mm:.2f}"
        return values

    def complaint(self) -> Health | None:
        """Return the warning or error to report, or None."""
        state = self.state
        if self._thread is None or state.checks == 0:
            return None
        if state.verdict == "moved":
            text = f"the camera was bumped: {state.text}; calibrate again"
            return Health(ERROR if state.seen_px > USELESS_PX else WARN, text)
        if state.verdict == "unknown" and state.sure:
            return Health(WARN, f"the camera drift cannot be determined: {state.text}")
        return None

    def close(self) -> None:
        """Wait for the thread."""
        if self._thread is not None:
            self._thread.join(timeout=5.0)
