"""Do several ways to one camera agree? Their poses in pairs, in millimetres, degrees and units of their uncertainty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, TypeVar

from kinema4d_ros.calibration.extrinsics import Extrinsics
from kinema4d_ros.calibration.pose_estimate import Agreement, PoseEstimate, agreement
from kinema4d_ros.calibration.quality import Finding, finding, sorted_findings
from kinema4d_ros.core.errors import CalibrationError, ErrorCode

__all__ = ["Comparison", "check_against", "compare"]

Estimate = TypeVar("Estimate", bound=PoseEstimate)


@dataclass(frozen=True)
class Comparison:
    """Several results for one camera, two by two.

    Attributes:
        pairs: names of two results, and how they compare.
    """

    pairs: tuple[tuple[str, str, Agreement], ...]

    @property
    def verdict(self) -> Literal["agree", "disagree", "unknown"]:
        """`unknown`: none of two results that differ says how sure it is."""
        if any(found.known and not found.agrees for _, _, found in self.pairs):
            return "disagree"
        return "agree" if all(found.known for _, _, found in self.pairs) else "unknown"

    @property
    def odd_one(self) -> str:
        """The one that disagrees with all others while they agree among themselves; "" if there is none."""
        apart = [{a, b} for a, b, found in self.pairs if found.known and not found.agrees]
        names = {name for a, b, _ in self.pairs for name in (a, b)}
        odd = set.intersection(*apart) if apart and len(names) > 2 else set()
        return odd.pop() if len(odd) == 1 and len(apart) == len(names) - 1 else ""

    def lines(self) -> list[str]:
        """For people."""
        out = [f"{a} and {b}: {describe(found)}" for a, b, found in self.pairs]
        return [*out, self.verdict + (f": {self.odd_one} differs from all others" if self.odd_one else "")]

    def numbers(self) -> dict[str, Any]:
        """For programs."""
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
    """One comparison in words."""
    apart = f"{found.shift_mm:.2f} mm and {found.turn_deg:.3f} degrees apart"
    if not found.known:
        return f"{apart}; neither says how sure it is"
    word = "within" if found.agrees else "more than"
    return f"{apart}, {word} their uncertainties allow ({found.distance:.1f} of {found.threshold:.1f})"


def compare(results: Mapping[str, Extrinsics]) -> Comparison:
    """Compare results for one camera by name, at least two."""
    if len(results) < 2:
        raise CalibrationError(f"{len(results)} result to compare", expected="at least two different ones")
    parents = {pose.parent_frame for pose in results.values()}
    if len(parents) > 1:
        raise CalibrationError(
            f"the poses are given in {', '.join(sorted(parents))}",
            expected="one frame",
            code=ErrorCode.CALIBRATION_FRAME_MISMATCH,
        )
    pairs = combinations(results.items(), 2)
    return Comparison(tuple((a, b, agreement(pose, other)) for (a, pose), (b, other) in pairs))


def check_against(result: Estimate, name: str, other: Extrinsics) -> tuple[Estimate, str]:
    """A result with what a comparison with another one found, and the comparison in words.

    A disagreement is an error. An agreement with another way vouches for the board's size, which a single view of a
    board cannot check; the same way again would share the mistake.
    """
    found = agreement(result, other)
    findings: list[Finding] = list(result.quality.findings)
    if found.known and not found.agrees:
        findings.append(finding("disagreement", f"{name} is {describe(found)}", "error"))
    elif found.known and other.covariance is not None and other.method != result.method:
        findings = [f for f in findings if f.name != "unchecked_size"]
    quality = replace(result.quality, findings=sorted_findings(findings))
    return replace(result, quality=quality), f"against {name}: {describe(found)}"
