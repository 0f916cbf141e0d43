"""Topics, services, actions and frames of the graph: name, type, QoS and purpose.

Names are relative, so a namespace applies to the whole graph; only names that ROS keeps global
(`/tf`, `/tf_static`, `/clock`, `/diagnostics`) are absolute. The README's table is `markdown_table()`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import Any, Literal

__all__ = [
    "ENDPOINTS",
    "FRAMES",
    "RECORDED",
    "Endpoint",
    "Frame",
    "lab_object_topic",
    "markdown_table",
    "of_controller",
]

Kind = Literal["in", "out", "service", "action"]


@dataclass(frozen=True)
class Endpoint:
    """One topic, service or action of the graph.

    Attributes:
        kind: "in" and "out" are topics that the graph subscribes to or publishes; the graph is the server of a
            service or action unless the purpose says otherwise.
        name: relative ROS name.
        type: interface as ROS writes it, e.g. "sensor_msgs/msg/Image".
        qos: name of a profile in `kinema4d_ros.ros.qos`; empty for services and actions.
        purpose: one-line description.
    """

    kind: Kind
    name: str
    type: str
    qos: str
    purpose: str

    def interface(self) -> Any:
        """Return the Python class of the type; raise ImportError when its package is not installed."""
        package, group, name = self.type.split("/")
        return getattr(importlib.import_module(f"{package}.{group}"), name)


@dataclass(frozen=True)
class Frame:
    """One edge of the TF tree: parent -> child."""

    parent: str
    child: str
    static: bool
    purpose: str


def _in(name: str, type_: str, qos: str, purpose: str) -> Endpoint:
    return Endpoint("in", name, type_, qos, purpose)


def _out(name: str, type_: str, qos: str, purpose: str) -> Endpoint:
    return Endpoint("out", name, type_, qos, purpose)


def _service(name: str, type_: str, purpose: str) -> Endpoint:
    return Endpoint("service", name, type_, "", purpose)


def _action(name: str, type_: str, purpose: str) -> Endpoint:
    return Endpoint("action", name, type_, "", purpose)


JOINT_STATES = _in("joint_states", "sensor_msgs/msg/JointState", "SENSOR_IN", "joint positions of the arm")
CAMERA_IMAGE = _in("camera/image_raw", "sensor_msgs/msg/Image", "SENSOR_IN", "image of the calibrated camera")
CAMERA_INFO = _in("camera/camera_info", "sensor_msgs/msg/CameraInfo", "SENSOR_IN", "intrinsics of the camera")
CAMERA_DEPTH = _in(
    "camera/depth",
    "sensor_msgs/msg/Image",
    "SENSOR_IN",
    "optional: depth of the same image, 32FC1 or 16UC1, registered",
)
DISPLAY_PLAN = _in(
    "display_planned_path", "moveit_msgs/msg/DisplayTrajectory", "PLAN_IN", "a plan to preview, from MoveIt"
)
PLAN = _in("kinema4d/plan", "trajectory_msgs/msg/JointTrajectory", "PLAN_IN", "a plan to preview, as joint positions")
EE_PATH = _in("kinema4d/ee_path", "geometry_msgs/msg/PoseArray", "PLAN_IN", "a plan to preview, as tool poses")
EE_TIMED_PATH = _in(
    "kinema4d/ee_timed_path", "nav_msgs/msg/Path", "PLAN_IN", "a plan to preview, as tool poses with times"
)
WORLD_CHANGED = _in(
    "kinema4d/world_changed",
    "std_msgs/msg/Header",
    "LATCHED",
    "the scene changed at this stamp: plans previewed with older images are void; the lab publishes it at each reset",
)

MENU_FEEDBACK = _in(
    "kinema4d/rviz/menu/feedback",
    "visualization_msgs/msg/InteractiveMarkerFeedback",
    "EVENT",
    "with rviz:=true: what a person chose in the menu in RViz",
)

ROBOT_DESCRIPTION = _out("robot_description", "std_msgs/msg/String", "LATCHED", "the robot's URDF")
ROBOT_POINTS = _out("kinema4d/robot/points", "sensor_msgs/msg/PointCloud2", "STREAM_OUT", "the live twin as points")
ROBOT_OVERLAY = _out(
    "kinema4d/robot/overlay", "sensor_msgs/msg/Image", "STREAM_OUT", "the live twin over the camera image"
)
PREDICTED_IMAGE = _out(
    "kinema4d/predicted/image", "sensor_msgs/msg/Image", "STREAM_OUT", "playback of predicted images"
)
PREDICTED_POINTS = _out(
    "kinema4d/predicted/points",
    "sensor_msgs/msg/PointCloud2",
    "STREAM_OUT",
    "playback of predicted points: organised xyz + rgb, NaN = no point, camera optical frame; with a field `basis`, the"
    " source of each point (numbers: kinema4d_msgs/msg/Rollout), if the generator states it",
)
PREDICTED_OUTCOMES = _out(
    "kinema4d/predicted/outcomes",
    "visualization_msgs/msg/MarkerArray",
    "LATCHED",
    'what may happen, as text such as "83 % lifted"; the outcome that is played is marked; ids count outcomes from 0',
)
PREDICTED_ROLLOUT = _out("kinema4d/predicted/rollout", "kinema4d_msgs/msg/Rollout", "LATCHED", "the newest rollout")
PLAN_REPORT = _out(
    "kinema4d/plan_report",
    "kinema4d_msgs/msg/PlanReport",
    "LATCHED",
    "report of the plan: clearance, contact, moved objects",
)
MARKERS = _out("kinema4d/markers", "visualization_msgs/msg/MarkerArray", "LATCHED", "the report as RViz markers")
PREVIEW_STATUS = _out(
    "kinema4d/preview/status", "kinema4d_msgs/msg/PreviewStatus", "STATUS", "progress of the preview of a plan"
)
PREVIEWED_PLAN = _out(
    "kinema4d/previewed_plan",
    "kinema4d_msgs/msg/PreviewedPlan",
    "EVENT",
    "the plan ready for approval; not latched: a restarted gate has no plan",
)
EXECUTION_STATUS = _out(
    "kinema4d/execution/status",
    "kinema4d_msgs/msg/ExecutionStatus",
    "STATUS",
    "outcome of an executed plan: sent, done, or aborted with the controller's reason",
)
PREDICTED_ROBOT = _out(
    "kinema4d/predicted/robot",
    "visualization_msgs/msg/MarkerArray",
    "LATCHED",
    "with rviz:=true: a transparent robot that follows the plan in step with the playback",
)
RVIZ_STATUS = _out(
    "kinema4d/rviz/status",
    "visualization_msgs/msg/MarkerArray",
    "LATCHED",
    "with rviz:=true: text above the arm: phase, time left, verdict, warnings, reason of a refusal, approval countdown",
)
MENU_UPDATE = _out(
    "kinema4d/rviz/menu/update",
    "visualization_msgs/msg/InteractiveMarkerUpdate",
    "EVENT",
    "with rviz:=true: the menu beside the arm, an interactive marker",
)
EVALUATED_TRIAL = _out(
    "kinema4d/evaluation/trial",
    "kinema4d_msgs/msg/EvaluatedTrial",
    "STATUS",
    "one trial of a policy: outcome in the lab and prediction of the model",
)
EVALUATION_RESULT = _out(
    "kinema4d/evaluation/result", "kinema4d_msgs/msg/EvaluationResult", "LATCHED", "success rates and bias"
)
LAB_OBJECTS = _out(
    "kinema4d/lab/objects",
    "visualization_msgs/msg/MarkerArray",
    "LATCHED",
    "true poses of the lab's objects; each also has a PoseStamped on `kinema4d/lab/objects/<name>`",
)
COLLISION_OBJECT = _out(
    "collision_object",
    "moveit_msgs/msg/CollisionObject",
    "EVENT",
    "table and lab objects for MoveIt's planning scene, with `moveit:=true`",
)
ARM_TRAJECTORY = _out(
    "arm_controller/joint_trajectory",
    "trajectory_msgs/msg/JointTrajectory",
    "COMMAND_OUT",
    "the approved plan for the arm; only the gate publishes here",
)
TF = _out("/tf", "tf2_msgs/msg/TFMessage", "TF", "moving frames")
TF_STATIC = _out("/tf_static", "tf2_msgs/msg/TFMessage", "TF_STATIC", "fixed frames")
CLOCK = _out("/clock", "rosgraph_msgs/msg/Clock", "EVENT", "simulated time, from the lab with use_sim_time:=true")
DIAGNOSTICS = _out(
    "/diagnostics", "diagnostic_msgs/msg/DiagnosticArray", "DIAGNOSTICS", "rates, staleness, calibration, failures"
)

PLAYBACK = _service(
    "kinema4d/playback", "kinema4d_msgs/srv/Playback", "play, pause, seek, speed; choose the outcome that is shown"
)
APPROVE = _service("kinema4d/approve", "kinema4d_msgs/srv/Approve", "approve one previewed plan")
EXECUTE = _service("kinema4d/execute", "kinema4d_msgs/srv/Execute", "forward the approved plan to the arm")
MENU_MARKERS = _service(
    "kinema4d/rviz/menu/get_interactive_markers",
    "visualization_msgs/srv/GetInteractiveMarkers",
    "with rviz:=true: the menu as it is now, for an RViz that connects",
)
LAB_RESET = _service("kinema4d/lab/reset", "kinema4d_msgs/srv/ResetLab", "reset the lab's scene")

GENERATE = _action("kinema4d/generate", "kinema4d_msgs/action/GenerateRollout", "image and robot in, rollout out")
EVALUATE = _action("kinema4d/evaluate", "kinema4d_msgs/action/EvaluatePolicy", "score a policy with rollouts")
FOLLOW_TRAJECTORY = _action(
    "arm_controller/follow_joint_trajectory",
    "control_msgs/action/FollowJointTrajectory",
    "served by the arm's controller: alternative to its topic for the approved plan",
)

ENDPOINTS: tuple[Endpoint, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Endpoint))
"""All endpoints, in the order of the table."""

RECORDED: tuple[str, ...] = tuple(
    endpoint.name
    for endpoint in (
        JOINT_STATES,
        CAMERA_IMAGE,
        CAMERA_INFO,
        CAMERA_DEPTH,
        DISPLAY_PLAN,
        PLAN,
        EE_PATH,
        EE_TIMED_PATH,
        ROBOT_DESCRIPTION,
        PREDICTED_ROLLOUT,
        PLAN_REPORT,
        PREVIEW_STATUS,
        PREVIEWED_PLAN,
        EXECUTION_STATUS,
        WORLD_CHANGED,
        MENU_FEEDBACK,
        ARM_TRAJECTORY,
        TF,
        TF_STATIC,
        DIAGNOSTICS,
    )
)
"""Recorded topics: all inputs and results; playback topics can be regenerated from the rollout."""

MENU_NAMESPACE = MENU_UPDATE.name.rpartition("/")[0]
"""What RViz's display InteractiveMarkers connects to."""

BASE_FRAME = "base_link"
CAMERA_FRAME = "camera_optical_frame"

FRAMES: tuple[Frame, ...] = (
    Frame(BASE_FRAME, CAMERA_FRAME, True, "from the calibration"),
    Frame(BASE_FRAME, "every link of the robot", False, "from the joint states"),
)


def lab_object_topic(name: str) -> str:
    """Return the pose topic (geometry_msgs/msg/PoseStamped, profile STREAM_OUT) of one of the lab's objects."""
    return f"{LAB_OBJECTS.name}/{name}"


def of_controller(endpoint: Endpoint, controller: str) -> Endpoint:
    """Return the same topic or action of another controller, such as `gripper_controller/joint_trajectory`."""
    return replace(endpoint, name=f"{controller}/{endpoint.name.rpartition('/')[2]}")


def markdown_table() -> str:
    """Return the README's table: one row for each endpoint and frame."""
    rows = ["| kind | name | type | purpose |", "|---|---|---|---|"]
    rows += [f"| {e.kind} | `{e.name}` | {e.type} | {e.purpose} |" for e in ENDPOINTS]
    rows += [
        f"| tf{' (static)' if f.static else ''} | `{f.parent}` -> "
        f"{f'`{f.child}`' if ' ' not in f.child else f.child} | {TF.type} | {f.purpose} |"
        for f in FRAMES
    ]
    return "\n".join(rows) + "\n"
