"""`EvaluationError`: pictures, clouds or tasks that cannot be measured or judged, with the value that was wrong."""

from __future__ import annotations

from kinema4d_ros.errors import ErrorCode, KinemaError

__all__ = ["EvaluationError"]


class EvaluationError(KinemaError):
    """Input that does not fit the metric or judge asked for; the text says which frame or field."""

    default_code = ErrorCode.ROLLOUT_INVALID
