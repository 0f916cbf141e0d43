"""The parts of a preset: what network, codec, conditions, sampler, speed options, adapter and weights may be told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

__all__ = [
    "Ablation",
    "BlendSpec",
    "CodecSpec",
    "ConditionSpec",
    "ImageEncoderSpec",
    "LoraSpec",
    "RobotSpec",
    "SamplerSpec",
    "SpeedSpec",
    "TransformerSpec",
    "WeightSource",
]


class Ablation(str, Enum):
    """What the network is told about the robot: the rows of the paper's table of conditions."""

    RGB_POINTMAP = "rgb_pointmap"
    """Robot picture and robot pointmap: the full condition."""
    POINTMAP = "pointmap"
    """Robot pointmap only; the RGB half stays empty."""
    RGB = "rgb"
    """Robot picture only; the pointmap half stays empty."""
    DEPTH = "depth"
    """The pointmap's z on all three channels: no x and y."""
    BINARY_MASK = "binary_mask"
    """The silhouette, white on black, in both halves."""
    NO_MASK = "no_mask"
    """The full condition without the guided mask."""
    EMBEDDING = "embedding"
    """One token a frame from the action vector; nothing aligned with pixels."""
    TEXT = "text"
    """Text embeddings given by the caller; nothing of the robot."""
    NULL = "null"
    """Nothing of the robot at all: the floor that every other row must beat."""


@dataclass(frozen=True)
class TransformerSpec:
    """Sizes of diffusers' `WanTransformer3DModel`; `image_dim` None leaves the CLIP branch out."""

    layers: int
    heads: int
    head_dim: int
    ffn_dim: int
    patch: tuple[int, int, int] = (1, 2, 2)
    in_channels: int = 36
    out_channels: int = 16
    text_dim: int = 4096
    freq_dim: int = 256
    image_dim: int | None = None
    image_tokens: int = 257
    rope_max_seq_len: int = 1024

    @property
    def width(self) -> int:
        """Channels of a token."""
        return self.heads * self.head_dim


@dataclass(frozen=True)
class CodecSpec:
    """The codec: "wan" is diffusers' `AutoencoderKLWan` of these sizes, with the statistics that normalise its latents.

    "linear" (`linear_codec.py`) has `latent_channels` and the two factors; its statistics come with its weights.
    """

    kind: Literal["wan", "linear"] = "wan"
    base_dim: int = 96
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    temporal_downsample: tuple[bool, ...] = (False, True, True)
    latents_mean: tuple[float, ...] = ()
    latents_std: tuple[float, ...] = ()
    xyz_mean: float = -0.17
    xyz_std: float = 1.36
    latent_channels: int = 16
    patch_size: int | None = None
    is_residual: bool = False
    spatial_factor: int = 8
    temporal_factor: int = 4


@dataclass(frozen=True)
class RobotSpec:
    """How the robot enters: "act" has robot picture and pointmap, "pm" the pointmap alone."""

    variant: Literal["act", "pm"]
    hidden: int
    token_patch: int
    position_grid: tuple[int, int, int]
    action_dim: int | None = None


@dataclass(frozen=True)
class ConditionSpec:
    """What the conditioning puts in: the ablation, the soft mask, the environment's own pointmap.

    `fill` is what the condition holds after the first frame: nothing, as Wan has it, or the composite (the first
    frame's world at rest with the exact robot), which then stands in frame 0 as well. `carry` tells beside it what
    would be seen if the thing at the closing fingers went along (`kinema4d_ros.generators.carry`); the network then
    chooses between the two cell by cell, and adds what neither shows.
    """

    ablation: Ablation = Ablation.RGB_POINTMAP
    mask: bool = True
    soft_ratio: float = 0.0
    environment: bool = False
    fill: Literal["zeros", "composite"] = "zeros"
    carry: bool = False


@dataclass(frozen=True)
class BlendSpec:
    """How a prediction with `condition.carry` becomes frames at the camera's size (`two_worlds.py`).

    Attributes:
        decision: the gate is sharpened by this around one half; 1 takes it as it is.
        colour, depth: share of the rest, what neither world shows, that is believed; 0 leaves it out.
        blur_px: of the rest's colours, at the network's size.
    """

    decision: float = 4.0
    colour: float = 1.0
    depth: float = 1.0
    blur_px: float = 0.0


@dataclass(frozen=True)
class SamplerSpec:
    """How noise becomes a prediction.

    `trained_shift` is the flow shift of the base, which its `scheduler/` must state; None: the same as `shift`.
    """

    kind: Literal["euler", "unipc"] = "unipc"
    steps: int = 50
    shift: float = 3.0
    guidance: Literal["none", "compat"] = "none"
    guidance_scale: float = 5.0
    trained_shift: float | None = None

    @property
    def base_shift(self) -> float:
        """The flow shift that the base was trained with."""
        return self.shift if self.trained_shift is None else self.trained_shift


@dataclass(frozen=True)
class SpeedSpec:
    """What makes a rollout faster or smaller; `speed/` applies it, `kinema4d cost` counts it.

    Attributes:
        dtype: of the weights; norms and time embedding stay in float32.
        quantise: weights of the blocks in one byte each.
        attention: "auto", or a back-end of diffusers' dispatcher.
        cache_threshold: of the first-block step cache; None is no cache, 0 never skips.
        offload: "model" keeps one part at a time on the device, "group" two blocks at a time.
        tiling: the codec works in tiles.
        compile: torch.compile, block by block, with `compile_backend`.
        context_parallel: GPUs that share one rollout.
    """

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    quantise: Literal["none", "int8", "fp8"] = "none"
    attention: str = "auto"
    cache_threshold: float | None = None
    offload: Literal["none", "model", "group"] = "none"
    tiling: bool = False
    compile: bool = False
    compile_backend: str = "inductor"
    context_parallel: int = 1


@dataclass(frozen=True)
class ImageEncoderSpec:
    """Sizes of transformers' `CLIPVisionModel`, which sees the first image."""

    hidden: int
    layers: int
    heads: int
    mlp: int
    image_size: int
    patch_size: int
    projection_dim: int = 1024
    hidden_act: str = "gelu"

    @property
    def tokens(self) -> int:
        """Tokens it gives: one a patch and one for the whole."""
        return (self.image_size // self.patch_size) ** 2 + 1


@dataclass(frozen=True)
class LoraSpec:
    """Rank and alpha of the adapter; its effect is scaled by alpha / rank."""

    rank: int
    alpha: float


@dataclass(frozen=True)
class WeightSource:
    """Files of one hub repository. `into` is where they go below the model's folder.

    "base" is plain Wan, "act" and "pm" the official checkpoints, "init" what training starts from, "bundle" a folder
    that `ModelBundle.save_pretrained` wrote.
    """

    role: Literal["base", "act", "pm", "init", "bundle"]
    repo: str
    files: tuple[str, ...]
    into: str = "."
    revision: str = "main"
