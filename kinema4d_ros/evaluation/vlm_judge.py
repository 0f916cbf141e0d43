"""A judge that asks a language model with eyes: any server that speaks OpenAI's chat protocol, at any URL.

Optional and never the default: its answers cannot be checked, and pictures leave this process for the server named.
Nothing is sent anywhere but to `url`, through a proxy if the environment names one; redirections are refused.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.task import Task
from kinema4d_ros.evaluation.errors import EvaluationError
from kinema4d_ros.evaluation.judge import Verdict
from kinema4d_ros.io.png import encode_png

__all__ = ["VlmJudge"]

_MAX_ANSWER_BYTES = 1_000_000
_SYSTEM = (
    "You judge whether a robot did its task, from numbered frames of one video in order of time. Answer with one JSON "
    'object and nothing else: {"success": true, false, or null if it cannot be seen, "progress": 0 to 1, '
    '"confidence": 0 to 1, "frame": number of the frame that decides, "reason": one sentence}.'
)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """None: an answer that points elsewhere is an error."""


@dataclass(frozen=True)
class VlmJudge:
    """Judges by asking a model.

    Attributes:
        url: base of the API, for example "http://localhost:8000/v1"; "/chat/completions" is added.
        model: its name on that server.
        api_key: sent as a bearer token; "" = none.
        frames: how many frames it is shown, spread evenly, first and last among them.
        timeout_s: for the whole answer to begin.
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
        """Ask; a server that cannot be reached or answers nonsense is an `EvaluationError`."""
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
                hint="look at URL, model and key",
                code=_MISSING,
            ) from None
        except (OSError, ValueError) as error:
            raise EvaluationError(
                f"{where} does not answer: {getattr(error, 'reason', error)}"[:300],
                expected=f"an answer within {self.timeout_s:g} s",
                hint="is the server running?",
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
    """From the model's words; anything but the object asked for is refused, never guessed at."""
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
    # A number that was not shown is the model's slip; the nearest frame that was is meant.
    decides = int(shown[np.abs(np.asarray(shown) - frame).argmin()])
    reason = str(found.get("reason", ""))[:500]
    if success is None:
        return Verdict(None, 0.0, 0.0, decides, None, reason or "the model cannot tell")
    return Verdict(success, progress, confidence, decides, None, reason)
