"""World models by name: "composite", a preset of the diffusion model, or a generator node of a running graph."""

from __future__ import annotations

from kinema4d_ros.generators import create_generator
from kinema4d_ros.generators.protocol import Generator

__all__ = ["make_generator"]


def make_generator(name: str, checkpoint: str = "") -> Generator:
    """The generator of a name.

    Args:
        name: "composite"; "ros" or "ros:NAMESPACE", the node there; otherwise a preset.
        checkpoint: a folder with weights; by default the preset's own.
    """
    if name == "composite":
        return create_generator("composite")
    kind, _, namespace = name.partition(":")
    if kind == "ros":
        return create_generator("ros", namespace=namespace)
    return create_generator("diffusion", preset=name, checkpoint=checkpoint)
