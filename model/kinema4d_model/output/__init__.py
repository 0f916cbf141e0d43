"""From what the network says to what a rollout holds: metres, the exact robot, the camera's size, confidence."""

from kinema4d_model.output.confidence import Confidence, confidence_of
from kinema4d_model.output.metric import MetricFit, MetricLimits, bounds_fit, fit_metric
from kinema4d_model.output.paste import paste_robot, points_on_rays
from kinema4d_model.output.resize import fill_under_robot, grow_images, grow_points, pick_pixels, shrink_images

__all__ = [
    "Confidence",
    "MetricFit",
    "MetricLimits",
    "bounds_fit",
    "confidence_of",
    "fill_under_robot",
    "fit_metric",
    "grow_images",
    "grow_points",
    "paste_robot",
    "pick_pixels",
    "points_on_rays",
    "shrink_images",
]
