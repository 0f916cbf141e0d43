"""Field names and units of the RLDS datasets of the paper, since RLDS vectors carry no names or units.

Taken from the datasets' published feature lists; not tested on downloaded data.
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
    """Fields of one dataset; paths are "a/b" in a step, "" = missing.

    Attributes:
        arm: description of the arm.
        rate_hz: steps per second; 0 = must be given by --rate.
        images: names in `observation`; the first existing one is used.
        joints, commanded_joints: measured and commanded radians of the arm's joints, in its order.
        joint_count: number of joints.
        gripper, commanded_gripper: one number, from `closed` to `opened`.
        closed, opened: values of the closed and open gripper.
        tool: end-effector pose; more numbers may follow it.
        tool_kind: representation of the pose.
        tool_gripper: index of the gripper's number in `tool`; -1 = none.
        scene: pattern in the episode's `file_path` whose groups name the scene; "" = unknown.
        success: pattern in the `file_path` of a successful episode; "" = unknown.
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
        """Return the gripper's opening, 0 = closed, 1 = open, clipped to this range."""
        return min(max((value - self.closed) / (self.opened - self.closed), 0.0), 1.0)

    def scene_of(self, file_path: str) -> str:
        """Return the scene named by an episode's path, or ""."""
        found = re.search(self.scene, file_path) if self.scene else None
        return "/".join(found.groups()) if found else ""

    def success_of(self, file_path: str) -> bool | None:
        """Return whether the path marks a success; None if unknown."""
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
    # .../LAB/success/2023-07-07/Fri_Jul__7_09:42:23_2023/trajectory.h5: one scene per laboratory and day
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
"""Fields by prefix of the dataset's name."""


def fields_of(dataset: str) -> RldsFields:
    """Return the fields of a dataset by name, such as "droid_100"; `UNKNOWN` for others."""
    found = [name for name in FIELDS if dataset.lower().startswith(name)]
    return FIELDS[max(found, key=len)] if found else UNKNOWN


def value_at(step: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path "a/b"; None if missing."""
    value: Any = step
    for part in path.split("/") if path else ("",):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value
