"""One lab and one camera shared by all tests of this folder: packing and compiling take longer than the tests."""

from __future__ import annotations

import pytest

from kinema4d_ros.kinematics import Kinematics, choose_kinematics
from kinema4d_ros.lab import LabCamera, LabSimulation
from kinema4d_ros.robot import Robot


@pytest.fixture(scope="session")
def shared_lab(yam: Robot) -> LabSimulation:
    """A lab shared by all tests; each test resets it first."""
    return LabSimulation("canonical", 0, yam)


@pytest.fixture(scope="session")
def lab_camera(shared_lab: LabSimulation) -> LabCamera:
    return LabCamera.of(shared_lab)


@pytest.fixture(scope="session")
def yam_kinematics(yam: Robot) -> Kinematics:
    return choose_kinematics(yam)
