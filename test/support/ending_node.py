"""A node that ends in a chosen way, in a process whose destructors hang."""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Any

from rclpy.action import ActionClient
from rclpy.impl.implementation_singleton import rclpy_implementation

from kinema4d_msgs.action import GenerateRollout
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.ros.nodes import common
from kinema4d_ros.ros.nodes.common import KinemaNode, run_node

made: list[Any] = []


class Ending(KinemaNode):
    def __init__(self, way: str) -> None:
        super().__init__("ending")
        self._client = ActionClient(self, GenerateRollout, "generate")
        made.append(self)
        if way == "refuses":
            raise KinemaError("refused on purpose")
        if way == "crashes":
            raise RuntimeError("crashed on purpose")
        print("up", flush=True)
        while way == "hangs":
            time.sleep(1.0)


def in_dds() -> bool:
    try:
        with made[0].handle:
            return True
    except rclpy_implementation.InvalidHandle:
        return False


if __name__ == "__main__":
    common.CLOSE_S, common.LEAVE_S = 1.0, 1.0
    c = ctypes.CDLL(None)
    getattr(c, "__cxa_atexit")(ctypes.cast(c.pause, ctypes.c_void_p), None, None)
    way = sys.argv.pop(1)
    code = run_node(lambda: Ending(way))
    print("still in DDS" if in_dds() else "left DDS", flush=True)
    sys.exit(code)
