"""Parts of a preset: settings of network, codec, conditions, sampler, speed options, adapter and weights."""

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
    "MotionSpec",
    "RobotSpec",
    "SamplerSpec",
    "SpeedSpec",
    "TransformerSpec",
    "WeightSource",
]


class Ablation(str, Enum):
    """Robot condition that the network receives: the rows of the paper's ablation table."""

    RGB_POINTMAP = "rgb_pointmap"
    """Robot image and robot pointmap: the full condition."""
    POINTMAP = "pointmap"
    """Robot pointmap only; the RGB half is empty."""
    RGB = "rgb"
    """Robot image only; the pointmap half is empty."""
    DEPTH = "depth"
    """The pointmap's z on all three channels; no x and y."""
    BINARY_MASK = "binary_mask"
    """The silhouette, white on black, in both halves."""
    NO_MASK = "no_mask"
    """The full condition without the guided mask."""
    EMBEDDING = "embedding"
    """One token per frame from the action vector; no pixel-aligned condition."""
    TEXT = "text"
    """Text embeddings given by the caller; no robot condition."""
    NULL = "null"
    """No robot condition: the baseline for every other row."""


@dataclass(frozen=True)
class TransformerSpec:
    """Sizes of diffusers' `WanTransformer3DModel`; `image_dim` None omits the CLIP branch."""

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
    """Codec: "wan" is diffusers' `AutoencoderKLWan` of these sizes, with the statistics that normalise its latents.

    "linear" (`codec/linear.py`) uses `latent_channels` and the two factors; its statistics are stored in its weights.

    `decoding` is how the two halves are decoded: "apart", as they were encoded in training; "joint", as one image of
    double width, as the released code does; "auto": joint with `guidance: compat`.
    """

    kind: Literal["wan", "linear"] = "wan"
    decoding: Literal["auto", "apart", "joint"] = "auto"
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
    """Robot input: "act" takes the robot image and pointmap, "pm" the pointmap only."""

    variant: Literal["act", "pm"]
    hidden: int
    token_patch: int
    position_grid: tuple[int, int, int]
    action_dim: int | None = None


@dataclass(frozen=True)
class ConditionSpec:
    """Contents of the condition: the ablation, the soft mask, the environment's pointmap.

    `fill` sets the condition after the first frame: "zeros", as in Wan, or "composite" (the first frame's static scene
    with the exact robot), which then replaces frame 0 as well. `carry` adds what the camera would see if the object
    between the closing fingers moved with the gripper (`kinema4d_ros.generators.carry`); the network then selects
    between the two for each cell, and adds what neither shows.

    `normalisation` maps points to [0, 1] (`pipeline/normalise.py`): "per_axis" by the sequence's minimum and maximum on
    each axis, "one_scale" with the largest of the three spans for all axes, "per_frame" clipped to 2-98 % and centred
    frame by frame with one scale, as 4DNeX. `padding` completes a short sequence: "repeat" the last frame up to the
    codec's next group, or "mirror" it in time up to the preset's length, as the released code.
    """

    ablation: Ablation = Ablation.RGB_POINTMAP
    mask: bool = True
    soft_ratio: float = 0.0
    environment: bool = False
    fill: Literal["zeros", "composite"] = "zeros"
    carry: bool = False
    normalisation: Literal["per_axis", "one_scale", "per_frame"] = "per_axis"
    padding: Literal["repeat", "mirror"] = "repeat"


@dataclass(frozen=True)
class BlendSpec:
    """Conversion of a prediction with `condition.carry` into frames at the camera's size (`pipeline/blend.py`).

    Attributes:
        decision: factor that sharpens the gate around 0.5; 1 leaves it unchanged.
        colour, depth: share of the rest (what neither world shows) that is applied; 0 ignores it.
        blur_px: blur of the rest's colours, pixels at the network's size.
    """

    decision: float = 4.0
    colour: float = 1.0
    depth: float = 1.0
    blur_px: float = 0.0


@dataclass(frozen=True)
class SamplerSpec:
    """Sampler from noise to a prediction.

    Attributes:
        kind: solver.
        steps: number of steps.
        shift: flow shift of the noise levels.
        guidance: "none" is one pass per step, "compat" the two of the released code, weighted by `guidance_scale`.
        trained_shift: flow shift of the base model, which its `scheduler/` must state; None = same as `shift`.
        grid: noise levels of UniPC before the shift, `sampling.UNIPC_GRIDS`: "released" or "even".
        noise_seed: seed of the noise of a request with seed 0; the request's seed is added. The released code uses 42.
    """

    kind: Literal["euler", "unipc"] = "unipc"
    steps: int = 50
    shift: float = 3.0
    guidance: Literal["none", "compat"] = "none"
    guidance_scale: float = 5.0
    trained_shift: float | None = None
    grid: Literal["released", "even"] = "released"
    noise_seed: int = 0

    @property
    def base_shift(self) -> float:
        """Flow shift that the base model was trained with."""
        return self.shift if self.trained_shift is None else self.trained_shift


@dataclass(frozen=True)
class SpeedSpec:
    """Options that make a rollout faster or smaller; `speed/` applies them, `kinema4d cost` estimates their effect.

    Attributes:
        dtype: of the weights; norms and time embedding stay in float32.
        image_dtype: of the image encoder: "float32" as released, or "same" as `dtype`.
        quantise: store the weights of the blocks in one byte each.
        attention: "auto", or a back-end of diffusers' dispatcher.
        cache_threshold: of the first-block step cache; None = no cache, 0 = never skips.
        offload: "model" keeps one part at a time on the device, "group" two blocks at a time.
        tiling: run the codec in tiles.
        compile: torch.compile, block by block, with `compile_backend`.
        context_parallel: number of GPUs that share one rollout.
    """

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    image_dtype: Literal["float32", "same"] = "float32"
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
    """Sizes of transformers' `CLIPVisionModel`, which encodes the first image."""

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
        """Number of output tokens: one per patch and one for the whole image."""
        return (self.image_size // self.patch_size) ** 2 + 1


@dataclass(frozen=True)
class LoraSpec:
    """Rank and alpha of the adapter; its effect is scaled by alpha / rank."""

    rank: int
    alpha: float


@dataclass(frozen=True)
class MotionSpec:
    """Motion rate of the training videos: every `stride`-th frame of recordings at `source_hz`, played as they are.

    The network then sees frames `period_s` apart, and plans longer than its frames are split into chunks; without this
    it sees the frames of the request.
    """

    source_hz: float
    stride: int

    @property
    def period_s(self) -> float:
        """Time between two frames that the network sees, seconds."""
        return self.stride / self.source_hz


@dataclass(frozen=True)
class WeightSource:
    """Files of one hub repository; `into` is their destination below the model's folder.

    "base" is plain Wan, "act" and "pm" are the official checkpoints, "init" is the starting point of training, "bundle"
    is a folder written by `ModelBundle.save_pretrained`.
    """

    role: Literal["base", "act", "pm", "init", "bundle"]
    repo: str
    files: tuple[str, ...]
    into: str = "."
    revision: str = "main"
