"""Quality of a calibration: residuals, pose spread, named findings, and the limits that reject a poor one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

from kinema4d_ros.calibration.extrinsics import Extrinsics, Residuals
from kinema4d_ros.core.errors import CalibrationError, ErrorCode

__all__ = [
    "FINDINGS",
    "Finding",
    "PoseSpread",
    "Quality",
    "Trust",
    "finding",
    "pose_spread",
    "rate_calibration",
]

Severity = Literal["warning", "error"]

FINDINGS: dict[str, str] = {
    "too_few_poses": "add poses until there are 10 to 15, spread over the work space",
    "too_similar": "rotate the gripper by 30 degrees or more between poses, and move it over the whole image",
    "parallel_axes": "rotate the gripper about at least two different axes, for example wrist roll and wrist pitch",
    "wrong_board_size": "measure a square of the printed board with a ruler: printers scale pages",
    "mirrored_board": "disable mirroring in the camera driver, or print the board again",
    "mirrored_model": "export the reconstruction again without swapping axes",
    "ambiguous_place": "pick pairs of points: --pairs",
    "moved_camera": "fix the camera, and take all images again",
    "poor_fit": "check that the joint states match the images, the link that carries the board, and the board",
    "poor_overlap": "check the masks, the robot description, and that the joint states match the images",
    "drawn_masks": "check overlay.png of the segmentation; give --background, SAM 2 weights or manual masks",
    "doubtful_masks": "check overlay.png of the segmentation, and start from a better guess",
    "lost_link": "check the masks: provide better ones, or leave out images in which the arm is occluded",
    "poor_coverage": "show the board in the corners of the image too",
    "flat_views": "tilt the board by 20 to 45 degrees: flat views do not determine the focal length",
    "views_dropped": "check the images that were left out for blur, a moving board or a wrong detection",
    "ambiguous_view": "view the board at an angle: seen face on, it has two poses that look the same",
    "weak_geometry": "add joint configurations that show the arm from other sides",
    "did_not_converge": "start from a better guess",
    "wide_uncertainty": "add poses, or closer views",
    "unchecked_size": "measure a square with a ruler, and compare with another method: --against OTHER.yaml",
    "disagreement": "one result is wrong: check the board size, the masks, and whether the board or the camera moved",
}
"""Remedy for every finding, by name."""


@dataclass(frozen=True)
class Finding:
    """One problem with the data or the result."""

    name: str
    text: str
    severity: Severity

    def __str__(self) -> str:
        return f"{self.name}: {self.text} ({FINDINGS[self.name]})"


def finding(name: str, text: str, severity: Severity = "warning") -> Finding:
    """Create a finding; raise KeyError for a name that is not in FINDINGS."""
    if name not in FINDINGS:
        raise KeyError(name)
    return Finding(name, text, severity)


@dataclass(frozen=True)
class PoseSpread:
    """Spread of a series of poses.

    Attributes:
        rotation_deg: largest angle between two poses.
        second_axis_deg: root mean square rotation about an axis normal to the main one; 0 = parallel axes.
        translation_m: largest distance between two poses.
    """

    rotation_deg: float
    second_axis_deg: float
    translation_m: float


@dataclass(frozen=True)
class Quality:
    """Residuals and findings of a calibration; None = not measured.

    Attributes:
        px: root mean square residual, pixels.
        mm: the same at the object's distance, millimetres.
        mask_iou: overlap of rendered and observed robot, 0 to 1.
        poses: number of poses used.
        spread: of the poses.
        findings: problems found, errors first.
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
        """Overall rating: "bad" has errors and must not be used, "usable" has warnings."""
        if any(f.severity == "error" for f in self.findings):
            return "bad"
        return "usable" if self.findings else "good"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the findings."""
        return tuple(f.name for f in self.findings)

    def require(self, what: str) -> None:
        """Raise a CalibrationError that lists all findings of severity "error", if there are any."""
        errors = [str(f) for f in self.findings if f.severity == "error"]
        if errors:
            raise CalibrationError(f"{what} is not trustworthy: {'; '.join(errors)}", expected="data without errors")

    def residuals(self) -> Residuals:
        """Return the residuals for the extrinsics file."""
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
        """Convert to a mapping for JSON; the residual of an image that was left out is None."""
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
        """Format as lines of text."""
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
    """Sort findings, errors first."""
    return tuple(sorted(found, key=lambda f: f.severity != "error"))


def pose_spread(poses: ArrayLike) -> PoseSpread:
    """Compute the spread of poses (N, 4, 4), N at least 1."""
    T = np.asarray(poses, dtype=np.float64)
    first, second = np.triu_indices(len(T), 1)
    if len(first) == 0:
        return PoseSpread(0.0, 0.0, 0.0)
    turns: NDArray[np.float64] = Rotation.from_matrix(T[second, :3, :3] @ T[first, :3, :3].swapaxes(1, 2)).as_rotvec()
    # Rotation vectors about one axis are collinear; the second singular value measures the second axis.
    strengths = np.linalg.svd(turns, compute_uv=False) / np.sqrt(len(turns))
    return PoseSpread(
        rotation_deg=float(np.degrees(np.linalg.norm(turns, axis=1).max())),
        second_axis_deg=float(np.degrees(strengths[1])) if len(strengths) > 1 else 0.0,
        translation_m=float(np.linalg.norm(T[first, :3, 3] - T[second, :3, 3], axis=1).max()),
    )


# Rating of a calibration file at run time: its residual against two thresholds.

Level = Literal["good", "poor", "refused", "unknown"]

_MEND = "calibrate again (docs/calibration.md), or set calibration_refuse_px to 0"


@dataclass(frozen=True)
class Trust:
    """Rating of a calibration file.

    Attributes:
        level: "good", "poor" (above the warning threshold), "refused", or "unknown": the file has no residual in
            pixels.
        figures: residuals in the file as text, such as "0.42 px, 0.55 mm, IoU 0.981, 8 poses"; "" without any.
        text: one-line summary.
        origin: method and date; "" if the file has none.
        refused: the calibration must not be used: `level` is "refused", or "unknown" while a limit is set.
        px: residual, pixels; None = unknown.
    """

    level: Level
    figures: str
    text: str
    origin: str
    refused: bool
    px: float | None = None

    @property
    def warning(self) -> str:
        """Warning for a report; "" for a good calibration."""
        return "" if self.level == "good" else f"Calibration: {self.text}."

    def values(self) -> dict[str, object]:
        """Return key-value pairs for diagnostics."""
        return {
            "calibration": self.level,
            "calibration residual": self.figures or "unknown",
            "calibration method": self.origin or "unknown",
        }

    def require(self) -> None:
        """Raise CALIBRATION_POOR if the calibration must not be used."""
        if self.refused:
            raise CalibrationError(
                self.text,
                expected="a calibration within calibration_refuse_px",
                hint=_MEND,
                code=ErrorCode.CALIBRATION_POOR,
            )


def rate_calibration(extrinsics: Extrinsics, *, warn_px: float, refuse_px: float) -> Trust:
    """Compare a calibration's residual with thresholds in pixels.

    Args:
        extrinsics: as read from the file.
        warn_px: the calibration is poor above this residual; 0 = no limit.
        refuse_px: the calibration is refused above this residual, or without any residual; 0 = no limit.
    """
    r = extrinsics.residuals
    shown = [
        "" if r.px is None else f"{r.px:.2f} px",
        "" if r.mm is None else f"{r.mm:.2f} mm",
        "" if r.mask_iou is None else f"IoU {r.mask_iou:.3f}",
        "" if r.poses is None else f"{r.poses} pose{'s' if r.poses > 1 else ''}",
    ]
    figures = ", ".join(part for part in shown if part)
    origin = ", ".join(part for part in (extrinsics.method, extrinsics.date) if part)
    if r.px is None:
        text = f"its quality is unknown: the file has no residual in pixels{f' (only {figures})' if figures else ''}"
        return Trust("unknown", figures, text, origin, refused=refuse_px > 0)
    if 0 < refuse_px < r.px:
        text = f"its residual is {figures}, above the limit of {refuse_px:g} px"
        return Trust("refused", figures, text, origin, refused=True, px=r.px)
    if 0 < warn_px < r.px:
        return Trust(
            "poor", figures, f"its residual is {figures}, above {warn_px:g} px", origin, refused=False, px=r.px
        )
    return Trust("good", figures, f"its residual is {figures}", origin, refused=False, px=r.px)
