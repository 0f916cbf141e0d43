"""Trials and their outcomes in the lab and in each world model, as plain numbers that convert to JSON and back.

A trial is a policy in a scene: (policy, scenario, seed). The lab's outcome is the truth; a model's outcome is the
judge's verdict on its prediction. Errors are part of the record and do not stop other trials.
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
"""open: one prediction of the actions of the lab's run. closed: the policy acts on predicted images."""

WORKER_KILLED = "WORKER_KILLED"
"""Code of a worker killed by a signal, for example by the kernel when memory is short."""

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
"""Codes of errors that are not caused by a policy or a model: a machine, a node or a file was not available."""


@dataclass(frozen=True, order=True)
class Trial:
    """A policy in a scene.

    >>> Trial("expert", "canonical", 7).key
    'expert|canonical|7'
    """

    policy: str
    scenario: str
    seed: int

    @property
    def key(self) -> str:
        """Unique key."""
        return f"{self.policy}|{self.scenario}|{self.seed}"


@dataclass(frozen=True)
class LabOutcome:
    """Outcome in the lab.

    Attributes:
        success: the task's goal held at the end; None = the run did not finish, see `error`.
        progress: 0 to 1.
        value_m: the measured value, such as the height of a lift; NaN = unknown.
        motion_s: duration of the arm's motion.
        chunks: number of chunks requested from the policy.
        seconds: computing time of the run.
        error: "" or the error with its code.
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
    """Outcome in a world model.

    Attributes:
        success: by the judge; None = it cannot tell, or there is no rollout (see `error`).
        progress, confidence, value_m, deciding_frame, reason: the judge's, see `Verdict`.
        chunks: number of chunks requested from the policy; 0 in open loop.
        seconds: computing time of prediction and verdict.
        error: "" or the error with its code.
        picture: name of an image in the evaluation's folder, or "".
        made_by: generator, preset and weights (the first digits of their sha256) of the rollout; "" = not known.
        probability: 0 to 1, of success, over the outcomes that the model states; None = it states none.
        forced: where `success` is None, the verdict that the frames suggest; None = there is none either.
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
    probability: float | None = None
    forced: bool | None = None

    @classmethod
    def of(
        cls, verdict: Verdict, seconds: float, chunks: int = 0, picture: str = "", made_by: str = ""
    ) -> ModelOutcome:
        """Create from a judge's verdict."""
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
            probability=None if verdict.probability is None else round(float(verdict.probability), 4),
            forced=verdict.forced,
        )


@dataclass(frozen=True)
class TrialRecord:
    """A trial with all its outcomes; `models` by the model's label, such as "nano/open"."""

    trial: Trial
    lab: LabOutcome
    models: Mapping[str, ModelOutcome] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Convert to plain types; NaN becomes null."""
        document = asdict(self)
        document["models"] = {name: asdict(outcome) for name, outcome in self.models.items()}
        return {key: _plain(value) for key, value in document.items()}

    @classmethod
    def from_json(cls, document: Any) -> TrialRecord:
        """Parse a record.

        Raises:
            EvaluationError: the document is not a record.
        """
        try:
            trial = Trial(**document["trial"])
            lab = LabOutcome(**_numbers(document["lab"]))
            models = {str(name): ModelOutcome(**_numbers(one)) for name, one in document["models"].items()}
            if not (isinstance(trial.policy, str) and isinstance(trial.scenario, str) and isinstance(trial.seed, int)):
                raise TypeError(f"trial {trial}")
            for label, one in models.items():
                if one.probability is not None and not 0 <= one.probability <= 1:
                    raise TypeError(f"probability {one.probability} of {label}")
        except (KeyError, TypeError, AttributeError) as error:
            raise EvaluationError(
                f"not a record of a trial: {error}", expected="trial, lab and models", code=ErrorCode.FILE_MALFORMED
            ) from None
        return cls(trial, lab, models)


def failure_text(error: BaseException) -> str:
    """Format an error on one line with its code, or with its type if it is not a KinemaError."""
    return str(error) if isinstance(error, KinemaError) else f"[{type(error).__name__}] {error}"


def is_outage(error: str) -> bool:
    """Return whether an error's text has the code of an outage, which is retried, and not of the policy or the model.

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
