"""Trajectories as plain tables: bounded readers and writers for CSV, JSON and NPZ.

CSV: a header `time,joint1,joint2,...`, then numbers; seconds, radians, metres. A unit in brackets
    converts a column: `time[ms]`, `joint1[deg]`, `finger[mm]`. Lines that start with `#` are comments.
JSON: `{"format": "kinema4d_joint_trajectory", "version": 1, "names": ["joint1", ...],
    "times": [0.0, ...], "positions": [[0.0, ...], ...]}`.
NPZ: arrays `names` (N,) of text, `times` (T,) and `positions` (T, N); never pickled objects.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.files import read_arrays
from kinema4d_ros.io.files import read_json as parse_document
from kinema4d_ros.io.joint_match import MAX_BYTES, MAX_JOINTS, MAX_SAMPLES, malformed, require_file

__all__ = ["read_csv", "read_json", "read_npz", "write_trajectory"]

JSON_FORMAT = "kinema4d_joint_trajectory"
UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "rad": 1.0, "deg": math.pi / 180, "m": 1.0, "mm": 1e-3}
TIME_UNITS = ("", "s", "ms")
COLUMN = re.compile(r"\s*([^\[\],]+?)\s*(?:\[(\w+)\])?\s*")


def read_csv(path: Path) -> JointTrajectory:
    """Read a trajectory from a CSV file."""
    require_file(path)
    expected = "a header 'time,joint1,joint2,...' and rows of as many numbers"
    try:
        with path.open(encoding="utf-8-sig") as file:
            header = next((line for line in file if line.strip() and not line.startswith("#")), "")
            if not header:
                raise malformed(path, "it has no header", expected)
            columns = [_column(path, field) for field in header.rstrip("\r\n").split(",")]
            names = [name for name, _ in columns]
            if names[0] != "time" or len(names) < 2 or len(names) > MAX_JOINTS:
                raise malformed(path, f"its header is '{header.strip()[:80]}'", expected)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "loadtxt: input contained no data")
                table = np.loadtxt(file, delimiter=",", ndmin=2, max_rows=MAX_SAMPLES + 1)
    except UnicodeDecodeError as error:
        raise malformed(path, f"it is not UTF-8 text: {error}", expected) from None
    except ValueError as error:
        raise malformed(path, str(error), expected, "the file may be truncated") from None
    if len(table) > MAX_SAMPLES:
        raise malformed(path, f"it has more than {MAX_SAMPLES:,} rows", "fewer", "cut out the part to preview")
    if table.size and table.shape[1] != len(names):
        raise malformed(path, f"rows have {table.shape[1]} numbers for {len(names)} columns", expected)
    table = table.reshape(-1, len(names)) * np.array([scale for _, scale in columns])
    return JointTrajectory(tuple(names[1:]), table[:, 0], table[:, 1:])


def read_json(path: Path) -> JointTrajectory:
    """Read a trajectory from a JSON file."""
    require_file(path)
    expected = f'an object with "format": "{JSON_FORMAT}", "version": 1, "names", "times" and "positions"'
    data = parse_document(path, MAX_BYTES)
    if not isinstance(data, dict) or data.get("format") != JSON_FORMAT or data.get("version") != 1:
        raise malformed(path, "it is JSON, but not a trajectory of this version", expected)
    names = data.get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise malformed(path, f"its names are {str(names)[:80]}", "a list of joint names")
    times: Any = data.get("times")
    positions: Any = data.get("positions")
    return JointTrajectory(tuple(names), times, positions)


def read_npz(path: Path) -> JointTrajectory:
    """Read a trajectory from a NumPy archive."""
    require_file(path)
    expected = "arrays names (N,) of text, times (T,) and positions (T, N)"
    arrays = read_arrays(path, ("names", "times", "positions"), MAX_BYTES)
    if arrays["names"].ndim != 1 or arrays["names"].dtype.kind != "U":
        raise malformed(path, f"its names have type {arrays['names'].dtype}, shape {arrays['names'].shape}", expected)
    return JointTrajectory(tuple(arrays["names"].tolist()), arrays["times"], arrays["positions"])


def write_trajectory(trajectory: JointTrajectory, path: str | Path) -> None:
    """Write a .csv, .json or .npz file that `read_trajectory` reads back exactly."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".csv":
        rows = np.column_stack([trajectory.times, trajectory.positions])
        lines = [",".join(["time", *trajectory.names]), *(",".join(map(repr, row)) for row in rows.tolist())]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif suffix == ".json":
        data = {"format": JSON_FORMAT, "version": 1, "names": list(trajectory.names)}
        data |= {"times": trajectory.times.tolist(), "positions": trajectory.positions.tolist()}
        path.write_text(json.dumps(data) + "\n", encoding="utf-8")
    elif suffix == ".npz":
        np.savez_compressed(
            path, names=np.array(trajectory.names), times=trajectory.times, positions=trajectory.positions
        )
    else:
        raise FileFormatError(
            f"{path} has a suffix that cannot be written",
            expected="a .csv, .json or .npz file",
            code=ErrorCode.FILE_UNSUPPORTED,
        )


def _column(path: Path, field: str) -> tuple[str, float]:
    match = COLUMN.fullmatch(field)
    name, unit = (match[1], match[2] or "") if match else ("", "")
    if not name or unit not in UNITS or (unit in {"s", "ms"} and name != "time"):
        raise malformed(path, f"column '{field[:40]}' is not understood", "a name with one of [rad], [deg], [m], [mm]")
    if name == "time" and unit not in TIME_UNITS:
        raise malformed(path, f"time is in '{unit}'", "time, time[s] or time[ms]")
    return name, UNITS[unit]
