"""The quality gate: residuals, spread and named findings of a calibration, and a refusal when it is not good enough."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

from kinema4d_ros.calibration.extrinsics import Residuals
from kinema4d_ros.core.errors import CalibrationError

__all__ = ["FINDINGS", "Finding", "PoseSpread", "Quality", "finding", "pose_spread"]

Severity = Literal["warning", "error"]

FINDINGS: dict[str, str] = {
    "too_few_poses": "add poses until there are 10 to 15, spread over the work space",
    "too_similar": "turn the gripper by 30 degrees and more between poses, and move it over the whole image",
    "parallel_axes": "turn the gripper about at least two different axes, for example wrist roll and wrist pitch",
    "wrong_board_size": "measure a square of the printed board with a ruler: printers scale pages",
    "mirrored_board": "switch off mirroring in the camera driver, or print the board again",
    "mirrored_model": "export the reconstruction again without swapping axes",
    "ambiguous_place": "pick pairs of points: --pairs",
    "moved_camera": "fix the camera, and take all images again",
    "poor_fit": "check that images and joint states belong together, the link that carries the board, and the board",
    "poor_overlap": "check the masks, the robot's description and that joint states belong to the images",
    "drawn_masks": "look at overlay.png of the segmentation; give --background, SAM 2's weights or masks by hand",
    "doubtful_masks": "look at overlay.png of the segmentation, and start from a better guess",
    "lost_link": "look at the masks: give better ones, or leave out images in which something hides the arm",
    "poor_coverage": "show the board in the corners of the image too",
    "flat_views": "tilt the board by 20 to 45 degrees: flat views leave the focal length open",
    "views_dropped": "look at the images that were left out: blur, a moving board, or a wrong detection",
    "ambiguous_view": "look at the board from the side: seen face on, it has two poses that look the same",
    "weak_geometry": "add joint configurations that show the arm from other sides",
    "did_not_converge": "start from a better guess",
    "wide_uncertainty": "add poses, or views that are nearer",
    "unchecked_size": "measure a square with a ruler, and compare with another way: --against OTHER.yaml",
    "disagreement": "one of them is wrong: look at the board's size, whether board or camera moved, and the masks",
}
"""Every finding by name, and what to do about it."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with the data or the result."""

    name: str
    text: str
    severity: Severity

    def __str__(self) -> str:
        return f"{self.name}: {self.text} ({FINDINGS[self.name]})"


def finding(name: str, text: str, severity: Severity = "warning") -> Finding:
    """A finding with a known name."""
    if name not in FINDINGS:
        raise KeyError(name)
    return Finding(name, text, severity)


@dataclass(frozen=True)
class PoseSpread:
    """How different the poses of a series are.

    Attributes:
        rotation_deg: largest angle between two of them.
        second_axis_deg: how far they turn about any axis across the main one, root mean square; 0 = parallel axes.
        translation_m: largest distance between two of them.
    """

    rotation_deg: float
    second_axis_deg: float
    translation_m: float


@dataclass(frozen=True)
class Quality:
    """How good a calibration is.

    Attributes:
        px: root mean square residual, pixels; None = not measured.
        mm: the same at the object's distance, millimetres.
        mask_iou: overlap of rendered and seen robot, 0 to 1.
        poses: used.
        spread: of the poses.
        findings: what is wrong, worst first.
        views: name of each image and its root mean square residual in pixels; NaN for one that was left out.
    """

    px: float | None = None
    mm: float | None = None
    mask_iou: float | None = None
    poses: int | None = None
    spread: PoseSpread | None = None
    findings: tuple[Finding, ...] = field(default_factory=tuple)
    views: tuple[tuple[str, float], ...] = ()

    @property
    def verdict(self) -> Literal["good", "usable", "bad"]:
        """`bad` must not be used; `usable` has warnings."""
        if any(f.severity == "error" for f in self.findings):
            return "bad"
        return "usable" if self.findings else "good"

    @property
    def names(self) -> tuple[str, ...]:
        """Of the findings."""
        return tuple(f.name for f in self.findings)

    def require(self, what: str) -> None:
        """Raise a CalibrationError that lists the errors, if there are any."""
        errors = [str(f) for f in self.findings if f.severity == "error"]
        if errors:
            raise CalibrationError(f"{what} is not trustworthy: {'; '.join(errors)}", expected="data without errors")

    def residuals(self) -> Residuals:
        """For the extrinsics file."""
        s = self.spread
        return Residuals(
            px=self.px,
            mm=self.mm,
            mask_iou=self.mask_iou,
            poses=self.poses,
            spread_deg=None if s is None else s.rotation_deg,
            spread_mm=None if s is None else 1e3 * s.translation_m,
        )

    def numbers(self) -> dict[str, Any]:
        """For programs: what JSON can hold; an image that was left out has no residual."""
        return {
            "px": self.px,
            "mm": self.mm,
            "mask_iou": self.mask_iou,
            "poses": self.poses,
            "spread": None if self.spread is None else asdict(self.spread),
            "views": {name: None if math.isnan(px) else px for name, px in self.views},
            "verdict": self.verdict,
            "findings": list(self.names),
            "says": [str(f) for f in self.findings],
        }

    def lines(self) -> list[str]:
        """For people."""
        numbers = [
            f"{self.px:.3f} px" if self.px is not None else "",
            f"{self.mm:.3f} mm" if self.mm is not None else "",
            f"mask IoU {self.mask_iou:.4f}" if self.mask_iou is not None else "",
            f"{self.poses} poses" if self.poses is not None else "",
        ]
        out = [f"{self.verdict}: {', '.join(n for n in numbers if n)}"]
        if self.spread is not None:
            s = self.spread
            out.append(
                f"spread: {s.rotation_deg:.0f} degrees, {s.second_axis_deg:.0f} about a second axis, "
                f"{s.translation_m * 1e3:.0f} mm"
            )
        if len(self.views) > 1:
            worst = sorted((v for v in self.views if not math.isnan(v[1])), key=lambda v: -v[1])[:3]
            out.append(f"worst of {len(self.views)} images: " + ", ".join(f"{name} {px:.2f} px" for name, px in worst))
        return out + [f"{f.severity}: {f}" for f in self.findings]


def sorted_findings(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors first."""
    return tuple(sorted(found, key=lambda f: f.severity != "error"))


def pose_spread(poses: ArrayLike) -> PoseSpread:
    """The spread of (N, 4, 4) poses, N at least 1."""
    T = np.asarray(poses, dtype=np.float64)
    first, second = np.triu_indices(len(T), 1)
    if len(first) == 0:
        return PoseSpread(0.0, 0.0, 0.0)
    turns: NDArray[np.float64] = Rotation.from_matrix(T[second, :3, :3] @ T[first, :3, :3].swapaxes(1, 2)).as_rotvec()
    # Rotation vectors of one axis lie on a line; what is left across it is the second axis.
    strengths = np.linalg.svd(turns, compute_uv=False) / np.sqrt(len(turns))
    return PoseSpread(
        rotation_deg=float(np.degrees(np.linalg.norm(turns, axis=1).max())),
        second_axis_deg=float(np.degrees(strengths[1])) if len(strengths) > 1 else 0.0,
        translation_m=float(np.linalg.norm(T[first, :3, 3] - T[second, :3, 3], axis=1).max()),
    )
