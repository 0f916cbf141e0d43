"""RLDS datasets (DROID, Bridge, RT-1, LIBERO) as recordings; optional, needs tensorflow_datasets.

Joints are read if the dataset has joints and a robot is given, whose arm must have the same number of joints.
End-effector poses are kept as poses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.importers.recording import Recording, ToolTrack
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, ErrorCode, SetupError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import axis_angle, from_quaternion, from_rpy, make
from kinema4d_ros.io.joint_match import GRIPPER, JointOptions, to_robot
from kinema4d_ros.robot import Robot

__all__ = [
    "FIELDS",
    "UNKNOWN",
    "RldsEpisode",
    "RldsFields",
    "RldsSource",
    "fields_of",
    "open_rlds",
    "steps_recording",
    "value_at",
]

# Field names and units of the RLDS datasets of the paper, since RLDS vectors carry no names or units.
#
# Taken from the datasets' published feature lists; not tested on downloaded data.

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


Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RldsEpisode:
    """One episode; images are decoded when `steps` is iterated.

    Attributes:
        key: dataset name and episode number.
        metadata: `episode_metadata`, texts decoded.
        steps: dictionaries.
    """

    key: str
    metadata: Mapping[str, Any]
    steps: Iterable[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class RldsSource:
    """A dataset whose episodes can be iterated repeatedly.

    Attributes:
        name: such as "droid_100".
        episodes: number of episodes.
        walk: yields plain dictionaries and keeps none of them.
    """

    name: str
    episodes: int
    walk: Any

    @property
    def fields(self) -> RldsFields:
        """Field layout of the dataset."""
        return fields_of(self.name)

    def rate_hz(self, given: float | None) -> float:
        """Return the given rate, or the dataset's known rate."""
        if given is None and not self.fields.rate_hz:
            raise DataError(
                f"the step rate of '{self.name}' is unknown",
                expected="--rate HZ",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        return self.fields.rate_hz if given is None else given

    def __iter__(self) -> Iterator[RldsEpisode]:
        for number, episode in enumerate(self.walk()):
            metadata = {name: _text(value) for name, value in (episode.get("episode_metadata") or {}).items()}
            yield RldsEpisode(f"{self.name}-{number:06d}", metadata, episode["steps"])

    def scene(self, episode: RldsEpisode, scene_key: str = "") -> str:
        """Return the scene of an episode, from a metadata field or from its path.

        Without either, the episode is its own scene.
        """
        if scene_key:
            if scene_key not in episode.metadata:
                there = ", ".join(episode.metadata) or "none"
                raise DataError(
                    f"{episode.key} has no {scene_key!r} in its metadata",
                    expected=f"--scene-key with one of {there}",
                    code=ErrorCode.ARGUMENT_INVALID,
                )
            return str(episode.metadata[scene_key])
        return self.fields.scene_of(str(episode.metadata.get("file_path", ""))) or episode.key


def open_rlds(folder: str) -> RldsSource:
    """Open a built RLDS folder.

    Raises:
        SetupError: tensorflow_datasets is not installed.
    """
    try:
        tfds = import_module("tensorflow_datasets")
    except ImportError as error:
        raise SetupError(
            "reading RLDS needs tensorflow_datasets, which is not installed",
            expected="the packages tensorflow-datasets and tensorflow (about 2 GB)",
            hint="pip install tensorflow tensorflow-datasets, or convert to LeRobot first",
        ) from error
    builder = tfds.builder_from_directory(folder)
    return RldsSource(
        str(builder.name),
        int(builder.info.splits["train"].num_examples),
        lambda: tfds.as_numpy(builder.as_dataset(split="train", shuffle_files=False)),
    )


def steps_recording(
    episode: RldsEpisode,
    fields: RldsFields,
    rate_hz: float,
    robot: tuple[str, Robot] | None = None,
    camera: PinholeCamera | None = None,
    details: Mapping[str, Any] | None = None,
    options: JointOptions | None = None,
) -> Recording:
    """Convert an episode's steps: dictionaries with `observation`, `action` and optional instruction text.

    RLDS joints have no names: a joint map addresses them as 0, 1, ...; without one they are the robot's, in its order.
    """
    key = episode.key
    images: list[NDArray[np.uint8]] = []
    rows: dict[str, list[Array]] = {}
    words = ""
    paths = (
        fields.joints, fields.commanded_joints, fields.gripper, fields.commanded_gripper, fields.tool,
    )  # fmt: skip
    for step in episode.steps:
        seen = step["observation"]
        view = next((name for name in fields.images if name in seen), None)
        if view is None:
            raise DataError(f"{key}: observation has {', '.join(seen)}", expected=f"one of {', '.join(fields.images)}")
        images.append(np.asarray(seen[view], np.uint8))
        for path in filter(None, paths):
            value = value_at(step, path)
            if value is not None:
                rows.setdefault(path, []).append(np.asarray(value, np.float64).ravel())
        for name, value in _leaves(step.get("action"), "action"):
            rows.setdefault(name, []).append(value)
        text = step.get("language_instruction", b"") or seen.get("natural_language_instruction", b"")
        words = str(_text(text)) or words
    if not images:
        raise DataError(f"{key} has no steps", expected="at least one")
    table = {path: np.stack(found) for path, found in rows.items() if _even(found, len(images))}
    times = np.arange(len(images)) / rate_hz
    notes: dict[str, Any] = {"arm": fields.arm, "rate_hz": rate_hz, **(details or {})}
    file_path = str(episode.metadata.get("file_path", ""))
    if file_path:
        notes["file_path"] = file_path
    read = partial(_joints, key, table, fields, robot, times, options or JointOptions(), notes)
    joints = read(fields.joints, fields.gripper)
    actions = None if joints is None else read(fields.commanded_joints, fields.commanded_gripper)
    return Recording(
        key=key,
        images=images,
        image_times=times,
        source="rlds",
        joints=joints,
        actions=actions,
        camera=camera,
        robot=robot if joints is not None else None,
        task=words or "unknown",
        instruction=words,
        success=fields.success_of(file_path),
        tool=_tool(table, fields, times),
        commands={name: values for name, values in table.items() if name.split("/")[0] == "action"},
        details=notes,
    )


def _joints(
    key: str,
    table: Mapping[str, Array],
    fields: RldsFields,
    robot: tuple[str, Robot] | None,
    times: Array,
    options: JointOptions,
    details: dict[str, Any],
    path: str,
    gripper: str,
) -> JointTrajectory | None:
    """Convert the joints of a field to the given robot; None without a robot, noted in `details`.

    Raises:
        FileFormatError: the robot's arm has another number of joints.
    """
    values = table.get(path)
    if values is None:
        return None
    if robot is None:
        details["joints"] = f"not read: {values.shape[1]} of {fields.arm}; name it by --robot"
        return None
    model = robot[1]
    hand = "" if model.gripper is None else model.gripper.joint
    arm = [name for name in model.joint_names if name != hand]
    names, notes = [str(i) for i in range(values.shape[1])], list[str]()
    options.check(Path(key), model, [*names, GRIPPER])
    if not options.joint_map:
        # Only known datasets tell which number belongs to the gripper.
        if len(names) == len(arm) and fields.joint_count in (0, len(arm)):
            names = arm
        elif len(names) == len(model.joint_names) and not fields.joint_count:
            names = [GRIPPER if name == hand else name for name in model.joint_names]
        notes.append(f"'{path}' has no names: taken as {', '.join(names)}, in this order")
    if hand and gripper in table and GRIPPER not in names:
        names, values = [*names, GRIPPER], np.column_stack([values, table[gripper][:, 0]])
        if options.gripper_range is None:
            low, high = sorted((fields.opened, fields.closed))
            # Clip noise beyond the range; values far outside have another scale, which `to_robot` rejects.
            near = np.abs(values[:, -1] - (low + high) / 2) < 0.6 * (high - low)
            values[near, -1] = values[near, -1].clip(low, high)
            options = replace(
                options, gripper_range=(fields.opened, fields.closed), range_source="known of this dataset"
            )
    kept, positions = to_robot(Path(key), model, names, values, options, notes)
    details["notes"] = list(dict.fromkeys([*details.get("notes", ()), *notes]))
    return JointTrajectory(kept, times, positions)


def _tool(table: Mapping[str, Array], fields: RldsFields, times: Array) -> ToolTrack | None:
    values = table.get(fields.tool)
    need = 7 if fields.tool_kind == "xyz_xyzw" else 6
    if values is None or not fields.tool_kind or values.shape[1] < need or not np.isfinite(values).all():
        return None
    if fields.tool_kind == "xyz_rpy":
        poses = [from_rpy(row[3:6], row[:3]) for row in values]
    elif fields.tool_kind == "xyz_xyzw":
        poses = [from_quaternion(row[3:7] / max(float(np.linalg.norm(row[3:7])), 1e-9), row[:3]) for row in values]
    else:
        poses = [_turned(row[3:6], row[:3]) for row in values]
    opening = None
    if fields.gripper in table:
        opening = np.array([fields.opening(v) for v in table[fields.gripper][:, 0]])
    elif 0 <= fields.tool_gripper < values.shape[1]:
        opening = np.array([fields.opening(v) for v in values[:, fields.tool_gripper]])
    return ToolTrack(times, np.stack(poses), opening)


def _turned(turn: Array, xyz: Array) -> Array:
    angle = float(np.linalg.norm(turn))
    axis = turn / angle if angle > 1e-9 else np.array([1.0, 0.0, 0.0])
    return make(axis_angle(axis, angle)[:3, :3], xyz)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Array]]:
    """Yield the vectors of an action, which is one vector or a mapping of vectors."""
    if isinstance(value, Mapping):
        for part, inner in value.items():
            yield from _leaves(inner, f"{name}/{part}")
    elif value is not None:
        array = np.asarray(value)
        if np.issubdtype(array.dtype, np.number):
            yield name, array.astype(np.float64).ravel()


def _even(found: list[Array], count: int) -> bool:
    return len(found) == count and len({row.shape for row in found}) == 1


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
