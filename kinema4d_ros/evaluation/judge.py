"""Was the task done? Verdicts on predicted futures, from where the object went.

    GeometricJudge   follows the object through the predicted clouds: the default, needs nothing but the rollout
    TruthJudge       knows the object's poses: for the lab
    VlmJudge         asks a language model that sees pictures (`vlm_judge`): optional, never the default

All answer `judge(rollout, task, target_mask)` with a `Verdict`; `Task.outcome` decides about the path that they find. A
judge that cannot tell says so: `success` is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.task import Task, object_path
from kinema4d_ros.evaluation.errors import EvaluationError
from kinema4d_ros.evaluation.target import find_target
from kinema4d_ros.evaluation.tracking import Track, track_object

__all__ = ["GeometricJudge", "Judge", "TruthJudge", "Verdict", "judge_track"]

Mask = NDArray[np.bool_]

_END_FRAMES = 3
"""The end of an estimated path is the middle of the last frames, not one that may be blurred."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a judge says.

    Attributes:
        success: the goal holds at the end; None = the judge cannot tell.
        progress: 0 to 1, how far the object got by the end; 0 if unknown.
        confidence: 0 to 1: how well the object was seen at the end, less within the margin of the limit; 0 = unknown.
        deciding_frame: the first frame from which the goal holds to the end, or the last frame that shows it does not.
        track: the object's path; None from a judge that has none.
        reason: one sentence.
        value_m: the measured number at the end, NaN = unknown.
    """

    success: bool | None
    progress: float
    confidence: float
    deciding_frame: int
    track: Track | None
    reason: str
    value_m: float = float("nan")


class Judge(Protocol):
    """Anything that can judge a rollout."""

    def judge(self, rollout: Rollout, task: Task, target_mask: Mask | None = None) -> Verdict:
        """The verdict; bad input is an `EvaluationError`, doubt is a verdict without success.

        `target_mask` (H, W) bool are the target's pixels in frame 0; None = what stands on the table nearest to the
        gripper's trajectory.
        """


@dataclass(frozen=True)
class GeometricJudge:
    """Judges by the predicted clouds alone.

    Attributes:
        margin_m: this near to the limit, confidence falls to 0.
        least_confidence: an object seen worse than this at the end is lost: `success` is None.
    """

    margin_m: float = 0.01
    least_confidence: float = 0.1

    def judge(self, rollout: Rollout, task: Task, target_mask: Mask | None = None) -> Verdict:
        """Find the object, follow it, compare its end with its start."""
        track = track_object(rollout, find_target(rollout) if target_mask is None else target_mask)
        return judge_track(track, task, margin_m=self.margin_m, least_confidence=self.least_confidence)


class TruthJudge:
    """Judges by the object's known path; the rollout's pixels are not looked at.

    Args:
        base_T_object: (T, 4, 4) poses, or (T, 3) positions, metres, base frame.

    >>> up = np.linspace(0, 0.1, 5)
    >>> from kinema4d_ros.core.task import make_task
    >>> TruthJudge(np.stack([up * 0, up * 0, up], axis=1)).judge(None, make_task("pick")).success
    True
    """

    def __init__(self, base_T_object: Any, *, margin_m: float = 0.01) -> None:
        position = object_path(base_T_object)
        if not np.isfinite(position).all():
            raise EvaluationError("the object's path is not finite", expected="metres in every frame")
        ones = np.ones(len(position))
        self._track = Track(position, ones, ones, 0)
        self._margin_m = margin_m

    @classmethod
    def of_episode(cls, episode: Any, name: str = "") -> TruthJudge:
        """Of an episode with known poses (`kinema4d_model.data.Episode`); by default of its target."""
        name = name or episode.outcome.target
        known = {thing.name: thing.base_T_object for thing in episode.outcome.objects}
        if name not in known:
            raise EvaluationError(
                f"episode '{episode.key}' does not say where '{name}' was",
                expected=f"one of {', '.join(known) or 'none: it has no poses'}",
            )
        return cls(known[name])

    def judge(self, rollout: Rollout | None, task: Task, target_mask: Mask | None = None) -> Verdict:
        """The verdict on the known path; of a rollout only the length is compared, the mask is not needed."""
        if rollout is not None and len(rollout) != len(self._track.position):
            raise EvaluationError(
                f"the rollout has {len(rollout)} frames, the object's path {len(self._track.position)}",
                expected="as many",
            )
        # The poses are exact: the last one is the end, as it is for the labels of recorded data.
        return judge_track(self._track, task, margin_m=self._margin_m, end_frames=1)


def judge_track(
    track: Track,
    task: Task,
    *,
    margin_m: float = 0.01,
    least_confidence: float = 0.1,
    end_frames: int = _END_FRAMES,
) -> Verdict:
    """The verdict on a path: does the goal hold at its end, and is that certain."""
    if not (margin_m > 0 and 0 <= least_confidence <= 1):
        raise EvaluationError(
            f"margin_m is {margin_m}, least_confidence {least_confidence}",
            expected="metres above 0, and 0 to 1",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    goal, frames = task.goal, len(track.position)
    known = np.isfinite(track.position).all(axis=1) & (track.confidence > 0)
    seen = float(track.confidence[-end_frames:].mean())
    outcome = task.outcome(track.position, known=known, end_frames=end_frames)
    if outcome.success is None or seen < least_confidence:
        last = int(np.flatnonzero(known)[-1]) if known.any() else 0
        reason = f"the object was lost: last seen in frame {last} of {frames}, confidence {seen:.2f} at the end"
        return Verdict(None, 0.0, 0.0, last, track, reason)
    certain = min(1.0, abs(outcome.value_m - goal.limit_m) / margin_m)
    answer = "yes" if outcome.success else "no"
    reason = f"{goal.words()}? {answer}: {100 * outcome.value_m:.1f} cm, limit {100 * goal.limit_m:g} cm"
    return Verdict(
        success=outcome.success,
        progress=outcome.progress,
        confidence=seen * certain,
        deciding_frame=_deciding_frame(goal.holds(track.position), known, outcome.success, end_frames),
        track=track,
        reason=reason,
        value_m=outcome.value_m,
    )


def _deciding_frame(holds: Mask, known: Mask, success: bool, end_frames: int) -> int:
    if not success:
        return int(np.flatnonzero(known)[-1])
    against = np.flatnonzero(known & ~holds)
    # The last frames are a majority: one of them may be against.
    before = against[against < len(holds) - end_frames]
    first = int(before[-1]) + 1 if before.size else 0
    return first + int(np.argmax(holds[first:]))
