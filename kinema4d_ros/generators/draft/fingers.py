"""Fingers at the start of a chunk: where the depth shows them, and what that says about an object between them.

A plan states where fingers are commanded. Fingers that press on an object stand farther open: the depth shows where,
and the object is as wide there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.pointmap import GripTrack
from kinema4d_ros.generators.draft._kernels import CY, SX, SY, SZ, Z0

__all__ = ["PAD_SLACK_M", "Grasp", "measured_fingers"]

PAD_SLACK_M = 0.006
"""An object whose width is within this of the fingers' opening, or more, touches both pads."""
FINGER_PIXELS = 12
FINGERS_OPEN_M, FINGERS_STEP_M = 0.015, 0.0005
"""Each finger is looked for up to this much outside its commanded place, in these steps."""
FINGER_ERROR_M, FINGER_GAIN_M = 0.010, 0.0005
"""Largest error of depth that counts, and how much smaller the mean error must be elsewhere."""
FINGER_SURE_M, FINGER_BETTER = 0.004, 0.75
"""The opening is known if the mean error is below the first, or below this share of that where it is commanded."""
FINGER_SKIN_M = 0.0025
_GRASP_ASIDE_M, _GRASP_HIGH_M = 0.008, 0.02
"""Standard deviations of the grasp point from the middle of an object, across the closing direction and in height."""
_PALM_SLACK_M = 0.004


@dataclass(frozen=True)
class Grasp:
    """Fingers around an object, in the frame of its pixels: z runs through the grasp point, they close along x.

    Attributes:
        width_m: between the pads.
        point_m: height of the grasp point.
        palm_m: height of the palm, or infinity.
    """

    width_m: float
    point_m: float
    palm_m: float

    def cost(self, p: NDArray[np.float64]) -> float:
        """Return the negative logarithm of the prior of a shape (7,): held near its middle, and below the palm."""
        height = p[SX] if p[SY] == p[SX] == p[SZ] else p[SZ]
        high = float(p[Z0] + height)
        if high > self.palm_m + _PALM_SLACK_M:
            return 1e3
        middle = high - height / 2 - self.point_m
        return 0.5 * float((p[CY] / _GRASP_ASIDE_M) ** 2 + (middle / _GRASP_HIGH_M) ** 2)


def measured_fingers(
    drawn: NDArray[np.bool_],
    xyz: NDArray[np.float32],
    depth: NDArray[np.float32],
    camera: PinholeCamera,
    grip: GripTrack,
) -> tuple[NDArray[np.bool_], GripTrack, float | None]:
    """Return the robot's pixels (H, W) and the grip with the fingers where the depth shows them, and the opening there.

    Fingers that press on an object stand farther open than commanded. Commanded fingers would be inside the object, and
    the measured ones would be taken for things beside it. The opening is None where too little is seen of the fingers.
    """
    pose, width, fingers = grip.base_T_grip[0], float(grip.width_m[0]), grip.fingers
    rows, columns = np.nonzero(drawn)
    p = xyz[rows, columns].astype(np.float64)
    p = p @ camera.base_T_camera[:3, :3].T + camera.base_T_camera[:3, 3]
    p = (p - pose[:3, 3]) @ pose[:3, :3]
    mine = (p[:, 2] > -fingers.length_m) & (np.abs(p[:, 1]) < fingers.width_m / 2 + PAD_SLACK_M)
    mine &= np.abs(p[:, 0]) < width / 2 + fingers.thickness_m + PAD_SLACK_M
    if mine.sum() < FINGER_PIXELS:
        return drawn, grip, None
    rows, columns, p = rows[mine], columns[mine], p[mine]
    camera_T_grip = camera.camera_T_base @ pose
    best, first, opened, where = math.inf, math.inf, 0.0, (rows, columns)
    for shift in np.arange(0.0, FINGERS_OPEN_M, FINGERS_STEP_M):
        q = p + np.sign(p[:, :1]) * np.array([shift, 0.0, 0.0])
        q = q @ camera_T_grip[:3, :3].T + camera_T_grip[:3, 3]
        uv = np.floor(q @ camera.K.T / q[:, 2:])[:, 1::-1].astype(np.int64)
        v, u = np.clip(uv, 0, (depth.shape[0] - 1, depth.shape[1] - 1)).T
        with np.errstate(invalid="ignore"):
            error = np.minimum(np.abs(depth[v, u] - q[:, 2]), FINGER_ERROR_M)
        cost = float(np.where(np.isfinite(error), error, FINGER_ERROR_M).mean())
        first = cost if shift == 0 else first
        # The commanded place is believed unless another one is clearly better.
        if cost < best - (FINGER_GAIN_M if not opened else 0.0):
            best, opened, where = cost, float(shift), (v, u)
    sure = best < FINGER_SURE_M or best < FINGER_BETTER * first
    opening = width + 2 * opened if sure else None
    if opened == 0.0:
        return drawn, grip, opening
    shown = drawn.copy()
    shown[rows, columns] = False
    moved = np.zeros(drawn.shape, np.uint8)
    moved[where] = 1
    shown |= cv2.morphologyEx(moved, cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8)) != 0
    if opening is not None:
        # What is measured where the fingers are is a finger: the object ends at the pads.
        p = (camera.rays() * depth[..., None]) @ camera_T_grip[:3, :3] - camera_T_grip[:3, 3] @ camera_T_grip[:3, :3]
        behind = np.abs(p[..., 0]) - opening / 2
        with np.errstate(invalid="ignore"):
            inside = (behind > FINGER_SKIN_M) & (behind < fingers.thickness_m + PAD_SLACK_M)
            inside &= (np.abs(p[..., 1]) < fingers.width_m / 2) & (p[..., 2] > -fingers.length_m)
            shown |= inside & (p[..., 2] < fingers.tip_m + FINGER_SKIN_M)
    return shown, replace(grip, width_m=grip.width_m + 2 * opened), opening
