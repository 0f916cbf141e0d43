"""Rollouts reduced for a browser: thinned clouds and downscaled images, frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.outcomes import PointBasis, outcome_lines
from kinema4d_ros.core.rollout import Frames, Rollout

__all__ = ["Cloud", "Prediction", "small_picture"]

PICTURE_WIDTH = 480

FITTED_RGB, ASSUMED_RGB, NETWORK_RGB = (245, 158, 11), (217, 70, 239), (20, 184, 166)
TINTS = {
    PointBasis.FITTED: FITTED_RGB,
    PointBasis.PLANE: ASSUMED_RGB,
    PointBasis.UNKNOWN: ASSUMED_RGB,
    PointBasis.LIFTED: NETWORK_RGB,
    PointBasis.GENERATED: NETWORK_RGB,
}
"""Colours of guessed points; measured points and the exact robot keep their own."""
TINT = 0.65

_BASIS_OF_DEPTH = {"measured": PointBasis.MEASURED, "plane": PointBasis.PLANE, "lifted": PointBasis.LIFTED}
"""Source of all points of the scene in rollouts that do not state it for each."""


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points of one frame.

    Attributes:
        points: (N, 3) float32, metres, camera optical frame, finite.
        rgb: (N, 3) uint8.
        robot: (N,) bool, True = the exact robot.
        basis: (N,) uint8 of `PointBasis`, the source of every point.
    """

    points: NDArray[np.float32]
    rgb: NDArray[np.uint8]
    robot: NDArray[np.bool_]
    basis: NDArray[np.uint8]

    def tinted(self) -> NDArray[np.uint8]:
        """Return colours (N, 3) uint8 with a tint where the point is guessed: see `TINTS`."""
        rgb = self.rgb.copy()
        for source, tint in TINTS.items():
            here = self.basis == source
            rgb[here] = (rgb[here] * (1 - TINT) + np.array(tint) * TINT).astype(np.uint8)
        return rgb


@dataclass(frozen=True, eq=False)
class Prediction:
    """A rollout as shown on the page.

    Attributes:
        times: (T,) float64, seconds since the first frame.
        clouds: T thinned clouds.
        pictures: T images (h, w, 3) uint8, at most `PICTURE_WIDTH` wide.
        base_T_camera: (4, 4) float64, metres: pose of the clouds.
        spacing_m: approximate distance of neighbouring points.
        rollout_id, plan_hash: identifiers of the rollout.
        maker: name of the generator and its preset.
        outcomes: what may happen, as in "83 % lifted"; empty = not stated.
        outcome: number of the one that the frames show.
    """

    times: NDArray[np.float64]
    clouds: tuple[Cloud, ...]
    pictures: tuple[NDArray[np.uint8], ...]
    base_T_camera: NDArray[np.float64]
    spacing_m: float
    rollout_id: str
    plan_hash: str
    maker: str
    outcomes: tuple[str, ...] = ()
    outcome: int = 0

    @property
    def duration_s(self) -> float:
        """Seconds from the first frame to the last."""
        return float(self.times[-1])

    def frame_at(self, time_s: float) -> int:
        """Return the index of the frame to show at a time since the first frame."""
        return int(np.clip(np.searchsorted(self.times, time_s + 1e-6, side="right") - 1, 0, len(self.times) - 1))

    @staticmethod
    def of(rollout: Rollout, max_points: int) -> Prediction:
        """Build the prediction of a rollout in memory."""
        return Prediction.from_frames(
            [(rollout, rollout.basis)],
            rollout.camera,
            rollout.times,
            max_points,
            rollout_id=rollout.rollout_id,
            plan_hash=rollout.plan_hash,
            maker=maker(rollout.provenance.generator, rollout.provenance.preset),
            depth=rollout.provenance.depth,
            outcomes=outcome_lines(rollout.outcomes)[: len(rollout.outcomes)],
        )

    @staticmethod
    def from_frames(
        parts: Iterable[tuple[Frames, NDArray[np.uint8] | None]],
        camera: PinholeCamera,
        times: NDArray[np.float64],
        max_points: int,
        *,
        rollout_id: str,
        plan_hash: str,
        maker: str,
        depth: str = "unknown",
        outcomes: Sequence[str] = (),
        outcome: int = 0,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Prediction:
        """Build the prediction part by part, so that the full rollout need not be in memory.

        Args:
            parts: successive ranges of the rollout's frames, each with its basis (T, H, W) or None.
            camera: camera of the rollout.
            times: (T,) seconds.
            max_points: maximum number of points per frame.
            rollout_id, plan_hash, maker, outcomes, outcome: as in the attributes.
            depth: `Provenance.depth` of the rollout, for parts without a basis.
            cancelled: called before each frame; raises InterruptedError when it returns True.
        """
        step = max(1.0, float(np.sqrt(camera.width * camera.height / max_points)))
        rows = np.arange(0.0, camera.height, step).astype(np.int64)
        columns = np.arange(0.0, camera.width, step).astype(np.int64)
        pick = np.ix_(rows[: max_points // len(columns) or 1], columns)
        clouds, pictures = [], []
        depths = []
        otherwise = _BASIS_OF_DEPTH.get(depth, PointBasis.UNKNOWN)
        for part, basis, t in ((frames, basis, t) for frames, basis in parts for t in range(len(frames))):
            xyz, rgb, mask = part.xyz[t], part.rgb[t], part.robot_mask[t]
            if cancelled():
                raise InterruptedError("a newer rollout has arrived")
            points = xyz[pick].reshape(-1, 3)
            here = np.isfinite(points[:, 2])
            robot = np.ascontiguousarray(mask[pick].reshape(-1)[here])
            if basis is None:
                source = np.where(robot, PointBasis.ROBOT, otherwise).astype(np.uint8)
            else:
                source = np.ascontiguousarray(basis[t][pick].reshape(-1)[here])
            depths.append(float(np.median(points[here, 2])) if here.any() else np.nan)
            clouds.append(Cloud(points[here], np.ascontiguousarray(rgb[pick].reshape(-1, 3)[here]), robot, source))
            pictures.append(small_picture(rgb))
        depth_m = float(np.nanmedian(depths)) if np.isfinite(depths).any() else 1.0
        return Prediction(
            times=np.asarray(times, dtype=np.float64) - float(times[0]),
            clouds=tuple(clouds),
            pictures=tuple(pictures),
            base_T_camera=camera.base_T_camera,
            spacing_m=depth_m * step / float(camera.K[0, 0]),
            rollout_id=rollout_id,
            plan_hash=plan_hash,
            maker=maker,
            outcomes=tuple(outcomes),
            outcome=outcome,
        )


def maker(generator: str, preset: str) -> str:
    """Return the name of the generator and its preset."""
    return f"{generator} ({preset})" if preset else generator


def small_picture(rgb: NDArray[np.uint8], width: int = PICTURE_WIDTH) -> NDArray[np.uint8]:
    """Downscale an image (H, W, 3) uint8 to at most `width` pixels."""
    if rgb.shape[1] <= width:
        return np.ascontiguousarray(rgb)
    height = max(1, round(rgb.shape[0] * width / rgb.shape[1]))
    return np.asarray(cv2.resize(rgb, (width, height), interpolation=cv2.INTER_AREA), dtype=np.uint8)
