"""Lab node: MuJoCo simulation with the ROS interfaces of a real arm, its controller and a camera."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped
from rclpy.action import CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.task import Future
from sensor_msgs.msg import JointState
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker, MarkerArray

from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.lab import LabSimulation, LabState
from kinema4d_ros.lab.picture import LabCamera
from kinema4d_ros.physics.objects import ODD_SHAPES
from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import GoalServer
from kinema4d_ros.ros.messages.camera import info_from_camera
from kinema4d_ros.ros.messages.errors import error_to_msg
from kinema4d_ros.ros.messages.images import image_from_array
from kinema4d_ros.ros.messages.poses import matrix_to_pose
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.messages.trajectories import trajectory_from_msg
from kinema4d_ros.ros.nodes.common import WARN, Health, KinemaNode, load_scene, run_node
from kinema4d_ros.ros.params import declare, parameter, watch
from kinema4d_ros.ros.qos import STREAM_OUT

__all__ = ["Lab", "LabController", "main"]


class LabController:
    """Trajectory controller of the lab: a topic and a FollowJointTrajectory action, as in ros2_control.

    The arm follows the newest trajectory from either.
    """

    def __init__(self, node: KinemaNode, lab: LabSimulation) -> None:
        self._node = node
        self._lab = lab
        self.followed = 0
        self._lock = threading.RLock()
        """Held while motion and goal change together: a motion that was stopped or reset is not one that completed."""
        self._motion: Future | None = None
        """Future of the current goal; its result is why the motion ended early, "" for a completed motion."""
        self._motions: dict[bytes, Future] = {}
        node.subscription(names.ARM_TRAJECTORY, self._take)
        try:
            self._interface = names.FOLLOW_TRAJECTORY.interface()
        except ImportError:
            node.get_logger().info("control_msgs is not installed: the arm accepts plans on its topic only")
            return
        self._server = GoalServer(
            node,
            self._interface,
            names.FOLLOW_TRAJECTORY.name,
            execute_callback=self._execute,
            goal_callback=self._admit,
            handle_accepted_callback=self._accept,
            cancel_callback=self._cancel,
            callback_group=ReentrantCallbackGroup(),
            result_timeout=60,
        )

    def _take(self, message: Any) -> None:
        try:
            self._follow(message)
        except KinemaError as error:
            self._node.complain(error, "arm: ")

    def _follow(self, message: Any) -> None:
        plan = trajectory_from_msg(message)
        with self._lock:
            self._lab.follow(plan)
            self.interrupt("superseded by another trajectory")
            self.followed += 1
        self._node.get_logger().info(f"the arm follows a plan of {plan.duration_s:.1f} s")

    def _admit(self, goal: Any) -> Any:
        try:
            with self._lock:
                self._follow(goal.trajectory)
                self._motion = Future()
        except KinemaError as error:
            self._node.complain(error, "arm: ")
            return GoalResponse.REJECT
        return GoalResponse.ACCEPT

    def _accept(self, handle: Any) -> None:
        if self._motion is not None:
            self._motions[bytes(handle.goal_id.uuid)] = self._motion
        handle.execute()

    def _cancel(self, handle: Any) -> Any:
        with self._lock:
            self._lab.stop()
            motion = self._motions.get(bytes(handle.goal_id.uuid))
            if motion is not None:
                self._end(motion, "cancelled")
        return CancelResponse.ACCEPT

    async def _execute(self, handle: Any) -> Any:
        result = self._interface.Result()
        result.error_string = await self._motions.pop(bytes(handle.goal_id.uuid))
        if handle.is_cancel_requested:
            handle.canceled()
        elif result.error_string:
            result.error_code = result.INVALID_GOAL
            handle.abort()
        else:
            handle.succeed()
        return result

    def tick(self) -> None:
        """End the goal whose motion has completed; call after each physics step."""
        with self._lock:
            if self._motion is not None and not self._lab.moving:
                self._end(self._motion, "")

    def reset(self, scenario: str | None, seed: int, tell: Callable[[], None]) -> LabState:
        """Reset the lab, tell of it, and abort the current goal; after an error the goal continues."""
        with self._lock:
            state = self._lab.reset(scenario, seed)
            tell()
            self.interrupt("the scene was reset")
            return state

    def interrupt(self, why: str) -> None:
        """End the current goal before its motion has completed."""
        with self._lock:
            if self._motion is not None:
                self._end(self._motion, why)

    def _end(self, motion: Future, why: str) -> None:
        if not motion.done():
            motion.set_result(why)


OBJECT_RATE_HZ = 10.0
CATCH_UP_S = 0.25
"""Larger delays, such as a suspended machine, are not caught up: simulated time pauses instead."""


@dataclass(frozen=True)
class Settings:
    """Parameters of the lab."""

    robot: str = parameter("yam", "A robot's name, or the path of a .urdf or .xacro file.", read_only=True)
    calibration: str = parameter("demo_lab", "The camera: a path, or a name in calibration/.", read_only=True)
    scenario: str = parameter("canonical", "The scene: canonical, cluttered, dynamic, stacked or held.", read_only=True)
    profile: str = parameter(
        "constant", "Physics and camera: constant, or hidden, which differ from scene to scene.", read_only=True
    )
    seed: int = parameter(0, "Random seed of the scene.", low=0, high=2**31 - 1, read_only=True)
    joint_rate_hz: float = parameter(100.0, "Joint states per second.", low=10.0, high=250.0, read_only=True)
    image_rate_hz: float = parameter(5.0, "Camera images per second, at most.", low=0.2, high=60.0, read_only=True)
    depth: bool = parameter(True, "Also publish depth, as an RGB-D camera does.", read_only=True)
    bump_mm: float = parameter(
        0.0, "Shift the camera to its right without changing its calibration.", low=-100.0, high=100.0
    )
    bump_deg: float = parameter(
        0.0, "Turn the camera to its right without changing its calibration.", low=-20.0, high=20.0
    )


class Lab(KinemaNode):
    """Simulation of the arm's driver, the camera's driver and the scene."""

    def __init__(self) -> None:
        super().__init__("lab")
        self._settings = settings = declare(self, Settings)
        robot, self._lens = load_scene(settings.robot, settings.calibration)
        self._lab = LabSimulation(settings.scenario, settings.seed, robot, self._lens, profile=settings.profile)
        self._camera = self._bumped_camera(settings)
        watch(self, Settings, settings, self._bump)
        self._joints = self.publisher(names.JOINT_STATES)
        self._image = self.publisher(names.CAMERA_IMAGE)
        self._info = self.publisher(names.CAMERA_INFO)
        self._depth = self.publisher(names.CAMERA_DEPTH) if settings.depth else None
        self._markers = self.publisher(names.LAB_OBJECTS)
        self._poses: dict[str, Any] = {}
        self._changes = self.publisher(names.WORLD_CHANGED)
        self._pictures = self._lag_steps = 0
        self._newest_lock = threading.Lock()
        self._newest: tuple[LabState, Any] = (self._lab.state(), self.get_clock().now().to_msg())
        self._controller = LabController(self, self._lab)
        self._tell_of_change()
        self.service(names.LAB_RESET, self._reset)
        self.create_timer(1.0 / OBJECT_RATE_HZ, self._publish_objects)
        self._threads = [
            threading.Thread(target=self._run, args=(self._step_forever,), name="physics", daemon=True),
            threading.Thread(target=self._run, args=(self._picture_forever,), name="camera", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _bump(self, settings: Settings) -> None:
        # The camera thread uses it from the next image on; camera_info and calibration stay unchanged.
        self._camera = self._bumped_camera(settings)

    def _bumped_camera(self, settings: Settings) -> LabCamera:
        right = self._lens.base_T_camera[:3, 0] * 1e-3 * settings.bump_mm
        pose = changed(self._lens.base_T_camera, [*right, 0.0, np.radians(settings.bump_deg), 0.0])
        return LabCamera.of(self._lab, self._lens.posed(pose))

    def _run(self, work: Any) -> None:
        try:
            work()
        except Exception as error:
            self.get_logger().fatal(f"the lab stopped: {error!r}")
            self.closing.set()

    def _step_forever(self) -> None:
        period_s = 1.0 / self._settings.joint_rate_hz
        due = time.monotonic()
        while not self.closing.is_set():
            try:
                self._lab.step(period_s)
            except KinemaError as error:
                self.complain(error)
                self._tell_of_change()
                self._controller.interrupt("the physics became unstable")
            self._controller.tick()
            # The stamp first: a state from before a reset must not be stamped after the change.
            stamp = self.get_clock().now().to_msg()
            state = self._lab.state()
            with self._newest_lock:
                self._newest = (state, stamp)
            message = JointState(header=header(stamp))
            message.name = list(state.joint_names)
            message.position = state.positions.tolist()
            message.velocity = state.velocities.tolist()
            message.effort = state.efforts.tolist()
            self._joints.publish(message)
            due += period_s
            behind_s = time.monotonic() - due
            if behind_s > CATCH_UP_S:
                self._lag_steps += 1
                due = time.monotonic()
            elif behind_s < 0:
                time.sleep(-behind_s)

    def _picture_forever(self) -> None:
        period_s = 1.0 / self._settings.image_rate_hz
        while not self.closing.is_set():
            started = time.monotonic()
            with self._newest_lock:
                state, stamp = self._newest
            image = self._camera.capture(state, truth=self._depth is not None)
            head = header(stamp, self._lens.frame_id)
            self._info.publish(info_from_camera(self._lens, stamp))
            if self._depth is not None and image.depth_m is not None:
                self._depth.publish(image_from_array(image.depth_m, "32FC1", head))
            self._image.publish(image_from_array(image.rgb, "rgb8", head))
            self._pictures += 1
            self.closing.wait(max(0.0, period_s - (time.monotonic() - started)))

    def _publish_objects(self) -> None:
        with self._newest_lock:
            state, stamp = self._newest
        head = header(stamp, self._lab.robot.base_link)
        markers = [Marker(header=head, action=Marker.DELETEALL)]
        for number, (name, placed) in enumerate(sorted(state.objects.items())):
            pose = matrix_to_pose(placed.base_T_object)
            markers.append(_marker(head, number, placed, pose, name == state.target))
            if name not in self._poses:
                self._poses[name] = self.create_publisher(PoseStamped, names.lab_object_topic(name), STREAM_OUT)
            self._poses[name].publish(PoseStamped(header=head, pose=pose))
        self._markers.publish(MarkerArray(markers=markers))

    def _reset(self, request: Any, response: Any) -> Any:
        try:
            state = self._controller.reset(request.scenario or None, int(request.seed), self._tell_of_change)
        except KinemaError as error:
            response.error = error_to_msg(error)
            return response
        self._camera.sensor = self._lab.sensor
        for name in set(self._poses) - set(state.objects):
            self.destroy_publisher(self._poses.pop(name))
        response.error = error_to_msg()
        response.objects = sorted(state.objects)
        self.get_logger().info(f"scene '{self._lab.scenario.name}', seed {request.seed}: {', '.join(response.objects)}")
        return response

    def _tell_of_change(self) -> None:
        self._changes.publish(header(self.get_clock().now().to_msg(), self._lab.robot.base_link))

    def health(self) -> Health:
        """Report the state of the simulation and whether it keeps up with real time."""
        values = {
            "scenario": self._lab.scenario.name,
            "profile": self._lab.profile.name,
            "simulated": f"{self._lab.time_s:.0f} s",
            "pictures": self._pictures,
            "plans followed": self._controller.followed,
            "times fallen behind": self._lag_steps,
        }
        if self._lag_steps:
            return Health(WARN, "this machine is too slow for real time", values)
        return Health(message="moving" if self._lab.moving else "at rest", values=values)

    def close(self) -> None:
        """Wait for the physics and camera threads."""
        super().close()
        for thread in self._threads:
            thread.join(timeout=5.0)


def _marker(head: Any, number: int, placed: Any, pose: Any, target: bool) -> Any:
    thing = placed.object
    marker = Marker(header=head, ns=thing.name, id=number, pose=pose)
    kinds = {"box": Marker.CUBE, "cylinder": Marker.CYLINDER, "sphere": Marker.SPHERE}
    marker.type = kinds.get(thing.shape, Marker.CUBE)
    marker.scale.x = marker.scale.y = 2.0 * thing.radius
    marker.scale.z = thing.height
    if thing.shape == "box" or thing.shape in ODD_SHAPES:
        marker.scale.x, marker.scale.y, marker.scale.z = (float(side) for side in thing.size)
    r, g, b = (float(channel) for channel in thing.rgb[:3])
    marker.color = ColorRGBA(r=r, g=g, b=b, a=1.0)
    # Marks the scenario's target object for RViz and scripts; a marker's type cannot name an odd shape.
    words = ["target"] if target else []
    marker.text = " ".join([*words, thing.shape] if thing.shape in ODD_SHAPES else words)
    return marker


def main() -> int:
    """Run the node."""
    return run_node(Lab)


if __name__ == "__main__":
    raise SystemExit(main())
