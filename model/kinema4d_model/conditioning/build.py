"""`build_conditions`: pixels in, `Conditions` out; the codec runs as few times as it can."""

from __future__ import annotations

import torch

from kinema4d_model.codec import VideoCodec
from kinema4d_model.conditioning.conditions import Conditions
from kinema4d_model.conditioning.masks import downsample_mask, mask_channels, soft_robot_mask
from kinema4d_model.conditioning.videos import first_frame_video, robot_videos
from kinema4d_model.preset import Preset
from kinema4d_model.preset_parts import Ablation
from kinema4d_ros.core.errors import ErrorCode, GeneratorError

__all__ = ["build_conditions"]


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
    """Everything the network is told about one rollout. H, W, T need not be the preset's own.

    Args:
        codec: encodes pixels.
        image: (B, 3, H, W) in [-1, 1], the first image.
        robot_rgb: (B, 3, T, H, W) in [-1, 1]; None for "pm" and for ablations that do not tell it.
        robot_xyz01: (B, 3, T, H, W) in [0, 1]; any finite value where there is no robot.
        robot_mask: (B, T, H, W), 1 = robot.
        preset: variant, ablation, soft ratio, codec factors.
        image_tokens: of the image encoder, where the network has that branch.
        composite: RGB in [-1, 1] and XYZ in [0, 1], each (B, 3, T, H, W), for `prediction: residual`.
        carried: like `composite`, for `condition.carry`; None where nothing is within reach of the fingers.
        description: (B, 20), for `condition.carry`.
        environment_xyz01: (B, 3, H, W) in [0, 1], the measured first pointmap, for `condition.environment`.
        text_tokens: for the "text" ablation.
        actions: (B, T, A), for the "embedding" ablation.
        generator: chooses the softened cells.
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
        raise _refuse(f"pictures of {height} x {width}", f"multiples of {step}")


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
