"""Processes of a cluster that share an evaluation: which part is whose, and which of them have come to their end.

ranks/<rank>.json     what a rank other than 0 last said of itself: running or ended
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.evaluation.errors import EvaluationError
from kinema4d_ros.io.files import replacing_file

__all__ = ["Ranks", "Share"]


@dataclass(frozen=True)
class Share:
    """Which part of the trials is ours: every world-th table, beginning with our rank."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        """Refuse a rank that is not in its world."""
        if not 0 <= self.rank < self.world:
            raise EvaluationError(
                f"rank {self.rank} of {self.world}", expected="0 to world - 1", code=ErrorCode.ARGUMENT_INVALID
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Share:
        """As a launcher says, or all of it."""
        try:
            return cls(int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1")))
        except ValueError:
            raise EvaluationError(
                f"RANK is {environment.get('RANK')!r}, WORLD_SIZE is {environment.get('WORLD_SIZE')!r}",
                expected="two numbers",
                code=ErrorCode.ARGUMENT_INVALID,
            ) from None


class Ranks:
    """What ranks say of themselves in a folder that they share.

    Args:
        folder: of the evaluation.
        share: of this process.
    """

    def __init__(self, folder: Path, share: Share) -> None:
        self._folder, self._share = folder / "ranks", share

    def begin(self) -> None:
        """Rank 0 forgets what was said in an earlier call; the others say that they run."""
        if self._share.world == 1:
            return
        if self._share.rank == 0:
            for path in self._folder.glob("*.json"):
                with suppress(OSError):
                    path.unlink()
        else:
            self.say("running")

    def say(self, state: str) -> None:
        """Said again after every trial: rank 0 may have begun later than we did, and forgotten it."""
        if self._share.rank:
            with replacing_file(self._folder / f"{self._share.rank}.json") as temporary:
                temporary.write_text(json.dumps({"state": state, "pid": os.getpid()}) + "\n")

    def state(self, rank: int) -> str:
        """What a rank last said; "" = nothing."""
        with suppress(OSError, ValueError):
            document = json.loads((self._folder / f"{rank}.json").read_text())
            return str(document.get("state", "")) if isinstance(document, dict) else ""
        return ""
