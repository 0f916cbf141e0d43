"""Conversion of outcomes and their frames to kinema4d_msgs/Outcome and OutcomeFrames and back, validated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kinema4d_msgs.msg import Outcome as OutcomeMsg
from kinema4d_msgs.msg import OutcomeFrames
from kinema4d_ros.core.errors import ErrorCode, PointmapError
from kinema4d_ros.core.outcomes import MAX_OUTCOMES, Outcome, Patches
from kinema4d_ros.io.patches import decode_patches, encode_patches

__all__ = ["alternatives_from_msg", "alternatives_to_msg", "outcomes_from_msg", "outcomes_to_msg"]

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
        )
        for one in outcomes
    ]


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
        events = tuple(zip(message.event_s, message.events, strict=True))
        found.append(Outcome(message.probability, message.label, events))
    return tuple(found)


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
