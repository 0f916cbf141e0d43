"""Generators, which predict rollouts: their protocol, and `load_generator` to create one from a spec.

GenerateRequest (image, exact robot, depth?, commands?) -> Generator.generate -> Rollout
stream_frames(generator, request, receive) -> the same rollout, with its frames as soon as they exist
"""

from kinema4d_ros.generators.protocol import (
    Cancel,
    Cancelled,
    CommandedMotion,
    GenerateRequest,
    Generator,
    Progress,
    ReadyFrames,
    ReceiveFrames,
    ReportProgress,
    StreamingGenerator,
    raise_if_cancelled,
    stream_frames,
)
from kinema4d_ros.generators.spec import GeneratorSpec, best_preset, best_without_draft, load_generator

__all__ = [
    "Cancel",
    "Cancelled",
    "CommandedMotion",
    "GenerateRequest",
    "Generator",
    "GeneratorSpec",
    "Progress",
    "ReadyFrames",
    "ReceiveFrames",
    "ReportProgress",
    "StreamingGenerator",
    "best_preset",
    "best_without_draft",
    "load_generator",
    "raise_if_cancelled",
    "stream_frames",
]
