"""Stand-in for python-can where it is not installed: one bus with seven DM motors, as those of a YAM with a gripper.

The motors answer the frames that I2RT's driver sends: enable, disable, clear error, MIT control, registers. A motor
moves to its commanded position when it is stiff (kp > 0), and stays otherwise.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from typing import Any

import numpy as np

__version__ = "0"


class CanError(Exception):
    """As in python-can."""


class Message:
    """A frame."""

    def __init__(self, arbitration_id: int = 0, data: Any = (), is_extended_id: bool = True) -> None:
        self.arbitration_id, self.data, self.is_extended_id = arbitration_id, bytearray(data), is_extended_id


class BusABC:
    """Named in annotations."""


LAG_S = 0.03
GRIPPER = (0.3, -6.0)
"""Angles of the gripper's motor at the stops: closed and open."""
FINGER_RAD_S = 10.0
BIG = (12.5, 10.0, 28.0, 40.0)
"""DM4340: range of position, velocity and torque, and gear ratio."""
SMALL = (12.5, 30.0, 10.0, 10.0)
"""DM4310."""


class Motor:
    """One motor: position in radians of its output."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ranges = BIG if number <= 3 else SMALL
        self.q, self.v, self.error = 0.0, 0.0, 0
        self.stiff = 0
        """Frames with a stiffness."""
        self.largest_kp = 0.0
        self.enabled = False
        self.registers: dict[int, float] = {10: 1, 13: 1, 14: 1, 20: self.ranges[3]}
        self.registers |= {21: self.ranges[0], 22: self.ranges[1], 23: self.ranges[2]}
        self.written: list[int] = []
        self._at_s = time.monotonic()

    def answer(self, data: bytearray) -> Message:
        """Obey one frame."""
        if data[:7] == b"\xff" * 7:
            if data[7] == 0xFC:
                self.enabled, self.error = True, self.error
            elif data[7] == 0xFD:
                self.enabled = False
        else:
            self._control(data)
        status = self.error or int(self.enabled)
        p, v, t = (_pack(x, r, bits) for x, r, bits in zip((self.q, self.v, 0.0), self.ranges, (16, 12, 12)))  # noqa: B905
        body = [status << 4 | self.number, p >> 8, p & 255, v >> 4, (v & 15) << 4 | t >> 8, t & 255, 35, 40]
        return Message(self.number + 16, body, False)

    def _control(self, data: bytearray) -> None:
        now_s = time.monotonic()
        dt, self._at_s = now_s - self._at_s, now_s
        target = _unpack(data[0] << 8 | data[1], self.ranges[0], 16)
        kp = ((data[3] & 15) << 8 | data[4]) * 500.0 / 4095
        torque = _unpack((data[6] & 15) << 8 | data[7], self.ranges[2], 12)
        self.v = 0.0
        if kp == 0 and self.number == 7 and abs(torque) > 0.2 and self.enabled:  # the gripper runs to its end
            self.q = float(min(max(self.q + np.sign(torque) * FINGER_RAD_S * dt, GRIPPER[1]), GRIPPER[0]))
        if kp > 0 and self.enabled:
            self.stiff += 1
            self.largest_kp = max(self.largest_kp, kp)
            step = (target - self.q) * min(1.0, dt / LAG_S)
            self.q, self.v = self.q + step, step / dt if dt > 0 else 0.0

    def register(self, data: bytearray) -> Message:
        """Read or write a register."""
        command, address = data[2], data[3]
        whole = address in (10, 13, 14)
        if command == 0x55:
            self.written.append(address)
            self.registers[address] = struct.unpack("<I" if whole else "<f", data[4:8])[0]
        value = self.registers.get(address, 0)
        packed = struct.pack("<I", int(value)) if whole else struct.pack("<f", value)
        return Message(0x7FF, [*data[:4], *packed], False)


def _pack(x: float, limit: float, bits: int) -> int:
    return int((min(max(x, -limit), limit) + limit) * ((1 << bits) - 1) / (2 * limit))


def _unpack(number: int, limit: float, bits: int) -> float:
    return number * 2 * limit / ((1 << bits) - 1) - limit


MOTORS = {number: Motor(number) for number in range(1, 8)}
OPEN: list[Bus] = []
SILENT: set[int] = set()
"""Motors that do not answer."""


class Bus(BusABC):
    """The one bus, whatever its channel, except "can9", which is down."""

    def __init__(self, bustype: str = "", channel: str = "", bitrate: int = 0) -> None:
        if channel == "can9":
            raise OSError(19, "No such device")
        self.channel_info, self.state = f"stand-in {channel}", "active"
        self._frames: deque[Message] = deque()
        self._lock = threading.Lock()
        OPEN.append(self)

    def send(self, message: Message) -> None:
        if self not in OPEN:
            raise CanError("the bus is closed")
        number = message.data[0] if message.arbitration_id == 0x7FF else message.arbitration_id
        motor = MOTORS.get(number)
        if motor is None or number in SILENT:
            return
        with self._lock:
            self._frames.append(
                motor.register(message.data) if message.arbitration_id == 0x7FF else motor.answer(message.data)
            )

    def recv(self, timeout: float | None = None) -> Message | None:
        with self._lock:
            if self._frames:
                return self._frames.popleft()
        time.sleep(timeout or 0.0)
        return None

    def shutdown(self) -> None:
        if self in OPEN:
            OPEN.remove(self)


class interface:  # noqa: N801 - the name in python-can
    """As in python-can."""

    Bus = Bus
