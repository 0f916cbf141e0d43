"""One trial and what became of it: in the lab, and in each world model. Plain numbers that go to JSON and back.

A trial is a policy on a table: (policy, scenario, seed). The lab's outcome is the truth; a model's outcome is what a
judge says of its prediction. Whatever went wrong is part of the record, never an end of the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from kinema4d_ros.core.errors import ErrorCode, EvaluationError, KinemaError
from kinema4d_ros.evaluation.judges import Verdict

__all__ = ["LabOutcome", "Mode", "ModelOutcome", "Trial", "TrialRecord", "failure_text", "is_outage"]

Mode = Literal["open", "closed"]
"""open: the actions of the lab's run, predicted in one piece. closed: the policy acts on predicted pictures."""

WORKER_KILLED = "WORKER_KILLED"
"""Stands where an error has its code: a signal ended the process, such as the kernel's when memory is short."""

OUTAGES = frozenset(
    {
        *(
            code.name
            for code in (
                ErrorCode.SETUP_MISSING,
                ErrorCode.BACKEND_MISSING,
                ErrorCode.FILE_MISSING,
                ErrorCode.FILE_NOT_WRITABLE,
                ErrorCode.GENERATOR_BUSY,
                ErrorCode.GENERATOR_OUT_OF_MEMORY,
                ErrorCode.GENERATOR_TIMEOUT,
                ErrorCode.GENERATOR_UNAVAILABLE,
                ErrorCode.GRAPH_UNAVAILABLE,
                ErrorCode.POLICY_UNAVAILABLE,
            )
        ),
        WORKER_KILLED,
        "MemoryError",
        "OutOfMemoryError",
    }
)
"""Codes of what says nothing about a policy or a model: a machine, a node or a file was not there."""


@dataclass(frozen=True, order=True)
class Trial:
    """Which policy on which table.

    >>> Trial("expert", "canonical", 7).key
    'expert|canonical|7'
    """

    policy: str
    scenario: str
    seed: int

    @property
    def key(self) -> str:
        """Unique text."""
        return f"{self.policy}|{self.scenario}|{self.seed}"


@dataclass(frozen=True)
class LabOutcome:
    """What happened in the lab.

    Attributes:
        success: the task's goal held at the end; None = the run did not come to an end, see `error`.
        progress: 0 to 1.
        value_m: the measured number, such as the height of a lift; NaN = unknown.
        motion_s: how long the arm moved.
        chunks: that the policy was asked for.
        seconds: that the run took to compute.
        error: "" or what went wrong, with its code.
    """

    success: bool | None
    progress: float = 0.0
    value_m: float = math.nan
    motion_s: float = 0.0
    chunks: int = 0
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class ModelOutcome:
    """What a world model says would happen.

    Attributes:
        success: by the judge; None = it cannot tell, or there is no rollout (see `error`).
        progress, confidence, value_m, deciding_frame, reason: the judge's, see `Verdict`.
        chunks: that the policy was asked for; 0 in open loop.
        seconds: that prediction and verdict took.
        error: "" or what went wrong, with its code.
        picture: a file name under the evaluation's folder, or "".
        made_by: generator, preset and weights (the first digits of their sha256) of the rollout; "" = not known.
    """

    success: bool | None
    progress: float = 0.0
    confidence: float = 0.0
    value_m: float = math.nan
    deciding_frame: int = 0
    reason: str = ""
    chunks: int = 0
    seconds: float = 0.0
    error: str = ""
    picture: str = ""
    made_by: str = ""

    @classmethod
    def of(
        cls, verdict: Verdict, seconds: float, chunks: int = 0, picture: str = "", made_by: str = ""
    ) -> ModelOutcome:
        """From a judge's verdict."""
        return cls(
            verdict.success,
            round(float(verdict.progress), 4),
            round(float(verdict.confidence), 4),
            round(float(verdict.value_m), 5),
            int(verdict.deciding_frame),
            verdict.reason,
            chunks,
            round(seconds, 3),
            picture=picture,
            made_by=made_by,
        )


@dataclass(frozen=True)
class TrialRecord:
    """A trial with all its outcomes; `models` by the model's label, such as "nano/open"."""

    trial: Trial
    lab: LabOutcome
    models: Mapping[str, ModelOutcome] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain types; NaN becomes null."""
        document = asdict(self)
        document["models"] = {name: asdict(outcome) for name, outcome in self.models.items()}
        return {key: _plain(value) for key, value in document.items()}

    @classmethod
    def from_json(cls, document: Any) -> TrialRecord:
        """The record of such a document.

        Raises:
            EvaluationError: it is none.
        """
        try:
            trial = Trial(**document["trial"])
            lab = LabOutcome(**_numbers(document["lab"]))
            models = {str(name): ModelOutcome(**_numbers(one)) for name, one in document["models"].items()}
            if not (isinstance(trial.policy, str) and isinstance(trial.scenario, str) and isinstance(trial.seed, int)):
                raise TypeError(f"trial {trial}")
        except (KeyError, TypeError, AttributeError) as error:
            raise EvaluationError(
                f"no trial's record: {error}", expected="trial, lab and models", code=ErrorCode.FILE_MALFORMED
            ) from None
        return cls(trial, lab, models)


def failure_text(error: BaseException) -> str:
    """One line with the error's code, or its type if nobody raised it on purpose."""
    return str(error) if isinstance(error, KinemaError) else f"[{type(error).__name__}] {error}"


def is_outage(error: str) -> bool:
    """Whether an error's text tells of an outage, which is worth another try, and not of the policy or the model.

    >>> is_outage("[GENERATOR_UNAVAILABLE] no generator answers"), is_outage("no actions: [POLICY_BAD_ACTION] NaN")
    (True, False)
    """
    found = re.search(r"\[(\w+)\]", error)
    return found is not None and found[1] in OUTAGES


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: math.nan if key == "value_m" and one is None else one for key, one in document.items()}
