"""Fixtures that every test may use: the two robots that come with the package."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

from kinema4d_ros.robot import Robot

# A deadline measures the machine, not the code.
settings.register_profile("kinema4d", deadline=None)
settings.load_profile("kinema4d")


# A shell's background jobs ignore Ctrl+C, those of nohup a closed terminal, and both hand that on: programs that tests
# end that way would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what only `make test-full` runs")
    parser.addoption("--full", action="store_true", help="run the fault suite in full, long tests included")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what this run leaves out; put modules of slow tests first, so that two processes end together."""
    left_out = {"long"} if not config.getoption("--full") else set()
    if config.getoption("--quick"):
        left_out.add("full")
    deselected = [item for item in items if any(item.get_closest_marker(name) for name in left_out)]
    config.hook.pytest_deselected(items=deselected)
    gone = set(deselected)
    kept = [item for item in items if item not in gone]
    slow = {item.path for item in kept if item.get_closest_marker("slow")}
    items[:] = sorted(kept, key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def yam() -> Robot:
    """The I2RT YAM with the vendor's meshes."""
    return Robot.load("yam")


@pytest.fixture(scope="session")
def primitive_arm() -> Robot:
    """A six-joint arm of boxes, cylinders and spheres: proves that nothing is YAM-only."""
    return Robot.load("primitive_arm")
