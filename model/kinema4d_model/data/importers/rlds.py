"""RLDS datasets (DROID, Bridge, RT-1, LIBERO) as recordings; optional, needs tensorflow_datasets.

Joints are read if the dataset has joints and a robot is given, whose arm must have the same number of joints.
End-effector poses are kept as poses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.importers.recording import Recording, ToolTrack
from kinema4d_model.data.importers.rlds_fields import RldsFields, fields_of, value_at
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, ErrorCode, SetupError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import axis_angle, from_quaternion, from_rpy, make
from kinema4d_ros.io.joint_match import GRIPPER, JointOptions, to_robot
from kinema4d_ros.robot import Robot

__all__ = ["RldsEpisode", "RldsSource", "open_rlds", "steps_recording"]

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
