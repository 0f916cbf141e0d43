"""Pointmap sequences on disk: a folder of PNGs, a camera file and JSON, readable without this package.

NAME/
  meta.json           format, version, encoding, size, times, link names
  camera.yaml         camera file, see calibration/README.md
  link_ids/00000.png  8-bit grey, 0 = no robot, i + 1 = link i
  depth/00000.png     16-bit grey, z in 0.1 mm, 0 = no robot      (encoding "depth16")
  points.npz          points (N, 3) float32 in metres, in the order of the non-zero pixels of
                      link_ids, by frame and row                  (encoding "float32", lossless)
  rgb/00000.png       8-bit RGB, if the sequence has colours
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration import camera_from_document, save_camera
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.io.files import read_arrays, read_bytes, read_json, read_yaml, reading, replacing_folder
from kinema4d_ros.io.png import decode_png, encode_png
from kinema4d_ros.io.wire import DEPTH_UNIT_M, WireFrames, decode_frames, encode_frames

__all__ = ["load_pointmaps", "save_pointmaps"]

_FORMAT = "kinema4d_ros/pointmaps"
_VERSION = 1
_MAX_FRAMES = 100_000


def save_pointmaps(
    path: str | Path, sequence: PointmapSequence, *, lossless: bool = False, link_names: Sequence[str] = ()
) -> None:
    """Write a sequence as the folder `path`, completely or not at all.

    Args:
        path: a new or empty folder, or an existing pointmap folder, which is replaced.
        sequence: the sequence.
        lossless: float32 points exactly; otherwise depth rounded to 0.1 mm, about nine times smaller.
        link_names: names of the robot's links, for information in meta.json.
    """
    meta = {
        "format": _FORMAT,
        "version": _VERSION,
        "encoding": "float32" if lossless else "depth16",
        "frames": len(sequence),
        "width": sequence.camera.width,
        "height": sequence.camera.height,
        "depth_unit_m": DEPTH_UNIT_M,
        "has_rgb": sequence.rgb is not None,
        "times_s": None if sequence.times is None else sequence.times.tolist(),
        "link_names": list(link_names),
    }
    with replacing_folder(path, _is_ours) as folder:
        if lossless:
            sequence.check_points()
            np.savez_compressed(folder / "points.npz", points=sequence.xyz[sequence.mask])
            _write_frames(folder / "link_ids", (encode_png(ids) for ids in sequence.link_ids))
        else:
            wire = encode_frames(sequence)
            _write_frames(folder / "depth", wire.depth)
            _write_frames(folder / "link_ids", wire.link_ids or ())
        if sequence.rgb is not None:
            _write_frames(folder / "rgb", (encode_png(rgb) for rgb in sequence.rgb))
        save_camera(folder / "camera.yaml", sequence.camera)
        (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")


def load_pointmaps(path: str | Path) -> PointmapSequence:
    """Load a folder written by `save_pointmaps`; errors name what is missing, damaged or inconsistent."""
    with reading(path, "a folder that save_pointmaps wrote"):
        return _load(Path(path))


def _load(folder: Path) -> PointmapSequence:
    meta = _read_meta(folder)
    camera = camera_from_document(read_yaml(folder / "camera.yaml"), str(folder / "camera.yaml"))
    if (meta["width"], meta["height"]) != (camera.width, camera.height):
        raise _malformed(folder, f"meta.json says {meta['width']} x {meta['height']}", "the size in camera.yaml")
    count, times = meta["frames"], meta["times_s"]
    if times is not None:
        times = np.array(times, dtype=np.float64)
    ids = tuple(_read_frames(folder / "link_ids", count))
    if meta["encoding"] == "depth16":
        wire = WireFrames(tuple(_read_frames(folder / "depth", count)), ids, camera, times, meta["depth_unit_m"])
        sequence = decode_frames(wire)
    else:
        sequence = _lossless(
            folder, [_decode(data, camera, f"link-id image {i}") for i, data in enumerate(ids)], camera, times
        )
    if meta["has_rgb"]:
        images = enumerate(_read_frames(folder / "rgb", count))
        rgb = [_decode(data, camera, f"colour image {i}", channels=3) for i, data in images]
        sequence = PointmapSequence(sequence.xyz, sequence.link_ids, camera, times, np.stack(rgb))
    return sequence


def _lossless(
    folder: Path, ids: list[NDArray[np.uint8]], camera: PinholeCamera, times: NDArray[np.float64] | None
) -> PointmapSequence:
    link_ids = np.stack(ids)
    mask = link_ids != 0
    points = _read_points(folder / "points.npz", int(mask.sum()))
    xyz = np.full((*link_ids.shape, 3), np.nan, np.float32)
    xyz[mask] = points
    sequence = PointmapSequence(xyz, link_ids, camera, times)
    sequence.check_points()
    return sequence


def _read_points(path: Path, count: int) -> NDArray[np.float32]:
    """Read (count, 3) float32; the archive's sizes are checked before unpacking."""
    expected = f"points.npz with 'points' of shape ({count}, 3), float32"
    try:
        points: NDArray[np.float32] = read_arrays(path, ("points",), limit=24 * count + 65536)["points"]
    except FileFormatError as error:
        if error.code is ErrorCode.FILE_MISSING:
            raise
        raise _malformed(path, error.what, expected) from None
    if points.shape != (count, 3) or points.dtype != np.float32:
        raise _malformed(path, f"it holds {points.dtype} of shape {points.shape}", expected)
    return points


def _read_meta(folder: Path) -> dict[str, Any]:
    path = folder / "meta.json"
    meta = read_json(path, 10_000_000)
    if not isinstance(meta, dict) or meta.get("format") != _FORMAT:
        raise _malformed(path, "it does not describe pointmaps", f'"format": "{_FORMAT}"')
    if meta.get("version") != _VERSION:
        raise FileFormatError(
            f"{folder} has version {meta.get('version')!r}",
            expected=f"version {_VERSION}",
            hint="it was written by another release of this package",
            code=ErrorCode.FILE_UNSUPPORTED,
        )

    def whole(value: Any, upper: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= upper

    frames, times, unit = meta.get("frames"), meta.get("times_s"), meta.get("depth_unit_m")
    checks: dict[str, Callable[[], bool]] = {
        "frames": lambda: whole(frames, _MAX_FRAMES),
        "width": lambda: whole(meta.get("width"), 16384),
        "height": lambda: whole(meta.get("height"), 16384),
        "encoding": lambda: meta.get("encoding") in ("depth16", "float32"),
        "depth_unit_m": lambda: isinstance(unit, float) and 0.0 < unit < 1.0,
        "has_rgb": lambda: isinstance(meta.get("has_rgb"), bool),
        "times_s": lambda: (
            times is None
            or (isinstance(times, list) and len(times) == frames and all(isinstance(t, (int, float)) for t in times))
        ),
    }
    for key, good in checks.items():
        if not good():
            raise _malformed(path, f"'{key}' is {str(meta.get(key))[:100]}", "a value as save_pointmaps writes it")
    return meta


def _decode(data: bytes, camera: PinholeCamera, name: str, channels: int = 1) -> NDArray[np.uint8]:
    return decode_png(data, width=camera.width, height=camera.height, dtype=np.uint8, channels=channels, name=name)


def _write_frames(folder: Path, frames: Any) -> None:
    folder.mkdir()
    for i, data in enumerate(frames):
        (folder / f"{i:05d}.png").write_bytes(data)


def _read_frames(folder: Path, count: int) -> list[bytes]:
    return [read_bytes(folder / f"{i:05d}.png") for i in range(count)]


def _is_ours(folder: Path) -> bool:
    try:
        meta = read_json(folder / "meta.json")
    except FileFormatError:
        return False
    return isinstance(meta, dict) and meta.get("format") == _FORMAT


def _malformed(path: Path, what: str, expected: str) -> FileFormatError:
    return FileFormatError(f"{path} is damaged: {what}", expected=expected)
