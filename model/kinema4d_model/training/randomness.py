"""Stateless randomness: random numbers depend only on the seed, the step and the place in the batch.

A resumed run therefore gets the same numbers, independent of how many processes share a batch.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["batch_indices", "derive", "generator"]


def derive(*parts: int | str) -> int:
    """Derive a seed, 0 to 2^63 - 1, from numbers and strings by hashing."""
    text = "\x1f".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """Make a generator on the CPU, so that every device gets the same numbers."""
    return torch.Generator("cpu").manual_seed(derive(*parts))


def batch_indices(count: int, batch: int, step: int, seed: int) -> NDArray[np.int64]:
    """Return (batch,) int64: the samples of `count` that step 0, 1, 2, ... uses.

    Each epoch is a new permutation; the last batch of an epoch is filled from the next one.
    """
    places = np.arange(step * batch, (step + 1) * batch, dtype=np.int64)
    rounds, within = np.divmod(places, count)
    orders = {r: np.random.default_rng(derive(seed, "order", int(r))).permutation(count) for r in np.unique(rounds)}
    return np.array([orders[r][i] for r, i in zip(rounds, within, strict=True)], dtype=np.int64)
