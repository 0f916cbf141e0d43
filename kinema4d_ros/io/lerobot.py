"""Trajectories from LeRobot dataset folders, v2.1 (one file per episode) and v3.0 (many episodes per file).

meta/info.json                                 version, fps, feature names
v2.1  data/chunk-000/episode_000003.parquet
v3.0  data/chunk-000/file-000.parquet          rows of many episodes
      meta/episodes/chunk-000/file-000.parquet file of each episode
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.files import read_json
from kinema4d_ros.io.joint_match import (
    GRIPPER,
    GRIPPER_COLUMNS,
    MAX_JOINTS,
    MAX_SAMPLES,
    JointOptions,
    Reading,
    malformed,
    require_file,
    to_robot,
)
from kinema4d_ros.robot.model import Robot

__all__ = ["read_lerobot"]

FEATURES = ("observation.state", "action")
MAX_PARQUET_BYTES = 4 * 2**30


def read_lerobot(
    path: Path,
    robot: Robot | None = None,
    joints: JointOptions | None = None,
    *,
    episode: int = 0,
    feature: str | None = None,
    names: Sequence[str] | None = None,
    degrees: bool = False,
) -> Reading:
    """Read one episode of a LeRobot dataset.

    A dimension named `gripper` becomes the robot's gripper joint; LeRobot does not define its scale, so the gripper
    range must be given. The suffix `.pos` is dropped from names. Dimensions without names are called 0, 1, ...

    Args:
        path: the dataset's folder.
        robot: robot whose joints to keep; without one, columns keep the dataset's names and values.
        joints: joint map and gripper scale.
        episode: its index.
        feature: `observation.state` (measured, the default if present) or `action`.
        names: joint names to use instead of the dataset's, one for each dimension.
        degrees: the dataset has degrees where the robot has radians.
    """
    info = _info(path)
    notes: list[str] = []
    features = info["features"]
    if feature is None:
        feature = next((f for f in FEATURES if f in features), FEATURES[0])
        notes.append(f"took feature '{feature}'")
    if feature not in features:
        raise malformed(path, f"it has no feature '{feature}'", f"one of {', '.join(features)}")
    file = _episode_file(path, info, episode)
    values, times = _rows(file, feature, episode, float(info["fps"]))
    joints = joints or JointOptions()
    joints = replace(joints, joint_map={_plain(name): joint for name, joint in joints.joint_map.items()})
    columns = _names(path, features[feature], names, values.shape[1])
    elsewhere = [n for other in FEATURES for n in _stated(features.get(other)) or ()]
    joints.check(path, robot, [*columns, *elsewhere])
    if columns[:1] == ["0"] and not joints.joint_map and robot is not None and len(columns) == len(robot.joint_names):
        notes.append(f"'{feature}' has no names: taken as {', '.join(robot.joint_names)}, in this order")
        hand = None if robot.gripper is None else robot.gripper.joint
        columns = [GRIPPER if name == hand else name for name in robot.joint_names]
    if degrees:
        values = _to_radians(robot, columns, joints, values)
    kept, positions = to_robot(path, robot, columns, values, joints, notes)
    return Reading(JointTrajectory(kept, times, positions), tuple(notes))


def _info(path: Path) -> dict[str, Any]:
    file = path / "meta" / "info.json"
    require_file(file)
    expected = "codebase_version v2.1 or v3.0, fps and features"
    info = read_json(file)
    try:
        version, fps, features = info["codebase_version"], float(info["fps"]), info["features"]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise malformed(file, f"it cannot be used: {error!r}", expected) from None
    if not str(version).startswith(("v2.", "v3.")):
        raise FileFormatError(f"{file}: version {version}", expected=expected, code=ErrorCode.FILE_UNSUPPORTED)
    if not isinstance(features, dict) or not np.isfinite(fps) or fps <= 0:
        raise malformed(file, f"fps is {fps}, features are a {type(features).__name__}", expected)
    return dict(info)


def _episode_file(path: Path, info: dict[str, Any], episode: int) -> Path:
    """Return the parquet file of an episode by the standard layout; path templates in info.json are not trusted."""
    if str(info["codebase_version"]).startswith("v2."):
        size = info.get("chunks_size", 1000)
        if not isinstance(size, int) or size < 1:
            raise malformed(path, f"chunks_size is {size}", "a positive number")
        file = path / "data" / f"chunk-{episode // size:03d}" / f"episode_{episode:06d}.parquet"
    else:
        chunk, number = _locate(path, episode)
        file = path / "data" / f"chunk-{chunk:03d}" / f"file-{number:03d}.parquet"
    if episode < 0 or not file.is_file():
        raise FileFormatError(
            f"{path}: episode {episode} is not there ({file.relative_to(path)})",
            expected=f"an episode from 0 to {int(info.get('total_episodes', 1)) - 1}",
            code=ErrorCode.FILE_MISSING,
        )
    return file


def _locate(path: Path, episode: int) -> tuple[int, int]:
    wanted = ["episode_index", "data/chunk_index", "data/file_index"]
    for file in sorted((path / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
        table = _read(file, wanted, None)
        if table.column_names != wanted:
            raise malformed(file, f"its columns are {', '.join(table.column_names)}", f"{', '.join(wanted)}")
        rows = np.flatnonzero(table["episode_index"].to_numpy() == episode)
        if rows.size:
            return tuple(int(table[name][int(rows[0])].as_py()) for name in wanted[1:])  # type: ignore[return-value]
    raise FileFormatError(
        f"{path}: episode {episode} is not in meta/episodes",
        expected="an episode of the dataset",
        code=ErrorCode.FILE_MISSING,
    )


def _read(file: Path, columns: list[str], episode: int | None) -> Any:
    require_file(file, MAX_PARQUET_BYTES)
    try:
        opened = pyarrow.parquet.ParquetFile(file)
        rows, there = opened.metadata.num_rows, set(opened.schema_arrow.names)
        if rows > MAX_SAMPLES * 100:
            raise malformed(file, f"it has {rows:,} rows", f"at most {MAX_SAMPLES * 100:,}")
        columns = [name for name in columns if name in there]
        filters = None if episode is None or "episode_index" not in there else [("episode_index", "=", episode)]
        return pyarrow.parquet.read_table(file, columns=columns, filters=filters)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise malformed(
            file,
            f"it cannot be read: {str(error).splitlines()[0]}",
            f"a parquet file with the columns {', '.join(columns)}",
            "the file may be truncated",
        ) from None


def _rows(file: Path, feature: str, episode: int, fps: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    table = _read(file, [feature, "timestamp", "frame_index", "episode_index"], episode)
    missing = {feature, "episode_index"} - set(table.column_names)
    if missing or table.num_rows == 0:
        what = f"columns {', '.join(sorted(missing))} are missing" if missing else f"episode {episode} has no rows"
        raise malformed(file, what, "rows of the episode with the feature")
    if table.num_rows > MAX_SAMPLES:
        raise malformed(file, f"episode {episode} has {table.num_rows:,} rows", f"at most {MAX_SAMPLES:,}")
    try:
        values = np.array(table[feature].to_pylist(), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise malformed(file, f"'{feature}' is not a table of numbers: {error}", "equal rows of numbers") from None
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or values.shape[1] > MAX_JOINTS:
        raise malformed(file, f"feature '{feature}' has shape {values.shape}", f"(T, N), N at most {MAX_JOINTS}")
    if "timestamp" in table.column_names:
        return values, np.asarray(table["timestamp"].to_pylist(), dtype=np.float64).reshape(-1)
    return values, np.arange(len(values)) / fps


def _names(path: Path, feature: Any, given: Sequence[str] | None, width: int) -> list[str]:
    """Return the names of a feature's dimensions: the given ones, the dataset's, or 0, 1, ... if it has none."""
    found = _stated(feature) if given is None else [_plain(name) for name in given]
    if found is None:
        return [str(i) for i in range(width)]
    if len(found) != width:
        raise malformed(
            path,
            f"{width} dimensions, but {len(found)} joint names: {', '.join(found)}",
            f"{width} names",
            "fix 'names' in meta/info.json" if given is None else "",
        )
    return found


def _stated(feature: Any) -> list[str] | None:
    """Return names of any layout: list, nested lists, lists by kind ({"motors": [...]}), indices by name; or None."""
    names = _flat(feature.get("names"), 3) if isinstance(feature, dict) else []
    return [_plain(name) for name in names] or None


def _flat(names: Any, depth: int) -> list[str]:
    if isinstance(names, str):
        return [names]
    if isinstance(names, dict):
        if names and all(isinstance(place, int) for place in names.values()):
            return sorted((str(name) for name in names), key=lambda name: int(names[name]))
        names = list(names.values())
    if not isinstance(names, list) or not depth:
        return []
    return [name for part in names for name in _flat(part, depth - 1)]


def _plain(name: str) -> str:
    return name.removesuffix(".pos")


def _to_radians(
    robot: Robot | None, names: list[str], joints: JointOptions, values: NDArray[np.float64]
) -> NDArray[np.float64]:
    slides = set() if robot is None else {joint.name for joint in robot.joints if joint.kind == "prismatic"}
    still = slides | {GRIPPER}
    if robot is not None and robot.gripper is not None and joints.gripper_range is not None:
        still.add(robot.gripper.joint)  # the gripper range is in recorded units
    turning = [
        i
        for i, name in enumerate(names)
        if joints.joint_map.get(name, name) not in still
        and (name in joints.joint_map or name.lower() not in GRIPPER_COLUMNS)
    ]
    values[:, turning] = np.radians(values[:, turning])
    return values
