"""Conversion of outcomes and their frames to kinema4d_msgs/Outcome and OutcomeFrames and back, validated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from geometry_msgs.msg import Point
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker, MarkerArray

from kinema4d_msgs.msg import MovedRegion, OutcomeFrames
from kinema4d_msgs.msg import Outcome as OutcomeMsg
from kinema4d_ros.core.errors import ErrorCode, PointmapError
from kinema4d_ros.core.outcomes import MAX_OBJECTS, MAX_OUTCOMES, ObjectMotion, Outcome, Patches, outcome_lines
from kinema4d_ros.io.patches import decode_patches, encode_patches
from kinema4d_ros.ros.messages.stamps import header

__all__ = [
    "alternatives_from_msg",
    "alternatives_to_msg",
    "outcomes_from_msg",
    "outcomes_to_markers",
    "outcomes_to_msg",
]

TEXT_M, TOP_M = 0.03, 0.9
"""Height of the letters in RViz, and of the first line above the robot's base: above an arm that reaches 0.7 m."""

ALTERNATIVES = 2
"""All alternatives of a rollout together have at most this many times the pixels of its own frames."""


def outcomes_to_msg(outcomes: Sequence[Outcome], start_s: float = 0.0) -> list[Any]:
    """Convert outcomes to kinema4d_msgs/Outcome; `start_s` is the time of the first frame."""
    return [
        OutcomeMsg(
            probability=one.probability,
            label=one.label,
            event_s=[moment - start_s for moment, _ in one.events],
            events=[text for _, text in one.events],
            objects_known=one.objects is not None,
            object_names=[moved.name for moved in one.objects or ()],
            objects=[_motion_to_msg(moved, start_s) for moved in one.objects or ()],
        )
        for one in outcomes
    ]


def _motion_to_msg(moved: ObjectMotion, start_s: float) -> Any:
    first = math.nan if moved.first_motion_s is None else moved.first_motion_s - start_s
    start, end = (Point(x=x, y=y, z=z) for x, y, z in (moved.start, moved.end))
    return MovedRegion(start=start, end=end, displacement_m=moved.displacement_m, first_motion_s=first)


def _motion_from_msg(name: str, message: Any) -> ObjectMotion:
    start, end = ((point.x, point.y, point.z) for point in (message.start, message.end))
    first = None if math.isnan(message.first_motion_s) else message.first_motion_s
    return ObjectMotion(name, start, end, message.displacement_m, first)


def outcomes_from_msg(messages: Sequence[Any]) -> tuple[Outcome, ...]:
    """Convert kinema4d_msgs/Outcome messages; times count from the first frame.

    Raises:
        RolloutError: a probability, label or event is invalid.
        PointmapError: WIRE_CORRUPT, too many outcomes, or times and texts that do not match.
    """
    if len(messages) > MAX_OUTCOMES:
        raise _corrupt(f"{len(messages)} outcomes", f"at most {MAX_OUTCOMES}")
    found = []
    for message in messages:
        if len(message.event_s) != len(message.events):
            raise _corrupt(f"{len(message.event_s)} times of {len(message.events)} events", "one for each event")
        named, moved = len(message.object_names), len(message.objects)
        if named != moved or named > MAX_OBJECTS or (moved and not message.objects_known):
            raise _corrupt(f"{moved} motions of {named} objects", f"one for each of at most {MAX_OBJECTS}, or none")
        events = tuple(zip(message.event_s, message.events, strict=True))
        objects = None
        if message.objects_known:
            objects = tuple(map(_motion_from_msg, message.object_names, message.objects))
        found.append(Outcome(message.probability, message.label, events, objects))
    return tuple(found)


def outcomes_to_markers(message: Any, shown: int) -> Any:
    """Convert the outcomes of a kinema4d_msgs/Rollout to text markers above the robot; outcome `shown` is marked.

    The id of a marker is the number of its outcome; what is not known, or cannot be told, comes last.
    """
    head = header(message.header.stamp, message.base_frame)
    markers = [Marker(header=head, action=Marker.DELETEALL)]
    lines = [*outcome_lines(message.outcomes), *(f"cannot tell: {text}" for text in message.unknowns)]
    for number, line in enumerate(lines):
        chosen = number == shown and number < len(message.outcomes)
        marker = Marker(header=head, ns="outcomes", id=number, type=Marker.TEXT_VIEW_FACING, action=Marker.ADD)
        marker.text = f"> {line}" if chosen else line
        marker.color = ColorRGBA(r=0.10, g=0.45, b=0.95, a=1.0) if chosen else ColorRGBA(r=0.6, g=0.6, b=0.6, a=0.9)
        marker.scale.z = TEXT_M
        marker.pose.position.z = TOP_M - 1.4 * TEXT_M * number
        marker.pose.orientation.w = 1.0
        markers.append(marker)
    return MarkerArray(markers=markers)


def alternatives_to_msg(alternatives: Sequence[Patches], shape: tuple[int, int, int]) -> list[Any]:
    """Convert the frames of the outcomes after the first to kinema4d_msgs/OutcomeFrames; `shape` is (T, H, W)."""
    _require_affordable(sum(len(patch) for patches in alternatives for patch in patches), shape)
    messages = []
    for patches in alternatives:
        message = OutcomeFrames()
        message.patches.frombytes(encode_patches(patches))
        messages.append(message)
    return messages


def alternatives_from_msg(messages: Sequence[Any], shape: tuple[int, int, int]) -> tuple[Patches, ...]:
    """Decode kinema4d_msgs/OutcomeFrames messages of a rollout of shape (T, H, W); their pixels are limited in all."""
    if len(messages) >= MAX_OUTCOMES:
        raise _corrupt(f"frames of {len(messages)} alternatives", f"at most {MAX_OUTCOMES - 1}")
    frames, height, width = shape
    left = _most(shape)
    found = []
    for message in messages:
        data = bytes(memoryview(message.patches))
        patches = decode_patches(data, frames=frames, height=height, width=width, most_pixels=left)
        left -= sum(map(len, patches))
        found.append(patches)
    return tuple(found)


def _most(shape: tuple[int, int, int]) -> int:
    frames, height, width = shape
    return ALTERNATIVES * frames * height * width


def _require_affordable(pixels: int, shape: tuple[int, int, int]) -> None:
    if pixels > _most(shape):
        raise PointmapError(
            f"the alternatives of a rollout have {pixels} pixels",
            expected=f"at most {_most(shape)}, {ALTERNATIVES} times its own frames",
            hint="state fewer outcomes, or only the pixels in which they differ",
        )


def _corrupt(what: str, expected: str) -> PointmapError:
    return PointmapError(f"a rollout has {what}", expected=expected, code=ErrorCode.WIRE_CORRUPT)
