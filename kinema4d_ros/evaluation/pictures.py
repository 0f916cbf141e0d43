"""Images of verdicts (deciding frame, object path, height over time) and of disagreements with the lab."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import EvaluationError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.evaluation.judges import Verdict
from kinema4d_ros.evaluation.trial import LabOutcome
from kinema4d_ros.io.files import replacing_file
from kinema4d_ros.io.images import strip

__all__ = ["STRIP_FRAMES", "comparison", "draw_path", "verdict_picture", "write_comparison"]

Image = NDArray[np.uint8]

_PATH, _HERE = (255, 0, 255), (255, 255, 0)
_COLOURS = {True: (40, 160, 70), False: (200, 50, 50), None: (130, 130, 130)}
_WORDS = {True: "success", False: "failure", None: "cannot tell"}
_LEAST_WIDTH = 360


def draw_path(image: Image, position: NDArray[np.float64], camera: PinholeCamera, frame: int) -> Image:
    """Draw a path (T, 3), base frame, up to `frame` on an image (H, W, 3), with a ring at the object's position."""
    out: Image = image.copy()
    known = np.isfinite(position).all(axis=1)
    uv = np.full((len(position), 2), np.nan)
    uv[known] = camera.project(apply(camera.camera_T_base, position[known]))
    inside = np.isfinite(uv).all(axis=1) & (np.abs(uv) < 1e5).all(axis=1)
    # OpenCV's origin is the first pixel's centre; coordinates are fixed-point, 1/16 pixel.
    spots = np.round((np.where(inside[:, None], uv, 0.0) - 0.5) * 16).astype(int)
    for t in range(1, frame + 1):
        if inside[t] and inside[t - 1]:
            cv2.line(out, spots[t - 1].tolist(), spots[t].tolist(), _PATH, 2, cv2.LINE_AA, 4)
    if inside[frame]:
        radius = max(4, image.shape[1] // 60)
        cv2.circle(out, spots[frame].tolist(), radius * 16, _HERE, 1, cv2.LINE_AA, 4)
    return out


def verdict_picture(rollout: Rollout, verdict: Verdict) -> Image:
    """Draw first, deciding (border in the verdict's colour) and last frame and a curve: (H', W', 3) uint8.

    The curve is the object's height above its start, the grey bars are the confidence, the vertical line is the
    deciding frame.
    """
    frames = len(rollout)
    if not 0 <= verdict.deciding_frame < frames:
        raise EvaluationError(f"the deciding frame is {verdict.deciding_frame}", expected=f"0 to {frames - 1}")
    colour = _COLOURS[verdict.success]
    scale = max(1, -(-_LEAST_WIDTH // rollout.camera.width))
    camera = rollout.camera.scaled(rollout.camera.width * scale, rollout.camera.height * scale)
    tiles, labels = [], []
    for t, name in ((0, "first"), (verdict.deciding_frame, "decides"), (frames - 1, "last")):
        tile: Image = cv2.resize(rollout.rgb[t], None, fx=scale, fy=scale, interpolation=cv2.INTER_NEAREST)
        if verdict.track is not None:
            tile = draw_path(tile, verdict.track.position, camera, t)
        if name == "decides":
            cv2.rectangle(tile, (0, 0), (tile.shape[1] - 1, tile.shape[0] - 1), colour, 4)
        tiles.append(tile)
        labels.append(f"{name}: frame {t}, {rollout.times[t] - rollout.times[0]:.2f} s")
    top = strip(tiles, 3, labels)
    bar = np.full((26, top.shape[1], 3), colour, np.uint8)
    text = f"{_WORDS[verdict.success]}, progress {verdict.progress:.2f}, confidence {verdict.confidence:.2f}"
    cv2.putText(bar, text, (8, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (255, 255, 255), 1, cv2.LINE_AA)
    parts = [bar, top]
    if verdict.track is not None:
        parts.append(_curve(verdict, top.shape[1]))
    return np.concatenate(parts)


def _curve(verdict: Verdict, width: int) -> Image:
    """Plot height above the start and confidence over the frames."""
    height, edge = 110, 30
    out: Image = np.full((height, width, 3), 255, np.uint8)
    if verdict.track is None:
        return out
    z = verdict.track.position[:, 2]
    known = np.isfinite(z)
    rise = z - z[int(known.argmax())]
    low, high = min(-0.01, float(np.nanmin(rise, initial=0.0))), max(0.05, float(np.nanmax(rise, initial=0.0)))
    x = edge + (width - 2 * edge) * np.arange(len(z)) / max(len(z) - 1, 1)
    y = height - 16 - (height - 32) * (rise - low) / (high - low)
    step = max(1, int((width - 2 * edge) / len(z)) - 2)
    for t, sure in enumerate(verdict.track.confidence):
        left, top = int(x[t]) - step // 2, int(height - 16 - (height - 32) * sure)
        cv2.rectangle(out, (left, top), (left + step, height - 16), (225, 225, 225), -1)
    decided = int(x[verdict.deciding_frame])
    cv2.line(out, (decided, 4), (decided, height - 12), _COLOURS[verdict.success], 2)
    for t in range(1, len(z)):
        if known[t] and known[t - 1]:
            ends = [(int(x[i]), int(y[i])) for i in (t - 1, t)]
            cv2.line(out, ends[0], ends[1], _PATH, 2, cv2.LINE_AA)
    note = f"height {100 * low:.0f} to {100 * high:.0f} cm above the start; grey: confidence 0 to 1"
    cv2.putText(out, note, (edge, height - 3), cv2.FONT_HERSHEY_SIMPLEX, 0.35, (60, 60, 60), 1, cv2.LINE_AA)
    return out


# Image of a disagreement: lab frames above, predicted frames below, with both verdicts.

STRIP_FRAMES = 6
COLUMN_PX = 216
BAND_PX = 22
QUALITY = 82
_VERDICT_COLOURS = {True: (28, 130, 60), False: (178, 44, 44), None: (110, 110, 110)}


def comparison(real: Sequence[Image], rollout: Rollout, verdict: Verdict, lab: LabOutcome) -> Image:
    """Draw two rows of as many frames as `real` has, evenly spaced in time: (H, W, 3) uint8."""
    frames = np.linspace(0, len(rollout) - 1, len(real)).round().astype(int)
    rows = [
        _band(f"lab: {_WORDS[lab.success]} ({_metres(lab.value_m)})", lab.success, len(real)),
        _row(real),
        _band(f"predicted: {_WORDS[verdict.success]}, {verdict.reason}", verdict.success, len(real)),
        _row([rollout.rgb[i] for i in frames]),
    ]
    return np.vstack(rows)


def write_comparison(path: Path, real: Sequence[Image], rollout: Rollout, verdict: Verdict, lab: LabOutcome) -> None:
    """Write the comparison as JPEG, atomically."""
    drawn = cv2.cvtColor(comparison(real, rollout, verdict, lab), cv2.COLOR_RGB2BGR)
    good, data = cv2.imencode(".jpg", drawn, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    if not good:
        raise OSError(f"{path} cannot be encoded")
    with replacing_file(path) as temporary:
        temporary.write_bytes(data.tobytes())


def _row(frames: Sequence[Image]) -> Image:
    height = round(COLUMN_PX * frames[0].shape[0] / frames[0].shape[1])
    return np.hstack([cv2.resize(f, (COLUMN_PX, height), interpolation=cv2.INTER_AREA) for f in frames])


def _band(text: str, success: bool | None, columns: int) -> Image:
    band = np.full((BAND_PX, columns * COLUMN_PX, 3), _VERDICT_COLOURS[success], np.uint8)
    cv2.putText(band, text, (6, BAND_PX - 7), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (255, 255, 255), 1, cv2.LINE_AA)
    return band


def _metres(value: float) -> str:
    return f"{100 * value:.1f} cm" if np.isfinite(value) else "not measured"
