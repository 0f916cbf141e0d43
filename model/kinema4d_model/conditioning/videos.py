"""The pixels behind the conditions: first image beside a ramp, then zeros; the robot alone, half by half."""

from __future__ import annotations

import torch

from kinema4d_model.preset_parts import Ablation

__all__ = ["first_frame_video", "ramp_pointmap", "robot_videos"]


def ramp_pointmap(height: int, width: int) -> torch.Tensor:
    """(3, H, W) float32 in [0, 1]: x grows to the right, y downwards, z falls from top to bottom.

    It stands for the first frame's pointmap, which nobody has measured.
    """
    x = torch.linspace(0, 1, width).expand(height, width)
    y = torch.linspace(0, 1, height)[:, None].expand(height, width)
    return torch.stack([x, y, 1 - y])


def first_frame_video(image: torch.Tensor, pointmap01: torch.Tensor | None, frames: int) -> torch.Tensor:
    """(B, 3, T, H, 2W) in [-1, 1]: [image | pointmap] in frame 0, then zeros (mid grey).

    Args:
        image: (B, 3, H, W) in [-1, 1].
        pointmap01: (B, 3, H, W) in [0, 1], the measured first pointmap; None for the ramp.
        frames: T.
    """
    if pointmap01 is None:
        pointmap01 = ramp_pointmap(*image.shape[-2:]).to(image).expand_as(image)
    first = torch.cat([image, 2 * pointmap01 - 1], dim=-1)[:, :, None]
    return torch.cat([first, first.new_zeros(*first.shape[:2], frames - 1, *first.shape[3:])], dim=2)


def robot_videos(
    rgb: torch.Tensor | None, xyz01: torch.Tensor, mask: torch.Tensor, ablation: Ablation
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The left and the right robot video for an ablation, black where there is no robot.

    Args:
        rgb: (B, 3, T, H, W) in [-1, 1], or None.
        xyz01: (B, 3, T, H, W) in [0, 1], normalised camera coordinates; any value where there is no robot.
        mask: (B, T, H, W), 1 = robot.
        ablation: what is told.

    Returns:
        Two videos (B, 3, T, H, W) in [-1, 1]; None = this half is not told.
    """
    inside = mask[:, None] > 0

    def black_outside(video: torch.Tensor) -> torch.Tensor:
        return torch.where(inside, video, -torch.ones_like(video))

    if ablation in (Ablation.NULL, Ablation.TEXT, Ablation.EMBEDDING):
        return None, None
    if ablation is Ablation.BINARY_MASK:
        silhouette = black_outside(torch.ones_like(xyz01))
        return silhouette, silhouette
    left = None if rgb is None or ablation in (Ablation.POINTMAP, Ablation.DEPTH) else black_outside(rgb)
    if ablation is Ablation.RGB:
        return left, None
    told = xyz01[:, 2:].expand_as(xyz01) if ablation is Ablation.DEPTH else xyz01
    return left, black_outside(2 * told - 1)
