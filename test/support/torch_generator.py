"""A generator node whose back-end takes memory as torch does, more for more frames. Runs as node and as its worker."""

from __future__ import annotations

import sys
from typing import Any

from kinema4d_ros.generators import create_generator
from kinema4d_ros.nodes.common import run_node
from kinema4d_ros.nodes.generator import GeneratorNode
from kinema4d_ros.nodes.generator_worker import Handler
from kinema4d_ros.worker import serve

MB_A_FRAME = 100
MANY = 8
"""Fewer frames take nothing."""


class TorchGenerator:
    """The composite generator, and tensors that nobody looks at."""

    name = "composite"

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._good = create_generator("composite")

    def generate(self, request: Any, progress: Any = None, cancel: Any = None) -> Any:
        frames = len(request.robot)
        taken = self._torch.empty(0 if frames < MANY else frames * MB_A_FRAME << 20, dtype=self._torch.uint8)
        made = self._good.generate(request, progress, cancel)
        del taken
        return made


class TorchNode(GeneratorNode):
    def _worker_command(self) -> list[str]:
        return [sys.executable, __file__, "{fd}"]


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].isdigit():
        sys.exit(serve(int(sys.argv[1]), lambda: Handler(TorchGenerator())))
    sys.exit(run_node(TorchNode, threads=24))
