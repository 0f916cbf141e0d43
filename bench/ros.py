"""Latency of clouds between two processes at 30 Hz, and of a plan until its rollout, over real DDS.

    python bench/ros.py [--quick]

Clouds are organised PointCloud2 of 480 x 720 (5.5 MB), sent as the graph sends them: points and colours are packed
into a message for every frame. Peers: plain rclpy, which publishes one prepared message repeatedly, with the same Fast
DDS profile (the lower bound for this middleware) and with the default Fast DDS profile.
Latency is from before the message is packed to the subscriber's callback. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import rclpy

from kinema4d_ros.cli.sim import node_process
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.ros import names
from kinema4d_ros.ros.client import PreviewClient
from kinema4d_ros.ros.graph import SIM_ARGUMENTS, read_arguments, sim_graph
from kinema4d_ros.ros.messages.points import cloud_from_points
from kinema4d_ros.ros.messages.stamps import header, nanoseconds
from kinema4d_ros.ros.qos import profile
from kinema4d_ros.runtime.processes import Supervisor

RATE_HZ = 30.0
VARIANTS = {
    "kinema4d": "made for every frame, this package's profile",
    "rclpy": "one ready message, this package's profile (the floor)",
    "rclpy, Fast DDS as it comes": "one ready message, no profile",
}
STAGES = ("check", "render", "generate", "report")


def cloud(index: int) -> tuple[Any, Any]:
    """Make points (480, 720, 3) float32 metres, NaN = nothing, and colours of a wavy surface."""
    v, u = np.mgrid[:480, :720]
    z = (1.0 + 0.2 * np.sin(u / 90 + index)).astype(np.float32)
    z[:20] = np.nan
    xyz = np.stack([u * z / 720, v * z / 720, z], -1).astype(np.float32)
    return xyz, np.stack([u % 256, v % 256, u * 0], -1).astype(np.uint8)


def send(variant: str, count: int) -> None:
    """Run the publisher process: wait for the subscriber, then publish `count` clouds, numbered in their frame id."""
    rclpy.init()
    node = rclpy.create_node("sender")
    endpoint = names.PREDICTED_POINTS
    publisher = node.create_publisher(endpoint.interface(), endpoint.name, profile(endpoint))
    frames = [cloud(index) for index in range(8)]
    ready = cloud_from_points(*frames[0], header(1, "0"))
    deadline = time.monotonic() + 30.0
    while publisher.get_subscription_count() == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    cpu, due = time.process_time(), time.monotonic()
    for index in range(count):
        stamp_ns = time.monotonic_ns()
        if variant == "kinema4d":
            message = cloud_from_points(*frames[index % len(frames)], header(stamp_ns, str(index)))
        else:
            message = ready
            message.header = header(stamp_ns, str(index))
        publisher.publish(message)
        due += 1.0 / RATE_HZ
        time.sleep(max(0.0, due - time.monotonic()))
    print(json.dumps({"cpu_ms": 1e3 * (time.process_time() - cpu) / count}), flush=True)
    time.sleep(2.0)
    node.destroy_node()
    rclpy.shutdown()


def receive(count: int) -> None:
    """Run the subscriber process: record the received clouds and their latency."""
    rclpy.init()
    node = rclpy.create_node("receiver")
    came: dict[int, float] = {}
    size: list[int] = []

    def take(message: Any) -> None:
        came[int(message.header.frame_id)] = (time.monotonic_ns() - nanoseconds(message.header.stamp)) * 1e-6
        size.append(len(message.data))

    endpoint = names.PREDICTED_POINTS
    node.create_subscription(endpoint.interface(), endpoint.name, take, profile(endpoint))
    print("ready", flush=True)
    deadline = time.monotonic() + 60.0 + 2 * count / RATE_HZ
    heard = time.monotonic()
    while len(came) < count and time.monotonic() < deadline:
        before = len(came)
        rclpy.spin_once(node, timeout_sec=0.1)
        heard = time.monotonic() if len(came) > before or not came else heard
        if time.monotonic() - heard > 4.0:
            break
    late = np.array(list(came.values()) or [np.nan])
    result = {"received": len(came), "p50_ms": np.percentile(late, 50), "p99_ms": np.percentile(late, 99)}
    print(json.dumps({**result, "megabytes": (size[0] if size else 0) / 1e6}), flush=True)
    node.destroy_node()
    rclpy.shutdown()


def environment(variant: str, domain: int) -> dict[str, str]:
    """Return the environment of both processes: a separate domain on loopback, with or without the profile."""
    made = {**os.environ, "ROS_DOMAIN_ID": str(domain), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
    made.pop("FASTRTPS_DEFAULT_PROFILES_FILE", None)
    if variant != "rclpy, Fast DDS as it comes":
        made["FASTRTPS_DEFAULT_PROFILES_FILE"] = str(share_path("config/fastdds_loopback.xml"))
    return made


def bench_clouds(seconds: float) -> dict[str, Any]:
    count = round(RATE_HZ * seconds)
    print(f"organised clouds of 480 x 720, {count} at {RATE_HZ:g} Hz, two processes, reliable")
    out: dict[str, Any] = {}
    for index, (variant, meaning) in enumerate(VARIANTS.items()):
        env = environment(variant, 60 + index)
        options: Any = {"stdout": subprocess.PIPE, "text": True, "env": env}
        receiver = subprocess.Popen([sys.executable, __file__, "--role", "receive", str(count)], **options)
        assert receiver.stdout is not None
        assert receiver.stdout.readline().strip() == "ready"
        sender = subprocess.Popen([sys.executable, __file__, "--role", "send", str(count), variant], **options)
        sent, _ = sender.communicate(timeout=120 + 4 * seconds)
        received, _ = receiver.communicate(timeout=120)
        row = {**json.loads(received.splitlines()[-1]), **json.loads(sent.splitlines()[-1]), "sent": count}
        out[variant] = row
        print(
            f"  {variant:<28} {row['received']:4} of {count} ({row['megabytes']:.1f} MB each), p50 {row['p50_ms']:6.1f}"
            f" ms, p99 {row['p99_ms']:6.1f} ms, sender {row['cpu_ms']:.1f} ms of CPU a cloud: {meaning}"
        )
    print()
    return out


def wave(client: PreviewClient, index: int) -> JointTrajectory:
    """Make a plan of two seconds from the arm's current position that moves only the first joint."""
    state = client.newest(names.JOINT_STATES)
    times = np.linspace(0.0, 2.0, 21)
    q = np.tile(np.array(state.position), (21, 1))
    q[:, list(state.name).index("joint1")] += (0.1 + 0.01 * index) * (1 - np.cos(np.pi * times / 2)) / 2
    return JointTrajectory.from_positions(list(state.name), q, times=times)


def warmed_up(client: PreviewClient) -> bool:
    """Run a first preview, which loads compiled code and shows that arm, camera and generator are connected."""
    try:
        return client.preview(wave(client, 0), timeout_s=180.0) is not None
    except KinemaError:
        time.sleep(1.0)
        return False


def bench_plans(plans: int) -> dict[str, Any]:
    """Time a plan until its rollout is received, and the preview's stages, on the running graph."""
    os.environ["ROS_DOMAIN_ID"] = "70"
    os.environ.update(environment("kinema4d", 70))
    values = read_arguments(SIM_ARGUMENTS, {"viewer": "false"})
    quiet = Supervisor([node_process(spec, values) for spec in sim_graph(values)], write=lambda _line: None)
    thread = threading.Thread(target=quiet.run)
    thread.start()
    totals, stages = [], []
    try:
        with PreviewClient() as client:
            arrived: dict[str, float] = {}
            client.listen(names.JOINT_STATES)
            client.listen(names.CAMERA_IMAGE)
            client.listen(names.PREDICTED_ROLLOUT, lambda m: arrived.setdefault(m.plan_hash, time.monotonic()))
            for endpoint in (names.JOINT_STATES, names.CAMERA_IMAGE):
                client.wait_for(lambda e=endpoint: client.newest(e) is not None, 180.0, endpoint.name)
            client.wait_for(lambda: warmed_up(client), 180.0, "a first preview")
            for index in range(1, plans + 1):
                seen: list[Any] = []
                started = time.monotonic()
                report = client.preview(wave(client, index), seen.append, timeout_s=180.0)
                client.wait_for(lambda wanted=report.plan_hash: wanted in arrived, 30.0, "the rollout")
                totals.append(arrived[report.plan_hash] - started)
                stages.append(list(seen[-1].stage_s))
    finally:
        quiet.stop.set()
        thread.join(timeout=60.0)
    medians = dict(zip(STAGES, np.median(stages, axis=0).tolist(), strict=True))
    print(f"49 frames of 480 x 720, composite generator, median of {plans} plans")
    print(f"  plan sent -> rollout received   {1e3 * np.median(totals):7.0f} ms")
    for name, seconds in medians.items():
        print(
            f"    {name:<29} {1e3 * seconds:7.0f} ms{'   (after the rollout is published)' if name == 'report' else ''}"
        )
    print()
    return {"plan_to_rollout_s": float(np.median(totals)), "stages_s": medians, "plans": plans}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one second of clouds and one plan: a smoke test")
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        if arguments.role[0] == "send":
            send(arguments.role[2], int(arguments.role[1]))
        else:
            receive(int(arguments.role[1]))
        return
    with tempfile.TemporaryDirectory(prefix="kinema4d_bench_") as folder:
        os.environ["ROS_LOG_DIR"] = str(Path(folder))
        results = {
            "clouds": bench_clouds(1.0 if arguments.quick else 12.0),
            "plans": bench_plans(1 if arguments.quick else 10),
            "load_average": os.getloadavg()[0],
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
