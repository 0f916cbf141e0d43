"""Judges: verdicts on the success of a task in a rollout, from the path of the target object.

    GeometricJudge   tracks the object through the predicted clouds: the default, needs only the rollout
    TruthJudge       uses the object's known poses: for the lab
    VlmJudge         asks a vision-language model on a server: optional, never the default

All return a `Verdict` from `judge(rollout, task, target_mask)`; `Task.outcome` evaluates the path that they find. If a
judge cannot tell, `success` is None. `make_judge` creates a judge by name.
"""

from __future__ import annotations

import base64
import json
import os
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, EvaluationError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.task import Task, object_path
from kinema4d_ros.evaluation.target import find_target
from kinema4d_ros.evaluation.tracking import Track, track_object
from kinema4d_ros.io.png import encode_png

__all__ = [
    "GEOMETRIC",
    "GeometricJudge",
    "Judge",
    "TruthJudge",
    "Verdict",
    "VlmJudge",
    "judge_outcomes",
    "judge_track",
    "make_judge",
]

Mask = NDArray[np.bool_]

_END_FRAMES = 3
"""Number of last frames whose median is the end of an estimated path, because a single one may be blurred."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """Verdict of a judge.

    Attributes:
        success: the goal holds at the end; None = the judge cannot tell.
        progress: 0 to 1, progress of the object at the end; 0 if unknown.
        confidence: 0 to 1: visibility of the object at the end, reduced within the margin of the limit; 0 = unknown.
        deciding_frame: first frame from which the goal holds to the end, or last frame in which it does not hold.
        track: the object's path; None if the judge does not track it.
        reason: one sentence.
        value_m: the measured value at the end, NaN = unknown.
        probability: 0 to 1, of success over the outcomes of a rollout; None = the rollout states no outcomes.
        forced: the verdict that the frames suggest where `success` is None; None = there is none either.
    """

    success: bool | None
    progress: float
    confidence: float
    deciding_frame: int
    track: Track | None
    reason: str
    value_m: float = float("nan")
    probability: float | None = None
    forced: bool | None = None


class Judge(Protocol):
    """Interface of judges."""

    def judge(self, rollout: Rollout, task: Task, target_mask: Mask | None = None) -> Verdict:
        """Judge a rollout; bad input raises an `EvaluationError`, uncertainty gives a verdict with success None.

        `target_mask` (H, W) bool are the target's pixels in frame 0; None = the object on the table nearest to the
        gripper's trajectory.
        """


@dataclass(frozen=True)
class GeometricJudge:
    """Judge that uses the predicted clouds only.

    Attributes:
        margin_m: within this distance of the limit, confidence falls to 0.
        least_confidence: below this confidence at the end the object is lost: `success` is None.
    """

    margin_m: float = 0.01
    least_confidence: float = 0.1

    def judge(self, rollout: Rollout, task: Task, target_mask: Mask | None = None) -> Verdict:
        """Find and track the object, and judge its path."""
        track = track_object(rollout, find_target(rollout) if target_mask is None else target_mask)
        return judge_track(track, task, margin_m=self.margin_m, least_confidence=self.least_confidence)


class TruthJudge:
    """Judge that uses the object's known path; the rollout's pixels are not used.

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
        """Create from an episode with known poses (`kinema4d_model.data.Episode`); by default of its target."""
        name = name or episode.outcome.target
        known = {thing.name: thing.base_T_object for thing in episode.outcome.objects}
        if name not in known:
            raise EvaluationError(
                f"episode '{episode.key}' has no poses of '{name}'",
                expected=f"one of {', '.join(known) or 'none: it has no poses'}",
            )
        return cls(known[name])

    def judge(self, rollout: Rollout | None, task: Task, target_mask: Mask | None = None) -> Verdict:
        """Judge the known path; of the rollout only the length is checked, the mask is not used."""
        if rollout is not None and len(rollout) != len(self._track.position):
            raise EvaluationError(
                f"the rollout has {len(rollout)} frames, the object's path {len(self._track.position)}",
                expected="equal numbers",
            )
        # The poses are exact: the last one is the end, as in the labels of recorded data.
        return judge_track(self._track, task, margin_m=self._margin_m, end_frames=1)


def judge_track(
    track: Track,
    task: Task,
    *,
    margin_m: float = 0.01,
    least_confidence: float = 0.1,
    end_frames: int = _END_FRAMES,
) -> Verdict:
    """Judge whether the goal holds at the end of a path, and how certain this is."""
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
        shown = task.outcome(track.position[: last + 1], known=known[: last + 1], end_frames=end_frames)
        return Verdict(None, 0.0, 0.0, last, track, reason, forced=shown.success)
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
    # The last frames are decided by majority: the goal may not hold in one of them.
    before = against[against < len(holds) - end_frames]
    first = int(before[-1]) + 1 if before.size else 0
    return first + int(np.argmax(holds[first:]))


def judge_outcomes(judge: Judge, rollout: Rollout, task: Task, target_mask: Mask | None = None) -> Verdict:
    """Judge a rollout's own frames, and all its outcomes for the probability of success.

    The probability is the sum over the outcomes that the judge calls a success. What is not known counts half: an
    outcome that the judge cannot tell, and what the probabilities of all outcomes lack to 1. If the generator cannot
    tell what happens, `success` is None and `forced` is the verdict on its frames.
    """
    main = judge.judge(rollout, task, target_mask)
    probability = None
    if rollout.outcomes:
        others = [judge.judge(rollout.with_outcome(i), task, target_mask) for i in range(1, len(rollout.outcomes))]
        verdicts = [main.success, *(other.success for other in others)]
        if any(verdict is not None for verdict in verdicts):
            shares = [outcome.probability for outcome in rollout.outcomes]
            known = [p for p, verdict in zip(shares, verdicts, strict=True) if verdict is not None]
            success = sum(p for p, verdict in zip(shares, verdicts, strict=True) if verdict)
            probability = min(1.0, success + 0.5 * max(0.0, 1.0 - sum(known)))
    if not rollout.unknowns:
        return replace(main, probability=probability)
    reason = f"the generator cannot tell: {'; '.join(rollout.unknowns)} (its frames show: {main.reason})"
    forced = main.forced if main.success is None else main.success
    return replace(main, success=None, confidence=0.0, reason=reason, probability=probability, forced=forced)


# Judge by a vision-language model on any server with OpenAI's chat API.
#
# Optional and never the default: its answers cannot be verified, and images are sent to the server. Nothing is sent
# to any other address than `url`, through a proxy if the environment sets one; redirects are refused.

_MAX_ANSWER_BYTES = 1_000_000
_SYSTEM = (
    "You judge whether a robot did its task, from numbered frames of one video in order of time. Answer with one JSON "
    'object and nothing else: {"success": true, false, or null if it cannot be seen, "progress": 0 to 1, '
    '"confidence": 0 to 1, "frame": number of the frame that decides, "reason": one sentence}.'
)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Return None: a redirect is an error."""


@dataclass(frozen=True)
class VlmJudge:
    """Judge that asks a vision-language model.

    Attributes:
        url: base of the API, for example "http://localhost:8000/v1"; "/chat/completions" is added.
        model: its name on that server.
        api_key: sent as a bearer token; "" = none.
        frames: number of frames to send, evenly spaced, including first and last.
        timeout_s: timeout of the connection and of each read.
    """

    url: str
    model: str
    api_key: str = field(default="", repr=False)
    frames: int = 8
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise EvaluationError(f"url is {self.url!r}", expected="http:// or https://", code=_ARGUMENT)
        if not self.model or self.frames < 2 or not self.timeout_s > 0:
            raise EvaluationError(
                f"model {self.model!r}, {self.frames} frames, timeout_s {self.timeout_s}",
                expected="a name, at least two frames, seconds above 0",
                code=_ARGUMENT,
            )

    def judge(self, rollout: Rollout, task: Task, target_mask: NDArray[np.bool_] | None = None) -> Verdict:
        """Ask the model; an unreachable server or an invalid answer raises an `EvaluationError`."""
        shown = np.unique(np.linspace(0, len(rollout) - 1, min(self.frames, len(rollout))).round().astype(int))
        answer = self._ask(self._request(rollout, task, shown))
        return _verdict(answer, shown)

    def _request(self, rollout: Rollout, task: Task, shown: Any) -> dict[str, Any]:
        what = f"Task: {task.instruction or 'move the object'}. It is done if {task.goal.words()}."
        content: list[dict[str, Any]] = [{"type": "text", "text": what}]
        for t in shown:
            picture = base64.b64encode(encode_png(rollout.rgb[t])).decode("ascii")
            content.append({"type": "text", "text": f"Frame {t}, {rollout.times[t] - rollout.times[0]:.2f} s:"})
            content.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}})
        messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": content}]
        return {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": 300}

    def _ask(self, body: dict[str, Any]) -> str:
        where = self.url.rstrip("/") + "/chat/completions"
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        request = urllib.request.Request(where, json.dumps(body).encode("utf-8"), headers, method="POST")  # noqa: S310
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=self.timeout_s) as response:
                data = response.read(_MAX_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            text = error.read(300).decode("utf-8", "replace")
            raise EvaluationError(
                f"{where} answers {error.code}: {text}",
                expected="200",
                hint="check URL, model and key",
                code=_MISSING,
            ) from None
        except (OSError, ValueError) as error:
            raise EvaluationError(
                f"{where} does not answer: {getattr(error, 'reason', error)}"[:300],
                expected=f"an answer within {self.timeout_s:g} s",
                hint="check that the server is running",
                code=_MISSING,
            ) from None
        if len(data) > _MAX_ANSWER_BYTES:
            raise EvaluationError(f"{where} answers more than {_MAX_ANSWER_BYTES} bytes", expected="one JSON object")
        answer: Any = None
        with suppress(ValueError, KeyError, IndexError, TypeError, RecursionError):
            answer = json.loads(data)["choices"][0]["message"]["content"]
        if not isinstance(answer, str):
            raise EvaluationError(f"{where} answers {data[:200]!r}", expected="a chat completion with a text")
        return answer


_ARGUMENT, _MISSING = ErrorCode.ARGUMENT_INVALID, ErrorCode.SETUP_MISSING


def _verdict(text: str, shown: Any) -> Verdict:
    """Parse the model's answer; anything but the requested JSON object is refused."""
    begin, end = text.find("{"), text.rfind("}")
    try:
        found = json.loads(text[begin : end + 1])
        success = found["success"]
        progress, confidence = float(found.get("progress", 0.0)), float(found.get("confidence", 0.5))
        frame = int(found.get("frame", shown[-1]))
        fits = (success is None or isinstance(success, bool)) and 0 <= progress <= 1 and 0 <= confidence <= 1
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        fits = False
    if not fits:
        raise EvaluationError(f"the model answers {text[:200]!r}", expected='{"success": true, false or null, ...}')
    # A frame number that was not sent is replaced by the nearest one that was.
    decides = int(shown[np.abs(np.asarray(shown) - frame).argmin()])
    reason = str(found.get("reason", ""))[:500]
    if success is None:
        return Verdict(None, 0.0, 0.0, decides, None, reason or "the model cannot tell")
    return Verdict(success, progress, confidence, decides, None, reason)


# Judges by name: "geometric", or "vlm:URL,MODEL" for a vision-language model.

GEOMETRIC = "geometric"
KEY = "KINEMA4D_JUDGE_KEY"
"""Environment variable with the server's API key; it is never written to a file or a log."""


def make_judge(text: str) -> Judge:
    """Create a judge by name.

    >>> make_judge("vlm:http://127.0.0.1:8000/v1,some-model").model
    'some-model'
    """
    kind, _, rest = text.partition(":")
    url, comma, model = rest.rpartition(",")
    if text == GEOMETRIC:
        return GeometricJudge()
    if kind != "vlm" or not comma:
        raise EvaluationError(
            f"judge '{text}' is unknown", expected="geometric, or vlm:URL,MODEL", code=ErrorCode.ARGUMENT_INVALID
        )
    return VlmJudge(url, model, os.environ.get(KEY, ""))
