"""Where the RLDS datasets of the paper keep things, and in which units: seven numbers say nothing by themselves.

Written from the datasets' published feature lists; none of them was downloaded here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["FIELDS", "UNKNOWN", "RldsFields", "fields_of", "value_at"]

PoseKind = Literal["", "xyz_rpy", "xyz_xyzw", "xyz_axis_angle"]


@dataclass(frozen=True)
class RldsFields:
    """One dataset's fields; paths are "a/b" in a step, "" = it has none.

    Attributes:
        arm: whose data it is, in words.
        rate_hz: steps a second; 0 = it must be said.
        images: names in `observation`, the first that is there counts.
        joints, commanded_joints: radians of the arm's own joints, in its order, measured and commanded.
        joint_count: how many they are.
        gripper, commanded_gripper: one number; `closed` of them is closed, `opened` is open.
        closed, opened: of the gripper.
        tool: end-effector pose; more numbers may follow it.
        tool_kind: how the pose is written.
        tool_gripper: at which place of `tool` the gripper's number is; -1 = nowhere.
        scene: pattern in the episode's `file_path`, whose groups name the scene; "" = nothing does.
        success: pattern that a successful episode's `file_path` has; "" = nothing says.
    """

    arm: str
    rate_hz: float = 0.0
    images: tuple[str, ...] = ("image", "image_0", "exterior_image_1_left", "agentview_rgb")
    joints: str = ""
    commanded_joints: str = ""
    joint_count: int = 0
    gripper: str = ""
    commanded_gripper: str = ""
    closed: float = 0.0
    opened: float = 1.0
    tool: str = ""
    tool_kind: PoseKind = ""
    tool_gripper: int = -1
    scene: str = ""
    success: str = ""

    def opening(self, value: float) -> float:
        """Of the gripper, 0 = closed, 1 = open; noise beyond the ends is cut off."""
        return min(max((value - self.closed) / (self.opened - self.closed), 0.0), 1.0)

    def scene_of(self, file_path: str) -> str:
        """The scene that an episode's path names, or ""."""
        found = re.search(self.scene, file_path) if self.scene else None
        return "/".join(found.groups()) if found else ""

    def success_of(self, file_path: str) -> bool | None:
        """Whether its path says that it succeeded; None if it does not say."""
        if not self.success or not file_path:
            return None
        return re.search(self.success, file_path) is not None


_DROID = RldsFields(
    arm="a Franka Panda of 7 joints",
    rate_hz=15.0,
    images=("exterior_image_1_left", "exterior_image_2_left"),
    joints="observation/joint_position",
    commanded_joints="action_dict/joint_position",
    joint_count=7,
    gripper="observation/gripper_position",
    commanded_gripper="action_dict/gripper_position",
    closed=1.0,
    opened=0.0,
    tool="observation/cartesian_position",
    tool_kind="xyz_rpy",
    # .../LAB/success/2023-07-07/Fri_Jul__7_09:42:23_2023/trajectory.h5: a laboratory's day is a scene
    scene=r"([^/]+)/(?:success|failure)/(\d{4}-\d{2}-\d{2})",
    success=r"/success/",
)
_BRIDGE = RldsFields(
    arm="a WidowX 250",
    rate_hz=5.0,
    images=("image_0", "image"),
    tool="observation/state",
    tool_kind="xyz_rpy",
    tool_gripper=6,
    # .../bridge_data_v2/ENVIRONMENT/TASK/..., .../bridge_data_v1/berkeley/ENVIRONMENT/TASK/...
    scene=r"bridge_data_v\d+/(?:berkeley/|rss/|flap/)?([^/]+)/",
)
_RT1 = RldsFields(
    arm="a mobile manipulator of Google's",
    rate_hz=3.0,
    images=("image",),
    tool="observation/base_pose_tool_reached",
    tool_kind="xyz_xyzw",
    gripper="observation/gripper_closed",
    closed=1.0,
    opened=0.0,
)
_LIBERO = RldsFields(
    arm="a simulated Franka Panda of 7 joints",
    rate_hz=20.0,
    images=("image", "agentview_rgb"),
    joints="observation/joint_state",
    joint_count=7,
    tool="observation/state",
    tool_kind="xyz_axis_angle",
    tool_gripper=6,
    closed=0.0,
    opened=0.04,
    scene=r"([^/]+?)(?:_demo)?\.hdf5",
)
UNKNOWN = RldsFields(arm="an unknown arm", joints="observation/joint_position")
FIELDS: Mapping[str, RldsFields] = {
    "droid": _DROID,
    "bridge": _BRIDGE,
    "fractal20220817_data": _RT1,
    "rt_1": _RT1,
    "libero": _LIBERO,
}
"""By how a dataset's name begins."""


def fields_of(dataset: str) -> RldsFields:
    """The fields of a dataset by its name, such as "droid_100"; `UNKNOWN` for others."""
    found = [name for name in FIELDS if dataset.lower().startswith(name)]
    return FIELDS[max(found, key=len)] if found else UNKNOWN


def value_at(step: Mapping[str, Any], path: str) -> Any:
    """The value of a path "a/b"; None if it is not there."""
    value: Any = step
    for part in path.split("/") if path else ("",):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value
