"""`DiffusionChunkPolicy`: inference of our small trained Diffusion Policy; policy kind `diffusion`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kinema4d_model.policies.examples import to_picture
from kinema4d_model.policies.folder import read_policy
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.policies.protocol import ActionChunk, EpisodeStart, Observation, PolicyError
from kinema4d_ros.robot.model import Robot

__all__ = ["DiffusionChunkPolicy", "paced"]

# `paced`: limit learned joint targets to the arm's position and velocity limits.

SPEED_SHARE = 0.9


def paced(
    robot: Robot, joints: NDArray[np.float64], start: NDArray[np.float64], period_s: float
) -> NDArray[np.float64]:
    """Return (N, J) targets, each within one period's maximum motion of the one before, beginning at `start` (J,)."""
    # The controller's cubic interpolation can be 1.5 times as fast as the mean between two samples.
    reach = SPEED_SHARE * np.array([joint.limits.velocity for joint in robot.actuated]) * period_s
    out = np.empty_like(joints)
    last = start
    for i, wanted in enumerate(np.clip(joints, robot.lower, robot.upper)):
        last = last + np.clip(wanted - last, -reach, reach)
        out[i] = last
    return out


PATIENCE = 1.3
"""Maximum length of an episode, as a multiple of the longest demonstration."""


class DiffusionChunkPolicy:
    """Policy from image and joints to the next joint targets.

    Args:
        source: folder written by `kinema4d policy train`, or its `policy` subfolder.
        steps: actions of a chunk to execute before the next prediction; 0 = half of the chunk.
        seed: additional seed of the noise.
    """

    def __init__(self, source: str = "", *, steps: int = 0, seed: int = 0) -> None:
        root = Path(source)
        if not source or not root.is_dir():
            raise PolicyError(
                f"policy folder '{source}' does not exist",
                expected="the folder of a trained policy: diffusion:FOLDER",
                hint="train one: kinema4d policy demos, then kinema4d policy train",
                code=ErrorCode.POLICY_UNAVAILABLE,
            )
        self._trained = read_policy(root / "policy" if (root / "policy").is_dir() else root)
        horizon = self._trained.network.config.horizon
        if type(steps) is not int or not 0 <= steps <= horizon or type(seed) is not int or seed < 0:
            raise PolicyError(
                f"steps is {steps!r}, seed is {seed!r}",
                expected=f"0 to {horizon} steps, seed 0 or more",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        self._steps, self._seed, self._name = steps or horizon // 2, seed, f"diffusion:{root.name}"
        self._start: EpisodeStart | None = None
        self._last: NDArray[np.float64] | None = None
        self._calls = 0

    @property
    def name(self) -> str:
        """`diffusion:` and the name of the folder."""
        return self._name

    def reset(self, start: EpisodeStart) -> None:
        """Begin an episode.

        Raises:
            PolicyError: the policy was trained for another robot.
        """
        if start.robot.joint_names != self._trained.joint_names:
            raise PolicyError(
                f"'{self._name}' moves robot '{self._trained.robot}' with {', '.join(self._trained.joint_names)}, "
                f"not '{start.robot.name}'",
                expected=f"joints {', '.join(start.robot.joint_names)}",
            )
        self._start, self._last, self._calls = start, None, 0

    def act(self, observation: Observation) -> ActionChunk:
        """Predict the next targets from the image and joints.

        Raises:
            PolicyError: no episode, another camera pose, or another number of joints.
        """
        if self._start is None:
            raise PolicyError("there is no episode", expected="reset before act")
        trained, n = self._trained, self._trained.numbers
        joints = np.asarray(observation.joints, dtype=np.float32)
        if joints.shape != n.joints_mean.shape:
            raise PolicyError(f"joints have shape {joints.shape}", expected=f"{n.joints_mean.shape}")
        view = trained.view.of(observation.image, observation.camera)
        generator = torch.Generator().manual_seed(
            int(np.random.SeedSequence([self._seed, self._start.seed, self._calls]).generate_state(1)[0])
        )
        shape = (1, trained.network.config.horizon, len(joints))
        chunk = trained.network.sample(
            to_picture(view[None]),
            torch.from_numpy((joints - n.joints_mean) / n.joints_spread)[None],
            torch.randn(shape, generator=generator),
        )[0]
        targets = (chunk.numpy() * n.chunk_spread + n.chunk_mean).astype(np.float64)[: self._steps]
        targets[:, :-1] += joints[:-1]
        self._calls += 1
        period = 1.0 / trained.rate_hz
        begin = np.asarray(observation.joints, np.float64) if self._last is None else self._last
        made = paced(self._start.robot, targets, begin, period)
        self._last = made[-1]
        times = np.asarray(period * np.arange(1, len(made) + 1), np.float64)
        over = observation.time_s + times[-1] >= PATIENCE * trained.duration_s
        return ActionChunk(times, made, done=bool(over))

    def close(self) -> None:
        """Discard the episode."""
        self._start = None
