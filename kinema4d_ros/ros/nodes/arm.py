"""Arm node: a real arm's driver as joint states and a trajectory controller that obeys only the gate."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from sensor_msgs.msg import JointState

from kinema4d_ros.arm import ArmServo, DriverOptions, ServoLimits, open_driver
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.commanders import commanders, full_name
from kinema4d_ros.ros.messages.stamps import header, time_from_ns
from kinema4d_ros.ros.messages.trajectories import trajectory_from_msg
from kinema4d_ros.ros.nodes.common import ERROR, WARN, Health, KinemaNode, run_node
from kinema4d_ros.ros.nodes.trajectory_server import TrajectoryServer
from kinema4d_ros.ros.params import ParameterError, declare, parameter
from kinema4d_ros.ros.qos import STREAM_OUT

__all__ = ["Arm", "main"]

GATE = "gate"
"""Name of the only node whose trajectories are followed, in this node's namespace."""

LOOK_S = 0.2
"""Period of the look at the gate during a motion."""

PREVIEWED = 4
"""Previewed plans that are remembered: a newer one may arrive here before it arrives at the gate."""


@dataclass(frozen=True)
class Settings:
    """Parameters of the arm."""

    robot: str = parameter("yam", "A robot's name, or the path of a .urdf or .xacro file.", read_only=True)
    driver: str = parameter("i2rt", "The arm's driver: i2rt, or package.module:Class.", read_only=True)
    enable_motion: bool = parameter(
        False, "Whether approved plans move the arm; otherwise the node never commands a position.", read_only=True
    )
    channel: str = parameter("can0", "CAN interface of the arm.", read_only=True)
    arm: str = parameter("yam", "The driver's name of the arm: yam, yam_pro, yam_ultra, ...", read_only=True)
    gripper: str = parameter("linear_4310", "The driver's name of the gripper.", read_only=True)
    gripper_closed_rad: float = parameter(
        0.0, "Motor angle of the closed gripper; equal to that of the open one: unknown.", low=-100.0, high=100.0,
        read_only=True,
    )  # fmt: skip
    gripper_open_rad: float = parameter(0.0, "Motor angle of the open gripper.", low=-100.0, high=100.0, read_only=True)
    calibrate_gripper: bool = parameter(
        False, "Let the driver close and open the gripper at start, to find its motor angles.", read_only=True
    )
    rate_hz: float = parameter(100.0, "Joint states and commands per second.", low=20.0, high=250.0, read_only=True)
    timeout_s: float = parameter(
        0.1, "Hold the arm when its state or the control loop is this late.", low=0.02, high=2.0, read_only=True
    )
    speed_share: float = parameter(
        0.5, "Largest speed of a plan, as a share of the robot's velocity limits.", low=0.01, high=1.0, read_only=True
    )
    path_tolerance_rad: float = parameter(
        0.3, "Hold the arm when a joint is this far from its command.", low=0.02, high=1.0, read_only=True
    )
    gate_timeout_s: float = parameter(
        3.0, "Stop a motion when the gate, which reports once a second, is silent this long.", low=1.5, high=60.0,
        read_only=True,
    )  # fmt: skip


class Arm(KinemaNode):
    """Publisher of joint states; with motion, the controller `arm_controller` of the arm and its gripper."""

    def __init__(self) -> None:
        super().__init__("arm")
        settings = declare(self, Settings)
        if settings.timeout_s < 2.0 / settings.rate_hz:
            raise ParameterError(
                f"timeout_s is {settings.timeout_s:g} at a rate of {settings.rate_hz:g} Hz",
                expected="at least two periods",
            )
        robot = Robot.load(settings.robot)
        self._me = full_name(self.get_namespace(), GATE)
        self._plans: deque[str] = deque(maxlen=PREVIEWED)
        self._plans_lock = threading.Lock()
        self._lost_gate = 0
        self._gate_heard_s = -float("inf")
        self._gate_timeout_s = settings.gate_timeout_s
        driver = open_driver(settings.driver, robot, _options(settings))
        self._servo = ArmServo(
            driver,
            robot,
            motion=settings.enable_motion,
            limits=ServoLimits(settings.rate_hz, settings.timeout_s, settings.speed_share, settings.path_tolerance_rad),
            ended=self._ended,
        )
        try:
            self._description = driver.description
            self._robot = robot
            self._joints = self.create_publisher(names.JOINT_STATES.interface(), names.JOINT_STATES.name, STREAM_OUT)
            self._server: TrajectoryServer | None = None
            if settings.enable_motion:
                self.subscription(names.PREVIEWED_PLAN, self._previewed)
                self.subscription(names.DIAGNOSTICS, self._hear)
                stop = lambda: self._servo.stop("the gate cancelled the motion")  # noqa: E731
                self._server = TrajectoryServer(self, self._servo, stop, self._permit)
            self._threads = [
                threading.Thread(target=self._publish_forever, args=(1.0 / settings.rate_hz,), daemon=True),
                threading.Thread(target=self._watch_gate, daemon=True),
            ]
            self._servo.start()
            for thread in self._threads:
                thread.start()
        except BaseException:
            # `close` is not called for a node whose constructor failed.
            self._servo.close()
            raise
        motion = "approved plans move the arm" if settings.enable_motion else "motion is off"
        self.get_logger().info(f"{self._description}: {motion}")

    def _previewed(self, message: Any) -> None:
        try:
            plan = trajectory_from_msg(message.trajectory)
        except KinemaError as error:
            self.complain(error, "previewed plan: ")
            return
        share = plan.only(self._robot.joint_names)
        if share is not None:
            with self._plans_lock:
                self._plans.append(hash_trajectory(share))

    def _hear(self, message: Any) -> None:
        """Note that the gate lives: DDS notices a killed node much later, and a hanging one never."""
        if any(status.name == self._me.lstrip("/") for status in message.status):
            self._gate_heard_s = self.now_s()

    def _permit(self, plan: JointTrajectory) -> None:
        """Raise ARM_REFUSED unless the gate alone can command the arm and the plan was previewed.

        Names of nodes can be forged; ROS security is what keeps other nodes from this topic (config/sros2).
        """
        found = self._commanders()
        others = [str(one) for one in found if one.node != self._me]
        if others or not found:
            raise KinemaError(
                f"the arm stays where it is: {'; '.join(others) or 'the gate is not running'}",
                expected=f"trajectories of {self._me} alone",
                hint="stop the other node; plan, approve and execute",
                code=ErrorCode.ARM_REFUSED,
            )
        with self._plans_lock:
            known = hash_trajectory(plan) in self._plans
        if not known:
            raise KinemaError(
                "the arm stays where it is: this trajectory was not previewed since the node started",
                expected="a previewed and approved plan, unchanged",
                hint="preview and approve the plan again",
                code=ErrorCode.ARM_REFUSED,
            )
        self._gate_heard_s = self.now_s()

    def _commanders(self) -> list[Any]:
        return commanders(self, [names.ARM_TRAJECTORY.name], [names.FOLLOW_TRAJECTORY.name])

    def _ended(self, why: str) -> None:
        """Handle the end of a motion; called from the servo's thread."""
        if why:
            self.get_logger().error(f"the arm did not follow the plan to its end: {why}")
        if self._server is not None:
            self._server.interrupt(why) if why else self._server.tick()

    def _publish_forever(self, period_s: float) -> None:
        published_s = 0.0
        while not self.closing.wait(period_s):
            reading = self._servo.reading()
            if reading is None or reading.seen_s == published_s:
                continue
            published_s = reading.seen_s
            # Stamped when the driver received the state, on this node's clock.
            age_ns = round((time.monotonic() - reading.seen_s) * 1e9)
            message = JointState(header=header(time_from_ns(self.clock_ns() - age_ns)))
            message.name = list(self._robot.joint_names)
            message.position = reading.positions.tolist()
            message.velocity = reading.velocities.tolist()
            message.effort = reading.efforts.tolist()
            try:
                self._joints.publish(message)
            except Exception as error:
                self.complain(error, "joint states: ")

    def _watch_gate(self) -> None:
        """Stop the arm when the gate, which can cancel a motion, is silent."""
        while not self.closing.wait(LOOK_S):
            if self._servo.moving and self.now_s() - self._gate_heard_s > self._gate_timeout_s:
                self._lost_gate += 1
                self._servo.stop("the gate is lost")

    def health(self) -> Health:
        """Report the driver, whether motion is on, and what went wrong."""
        values: dict[str, object] = {
            "driver": self._description,
            "motion": "on" if self._servo.motion else "off",
            "plans followed": 0 if self._server is None else self._server.followed,
            "late states or commands": self._servo.delays,
            "times the gate was lost": self._lost_gate,
        }
        if self._servo.failure is not None:
            return Health(ERROR, str(self._servo.failure), values)
        if self._servo.reading() is None:
            return Health(ERROR, "no current state of the arm", values)
        if not self._servo.motion:
            return Health(message="motion is off", values=values)
        if self._servo.delays:
            return Health(WARN, "states of the arm or commands were late", values)
        return Health(message="moving" if self._servo.moving else "holding", values=values)

    def close(self) -> None:
        """Stop the arm and release the driver, then end the threads."""
        try:
            self._servo.close()
        finally:
            super().close()
            for thread in self._threads:
                thread.join(timeout=5.0)


def _options(settings: Settings) -> DriverOptions:
    ends = (settings.gripper_closed_rad, settings.gripper_open_rad)
    if settings.calibrate_gripper and ends[0] != ends[1]:
        raise ParameterError(
            "calibrate_gripper is true, and the gripper's motor angles are given",
            expected="one of the two",
        )
    return DriverOptions(
        channel=settings.channel,
        arm=settings.arm,
        gripper=settings.gripper,
        gripper_range=ends if ends[0] != ends[1] else None,
        calibrate_gripper=settings.calibrate_gripper,
    )


def main() -> int:
    """Run the node."""
    return run_node(Arm)


if __name__ == "__main__":
    raise SystemExit(main())
