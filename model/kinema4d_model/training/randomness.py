"""Randomness without state: every sample's numbers follow from the seed, the step and its place in the batch.

A run can stop anywhere and go on with the same numbers, and it does not matter how many processes share a batch.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["batch_indices", "derive", "generator"]


def derive(*parts: int | str) -> int:
    """A seed, 0 to 2^63 - 1, from any numbers and words; other parts give an unrelated one."""
    text = "\x1f".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """A generator on the CPU, so that every device gets the same numbers."""
    return torch.Generator("cpu").manual_seed(derive(*parts))


def batch_indices(count: int, batch: int, step: int, seed: int) -> NDArray[np.int64]:
    """(batch,) int64: which of `count` samples step 0, 1, 2, ... takes.

    All samples come once, in a new order, before any comes again; the last batch of a round is filled from the next.
    """
    places = np.arange(step * batch, (step + 1) * batch, dtype=np.int64)
    rounds, within = np.divmod(places, count)
    orders = {r: np.random.default_rng(derive(seed, "order", int(r))).permutation(count) for r in np.unique(rounds)}
    return np.array([orders[r][i] for r, i in zip(rounds, within, strict=True)], dtype=np.int64)
