"""`build_conditions`: pixels to `Conditions`, with as few codec runs as possible."""

from __future__ import annotations

import torch

from kinema4d_model.codec.video_codec import VideoCodec
from kinema4d_model.conditioning.conditions import Conditions
from kinema4d_model.conditioning.masks import downsample_mask, mask_channels, soft_robot_mask
from kinema4d_model.preset import Preset
from kinema4d_model.preset_parts import Ablation
from kinema4d_ros.core.errors import ErrorCode, GeneratorError

__all__ = ["build_conditions", "first_frame_video", "ramp_pointmap", "robot_videos"]

# Pixels of the conditions: first image beside a ramp, then zeros; the robot alone, per half.


def ramp_pointmap(height: int, width: int) -> torch.Tensor:
    """Make a (3, H, W) float32 ramp in [0, 1]: x grows to the right, y downwards, z falls from top to bottom.

    Placeholder for the first frame's pointmap when it is not measured.
    """
    x = torch.linspace(0, 1, width).expand(height, width)
    y = torch.linspace(0, 1, height)[:, None].expand(height, width)
    return torch.stack([x, y, 1 - y])


def first_frame_video(image: torch.Tensor, pointmap01: torch.Tensor | None, frames: int) -> torch.Tensor:
    """Make (B, 3, T, H, 2W) in [-1, 1]: [image | pointmap] in frame 0, then zeros (mid grey).

    Args:
        image: (B, 3, H, W) in [-1, 1].
        pointmap01: (B, 3, H, W) in [0, 1], the measured first pointmap; None uses the ramp.
        frames: T.
    """
    if pointmap01 is None:
        pointmap01 = ramp_pointmap(*image.shape[-2:]).to(image).expand_as(image)
    first = torch.cat([image, 2 * pointmap01 - 1], dim=-1)[:, :, None]
    return torch.cat([first, first.new_zeros(*first.shape[:2], frames - 1, *first.shape[3:])], dim=2)


def robot_videos(
    rgb: torch.Tensor | None, xyz01: torch.Tensor, mask: torch.Tensor, ablation: Ablation
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Make the left and the right robot video of an ablation, black where there is no robot.

    Args:
        rgb: (B, 3, T, H, W) in [-1, 1], or None.
        xyz01: (B, 3, T, H, W) in [0, 1], normalised camera coordinates; any value where there is no robot.
        mask: (B, T, H, W), 1 = robot.
        ablation: selects the condition.

    Returns:
        Two videos (B, 3, T, H, W) in [-1, 1]; None = this half is empty.
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


@torch.no_grad()
def build_conditions(
    codec: VideoCodec,
    image: torch.Tensor,
    robot_rgb: torch.Tensor | None,
    robot_xyz01: torch.Tensor,
    robot_mask: torch.Tensor,
    preset: Preset,
    *,
    image_tokens: torch.Tensor | None = None,
    composite: tuple[torch.Tensor, torch.Tensor] | None = None,
    carried: tuple[torch.Tensor, torch.Tensor] | None = None,
    description: torch.Tensor | None = None,
    environment_xyz01: torch.Tensor | None = None,
    text_tokens: torch.Tensor | None = None,
    actions: torch.Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Conditions:
    """Encode all conditions of one rollout. H, W, T may differ from the preset's.

    Args:
        codec: encodes pixels.
        image: (B, 3, H, W) in [-1, 1], the first image.
        robot_rgb: (B, 3, T, H, W) in [-1, 1]; None for "pm" and for ablations without it.
        robot_xyz01: (B, 3, T, H, W) in [0, 1]; any finite value where there is no robot.
        robot_mask: (B, T, H, W), 1 = robot.
        preset: variant, ablation, soft ratio, codec factors.
        image_tokens: of the image encoder, if the network has that branch.
        composite: RGB in [-1, 1] and XYZ in [0, 1], each (B, 3, T, H, W), for `prediction: residual`.
        carried: like `composite`, for `condition.carry`; None if no object is within reach of the fingers.
        description: (B, 20), for `condition.carry`.
        environment_xyz01: (B, 3, H, W) in [0, 1], the measured first pointmap, for `condition.environment`.
        text_tokens: for the "text" ablation.
        actions: (B, T, A), for the "embedding" ablation.
        generator: selects the softened cells.
    """
    spec, factor = preset.condition, preset.codec.temporal_factor
    _check(image, robot_rgb, robot_xyz01, robot_mask, preset)
    _require(preset, composite, description, environment_xyz01, text_tokens, actions)
    frames = robot_mask.shape[1]
    environment = environment_xyz01 if spec.environment else None
    base = None if composite is None else codec.encode_pair(composite[0], 2 * composite[1] - 1)
    if spec.fill == "composite" and base is not None:
        condition = base
    else:
        condition = codec.encode_first(first_frame_video(image, environment, frames))
    height, width = condition.shape[-2], condition.shape[-1] // 2
    left, right = robot_videos(robot_rgb, robot_xyz01, robot_mask, spec.ablation)
    if preset.robot.variant == "pm":
        left = None
    small = downsample_mask(robot_mask, height, width, factor).to(condition.device)
    robot = soft_robot_mask(small, spec, generator)
    return Conditions(
        mask=mask_channels(
            robot,
            (small.shape[0], small.shape[1], height, width),
            preset.robot.variant,
            environment=environment is not None,
            channels=factor,
        ).to(condition),
        condition=condition,
        robot_latents=_encode_halves(codec, left, right, condition),
        robot_mask=(torch.zeros_like(small) if robot is None else robot).to(condition),
        image_tokens=image_tokens,
        base_latents=base,
        carried=_difference(codec, carried, base) if spec.carry else None,
        description=description if spec.carry else None,
        text_tokens=text_tokens if spec.ablation is Ablation.TEXT else None,
        actions=actions if spec.ablation is Ablation.EMBEDDING else None,
    )


def _difference(
    codec: VideoCodec, carried: tuple[torch.Tensor, torch.Tensor] | None, base: torch.Tensor | None
) -> torch.Tensor | None:
    if base is None:
        return None
    return torch.zeros_like(base) if carried is None else codec.encode_pair(carried[0], 2 * carried[1] - 1) - base


def _encode_halves(
    codec: VideoCodec, left: torch.Tensor | None, right: torch.Tensor | None, like: torch.Tensor
) -> torch.Tensor:
    if left is not None and right is not None:
        return codec.encode_pair(left, right)
    empty = torch.zeros_like(like[..., : like.shape[-1] // 2])
    if right is not None:
        return torch.cat([empty, codec.encode_xyz(right)], dim=-1)
    return torch.cat([empty if left is None else codec.encode(left), empty], dim=-1)


def _refuse(what: str, expected: str) -> GeneratorError:
    return GeneratorError(what, expected=expected, code=ErrorCode.GENERATOR_BAD_REQUEST)


def _check(
    image: torch.Tensor, rgb: torch.Tensor | None, xyz01: torch.Tensor, mask: torch.Tensor, preset: Preset
) -> None:
    batch, frames, height, width = mask.shape if mask.ndim == 4 else (-1, -1, -1, -1)
    wanted = {
        "image": (image, (batch, 3, height, width)),
        "robot_rgb": (rgb, (batch, 3, frames, height, width)),
        "robot_xyz01": (xyz01, (batch, 3, frames, height, width)),
    }
    for name, (array, shape) in wanted.items():
        if array is not None and tuple(array.shape) != shape:
            raise _refuse(
                f"{name} is {tuple(array.shape)} beside a mask of {tuple(mask.shape)}", f"{shape} and (B, T, H, W)"
            )
        if array is not None and not torch.isfinite(array).all():
            raise _refuse(f"{name} holds NaN or infinity", "finite values; put zeros where there is no robot")
    step = preset.codec.spatial_factor * preset.transformer.patch[1]
    if height % step or width % step:
        raise _refuse(f"the images are {height} x {width}", f"multiples of {step}")


def _require(
    preset: Preset,
    composite: tuple[torch.Tensor, torch.Tensor] | None,
    description: torch.Tensor | None,
    environment_xyz01: torch.Tensor | None,
    text_tokens: torch.Tensor | None,
    actions: torch.Tensor | None,
) -> None:
    spec = preset.condition
    for name, value, needed in (
        ("composite", composite, preset.prediction == "residual" or spec.fill == "composite"),
        ("description", description, spec.carry),
        ("environment_xyz01", environment_xyz01, spec.environment),
        ("text_tokens", text_tokens, spec.ablation is Ablation.TEXT),
        ("actions", actions, spec.ablation is Ablation.EMBEDDING),
    ):
        if needed and value is None:
            raise _refuse(f"{name} is missing", f"{name}: preset '{preset.name}' is conditioned on it")
