"""Detection of moved objects in a rollout, and their displacement.

    frame 0 against every later frame ─> pixels whose surface has left ─> the object they belong to (points above
    the plane around it) ─> its position in every frame ─> start, end, displacement

Pixels that the robot hides, in frame 0 or in the current frame, are left out on both sides of the comparison, so a
gripper in front of an object does not look like motion.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.previews.report._kernels import changed_frames, flood_object
from kinema4d_ros.previews.report.clearance import hidden_pixels
from kinema4d_ros.previews.report.plane import fit_plane

__all__ = ["Motion", "MovedRegion", "find_motion"]

_ABOVE_PLANE_M = 0.005
_GAP_M = 0.01
_JUMP_M = 0.04
"""Maximum gap between parts of an object on both sides of a finger."""
_RING_PX = 15
_SETTLED_M = 1e-4
_NEW = 0.25
"""A point is new if it changed by this share of the threshold: near its edges an object changes less."""
_MIN_SEEN = 0.15
"""Minimum share of an object's points in view to estimate its position; otherwise it keeps the last one."""

Mask = NDArray[np.bool_]
Points = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MovedRegion:
    """A connected part of the scene that moves.

    Attributes:
        start, end: (3,) float64, its centroid in the first and the last frame, metres, base frame.
        displacement_m: largest distance of the centroid from its start.
        points: number of its pixels in the first frame; 0 = not counted, the generator states its pose.
        first_motion_s: seconds since the first frame at which it is first farther from its start than the threshold.
        track: (T, 3) float64, its centroid in every frame, metres, base frame; (0, 3) = not known.
    """

    start: Points
    end: Points
    displacement_m: float
    points: int
    first_motion_s: float
    track: Points


@dataclass(frozen=True, eq=False)
class Motion:
    """Moved objects, largest displacement first, and the share of visible points with unexplained changes."""

    moved: tuple[MovedRegion, ...]
    unexplained: float


def find_motion(
    rollout: Rollout, *, threshold_m: float = 0.02, min_points: int = 40, hidden: Mask | None = None
) -> Motion:
    """Find moved objects.

    Args:
        rollout: with the scene's points over time.
        threshold_m: smaller changes are noise; also the minimum displacement that is reported.
        min_points: minimum number of connected pixels that change.
        hidden: (T, H, W) pixels that do not show the scene; by default `hidden_pixels(rollout)`.
    """
    hidden = hidden_pixels(rollout) if hidden is None else hidden
    xyz = np.ascontiguousarray(rollout.xyz)
    went = np.zeros(hidden.shape[1:], np.int32)
    changed = np.zeros(hidden.shape[1:], np.int32)
    changed_frames(xyz, hidden, threshold_m, changed, went)
    if not changed.any():
        return Motion((), 0.0)
    cores = cv2.morphologyEx((went > 0).astype(np.uint8), cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
    count, labels = cv2.connectedComponents(cores, connectivity=8)
    taken: Mask = np.zeros(went.shape, np.bool_)
    regions: list[MovedRegion] = []
    sizes = np.bincount(labels.ravel(), minlength=count)
    for label in sorted(range(1, count), key=lambda k: -sizes[k]):
        core: Mask = labels == label
        if sizes[label] < min_points or taken[core].mean() > 0.5:
            continue
        thing = _object(xyz[0], core, hidden[0], taken)
        if thing.body.sum() < min_points:
            continue
        taken |= thing.body
        # The object can only arrive at pixels that change: process only this part of the images.
        part = _window((changed > 0) | thing.body)
        height, width = thing.body[part].shape
        camera = rollout.camera.cropped(part[1].start, part[0].start, width, height)
        shifts = _follow(
            camera,
            xyz[:, part[0], part[1]],
            hidden[:, part[0], part[1]],
            _Object(thing.body[part], thing.plane),
            threshold_m,
        )
        start = xyz[0][thing.body].mean(axis=0, dtype=np.float64)
        region = _region(rollout, start, shifts, int(thing.body.sum()), threshold_m)
        if region is not None:
            regions.append(region)
    regions.sort(key=lambda region: -region.displacement_m)
    visible = int((~hidden[0] & np.isfinite(xyz[0, ..., 2])).sum())
    rest = int(((went > 0) & ~taken).sum())
    return Motion(tuple(regions), rest / visible if visible else 0.0)


@dataclass(frozen=True, eq=False)
class _Object:
    """An object of frame 0: its pixels, and its supporting plane (4,) with n p + d > 0 above it, or None."""

    body: Mask
    plane: Points | None


def _object(xyz: NDArray[np.float32], core: Mask, hidden: Mask, taken: Mask) -> _Object:
    """Find the whole object of frame 0 to which moved pixels belong."""
    finite = ~hidden & ~taken & np.isfinite(xyz[..., 2])
    kernel = np.ones((2 * _RING_PX + 1, 2 * _RING_PX + 1), np.uint8)
    ring = (cv2.dilate(core.astype(np.uint8), kernel) != 0) & finite & ~core
    plane = fit_plane(xyz[ring].astype(np.float64))
    body: Mask = core & finite
    if plane is None:
        return _Object(body, None)
    above = finite & _above(xyz, plane)
    flood_object(xyz, above, hidden, _GAP_M, _JUMP_M, body)
    standing: Mask = body & above
    return _Object(standing if standing.any() else body, plane)


def _above(xyz: NDArray[np.float32], plane: Points) -> Mask:
    height: NDArray[np.float32] = xyz @ plane[:3].astype(np.float32) + np.float32(plane[3])
    return np.asarray(height > _ABOVE_PLANE_M)


def _window(mask: Mask) -> tuple[slice, slice]:
    """Return the rows and columns between the first and the last True."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def _follow(
    camera: PinholeCamera, xyz: NDArray[np.float32], hidden: Mask, thing: _Object, threshold_m: float
) -> NDArray[np.float64]:
    """Track the displacement (T, 3) of the object, metres, camera frame.

    In each frame the centroid of new or unchanged object points is compared with the centroid of those of the object's
    own points that would be in view; these depend on the displacement, hence the iteration.
    """
    points = xyz[0][thing.body].astype(np.float64)
    centre = points.mean(axis=0)
    reach = float(np.linalg.norm(points - centre, axis=1).max()) + 2 * threshold_m
    known = ~hidden[0] & np.isfinite(xyz[0, ..., 2])
    shifts = np.zeros((len(xyz), 3))
    for t in range(1, len(xyz)):
        shifts[t] = shifts[t - 1]
        in_view = known & ~hidden[t] & np.isfinite(xyz[t, ..., 2])
        difference = xyz[t] - xyz[0]
        new = in_view & ((difference * difference).sum(-1) > (_NEW * threshold_m) ** 2)
        here = new | (in_view & thing.body)
        if thing.plane is None:
            # Without a plane, a surface farther away than before counts as background.
            here &= ~(new & (difference[..., 2] > 0))
        else:
            here &= _above(xyz[t], thing.plane)
        shifts[t] = _settle(camera, points, in_view, xyz[t][here].astype(np.float64), shifts[t - 1], reach)
    return shifts


def _settle(
    camera: PinholeCamera, points: Points, in_view: Mask, found: Points, shift: Points, reach: float
) -> NDArray[np.float64]:
    """Find the shift (3,) at which the object's visible points and the found points have the same centroid."""
    enough = _MIN_SEEN * len(points)
    centre = points.mean(axis=0)
    answer = shift
    if (np.linalg.norm(found - (centre + shift), axis=1) <= reach).sum() < enough <= len(found):
        # It moved farther in one frame than its size: start from the median of the new points.
        shift = np.median(found, axis=0) - centre
    for _ in range(20):
        uv = camera.project(points + shift)
        with np.errstate(invalid="ignore"):
            u, v = np.floor(uv[:, 0]), np.floor(uv[:, 1])
            inside = (u >= 0) & (v >= 0) & (u < in_view.shape[1]) & (v < in_view.shape[0])
        seen = np.zeros(len(points), np.bool_)
        seen[inside] = in_view[v[inside].astype(np.int64), u[inside].astype(np.int64)]
        near = found[np.linalg.norm(found - (centre + shift), axis=1) <= reach]
        if seen.sum() < enough or len(near) < enough:
            break
        step = near.mean(axis=0) - (points[seen].mean(axis=0) + shift)
        answer = shift = shift + step
        if np.linalg.norm(step) < _SETTLED_M:
            break
    return np.asarray(answer, dtype=np.float64)


def _region(rollout: Rollout, start: Points, shifts: Points, points: int, threshold_m: float) -> MovedRegion | None:
    """Build the region of an object with centroid `start` (3,) and `shifts` (T, 3), camera frame; None = at rest."""
    distance = np.linalg.norm(shifts, axis=1)
    if not distance.max() > threshold_m:
        return None
    track = apply(rollout.camera.base_T_camera, start + shifts)
    first = int(np.argmax(distance > threshold_m))
    return MovedRegion(
        start=track[0],
        end=track[-1],
        displacement_m=float(distance.max()),
        points=points,
        first_motion_s=float(rollout.times[first] - rollout.times[0]),
        track=track,
    )
