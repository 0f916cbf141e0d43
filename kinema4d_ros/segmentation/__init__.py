"""Segmentation of the robot in images: one protocol, three methods.

robot + joints + camera ─> rendered ───┐ the exact silhouette; also a prompt for the other two
background or a video ──> classical ───┼─> Segmentation: masks, scores, notes
weights + prompt ───────> sam2 ────────┘ (kinema4d_model.segmentation)
"""

from kinema4d_ros.segmentation.classical import ClassicalSegmenter
from kinema4d_ros.segmentation.prompt import Prompt
from kinema4d_ros.segmentation.protocol import (
    METHODS,
    ReportFrame,
    RobotSegmenter,
    Segmentation,
    SegmentationError,
    best_method,
    make_segmenter,
)
from kinema4d_ros.segmentation.rendered import RenderedSegmenter, rendered_masks

__all__ = [
    "METHODS",
    "ClassicalSegmenter",
    "Prompt",
    "RenderedSegmenter",
    "ReportFrame",
    "RobotSegmenter",
    "Segmentation",
    "SegmentationError",
    "best_method",
    "make_segmenter",
    "rendered_masks",
]
