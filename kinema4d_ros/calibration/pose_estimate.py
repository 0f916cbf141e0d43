"""Camera pose estimates with covariance: small pose changes, confidence regions, comparison of results.

A small change of `base_T_camera` is six numbers: a shift (3,) in metres along the base's axes and a turn (3,), a
rotation vector in radians about the camera's axes: `R' = R exp(turn)`, `t' = t + shift`.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation
from scipy.special import chdtri, fdtri

from kinema4d_ros.calibration.extrinsics import Extrinsics
from kinema4d_ros.calibration.quality import Finding, Quality, finding, sorted_findings
from kinema4d_ros.core.errors import CalibrationError, ErrorCode
from kinema4d_ros.core.transforms import make

__all__ = [
    "Agreement",
    "Comparison",
    "PoseEstimate",
    "agreement",
    "changed",
    "check_against",
    "compare",
    "difference",
    "mean_pose",
    "region_threshold",
]

Array = NDArray[np.float64]


def changed(a_T_b: ArrayLike, change: ArrayLike) -> Array:
    """Apply a small change (6,) to a pose; return (4, 4)."""
    T, d = np.asarray(a_T_b, dtype=np.float64), np.asarray(change, dtype=np.float64)
    return make(T[:3, :3] @ Rotation.from_rotvec(d[3:]).as_matrix(), T[:3, 3] + d[:3])


def difference(a_T_b: ArrayLike, a_T_c: ArrayLike) -> Array:
    """Compute the change (6,) from the first pose to the second."""
    T, U = np.asarray(a_T_b, dtype=np.float64), np.asarray(a_T_c, dtype=np.float64)
    turn = Rotation.from_matrix(T[:3, :3].T @ U[:3, :3]).as_rotvec()
    return np.concatenate([U[:3, 3] - T[:3, 3], turn])


def mean_pose(poses: ArrayLike) -> Array:
    """Average poses (N, 4, 4) to (4, 4): median position, which is robust to one bad pose, and mean orientation."""
    T = np.asarray(poses, dtype=np.float64)
    return make(Rotation.from_matrix(T[:, :3, :3]).mean().as_matrix(), np.median(T[:, :3, 3], axis=0))


def region_threshold(degrees_of_freedom: float, share: float = 0.95) -> float:
    """Compute the squared Mahalanobis distance of the confidence region with probability `share`, for six parameters.

    Uses Hotelling's distribution, because a covariance estimated from few independent samples is itself uncertain.
    """
    if degrees_of_freedom > 500:
        return float(chdtri(6, 1 - share))
    nu = max(degrees_of_freedom, 7.0)
    return float(6 * nu / (nu - 5) * fdtri(6, nu - 5, share))


@dataclass(frozen=True, eq=False)
class PoseEstimate:
    """Camera pose with covariance and quality.

    Attributes:
        base_T_camera: (4, 4) float64, metres.
        covariance: (6, 6) of a small change of the pose.
        degrees_of_freedom: of the covariance estimate.
        quality: residuals and findings.
        method: calibration method.
        notes: free text.
    """

    base_T_camera: Array
    covariance: Array
    degrees_of_freedom: float
    quality: Quality
    method: str
    notes: str = field(default="")

    @property
    def sigma_mm(self) -> float:
        """Standard deviation of the position along its worst direction, millimetres."""
        return float(1e3 * np.sqrt(np.linalg.eigvalsh(self.covariance[:3, :3])[-1]))

    @property
    def sigma_deg(self) -> float:
        """Standard deviation of the orientation about its worst axis, degrees."""
        return float(np.degrees(np.sqrt(np.linalg.eigvalsh(self.covariance[3:, 3:])[-1])))

    def distance(self, base_T_camera: ArrayLike) -> float:
        """Compute the squared Mahalanobis distance of another pose."""
        d = difference(self.base_T_camera, base_T_camera)
        return float(d @ np.linalg.solve(self.covariance, d))

    def contains(self, base_T_camera: ArrayLike, share: float = 0.95) -> bool:
        """Check whether a pose lies in the confidence region with probability `share`."""
        return self.distance(base_T_camera) <= region_threshold(self.degrees_of_freedom, share)

    def extrinsics(self, parent_frame: str = "base_link", child_frame: str = "camera_optical_frame") -> Extrinsics:
        """Return the extrinsics to write; the notes hold the uncertainty and the findings."""
        notes = [f"one sigma: {self.sigma_mm:.2f} mm, {self.sigma_deg:.3f} degrees", *map(str, self.quality.findings)]
        return Extrinsics(
            parent_frame,
            child_frame,
            self.base_T_camera,
            method=self.method,
            date=datetime.date.today().isoformat(),
            residuals=self.quality.residuals(),
            covariance=self.covariance,
            degrees_of_freedom=self.degrees_of_freedom,
            notes="; ".join([*([self.notes] if self.notes else []), *notes]),
        )


@dataclass(frozen=True)
class Agreement:
    """Comparison of two estimates of one pose.

    Attributes:
        shift_mm, turn_deg: difference between them.
        distance: squared Mahalanobis distance between them; NaN if neither uncertainty is known.
        threshold: 99 % limit of `distance` if both estimate the same pose.
    """

    shift_mm: float
    turn_deg: float
    distance: float
    threshold: float

    @property
    def agrees(self) -> bool:
        """True if the difference is within the uncertainties; False if it is not, or not `known`."""
        return self.distance <= self.threshold

    @property
    def known(self) -> bool:
        """True if at least one of the two uncertainties is known."""
        return not np.isnan(self.distance)


def agreement(a: PoseEstimate | Extrinsics, b: PoseEstimate | Extrinsics) -> Agreement:
    """Compare two independent estimates of the same camera pose.

    An estimate without an uncertainty is taken as exact, so that only the other's uncertainty decides.
    """
    d = difference(_pose(a), _pose(b))
    shift, turn = 1e3 * float(np.linalg.norm(d[:3])), float(np.degrees(np.linalg.norm(d[3:])))
    known = [(e.covariance, e.degrees_of_freedom) for e in (a, b) if e.covariance is not None]
    if not known:
        return Agreement(shift, turn, float("nan"), float("nan"))
    # Add a micrometre and a microradian, so that rounding errors between exact poses are not a disagreement.
    C = np.sum([covariance for covariance, _ in known], axis=0) + 1e-12 * np.eye(6)
    distance = float(d @ np.linalg.solve(C, d))
    return Agreement(shift, turn, distance, region_threshold(min(freedom for _, freedom in known), 0.99))


def _pose(estimate: PoseEstimate | Extrinsics) -> Array:
    return estimate.base_T_camera if isinstance(estimate, PoseEstimate) else estimate.parent_T_child


# Pairwise comparison of several results for one camera.

Estimate = TypeVar("Estimate", bound=PoseEstimate)


@dataclass(frozen=True)
class Comparison:
    """Pairwise comparison of several results for one camera.

    Attributes:
        pairs: names of two results, and their comparison.
    """

    pairs: tuple[tuple[str, str, Agreement], ...]

    @property
    def verdict(self) -> Literal["agree", "disagree", "unknown"]:
        """Overall result; "unknown" if for any pair neither uncertainty is known and no known pair disagrees."""
        if any(found.known and not found.agrees for _, _, found in self.pairs):
            return "disagree"
        return "agree" if all(found.known for _, _, found in self.pairs) else "unknown"

    @property
    def odd_one(self) -> str:
        """Name of the result that disagrees with all others while they agree among themselves; "" if there is none."""
        apart = [{a, b} for a, b, found in self.pairs if found.known and not found.agrees]
        names = {name for a, b, _ in self.pairs for name in (a, b)}
        odd = set.intersection(*apart) if apart and len(names) > 2 else set()
        return odd.pop() if len(odd) == 1 and len(apart) == len(names) - 1 else ""

    def lines(self) -> list[str]:
        """Format as text, one line per pair and one for the verdict."""
        out = [f"{a} and {b}: {describe(found)}" for a, b, found in self.pairs]
        return [*out, self.verdict + (f": {self.odd_one} differs from all others" if self.odd_one else "")]

    def numbers(self) -> dict[str, Any]:
        """Convert to a mapping for JSON."""
        pairs = [
            {
                "a": a,
                "b": b,
                "shift_mm": found.shift_mm,
                "turn_deg": found.turn_deg,
                "distance": found.distance if found.known else None,
                "threshold": found.threshold if found.known else None,
                "agrees": found.agrees if found.known else None,
            }
            for a, b, found in self.pairs
        ]
        return {"verdict": self.verdict, "odd_one": self.odd_one or None, "pairs": pairs}


def describe(found: Agreement) -> str:
    """Describe one comparison in one line."""
    apart = f"{found.shift_mm:.2f} mm and {found.turn_deg:.3f} degrees apart"
    if not found.known:
        return f"{apart}; neither uncertainty is known"
    word = "within" if found.agrees else "beyond"
    return f"{apart}, {word} their uncertainties ({found.distance:.1f} of {found.threshold:.1f})"


def compare(results: Mapping[str, Extrinsics]) -> Comparison:
    """Compare results for one camera by name, at least two."""
    if len(results) < 2:
        raise CalibrationError(f"{len(results)} result to compare", expected="at least two different results")
    parents = {pose.parent_frame for pose in results.values()}
    if len(parents) > 1:
        raise CalibrationError(
            f"the poses are given in the frames {', '.join(sorted(parents))}",
            expected="one parent frame",
            code=ErrorCode.CALIBRATION_FRAME_MISMATCH,
        )
    pairs = combinations(results.items(), 2)
    return Comparison(tuple((a, b, agreement(pose, other)) for (a, pose), (b, other) in pairs))


def check_against(result: Estimate, name: str, other: Extrinsics) -> tuple[Estimate, str]:
    """Compare a result with another one; return it with updated findings, and the comparison as text.

    A disagreement is an error. Agreement with another method confirms the board size, which a single view of a board
    cannot check; the same method would share the mistake.
    """
    found = agreement(result, other)
    findings: list[Finding] = list(result.quality.findings)
    if found.known and not found.agrees:
        findings.append(finding("disagreement", f"{name} is {describe(found)}", "error"))
    elif found.known and other.covariance is not None and other.method != result.method:
        findings = [f for f in findings if f.name != "unchecked_size"]
    quality = replace(result.quality, findings=sorted_findings(findings))
    return replace(result, quality=quality), f"against {name}: {describe(found)}"
