"""A generator node that works as long as a file says, in seconds: a test changes the file while it runs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from kinema4d_ros.generators import Progress, create_generator, raise_if_cancelled
from kinema4d_ros.nodes.common import run_node
from kinema4d_ros.nodes.generator import GeneratorNode
from kinema4d_ros.nodes.generator_worker import Handler
from kinema4d_ros.worker import serve

VARIABLE = "KINEMA4D_TEST_SECONDS"
"""Names the file; without it the work takes no time."""

STEP_S = 0.05


class SlowGenerator:
    """The composite generator, after a while in which it reports its steps and can be cancelled."""

    name = "composite"

    def __init__(self) -> None:
        self._good = create_generator("composite")

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


class SlowNode(GeneratorNode):
    def _worker_command(self) -> list[str]:
        return [sys.executable, __file__, "{fd}"]


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].isdigit():
        sys.exit(serve(int(sys.argv[1]), lambda: Handler(SlowGenerator())))
    sys.exit(run_node(SlowNode, threads=24))
