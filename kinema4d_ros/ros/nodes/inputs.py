"""Shared inputs of the nodes: merged joint states of the arm, newest camera image and depth."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CameraError, ErrorCode, KinemaError
from kinema4d_ros.previews.arm import ArmState, JointStateMonitor
from kinema4d_ros.previews.checks import believed
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.camera import camera_from_info, camera_mismatch
from kinema4d_ros.ros.messages.images import depth_from_image, rgb_from_image
from kinema4d_ros.ros.messages.stamps import is_time, nanoseconds
from kinema4d_ros.ros.messages.trajectories import joint_sample_from_msg
from kinema4d_ros.ros.nodes.common import KinemaNode

__all__ = ["ArmInput", "CameraInput", "Picture"]


class ArmInput:
    """Subscription to joint states, which it merges."""

    def __init__(self, node: KinemaNode, robot: Robot, max_age_s: float) -> None:
        self._node = node
        self.monitor = JointStateMonitor(robot, max_age_s)
        node.stream(names.JOINT_STATES, self._take)

    def _take(self, message: Any) -> None:
        try:
            sample = joint_sample_from_msg(message)
        except KinemaError as error:
            self.monitor.reject()
            self._node.complain(error, "joint state: ")
            return
        try:
            self.monitor.update(sample.names, sample.positions, sample.stamp_ns * 1e-9, self._node.now_s())
        except KinemaError as error:
            self._node.complain(error, "joint state: ")

    def state(self) -> ArmState:
        """Return the current state of the arm; raise JOINT_STATES_STALE when it is too old."""
        return self.monitor.state(self._node.now_s())

    def values(self) -> dict[str, object]:
        """Return values for diagnostics."""
        counts = self.monitor.counts(self._node.now_s())
        return {
            "joint states per second": f"{counts.rate_hz:.1f}",
            "joint states out of order": counts.out_of_order,
            "joint states of another clock": counts.other_clock,
            "joint states invalid": counts.invalid,
            "joints of other devices": ", ".join(counts.unknown_joints) or "none",
        }


@dataclass(frozen=True, eq=False)
class Picture:
    """One rectified image.

    Attributes:
        rgb: (H, W, 3) uint8, as `camera` sees it.
        depth: (H, W) float32 metres of the same moment, NaN = none; or None.
        stamp: builtin_interfaces/Time of the image.
        seen_ns: capture time in nanoseconds: the stamp, or the arrival time when the stamp is not plausible.
        age_s: seconds since arrival.
    """

    rgb: NDArray[np.uint8]
    depth: NDArray[np.float32] | None
    stamp: Any
    seen_ns: int
    age_s: float


class CameraInput:
    """Subscription to the camera; keeps the newest messages and converts them on demand."""

    def __init__(self, node: KinemaNode, lens: PinholeCamera, max_age_s: float, *, depth: bool = False) -> None:
        self._node = node
        self.lens = lens
        self.camera = lens.rectified()
        self.max_age_s = max_age_s
        self._lock = threading.Lock()
        self._image: tuple[Any, float, int] | None = None
        self._depth: tuple[Any, float] | None = None
        self._mismatch: KinemaError | None = None
        self._info: tuple[Any, ...] = ()
        node.stream(names.CAMERA_IMAGE, self._take_image)
        node.stream(names.CAMERA_INFO, self._take_info)
        if depth:
            node.stream(names.CAMERA_DEPTH, self._take_depth)

    def _take_image(self, message: Any) -> None:
        with self._lock:
            self._image = (message, self._node.now_s(), self._node.clock_ns())

    def _take_depth(self, message: Any) -> None:
        with self._lock:
            self._depth = (message, self._node.now_s())

    def _take_info(self, message: Any) -> None:
        described = (message.width, message.height, *message.k, *message.d, message.distortion_model)
        described += (message.binning_x, message.binning_y, message.roi.width, message.roi.height)
        if described == self._info:
            return
        # Checked again when it changes: a restarted driver may have another resolution.
        self._info, self._mismatch = described, None
        try:
            live = camera_from_info(message)
            self._mismatch = camera_mismatch(live, self.lens)
        except KinemaError as error:
            self._mismatch = error
        if self._mismatch is not None:
            self._node.complain(self._mismatch, "camera info: ")

    @property
    def mismatch(self) -> KinemaError | None:
        """Mismatch between the calibration file and the running camera, or None."""
        return self._mismatch

    def newest_stamp_ns(self) -> int:
        """Return the stamp of the newest image; 0 without one."""
        with self._lock:
            return 0 if self._image is None else nanoseconds(self._image[0].header.stamp)

    def depth_age_s(self) -> float | None:
        """Return the seconds since the newest depth image arrived; None before the first."""
        with self._lock:
            return None if self._depth is None else self._node.now_s() - self._depth[1]

    def picture(self) -> Picture:
        """Return the newest image, rectified; raise CAMERA_STALE or IMAGE_INVALID when there is no usable one."""
        with self._lock:
            image, depth = self._image, self._depth
        now = self._node.now_s()
        if image is None or now - image[1] > self.max_age_s:
            raise CameraError(
                "no camera image has arrived" if image is None else f"the camera image is {now - image[1]:.1f} s old",
                expected=f"an image at least every {self.max_age_s:g} s",
                hint="check that the camera driver is running and publishes on this graph's camera/image_raw",
                code=ErrorCode.CAMERA_STALE,
            )
        message, arrived, arrived_ns = image
        if not is_time(message.header.stamp):
            raise CameraError(
                f"the camera image is stamped {message.header.stamp.sec} s and {message.header.stamp.nanosec} ns",
                expected="a time since 1970 with nanoseconds below 1e9",
                code=ErrorCode.IMAGE_INVALID,
            )
        stamp_ns = nanoseconds(message.header.stamp)
        raw = rgb_from_image(message, width=self.lens.width, height=self.lens.height)
        return Picture(
            rgb=self.lens.rectify(raw),
            depth=self._usable_depth(depth, stamp_ns),
            stamp=message.header.stamp,
            seen_ns=believed(stamp_ns, arrived_ns),
            age_s=now - arrived,
        )

    def _usable_depth(self, depth: tuple[Any, float] | None, image_ns: int) -> NDArray[np.float32] | None:
        if depth is None or abs(nanoseconds(depth[0].header.stamp) - image_ns) > self.max_age_s * 1e9:
            return None
        try:
            metres = depth_from_image(depth[0])
        except KinemaError as error:
            self._node.complain(error, "depth: ")
            return None
        size = (self.lens.height, self.lens.width)
        if metres.shape != size or self.lens.has_distortion:
            self._node.complain(
                CameraError(
                    f"depth of {metres.shape[1]} x {metres.shape[0]} is discarded",
                    expected=f"{size[1]} x {size[0]}, registered to a camera without distortion",
                    code=ErrorCode.IMAGE_INVALID,
                )
            )
            return None
        return np.where(np.isfinite(metres) & (metres > 0), metres, np.float32(np.nan)).astype(np.float32)
