"""How far to trust a judge: its verdicts against the truth, as a confusion matrix.

>>> table = Confusion.of([True, True, False, None], [True, False, False, True])
>>> table.agreement, table.false_success, table.unknown
(0.5, 1, 1)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kinema4d_ros.core.errors import EvaluationError

__all__ = ["Confusion"]


@dataclass(frozen=True)
class Confusion:
    """Counts of verdicts by truth. "Cannot tell" agrees with nothing: it is not counted as a failure.

    Attributes:
        true_success, false_failure, unknown_success: verdicts True, False and None on what truly succeeded.
        false_success, true_failure, unknown_failure: the same on what truly failed.
    """

    true_success: int = 0
    false_failure: int = 0
    unknown_success: int = 0
    false_success: int = 0
    true_failure: int = 0
    unknown_failure: int = 0

    @classmethod
    def of(cls, verdicts: Iterable[bool | None], truths: Iterable[bool]) -> Confusion:
        """Count verdicts against truths, in the same order."""
        judged, known = list(verdicts), list(truths)
        if len(judged) != len(known):
            raise EvaluationError(f"{len(judged)} verdicts for {len(known)} truths", expected="as many")
        pairs = list(zip(judged, known, strict=True))
        return cls(
            true_success=pairs.count((True, True)),
            false_failure=pairs.count((False, True)),
            unknown_success=pairs.count((None, True)),
            false_success=pairs.count((True, False)),
            true_failure=pairs.count((False, False)),
            unknown_failure=pairs.count((None, False)),
        )

    @property
    def total(self) -> int:
        """All of them."""
        return self._successes + self._failures

    @property
    def unknown(self) -> int:
        """Verdicts without an answer."""
        return self.unknown_success + self.unknown_failure

    @property
    def agreement(self) -> float:
        """Share of all verdicts that are right; NaN of none."""
        return _share(self.true_success + self.true_failure, self.total)

    @property
    def false_success_rate(self) -> float:
        """Share of true failures that are judged a success: what makes a policy look better than it is."""
        return _share(self.false_success, self._failures)

    @property
    def false_failure_rate(self) -> float:
        """Share of true successes that are judged a failure."""
        return _share(self.false_failure, self._successes)

    @property
    def _successes(self) -> int:
        return self.true_success + self.false_failure + self.unknown_success

    @property
    def _failures(self) -> int:
        return self.false_success + self.true_failure + self.unknown_failure

    def table(self) -> str:
        """The matrix as Markdown."""
        return "\n".join(
            (
                "| truth | judged success | judged failure | cannot tell |",
                "|---|---|---|---|",
                f"| success | {self.true_success} | {self.false_failure} | {self.unknown_success} |",
                f"| failure | {self.false_success} | {self.true_failure} | {self.unknown_failure} |",
            )
        )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
