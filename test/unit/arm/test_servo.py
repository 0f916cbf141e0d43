"""The loop between a driver and trajectories: what it commands, what it refuses, and when it holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.fake_arm import FakeArm

from kinema4d_ros.arm import ArmServo, DriverOptions, ServoLimits, open_driver
from kinema4d_ros.core.errors import ErrorCode, KinemaError, SetupError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.robot import Robot

PATIENCE_S = 30.0
TIMEOUT_S = 1.0
"""Generous, because a loaded test machine delays the loop."""


class Arm:
    def __init__(self, robot: Robot, motion: bool = True, **limits: float) -> None:
        self.driver = FakeArm(robot)
        self.ends: list[str] = []
        self.servo = ArmServo(
            self.driver,
            robot,
            motion=motion,
            limits=ServoLimits(**{"timeout_s": TIMEOUT_S, **limits}),
            ended=self.ends.append,
        )
        self.servo.start()
        self.wait(lambda: self.servo.reading() is not None)
        if motion:
            self.wait(lambda: bool(self.driver.commands))

    def wait(self, until: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            assert time.monotonic() < deadline, (self.ends, self.servo.failure)
            time.sleep(0.005)

    def plan(self, turn: float = 0.2, seconds: float = 1.0, joint: str = "joint1") -> JointTrajectory:
        q = self.driver.q.copy()
        end = q.copy()
        end[self.driver.robot.joint_names.index(joint)] += turn
        return JointTrajectory(self.driver.robot.joint_names, [0.0, seconds], np.stack([q, end]))


@pytest.fixture
def make(yam: Robot) -> Iterator[Callable[..., Arm]]:
    made: list[Arm] = []

    def build(**options: Any) -> Arm:
        made.append(Arm(yam, **options))
        return made[-1]

    yield build
    for arm in made:
        arm.servo.close()
        assert arm.driver.closed


def test_without_motion_nothing_is_ever_commanded(make: Callable[..., Arm]) -> None:
    arm = make(motion=False)
    with pytest.raises(KinemaError, match="motion is off") as caught:
        arm.servo.follow(arm.plan())
    assert caught.value.code == ErrorCode.ARM_UNAVAILABLE
    assert "enable_motion:=true" in caught.value.hint
    time.sleep(0.1)
    arm.servo.close()
    assert arm.driver.commands == []


def test_a_plan_is_followed_to_its_end_and_held(make: Callable[..., Arm], yam: Robot) -> None:
    arm = make()
    start = arm.driver.q.copy()
    assert np.allclose(arm.driver.commands[0][1], start), "it holds where it was"
    plan = arm.plan()
    arm.servo.follow(plan)
    with pytest.raises(KinemaError) as caught:
        arm.servo.follow(plan)
    assert caught.value.code == ErrorCode.ARM_BUSY
    arm.wait(lambda: arm.ends)
    assert arm.ends == [""]
    arm.wait(lambda: np.allclose(arm.driver.q, plan.positions[-1], atol=1e-3))
    told = np.array([q for _, q in arm.driver.commands])
    assert np.all(told >= yam.lower - 1e-9)
    assert np.all(told <= yam.upper + 1e-9)
    others = [i for i, name in enumerate(yam.joint_names) if name != "joint1"]
    assert np.allclose(told[:, others], start[others])


def test_commands_never_exceed_the_speed_limits(make: Callable[..., Arm], yam: Robot) -> None:
    arm = make()
    arm.servo.follow(arm.plan(turn=0.5))
    arm.wait(lambda: arm.ends)
    times = np.array([at for at, _ in arm.driver.commands])
    told = np.array([q for _, q in arm.driver.commands])
    speed = np.abs(np.diff(told, axis=0)) / np.maximum(np.diff(times), 0.01)[:, None]
    limit = np.array([joint.limits.velocity for joint in yam.actuated])
    # Half of the limit is the plan's; the times here are those of the driver, some delay later.
    assert np.all(speed <= 1.5 * limit)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"turn": 2.5, "seconds": 1.0}, ErrorCode.TRAJECTORY_TOO_FAST),
        ({"turn": 9.0, "seconds": 60.0}, ErrorCode.TRAJECTORY_OUT_OF_LIMITS),
    ],
)
def test_plans_beyond_the_limits_are_refused(
    make: Callable[..., Arm], change: dict[str, float], code: ErrorCode
) -> None:
    arm = make()
    with pytest.raises(KinemaError) as caught:
        arm.servo.follow(arm.plan(**change))
    assert caught.value.code == code
    assert not arm.servo.moving


def test_a_plan_from_elsewhere_is_refused(make: Callable[..., Arm]) -> None:
    arm = make()
    plan = arm.plan()
    shifted = JointTrajectory(plan.names, plan.times, plan.positions + np.array([0.3, 0, 0, 0, 0, 0, 0]))
    with pytest.raises(KinemaError) as caught:
        arm.servo.follow(shifted)
    assert caught.value.code == ErrorCode.PLAN_START_MISMATCH


def test_a_stop_brakes_and_holds(make: Callable[..., Arm]) -> None:
    arm = make()
    plan = arm.plan(turn=1.0, seconds=4.0)
    arm.servo.follow(plan)
    arm.wait(lambda: arm.driver.q[0] > plan.positions[0, 0] + 0.05)
    arm.servo.stop("the gate is lost")
    arm.wait(lambda: arm.ends)
    assert arm.ends == ["the gate is lost"]
    held = arm.driver.commands[-1][1]
    assert held[0] < plan.positions[-1, 0] - 0.05
    time.sleep(0.2)
    assert np.allclose(arm.driver.commands[-1][1], held, atol=2e-3)
    arm.servo.follow(arm.plan(turn=0.05))  # and goes on with the next plan
    arm.wait(lambda: len(arm.ends) == 2)
    assert arm.ends[1] == ""


def test_a_blocked_joint_ends_the_motion_where_the_arm_is(make: Callable[..., Arm]) -> None:
    arm = make(path_tolerance_rad=0.1)
    arm.driver.fault = "blocked"
    arm.servo.follow(arm.plan(turn=0.6))
    arm.wait(lambda: arm.ends)
    assert "joint 'joint1' did not follow" in arm.ends[0]
    assert abs(arm.driver.commands[-1][1][0] - arm.driver.q[0]) < 0.1


def test_states_that_stop_coming_end_the_motion(make: Callable[..., Arm]) -> None:
    arm = make(timeout_s=0.5)
    plan = arm.plan(turn=1.0, seconds=8.0)
    arm.servo.follow(plan)
    arm.wait(lambda: arm.driver.q[0] > plan.positions[0, 0] + 0.02)
    arm.driver.fault = "silent"
    arm.wait(lambda: arm.ends)
    assert "late" in arm.ends[0]
    assert arm.servo.reading() is None, "no old state is published as a new one"
    count = len(arm.driver.commands)
    time.sleep(0.1)
    assert len(arm.driver.commands) == count, "nothing is commanded blindly"
    with pytest.raises(KinemaError, match="no state of the arm"):
        arm.servo.follow(plan)
    arm.driver.fault = ""
    arm.wait(lambda: len(arm.driver.commands) > count)
    # Back again it holds the measured position, and the old plan does not go on.
    time.sleep(0.2)
    assert np.allclose(arm.driver.commands[-1][1], arm.driver.commands[count][1])
    assert not arm.servo.moving


def test_a_failed_driver_is_not_commanded_any_more(make: Callable[..., Arm]) -> None:
    arm = make()
    arm.servo.follow(arm.plan(turn=0.5, seconds=2.0))
    arm.driver.fault = "breaks"
    arm.wait(lambda: arm.ends)
    assert "motor 2 reported over current" in arm.ends[0]
    assert arm.servo.failure is not None
    count = len(arm.driver.commands)
    arm.driver.fault = ""
    with pytest.raises(KinemaError, match="over current"):
        arm.servo.follow(arm.plan())
    assert len(arm.driver.commands) == count
    assert arm.servo.reading() is None


def test_closing_in_a_motion_brakes_first(make: Callable[..., Arm]) -> None:
    arm = make()
    plan = arm.plan(turn=1.0, seconds=4.0)
    arm.servo.follow(plan)
    arm.wait(lambda: arm.driver.q[0] > plan.positions[0, 0] + 0.05)
    arm.servo.close()
    assert arm.ends == ["the node was stopped"]
    assert arm.driver.closed == 1
    assert arm.driver.commands[-1][1][0] < plan.positions[-1, 0] - 0.05


def test_a_user_s_driver_is_loaded_and_an_unknown_one_refused(yam: Robot) -> None:
    assert isinstance(open_driver("support.fake_arm:FakeArm", yam, DriverOptions()), FakeArm)
    with pytest.raises(KinemaError, match="driver 'ur5' is not known"):
        open_driver("ur5", yam, DriverOptions())
    with pytest.raises(SetupError, match="cannot be imported"):
        open_driver("support.fake_arm:None_", yam, DriverOptions())
