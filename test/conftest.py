"""Fixtures that every test may use: the two robots that come with the package."""

from __future__ import annotations

import pytest
from hypothesis import settings

from kinema4d_ros.robot import Robot

# A deadline measures the machine, not the code.
settings.register_profile("kinema4d", deadline=None)
settings.load_profile("kinema4d")


@pytest.fixture(scope="session")
def yam() -> Robot:
    """The I2RT YAM with the vendor's meshes."""
    return Robot.load("yam")


@pytest.fixture(scope="session")
def primitive_arm() -> Robot:
    """A six-joint arm of boxes, cylinders and spheres: proves that nothing is YAM-only."""
    return Robot.load("primitive_arm")
