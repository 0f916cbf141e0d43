"""Cost of a rollout before it runs: FLOPs and bytes, counted on tensors without memory."""

from kinema4d_model.cost.memory import PeakActivations, parameter_bytes
from kinema4d_model.cost.rollout import (
    OFFICIAL_STEPS,
    RolloutCost,
    StageCost,
    cost_table,
    describe,
    official,
    rollout_cost,
)

__all__ = [
    "OFFICIAL_STEPS",
    "PeakActivations",
    "RolloutCost",
    "StageCost",
    "cost_table",
    "describe",
    "official",
    "parameter_bytes",
    "rollout_cost",
]
