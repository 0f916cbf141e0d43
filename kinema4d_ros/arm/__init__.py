"""A real arm: its driver behind a small protocol, and the loop that follows trajectories within limits."""

from kinema4d_ros.arm.driver import DRIVERS, ArmDriver, DriverOptions, Reading, open_driver
from kinema4d_ros.arm.servo import ArmServo, ServoLimits

__all__ = ["DRIVERS", "ArmDriver", "ArmServo", "DriverOptions", "Reading", "ServoLimits", "open_driver"]
