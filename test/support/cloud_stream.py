"""Point clouds between two processes at 30 Hz: `send N` publishes them, `receive N` counts and times them.

Both print "ready" first. At the end the sender prints the number sent and the duration, the receiver the number
received, latencies in ms (p50/p99/worst) and its memory in MB (end of the first minute -> end of the run).
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import rclpy
from support.proc import resident_mb

from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.points import cloud_from_points
from kinema4d_ros.ros.messages.stamps import header, nanoseconds
from kinema4d_ros.ros.qos import profile

RATE_HZ = 30.0
SILENCE_S = 10.0
ENDPOINT = names.PREDICTED_POINTS


def clouds() -> list[tuple[Any, Any]]:
    """Return eight wavy clouds: points (480, 720, 3) float32 metres and colours (480, 720, 3) uint8."""
    v, u = np.mgrid[:480, :720]
    made = []
    for index in range(8):
        z = (1.0 + 0.2 * np.sin(u / 90 + index)).astype(np.float32)
        xyz = np.stack([u * z / 720, v * z / 720, z], -1).astype(np.float32)
        made.append((xyz, np.stack([u % 256, v % 256, u * 0], -1).astype(np.uint8)))
    return made


def send(node: Any, count: int) -> None:
    publisher = node.create_publisher(ENDPOINT.interface(), ENDPOINT.name, profile(ENDPOINT))
    frames = clouds()
    deadline = time.monotonic() + 30.0
    while publisher.get_subscription_count() == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    started = due = time.monotonic()
    for index in range(count):
        publisher.publish(cloud_from_points(*frames[index % 8], header(time.monotonic_ns(), str(index))))
        due += 1.0 / RATE_HZ
        time.sleep(max(0.0, due - time.monotonic()))
    print(count, time.monotonic() - started, flush=True)
    time.sleep(3.0)


def receive(node: Any, count: int) -> None:
    late = np.full(count, np.nan)
    memory: list[float] = []
    heard = time.monotonic()

    def take(message: Any) -> None:
        nonlocal heard
        heard = time.monotonic()
        late[int(message.header.frame_id)] = (time.monotonic_ns() - nanoseconds(message.header.stamp)) * 1e-6

    node.create_subscription(ENDPOINT.interface(), ENDPOINT.name, take, profile(ENDPOINT))
    came, first = 0, 60.0
    while came < count and time.monotonic() - heard < (SILENCE_S if came else first):
        rclpy.spin_once(node, timeout_sec=0.1)
        came = int(np.isfinite(late).sum())
        if came % round(60 * RATE_HZ) == 0 and came:
            memory.append(resident_mb(os.getpid()))
    p50, p99, worst = np.nanpercentile(late, [50, 99, 100]) if came else (np.nan, np.nan, np.nan)
    grown = f"{memory[0]:.0f}->{memory[-1]:.0f}" if memory else "unknown"
    print(came, f"{p50:.1f}/{p99:.1f}/{worst:.1f}", grown, flush=True)


def main() -> None:
    rclpy.init()
    node = rclpy.create_node(f"cloud_{sys.argv[1]}")
    print("ready", flush=True)
    {"send": send, "receive": receive}[sys.argv[1]](node, int(sys.argv[2]))
    node.destroy_node()
    rclpy.shutdown()


if __name__ == "__main__":
    main()
