"""Twin node: publishes TF, the live robot's points and its overlay on the camera image from joint states."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from geometry_msgs.msg import TransformStamped
from numpy.typing import NDArray
from rclpy.clock import Clock, ClockType
from std_msgs.msg import String

from kinema4d_ros.calibration import read_pose
from kinema4d_ros.calibration.pictures import Tone, caption
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.io.images import overlay
from kinema4d_ros.io.resources import calibration_path
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.previews.arm import ArmState
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot.description import robot_description
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.images import image_from_array
from kinema4d_ros.ros.messages.points import cloud_from_points
from kinema4d_ros.ros.messages.poses import matrices_to_transforms, matrix_to_transform
from kinema4d_ros.ros.messages.stamps import header, nanoseconds, time_from_ns
from kinema4d_ros.ros.nodes.common import (
    ERROR,
    WARN,
    Health,
    KinemaNode,
    load_scene,
    load_trust,
    run_node,
)
from kinema4d_ros.ros.nodes.inputs import ArmInput, CameraInput, Picture
from kinema4d_ros.ros.nodes.twin_drift import EDGES, MASKS, DriftCheck, Segment, masks_by
from kinema4d_ros.ros.params import declare, parameter
from kinema4d_ros.ros.tf import StaticTransformBroadcaster, TransformBroadcaster

__all__ = ["Twin", "main"]

LOOK_S = 1.0
"""Period in seconds of looking for another node that publishes the robot's state."""


@dataclass(frozen=True)
class Settings:
    """Parameters of the twin."""

    robot: str = parameter("yam", "A robot's name, or the path of a .urdf or .xacro file.", read_only=True)
    calibration: str = parameter("demo_lab", "The camera: a path, or a name in calibration/.", read_only=True)
    robot_state: str = parameter(
        "auto",
        "Publish robot_description and the link frames: auto (unless another node publishes robot_description, such as"
        " robot_state_publisher), always or never.",
        choices=("auto", "always", "never"),
        read_only=True,
    )
    tf_rate_hz: float = parameter(30.0, "Link frames per second, at most.", low=1.0, high=200.0, read_only=True)
    rate_hz: float = parameter(5.0, "Robot clouds and overlays per second.", low=0.1, high=60.0, read_only=True)
    max_age_s: float = parameter(0.5, "Joint states older than this are stale.", low=0.05, high=10.0, read_only=True)
    image_max_age_s: float = parameter(2.0, "Images older than this are stale.", low=0.05, high=60.0, read_only=True)
    overlay_alpha: float = parameter(0.55, "Opacity of the drawn robot.", low=0.0, high=1.0)
    overlay_legend: bool = parameter(True, "Write the calibration's residual into the overlay.", read_only=True)
    calibration_warn_px: float = parameter(
        2.0, "Calibration residual above which to warn, pixels; 0 = never.", low=0.0, high=1000.0, read_only=True
    )
    drift_period_s: float = parameter(
        10.0, "Seconds between checks for camera drift; 0 = never.", low=0.0, high=3600.0, read_only=True
    )
    drift_tolerance_px: float = parameter(
        0.75, "Offsets below this are not reported as drift, pixels.", low=0.0, high=100.0, read_only=True
    )
    drift_mask: str = parameter(
        EDGES,
        "Image features for the drift check: edges, or a segmenter's mask.",
        choices=MASKS,
        read_only=True,
    )
    drift_weights: str = parameter("", "Folder of SAM 2's weights, for drift_mask sam2.", read_only=True)


class Twin(KinemaNode):
    """Publisher of the robot's frames, points and overlay."""

    def __init__(self, segment: Segment | None = None) -> None:
        """Start the node; `segment` replaces the segmenter of `drift_mask` in the drift check."""
        super().__init__("twin")
        self._settings = declare(self, Settings)
        self._robot, lens = load_scene(self._settings.robot, self._settings.calibration)
        self._trust = load_trust(self._settings.calibration, self._settings.calibration_warn_px, refuse_px=0.0)
        self._scene = Scene.from_robot(self._robot)
        self._arm = ArmInput(self, self._robot, self._settings.max_age_s)
        self._eye = CameraInput(self, lens, self._settings.image_max_age_s)
        self._points = self.publisher(names.ROBOT_POINTS)
        self._overlay = self.publisher(names.ROBOT_OVERLAY)
        self._description: Any = None
        self._other_source = ""
        """The node that publishes the robot's state instead of this one; "" = none."""
        self._frames = TransformBroadcaster(self)
        self._static = StaticTransformBroadcaster(self)
        self._announce_camera()
        self._look_for_source()
        # A timer: the executor must not wait for the publisher that this destroys. Steady, as simulated time may stop.
        self.create_timer(LOOK_S, self._look_for_source, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self._last_tf_ns = self._last_points_ns = self._last_overlay_ns = 0
        self._drawn = 0
        self._drift = DriftCheck(
            self,
            self._robot,
            self._arm,
            self._eye,
            period_s=self._settings.drift_period_s,
            tolerance_px=self._settings.drift_tolerance_px,
            calibration=read_pose(calibration_path(self._settings.calibration)),
            segment=segment
            or masks_by(self._settings.drift_mask, self._robot, self._eye.camera, self._settings.drift_weights),
        )
        # Threads, not timers: the executor would rebuild its wait set for every tick.
        self._threads = [
            threading.Thread(target=self._forever, args=(work, rate_hz), name=name, daemon=True)
            for name, work, rate_hz in (
                ("frames", self._publish_frames, self._settings.tf_rate_hz),
                ("draw", self._draw, self._settings.rate_hz),
            )
        ]
        for thread in self._threads:
            thread.start()

    def _announce_camera(self) -> None:
        camera = self._eye.camera
        frame = TransformStamped(child_frame_id=camera.frame_id)
        frame.header = header(self.get_clock().now().to_msg(), camera.base_frame)
        frame.transform = matrix_to_transform(camera.base_T_camera)
        self._static.sendTransform(frame)

    def _forever(self, work: Callable[[], None], rate_hz: float) -> None:
        while not self.closing.wait(1.0 / rate_hz):
            try:
                work()
            except KinemaError as error:
                self.complain(error)
            except Exception as error:
                self.complain(error, "drawing: ")

    def _look_for_source(self) -> None:
        """Leave description and link frames to another node that publishes them; take over when it is gone."""
        wish, topic = self._settings.robot_state, names.ROBOT_DESCRIPTION.name
        if wish == "auto":
            # Of the same name: this node, or one that was killed and is still announced.
            found = self.get_publishers_info_by_topic(topic)
            others = sorted({one.node_name for one in found} - {self.get_name()})
            self._other_source = others[0] if others else ""
        publishes = wish == "always" or (wish == "auto" and not self._other_source)
        if publishes and self._description is None:
            self._description = self.publisher(names.ROBOT_DESCRIPTION)
            self._description.publish(String(data=robot_description(self._robot)))
        elif not publishes and self._description is not None:
            self.get_logger().info(f"{self._other_source} publishes the robot's state: this node no longer does")
            self.destroy_publisher(self._description)
            self._description = None

    def _publish_frames(self) -> None:
        if self._description is None:
            return
        state = self._arm.state()
        stamp_ns = round(state.stamp_s * 1e9)
        if stamp_ns <= self._last_tf_ns and self._last_tf_ns - stamp_ns < 5_000_000_000:
            return
        self._last_tf_ns = stamp_ns
        poses = forward_all(self._robot, state.positions[None])[0]
        head = header(stamp_ns, self._robot.base_link)
        self._frames.sendTransform(
            [
                TransformStamped(header=head, child_frame_id=link.name, transform=transform)
                for link, transform in zip(self._robot.links[1:], matrices_to_transforms(poses[1:]), strict=True)
            ]
        )

    def _draw(self) -> None:
        wants_points = self._points.get_subscription_count() > 0
        wants_overlay = self._overlay.get_subscription_count() > 0
        if not wants_points and not wants_overlay:
            return
        state = self._arm.state()
        try:
            picture: Picture | None = self._eye.picture()
        except KinemaError as error:
            self.complain(error)
            picture = None
        stamp, q = self._moment(state, picture)
        drawn = render_poses(self._scene, forward_all(self._robot, q[None]), self._eye.camera, rgb=True, threads=1)
        mask = drawn.mask[0]
        head = header(stamp, self._eye.camera.frame_id)
        stamp_ns = nanoseconds(stamp)
        if wants_points and drawn.rgb is not None and stamp_ns != self._last_points_ns:
            self._last_points_ns = stamp_ns
            self._points.publish(cloud_from_points(drawn.xyz[0][mask], drawn.rgb[0][mask], head, dense=True))
        if wants_overlay and drawn.rgb is not None and picture is not None and stamp_ns != self._last_overlay_ns:
            self._last_overlay_ns = stamp_ns
            mixed = overlay(picture.rgb, drawn.rgb[0], mask, self._settings.overlay_alpha)
            if self._settings.overlay_legend:
                caption(mixed, *self._legend())
            self._overlay.publish(image_from_array(mixed, "rgb8", head))
        self._drawn += 1

    def _legend(self) -> tuple[str, Tone]:
        drift = self._drift.state
        if drift.verdict == "moved":
            return f"camera bumped: off by {drift.seen_px:.1f} px, {drift.seen_mm:.1f} mm", "bad"
        tone: Tone = "good" if self._trust.level == "good" else "doubtful"
        return f"calibration {self._trust.level}: {self._trust.figures or 'no residual'}", tone

    def _moment(self, state: ArmState, picture: Picture | None) -> tuple[Any, NDArray[np.float64]]:
        """Return stamp and joint positions at the image if there is one, so that robot and image match in time."""
        if picture is not None:
            at = self._arm.monitor.at(nanoseconds(picture.stamp) * 1e-9)
            if at is not None:
                return picture.stamp, at
        return time_from_ns(round(state.stamp_s * 1e9)), state.positions

    def health(self) -> Health:
        """Report rates, staleness, quality of the calibration and camera drift."""
        source = self._other_source or (self.get_name() if self._description is not None else "not this node")
        values = {
            "robot state from": source,
            **self._arm.values(),
            "pictures drawn": self._drawn,
            **self._trust.values(),
            **self._drift.values(),
        }
        try:
            values["joint state age"] = f"{self._arm.state().age_s * 1e3:.0f} ms"
        except KinemaError as error:
            return Health(ERROR, error.what, values)
        if self._eye.mismatch is not None:
            return Health(ERROR, str(self._eye.mismatch), values)
        try:
            values["image age"] = f"{self._eye.picture().age_s * 1e3:.0f} ms"
        except KinemaError as error:
            return Health(WARN, error.what, values)
        bumped = self._drift.complaint()
        if bumped is not None:
            return Health(bumped.level, bumped.message, values)
        if self._trust.level != "good":
            return Health(WARN, f"live; calibration: {self._trust.text}", values)
        return Health(message="live", values=values)

    def close(self) -> None:
        """Wait for the threads."""
        super().close()
        for thread in self._threads:
            thread.join(timeout=5.0)
        self._drift.close()


def main() -> int:
    """Run the node."""
    return run_node(Twin)


if __name__ == "__main__":
    raise SystemExit(main())
