"""A disagreement at a glance: what happened above, what was predicted below, with both verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.io.files import replacing_file
from kinema4d_ros.trials.trial import LabOutcome
from kinema4d_ros.trials.world import Imagined

__all__ = ["STRIP_FRAMES", "comparison", "write_comparison"]

Image = NDArray[np.uint8]

STRIP_FRAMES = 6
COLUMN_PX = 216
BAND_PX = 22
QUALITY = 82
_WORDS = {True: "success", False: "failure", None: "cannot tell"}
_COLOURS = {True: (28, 130, 60), False: (178, 44, 44), None: (110, 110, 110)}


def comparison(real: Sequence[Image], imagined: Imagined, lab: LabOutcome) -> Image:
    """(H, W, 3) uint8: two rows of as many frames as `real` has, evenly spaced in time."""
    frames = np.linspace(0, len(imagined.rollout) - 1, len(real)).round().astype(int)
    verdict = imagined.verdict
    rows = [
        _band(f"lab: {_WORDS[lab.success]} ({_metres(lab.value_m)})", lab.success, len(real)),
        _row(real),
        _band(f"predicted: {_WORDS[verdict.success]}, {verdict.reason}", verdict.success, len(real)),
        _row([imagined.rollout.rgb[i] for i in frames]),
    ]
    return np.vstack(rows)


def write_comparison(path: Path, real: Sequence[Image], imagined: Imagined, lab: LabOutcome) -> None:
    """Write it as JPEG, whole or not at all."""
    good, data = cv2.imencode(
        ".jpg", cv2.cvtColor(comparison(real, imagined, lab), cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, QUALITY]
    )
    if not good:
        raise OSError(f"{path} cannot be encoded")
    with replacing_file(path) as temporary:
        temporary.write_bytes(data.tobytes())


def _row(frames: Sequence[Image]) -> Image:
    height = round(COLUMN_PX * frames[0].shape[0] / frames[0].shape[1])
    return np.hstack([cv2.resize(f, (COLUMN_PX, height), interpolation=cv2.INTER_AREA) for f in frames])


def _band(text: str, success: bool | None, columns: int) -> Image:
    band = np.full((BAND_PX, columns * COLUMN_PX, 3), _COLOURS[success], np.uint8)
    cv2.putText(band, text, (6, BAND_PX - 7), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (255, 255, 255), 1, cv2.LINE_AA)
    return band


def _metres(value: float) -> str:
    return f"{100 * value:.1f} cm" if np.isfinite(value) else "not measured"
