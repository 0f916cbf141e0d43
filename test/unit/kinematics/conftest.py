"""The random path suite of the benchmark, shared with the tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def ik_suite() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / "bench" / "ik_suite.py"
    spec = importlib.util.spec_from_file_location("ik_suite", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ik_suite"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module
