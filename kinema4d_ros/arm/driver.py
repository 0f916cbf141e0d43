"""Drivers of real arms: the protocol, and I2RT's driver of the YAM (PyPI: dreamscale-i2rt, imports as i2rt)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, KinemaError, SetupError
from kinema4d_ros.robot import Robot

__all__ = ["DRIVERS", "ArmDriver", "DriverOptions", "I2rtDriver", "Reading", "open_driver"]

Array = NDArray[np.float64]

GRIPPER_SLACK_RAD = 0.1
"""Largest angle of the gripper's motor outside its range."""

REFRESH_S = 2.0
"""Timeout for new states of the motors."""


@dataclass(frozen=True, eq=False)
class Reading:
    """State of an arm as its driver reports it.

    Attributes:
        positions, velocities, efforts: (J,) float64 in `robot.joint_names` order; radians or metres, per second, and
            newton metres or newtons; efforts may be NaN.
        seen_s: monotonic time at which the driver last received a state from the arm.
    """

    positions: Array
    velocities: Array
    efforts: Array
    seen_s: float


@dataclass(frozen=True)
class DriverOptions:
    """Options of a driver.

    Attributes:
        channel: CAN interface of the arm.
        arm, gripper: the vendor's names of the variants.
        gripper_range: motor angles of the closed and the open gripper, radians; None = unknown.
        calibrate_gripper: whether the driver may move the fingers when it opens, to find `gripper_range`.
    """

    channel: str = "can0"
    arm: str = "yam"
    gripper: str = "linear_4310"
    gripper_range: tuple[float, float] | None = None
    calibrate_gripper: bool = False


class ArmDriver(Protocol):
    """A real arm. After construction it holds no position: the arm is limp, or floats with gravity compensation.

    A user's driver is a class with these methods that is constructed with (robot, options).
    """

    description: str
    """One line for the log and the diagnostics."""

    def read(self) -> Reading:
        """Return the newest state; raise ARM_UNAVAILABLE when the driver has stopped."""
        ...

    def command(self, positions: Array) -> None:
        """Move to positions (J,), which are within the limits and a small step from the previous ones; do not block."""
        ...

    def close(self) -> None:
        """Release the arm; may be called twice, and after an error."""
        ...


def open_driver(spec: str, robot: Robot, options: DriverOptions) -> ArmDriver:
    """Open a driver of `DRIVERS`, or a user's class: package.module:Class.

    Raises:
        SetupError: the driver cannot be imported.
        KinemaError: ARM_UNAVAILABLE when the arm does not respond; ARGUMENT_INVALID for an unknown driver.
    """
    if spec in DRIVERS:
        return DRIVERS[spec](robot, options)
    module, colon, name = spec.partition(":")
    if not colon:
        raise KinemaError(
            f"driver '{spec}' is not known",
            expected=f"{', '.join(DRIVERS)} or package.module:Class",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    try:
        made = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SetupError(
            f"driver '{spec}' cannot be imported: {error}",
            expected="package.module:Class of a module that can be imported",
            hint="install its package, or put its folder on PYTHONPATH",
        ) from error
    opened: ArmDriver = made(robot, options)
    return opened


class I2rtDriver:
    """I2RT's driver of the YAM family: a chain of DM motors on a CAN bus, with gravity compensation.

    Opening it enables the motors: the arm then floats, and a person can move it. It also checks the motors' types
    and, as the vendor's driver does at every start, repairs a wrong control mode in a motor's memory. Closing it
    ends the commands; motors without a CAN timeout then keep their last torque, others go limp: support the arm.
    """

    def __init__(self, robot: Robot, options: DriverOptions) -> None:
        """Open the bus and enable the motors."""
        self._closed = False
        self._arm_joints = [robot.joint_names.index(joint.name) for joint in robot.arm]
        self._count = len(robot.joint_names)
        self._finger = None if robot.gripper is None else robot.joint_names.index(robot.gripper.joint)
        self._closed_m, self._stroke_m = 0.0, 1.0
        if robot.gripper is not None:
            self._closed_m, self._stroke_m = robot.gripper.closed, robot.gripper.open - robot.gripper.closed
        get_robot, arms, grippers = _i2rt()
        with_gripper = options.gripper not in ("no_gripper", "yam_teaching_handle")
        if with_gripper != (self._finger is not None):
            raise KinemaError(
                f"the driver's gripper is '{options.gripper}', and '{robot.name}' has "
                + ("no gripper" if self._finger is None else "one"),
                expected="a robot description and a driver with the same gripper",
                hint="set the parameter 'gripper', or the robot",
                code=ErrorCode.NO_GRIPPER,
            )
        try:
            arm, gripper = arms.from_string_name(options.arm), grippers.from_string_name(options.gripper)
        except ValueError as error:
            raise KinemaError(str(error), expected="a variant of i2rt", code=ErrorCode.ARGUMENT_INVALID) from None
        if with_gripper:
            _require_gripper_range(gripper, arm, options)
        given = None if options.gripper_range is None else np.array(options.gripper_range)
        try:
            # Zero-gravity mode: no position is commanded until `command` is called.
            self._robot = get_robot(
                channel=options.channel,
                arm_type=arm,
                gripper_type=gripper,
                zero_gravity_mode=True,
                gripper_limits_override=given,
                enable_auto_recovery=False,
            )
        except Exception as error:  # the vendor raises AssertionError, RuntimeError, OSError and can.CanError
            raise _unavailable(
                f"i2rt could not open the arm on {options.channel}: {type(error).__name__}: {error}",
                f"power and cable of the arm; the bus is up: sudo ip link set {options.channel} up type can "
                "bitrate 1000000; no other program uses it; the joints are within their limits",
            ) from error
        self._seen: Any = None
        self._seen_s = time.monotonic()
        at = ""
        if with_gripper:
            try:
                low, high = self._place_gripper(options.gripper_range)
            except BaseException:
                self.close()
                raise
            at = f", gripper motor closed {low:.3f} rad, open {high:.3f} rad"
        self.description = f"i2rt {options.arm} with {options.gripper} on {options.channel}{at}"
        if self._robot.num_dofs() != len(self._arm_joints) + int(with_gripper):
            self.close()
            raise KinemaError(
                f"the driver has {self._robot.num_dofs()} motors, '{robot.name}' has {len(self._arm_joints)} joints "
                "besides the gripper",
                expected="the robot description of this arm",
                code=ErrorCode.UNKNOWN_JOINT,
            )

    def _place_gripper(self, given: tuple[float, float] | None) -> tuple[float, float]:
        """Return the motor angles of the closed and the open gripper, as `gripper_range` takes them.

        At each start the driver takes a motor's angle modulo a turn, within half a turn of 0, and the gripper's motor
        turns more than once. Which turn it is in follows from the range that was given.
        """
        chain = self._robot.motor_chain
        sign = float(chain.motor_direction[-1])
        turned = float(chain.motor_offset[-1]) * sign
        if given is None:  # the driver found the range, relative to the turn that it chose
            low, high = (float(limit) + turned for limit in self._robot.get_robot_info()["gripper_limits"])
            return low, high
        angle = float(chain.read_states()[-1].pos) + turned
        low, high = min(given) - GRIPPER_SLACK_RAD, max(given) + GRIPPER_SLACK_RAD
        turns = [k * 2 * np.pi for k in (-1, 0, 1) if low <= angle - k * 2 * np.pi <= high]
        if len(turns) != 1:
            where = "could be closed as well as open" if turns else "is outside its range"
            raise KinemaError(
                f"the gripper's motor is at {angle:.2f} rad: it {where}",
                expected=f"an angle from {min(given):.2f} to {max(given):.2f} rad, in one turn of the motor",
                hint="open the gripper halfway by hand and start again; otherwise start with calibrate_gripper:=true",
                code=ErrorCode.PARAMETER_INVALID,
            )
        # Nothing was commanded yet, so the finger does not move when its angle is counted anew.
        chain.motor_offset[-1] = turns[0] * sign
        before, deadline_s = self._robot.get_joint_pos(), time.monotonic() + REFRESH_S
        for _ in range(2):  # the first new state may have been read before the change
            while self._robot.get_joint_pos() is before and time.monotonic() < deadline_s:
                time.sleep(0.001)
            before = self._robot.get_joint_pos()
        return given

    def read(self) -> Reading:
        """Return the newest state; its gripper is in the unit of the robot description."""
        if not self._robot.motor_chain.running:
            raise _unavailable(
                "i2rt stopped: a motor reported an error, did not respond, or a joint left its limits",
                "read the driver's message above; support the arm, cycle its power, and start the node again",
            )
        # The driver replaces this array whenever it has read the motors, and never changes it.
        newest = self._robot.get_joint_pos()
        if newest is not self._seen:
            self._seen, self._seen_s = newest, time.monotonic()
        found = self._robot.get_observations()
        return Reading(
            self._ours(found, "pos", self._closed_m),
            self._ours(found, "vel", 0.0),
            self._ours(found, "eff", 0.0, scaled=False),
            self._seen_s,
        )

    def _ours(self, found: Mapping[str, Any], key: str, offset: float, scaled: bool = True) -> Array:
        values = np.full(self._count, np.nan)
        values[self._arm_joints] = found[f"joint_{key}"]
        if self._finger is not None:
            theirs = float(found[f"gripper_{key}"][0])  # 0 = closed, 1 = open
            # A motor's torque is no force at the finger: the gear between them is not known here.
            values[self._finger] = offset + theirs * self._stroke_m if scaled else np.nan
        return values

    def command(self, positions: Array) -> None:
        """Command positions with the vendor's gains."""
        theirs = list(positions[self._arm_joints])
        if self._finger is not None:
            theirs.append(float(np.clip((positions[self._finger] - self._closed_m) / self._stroke_m, 0.0, 1.0)))
        self._robot.command_joint_pos(np.array(theirs))

    def close(self) -> None:
        """Stop the driver's threads and close the bus."""
        if not self._closed:
            self._closed = True
            self._robot.close()


def _i2rt() -> tuple[Callable[..., Any], Any, Any]:
    try:
        from i2rt.robots.get_robot import get_yam_robot
        from i2rt.robots.utils import ArmType, GripperType
    except ImportError as error:
        raise SetupError(
            f"I2RT's driver cannot be imported: {error}",
            expected="the package dreamscale-i2rt with its dependencies; for the meshes alone they are left out",
            hint="pip install dreamscale-i2rt",
        ) from error
    return get_yam_robot, ArmType, GripperType


def _require_gripper_range(gripper: Any, arm: Any, options: DriverOptions) -> None:
    """Refuse to let the driver move the fingers to find their range, unless that was asked for."""
    known = options.gripper_range is not None or not gripper.get_gripper_needs_calibration(arm)
    if known or options.calibrate_gripper:
        return
    raise KinemaError(
        f"the motor angles of the closed and the open gripper '{options.gripper}' are not known",
        expected="gripper_closed_rad and gripper_open_rad, which the node prints after a start with calibrate_gripper",
        hint="start once with calibrate_gripper:=true: the driver then closes and opens the empty gripper",
        code=ErrorCode.PARAMETER_INVALID,
    )


def _unavailable(what: str, hint: str) -> KinemaError:
    return KinemaError(what, expected="an arm that responds", hint=hint, code=ErrorCode.ARM_UNAVAILABLE)


DRIVERS: Mapping[str, Callable[[Robot, DriverOptions], ArmDriver]] = {"i2rt": I2rtDriver}
"""Drivers by name."""
