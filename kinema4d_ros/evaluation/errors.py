"""`EvaluationError`, under the name of this package."""

from kinema4d_ros.core.errors import EvaluationError

__all__ = ["EvaluationError"]
