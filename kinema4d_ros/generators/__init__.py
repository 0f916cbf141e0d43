"""What predicts the world: one protocol, generators by name.

GenerateRequest (image, exact robot, depth?) -> Generator.generate -> Rollout
"""

from kinema4d_ros.generators.protocol import (
    Cancel,
    Cancelled,
    GenerateRequest,
    Generator,
    Progress,
    ReportProgress,
    raise_if_cancelled,
)
from kinema4d_ros.generators.registry import best_preset, create_generator, generator_names, register_generator

__all__ = [
    "Cancel",
    "Cancelled",
    "GenerateRequest",
    "Generator",
    "Progress",
    "ReportProgress",
    "best_preset",
    "create_generator",
    "generator_names",
    "raise_if_cancelled",
    "register_generator",
]
