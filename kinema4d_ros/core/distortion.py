"""Lens distortion on the normalised image plane: distort, undistort, and the valid range of the model.

Coordinates are (..., 2) float64 x = X / Z, y = Y / Z. The formulas and the order of the coefficients
(k1, k2, p1, p2, k3, k4, k5, k6) are OpenCV's, which ROS uses for `plumb_bob` and `rational_polynomial`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import CameraError, ErrorCode

__all__ = ["MODELS", "LensDistortion"]

Array = NDArray[np.float64]

MODELS = {"plumb_bob": (0, 4, 5), "rational_polynomial": (0, 8)}
"""Accepted numbers of coefficients by model."""

_LARGEST = 1e9
"""Upper bound: real lenses have coefficients below a thousand, and powers of much larger ones overflow."""

_NEWTON_STEPS = 20
_NEWTON_TOLERANCE = 1e-13


@dataclass(frozen=True)
class LensDistortion:
    """Distortion model; no coefficients, or only zeros, is a perfect pinhole."""

    coefficients: tuple[float, ...] = ()
    model: str = "plumb_bob"

    def __post_init__(self) -> None:
        """Reject unknown models, wrong counts and values that are not finite."""
        if self.model not in MODELS:
            raise CameraError(
                f"distortion model '{self.model}' is not supported",
                expected=f"one of {', '.join(MODELS)}",
                hint="calibrate again with a supported model, or rectify the images first and use no distortion",
                code=ErrorCode.CAMERA_BAD_DISTORTION,
            )
        if len(self.coefficients) not in MODELS[self.model]:
            raise CameraError(
                f"distortion model '{self.model}' got {len(self.coefficients)} coefficients",
                expected=" or ".join(map(str, MODELS[self.model])) + " in the order k1, k2, p1, p2, k3, k4, k5, k6",
                code=ErrorCode.CAMERA_BAD_DISTORTION,
            )
        if not np.all(np.abs(self.coefficients) < _LARGEST):
            raise CameraError(
                f"distortion coefficients {list(self.coefficients)} contain NaN, infinity or values out of range",
                expected=f"finite numbers below {_LARGEST:g}",
                code=ErrorCode.CAMERA_BAD_DISTORTION,
            )

    @property
    def is_identity(self) -> bool:
        """True if there is no distortion."""
        return not any(self.coefficients)

    @cached_property
    def _k(self) -> tuple[float, ...]:
        return (*self.coefficients, *(0.0,) * (8 - len(self.coefficients)))

    @cached_property
    def fold_radius(self) -> float:
        """Undistorted radius where the radial curve stops rising (or has a pole); infinite if it always rises.

        Beyond it the model maps several directions to one pixel and is not valid.
        """
        k1, k2, _, _, k3, k4, k5, k6 = self._k
        # r * a(r^2) / b(r^2); its derivative in s = r^2 has the sign of (a + 2 s a') b - 2 s a b'.
        a, b, two_s = np.poly1d([k3, k2, k1, 1.0]), np.poly1d([k6, k5, k4, 1.0]), np.poly1d([2.0, 0.0])
        slope = (a + two_s * a.deriv()) * b - two_s * a * b.deriv()
        roots = np.concatenate([_roots(slope), _roots(b)])
        real = [r.real for r in roots if abs(r.imag) < 1e-9 * max(1.0, abs(r)) and r.real > 0]
        return float(np.sqrt(min(real))) if real else float("inf")

    def _evaluate(self, xy: Array) -> tuple[Array, Array]:
        """Return distorted points (..., 2) and the Jacobian (..., 2, 2)."""
        k1, k2, p1, p2, k3, k4, k5, k6 = self._k
        x, y = xy[..., 0], xy[..., 1]
        s = x * x + y * y
        a, b = 1 + s * (k1 + s * (k2 + s * k3)), 1 + s * (k4 + s * (k5 + s * k6))
        da, db = k1 + s * (2 * k2 + s * 3 * k3), k4 + s * (2 * k5 + s * 3 * k6)
        radial = a / b
        slope = 2 * (da * b - a * db) / (b * b)
        out = np.empty_like(xy)
        out[..., 0] = x * radial + 2 * p1 * x * y + p2 * (s + 2 * x * x)
        out[..., 1] = y * radial + p1 * (s + 2 * y * y) + 2 * p2 * x * y
        J = np.empty((*xy.shape, 2))
        J[..., 0, 0] = radial + slope * x * x + 2 * p1 * y + 6 * p2 * x
        J[..., 0, 1] = J[..., 1, 0] = slope * x * y + 2 * p1 * x + 2 * p2 * y
        J[..., 1, 1] = radial + slope * y * y + 6 * p1 * y + 2 * p2 * x
        return out, J

    def distort(self, xy: ArrayLike) -> Array:
        """Return distorted (..., 2) of undistorted (..., 2); NaN beyond the fold radius."""
        points = np.asarray(xy, dtype=np.float64)
        if self.is_identity:
            return np.array(points)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            out, J = self._evaluate(points)
            valid = (np.linalg.norm(points, axis=-1) < self.fold_radius) & (_determinant(J) > 0)
        out[~valid] = np.nan
        return out

    def undistort(self, xy: ArrayLike, start: ArrayLike | None = None) -> Array:
        """Return undistorted (..., 2) of distorted (..., 2), by Newton's method; NaN where no direction maps there."""
        target = np.asarray(xy, dtype=np.float64)
        if self.is_identity:
            return np.array(target)
        shape = target.shape
        target = target.reshape(-1, 2)
        guess = (target if start is None else np.asarray(start, dtype=np.float64).reshape(-1, 2)).copy()
        active = np.flatnonzero(np.isfinite(target).all(-1) & np.isfinite(guess).all(-1))
        out = np.full_like(target, np.nan)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for _ in range(_NEWTON_STEPS):
                value, J = self._evaluate(guess[active])
                error = value - target[active]
                determinant = _determinant(J)
                done = np.abs(error).max(-1, initial=0.0) < _NEWTON_TOLERANCE * (1 + np.abs(target[active]).max(-1))
                usable = (np.linalg.norm(guess[active], axis=-1) < self.fold_radius) & (determinant > 0)
                out[active[done & usable]] = guess[active[done & usable]]
                step = np.empty_like(error)
                step[:, 0] = (J[:, 1, 1] * error[:, 0] - J[:, 0, 1] * error[:, 1]) / determinant
                step[:, 1] = (J[:, 0, 0] * error[:, 1] - J[:, 1, 0] * error[:, 0]) / determinant
                guess[active] -= step
                active = active[~done & np.isfinite(step).all(-1)]
                if active.size == 0:
                    break
        return out.reshape(shape)

    def require_valid(self, border: Array) -> None:
        """Raise CameraError if any distorted point between the centre and `border` (N, 2) has no direction."""
        if self.is_identity:
            return
        # Small steps along each line keep Newton's method on the branch that starts at the centre.
        found = np.zeros_like(border)
        for s in np.linspace(0.0, 1.0, 33)[1:]:
            found = self.undistort(border * s, start=found)
            bad = ~np.isfinite(found).all(-1)
            if bad.any():
                raise CameraError(
                    f"distortion {list(self.coefficients)} folds over inside the image: it has no solution "
                    f"{float(np.linalg.norm(border[bad][0] * s)):.2f} focal lengths from the centre",
                    expected="a curve that rises up to the corners of the image",
                    hint="the board probably never reached the corners: calibrate again with views that do, or crop",
                    code=ErrorCode.CAMERA_BAD_DISTORTION,
                )


def _roots(polynomial: Any) -> Array:
    """Return the complex roots, without those so large that the polynomial overflows."""
    c = np.asarray(polynomial.coeffs, dtype=np.float64)
    return np.asarray(np.roots(np.where(np.abs(c) < 1e-30 * np.abs(c).max(), 0.0, c)))


def _determinant(J: Array) -> Array:
    return np.asarray(J[..., 0, 0] * J[..., 1, 1] - J[..., 0, 1] * J[..., 1, 0])
