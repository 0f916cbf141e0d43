"""How good a prediction is, and what it says about the task: metrics, judges.

pictures ─> images     PSNR, SSIM, also of the dynamic region alone
clouds   ─> clouds     Chamfer, F-score, against the truth and from frame to frame
"""

from kinema4d_ros.evaluation.clouds import CloudDistance, cloud_distance, consecutive_distances, frame_distances
from kinema4d_ros.evaluation.errors import EvaluationError
from kinema4d_ros.evaluation.images import dynamic_region, psnr, psnr_overall, ssim

__all__ = [
    "CloudDistance",
    "EvaluationError",
    "cloud_distance",
    "consecutive_distances",
    "dynamic_region",
    "frame_distances",
    "psnr",
    "psnr_overall",
    "ssim",
]
