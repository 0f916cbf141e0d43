"""Recordings of LeRobot datasets, v2.1 and v3.0: pictures of one camera, states, actions, the task's words.

v2.1  videos/chunk-000/CAMERA/episode_000003.mp4     meta/tasks.jsonl, meta/episodes.jsonl
v3.0  videos/CAMERA/chunk-000/file-000.mp4           meta/episodes/chunk-000/file-000.parquet says from when to when
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet

from kinema4d_model.data.errors import DataError
from kinema4d_model.data.importers.recording import Recording
from kinema4d_model.data.importers.video_in import read_video
from kinema4d_ros.camera import PinholeCamera
from kinema4d_ros.errors import ErrorCode
from kinema4d_ros.files import read_bytes
from kinema4d_ros.readers.lerobot import read_lerobot
from kinema4d_ros.robot import Robot

__all__ = ["lerobot_episodes", "lerobot_recording"]

_MAX_BYTES = 256 * 2**20


def lerobot_episodes(folder: Path) -> int:
    """How many episodes a dataset has."""
    return int(_info(folder).get("total_episodes", 0))


def lerobot_recording(
    folder: Path, episode: int, robot: tuple[str, Robot], camera: PinholeCamera | None = None, view: str = ""
) -> Recording:
    """One episode with the pictures of `view`, by default the first camera in the dataset's order."""
    info = _info(folder)
    features = info["features"]
    views = [name for name, feature in features.items() if feature.get("dtype") == "video"]
    if not views or (view and view not in views):
        raise DataError(
            f"{folder} has no video {view!r}" if view else f"{folder} has no videos",
            expected=f"one of {', '.join(views) or 'none'}",
            code=ErrorCode.FILE_UNSUPPORTED,
        )
    chosen = view or views[0]
    tracks = {
        name: read_lerobot(folder, robot[1], episode=episode, feature=name).trajectory
        for name in ("observation.state", "action")
        if name in features
    }
    old = str(info["codebase_version"]).startswith("v2.")
    path, first, last, task = _v2(folder, info, chosen, episode) if old else _v3(folder, chosen, episode)
    images, times = read_video(path, first, last)
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
        details={"episode": episode, "view": chosen},
    )


def _info(folder: Path) -> dict[str, Any]:
    path = folder / "meta" / "info.json"
    try:
        info = json.loads(read_bytes(path, _MAX_BYTES).decode("utf-8"))
        if not isinstance(info["features"], dict):
            raise TypeError("features are not named")
        str(info["codebase_version"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be used: {error!r}"[:300], expected="a LeRobot info.json") from None
    return dict(info)


def _v2(folder: Path, info: dict[str, Any], view: str, episode: int) -> tuple[Path, None, None, str]:
    size = int(info.get("chunks_size", 1000))
    path = folder / "videos" / f"chunk-{episode // size:03d}" / view / f"episode_{episode:06d}.mp4"
    task = ""
    for row in _lines(folder / "meta" / "episodes.jsonl"):
        if row.get("episode_index") == episode:
            task = str((row.get("tasks") or [""])[0])
    return path, None, None, task


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    try:
        rows = [json.loads(line) for line in read_bytes(path, _MAX_BYTES).decode().splitlines() if line.strip()]
    except ValueError as error:
        raise DataError(f"{path}: {error}"[:300], expected="one JSON object on each line") from None
    return [row for row in rows if isinstance(row, dict)]


def _v3(folder: Path, view: str, episode: int) -> tuple[Path, float, float, str]:
    for file in sorted((folder / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
        try:
            rows = pyarrow.parquet.read_table(file, filters=[("episode_index", "=", episode)]).to_pylist()
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise DataError(f"{file} cannot be read: {error}"[:300], expected="a parquet file") from None
        if rows:
            row = rows[0]
            try:
                chunk, number = int(row[f"videos/{view}/chunk_index"]), int(row[f"videos/{view}/file_index"])
                first = float(row[f"videos/{view}/from_timestamp"])
                last = float(row[f"videos/{view}/to_timestamp"])
            except (KeyError, TypeError) as error:
                raise DataError(
                    f"{file} does not place the video of '{view}': {error}", expected="its columns"
                ) from None
            path = folder / "videos" / view / f"chunk-{chunk:03d}" / f"file-{number:03d}.mp4"
            return path, first, last, str((row.get("tasks") or [""])[0])
    raise DataError(
        f"{folder} has no episode {episode}", expected="an episode of meta/episodes", code=ErrorCode.FILE_MISSING
    )
