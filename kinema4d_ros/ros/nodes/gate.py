"""Gate node, the only node that commands the arm: forwards exactly the approved plan, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kinema4d_msgs.msg import ExecutionStatus
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.previews.checks import WorldChanges, believed
from kinema4d_ros.previews.gate import ExecutionGate, GatePolicy
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.errors import error_to_msg
from kinema4d_ros.ros.messages.stamps import nanoseconds, time_from_ns
from kinema4d_ros.ros.messages.trajectories import trajectory_from_msg
from kinema4d_ros.ros.nodes.common import ERROR, WARN, Health, KinemaNode, run_node
from kinema4d_ros.ros.nodes.controllers import WAYS, controllers
from kinema4d_ros.ros.nodes.inputs import ArmInput
from kinema4d_ros.ros.params import declare, parameter

__all__ = ["Gate", "main"]

POLICY = GatePolicy()
APPROVER_LETTERS = 80


@dataclass(frozen=True)
class Settings:
    """Parameters of the gate."""

    robot: str = parameter("yam", "A robot's name, or the path of a .urdf or .xacro file.", read_only=True)
    controller: str = parameter(
        "topic", "Interface to the arm: its controller's topic or action.", choices=tuple(WAYS), read_only=True
    )
    arm_joints: tuple[str, ...] = parameter(
        (), "Joints of the arm's controller; empty: all except the gripper's joints.", read_only=True
    )
    gripper_controller: str = parameter(
        "", "Name of a separate gripper controller; empty: the arm's controller also moves the gripper.", read_only=True
    )
    gripper_joints: tuple[str, ...] = parameter(
        (), "Joints of the gripper's controller; empty: the joint of the robot's gripper.", read_only=True
    )
    commanders: tuple[str, ...] = parameter(
        (), "Full names of other nodes that may command the arm; any other one blocks approvals.", read_only=True
    )
    max_age_s: float = parameter(0.5, "Joint states older than this are stale.", low=0.05, high=5.0, read_only=True)
    plan_max_age_s: float = parameter(
        POLICY.plan_max_age_s, "A preview older than this cannot be approved.", low=1.0, high=600.0, read_only=True
    )
    approval_ttl_s: float = parameter(
        POLICY.approval_ttl_s, "Lifetime of an approval, seconds.", low=1.0, high=120.0, read_only=True
    )
    start_tolerance_rad: float = parameter(
        POLICY.start_tolerance_rad, "Largest joint offset from the plan's start.", low=0.001, high=0.2, read_only=True
    )
    start_tolerance_m: float = parameter(
        POLICY.start_tolerance_m, "Largest finger offset from the plan's start.", low=0.0001, high=0.02, read_only=True
    )


class Gate(KinemaNode):
    """Server of `approve` and `execute`, and client of the arm's controllers."""

    def __init__(self) -> None:
        super().__init__("gate")
        settings = declare(self, Settings)
        robot = Robot.load(settings.robot)
        self._arm = ArmInput(self, robot, settings.max_age_s)
        self._way = WAYS[settings.controller](
            self,
            robot,
            controllers(robot, settings.arm_joints, settings.gripper_controller, settings.gripper_joints),
            self._arm.state,
            self._ended,
            settings.commanders,
        )
        self._gate = ExecutionGate(
            robot,
            GatePolicy(
                plan_max_age_s=settings.plan_max_age_s,
                approval_ttl_s=settings.approval_ttl_s,
                start_tolerance_rad=settings.start_tolerance_rad,
                start_tolerance_m=settings.start_tolerance_m,
            ),
            self._way.permit,
        )
        self._changes = WorldChanges()
        self._refused = self._executed = self._aborted = 0
        self._failure: KinemaError | None = None
        self._durations: dict[str, float] = {}
        self._status = self.publisher(names.EXECUTION_STATUS)
        self.subscription(names.PREVIEWED_PLAN, self._previewed)
        self.subscription(names.WORLD_CHANGED, self._world_changed)
        self.service(names.APPROVE, self._approve)
        self.service(names.EXECUTE, self._execute)

    def _previewed(self, message: Any) -> None:
        try:
            plan = trajectory_from_msg(message.trajectory)
            # A stamp in the far future would stay newer than every change of the scene.
            world_ns = believed(nanoseconds(message.world_stamp), self.clock_ns())
            self._gate.previewed(plan, message.plan_hash, self.now_s(), world_ns)
        except KinemaError as error:
            self._refused += 1
            self.complain(error, "previewed plan: ")

    def _world_changed(self, message: Any) -> None:
        if self._gate.world_changed(self.hear_change(self._changes, message)):
            self.get_logger().info("the scene changed: the previewed plan is void")

    def _approve(self, request: Any, response: Any) -> Any:
        if request == type(request)():
            return _answer_empty(response)
        try:
            now_s = self.now_s()
            approval = self._gate.approve(request.plan_hash, request.approver, self._arm.state(), now_s)
        except KinemaError as error:
            return self._refuse(response, error, f"approval of {request.plan_hash[:12]}")
        response.error = error_to_msg()
        response.token = approval.token
        left_ns = round((approval.expires_s - now_s) * 1e9)
        response.expires = time_from_ns(self.get_clock().now().nanoseconds + left_ns)
        # Escaped to a single line, so that a client cannot forge log lines.
        who = ascii(request.approver[:APPROVER_LETTERS])[1:-1] or "unnamed approver"
        self.get_logger().info(f"{who} approved plan {request.plan_hash[:12]}")
        return response

    async def _execute(self, request: Any, response: Any) -> Any:
        if request == type(request)():
            return _answer_empty(response)
        try:
            await self._way.require_ready()
            plan = self._gate.execute(request.plan_hash, request.token, self._arm.state(), self.now_s())
            try:
                await self._way.send(plan, request.plan_hash)
            except KinemaError as error:
                self._durations = {request.plan_hash: float(plan.times[-1])}
                if error.code is ErrorCode.ARM_REFUSED:
                    self._gate.finished()
                    self._tell(request.plan_hash, ExecutionStatus.ABORTED, error)
                else:
                    # A controller may still follow the plan, starting now at the latest.
                    self._gate.may_move(self.now_s() + float(plan.times[-1]))
                    self._fail(request.plan_hash, error)
                raise
        except KinemaError as error:
            return self._refuse(response, error, f"execution of {request.plan_hash[:12]}")
        self._executed += 1
        # One motion at a time: earlier ones have ended.
        duration_s = float(plan.times[-1])
        self._durations = {request.plan_hash: duration_s}
        self._tell(request.plan_hash, ExecutionStatus.SENT)
        response.error = error_to_msg()
        response.duration_s = duration_s
        self.get_logger().info(f"plan {request.plan_hash[:12]} was sent to the arm, {duration_s:.1f} s")
        return response

    def _ended(self, plan_hash: str, error: KinemaError | None, stands: bool) -> None:
        """Handle the end of a motion, or the loss of a controller."""
        # An arm that is not known to be at rest stays busy for the duration of the plan.
        if stands:
            self._gate.finished()
        self._failure = error
        if error is None:
            self.get_logger().info(f"the arm followed plan {plan_hash[:12]} to its end")
            self._tell(plan_hash, ExecutionStatus.DONE)
        else:
            self._fail(plan_hash, error)

    def _fail(self, plan_hash: str, error: KinemaError) -> None:
        self._failure = error
        self._aborted += 1
        self.get_logger().error(f"plan {plan_hash[:12]}: {error}")
        self._tell(plan_hash, ExecutionStatus.ABORTED, error)

    def _tell(self, plan_hash: str, phase: int, error: KinemaError | None = None) -> None:
        status = ExecutionStatus(plan_hash=plan_hash, phase=phase, error=error_to_msg(error))
        status.header.stamp = self.get_clock().now().to_msg()
        status.duration_s = self._durations.get(plan_hash, 0.0)
        self._status.publish(status)

    def _refuse(self, response: Any, error: KinemaError, what: str) -> Any:
        self._refused += 1
        self.get_logger().warning(f"{what} refused: {error}")
        response.error = error_to_msg(error)
        return response

    def health(self) -> Health:
        """Report the arm's state and the counts of executed and refused plans."""
        self._way.look()
        self._way.commanders.look()
        values = {
            **self._arm.values(),
            "plans executed": self._executed,
            "refused": self._refused,
            "aborted by the arm": self._aborted,
        }
        others = self._way.commanders.others()
        if self._way.commanders.twins():
            others.append(f"another node named {self.get_name()} exists, or was just killed")
        values["others that command the arm"] = "; ".join(others) or "none"
        if others:
            return Health(ERROR, f"another node can command the arm: {'; '.join(others)}", values)
        try:
            self._arm.state()
        except KinemaError as error:
            return Health(WARN, error.what, values)
        if self._failure is not None:
            return Health(WARN, str(self._failure), values)
        return Health(message="closed until a plan is approved", values=values)


def _answer_empty(response: Any) -> Any:
    """Reject an empty request without side effects: clients send one to check that responses arrive."""
    response.error = error_to_msg(
        KinemaError("the request is empty", expected="a plan's hash", code=ErrorCode.ARGUMENT_INVALID)
    )
    return response


def main() -> int:
    """Run the node."""
    return run_node(Gate)


if __name__ == "__main__":
    raise SystemExit(main())
