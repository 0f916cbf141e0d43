"""A tiny bundle for the tests of kinema4d_model, which are skipped, each file by name, where its packages are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

try:
    import torch

    from kinema4d_model.checkpoints.bundle import ModelBundle
    from kinema4d_model.preset import Preset, load_preset
except ImportError as error:
    if (error.name or "kinema4d").startswith("kinema4d"):
        raise  # ours, and broken
    MISSING = f"needs {error.name}: make setup TORCH=cpu"

    class SkippedModule(pytest.Module):
        """A test file that cannot even be imported."""

        def collect(self) -> Any:
            """Skip it with the reason."""
            pytest.skip(MISSING, allow_module_level=True)

    def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
        """Put the stand-in in the place of every test file of this folder."""
        return SkippedModule.from_parent(parent, path=module_path)

else:

    @pytest.fixture(scope="session")
    def tiny() -> Preset:
        return load_preset("tiny")

    @pytest.fixture
    def tiny_bundle(tiny: Preset) -> ModelBundle:
        """A new bundle every time: tests change weights."""
        return ModelBundle.from_preset(tiny, seed=1)

    @pytest.fixture(autouse=True)
    def _one_thread() -> Iterator[None]:
        """Two workers share two cores: more threads than that only wait for each other."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)
        # Processor state: a test that leaves it changed breaks other tests.
        assert np.array([5e-324])[0] * 0.5e1 > 0, "small numbers are flushed to zero after this test"
