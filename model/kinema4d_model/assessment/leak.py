"""`leak_table`: does the condition reveal the outcome? Classifiers on commanded motion and camera, without images.

A generator whose condition reveals the outcome learns to read the condition instead of the image. A linear model and
nearest neighbours classify picks and near-misses without the image, in five-fold cross-validation. Chance is a
balanced accuracy of 50 %.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.assessment.run import GRASPS
from kinema4d_model.data.episode import Episode
from kinema4d_ros.core.errors import ErrorCode, KinemaError

__all__ = ["LeakTable", "blind_features", "leak_table"]

Floats = NDArray[np.float64]

PARTS = 5
LEAST = 40
"""Minimum number of episodes of each outcome."""

COMPONENTS = 24
NEIGHBOURS = 9
RIDGE = 10.0


@dataclass(frozen=True)
class LeakTable:
    """Accuracy of classifying outcomes without images.

    Attributes:
        episodes, successes: number of episodes and of successes among them.
        accuracies: balanced accuracy by classifier, 0.5 = chance.
        spread: standard deviation of the balanced accuracy at chance for this many episodes.
    """

    episodes: int
    successes: int
    accuracies: dict[str, float]
    spread: float

    @property
    def leaks(self) -> bool:
        """Whether any classifier is more than three spreads above chance."""
        return max(self.accuracies.values()) > 0.5 + 3 * self.spread

    def text(self) -> str:
        """Format the table as one paragraph."""
        said = ", ".join(f"{name} {100 * value:.1f} %" for name, value in self.accuracies.items())
        verdict = "more than chance explains: the condition leaks" if self.leaks else "no better than chance"
        return (
            f"Outcome from the commanded motion and the camera alone, {self.episodes} picks and near-misses "
            f"({self.successes} lifted), balanced accuracy: {said}; "
            f"chance is 50.0 +- {100 * self.spread:.1f} %. {verdict}."
        )


def blind_features(episode: Episode) -> Floats:
    """Return (F,) inputs of a generator other than the image: commands in every frame, and the camera."""
    if episode.actions is None:
        raise KinemaError(
            f"episode '{episode.key}' has no commands", expected="episodes of the lab", code=ErrorCode.FILE_MALFORMED
        )
    camera = episode.camera
    return np.concatenate([episode.actions.ravel(), camera.base_T_camera[:3].ravel(), camera.K.ravel() / camera.width])


def leak_table(episodes: Iterable[Episode], seed: int = 0) -> LeakTable:
    """Compute the table; episodes that are neither picks nor near-misses are skipped."""
    rows, outcomes = [], []
    for episode in episodes:
        if episode.task in GRASPS and episode.outcome.success is not None:
            rows.append(blind_features(episode))
            outcomes.append(bool(episode.outcome.success))
    y = np.array(outcomes)
    if min(int(y.sum()), int((~y).sum())) < LEAST:
        raise KinemaError(
            f"{len(y)} picks and near-misses, {int(y.sum())} of them lifted",
            expected=f"at least {LEAST} of either outcome",
            hint="generate more episodes, or use a larger split",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    x = np.stack(rows)
    part = np.random.default_rng(seed).permutation(len(y)) % PARTS
    said = {"linear": np.zeros(len(y), bool), "neighbours": np.zeros(len(y), bool)}
    for held_out in range(PARTS):
        seen, asked = part != held_out, part == held_out
        train, test = _components(x[seen], x[asked])
        said["linear"][asked] = _linear(train, y[seen], test)
        said["neighbours"][asked] = _neighbours(train, y[seen], test)
    spread = 0.5 * np.sqrt(0.25 / y.sum() + 0.25 / (~y).sum())
    return LeakTable(len(y), int(y.sum()), {name: _balanced(guess, y) for name, guess in said.items()}, float(spread))


def _components(train: Floats, test: Floats) -> tuple[Floats, Floats]:
    """Return standardised principal components of the training part; constant features are dropped."""
    mean, deviation = train.mean(0), train.std(0)
    used = deviation > 1e-9
    a, b = ((part[:, used] - mean[used]) / deviation[used] for part in (train, test))
    _, values, axes = np.linalg.svd(a, full_matrices=False)
    kept = axes[: min(COMPONENTS, int((values > 1e-6 * values[0]).sum()))].T
    scale = (a @ kept).std(0)
    return a @ kept / scale, b @ kept / scale


def _linear(x: Floats, y: NDArray[np.bool_], test: Floats) -> NDArray[np.bool_]:
    """Classify by ridge regression with equal weight of both outcomes."""
    weights = np.where(y, 0.5 / y.mean(), 0.5 / (1 - y.mean()))
    design = np.column_stack([x, np.ones(len(x))])
    left = (design * weights[:, None]).T @ design + RIDGE * np.diag([*np.ones(x.shape[1]), 0.0])
    solved = np.linalg.solve(left, (design * weights[:, None]).T @ np.where(y, 1.0, -1.0))
    return np.asarray(np.column_stack([test, np.ones(len(test))]) @ solved > 0)


def _neighbours(x: Floats, y: NDArray[np.bool_], test: Floats) -> NDArray[np.bool_]:
    """Classify as success if the share of successes among the nearest neighbours exceeds the overall share."""
    distances = ((test[:, None] - x[None]) ** 2).sum(-1)
    nearest = np.argpartition(distances, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
    return np.asarray(y[nearest].mean(1) > y.mean())


def _balanced(said: NDArray[np.bool_], y: NDArray[np.bool_]) -> float:
    return float((said[y].mean() + (~said[~y]).mean()) / 2)
