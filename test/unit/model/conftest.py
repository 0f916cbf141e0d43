"""A tiny bundle for the tests of kinema4d_model, which are skipped where its packages are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="needs torch: make setup TORCH=cpu")
pytest.importorskip("diffusers", reason="needs the packages of requirements/model.in")

import torch

from kinema4d_model.bundle import ModelBundle
from kinema4d_model.preset import Preset, load_preset


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
