"""Judges by name: "geometric", or "vlm:URL,MODEL" for a language model that sees pictures."""

from __future__ import annotations

import os

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.evaluation.errors import EvaluationError
from kinema4d_ros.evaluation.judge import GeometricJudge, Judge
from kinema4d_ros.evaluation.vlm_judge import VlmJudge

__all__ = ["GEOMETRIC", "make_judge"]

GEOMETRIC = "geometric"
KEY = "KINEMA4D_JUDGE_KEY"
"""Environment variable with the key that a server may ask for; it is never written anywhere."""


def make_judge(text: str) -> Judge:
    """The judge of a name.

    >>> make_judge("vlm:http://127.0.0.1:8000/v1,some-model").model
    'some-model'
    """
    kind, _, rest = text.partition(":")
    url, comma, model = rest.rpartition(",")
    if text == GEOMETRIC:
        return GeometricJudge()
    if kind != "vlm" or not comma:
        raise EvaluationError(
            f"judge '{text}' is not known", expected="geometric, or vlm:URL,MODEL", code=ErrorCode.ARGUMENT_INVALID
        )
    return VlmJudge(url, model, os.environ.get(KEY, ""))
