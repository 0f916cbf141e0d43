"""I2RT's own driver on the stand-in CAN bus, in a process of its own: prints what happened as one line of JSON.

python i2rt_on_bus.py     (PYTHONPATH: the repository, test/ and test/support/fake_can)
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import can
import numpy as np

from kinema4d_ros.arm import DriverOptions, open_driver
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.robot import Robot

RANGE = can.GRIPPER
PATIENCE_S = 120.0


def wait(until: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def refused(robot: Robot, **options: Any) -> str:
    try:
        open_driver("i2rt", robot, DriverOptions(**options)).close()
    except KinemaError as error:
        return str(error)
    return "opened"


def gripper_or_refusal(robot: Robot, ends: tuple[float, float] = RANGE) -> float | str:
    try:
        driver = open_driver("i2rt", robot, DriverOptions(gripper_range=ends))
    except KinemaError as error:
        return str(error)
    at = float(driver.read().positions[6])
    driver.close()
    return at


def main() -> None:
    """Open, read, command, break and close."""
    robot = Robot.load("yam")
    found: dict[str, Any] = {"no range": refused(robot), "touched": any(m.enabled for m in can.MOTORS.values())}
    found["no bus"] = refused(robot, channel="can9", gripper_range=RANGE)
    found["no such arm"] = refused(robot, arm="ur5", gripper_range=RANGE)
    found["no gripper"] = refused(robot, gripper="no_gripper")

    can.MOTORS[2].q, can.MOTORS[7].q = 0.5, -4.0
    driver = open_driver("i2rt", robot, DriverOptions(gripper_range=RANGE))
    found["description"] = driver.description
    first = driver.read()
    wait(lambda: driver.read().seen_s > first.seen_s)
    found["start"] = driver.read().positions.tolist()
    found["stiff before a command"] = sum(motor.stiff for motor in can.MOTORS.values())
    found["written"] = sorted({address for motor in can.MOTORS.values() for address in motor.written})
    target = np.array(found["start"])
    target[1], target[5], target[6] = 0.8, -0.2, 0.01
    driver.command(target)
    wait(lambda: np.allclose(driver.read().positions, target, atol=2e-3))
    found["reached"] = driver.read().positions.tolist()
    found["gripper motor"] = can.MOTORS[7].q
    found["stiff after"] = all(motor.stiff for motor in can.MOTORS.values())

    can.MOTORS[3].error = 0xA
    told: list[str] = []

    def broken() -> bool:
        try:
            driver.read()
        except KinemaError as error:
            told.append(str(error))
        return bool(told)

    wait(broken)
    found["over current"] = told[0]
    driver.close()
    driver.close()
    wait(lambda: threading.active_count() == 1)
    can.MOTORS[3].error = 0
    for where, angle in (("in the middle", -3.0), ("a turn away", -3.0 + 2 * np.pi)):
        can.MOTORS[7].q = angle
        found[where] = gripper_or_refusal(robot)
    can.MOTORS[7].q = RANGE[1] - 0.05  # closed, one turn further, is nearly the same angle
    found["at an end"] = gripper_or_refusal(robot)
    can.MOTORS[7].q = 1.5
    found["nowhere"] = gripper_or_refusal(robot, (0.0, -2.0))
    can.MOTORS[7].q = -4.0
    driver = open_driver("i2rt", robot, DriverOptions(calibrate_gripper=True))
    found["calibrated"] = driver.description
    driver.close()
    wait(lambda: threading.active_count() == 1)
    found["open buses"] = len(can.OPEN)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the vendor's threads are not daemons
    os._exit(0)
