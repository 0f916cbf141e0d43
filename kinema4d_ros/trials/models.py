"""World models by name: "composite", or a preset of the diffusion model."""

from __future__ import annotations

from kinema4d_ros.generators import create_generator
from kinema4d_ros.generators.protocol import Generator

__all__ = ["make_generator"]


def make_generator(name: str, checkpoint: str = "") -> Generator:
    """The generator of a name.

    Args:
        name: "composite", otherwise a preset.
        checkpoint: a folder with weights; by default the preset's own.
    """
    if name == "composite":
        return create_generator("composite")
    return create_generator("diffusion", preset=name, checkpoint=checkpoint)
