"""LeRobot datasets, v2.1 and v3.0, as recordings: images of one camera, states, actions, task text.

v2.1  videos/chunk-000/CAMERA/episode_000003.mp4     meta/tasks.jsonl, meta/episodes.jsonl
v3.0  videos/CAMERA/chunk-000/file-000.mp4           meta/episodes/chunk-000/file-000.parquet: start and end times
both  images in the tables themselves, for features of dtype "image"
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from kinema4d_model.data.importers.recording import Recording
from kinema4d_model.data.importers.video import MAX_BYTES, read_video
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, ErrorCode, FileFormatError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.files import read_bytes
from kinema4d_ros.io.joint_match import JointOptions, moves_arm
from kinema4d_ros.io.lerobot import FEATURES, read_lerobot
from kinema4d_ros.robot import Robot

__all__ = ["SCENE_FIELDS", "lerobot_recording", "lerobot_rows", "lerobot_scenes", "read_table_images"]

# Images stored in the tables of a LeRobot dataset: PNG or JPEG bytes, or names of files in images/.


def read_table_images(
    folder: Path, file: Path, view: str, episode: int, fps: float
) -> tuple[list[NDArray[np.uint8]], NDArray[np.float64]]:
    """Return images (h, w, 3) uint8 RGB of an episode's rows in a parquet file, and their times in seconds."""
    if not file.is_file():
        raise DataError(f"{file} does not exist", expected="the table of the episode", code=ErrorCode.FILE_MISSING)
    try:
        names = set(pyarrow.parquet.read_schema(file).names)
        wanted = [name for name in (view, "timestamp", "frame_index", "episode_index") if name in names]
        rows = pyarrow.parquet.read_table(
            file, columns=wanted, filters=[("episode_index", "=", episode)] if "episode_index" in names else None
        ).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}"[:300], expected="a parquet file") from None
    if not rows or view not in rows[0]:
        raise DataError(f"{file} has no images of '{view}' of episode {episode}", expected="a column of images")
    images, total = [], 0
    for number, row in enumerate(rows):
        image = _decoded(folder, row[view], f"{file}: image {number} of '{view}'")
        total += image.nbytes
        if total > MAX_BYTES:
            raise DataError(f"{file}: episode {episode} is too long", expected=f"at most {MAX_BYTES} bytes of images")
        images.append(image)
    times = [row.get("timestamp") for row in rows]
    if any(t is None for t in times):
        times = [i / fps for i in range(len(rows))]
    clock = np.array(times, dtype=np.float64).reshape(-1)
    if np.any(np.diff(clock) <= 0) or not np.isfinite(clock).all():
        raise DataError(f"{file}: time stamps decrease in episode {episode}", expected="increasing time stamps")
    return images, clock


def _decoded(folder: Path, value: Any, where: str) -> NDArray[np.uint8]:
    """Decode one image: {"bytes", "path"} as the `datasets` package writes it, or plain bytes."""
    data = value.get("bytes") if isinstance(value, dict) else value
    if data is None and isinstance(value, dict) and isinstance(value.get("path"), str):
        path = (folder / value["path"]).resolve()
        if not path.is_relative_to(folder.resolve()) or not path.is_file():
            raise DataError(f"{where}: {value['path']!r} is not in the dataset"[:300], expected="an image file in it")
        data = path.read_bytes()
    image = None
    if isinstance(data, bytes) and data:
        try:
            image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        except cv2.error:
            image = None
    if image is None:
        raise DataError(f"{where} cannot be decoded", expected="PNG or JPEG")
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8)


SCENE_FIELDS = (
    *("scene", "scene_id", "environment", "environment_id", "building", "building_id"),
    *("session", "session_id", "location"),
)
"""Fields of an episode's row that name its scene, in order of preference."""
_MAX_BYTES = 256 * 2**20


def lerobot_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the metadata of each episode, in order; `task` is the task text."""
    info = _info(folder)
    try:
        count = int(info.get("total_episodes", 0))
    except (TypeError, ValueError):
        raise DataError(f"{folder}: total_episodes is {info['total_episodes']!r}", expected="a number") from None
    found = _lines(folder / "meta" / "episodes.jsonl") if _is_old(info) else _tables(folder)
    by_number = {row["episode_index"]: row for row in found if isinstance(row.get("episode_index"), int)}
    rows = []
    for number in range(count):
        row = dict(by_number.get(number, {"episode_index": number}))
        tasks = row.get("tasks")
        row["task"] = str(tasks[0]) if isinstance(tasks, list) and tasks else str(tasks or "")
        rows.append(row)
    return rows


def lerobot_scenes(rows: list[dict[str, Any]], name: str, scene_key: str = "") -> tuple[list[str], str]:
    """Return the scene of each episode, and the name of the field that gives it.

    The field is `scene_key`, or the first of `SCENE_FIELDS` that all rows have, or the task if there are several.
    Otherwise every episode is its own scene and the name is "episode".
    """
    if scene_key and not all(row.get(scene_key) not in (None, "") for row in rows):
        there = sorted({k for row in rows for k, v in row.items() if isinstance(v, str | int)})
        raise DataError(
            f"{name} does not have {scene_key!r} for every episode",
            expected=f"--scene-key with one of {', '.join(there) or 'none'}",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    fields = [scene_key] if scene_key else [f for f in SCENE_FIELDS if all(r.get(f) not in (None, "") for r in rows)]
    if not fields and len({row["task"] for row in rows}) > 1:
        fields = ["task"]
    if not fields:
        return [f"{name}/{row['episode_index']}" for row in rows], "episode"
    return [f"{name}/{row[fields[0]]}" for row in rows], fields[0]


def lerobot_recording(
    folder: Path,
    episode: int,
    robot: tuple[str, Robot],
    camera: PinholeCamera | None = None,
    view: str = "",
    details: Mapping[str, Any] | None = None,
    joints: JointOptions | None = None,
) -> Recording:
    """Read one episode with the images of `view`, by default the first camera of the dataset.

    `joints` maps joint names and the gripper's scale. Actions that name no joint of the arm (tool poses) are kept as
    commands in the dataset's own units.
    """
    info = _info(folder)
    features = info["features"]
    views = [n for n, f in features.items() if isinstance(f, dict) and f.get("dtype") in ("video", "image")]
    if not views or (view and view not in views):
        raise DataError(
            f"{folder} has no video {view!r}" if view else f"{folder} has no videos",
            expected=f"one of {', '.join(views) or 'none'}",
            code=ErrorCode.FILE_UNSUPPORTED,
        )
    chosen = view or views[0]
    notes: list[str] = []
    tracks: dict[str, JointTrajectory] = {}
    own_terms: JointTrajectory | None = None
    for name in (name for name in FEATURES if name in features):
        try:
            reading = read_lerobot(folder, robot[1], joints, episode=episode, feature=name)
        except FileFormatError as error:
            if name != "action" or error.code != ErrorCode.UNKNOWN_JOINT or not tracks:
                raise
            own_terms = read_lerobot(folder, episode=episode, feature=name).trajectory
            if moves_arm(robot[1], own_terms.names, joints or JointOptions()):
                raise
            notes.append(f"'action' names no joint of the arm: {', '.join(own_terms.names)}; kept as details.commands")
        else:
            tracks[name] = reading.trajectory
            notes += reading.notes
    row = _row(folder, info, episode)
    if features[chosen]["dtype"] == "image":
        images, times = read_table_images(folder, _table_file(folder, info, row), chosen, episode, _fps(folder, info))
    else:
        path, first, last = _video(folder, info, chosen, row)
        images, times = read_video(path, first, last)
    task = row["task"]
    return Recording(
        key=f"{folder.name}-{episode:06d}".replace(".", "_"),
        images=images,
        image_times=times - times[0],
        source=f"lerobot/{folder.name}",
        joints=tracks.get("observation.state"),
        actions=tracks.get("action"),
        camera=camera,
        robot=robot,
        task=task or "unknown",
        instruction=task,
        commands={} if own_terms is None else {"action": own_terms.at(times - times[0])},
        details={
            "episode": episode,
            "view": chosen,
            **({"notes": list(dict.fromkeys(notes))} if notes else {}),
            **(details or {}),
        },
    )


def _info(folder: Path) -> dict[str, Any]:
    path = folder / "meta" / "info.json"
    try:
        info = json.loads(read_bytes(path, _MAX_BYTES).decode("utf-8"))
        if not isinstance(info["features"], dict):
            raise TypeError("features are not a mapping")
        str(info["codebase_version"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} cannot be used: {error!r}"[:300], expected="a LeRobot info.json") from None
    return dict(info)


def _is_old(info: Mapping[str, Any]) -> bool:
    return str(info["codebase_version"]).startswith("v2.")


def _fps(folder: Path, info: Mapping[str, Any]) -> float:
    try:
        fps = float(info["fps"])
    except (KeyError, TypeError, ValueError):
        fps = 0.0
    if not 0 < fps < 10_000:
        raise DataError(f"{folder}: fps is {info.get('fps')!r}", expected="frames per second")
    return fps


def _chunk(folder: Path, info: Mapping[str, Any], episode: int) -> int:
    size = info.get("chunks_size", 1000)
    if not isinstance(size, int) or size < 1:
        raise DataError(f"{folder}: chunks_size is {size!r}", expected="a positive number")
    return episode // size


def _row(folder: Path, info: Mapping[str, Any], episode: int) -> dict[str, Any]:
    found = _lines(folder / "meta" / "episodes.jsonl") if _is_old(info) else _tables(folder, episode)
    row = next((dict(r) for r in found if r.get("episode_index") == episode), None)
    if row is None and not _is_old(info):
        raise DataError(
            f"{folder} has no episode {episode}", expected="an episode of meta/episodes", code=ErrorCode.FILE_MISSING
        )
    row = row or {"episode_index": episode}
    tasks = row.get("tasks")
    row["task"] = str(tasks[0]) if isinstance(tasks, list) and tasks else ""
    return row


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    try:
        rows = [json.loads(line) for line in read_bytes(path, _MAX_BYTES).decode().splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {error}"[:300], expected="one JSON object on each line") from None
    return [row for row in rows if isinstance(row, dict)]


def _tables(folder: Path, episode: int | None = None) -> list[dict[str, Any]]:
    """Read rows of meta/episodes: all of them without statistics, or the complete row of one episode."""
    rows: list[dict[str, Any]] = []
    for file in sorted((folder / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
        try:
            if episode is None:
                names = pyarrow.parquet.read_schema(file).names
                plain = [n for n in names if "/" not in n]
                rows += pyarrow.parquet.read_table(file, columns=plain).to_pylist()
            else:
                rows += pyarrow.parquet.read_table(file, filters=[("episode_index", "=", episode)]).to_pylist()
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise DataError(f"{file} cannot be read: {error}"[:300], expected="a parquet file") from None
    return rows


def _table_file(folder: Path, info: Mapping[str, Any], row: Mapping[str, Any]) -> Path:
    """Return the parquet file with an episode's rows."""
    episode = int(row["episode_index"])
    if _is_old(info):
        return folder / "data" / f"chunk-{_chunk(folder, info, episode):03d}" / f"episode_{episode:06d}.parquet"
    try:
        chunk, number = int(row["data/chunk_index"]), int(row["data/file_index"])
    except (KeyError, TypeError) as error:
        raise DataError(f"{folder}: no file for episode {episode}: {error}", expected="data/chunk_index") from None
    return folder / "data" / f"chunk-{chunk:03d}" / f"file-{number:03d}.parquet"


def _video(
    folder: Path, info: Mapping[str, Any], view: str, row: Mapping[str, Any]
) -> tuple[Path, float | None, float | None]:
    """Return the video file of an episode and its start and end time in seconds."""
    episode = int(row["episode_index"])
    if _is_old(info):
        chunk = _chunk(folder, info, episode)
        return folder / "videos" / f"chunk-{chunk:03d}" / view / f"episode_{episode:06d}.mp4", None, None
    try:
        chunk, number = int(row[f"videos/{view}/chunk_index"]), int(row[f"videos/{view}/file_index"])
        first, last = float(row[f"videos/{view}/from_timestamp"]), float(row[f"videos/{view}/to_timestamp"])
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{folder}: no video of '{view}' for episode {episode}: {error}", expected=f"columns videos/{view}/..."
        ) from None
    return folder / "videos" / view / f"chunk-{chunk:03d}" / f"file-{number:03d}.mp4", first, last
