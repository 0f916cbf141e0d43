"""Depth of a table scene from one image, for setups without a depth camera.

image ────────────┐
camera and table ─┼─ HeightNet: object mask and height ─ z = plane * (1 - height / camera height) ─> depth
robot mask ───────┘
"""

from kinema4d_model.pipeline.lifting.geometry import LiftedDepth, Lifter
from kinema4d_model.pipeline.lifting.lifter import LearnedLifter, load_lifter

__all__ = ["LearnedLifter", "LiftedDepth", "Lifter", "load_lifter"]
