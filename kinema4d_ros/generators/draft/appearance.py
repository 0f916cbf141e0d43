"""What the first image tells about the robot: the colours of its links, and parts that its URDF does not have."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.generators._kernels import shade_frames
from kinema4d_ros.generators.draft._draw_kernels import paint_robot, robot_normals
from kinema4d_ros.generators.draft.shadows import GAMMA
from kinema4d_ros.generators.inpaint import grow_mask

__all__ = ["RobotLook", "attached_parts", "fit_look", "shaded_robot", "spread_colours"]

Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

_LEAST_PIXELS = 300
"""Robot pixels of the first image below which its colours are not known."""
_LEAST_LINK = 40
_BORDER_PX = 4.0
"""Width of the borders of links whose colours are not used."""
_MOST_PIXELS = 6000
_ROUNDS = 5
_LEVELS = 8192
_PART_HEIGHT_M = 0.015
_PART_NEAR_M = 0.10
"""A part is higher above the table than the first, and its depth differs less from the robot's than the second."""
_PART_REACH = 0.10
"""Missing parts are looked for this far around the robot, as a share of the image's width."""
_COLOUR_REACH = 0.045
"""The same without depth, where a part is told by its colour."""
_STANDS_OUT = 34.0
"""Mean difference in grey levels from the inpainted background above which a pixel belongs to a part."""
_DARKEST_SHADOW = 0.4
"""Brightness of a shadow as a share of the table around it, in 8-bit values."""
_LEAST_PART = 2.5e-4
"""Minimum size of a part as a share of the image's pixels."""


@dataclass(frozen=True, eq=False)
class RobotLook:
    """Colours of the robot: the colour of each link times the light on its normal.

    Attributes:
        gains: (256, 3) float64 by link id.
        shape: (6, 3) float64, relative light: weights of 1, the normal's x, y, z in the base frame, the lamp, and the
            rendered brightness.
        key: (3,) float64, unit direction to the lamp, base frame; 0 = unknown.
        encode: (N,) uint8 of linear light from 0 to 1.
        image: (H, W, 3) uint8, the first image.
        own: (H, W, 3) uint8, the same without the mixed colours at the borders of the links.
        xyz: (H, W, 3) float32, its robot, metres, camera frame.
        ids: (H, W) uint8, its links where the image surely shows them, 0 elsewhere.
        normals: (H, W, 3) float32, base frame.
        shaded: (H, W, 3) uint8, the rendered robot.
    """

    gains: Doubles
    shape: Doubles
    key: Doubles
    encode: Bytes
    image: Bytes
    own: Bytes
    xyz: Floats
    ids: Bytes
    normals: Floats
    shaded: Bytes

    def paint(
        self, robot: PointmapSequence, t: int, shaded: Bytes, first_T_now: Doubles | None, same: Bools, out: Bytes
    ) -> None:
        """Colour the robot of one frame (H, W, 3) into `out`; pixels without robot are unchanged.

        Where `same` (H, W), the robot has not moved and keeps the pixels of the image. With `first_T_now`
        (256, 3, 4), by link id, from the camera frame to the same point of the link in frame 0, a moved link wears its
        own pixels where the first image shows them.
        """
        camera = robot.camera
        paint_robot(
            robot.xyz[t], robot.link_ids[t], shaded, np.ascontiguousarray(camera.base_T_camera[:3, :3]), self.gains,
            self.shape, self.key, self.encode, self.image, same,
            np.zeros((0, 3, 4)) if first_T_now is None else first_T_now, camera.K, self.xyz, self.normals, self.ids,
            self.shaded, self.own, out,
        )  # fmt: skip


def spread_colours(image: Bytes, labels: Bytes, reach_px: float) -> tuple[Bytes, Bytes]:
    """Continue the colours of labelled pixels past their borders, which mix them with what is beside them.

    Returns labels (H, W), also of pixels up to `reach_px` from a labelled one, and the image (H, W, 3) with the colour
    of the nearest labelled pixel there.
    """
    spread, picture = labels.copy(), image.copy()
    if not labels.any():
        return spread, picture
    away, nearest = cv2.distanceTransformWithLabels(
        (labels == 0).astype(np.uint8), cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL
    )
    rows, columns = np.nonzero(labels)
    source = np.zeros((int(nearest.max()) + 1, 2), np.int64)
    source[nearest[rows, columns]] = np.stack([rows, columns], 1)
    fill = (away > 0) & (away <= reach_px)
    row, column = source[nearest[fill]].T
    spread[fill], picture[fill] = labels[row, column], image[row, column]
    return spread, picture


def shaded_robot(robot: PointmapSequence) -> Bytes:
    """Return the rendered colours (T, H, W, 3) of the robot, or a grey robot lit from the camera without them."""
    if robot.rgb is not None:
        return robot.rgb
    colours = np.empty((*robot.link_ids.shape, 3), np.uint8)
    shade_frames(robot.xyz, robot.link_ids, colours)
    return colours


def fit_look(
    image: Bytes, robot: PointmapSequence, shaded: Bytes, hidden: Bools, key: Doubles | None
) -> RobotLook | None:
    """Fit the colours to the robot's pixels of the first image; None if too few are visible.

    Args:
        image: (H, W, 3) uint8.
        robot: its frame 0 is that of the image.
        shaded: (H, W, 3) uint8, the rendered robot of frame 0.
        hidden: (H, W) bool, pixels where something is in front of the robot.
        key: (3,) unit direction to the lamp, base frame; None = unknown.
    """
    ids, xyz = robot.link_ids[0], robot.xyz[0]
    normals = np.empty((*ids.shape, 3), np.float32)
    robot_normals(xyz, ids, np.ascontiguousarray(robot.camera.base_T_camera[:3, :3]), normals)
    # Outlines mix colours, and a small calibration error shows there most.
    core = cv2.erode((ids != 0).astype(np.uint8), np.ones((5, 5), np.uint8)) != 0
    used = core & ~hidden & (cv2.erode(ids, np.ones((3, 3))) == cv2.dilate(ids, np.ones((3, 3))))
    where = np.flatnonzero(used)
    if len(where) < _LEAST_PIXELS:
        return None
    where = where[:: max(1, len(where) // _MOST_PIXELS)]
    light = (image.reshape(-1, 3)[where] / 255.0) ** GAMMA
    n = normals.reshape(-1, 3)[where].astype(np.float64)
    lamp = np.zeros(3) if key is None else key
    bright = shaded.reshape(-1, 3)[where].mean(1) / 255.0
    features = np.column_stack([np.ones(len(n)), n, np.maximum(n @ lamp, 0.0), bright])
    links = ids.ravel()[where]
    gains, shape = _alternate(features, light, links)
    spread, own = spread_colours(image, np.where(used, ids, 0).astype(np.uint8), _BORDER_PX)
    sure = np.where(spread == ids, spread, 0).astype(np.uint8)
    return RobotLook(gains, shape, lamp, _encoding(), image, own, xyz, sure, normals, shaded)


def _encoding() -> Bytes:
    return np.rint(255 * np.linspace(0, 1, _LEVELS) ** (1 / GAMMA)).astype(np.uint8)


def _alternate(features: Doubles, light: Doubles, links: NDArray[np.uint8]) -> tuple[Doubles, Doubles]:
    """Fit light (P, 3) = gain of the link x features (P, 6) . shape (6, 3), by turns, robustly."""
    gains, shape = np.ones((256, 3)), np.zeros((6, 3))
    counts = np.bincount(links, minlength=256)
    # What the image does not show (normals that no pixel has) stays close to an even, grey light.
    ridge = np.diag([0.01, 0.5, 0.5, 0.5, 0.1, 0.3]) * 0.04 * len(links)
    for c in range(3):
        gain, weight = np.ones(256), np.ones(len(links))
        level = max(float(light[:, c].mean()), 1e-3)
        for _ in range(_ROUNDS):
            scaled = features * gain[links, None]
            target = light[:, c] / level
            left = scaled.T @ (weight[:, None] * scaled) + ridge
            shape[:, c] = np.linalg.solve(left, scaled.T @ (weight * target))
            base = np.maximum(features @ shape[:, c], 0.02)
            # Links with few pixels keep close to the others.
            above = np.bincount(links, weight * base * target, 256) + _LEAST_LINK * 0.2
            below = np.bincount(links, weight * base * base, 256) + _LEAST_LINK * 0.2
            gain = np.clip(above / below, 0.02, 20.0)
            miss = np.abs(target - gain[links] * base)
            weight = 1.0 / np.maximum(miss / max(1.5 * float(np.median(miss)), 1e-4), 1.0)
        gains[:, c] = level * gain
    seen = np.flatnonzero(counts >= _LEAST_LINK)
    if len(seen):
        # Links are numbered from the base outwards: one that is not visible looks like the nearest that is.
        nearest = seen[np.abs(np.arange(256)[:, None] - seen).argmin(1)]
        gains = gains[nearest]
    return gains, shape


def attached_parts(
    image: Bytes,
    robot: Bools,
    hole: Bools,
    known: Bools,
    above_m: Floats | None,
    depth: Floats | None,
    robot_z: Floats,
) -> Bools:
    """Find parts that hang on the robot but are not in its URDF, such as cables: pixels (H, W) outside of `hole`.

    With depth, they are above the table and about as far from the camera as the robot beside them. Without, they
    differ in colour from what surrounds them.

    Args:
        image: (H, W, 3) uint8.
        robot: (H, W) bool, its pixels.
        hole: (H, W) bool, the robot with a margin.
        known: (H, W) bool, pixels of objects.
        above_m: (H, W) float32, measured height above the table; None without depth.
        depth: (H, W) float32, measured z, metres; None without depth.
        robot_z: (H, W) float32, z of the robot, NaN = none.
    """
    width = robot.shape[1]
    if not robot.any():
        return np.zeros(robot.shape, np.bool_)
    if depth is not None and above_m is not None:
        reach = grow_mask(hole, _PART_REACH * width)
        _, nearest = cv2.distanceTransformWithLabels(
            (~robot).astype(np.uint8), cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL
        )
        beside = np.zeros(int(nearest.max()) + 1, np.float32)
        beside[nearest[robot]] = robot_z[robot]
        with np.errstate(invalid="ignore"):
            part = (above_m > _PART_HEIGHT_M) & (np.abs(depth - beside[nearest]) < _PART_NEAR_M)
    else:
        reach = grow_mask(hole, _COLOUR_REACH * width)
        part = _stands_out(image, reach, known)
    part &= reach & ~known & ~robot
    _, labels = cv2.connectedComponents((part | hole).astype(np.uint8), connectivity=8)
    found = part & ~hole & np.isin(labels, np.unique(labels[hole]))
    count, pieces, sizes, _ = cv2.connectedComponentsWithStats(found.astype(np.uint8), connectivity=8)
    large = np.zeros(count, np.bool_)
    large[1:] = sizes[1:, cv2.CC_STAT_AREA] >= _LEAST_PART * found.size
    return np.asarray(large[pieces])


def _stands_out(image: Bytes, reach: Bools, known: Bools) -> Bools:
    """Return pixels (H, W) within reach that differ from a smooth continuation of the surroundings."""
    scale = max(1, image.shape[1] // 240)
    size = (image.shape[1] // scale, image.shape[0] // scale)
    small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    gap, other = (cv2.resize(m.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST) != 0 for m in (reach, known))
    smooth = cv2.inpaint(small, (gap | other).astype(np.uint8), 3, cv2.INPAINT_TELEA).astype(np.float32)
    smooth = cv2.resize(smooth, image.shape[1::-1], interpolation=cv2.INTER_LINEAR)
    difference = np.abs(image.astype(np.float32) - smooth).mean(-1)
    # A textured table differs from itself: what is common beside the robot does not stand out.
    ring = grow_mask(reach, 0.03 * image.shape[1]) & ~reach & ~known
    texture = np.abs(image.astype(np.float32) - cv2.blur(image, (31, 31))).mean(-1)[ring]
    usual = float(np.percentile(texture, 95)) if texture.size else 0.0
    # A shadow is a darker table of the same colour, not a part.
    level = image.astype(np.float32).mean(-1) / np.maximum(smooth.mean(-1), 1.0)
    hue = np.abs(image.astype(np.float32) - smooth * level[..., None]).mean(-1)
    shadow = (level > _DARKEST_SHADOW) & (level < 1.0) & (hue < 0.5 * _STANDS_OUT)
    return np.asarray((difference > _STANDS_OUT + 1.5 * usual) & ~shadow)
