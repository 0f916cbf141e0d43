"""What an evaluation's records say: rates, bias, order of the policies, power, and a correction that was checked."""

from kinema4d_ros.evaluation.summary.summarise import EvaluationSummary, ModelSummary, summarise

__all__ = ["EvaluationSummary", "ModelSummary", "summarise"]
