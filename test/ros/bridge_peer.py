"""The other process of test_bridge_processes.py: publishes what the bridge makes, or serves the generate action."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import numpy as np
from geometry_msgs.msg import TransformStamped
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from support.ros_graph import Graph

from kinema4d_msgs.action import GenerateRollout
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.rollout import Provenance, Rollout
from kinema4d_ros.core.transforms import from_rpy
from kinema4d_ros.ros import names, qos
from kinema4d_ros.ros.messages.errors import error_to_msg
from kinema4d_ros.ros.messages.points import cloud_from_points
from kinema4d_ros.ros.messages.poses import matrix_to_transform
from kinema4d_ros.ros.messages.request import frames_from_msg
from kinema4d_ros.ros.messages.rollout import rollout_to_msg
from kinema4d_ros.ros.messages.stamps import header, time_from_ns
from kinema4d_ros.ros.tf import StaticTransformBroadcaster, TransformBroadcaster

CAMERA = PinholeCamera.look_at((1.0, 0.2, 0.8), (0.2, 0.0, 0.1), width=720, height=480, fov_y_deg=45)
ROLLOUT_ID = "0123456789abcdef"
STEPS = 40
STEP_S = 0.05


def picture(t: int) -> tuple[Any, Any]:
    """Points and colours of frame t: a wavy world whose numbers both processes can make."""
    v, u = np.mgrid[: CAMERA.height, : CAMERA.width]
    z = 1.0 + 0.2 * np.sin(u / 90 + t) + 0.1 * np.cos(v / 70)
    z[:20] = np.nan
    rgb = np.stack([(u + t) % 256, (v * 2) % 256, (u ^ v) % 256], axis=-1).astype(np.uint8)
    return (CAMERA.rays() * z[..., None]).astype(np.float32), rgb


def make_rollout(frames: int = 4) -> Rollout:
    """A rollout that both processes can make."""
    xyz, rgb = (np.stack(part) for part in zip(*[picture(t) for t in range(frames)], strict=True))
    mask = np.zeros(xyz.shape[:3], bool)
    mask[:, 100:200, 300:400] = True
    times = 0.1 * np.arange(frames)
    return Rollout(rgb, xyz, mask, CAMERA, times, Provenance("composite", seed=3), ROLLOUT_ID, "cd" * 32)


def base_T_tool(stamp_ns: int) -> Any:
    """Where the tool is at a time: on a straight line, 1 m in 1 s."""
    return from_rpy((0.0, 0.0, 0.0), (stamp_ns * 1e-9 % 1000, 0.0, 0.5))


def publish(graph: Graph, stop: threading.Event) -> None:
    """A latched rollout, static and moving frames, and numbered clouds at 30 Hz."""
    node = graph.node("bridge_peer")
    latched = node.create_publisher(
        names.PREDICTED_ROLLOUT.interface(), names.PREDICTED_ROLLOUT.name, qos.profile(names.PREDICTED_ROLLOUT)
    )
    clouds = node.create_publisher(
        names.PREDICTED_POINTS.interface(), names.PREDICTED_POINTS.name, qos.profile(names.PREDICTED_POINTS)
    )
    moving, fixed = TransformBroadcaster(node), StaticTransformBroadcaster(node)
    latched.publish(rollout_to_msg(make_rollout(), time_from_ns(5), rgb_format="png"))
    for child in (names.CAMERA_FRAME, "table"):
        edge = TransformStamped(header=header(0, names.BASE_FRAME), child_frame_id=child)
        edge.transform = matrix_to_transform(CAMERA.base_T_camera)
        fixed.sendTransform(edge)
    xyz, rgb = picture(0)
    number = 0
    while not stop.wait(1 / 30):
        number += 1
        clouds.publish(cloud_from_points(xyz, rgb, header(number, CAMERA.frame_id)))
        now = node.get_clock().now().nanoseconds
        edge = TransformStamped(header=header(now, names.BASE_FRAME), child_frame_id="tool")
        edge.transform = matrix_to_transform(base_T_tool(now))
        moving.sendTransform([edge])


def serve(graph: Graph, stop: threading.Event) -> None:
    """The generate action: refuses seed 13, fails on seed 14, otherwise takes STEPS steps and can be cancelled."""

    def execute(goal: Any) -> Any:
        result = GenerateRollout.Result()
        try:
            sequence = frames_from_msg(goal.request.robot_frames).sequence
            for step in range(STEPS):
                if goal.is_cancel_requested:
                    result.error = error_to_msg(KinemaError("cancelled at a step", code=ErrorCode.CANCELLED))
                    goal.canceled()
                    return result
                if goal.request.seed == 14 and step == 2:
                    raise KinemaError("the model ran out of memory", code=ErrorCode.GENERATOR_OUT_OF_MEMORY)
                feedback = GenerateRollout.Feedback(
                    phase="sample", step=step, steps=STEPS, eta_s=(STEPS - step) * STEP_S
                )
                goal.publish_feedback(feedback)
                time.sleep(STEP_S)
            result.rollout = rollout_to_msg(make_rollout(len(sequence)), goal.request.robot_frames.header.stamp)
            result.rollout.plan_hash = goal.request.plan_hash
            goal.succeed()
        except KinemaError as error:
            result.error = error_to_msg(error)
            goal.abort()
        return result

    node = graph.node("generator_peer")
    server = ActionServer(
        node,
        GenerateRollout,
        names.GENERATE.name,
        execute,
        goal_callback=lambda request: GoalResponse.REJECT if request.seed == 13 else GoalResponse.ACCEPT,
        cancel_callback=lambda goal: CancelResponse.ACCEPT,
        callback_group=ReentrantCallbackGroup(),
    )
    stop.wait()
    server.destroy()


def main() -> None:
    """Run one role until the input is closed."""
    graph, stop = Graph(), threading.Event()
    work = threading.Thread(target={"publish": publish, "serve": serve}[sys.argv[1]], args=(graph, stop))
    work.start()
    print("ready", flush=True)
    sys.stdin.read()
    stop.set()
    work.join()
    graph.close()


if __name__ == "__main__":
    main()
