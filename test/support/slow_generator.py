"""A generator whose duration in seconds is read from a file, which a test can change at run time. See `SPEC`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from kinema4d_ros.generators import Progress, load_generator, raise_if_cancelled

VARIABLE = "KINEMA4D_TEST_SECONDS"
"""Environment variable with the path of the file; without it the generator does not wait."""

STEP_S = 0.05

SPEC = "support.slow_generator:SlowGenerator"


class SlowGenerator:
    """The composite generator after a delay, during which it reports steps and can be cancelled."""

    name = "composite"

    def __init__(self) -> None:
        self._good = load_generator("composite")

    def generate(self, request: Any, progress: Any = None, cancel: Any = None) -> Any:
        file = os.environ.get(VARIABLE, "")
        steps = round(float(Path(file).read_text()) / STEP_S) if file and Path(file).exists() else 0
        for step in range(steps):
            now = Progress("denoise", step, steps)
            raise_if_cancelled(cancel, now)
            if progress is not None:
                progress(now)
            time.sleep(STEP_S)
        return self._good.generate(request, progress, cancel)
