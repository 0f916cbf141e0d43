"""One call per frame on all cores, with threads that end with the call: a process may fork before or after."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["map_frames"]

A = TypeVar("A")
B = TypeVar("B")


def map_frames(work: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """`work` of every item, in order; pays off for work that releases the interpreter lock."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(work, items))
