"""Training examples from demonstrations: image, joints, the following action chunk, and the grasp."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from kinema4d_model.policies.folder import Numbers
from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.io.files import read_json
from kinema4d_ros.policies.demos import read_demo
from kinema4d_ros.policies.protocol import PolicyError

__all__ = ["Batch", "Examples", "to_picture"]

SPREAD_RAD = 0.01
"""Minimum spread for normalisation, so that nearly constant values are not amplified."""

STATE_NOISE_RAD = 0.01
BLUR_SHARE = 0.3

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Batch:
    """Normalised tensors for `PolicyNetwork.loss`."""

    image: Tensor
    joints: Tensor
    chunk: Tensor
    grasp: Tensor


class Examples:
    """All successful demonstrations of a folder, in memory.

    Args:
        folder: written by `kinema4d policy demos`.
        horizon: actions per chunk.
        first: use only the first episodes; 0 = all.

    Raises:
        PolicyError: no demonstrations, or broken ones.
    """

    def __init__(self, folder: str | Path, horizon: int, first: int = 0) -> None:
        root = Path(folder)
        self.about = _about(root)
        demos = [read_demo(path) for path in sorted(root.glob("episode_*.npz"))[: first or None]]
        kept = [demo for demo in demos if demo.lifted and len(demo.image)]
        if not kept:
            raise PolicyError(
                f"{root} has {len(demos)} demonstrations, none of them a success",
                expected="at least one",
                hint="kinema4d policy demos --out DIR",
                code=ErrorCode.POLICY_UNAVAILABLE,
            )
        self.episodes = len(kept)
        self.horizon = horizon
        self.image = np.concatenate([demo.image for demo in kept])
        self.state = np.concatenate([demo.state for demo in kept])
        ahead = [np.minimum(np.arange(len(d.image))[:, None] + np.arange(horizon), len(d.image) - 1) for d in kept]
        self.action = np.concatenate([demo.action[rows] for demo, rows in zip(kept, ahead, strict=True)])
        self.grasp = np.concatenate(
            [np.repeat(grasp_joints(demo.action)[None], len(demo.image), axis=0) for demo in kept]
        )
        self.longest = max(len(demo.image) for demo in kept)
        self.numbers = self._numbers()

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.image)

    def batch(self, rng: np.random.Generator, size: int) -> Batch:
        """Return random samples, augmented by joint noise and by changes of brightness and sharpness."""
        rows = rng.integers(len(self), size=size)
        noise = (STATE_NOISE_RAD * rng.standard_normal((size, self.state.shape[1]))).astype(np.float32)
        noise[:, -1] *= 0.1
        state = self.state[rows] + noise
        n = self.numbers
        chunk = (relative(self.action[rows], state) - n.chunk_mean) / n.chunk_spread
        return Batch(
            _disturbed(to_picture(self.image[rows]), rng),
            torch.from_numpy((state - n.joints_mean) / n.joints_spread),
            torch.from_numpy(chunk),
            torch.from_numpy((self.grasp[rows] - n.grasp_mean) / n.grasp_spread),
        )

    def _numbers(self) -> Numbers:
        chunk = relative(self.action, self.state)

        def spread(values: Floats) -> Floats:
            return np.maximum(values.std(axis=0), SPREAD_RAD * (0.2 if values.ndim == 1 else 1.0)).astype(np.float32)

        spreads = spread(chunk)
        spreads[:, -1] = np.maximum(chunk[..., -1].std(axis=0), 0.1 * SPREAD_RAD)
        joints = spread(self.state)
        joints[-1] = max(float(self.state[:, -1].std()), 0.1 * SPREAD_RAD)
        return Numbers(
            self.state.mean(axis=0), joints, chunk.mean(axis=0), spreads, self.grasp.mean(axis=0), spread(self.grasp)
        )


def relative(action: Floats, state: Floats) -> Floats:
    """Return (B, horizon, J): arm joints relative to the state (B, J), gripper absolute."""
    out = action.copy()
    out[..., :-1] -= state[:, None, :-1]
    return out


def grasp_joints(action: Floats) -> Floats:
    """Return (J - 1,) arm joints where the fingers are widest and begin to close."""
    fingers = action[:, -1]
    last = int(np.flatnonzero(fingers >= fingers.max() - 1e-4)[-1])
    return np.asarray(action[last, :-1], np.float32)


def to_picture(image: NDArray[np.uint8]) -> Tensor:
    """Convert (B, H, W, 3) uint8 to (B, 3, H, W) float32 in -1 to 1."""
    return torch.from_numpy(np.ascontiguousarray(image)).permute(0, 3, 1, 2).float() / 127.5 - 1.0


def _disturbed(image: Tensor, rng: np.random.Generator) -> Tensor:
    b, _, h, w = image.shape
    gain = torch.from_numpy(rng.uniform(0.85, 1.15, (b, 3, 1, 1)).astype(np.float32))
    shift = torch.from_numpy(rng.uniform(-0.1, 0.1, (b, 1, 1, 1)).astype(np.float32))
    # Predicted images are softer than real ones.
    blurred = torch.from_numpy(rng.random(b) < BLUR_SHARE)
    if bool(blurred.any()):
        small = functional.interpolate(image[blurred], size=(h // 3, w // 3), mode="area")
        image[blurred] = functional.interpolate(small, size=(h, w), mode="bilinear", align_corners=False)
    return image * gain + shift


def _about(root: Path) -> dict[str, Any]:
    try:
        about = read_json(root / "demos.json")
        needed = ("robot", "joint_names", "rate_hz", "view", "scenario")
        missing = [key for key in needed if key not in about]
    except (FileFormatError, ValueError, TypeError) as error:
        raise PolicyError(
            f"{root} holds no demonstrations: {error}",
            expected="a folder written by kinema4d policy demos",
            code=ErrorCode.POLICY_UNAVAILABLE,
        ) from None
    if missing:
        raise PolicyError(f"{root / 'demos.json'} lacks {', '.join(missing)}", expected="a folder of demonstrations")
    return dict(about)
