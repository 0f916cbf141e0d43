"""`read_trajectory`: one reader for every kind of trajectory file, chosen by folder layout and suffix."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.files import reading
from kinema4d_ros.io.joint_match import JointOptions, Reading, to_robot
from kinema4d_ros.io.tables import read_csv, read_json, read_npz
from kinema4d_ros.robot.model import Robot

__all__ = ["read_trajectory", "read_with_notes"]

_log = logging.getLogger(__name__)

JOINT_OPTIONS = ("joint_map", "gripper_range")
OPTIONS = {
    "a table": (),
    "a ROS 2 bag": ("topic", "message"),
    "a LeRobot dataset": ("episode", "feature", "names", "degrees"),
}


def read_trajectory(path: str | Path, robot: Robot | None = None, **options: Any) -> JointTrajectory:
    """Read the trajectory in a file; choices of the reader and skipped data are logged as warnings.

    Args:
        path: a .csv, .json or .npz file, a ROS 2 bag (folder, .mcap or .db3), or a LeRobot
            dataset folder (v2.1 or v3.0).
        robot: robot whose joints to keep; every joint of its arm must have values.
        **options: `joint_map` and `gripper_range` (--joint-map, --gripper-range), see `joint_match.JointOptions`;
            for bags `topic` and `message`, see `bags.read_bag`; for LeRobot datasets `episode`,
            `feature`, `names` and `degrees`, see `lerobot.read_lerobot`.

    The trajectory is not checked against the robot's limits: call `validate`.
    """
    reading = read_with_notes(path, robot, **options)
    for note in reading.notes:
        _log.warning("%s: %s", path, note)  # choices made for the user: visible without logging configuration
    return reading.trajectory


def read_with_notes(path: str | Path, robot: Robot | None = None, **options: Any) -> Reading:
    """Read like `read_trajectory`, and return the notes with the result."""
    with reading(path, "a complete trajectory file"):
        return _read(Path(path), robot, options)


def _read(path: Path, robot: Robot | None, options: dict[str, Any]) -> Reading:
    if not path.exists():
        raise FileFormatError(f"{path} does not exist", expected="a trajectory file", code=ErrorCode.FILE_MISSING)
    joints = JointOptions(options.get("joint_map") or {}, options.get("gripper_range"))
    options = {name: value for name, value in options.items() if name not in JOINT_OPTIONS}
    tables = {".csv": read_csv, ".json": read_json, ".npz": read_npz}
    suffix = path.suffix.lower()
    if path.is_file() and suffix in tables:
        _allow(path, options, "a table")
        table, notes = tables[suffix](path), list[str]()
        joints.check(path, robot, table.names)
        names, positions = to_robot(path, robot, table.names, table.positions, joints, notes)
        return Reading(JointTrajectory(names, table.times, positions), tuple(notes))
    # Import pyarrow and rosbags only when they are needed.
    if path.is_dir() and (path / "meta" / "info.json").is_file():
        from kinema4d_ros.io.lerobot import read_lerobot

        _allow(path, options, "a LeRobot dataset")
        return read_lerobot(path, robot, joints, **options)
    if (path.is_dir() and _is_bag(path)) or (path.is_file() and suffix in {".mcap", ".db3"}):
        from kinema4d_ros.io.bags import read_bag

        _allow(path, options, "a ROS 2 bag")
        return read_bag(path, robot, joints, **options)
    raise FileFormatError(
        f"{path} is not a supported trajectory file",
        expected="a .csv, .json, .npz, .mcap or .db3 file, a folder with metadata.yaml (ROS 2 bag) "
        "or with meta/info.json (LeRobot dataset)",
        code=ErrorCode.FILE_UNSUPPORTED,
    )


def _is_bag(folder: Path) -> bool:
    """Return True for a recording, finished or not."""
    return (folder / "metadata.yaml").is_file() or any(folder.glob("*.mcap"))


def _allow(path: Path, options: dict[str, Any], kind: str) -> None:
    unknown = sorted(set(options) - set(OPTIONS[kind]))
    if unknown:
        raise FileFormatError(
            f"{path} is {kind}, which has no option {', '.join(unknown)}",
            expected=f"some of {', '.join((*OPTIONS[kind], *JOINT_OPTIONS))}",
            code=ErrorCode.FILE_UNSUPPORTED,
        )
