"""`check_episode`: checks of one decoded episode, one finding per defect.

Every finding carries the short name of its check.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import cv2
import numpy as np

from kinema4d_model.data.episode import RENDERER, Episode, load_robot, point_bounds
from kinema4d_ros.core.errors import DataError, KinemaError
from kinema4d_ros.core.pointmap import PointmapSequence

__all__ = ["Finding", "check_episode"]

BOUNDS_M = 2e-4
"""Allowed difference between stored bounds and bounds of the stored depth: one and a half depth steps."""
UNIFORM = 0.02
LIMIT_RAD = 0.02
POSE_M = 0.03
STILL_RAD = 0.02
"""The arm is still if no joint moves more than this (radians, or metres for prismatic joints)."""
MOVING_RAD = 0.2
"""A joint motion above this is visible to any camera that sees the arm."""
GREY_LEVELS = 12
"""A pixel counts as changed if its smoothed grey value differs by more than this from the first frame."""
CHANGED, FROZEN = 0.03, 0.001
"""Share of changed pixels above which a video shows motion, and below which it shows none.

Measured on 39 videos of 13 real runs: at least 0.105 while the arm moves; below 0.006 between consecutive frames while
the arm is still, for cameras that are not mounted on it.
"""


class Finding(NamedTuple):
    """A defect: short name and description."""

    name: str
    what: str


def check_episode(episode: Episode, *, redraw: bool = True) -> list[Finding]:
    """Return all defects of a decoded episode; `redraw` renders the condition again and compares it."""
    found = [
        *_times(episode),
        *_pixels(episode),
        *_robot(episode),
        *_bounds(episode),
        *_outcome(episode),
    ]
    if redraw:
        found += _condition(episode)
    return found


def _times(episode: Episode) -> Iterator[Finding]:
    steps = np.diff(episode.times)
    if len(steps) == 0:
        yield Finding("frames", "the episode has a single frame")
    elif np.any(steps <= 0):
        yield Finding("times", f"time does not increase at frame {int(np.argmax(steps <= 0)) + 1}")
    elif steps.max() - steps.min() > UNIFORM * steps.mean():
        yield Finding("times", f"frames are {steps.min():.4f} to {steps.max():.4f} s apart, not uniform")


def _pixels(episode: Episode) -> Iterator[Finding]:
    flat = [t for t, frame in enumerate(episode.rgb) if int(frame.min()) == int(frame.max())]
    if flat:
        yield Finding("rgb", f"frame {flat[0]} is one flat colour" + (f", and {len(flat) - 1} more" * (len(flat) > 1)))
    if episode.ids is None:
        if "ids" not in episode.missing:
            yield Finding("ids", "ids are absent but not listed as missing")
    else:
        beyond = int(episode.ids.max())
        if beyond > len(episode.names):
            yield Finding("ids", f"id {beyond} exceeds the {len(episode.names)} names")
    if not 0 <= episode.link_count <= len(episode.names):
        yield Finding("ids", f"{episode.link_count} links of {len(episode.names)} names")
    if episode.depth_m is None:
        if "depth" not in episode.missing:
            yield Finding("depth", "depth is absent but not listed as missing")
        return
    known = np.isfinite(episode.depth_m)
    empty = np.flatnonzero(~known.any(axis=(1, 2)))
    if len(empty):
        yield Finding("depth", f"frame {int(empty[0])} has no depth at all")
    if np.any(episode.depth_m[known] <= 0):
        yield Finding("depth", "a depth is not positive")
    if episode.ids is not None:
        wrong = (episode.ids > 0) & ~known
        if wrong.any():
            t = int(np.argmax(wrong.any(axis=(1, 2))))
            yield Finding("mask", f"{int(wrong[t].sum())} pixels of frame {t} have an id but no depth")


def _robot(episode: Episode) -> Iterator[Finding]:
    if episode.condition_ids is None:
        if "condition" not in episode.missing:
            yield Finding("condition", "the robot sequence is absent but not listed as missing")
    elif int(episode.condition_ids.max()) > max(episode.link_count, 1):
        yield Finding("condition", f"link id {int(episode.condition_ids.max())} of {episode.link_count} links")
    elif not episode.condition_ids.any():
        yield Finding("condition", "no frame shows the robot")
    for name in ("actions", "joints"):
        if getattr(episode, name) is None and name not in episode.missing:
            yield Finding(name, f"{name} are absent but not listed as missing")
    if not episode.robot:
        return
    try:
        robot = load_robot(episode.robot)
    except KinemaError as error:
        yield Finding("robot", f"'{episode.robot}' cannot be loaded: {error.what}")
        return
    if episode.joint_names != robot.joint_names:
        yield Finding("joints", f"joints {list(episode.joint_names)} are not those of '{episode.robot}'")
        return
    for name in ("actions", "joints"):
        values = getattr(episode, name)
        if values is not None:
            over = np.maximum(values - robot.upper, robot.lower - values)
            t, j = np.unravel_index(int(np.argmax(over)), over.shape)
            if over[t, j] > LIMIT_RAD:
                yield Finding(name, f"{robot.joint_names[int(j)]} is {over[t, j]:.3f} past its limit in frame {t}")
    yield from _motion(episode, [robot.joint_names.index(joint.name) for joint in robot.arm])


def _motion(episode: Episode, arm: list[int]) -> Iterator[Finding]:
    """Check that the arm and the video either both move or both stand still."""
    q = episode.actions if episode.joints is None else episode.joints
    if q is None or not arm or len(episode) < 2:
        return
    moved = float(np.ptp(q[:, arm], axis=0).max())
    if STILL_RAD <= moved <= MOVING_RAD:
        return
    grey = [cv2.GaussianBlur(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), (0, 0), 1.5).astype(int) for frame in episode.rgb]
    changed = max(float((np.abs(frame - grey[0]) > GREY_LEVELS).mean()) for frame in grey)
    if moved < STILL_RAD and changed > CHANGED:
        what = f"no joint of the arm moves more than {moved:.4f}, but {changed:.1%} of the image changes"
        yield Finding("motion", f"{what}: joint names may be mapped wrongly")
    elif moved > MOVING_RAD and changed < FROZEN:
        what = f"the arm moves {moved:.2f} rad, but only {changed:.2%} of the image changes"
        yield Finding("motion", f"{what}: the video may belong to another motion")


def _bounds(episode: Episode) -> Iterator[Finding]:
    if episode.depth_m is None or not np.isfinite(episode.depth_m).any():
        return
    if episode.bounds is None or episode.known_bounds is None:
        yield Finding("bounds", "bounds are absent although the episode has depth")
        return
    points = episode.points()
    away = float(np.abs(point_bounds(points) - episode.bounds).max())
    if away > BOUNDS_M:
        yield Finding("bounds", f"bounds differ by {1000 * away:.1f} mm from those of the points")
    first = point_bounds(points[:1])
    if np.any(episode.known_bounds[0] > first[0] + BOUNDS_M) or np.any(episode.known_bounds[1] < first[1] - BOUNDS_M):
        yield Finding("bounds", "known_bounds do not contain the points of the first frame")


def _outcome(episode: Episode) -> Iterator[Finding]:
    outcome = episode.outcome
    if outcome.success is None and "outcome" not in episode.missing:
        yield Finding("outcome", "success is unknown but outcome is not listed as missing")
    if outcome.target and outcome.objects and outcome.target not in {o.name for o in outcome.objects}:
        yield Finding("outcome", f"target '{outcome.target}' is not one of the objects")
    if not episode.task:
        yield Finding("task", "the task has no name")
    for thing in outcome.objects:
        if not np.all(np.isfinite(thing.base_T_object)):
            yield Finding("outcome", f"a pose of '{thing.name}' is not finite")
        elif episode.ids is not None and episode.depth_m is not None and thing.name in episode.names:
            yield from _object_is_where_it_is_seen(episode, thing.name, thing.base_T_object, max(thing.size))


def _object_is_where_it_is_seen(
    episode: Episode, name: str, base_T_object: np.ndarray[tuple[int, ...], np.dtype[np.float64]], size: float
) -> Iterator[Finding]:
    camera_T_base = episode.camera.camera_T_base
    mask = episode.object_mask(name)
    points = episode.points()
    for t in range(len(episode)):
        if int(mask[t].sum()) < 4:
            continue
        seen = points[t][mask[t]]
        seen = seen[np.isfinite(seen[:, 2])]
        if len(seen) == 0:
            continue
        centre = camera_T_base[:3, :3] @ base_T_object[t, :3, 3] + camera_T_base[:3, 3]
        away = float(np.linalg.norm(np.median(seen, axis=0) - centre))
        if away > size + POSE_M:
            yield Finding("outcome", f"'{name}' is seen {1000 * away:.0f} mm from its pose in frame {t}")
            return


def _condition(episode: Episode) -> Iterator[Finding]:
    if episode.condition is not None or episode.condition_ids is None or not episode.robot or episode.actions is None:
        return
    if episode.versions.get("renderer", RENDERER) != RENDERER:
        yield Finding("condition", f"rendered by {episode.versions['renderer']}, current renderer is {RENDERER}")
    try:
        drawn: PointmapSequence = episode.robot_condition()
    except (KinemaError, DataError) as error:
        yield Finding("condition", f"the robot cannot be rendered: {error.what}")
        return
    wrong = drawn.link_ids != episode.condition_ids
    # CPUs may round a few outline pixels differently; a wrong camera or joint changes hundreds of pixels.
    if wrong.mean() > 1e-4:
        t = int(np.argmax(wrong.mean(axis=(1, 2))))
        yield Finding("condition", f"{int(wrong[t].sum())} pixels of frame {t} differ from a new rendering")
    if episode.known_bounds is not None and drawn.mask.any():
        robot = drawn.bounds()
        if np.any(episode.known_bounds[0] > robot[0] + BOUNDS_M) or np.any(
            episode.known_bounds[1] < robot[1] - BOUNDS_M
        ):
            yield Finding("bounds", "known_bounds do not contain the commanded robot")
