"""LPIPS, FID, FVD and latent L2 of videos (T, H, W, 3) uint8.

FID and FVD compare DISTRIBUTIONS: with a few images or clips they are large and noisy for any prediction. Use them on
many videos together; `learned_metrics` of one pair is only a rough indication.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kinema4d_model.codec.video_codec import VideoCodec
from kinema4d_model.metrics.weights import EXPECTED, load_codec, load_network
from kinema4d_ros.core.errors import ErrorCode, EvaluationError
from kinema4d_ros.evaluation.images import require_videos

__all__ = ["LEARNED", "fid", "fvd", "latent_l2", "learned_metrics", "lpips"]

LEARNED = (*EXPECTED, "latent_l2")
"""Names accepted by `learned_metrics`."""

_BATCH = 16
_LEAST_SIDE = 32
_CLIP, _STEP = 16, 8

Video = NDArray[np.uint8]


@torch.inference_mode()
def lpips(network: nn.Module, predicted: Video, truth: Video) -> NDArray[np.float64]:
    """Compute the (T,) distance of every frame; `network` is `load_network("lpips", folder)`."""
    a, b = require_videos(predicted, truth)
    if min(a.shape[1:3]) < _LEAST_SIDE:
        raise EvaluationError(
            f"the images are {a.shape[2]} x {a.shape[1]}", expected=f"sides of at least {_LEAST_SIDE}"
        )
    found = [
        network(*(_pictures(video[i : i + _BATCH]).float() / 127.5 - 1 for video in (a, b)))
        for i in range(0, len(a), _BATCH)
    ]
    return torch.cat(found).double().numpy()


def fid(network: nn.Module, predicted: Iterable[Video], truth: Iterable[Video]) -> float:
    """Compute the Frechet distance of the features of all frames of two sets of videos; at least two frames in each."""
    sides = [
        [_pictures(video[i : i + _BATCH]) for video in s for i in range(0, len(video), _BATCH)]
        for s in (predicted, truth)
    ]
    return _frechet(network, sides[0], sides[1], "frames")


def fvd(network: nn.Module, predicted: Iterable[Video], truth: Iterable[Video]) -> float:
    """Compute the Frechet distance of the features of clips of 16 frames, one every 8; at least two clips in each."""
    sides = [
        [_pictures(clip).movedim(0, 1)[None] for video in side for clip in _clips(video)] for side in (predicted, truth)
    ]
    return _frechet(network, sides[0], sides[1], "clips of 16 frames")


@torch.inference_mode()
def latent_l2(codec: VideoCodec, predicted: Video, truth: Video) -> float:
    """Compute the mean squared difference of the latents of two videos with a model's codec; T = 1 + 4 k frames."""
    a, b = require_videos(predicted, truth)
    if (len(a) - 1) % 4 or a.shape[1] % 8 or a.shape[2] % 8:
        raise EvaluationError(
            f"the videos have {len(a)} frames, {a.shape[2]} x {a.shape[1]}",
            expected="1 + 4 k frames, sides of 8 k pixels",
        )
    x, y = (codec.encode(_pictures(video).movedim(0, 1)[None].float() / 127.5 - 1) for video in (a, b))
    return float(((x - y) ** 2).mean())


def learned_metrics(
    names: Sequence[str], predicted: Video, truth: Video, weights: str | Path | None, codec: str | Path | None = None
) -> dict[str, float]:
    """Compute some of `LEARNED` for one pair of videos, by name.

    Args:
        names: of the metrics.
        predicted, truth: videos of one size.
        weights: folder of the pretrained networks.
        codec: model folder whose codec makes the latents; None uses the shipped nano's.

    Raises:
        FileFormatError: FILE_MISSING, with the file that is expected in `weights`.
        EvaluationError: an unknown name, or too few frames.
    """
    unknown = [name for name in names if name not in LEARNED]
    if unknown:
        raise EvaluationError(
            f"'{unknown[0]}' is not a learned metric", expected=", ".join(LEARNED), code=ErrorCode.ARGUMENT_INVALID
        )
    a, b = require_videos(predicted, truth)
    networks: dict[str, Any] = {
        name: load_codec(codec) if name == "latent_l2" else load_network(name, weights) for name in names
    }
    found: dict[str, float] = {}
    for name, network in networks.items():
        if name == "latent_l2":
            found[name] = latent_l2(network, a, b)
        elif name == "lpips":
            found[name] = float(lpips(network, a, b).mean())
        else:
            found[name] = (fid if name == "fid" else fvd)(network, [a], [b])
    return found


def _frechet(network: nn.Module, predicted: list[torch.Tensor], truth: list[torch.Tensor], what: str) -> float:
    from torchmetrics.image.fid import FrechetInceptionDistance

    counts = [sum(len(batch) for batch in side) for side in (predicted, truth)]
    if min(counts) < 2:
        raise EvaluationError(f"the sets have {counts[0]} and {counts[1]} {what}", expected="at least two in each")
    distance: Any = FrechetInceptionDistance(feature=network)
    with torch.inference_mode():
        for side, real in ((predicted, False), (truth, True)):
            for batch in side:
                distance.update(batch, real=real)
    return float(distance.compute())


def _clips(video: Video) -> list[Video]:
    return [video[i : i + _CLIP] for i in range(0, len(video) - _CLIP + 1, _STEP)]


def _pictures(video: Video) -> torch.Tensor:
    """Convert to (T, 3, H, W) uint8."""
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(np.asarray(video), -1, 1)))
