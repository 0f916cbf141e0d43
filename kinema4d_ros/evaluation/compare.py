"""All metrics of a prediction against the truth in one call, per frame and overall; as table, CSV and JSON.

    Sight, Sight.of_rollout     what is compared: images, and points if available
    compare(predicted, truth)   -> Comparison: per frame and overall

An undefined value, such as a distance to an empty cloud, is NaN here, empty in CSV and null in JSON; means are over
the frames with a value, and the table shows how many these are.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import EvaluationError, KinemaError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.evaluation.clouds import CloudDistance, consecutive_distances, frame_distances, require_thresholds
from kinema4d_ros.evaluation.images import dynamic_region, psnr, psnr_overall, ssim
from kinema4d_ros.evaluation.physical import plausibility, robot_adherence
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot

__all__ = ["Comparison", "Motion", "Sight", "compare"]

_CHANGED_M = 0.02

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sight:
    """Data to compare: images (T, H, W, 3) uint8, and their rollout; None = a video without points."""

    rgb: NDArray[np.uint8]
    rollout: Rollout | None = None
    fps: float = 10.0

    @classmethod
    def of_rollout(cls, rollout: Rollout) -> Sight:
        """Take images and points of a rollout; points that are partly NaN or behind the camera are refused."""
        rollout.check_points()
        step_s = float(np.median(np.diff(rollout.times))) if len(rollout) > 1 else 0.1
        return cls(rollout.rgb, rollout, 1.0 / step_s)


@dataclass(frozen=True, eq=False)
class Motion:
    """Commanded motion: joint positions q (T, J), one row for each frame of the prediction."""

    robot: Robot
    q: Floats


@dataclass(frozen=True, eq=False)
class Comparison:
    """Metrics of a prediction.

    Attributes:
        frames: (T,) arrays by name, one number for each frame, NaN = undefined.
        overall: one number by name.
        notes: omitted metrics and the reason.
        counts: frames with a value by name, where it is not all of them.
    """

    frames: Mapping[str, Floats]
    overall: Mapping[str, float]
    notes: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    def table(self) -> str:
        """Format a text table: name, value, unit, number of frames with a value."""
        width = max(len(name) for name in self.overall)
        lines = []
        for name, value in self.overall.items():
            note = f"  ({self.counts[name]} frames)" if name in self.counts else ""
            lines.append(
                f"{name:<{width}}  {_number(value):>10} {_UNITS.get(name.split('@')[0], ''):<4}{note}".rstrip()
            )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def csv(self) -> str:
        """Format as CSV: one row per frame, one column per metric; empty = undefined."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["frame", *self.frames])
        for t in range(len(next(iter(self.frames.values())))):
            values = (column[t] for column in self.frames.values())
            writer.writerow([t, *("" if math.isnan(v) else repr(float(v)) for v in values)])
        return out.getvalue()

    def json(self) -> str:
        """Format as JSON: overall, per frame, notes; null = undefined, and the text "inf" for an infinite PSNR."""
        document = {
            "overall": {name: _plain(value) for name, value in self.overall.items()},
            "frames": {name: [_plain(v) for v in column] for name, column in self.frames.items()},
            "notes": list(self.notes),
        }
        return json.dumps(document, indent=1, allow_nan=False)


def compare(
    predicted: Sight,
    truth: Sight,
    *,
    thresholds_m: Sequence[float] = (0.01,),
    reach_px: int | None = None,
    motion: Motion | None = None,
) -> Comparison:
    """Compare images, and points if both have them.

    Args:
        predicted, truth: of the same length and size.
        thresholds_m: of the F-score.
        reach_px: margin of the dynamic region around robot and moving points, in pixels; by default width / 24.
        motion: if given, the predicted robot is compared with the exact one, and scene points inside it are found.
    """
    limits = require_thresholds(thresholds_m)
    frames: dict[str, Floats] = {
        "psnr": psnr(predicted.rgb, truth.rgb),
        "ssim": ssim(predicted.rgb, truth.rgb),
    }
    overall = {"psnr": psnr_overall(predicted.rgb, truth.rgb), "ssim": _mean(frames["ssim"])}
    notes: list[str] = []
    if truth.rollout is None:
        notes.append("no dynamic region: the truth has no robot mask")
    else:
        reach = max(1, truth.rgb.shape[2] // 24) if reach_px is None else reach_px
        region = _region(truth.rollout, reach)
        frames["psnr_dynamic"] = psnr(predicted.rgb, truth.rgb, region)
        frames["ssim_dynamic"] = ssim(predicted.rgb, truth.rgb, region)
        overall["psnr_dynamic"] = psnr_overall(predicted.rgb, truth.rgb, region)
        overall["ssim_dynamic"] = _mean(frames["ssim_dynamic"])
    if predicted.rollout is None or truth.rollout is None:
        notes.append("no clouds: one of the two is a video")
    else:
        _compare_clouds(predicted.rollout, truth.rollout, limits, frames, overall)
    if predicted.rollout is not None:
        _add_steadiness(predicted.rollout, limits, frames, overall)
        _add_plausibility(predicted.rollout, motion, frames, overall, notes)
        if motion is not None:
            _add_adherence(predicted.rollout, motion, frames, overall)
    elif motion is not None:
        raise EvaluationError(
            "the prediction is a video without points", expected="a rollout with points to compare the robot"
        )
    total = len(predicted.rgb)
    missing = {name: int(np.isfinite(column).sum()) for name, column in frames.items() if name in overall}
    counts = {name: count for name, count in missing.items() if count < total and not name.startswith("psnr")}
    return Comparison(frames, overall, tuple(notes), counts)


def _region(truth: Rollout, reach_px: int) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):
        gone = np.linalg.norm(truth.xyz - truth.xyz[0], axis=-1) > _CHANGED_M
    changed = gone & ~truth.robot_mask & ~truth.robot_mask[0]
    return dynamic_region(truth.robot_mask, changed.astype(np.uint8), [1], reach_px=reach_px)


def _compare_clouds(
    predicted: Rollout, truth: Rollout, limits: tuple[float, ...], frames: dict[str, Floats], overall: dict[str, float]
) -> None:
    if not np.allclose(predicted.camera.base_T_camera, truth.camera.base_T_camera, atol=1e-6) or not np.allclose(
        predicted.camera.K, truth.camera.K, atol=1e-3
    ):
        raise EvaluationError("prediction and truth have different cameras", expected="clouds in one camera's frame")
    _add_clouds(frame_distances(predicted.xyz, truth.xyz, limits), "", limits, frames, overall)
    both, either = predicted.robot_mask & truth.robot_mask, predicted.robot_mask | truth.robot_mask
    union = either.sum(axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        frames["robot_iou"] = np.where(union > 0, both.sum(axis=(1, 2)) / union, np.nan)
        error = np.abs(predicted.xyz[..., 2].astype(np.float64) - truth.xyz[..., 2])
    frames["robot_depth_error"] = np.array([_mean(error[t][both[t]]) for t in range(len(truth))])
    overall["robot_iou"] = _mean(frames["robot_iou"])
    overall["robot_depth_error"] = _mean(frames["robot_depth_error"])


def _add_steadiness(
    predicted: Rollout, limits: tuple[float, ...], frames: dict[str, Floats], overall: dict[str, float]
) -> None:
    if len(predicted) > 1:
        # Frame 0 has no previous frame: its value is NaN.
        _add_clouds(consecutive_distances(predicted.xyz, limits), "_temp", limits, frames, overall, skip=1)


def _add_clouds(
    found: list[CloudDistance],
    ending: str,
    limits: tuple[float, ...],
    frames: dict[str, Floats],
    overall: dict[str, float],
    skip: int = 0,
) -> None:
    columns = {
        f"chamfer_l1{ending}": [d.chamfer_l1 for d in found],
        f"chamfer_l2{ending}": [d.chamfer_l2 for d in found],
    }
    for i, limit in enumerate(limits):
        columns[f"f_score{ending}@{limit:g}"] = [d.f_score[i] for d in found]
    for name, values in columns.items():
        frames[name] = np.array([math.nan] * skip + values)
        overall[name] = _mean(frames[name])


def _add_adherence(predicted: Rollout, motion: Motion, frames: dict[str, Floats], overall: dict[str, float]) -> None:
    if len(motion.q) != len(predicted):
        raise EvaluationError(
            f"the prediction has {len(predicted)} frames, the motion {len(motion.q)}", expected="one row per frame"
        )
    exact = render_pointmaps(motion.robot, motion.q, predicted.camera)
    found = robot_adherence(predicted.xyz, exact.xyz, exact.mask)
    for name, column in (
        ("adherence_iou", found.iou),
        ("adherence_depth_error", found.depth_error_m),
        ("adherence_missing", found.missing),
    ):
        frames[name], overall[name] = column, _mean(column)


def _add_plausibility(
    predicted: Rollout, motion: Motion | None, frames: dict[str, Floats], overall: dict[str, float], notes: list[str]
) -> None:
    robot, q = (None, None) if motion is None else (motion.robot, motion.q)
    try:
        found = plausibility(predicted, robot, q)
    except KinemaError as error:
        notes.append(f"no plausibility: {error.what}")
        return
    frames["below_table"] = found.below_table
    frames["vanished"], frames["appeared"] = found.vanished.astype(float), found.appeared.astype(float)
    frames["matter"] = found.matter
    overall["below_table"] = _mean(found.below_table)
    overall["vanished"], overall["appeared"] = float(found.vanished.sum()), float(found.appeared.sum())
    overall["matter"] = _mean(found.matter)
    if motion is not None:
        frames["inside_robot"] = found.robot_depth_m
        overall["inside_robot"] = float(np.nanmax(found.robot_depth_m)) if len(found.robot_depth_m) else math.nan


_UNITS = {
    "psnr": "dB",
    "psnr_dynamic": "dB",
    "chamfer_l1": "m",
    "chamfer_l2": "m^2",
    "chamfer_l1_temp": "m",
    "chamfer_l2_temp": "m^2",
    "robot_depth_error": "m",
    "adherence_depth_error": "m",
    "inside_robot": "m",
}


def _mean(values: Any) -> float:
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    return float(finite.mean()) if finite.size else math.nan


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"


def _plain(value: float) -> float | str | None:
    value = float(value)
    return None if math.isnan(value) else value if math.isfinite(value) else "inf"
