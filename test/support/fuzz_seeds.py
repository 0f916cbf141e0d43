"""Fuzzer seeds: a valid message, request or goal for every endpoint of the table of names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from geometry_msgs.msg import PoseStamped, TransformStamped
from moveit_msgs.msg import CollisionObject, DisplayTrajectory, RobotTrajectory
from nav_msgs.msg import Path
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from tf2_msgs.msg import TFMessage
from visualization_msgs.msg import InteractiveMarkerFeedback, InteractiveMarkerUpdate, Marker, MarkerArray

from kinema4d_msgs.action import EvaluatePolicy
from kinema4d_msgs.msg import EvaluatedTrial, EvaluationResult, ExecutionStatus, PreviewedPlan, PreviewStatus
from kinema4d_msgs.srv import Approve, Execute, Playback, ResetLab
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.outcomes import Outcome, patches_between
from kinema4d_ros.core.rollout import Frames
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory
from kinema4d_ros.generators import CommandedMotion, GenerateRequest, load_generator
from kinema4d_ros.io.images import studio
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.previews.report import make_report
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.robot.description import robot_description
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.camera import info_from_camera
from kinema4d_ros.ros.messages.errors import error_to_msg
from kinema4d_ros.ros.messages.images import image_from_array
from kinema4d_ros.ros.messages.outcomes import outcomes_to_markers
from kinema4d_ros.ros.messages.points import cloud_from_points
from kinema4d_ros.ros.messages.poses import matrices_to_pose_array, matrix_to_pose, matrix_to_transform
from kinema4d_ros.ros.messages.report import report_to_markers, report_to_msg
from kinema4d_ros.ros.messages.request import request_to_goal
from kinema4d_ros.ros.messages.rollout import rollout_to_msg
from kinema4d_ros.ros.messages.rviz import lines_to_markers, menu_to_marker, robot_to_markers
from kinema4d_ros.ros.messages.stamps import header, nanoseconds, time_from_ns
from kinema4d_ros.ros.messages.trajectories import trajectory_to_msg
from kinema4d_ros.ros.names import Endpoint

__all__ = ["Seeds"]

FRAMES = 3


def _darker(frames: Frames) -> Frames:
    """Return frames that differ in a small region."""
    other = frames.copy()
    other.rgb[:, 4:12, 4:12] //= 2
    return other


class Seeds:
    """Valid messages of one scene: an arm at home, a camera, a small motion and its results.

    Attributes:
        plan_hash, token: of the plan that the gate holds; used in approvals and executions.
    """

    def __init__(self, robot: Robot, camera: PinholeCamera) -> None:
        self.robot, self.camera = robot, camera
        self.home = np.array(robot.home_position())
        self.plan = self.swing(0.2)
        self.plan_hash = hash_trajectory(self.plan)
        self.token = "0" * 32
        drawn = render_pointmaps(robot, self.plan.resample(FRAMES), camera, rgb=True)
        self._picture = studio(camera)
        motion = CommandedMotion.of(robot, self.plan)
        self._request = GenerateRequest(self._picture, drawn, None, self.plan_hash, motion=motion)
        made = load_generator("composite").generate(self._request)
        self._rollout = replace(
            made,
            outcomes=(Outcome(0.8, "lifted", ((0.5, "the fingers touch object_1"),)), Outcome(0.2, "slips")),
            alternatives=(patches_between(made, _darker(made)),),
            basis=np.ones(made.robot_mask.shape, np.uint8),
            unknowns=("object_2 is hidden",),
        )
        self._q = self.plan.resample(FRAMES).for_robot(robot)
        self._report = make_report(self._rollout, robot, self._q, plan=self.plan)
        self._links = [link.name for link in robot.links]
        self._urdf = robot_description(robot)
        self._makers: dict[str, Callable[[Any], Any]] = {
            endpoint.name: make
            for endpoint, make in (
                (names.JOINT_STATES, self._joint_state),
                (names.CAMERA_IMAGE, self._image),
                (names.CAMERA_INFO, lambda stamp: info_from_camera(camera, stamp)),
                (names.CAMERA_DEPTH, self._depth),
                (names.DISPLAY_PLAN, self._display),
                (names.PLAN, self._trajectory),
                (names.EE_PATH, lambda stamp: matrices_to_pose_array(self._tool(), self._head(stamp))),
                (names.EE_TIMED_PATH, self._timed_path),
                (names.WORLD_CHANGED, self._head),
                (names.ROBOT_DESCRIPTION, lambda _: String(data=self._urdf)),
                (names.ROBOT_POINTS, self._cloud),
                (names.ROBOT_OVERLAY, self._image),
                (names.PREDICTED_IMAGE, self._image),
                (names.PREDICTED_POINTS, self._cloud),
                (names.PREDICTED_OUTCOMES, lambda stamp: outcomes_to_markers(rollout_to_msg(self._rollout, stamp), 0)),
                (names.PREDICTED_ROLLOUT, lambda stamp: rollout_to_msg(self._rollout, stamp)),
                (names.PLAN_REPORT, lambda stamp: report_to_msg(self._report, stamp)),
                (names.MARKERS, lambda stamp: report_to_markers(self._report, stamp)),
                (names.PREVIEW_STATUS, self._status),
                (names.PREVIEWED_PLAN, self._previewed),
                (names.EXECUTION_STATUS, self._execution),
                (
                    names.PREDICTED_ROBOT,
                    lambda _: robot_to_markers(robot, forward_all(robot, self._q)[0], contact=False),
                ),
                (names.RVIZ_STATUS, lambda _: lines_to_markers([("idle", "quiet")], robot.base_link)),
                (names.MENU_UPDATE, self._menu),
                (names.MENU_FEEDBACK, self._feedback),
                (names.MENU_MARKERS, lambda _: names.MENU_MARKERS.interface().Request()),
                (names.EVALUATED_TRIAL, self._trial),
                (names.EVALUATION_RESULT, lambda stamp: EvaluationResult(header=header(stamp), policy="expert")),
                (names.LAB_OBJECTS, self._objects),
                (names.COLLISION_OBJECT, lambda stamp: CollisionObject(header=self._head(stamp), id="table")),
                (names.ARM_TRAJECTORY, lambda _: trajectory_to_msg(self.plan, header(0))),
                (names.TF, self._transforms),
                (names.TF_STATIC, self._transforms),
                (names.CLOCK, lambda stamp: Clock(clock=stamp)),
                (names.DIAGNOSTICS, self._diagnostics),
                (names.PLAYBACK, lambda _: Playback.Request(command=Playback.Request.SEEK, value=0.1)),
                (names.APPROVE, lambda _: Approve.Request(plan_hash=self.plan_hash, approver="fuzzer")),
                (names.EXECUTE, lambda _: Execute.Request(plan_hash=self.plan_hash, token=self.token)),
                (names.LAB_RESET, lambda _: ResetLab.Request(scenario="canonical", seed=3)),
                (names.GENERATE, self.goal),
                (names.EVALUATE, self._evaluate),
                (names.FOLLOW_TRAJECTORY, self._follow),
            )
        }

    @property
    def covered(self) -> set[str]:
        """Return the names of the endpoints with a seed."""
        return set(self._makers)

    def __call__(self, endpoint: Endpoint, stamp: Any) -> Any:
        """Return the message, request or goal of an endpoint, stamped with a Time message."""
        return self._makers[endpoint.name](stamp)

    def swing(self, angle: float) -> JointTrajectory:
        """Return a plan from home that turns the first joint and ends at rest, with velocities."""
        times = np.linspace(0.0, 2.0, 9)
        path = np.tile(self.home, (9, 1))
        path[:, 0] += angle * (1 - np.cos(np.pi * times / 2.0)) / 2
        rates = np.zeros_like(path)
        rates[1:-1, 0] = angle * np.pi / 4.0 * np.sin(np.pi * times[1:-1] / 2.0)
        return JointTrajectory(self.robot.joint_names, times, path, rates)

    def goal(self, stamp: Any) -> Any:
        """Return a goal of the generate action."""
        return request_to_goal(self._request, stamp, stamp, self._links, timeout_s=30.0)

    def _head(self, stamp: Any) -> Any:
        return header(stamp, self.robot.base_link)

    def _joint_state(self, stamp: Any) -> Any:
        return JointState(header=header(stamp), name=list(self.robot.joint_names), position=self.home.tolist())

    def _image(self, stamp: Any) -> Any:
        return image_from_array(self._picture, "rgb8", header(stamp, self.camera.frame_id))

    def _depth(self, stamp: Any) -> Any:
        metres = np.full((self.camera.height, self.camera.width), 0.8, np.float32)
        return image_from_array(metres, "32FC1", header(stamp, self.camera.frame_id))

    def _trajectory(self, stamp: Any) -> Any:
        return trajectory_to_msg(self.plan, self._head(stamp))

    def _display(self, stamp: Any) -> Any:
        half = JointTrajectory.from_positions(self.plan.names, self.plan.positions[:5], times=self.plan.times[:5])
        rest = JointTrajectory.from_positions(
            self.plan.names, self.plan.positions[4:], times=self.plan.times[4:] - self.plan.times[4]
        )
        message = DisplayTrajectory(model_id=self.robot.name, trajectory=[RobotTrajectory(), RobotTrajectory()])
        for part, segment in zip(message.trajectory, (half, rest), strict=True):
            part.joint_trajectory = trajectory_to_msg(segment, self._head(stamp))
        message.trajectory_start.joint_state = self._joint_state(stamp)
        return message

    def _tool(self) -> Any:
        poses = forward_all(self.robot, self._q)[:, self._links.index(self.robot.tool_link)]
        return np.asarray(poses)

    def _timed_path(self, stamp: Any) -> Any:
        path = Path(header=self._head(stamp))
        for index, pose in enumerate(self._tool()):
            at = header(time_from_ns(nanoseconds(stamp) + (index + 1) * 2_000_000_000), self.robot.base_link)
            path.poses.append(PoseStamped(header=at, pose=matrix_to_pose(pose)))
        return path

    def _cloud(self, stamp: Any) -> Any:
        points = self._rollout.xyz[0], self._rollout.rgb[0]
        return cloud_from_points(*points, header(stamp, self.camera.frame_id))

    def _status(self, stamp: Any) -> Any:
        failed = KinemaError("the fuzzer says so", expected="nothing", code=ErrorCode.PLAN_STALE)
        status = PreviewStatus(header=self._head(stamp), plan_hash=self.plan_hash, phase=PreviewStatus.GENERATING)
        status.detail, status.step, status.steps, status.eta_s = "denoise", 3, 10, 4.5
        status.stage_s, status.error = [0.1, 0.2], error_to_msg(failed)
        return status

    def _previewed(self, stamp: Any) -> Any:
        return PreviewedPlan(
            header=self._head(stamp),
            trajectory=trajectory_to_msg(self.plan, self._head(stamp)),
            plan_hash=self.plan_hash,
            rollout_id=self._rollout.rollout_id,
            world_stamp=stamp,
        )

    def _execution(self, stamp: Any) -> Any:
        refused = error_to_msg(KinemaError("aborted", code=ErrorCode.ARM_ABORTED))
        status = ExecutionStatus(header=self._head(stamp), plan_hash=self.plan_hash, duration_s=2.0, error=refused)
        status.phase = ExecutionStatus.ABORTED
        return status

    def _trial(self, stamp: Any) -> Any:
        return EvaluatedTrial(header=header(stamp), policy="expert", scenario="canonical", seed=3, lab=1, model="x")

    def _menu(self, _stamp: Any) -> Any:
        marker = menu_to_marker(
            ((33, 0, "Approve"),), self.robot.base_link, "kinema4d", "menu", "busy", (0.0, -0.3, 0.1)
        )
        return InteractiveMarkerUpdate(type=InteractiveMarkerUpdate.UPDATE, seq_num=1, markers=[marker])

    def _feedback(self, stamp: Any) -> Any:
        feedback = InteractiveMarkerFeedback(header=self._head(stamp), client_id="/fuzzer", marker_name="kinema4d")
        feedback.event_type, feedback.menu_entry_id = InteractiveMarkerFeedback.MENU_SELECT, 34
        feedback.control_name = "menu"
        return feedback

    def _objects(self, stamp: Any) -> Any:
        markers = [Marker(header=self._head(stamp), action=Marker.DELETEALL)]
        for index, kind in enumerate((Marker.CUBE, Marker.CYLINDER, Marker.SPHERE)):
            marker = Marker(header=self._head(stamp), ns=f"thing{index}", id=index, type=kind, text="target")
            marker.scale.x = marker.scale.y = marker.scale.z = 0.04
            marker.pose.position.x, marker.pose.orientation.w = 0.3, 1.0
            marker.color.r = marker.color.a = 1.0
            markers.append(marker)
        return MarkerArray(markers=markers)

    def _transforms(self, stamp: Any) -> Any:
        frame = TransformStamped(header=self._head(stamp), child_frame_id=self.camera.frame_id)
        frame.transform = matrix_to_transform(self.camera.base_T_camera)
        return TFMessage(transforms=[frame])

    def _diagnostics(self, stamp: Any) -> Any:
        status = DiagnosticStatus(name="driver", message="ok", hardware_id="other", values=[KeyValue(key="a")])
        return DiagnosticArray(header=header(stamp), status=[status])

    def _evaluate(self, _stamp: Any) -> Any:
        return EvaluatePolicy.Goal(policy="expert", task="pick", scenario="canonical", episodes=1, seed=3)

    def _follow(self, _stamp: Any) -> Any:
        goal = names.FOLLOW_TRAJECTORY.interface().Goal()
        goal.trajectory = trajectory_to_msg(self.plan, header(0))
        return goal
