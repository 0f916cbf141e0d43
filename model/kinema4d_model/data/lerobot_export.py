"""`export_lerobot`: write episodes as a LeRobot v3.0 dataset: parquet tables, one MP4 per camera, metadata.

LeRobot has one frame rate per dataset, episodes here have their own: frames get time stamps at `fps`, and the real
time is in the column `observation.time_s`. Colour is lossy H.264; depth and outcomes are not exported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from kinema4d_model.data.episode import Episode
from kinema4d_ros.core.errors import DataError
from kinema4d_ros.io.files import replacing_folder
from kinema4d_ros.io.video import VideoWriter

__all__ = ["VIEW", "export_lerobot"]

VIEW = "observation.images.main"
_CRF = 12
_COLUMNS = ("observation.state", "action", "observation.time_s")


def export_lerobot(episodes: Iterable[Episode], folder: str | Path, *, fps: float = 10.0) -> int:
    """Write the episodes as a dataset folder, atomically; return their number.

    Raises:
        DataError: an episode has no joints or actions, or differs from the first in size or joints.
    """
    target = Path(folder)
    with replacing_folder(target, is_ours=lambda path: (path / "meta" / "info.json").is_file()) as root:
        video = root / "videos" / VIEW / "chunk-000" / "file-000.mp4"
        video.parent.mkdir(parents=True)
        rows: dict[str, list[Any]] = {
            name: [] for name in (*_COLUMNS, "timestamp", "frame_index", "episode_index", "index", "task_index")
        }
        table: list[dict[str, Any]] = []
        tasks: dict[str, int] = {}
        first: Episode | None = None
        writer: VideoWriter | None = None
        try:
            for number, episode in enumerate(episodes):
                state, action = _require(episode, first)
                if writer is None:
                    first = episode
                    writer = VideoWriter(
                        video, fps, (episode.camera.width, episode.camera.height), crf=_CRF
                    ).__enter__()
                start = len(rows["index"])
                for frame in episode.rgb:
                    writer.write(frame)
                words = episode.captions.get("instruction", episode.task)
                task = tasks.setdefault(words, len(tasks))
                frames = np.arange(len(episode))
                rows["observation.state"] += state.astype(np.float32).tolist()
                rows["action"] += action.astype(np.float32).tolist()
                rows["observation.time_s"] += [[float(t)] for t in episode.times]
                rows["timestamp"] += (frames / fps).tolist()
                rows["frame_index"] += frames.tolist()
                rows["episode_index"] += [number] * len(episode)
                rows["index"] += (start + frames).tolist()
                rows["task_index"] += [task] * len(episode)
                table.append(_episode_row(number, words, start, len(episode), fps, state, action))
        except BaseException as error:
            if writer is not None:
                writer.__exit__(type(error), error, error.__traceback__)
            raise
        if writer is None or first is None:
            raise DataError("nothing to export", expected="at least one episode")
        writer.__exit__(None, None, None)
        _write(root, rows, table, tasks, first, fps)
    return len(table)


def _require(episode: Episode, first: Episode | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if episode.joints is None or episode.actions is None:
        raise DataError(f"episode '{episode.key}' has no joints or no actions", expected="both, LeRobot requires them")
    if first is not None and (episode.shape[1:], episode.joint_names) != (first.shape[1:], first.joint_names):
        raise DataError(
            f"episode '{episode.key}' differs from '{first.key}' in size or joints",
            expected="the same image size and joints in all episodes",
        )
    return episode.joints, episode.actions


def _episode_row(
    number: int,
    words: str,
    start: int,
    length: int,
    fps: float,
    state: NDArray[np.float64],
    action: NDArray[np.float64],
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "episode_index": number,
        "tasks": [words],
        "length": length,
        "data/chunk_index": 0,
        "data/file_index": 0,
        "dataset_from_index": start,
        "dataset_to_index": start + length,
        f"videos/{VIEW}/chunk_index": 0,
        f"videos/{VIEW}/file_index": 0,
        f"videos/{VIEW}/from_timestamp": start / fps,
        f"videos/{VIEW}/to_timestamp": (start + length) / fps,
        "meta/episodes/chunk_index": 0,
        "meta/episodes/file_index": 0,
    }
    for name, values in (("observation.state", state), ("action", action)):
        row |= {f"stats/{name}/{key}": value for key, value in _statistics(values).items()}
    return row


def _statistics(values: NDArray[np.float64]) -> dict[str, list[float] | list[int]]:
    return {
        "min": values.min(axis=0).tolist(),
        "max": values.max(axis=0).tolist(),
        "mean": values.mean(axis=0).tolist(),
        "std": values.std(axis=0).tolist(),
        "count": [len(values)],
    }


def _write(
    root: Path,
    rows: dict[str, list[Any]],
    table: list[dict[str, Any]],
    tasks: dict[str, int],
    first: Episode,
    fps: float,
) -> None:
    joints = list(first.joint_names)
    vector = pa.list_(pa.float32(), len(joints))
    types: dict[str, Any] = {
        "observation.state": vector,
        "action": vector,
        "observation.time_s": pa.list_(pa.float32(), 1),
        "timestamp": pa.float32(),
    }
    arrays = {name: pa.array(values, types.get(name, pa.int64())) for name, values in rows.items()}
    _parquet(root / "data" / "chunk-000" / "file-000.parquet", pa.table(arrays))
    _parquet(root / "meta" / "episodes" / "chunk-000" / "file-000.parquet", pa.Table.from_pylist(table))
    named = {"task_index": list(tasks.values()), "__index_level_0__": list(tasks)}
    # LeRobot reads this table with pandas and expects the task text as index: this metadata makes it one.
    note = json.dumps({"index_columns": ["__index_level_0__"], "columns": [], "column_indexes": []})
    _parquet(root / "meta" / "tasks.parquet", pa.table(named).replace_schema_metadata({"pandas": note}))
    height, width = first.camera.height, first.camera.width
    scalar = {"shape": [1], "names": None}
    info = {
        "codebase_version": "v3.0",
        "robot_type": first.robot,
        "total_episodes": len(table),
        "total_frames": len(rows["index"]),
        "total_tasks": len(tasks),
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 500,
        "fps": int(fps) if float(fps).is_integer() else fps,
        "splits": {"train": f"0:{len(table)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": {
            "observation.state": {"dtype": "float32", "shape": [len(joints)], "names": joints},
            "action": {"dtype": "float32", "shape": [len(joints)], "names": joints},
            "observation.time_s": {"dtype": "float32", "shape": [1], "names": ["seconds"]},
            VIEW: {
                "dtype": "video",
                "shape": [height, width, 3],
                "names": ["height", "width", "channels"],
                "info": {
                    "video.fps": fps,
                    "video.height": height,
                    "video.width": width,
                    "video.channels": 3,
                    "video.codec": "h264",
                    "video.pix_fmt": "yuv420p",
                    "video.is_depth_map": False,
                    "has_audio": False,
                },
            },
            "timestamp": {"dtype": "float32", **scalar},
            **{n: {"dtype": "int64", **scalar} for n in ("frame_index", "episode_index", "index", "task_index")},
        },
    }
    (root / "meta" / "info.json").write_text(json.dumps(info, indent=2) + "\n", encoding="utf-8")
    stats = {name: _statistics(np.array(rows[name], np.float64)) for name in ("observation.state", "action")}
    (root / "meta" / "stats.json").write_text(json.dumps(stats, indent=2) + "\n", encoding="utf-8")


def _parquet(path: Path, table: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path)
