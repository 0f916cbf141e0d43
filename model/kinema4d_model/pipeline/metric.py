"""Metric scale of a predicted pointmap: fit scale and offset of each axis on the exactly known robot pixels.

    predicted, normalised to about [0, 1]  ──┐  value = gain * metres + shift, per axis, robust
    exact robot pointmap, metres ────────────┘  -> metres = (value - shift) / gain everywhere

Where every frame was centred on its own (`per_frame`), every frame has an offset of its own, from its robot pixels.

The exact points have no error and the predicted ones do, so the fit regresses values on metres and inverts the line
afterwards: the opposite regression would let noise shrink the world.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, GeneratorError

__all__ = ["MetricFit", "MetricLimits", "bounds_fit", "fit_metric"]

AXES = ("x", "y", "z")
_PAIRS = 120
_SCORED = 1500
_ROUNDS = 20
_TUKEY = 4.685
"""In standard deviations: Tukey's biweight then has 95 % efficiency on normal data."""
_SMALLEST_NOISE = 1e-7
"""In normalised values: below float32 resolution, so that exact data still has a non-zero noise scale."""

Points = NDArray[np.float64]


@dataclass(frozen=True)
class MetricLimits:
    """Limits beyond which a fit is refused.

    Attributes:
        min_pixels: minimum number of robot pixels over all frames.
        min_frame_pixels: minimum number in a frame to correct the offset of that frame alone.
        min_spread_m: minimum 5 % to 95 % range of the robot's points on each axis, metres.
        max_noise: maximum residual of an axis as a share of that range; above it the prediction does not follow the
            robot.
        min_inliers: minimum share of pixels that the fit of an axis explains.
        max_condition: maximum condition number of an axis; large when the robot is a small patch far from the origin.
        max_pixels: larger sets are subsampled evenly.
    """

    min_pixels: int = 200
    min_frame_pixels: int = 50
    min_spread_m: float = 0.02
    max_noise: float = 0.25
    min_inliers: float = 0.5
    max_condition: float = 1000.0
    max_pixels: int = 200_000


@dataclass(frozen=True, eq=False)
class MetricFit:
    """Map from normalised values to metres: `metres = scale * value + offset` on each axis.

    Attributes:
        scale: (3,) float64, metres per unit, positive.
        offset: (3,) float64, metres; (T, 3) if every frame has its own.
        axis_residual_m: (3,) float64, RMS over the inliers, metres.
        residual_m: RMS distance over all robot pixels, outliers included, metres.
        condition: (3,) float64, condition number of each axis.
        inliers: (3,) float64, share of pixels that are inliers.
        pixels: number of robot pixels used.
        refused: why the fit was refused and the bounds of the condition are used instead; "" for a fit.
    """

    scale: NDArray[np.float64]
    offset: NDArray[np.float64]
    axis_residual_m: NDArray[np.float64]
    residual_m: float
    condition: NDArray[np.float64]
    inliers: NDArray[np.float64]
    pixels: int
    refused: str = ""

    def apply(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Convert normalised values (..., 3) to metres (..., 3) float32; (T, H, W, 3) if every frame has an offset."""
        offset = self.offset.astype(np.float32)
        offset = offset if offset.ndim == 1 else offset[:, None, None]
        out: NDArray[np.float32] = values * self.scale.astype(np.float32) + offset
        return out

    def summary(self) -> str:
        """Return a one-line summary for provenance and logs."""
        if self.refused:
            return f"bounds of the condition, residual {1000 * self.residual_m:.1f} mm; fit refused: {self.refused}"
        condition = "/".join(f"{c:.0f}" for c in self.condition)
        return (
            f"fit on {self.pixels} robot pixels, residual {1000 * self.residual_m:.1f} mm, "
            f"condition {condition}, inliers {self.inliers.min():.0%}"
        )


def fit_metric(
    values: NDArray[np.float32],
    robot_xyz: NDArray[np.float32],
    mask: NDArray[np.bool_],
    limits: MetricLimits | None = None,
    per_frame: NDArray[np.float64] | None = None,
) -> MetricFit:
    """Fit the map from predicted values to metres on the robot's pixels.

    Args:
        values: (T, H, W, 3) float32, predicted pointmap, normalised, any affine scale.
        robot_xyz: (T, H, W, 3) float32, metres, camera optical frame; read under the mask only.
        mask: (T, H, W) bool, True = robot. Pixels on its edge mix robot and world and are excluded while enough
            others remain.
        limits: when to refuse.
        per_frame: (2, T, 3) metres, what maps to 0 and 1 in each frame, if the condition was centred per frame.

    Raises:
        GeneratorError: METRIC_REFUSED when the robot's pixels do not determine a fit.
    """
    limits = limits or MetricLimits()
    if per_frame is not None:
        return _fit_frames(values, robot_xyz, mask, limits, per_frame)
    predicted, exact = robot_pixels(values, robot_xyz, mask, limits)
    if len(exact) < limits.min_pixels:
        raise _refuse(f"the robot covers {len(exact)} pixels", f"at least {limits.min_pixels} over all frames")
    gains, shifts = np.empty(3), np.empty(3)
    residuals, conditions, inliers = np.empty(3), np.empty(3), np.empty(3)
    for axis, name in enumerate(AXES):
        x, v = exact[:, axis], predicted[:, axis]
        low, high = np.percentile(x, (5, 95))
        spread = float(high - low)
        if spread < limits.min_spread_m:
            raise _refuse(
                f"the robot spans {1000 * spread:.1f} mm on the {name} axis", f"{1000 * limits.min_spread_m:g} mm"
            )
        gain, shift, weights = _robust_line(x, v)
        if not gain > 0:
            raise _refuse(f"the prediction runs backwards on the {name} axis (gain {gain:.3g})", "a positive gain")
        error_m = (v - gain * x - shift) / gain
        counted = weights > 0
        gains[axis], shifts[axis] = gain, shift
        residuals[axis] = float(np.sqrt(np.mean(error_m[counted] ** 2)))
        inliers[axis] = float(counted.mean())
        conditions[axis] = _condition(x[counted])
        if inliers[axis] < limits.min_inliers:
            raise _refuse(f"only {inliers[axis]:.0%} of the robot's pixels agree on the {name} axis", "most of them")
        if residuals[axis] > limits.max_noise * spread:
            raise _refuse(
                f"the predicted robot is {1000 * residuals[axis]:.1f} mm off on the {name} axis, "
                f"where it spans {1000 * spread:.1f} mm",
                f"less than {limits.max_noise:.0%} of it",
            )
        if conditions[axis] > limits.max_condition:
            raise _refuse(f"the {name} axis has condition number {conditions[axis]:.0f}", f"{limits.max_condition:g}")
    scale, offset = 1.0 / gains, -shifts / gains
    distance = predicted * scale + offset - exact
    rms = float(np.sqrt(np.mean(np.sum(distance**2, -1))))
    return MetricFit(scale, offset, residuals, rms, conditions, inliers, len(exact))


def _fit_frames(
    values: NDArray[np.float32],
    robot_xyz: NDArray[np.float32],
    mask: NDArray[np.bool_],
    limits: MetricLimits,
    per_frame: NDArray[np.float64],
) -> MetricFit:
    """Fit one scale per axis and one offset per axis and frame.

    A prediction is centred on its own content, to which the condition's centres are only close. So the scale is fitted
    on differences to the frame's own median, and the medians give the offset. A frame with too few robot pixels keeps
    the condition's centre, moved as in the other frames.
    """
    values_at, exact_at = np.zeros((len(mask), 3)), np.zeros((len(mask), 3))
    enough = np.zeros(len(mask), bool)
    for t in range(len(mask)):
        predicted, exact = robot_pixels(values[t : t + 1], robot_xyz[t : t + 1], mask[t : t + 1], limits)
        enough[t] = len(exact) >= limits.min_frame_pixels
        if enough[t]:
            values_at[t], exact_at[t] = np.median(predicted, axis=0), np.median(exact, axis=0)
    fit = fit_metric(
        (values - values_at[:, None, None]).astype(np.float32),
        (robot_xyz - exact_at[:, None, None]).astype(np.float32),
        mask & enough[:, None, None],
        limits,
    )
    condition = fit.scale * per_frame[0] / (per_frame[1] - per_frame[0])
    offset = exact_at + fit.offset - fit.scale * values_at
    moved = np.median((offset - condition)[enough], axis=0)
    offset = np.where(enough[:, None], offset, condition + moved)
    done = replace(fit, offset=offset)
    left = (done.apply(values).astype(np.float64) - robot_xyz)[mask]
    left = left[np.isfinite(left).all(-1)]
    return replace(done, residual_m=float(np.sqrt(np.mean(np.sum(left**2, -1)))))


def bounds_fit(
    bounds: NDArray[np.float64],
    values: NDArray[np.float32],
    robot_xyz: NDArray[np.float32],
    mask: NDArray[np.bool_],
    refused: str,
) -> MetricFit:
    """Return the fallback without a fit: the bounds in metres that normalised the condition, (2, 3) or (2, T, 3).

    The residual is still measured on the robot's pixels; 0 when none is in view.
    """
    scale, offset = (bounds[1] - bounds[0]).reshape(-1, 3)[0], bounds[0].copy()
    common = values
    if offset.ndim == 2:  # as if all frames had the first frame's bounds
        common = (values + ((offset - offset[0]) / scale)[:, None, None]).astype(np.float32)
    predicted, exact = robot_pixels(common, robot_xyz, mask, MetricLimits())
    distance = predicted * scale + offset.reshape(-1, 3)[0] - exact
    some = len(exact) > 0
    return MetricFit(
        scale,
        offset,
        np.sqrt(np.mean(distance**2, 0)) if some else np.zeros(3),
        float(np.sqrt(np.mean(np.sum(distance**2, -1)))) if some else 0.0,
        np.full(3, np.nan),
        np.zeros(3),
        len(exact),
        refused,
    )


def robot_pixels(
    values: NDArray[np.float32], robot_xyz: NDArray[np.float32], mask: NDArray[np.bool_], limits: MetricLimits
) -> tuple[Points, Points]:
    """Return (N, 3) float64 predicted values and exact metres of the robot's inner pixels, evenly subsampled."""
    if values.shape != (*mask.shape, 3) or robot_xyz.shape != values.shape or mask.ndim != 3:
        raise GeneratorError(
            f"values {values.shape}, robot {robot_xyz.shape} and mask {mask.shape} do not match",
            expected="(T, H, W, 3), (T, H, W, 3) and (T, H, W)",
            code=ErrorCode.GENERATOR_BAD_REQUEST,
        )
    chosen = _inner(mask)
    if int(chosen.sum()) < limits.min_pixels:
        chosen = mask
    where = np.flatnonzero(chosen)
    where = where[:: max(1, -(-where.size // limits.max_pixels))]
    predicted = values.reshape(-1, 3)[where].astype(np.float64)
    exact = robot_xyz.reshape(-1, 3)[where].astype(np.float64)
    good = np.isfinite(predicted).all(-1) & np.isfinite(exact).all(-1)
    return predicted[good], exact[good]


def _inner(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    inner = mask.copy()
    inner[:, 1:] &= mask[:, :-1]
    inner[:, :-1] &= mask[:, 1:]
    inner[:, :, 1:] &= mask[:, :, :-1]
    inner[:, :, :-1] &= mask[:, :, 1:]
    return inner


def _robust_line(x: Points, v: Points) -> tuple[float, float, Points]:
    """Fit v = gain * x + shift; return gain, shift, weights. Tolerates about 40 % outliers."""
    gain, shift = _least_median(x, v)
    weights = np.ones_like(x)
    for _ in range(_ROUNDS):
        residual = v - gain * x - shift
        noise = max(1.4826 * float(np.median(np.abs(residual))), _SMALLEST_NOISE)
        weights = np.clip(1.0 - (residual / (_TUKEY * noise)) ** 2, 0.0, None) ** 2
        total = weights.sum()
        mean_x, mean_v = float(weights @ x / total), float(weights @ v / total)
        deviation = x - mean_x
        variance = float(weights @ deviation**2)
        if variance <= 0.0:
            return 0.0, mean_v, weights
        previous = gain
        gain = float(weights @ (deviation * (v - mean_v)) / variance)
        shift = mean_v - gain * mean_x
        if abs(gain - previous) <= 1e-12 * max(abs(gain), 1e-12):
            break
    return gain, shift, weights


def _least_median(x: Points, v: Points) -> tuple[float, float]:
    """Fit an initial line robust to outliers: the pair of points with the least median residual."""
    random = np.random.default_rng(0)
    first = random.integers(0, x.size, 20 * _PAIRS)
    second = random.integers(0, x.size, 20 * _PAIRS)
    apart = np.abs(x[first] - x[second])
    # Distant pairs determine the gain best; half the span keeps enough of them for any robot.
    wide = np.flatnonzero(apart > 0.5 * apart.max())[:_PAIRS]
    first, second = first[wide], second[wide]
    gains = (v[first] - v[second]) / (x[first] - x[second])
    shifts = v[first] - gains * x[first]
    step = max(1, x.size // _SCORED)
    residual = np.abs(v[None, ::step] - gains[:, None] * x[None, ::step] - shifts[:, None])
    best = int(np.median(residual, axis=1).argmin())
    return float(gains[best]), float(shifts[best])


def _condition(x: Points) -> float:
    """Return the condition number of the matrix [x, 1]."""
    moments = np.array([[np.mean(x**2), np.mean(x)], [np.mean(x), 1.0]])
    low, high = np.linalg.eigvalsh(moments)
    return float(np.sqrt(high / low)) if low > 0 else float("inf")


def _refuse(what: str, expected: str) -> GeneratorError:
    return GeneratorError(
        f"no metric fit: {what}",
        expected=expected,
        hint="move the camera so that it sees more of the robot",
        code=ErrorCode.METRIC_REFUSED,
    )
