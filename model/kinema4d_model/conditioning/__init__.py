"""Conditions of the network: first image, ramp or environment, robot, mask; pure functions and one container."""

from __future__ import annotations

from kinema4d_model.conditioning.build import build_conditions, first_frame_video, ramp_pointmap, robot_videos
from kinema4d_model.conditioning.conditions import Conditions, ablate, ablation_table, shapes_only
from kinema4d_model.conditioning.masks import downsample_mask, mask_channels, soft_robot_mask, soften

__all__ = [
    "Conditions",
    "ablate",
    "ablation_table",
    "build_conditions",
    "downsample_mask",
    "first_frame_video",
    "mask_channels",
    "ramp_pointmap",
    "robot_videos",
    "shapes_only",
    "soft_robot_mask",
    "soften",
]
