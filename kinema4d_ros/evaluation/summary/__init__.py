"""Summary of an evaluation's records: rates, bias, ranking of the policies, power, and a validated correction."""

from kinema4d_ros.evaluation.summary.summarise import EvaluationSummary, ModelSummary, summarise

__all__ = ["EvaluationSummary", "ModelSummary", "summarise"]
