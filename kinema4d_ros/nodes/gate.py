"""The only node that moves the arm: forwards exactly the approved plan, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kinema4d_ros.bridge import names
from kinema4d_ros.bridge.errors import error_to_msg
from kinema4d_ros.bridge.joints import trajectory_from_msg, trajectory_to_msg
from kinema4d_ros.bridge.params import declare, parameter
from kinema4d_ros.bridge.stamps import header, time_from_ns
from kinema4d_ros.errors import ErrorCode, KinemaError
from kinema4d_ros.live import ExecutionGate, GatePolicy
from kinema4d_ros.nodes.common import WARN, Health, KinemaNode, run_node
from kinema4d_ros.nodes.inputs import ArmInput
from kinema4d_ros.robot import Robot

__all__ = ["Gate", "main"]

POLICY = GatePolicy()


@dataclass(frozen=True)
class Settings:
    """Parameters of the gate."""

    robot: str = parameter("yam", "A robot's name, or the path of a .urdf or .xacro file.", read_only=True)
    max_age_s: float = parameter(0.5, "Joint states older than this are stale.", low=0.05, high=5.0, read_only=True)
    plan_max_age_s: float = parameter(
        POLICY.plan_max_age_s, "A preview older than this cannot be approved.", low=1.0, high=600.0, read_only=True
    )
    approval_ttl_s: float = parameter(
        POLICY.approval_ttl_s, "How long an approval is good for.", low=1.0, high=120.0, read_only=True
    )
    start_tolerance_rad: float = parameter(
        POLICY.start_tolerance_rad, "How far a joint may be from the plan's start.", low=0.001, high=0.2, read_only=True
    )
    start_tolerance_m: float = parameter(
        POLICY.start_tolerance_m, "The same for fingers.", low=0.0001, high=0.02, read_only=True
    )


class Gate(KinemaNode):
    """Serves `approve` and `execute`, and publishes to the arm's controller."""

    def __init__(self) -> None:
        super().__init__("gate")
        settings = declare(self, Settings)
        robot = Robot.load(settings.robot)
        self._arm = ArmInput(self, robot, settings.max_age_s)
        self._gate = ExecutionGate(
            robot,
            GatePolicy(
                plan_max_age_s=settings.plan_max_age_s,
                approval_ttl_s=settings.approval_ttl_s,
                start_tolerance_rad=settings.start_tolerance_rad,
                start_tolerance_m=settings.start_tolerance_m,
            ),
        )
        self._refused = self._executed = 0
        self._command = self.publisher(names.ARM_TRAJECTORY)
        self.subscription(names.PREVIEWED_PLAN, self._previewed)
        self.service(names.APPROVE, self._approve)
        self.service(names.EXECUTE, self._execute)

    def _previewed(self, message: Any) -> None:
        try:
            plan = trajectory_from_msg(message.trajectory)
            self._gate.previewed(plan, message.plan_hash, self.now_s())
        except KinemaError as error:
            self._refused += 1
            self.complain(error, "previewed plan: ")

    def _approve(self, request: Any, response: Any) -> Any:
        try:
            now_s = self.now_s()
            approval = self._gate.approve(request.plan_hash, request.approver, self._arm.state(), now_s)
        except KinemaError as error:
            return self._refuse(response, error, f"approval of {request.plan_hash[:12]}")
        response.error = error_to_msg()
        response.token = approval.token
        left_ns = round((approval.expires_s - now_s) * 1e9)
        response.expires = time_from_ns(self.get_clock().now().nanoseconds + left_ns)
        self.get_logger().info(f"{request.approver or 'somebody'} approved plan {request.plan_hash[:12]}")
        return response

    def _execute(self, request: Any, response: Any) -> Any:
        try:
            state = self._arm.state()
            if self._command.get_subscription_count() == 0:
                raise KinemaError(
                    f"the arm stays where it is: nobody listens on {self._command.topic_name}",
                    expected="the arm's trajectory controller",
                    hint="start the arm's driver and its controller",
                    code=ErrorCode.ARM_UNAVAILABLE,
                )
            plan = self._gate.execute(request.plan_hash, request.token, state, self.now_s())
        except KinemaError as error:
            return self._refuse(response, error, f"execution of {request.plan_hash[:12]}")
        # A stamp of 0 tells ros2_control to start now; any other is a start time on its clock.
        self._command.publish(trajectory_to_msg(plan, header(0)))
        self._executed += 1
        response.error = error_to_msg()
        response.duration_s = plan.duration_s
        self.get_logger().info(f"plan {request.plan_hash[:12]} goes to the arm, {plan.duration_s:.1f} s")
        return response

    def _refuse(self, response: Any, error: KinemaError, what: str) -> Any:
        self._refused += 1
        self.get_logger().warning(f"{what} refused: {error}")
        response.error = error_to_msg(error)
        return response

    def health(self) -> Health:
        """Whether the arm is heard of, and what was let through."""
        values = {**self._arm.values(), "plans executed": self._executed, "refused": self._refused}
        try:
            self._arm.state()
        except KinemaError as error:
            return Health(WARN, error.what, values)
        return Health(message="closed until a plan is approved", values=values)


def main() -> int:
    """Run the node."""
    return run_node(Gate)


if __name__ == "__main__":
    raise SystemExit(main())
