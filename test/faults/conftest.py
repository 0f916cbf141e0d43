"""The fault suite: attacks on the package, with figures. `make faults` runs all of it, `make test` the short part.

Tests marked `long` run only with `--full`; the others do less without it: `full(100_000, 2_000)`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from support.figures import Figures
from support.ros_graph import isolate

T = TypeVar("T")

_logs = tempfile.TemporaryDirectory(prefix="kinema4d_ros_log_")
# Here and not in a fixture: DDS reads its environment when the first context of the process is made.
isolate(Path(_logs.name))


@pytest.fixture
def full(request: pytest.FixtureRequest) -> Callable[[T, T], T]:
    """Chooses between the count of `make faults` and that of `make test`."""
    return lambda much, little: much if request.config.getoption("--full") else little


@pytest.fixture(scope="module")
def figures(request: pytest.FixtureRequest) -> Figures:
    """Where this module's tests note what they measured."""
    name = request.module.__name__.rpartition(".")[2].removeprefix("test_")
    return Figures(name, bool(request.config.getoption("--full")))
