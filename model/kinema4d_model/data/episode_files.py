"""Episode files: encode and decode an episode as one JSON document and lossless videos.

json               everything but the images; `streams` lists the videos
rgb.mkv            colour
depth.mkv          16-bit depth in steps of `depth_unit_m`, 0 = nothing
ids.mkv            link or object per pixel, 0 = nothing, i + 1 = `names[i]`
condition_ids.mkv  links of the robot as commanded
condition_rgb.mkv, condition_depth.mkv   the rendered robot, where it cannot be rendered again

If the target's poses are stored, `Task` computes `outcome.success` again on every read, so old episodes are labelled
with the current thresholds.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import av
import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.episode import (
    DEPTH_UNIT_M,
    Episode,
    ObjectTrack,
    Outcome,
    StoredCondition,
    pack_depth,
    recorded_task,
    unpack_depth,
)
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, ErrorCode, KinemaError
from kinema4d_ros.core.task import TASKS
from kinema4d_ros.core.transforms import from_quaternion, to_quaternion

__all__ = [
    "FORMAT",
    "MAX_FRAMES",
    "STREAMS",
    "StreamKind",
    "decode_episode",
    "decode_stream",
    "encode_episode",
    "encode_stream",
    "parse_document",
]

# Lossless video in memory, bit-exact and readable by ordinary players.
#
# kind      stored as                                          measured, 25 frames of 144 x 96 from the lab
# "rgb"     H.264 RGB at QP 0 in Matroska, FFV1 without x264   105-131 kB, 11 ms to write, 15 ms to read
# "depth"   FFV1, 16-bit grey                                  49 kB, 10 ms, 12 ms
# "ids"     FFV1, 8-bit grey                                   12 kB, 6 ms, 4 ms
#
# FFV1 does not predict between frames, which is costly for a static camera: the same RGB takes 468 kB and 39 ms.
# Decoding needs only FFmpeg's built-in decoders.

StreamKind = Literal["rgb", "depth", "ids"]

MAX_FRAMES = 10_000
_MAX_PIXELS = 4096 * 4096
_RATE = Fraction(10)
"""Playback rate in video players, Hz; the actual frame times are in the episode."""


class _Layout(NamedTuple):
    dtype: Any
    channels: tuple[int, ...]
    array: str
    """PyAV's name for the array."""
    pixels: str
    """The codec's pixel format."""


_LAYOUTS: dict[str, _Layout] = {
    "rgb": _Layout(np.uint8, (3,), "rgb24", "rgb24"),
    "depth": _Layout(np.uint16, (), "gray16le", "gray16le"),
    "ids": _Layout(np.uint8, (), "gray", "gray"),
}


@lru_cache(maxsize=1)
def _has_x264() -> bool:
    try:
        av.codec.Codec("libx264rgb", "w")
    except Exception:  # PyAV's own error classes differ between releases
        return False
    return True


def encode_stream(frames: NDArray[Any], kind: StreamKind) -> bytes:
    """Encode frames as Matroska: "rgb" (T, H, W, 3) uint8, "depth" (T, H, W) uint16, "ids" (T, H, W) uint8.

    With the same FFmpeg, equal frames give equal bytes.
    """
    layout = _LAYOUTS[kind]
    if frames.dtype != layout.dtype or frames.ndim != 3 + len(layout.channels) or frames.shape[3:] != layout.channels:
        wanted = ", ".join(["T", "H", "W", *map(str, layout.channels)])
        raise DataError(
            f"frames are {frames.dtype} of shape {frames.shape}",
            expected=f"{np.dtype(layout.dtype).name} of shape ({wanted})",
        )
    if not 1 <= len(frames) <= MAX_FRAMES or min(frames.shape[1:3]) < 2:
        raise DataError(
            f"frames have shape {frames.shape}", expected=f"1 to {MAX_FRAMES} frames of at least 2 x 2 pixels"
        )
    codec, pixels, options = _codec(kind, layout)
    buffer = io.BytesIO()
    # Without bitexact the file would contain the time of writing and a random number.
    with av.open(buffer, "w", format="matroska", container_options={"fflags": "+bitexact"}) as container:
        stream: Any = container.add_stream(codec, rate=_RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], pixels
        stream.codec_context.thread_count = 1
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format=layout.array)
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return buffer.getvalue()


def _codec(kind: StreamKind, layout: _Layout) -> tuple[str, str, dict[str, str]]:
    if kind == "rgb":
        if _has_x264():
            return "libx264rgb", layout.pixels, {"qp": "0", "preset": "ultrafast", "g": "300"}
        return "ffv1", "bgr0", {"level": "3", "g": "1"}
    return "ffv1", layout.pixels, {"level": "3", "g": "300", "coder": "1", "context": "0"}


def decode_stream(data: bytes, kind: StreamKind, shape: tuple[int, int, int]) -> NDArray[Any]:
    """Decode frames written by `encode_stream`; raise DataError unless they have `shape` (T, H, W)."""
    layout = _LAYOUTS[kind]
    frames, height, width = shape
    if not 1 <= frames <= MAX_FRAMES or not 1 <= height * width <= _MAX_PIXELS:
        raise DataError(
            f"shape {shape} is not valid for a video", expected=f"1 to {MAX_FRAMES} frames, {_MAX_PIXELS} pixels"
        )
    out = np.empty((frames, height, width, *layout.channels), layout.dtype)
    count = 0
    try:
        with av.open(io.BytesIO(data), "r", format="matroska") as container:
            stream: Any = container.streams.video[0]
            stream.codec_context.thread_count = 1
            if (stream.width, stream.height) != (width, height):
                raise DataError(f"the video is {stream.width} x {stream.height}", expected=f"{width} x {height}")
            for picture in container.decode(stream):
                if count < frames:
                    out[count] = picture.to_ndarray(format=layout.array)
                count += 1
                if count > MAX_FRAMES:
                    break
    except DataError:
        raise
    except Exception as error:  # FFmpeg can raise anything on a corrupt file
        raise DataError(
            f"the video cannot be decoded: {type(error).__name__}: {error}"[:300], expected="a complete file"
        ) from error
    if count != frames:
        raise DataError(f"the video has {count} frames", expected=f"{frames}")
    return out


FORMAT = "kinema4d-episode-1"
STREAMS: dict[str, StreamKind] = {
    "rgb": "rgb",
    "depth": "depth",
    "ids": "ids",
    "condition_ids": "ids",
    "condition_rgb": "rgb",
    "condition_depth": "depth",
    "pointmap": "rgb",
    "condition_pointmap": "rgb",
}
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,119}\Z")
_MAX_JSON_BYTES = 32_000_000


def encode_episode(episode: Episode, depth_unit_m: float = DEPTH_UNIT_M) -> dict[str, bytes]:
    """Return the file contents by extension, "json" first."""
    if not _KEY.match(episode.key):
        raise DataError(f"key {episode.key!r}", expected="1 to 120 letters, digits, '-' and '_'")
    arrays = _arrays(episode, depth_unit_m)
    files = {f"{name}.mkv": encode_stream(array, STREAMS[name]) for name, array in arrays.items()}
    document = _document(episode, list(arrays), depth_unit_m)
    try:
        text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise DataError(f"episode '{episode.key}' has a value that JSON cannot hold: {error}") from None
    return {"json": text.encode() + b"\n", **files}


def _arrays(episode: Episode, unit_m: float) -> dict[str, NDArray[Any]]:
    stored = episode.condition
    found: dict[str, NDArray[Any] | None] = {
        "rgb": episode.rgb,
        "depth": None if episode.depth_m is None else pack_depth(episode.depth_m, unit_m),
        "ids": episode.ids,
        "condition_ids": episode.condition_ids,
        "condition_rgb": None if stored is None else stored.rgb,
        "condition_depth": None if stored is None or stored.depth_m is None else pack_depth(stored.depth_m, unit_m),
        "pointmap": episode.pointmap01,
        "condition_pointmap": None if stored is None else stored.pointmap01,
    }
    for name, array in found.items():
        if array is not None and array.shape[:3] != episode.shape:
            raise DataError(
                f"episode '{episode.key}': {name} has shape {array.shape}", expected=f"{episode.shape}, as the camera"
            )
    return {name: array for name, array in found.items() if array is not None}


def _document(episode: Episode, streams: list[str], unit_m: float) -> dict[str, Any]:
    camera, outcome = episode.camera, episode.outcome
    return {
        "format": FORMAT,
        "key": episode.key,
        "frames": len(episode),
        "width": camera.width,
        "height": camera.height,
        "streams": streams,
        "depth_unit_m": unit_m,
        "times_s": episode.times.tolist(),
        "camera": {
            "width": camera.width,
            "height": camera.height,
            "K": camera.K.tolist(),
            "base_T_camera": camera.base_T_camera.tolist(),
            "frame_id": camera.frame_id,
            "base_frame": camera.base_frame,
        },
        "robot": episode.robot,
        "joint_names": list(episode.joint_names),
        "joints": _list(episode.joints),
        "actions": _list(episode.actions),
        "condition": "stored" if episode.condition is not None else "from actions",
        "names": list(episode.names),
        "link_count": episode.link_count,
        "bounds_m": _list(episode.bounds),
        "known_bounds_m": _list(episode.known_bounds),
        "task": episode.task,
        "outcome": {
            "success": outcome.success,
            "target": outcome.target,
            "facts": dict(outcome.facts),
            "objects": [_object_document(thing) for thing in outcome.objects],
        },
        "source": episode.source,
        "captions": dict(episode.captions),
        "seeds": dict(episode.seeds),
        "versions": dict(episode.versions),
        "details": dict(episode.details),
        "missing": list(episode.missing),
    }


def _list(array: NDArray[np.float64] | None) -> Any:
    return None if array is None else np.asarray(array, np.float64).tolist()


def _object_document(thing: ObjectTrack) -> dict[str, Any]:
    poses = [[*pose[:3, 3].tolist(), *to_quaternion(pose).tolist()] for pose in thing.base_T_object]
    return {
        "name": thing.name,
        "shape": thing.shape,
        "size_m": list(thing.size),
        "rgb": list(thing.rgb),
        "base_T_object_xyz_xyzw": poses,
    }


def parse_document(data: bytes, where: str) -> dict[str, Any]:
    """Parse the JSON document of an episode, check its format and recompute its label; `where` is for errors."""
    if len(data) > _MAX_JSON_BYTES:
        raise DataError(f"{where}: the JSON has {len(data)} bytes", expected=f"at most {_MAX_JSON_BYTES}")
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}"[:300], expected="a UTF-8 JSON document") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise DataError(f"{where}: format is {found!r}"[:300], expected=repr(FORMAT), code=ErrorCode.FILE_UNSUPPORTED)
    with _describing(where):
        document["outcome"]["success"] = _label(document, where)
    return document


@contextmanager
def _describing(where: str) -> Iterator[None]:
    """Convert errors caused by invalid JSON content into a DataError that names `where`."""
    try:
        yield
    except DataError:
        raise
    except KinemaError as error:
        raise DataError(f"{where}: {error.what}", expected=error.expected, hint=error.hint, code=error.code) from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise DataError(
            f"{where}: the JSON does not describe an episode: {type(error).__name__}: {error}"[:300],
            expected=f"the fields of {FORMAT}",
        ) from None


def _label(document: dict[str, Any], where: str) -> bool | None:
    """Compute success from the target's poses; return the stored value without poses, goal or a known task."""
    kind, outcome, details = document["task"], document["outcome"], document["details"]
    stored = outcome["success"]
    if stored is not None and not isinstance(stored, bool):
        raise DataError(f"{where}: success is {stored!r}", expected="true, false or null")
    poses = [one["base_T_object_xyz_xyzw"] for one in outcome["objects"] if one["name"] == outcome["target"]]
    if stored is None or kind not in TASKS or not poses:
        return stored
    path = _numbers(poses[0], (None, 7), f"poses of {outcome['target']}", where)[:, :3]
    if kind in ("place", "stack") and "goal_xy" not in details:
        if "goal_error_m" not in outcome["facts"]:
            return stored
        # Older episodes store the distance to the goal, not its position: any goal at that distance is equivalent.
        details = {**details, "goal_xy": path[-1, :2] + (float(outcome["facts"]["goal_error_m"]), 0.0)}
    return recorded_task(kind, outcome["target"], details, where).outcome(path).success


def decode_episode(
    files: Mapping[str, bytes], where: str = "episode", streams: Collection[str] | None = None
) -> Episode:
    """Decode an episode from files by extension; `streams` names the videos to decode (default all, "rgb" always)."""
    if "json" not in files:
        raise DataError(f"{where}: there is no JSON", expected="key.json", code=ErrorCode.FILE_MISSING)
    document = parse_document(files["json"], where)
    with _describing(where):
        return _episode(document, files, where, streams)


def _episode(
    document: dict[str, Any], files: Mapping[str, bytes], where: str, streams: Collection[str] | None
) -> Episode:
    lens = document["camera"]
    camera = PinholeCamera(
        lens["width"],
        lens["height"],
        lens["K"],
        lens["base_T_camera"],
        frame_id=str(lens["frame_id"]),
        base_frame=str(lens["base_frame"]),
    )
    times = _numbers(document["times_s"], (None,), "times_s", where)
    frames = int(document["frames"])
    if len(times) != frames or not 1 <= frames <= MAX_FRAMES:
        raise DataError(f"{where}: {len(times)} times for {frames} frames", expected=f"equal, 1 to {MAX_FRAMES}")
    if (document["width"], document["height"]) != (camera.width, camera.height):
        raise DataError(f"{where}: {document['width']} x {document['height']}", expected="the size of the camera")
    shape = (frames, camera.height, camera.width)
    unit = float(document["depth_unit_m"])
    wanted = {name for name in STREAMS if streams is None or name in streams or name == "rgb"}

    def stream(name: str) -> NDArray[Any] | None:
        if name not in document["streams"] or name not in wanted:
            return None
        if f"{name}.mkv" not in files:
            raise DataError(f"{where}: {name}.mkv is missing", expected="every stream listed in the JSON")
        try:
            return decode_stream(files[f"{name}.mkv"], STREAMS[name], shape)
        except DataError as error:
            raise DataError(f"{where}: {name}: {error.what}", expected=error.expected, hint=error.hint) from None

    def metres(name: str) -> NDArray[np.float32] | None:
        steps = stream(name)
        return None if steps is None else unpack_depth(steps, unit)

    rgb = stream("rgb")
    if rgb is None:
        raise DataError(f"{where}: there is no rgb", expected="an rgb stream")
    joint_names = tuple(str(n) for n in document["joint_names"])
    table: Callable[[str], Any] = lambda name: (  # noqa: E731
        None if document[name] is None else _numbers(document[name], (frames, len(joint_names)), name, where)
    )
    box: Callable[[str], Any] = lambda name: (  # noqa: E731
        None if document[name] is None else _numbers(document[name], (2, 3), name, where)
    )
    condition = None
    if document["condition"] == "stored" and "condition_rgb" in wanted:
        drawn = stream("condition_rgb")
        if drawn is None:
            raise DataError(f"{where}: there is no condition_rgb", expected="a stored robot sequence")
        condition = StoredCondition(drawn, metres("condition_depth"), stream("condition_pointmap"))
    return Episode(
        key=str(document["key"]),
        rgb=rgb,
        depth_m=metres("depth"),
        ids=stream("ids"),
        names=tuple(str(n) for n in document["names"]),
        link_count=int(document["link_count"]),
        times=times,
        camera=camera,
        robot=str(document["robot"]),
        joint_names=joint_names,
        joints=table("joints"),
        actions=table("actions"),
        condition_ids=stream("condition_ids"),
        bounds=box("bounds_m"),
        known_bounds=box("known_bounds_m"),
        task=str(document["task"]),
        outcome=_outcome(document["outcome"], frames, where),
        source=str(document["source"]),
        condition=condition,
        captions={str(k): str(v) for k, v in document["captions"].items()},
        seeds={str(k): int(v) for k, v in document["seeds"].items()},
        versions={str(k): str(v) for k, v in document["versions"].items()},
        details=dict(document["details"]),
        missing=tuple(str(n) for n in document["missing"]),
        pointmap01=stream("pointmap"),
    )


def _numbers(values: Any, shape: tuple[int | None, ...], name: str, where: str) -> NDArray[np.float64]:
    array = np.array(values, dtype=np.float64)
    fits = array.ndim == len(shape) and all(n is None or n == m for n, m in zip(shape, array.shape, strict=True))
    if not fits or not np.all(np.isfinite(array)):
        raise DataError(f"{where}: {name} has shape {array.shape}, or NaN", expected=f"finite numbers of shape {shape}")
    return array


def _outcome(fields: dict[str, Any], frames: int, where: str) -> Outcome:
    objects = []
    for thing in fields["objects"]:
        rows = _numbers(thing["base_T_object_xyz_xyzw"], (frames, 7), f"poses of {thing['name']}", where)
        poses = np.stack([from_quaternion(row[3:], row[:3]) for row in rows])
        (x, y, z), (r, g, b) = (map(float, thing[k]) for k in ("size_m", "rgb"))
        objects.append(ObjectTrack(str(thing["name"]), str(thing["shape"]), (x, y, z), (r, g, b), poses))
    return Outcome(fields["success"], str(fields["target"]), dict(fields["facts"]), tuple(objects))
