"""Depth of a table scene from one picture, for a lab without a depth camera.

picture ──────────┐
camera and table ─┼─ HeightNet: what stands there, how high ─ z = plane * (1 - height / camera height) ─> depth
robot's mask ─────┘
"""

from kinema4d_model.pipeline.lifting.geometry import LiftedDepth, Lifter
from kinema4d_model.pipeline.lifting.lifter import LearnedLifter, load_lifter

__all__ = ["LearnedLifter", "LiftedDepth", "Lifter", "load_lifter"]
