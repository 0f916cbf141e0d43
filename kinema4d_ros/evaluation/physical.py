"""Physical consistency of a prediction: agreement with the exact robot, penetration, objects that vanish or appear.

    adherence       the predicted robot against the exact one: mask IoU and depth error
    plausibility    scene points inside the table or inside the robot; objects that vanish or appear;
                    visible surface above the table over time

Only points in view are measured; hidden ones do not count against a prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import EvaluationError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.evaluation.images import require_masks
from kinema4d_ros.previews.report.clearance import clearance_over_time
from kinema4d_ros.previews.report.plane import fit_plane
from kinema4d_ros.robot.model import Robot

__all__ = ["Adherence", "Plausibility", "plausibility", "robot_adherence"]

_NEAR_M = 0.02
"""Depth difference to the exact robot below which a predicted point counts as robot."""
_ABOVE_M, _HIGH_M = 0.01, 0.4
_SUNK_M = 0.01
_RIM_PX = 2
_LEAST_PX = 16
_LEAP_M = 0.08
"""Maximum motion of an object between consecutive frames."""

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Adherence:
    """The predicted robot against the exact one, for every frame.

    Attributes:
        iou: (T,) intersection over union of the masks; NaN where neither shows a robot.
        depth_error_m: (T,) mean |z predicted - z exact| over the exact robot's pixels that have a predicted point.
        missing: (T,) share of the exact robot's pixels without a predicted point.
    """

    iou: Floats
    depth_error_m: Floats
    missing: Floats


def robot_adherence(
    predicted_xyz: NDArray[np.float32],
    exact_xyz: NDArray[np.float32],
    exact_mask: Mask,
    predicted_mask: Mask | None = None,
) -> Adherence:
    """Compare the robot of a prediction with the exact one, BEFORE the exact robot is composited into the prediction.

    Args:
        predicted_xyz: (T, H, W, 3) float32, metres, camera frame, NaN = no point.
        exact_xyz: the same of the rendered robot.
        exact_mask: (T, H, W) bool, mask of the rendered robot.
        predicted_mask: (T, H, W) bool, where the prediction shows the robot. Without it, a pixel of the exact robot
            counts as robot if its depth is within 2 cm of the exact one; robot elsewhere is then not detected, and
            the IoU is the matched share of the exact robot.
    """
    predicted, exact = np.asarray(predicted_xyz), np.asarray(exact_xyz)
    if predicted.ndim != 4 or predicted.shape[-1] != 3 or predicted.shape != exact.shape:
        raise EvaluationError(
            f"the prediction has shape {predicted.shape}, the exact robot {exact.shape}",
            expected="(T, H, W, 3) for both",
        )
    mask = require_masks(exact_mask, predicted.shape[:3], "exact_mask")
    z, z_exact = predicted[..., 2].astype(np.float64), exact[..., 2].astype(np.float64)
    if not np.isfinite(z_exact[mask]).all():
        raise EvaluationError(
            "the exact robot has pixels without a point", expected="a point at every pixel of its mask"
        )
    error = np.abs(z - z_exact)
    if predicted_mask is None:
        with np.errstate(invalid="ignore"):
            shown = mask & (error < _NEAR_M)
    else:
        shown = require_masks(predicted_mask, mask.shape, "predicted_mask")
    frames = len(mask)
    iou, depth, missing = np.full(frames, np.nan), np.full(frames, np.nan), np.full(frames, np.nan)
    for t in range(frames):
        union = int((mask[t] | shown[t]).sum())
        if union:
            iou[t] = (mask[t] & shown[t]).sum() / union
        if mask[t].any():
            inside = error[t][mask[t]]
            known = np.isfinite(inside)
            missing[t] = 1 - known.mean()
            if known.any():
                depth[t] = inside[known].mean()
    return Adherence(iou, depth, missing)


@dataclass(frozen=True, eq=False)
class Plausibility:
    """Violations of physics in every frame; all but `objects` and `matter` are 0 in a consistent prediction.

    Attributes:
        below_table: (T,) share of the points at the table's pixels that are more than 1 cm below it.
        table_depth_m: (T,) depth of these points below the table (99th percentile), metres; 0 = none.
        robot_depth_m: (T,) penetration of scene points into the robot, metres; NaN if no robot was given.
        objects: (T,) number of separate objects on the table in view.
        vanished: (T,) objects of the previous frame that are missing now though the robot does not hide their place.
        appeared: (T,) objects that were missing in the previous frame, likewise.
        matter: (T,) visible surface above the table relative to the first frame, over pixels that the robot hides in
            neither; 1 = unchanged, NaN = nothing to compare. Surface carried out of these pixels is missing in it.
    """

    below_table: Floats
    table_depth_m: Floats
    robot_depth_m: Floats
    objects: NDArray[np.int64]
    vanished: NDArray[np.int64]
    appeared: NDArray[np.int64]
    matter: Floats


def plausibility(rollout: Rollout, robot: Robot | None = None, q: ArrayLike | None = None) -> Plausibility:
    """Measure violations of physics in a rollout.

    Args:
        rollout: its table is the dominant plane of frame 0.
        robot: to measure scene points inside its meshes; needs `q`.
        q: (T, J) joint positions of the robot.

    Raises:
        EvaluationError: frame 0 has no plane, or only one of robot and q is given.
    """
    if (robot is None) != (q is None):
        raise EvaluationError("only one of robot and q is given", expected="both or neither")
    frames = len(rollout)
    hidden = np.stack([_grow(m, _RIM_PX) for m in rollout.robot_mask])
    free = ~hidden & np.isfinite(rollout.xyz[..., 2])
    plane = fit_plane(rollout.xyz[0][free[0]].astype(np.float64), tolerance_m=0.006, least_share=0.25)
    if plane is None:
        raise EvaluationError(f"{int(free[0].sum())} points of frame 0 contain no plane", expected="a table in view")
    height = rollout.xyz @ plane[:3].astype(np.float32) + np.float32(plane[3])
    with np.errstate(invalid="ignore"):
        # Only at the table's pixels: beyond its edge the floor is lower.
        table = free[0] & (np.abs(height[0]) < _ABOVE_M)
        standing = free & (height > _ABOVE_M) & (height < _HIGH_M)
        sunk = free & table & (height < -_SUNK_M)
    below, depth, matter = np.zeros(frames), np.zeros(frames), np.full(frames, np.nan)
    count, vanished, appeared = (np.zeros(frames, np.int64) for _ in range(3))
    # The area of a pixel grows with the square of its depth; the focal length cancels in the ratio.
    area = np.nan_to_num(rollout.xyz[..., 2], nan=0.0).astype(np.float64) ** 2
    pieces = [_pieces(rollout.xyz[t], standing[t], hidden[t]) for t in range(frames)]
    for t in range(frames):
        below[t] = sunk[t].sum() / max(int((free[t] & table).sum()), 1)
        depth[t] = -float(np.quantile(height[t][sunk[t]], 0.01)) if sunk[t].any() else 0.0
        count[t] = len(pieces[t])
        if t:
            vanished[t] = _nowhere(pieces[t - 1], pieces[t], standing[t] | hidden[t])
            appeared[t] = _nowhere(pieces[t], pieces[t - 1], standing[t - 1] | hidden[t - 1])
        both = ~hidden[t] & ~hidden[0]
        first = float(area[0][standing[0] & both].sum())
        if first > 0:
            matter[t] = float(area[t][standing[t] & both].sum()) / first
    within = np.full(frames, np.nan)
    if robot is not None and q is not None:
        within = np.fmax(0.0, -clearance_over_time(rollout, robot, q).distance_m)
    return Plausibility(below, depth, within, count, vanished, appeared, matter)


@dataclass(frozen=True, eq=False)
class _Piece:
    """An object on the table: pixels, centroid (3,), and whether it touches neither the robot nor the image border."""

    pixels: Mask
    centre: Floats
    alone: bool


def _pieces(xyz: NDArray[np.float32], standing: Mask, hidden: Mask) -> list[_Piece]:
    count, labels = cv2.connectedComponents(standing.astype(np.uint8), connectivity=8)
    rim = _grow(hidden, 1)
    rim[0], rim[-1], rim[:, 0], rim[:, -1] = True, True, True, True
    found = []
    for label in range(1, count):
        pixels = np.asarray(labels == label)
        if pixels.sum() >= _LEAST_PX:
            found.append(_Piece(pixels, xyz[pixels].mean(axis=0, dtype=np.float64), not bool(rim[pixels].any())))
    return found


def _nowhere(these: list[_Piece], others: list[_Piece], excused: Mask) -> int:
    """Count those of `these` without a counterpart in `others` whose pixels do not touch the `excused` mask."""
    return sum(
        piece.alone
        and not (excused & _grow(piece.pixels, _RIM_PX)).any()
        and all(np.linalg.norm(piece.centre - other.centre) > _LEAP_M for other in others)
        for piece in these
    )


def _grow(mask: Mask, reach: int) -> Mask:
    kernel = np.ones((2 * reach + 1, 2 * reach + 1), np.uint8)
    return np.asarray(cv2.dilate(mask.astype(np.uint8), kernel) != 0)
