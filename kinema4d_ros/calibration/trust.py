"""How far a calibration can be trusted while it is used: its residual against two thresholds, in a word and a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kinema4d_ros.calibration.extrinsics import Extrinsics
from kinema4d_ros.core.errors import CalibrationError, ErrorCode

__all__ = ["Trust", "rate_calibration"]

Level = Literal["good", "poor", "refused", "unknown"]

_MEND = "calibrate again (docs/calibration.md), or set calibration_refuse_px to 0"


@dataclass(frozen=True)
class Trust:
    """What a calibration file says of itself.

    Attributes:
        level: "good", "poor" (above the warning threshold), "refused", or "unknown": the file has no residual in
            pixels, which is not the same as a small one.
        figures: residuals that the file has, for people: "0.42 px, 0.55 mm, IoU 0.981, 8 poses"; "" without any.
        text: one line.
        origin: method and date, "" where the file has none.
        refused: it must not be used: `level` is "refused", or it is unknown where a limit was set.
        px: the residual, pixels; None = unknown.
    """

    level: Level
    figures: str
    text: str
    origin: str
    refused: bool
    px: float | None = None

    @property
    def warning(self) -> str:
        """A sentence for a report; "" for a good calibration."""
        return "" if self.level == "good" else f"Calibration: {self.text}."

    def values(self) -> dict[str, object]:
        """For diagnostics."""
        return {
            "calibration": self.level,
            "calibration residual": self.figures or "unknown",
            "calibration method": self.origin or "unknown",
        }

    def require(self) -> None:
        """Raise CALIBRATION_POOR where the calibration must not be used."""
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
        warn_px: above it the calibration is poor; 0 = never.
        refuse_px: above it, and without any residual, the calibration is refused; 0 = never.
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
