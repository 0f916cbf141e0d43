"""Robot segmentation with SAM 2: an image or a video and a prompt in, masks out.

weights folder ─> sam2_weights ──┐
                  sam2_package ──┤   the package `sam2`, with or without torchvision
text ─> grounding ─> boxes ──────┴─> Sam2Segmenter ─> masks, scores
"""

from kinema4d_model.segmentation.grounding import GroundingDetector
from kinema4d_model.segmentation.sam2_segmenter import Sam2Segmenter
from kinema4d_model.segmentation.sam2_weights import load_sam2

__all__ = ["GroundingDetector", "Sam2Segmenter", "load_sam2"]
