"""Steps that reuse what the blocks said before: diffusers' first-block cache, counted.

While the first block's output changes by less than `threshold` (mean absolute change, relative), the other
blocks are skipped and their last contribution is added again. Threshold 0 never skips.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from kinema4d_ros.core.errors import ErrorCode, GeneratorError

__all__ = ["StepCache"]


class StepCache:
    """A cache for one rollout of one network.

    Attributes:
        computed: passes through all blocks.
        skipped: passes that ended after the first block.
    """

    def __init__(self, network: Any, threshold: float | None) -> None:
        """Prepare; `threshold` None is no cache at all."""
        if threshold is not None and not 0.0 <= threshold < 1.0:
            raise GeneratorError(
                f"the cache's threshold is {threshold}",
                expected="0 (never skips) to 1",
                code=ErrorCode.GENERATOR_BAD_REQUEST,
            )
        self._network = network
        self._threshold = threshold
        self.computed = 0
        self.skipped = 0

    @contextmanager
    def active(self) -> Iterator[StepCache]:
        """Hooks on the network for the time of a rollout, with nothing remembered from the one before."""
        if self._threshold is None:
            yield self
            return
        from diffusers import FirstBlockCacheConfig

        # Enabled and disabled per rollout: resetting alone would keep the last rollout's first-block residual.
        self._network.enable_cache(FirstBlockCacheConfig(threshold=self._threshold))
        counter = self._network.blocks[-1].attn1.register_forward_hook(self._count)
        try:
            yield self
        finally:
            counter.remove()
            self._network.disable_cache()

    def for_pass(self, name: str) -> AbstractContextManager[Any]:
        """Around one pass; each of the passes of a step has a memory of its own."""
        if self._threshold is None:
            return nullcontext()
        return self._pass(name)

    @contextmanager
    def _pass(self, name: str) -> Iterator[None]:
        before = self.computed
        with self._network.cache_context(name):
            yield
        self.skipped += self.computed == before

    def _count(self, *_: Any) -> None:
        self.computed += 1
