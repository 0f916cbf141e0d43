"""One rollout on several GPUs: the tokens are split, attention exchanges heads (Ulysses), by diffusers' own engine.

Start one process per GPU with `torchrun`; every process runs the same code and gets the same result.
"""

from __future__ import annotations

import os
from typing import Any

from kinema4d_ros.core.errors import SetupError

__all__ = ["enable_context_parallel"]


def enable_context_parallel(transformer: Any, degree: int) -> None:
    """Split the tokens over `degree` processes of a torchrun group."""
    import torch

    if not torch.cuda.is_available() or int(os.environ.get("WORLD_SIZE", "1")) != degree:
        raise SetupError(
            f"context_parallel {degree} needs {degree} processes with a GPU each; "
            f"here are {os.environ.get('WORLD_SIZE', '1')} and {torch.cuda.device_count()} GPUs",
            expected=f"`torchrun --nproc-per-node {degree}` on a machine with {degree} GPUs",
            hint="context_parallel: 1",
        )
    from diffusers import ContextParallelConfig

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    transformer.enable_parallelism(config=ContextParallelConfig(ulysses_degree=degree))
