"""A generator that fails in the way given by the goal's seed; loaded by the generator node with `SPEC`."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.generators import Progress, load_generator, raise_if_cancelled

WORK, MEMORY, BUG, EXIT, SEGFAULT, HANG, SLOW = range(7)
REFUSE = 10_000
"""For larger seeds the back-end refuses with the error code `seed` minus this."""

SPEC = "support.faulty_generator:FaultyGenerator"


class FaultyGenerator:
    """The composite generator, unless the seed selects a fault."""

    name = "composite"

    def __init__(self) -> None:
        self._good = load_generator("composite")

    def generate(self, request: Any, progress: Any = None, cancel: Any = None) -> Any:
        if request.seed >= REFUSE:
            raise KinemaError("the back-end was told to refuse", code=ErrorCode(request.seed - REFUSE))
        if request.seed == MEMORY:
            raise MemoryError("injected")
        if request.seed == BUG:
            raise ZeroDivisionError("injected")
        if request.seed == EXIT:
            os._exit(5)
        if request.seed == SEGFAULT:
            ctypes.string_at(0)
        if request.seed == HANG:
            time.sleep(3600)
        if request.seed == SLOW:
            for step in range(1000):
                raise_if_cancelled(cancel, Progress("denoise", step, 1000))
                if progress is not None:
                    progress(Progress("denoise", step, 1000))
                time.sleep(0.02)
        return self._good.generate(request, progress, cancel)
