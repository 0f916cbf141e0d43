"""Generators, which predict rollouts: their protocol, and `load_generator` to create one from a spec.

GenerateRequest (image, exact robot, depth?, commands?) -> Generator.generate -> Rollout
"""

from kinema4d_ros.generators.protocol import (
    Cancel,
    Cancelled,
    CommandedMotion,
    GenerateRequest,
    Generator,
    Progress,
    ReportProgress,
    raise_if_cancelled,
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
    "ReportProgress",
    "best_preset",
    "best_without_draft",
    "load_generator",
    "raise_if_cancelled",
]
