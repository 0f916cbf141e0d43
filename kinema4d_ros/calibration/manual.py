"""Manual calibration: set a camera pose by six numbers, overlay the rendered robot on images, measure the fit."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.calibration.edge_fit import FOUND, fit_edges, match_edges
from kinema4d_ros.calibration.extrinsics import Extrinsics, Residuals
from kinema4d_ros.calibration.markerless import calibrate_markerless
from kinema4d_ros.calibration.pictures import outline_picture
from kinema4d_ros.calibration.silhouette import mask_iou, rectify_masks, signed_distance
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.transforms import from_rpy, to_rpy
from kinema4d_ros.io.images import overlay
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot.model import Robot

__all__ = ["NUMBERS", "ManualCalibration", "Measured", "Shown", "pose_of"]

Array = NDArray[np.float64]
Image = NDArray[np.uint8]

NUMBERS = ("x", "y", "z", "roll", "pitch", "yaw")
"""Parameters of `base_T_camera`: metres, and degrees about the fixed axes of the base."""

REACH_PX = 12.0


@dataclass(frozen=True, eq=False)
class Shown:
    """One image for the overlay.

    Attributes:
        q: (J,) joint positions at the time of the image.
        image: (H, W, 3) uint8, not rectified.
        mask: (H, W) bool, True = robot; None = unknown.
        name: shown to the user.
    """

    q: Array
    image: Image
    mask: NDArray[np.bool_] | None = None
    name: str = ""


@dataclass(frozen=True)
class Measured:
    """Fit of the rendered robot to the images.

    Attributes:
        by: "masks", or "edges" if not every image has a mask.
        px, mm: root mean square distance between rendered and observed outline, where it is within 12 pixels;
            None = unknown.
        iou: of the masks; None without them.
        share: fraction of the rendered outline within 1.5 pixels of the observed one.
        pictures: number of images used.
    """

    by: str
    px: float | None
    mm: float | None
    iou: float | None
    share: float
    pictures: int

    @property
    def text(self) -> str:
        """One-line summary."""
        parts = [
            "" if self.iou is None else f"IoU {self.iou:.3f}",
            "residual unknown" if self.px is None or self.mm is None else f"{self.px:.2f} px, {self.mm:.2f} mm",
            f"{self.share:.0%} of the outline fits the {self.by}",
        ]
        return ", ".join(part for part in parts if part)


def pose_of(numbers: ArrayLike) -> Array:
    """Convert six numbers, metres and degrees, to `base_T_camera` (4, 4)."""
    n = np.asarray(numbers, dtype=np.float64)
    return np.asarray(from_rpy(np.radians(n[3:]), n[:3]), np.float64)


def numbers_of(base_T_camera: ArrayLike) -> Array:
    """Convert a pose (4, 4) to its six numbers (6,), metres and degrees."""
    T = np.asarray(base_T_camera, dtype=np.float64)
    return np.concatenate([T[:3, 3], np.degrees(to_rpy(T))])


class ManualCalibration:
    """State of the manual calibration page. Thread-safe.

    Args:
        robot: the robot in the images.
        camera: intrinsics and the initial pose.
        pictures: at least one image, all of the camera's size.
    """

    def __init__(self, robot: Robot, camera: PinholeCamera, pictures: Sequence[Shown]) -> None:
        self._robot, self._camera, self._pinhole = robot, camera, camera.rectified()
        self._scene = Scene.from_robot(robot)
        self._lock = threading.RLock()
        self._start = numbers_of(camera.base_T_camera)
        self._numbers = self._start.copy()
        self._fitted = ""
        whole = np.ones((camera.height, camera.width), np.bool_)
        seen = rectify_masks([whole], camera)[1].astype(np.uint8)
        self._valid = cv2.erode(seen, np.ones((5, 5), np.uint8)) > 0
        self._raw = list(pictures)
        self._pictures = [self._rectified(shown) for shown in pictures]
        if not self._pictures:
            raise CalibrationError("no images were given", expected="at least one image")

    def _rectified(self, shown: Shown) -> Shown:
        size = (self._camera.height, self._camera.width)
        if shown.image.shape != (*size, 3):
            raise CalibrationError(
                f"{shown.name or 'an image'} is {shown.image.shape[1]} x {shown.image.shape[0]}",
                expected=f"{size[1]} x {size[0]}, the size in the camera file",
            )
        mask = None if shown.mask is None else rectify_masks([shown.mask], self._camera)[0][0]
        return replace(shown, image=self._camera.rectify(shown.image), mask=mask)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the images."""
        return tuple(shown.name or str(i) for i, shown in enumerate(self._pictures))

    @property
    def numbers(self) -> Array:
        """Current pose parameters (6,), metres and degrees."""
        with self._lock:
            return self._numbers.copy()

    def turn(self, numbers: ArrayLike) -> None:
        """Set all six pose parameters, metres and degrees."""
        n = np.asarray(numbers, dtype=np.float64)
        if n.shape != (6,) or not np.isfinite(n).all():
            raise CalibrationError(f"the pose is {n.tolist()}", expected="six finite numbers")
        with self._lock:
            self._numbers, self._fitted = n.copy(), ""

    def reset(self) -> None:
        """Reset to the initial pose."""
        self.turn(self._start)

    def show(self, shown: Shown) -> None:
        """Replace all images by this one, the newest of a live camera."""
        rectified = self._rectified(shown)
        with self._lock:
            self._raw, self._pictures = [shown], [rectified]

    def _now(self) -> tuple[PinholeCamera, list[Shown]]:
        with self._lock:
            return self._pinhole.posed(pose_of(self._numbers)), list(self._pictures)

    def draw(self, which: int = 0, alpha: float = 0.5, *, outline: bool = False) -> Image:
        """Draw the robot over one image, as a shaded overlay or as an outline."""
        camera, pictures = self._now()
        shown = pictures[min(which, len(pictures) - 1)]
        drawn = render_poses(self._scene, forward_all(self._robot, shown.q[None]), camera, rgb=True, threads=1)
        if outline or drawn.rgb is None:
            return outline_picture(shown.image, shown.mask, drawn.mask[0])
        return overlay(shown.image, drawn.rgb[0], drawn.mask[0], alpha)

    def measure(self) -> Measured:
        """Measure how well the rendered robot fits all images at the current pose."""
        camera, pictures = self._now()
        by_masks = all(shown.mask is not None for shown in pictures)
        offsets, depths, drawn, seen = [], [], [], []
        for shown in pictures:
            match = match_edges(self._robot, shown.q, shown.image, camera, REACH_PX)
            row, column = match.pixels
            lens = self._valid[row, column]
            depths.append(match.p_camera[lens, 2])
            if by_masks and shown.mask is not None:
                mask = render_poses(self._scene, forward_all(self._robot, shown.q[None]), camera, threads=1).mask[0]
                drawn.append(mask & self._valid)
                seen.append(shown.mask & self._valid)
                # Both outlines are half a pixel outside the centre of the last robot pixel.
                offsets.append((signed_distance(shown.mask)[row, column].astype(np.float64) + 0.5)[lens])
            else:
                offsets.append(match.offset_px[lens])
        r, z = np.concatenate(offsets), np.concatenate(depths)
        near = np.abs(r) < 1.5
        share = float(near.mean()) if len(r) else 0.0
        iou = mask_iou(np.stack(drawn), np.stack(seen)) if by_masks else None
        # Larger offsets are occlusions or a wrong pose; they lower `share` instead.
        found = r[np.abs(r) <= REACH_PX]
        # At a wrong pose the nearest edges belong to other objects, so their distance is meaningless.
        if len(found) < FOUND * len(r) or (not by_masks and share < FOUND):
            return Measured("masks" if by_masks else "edges", None, None, iou, share, len(pictures))
        px = float(np.sqrt(np.mean(found**2)))
        mm = 1e3 * px * float(np.median(z)) / float(camera.K[0, 0])
        return Measured("masks" if by_masks else "edges", px, mm, iou, share, len(pictures))

    def fit(self, which: int = 0) -> str:
        """Refine the pose: by the masks of all images, or by the edges of one image if any mask is missing.

        Returns:
            A one-line description of the fit.

        Raises:
            CalibrationError: the fit failed; the pose is unchanged.
        """
        camera, pictures = self._now()
        with self._lock:
            raw = list(self._raw)
        if all(shown.mask is not None for shown in raw):
            masks = [shown.mask for shown in raw if shown.mask is not None]
            found = calibrate_markerless(self._robot, np.stack([shown.q for shown in raw]), masks, self.camera)
            found.quality.require("the fit")
            pose, how = found.base_T_camera, f"fitted to {len(masks)} masks, one sigma {found.sigma_mm:.1f} mm"
        else:
            shown = pictures[min(which, len(pictures) - 1)]
            edges = fit_edges(self._robot, shown.q, shown.image, camera)
            if edges is None or edges.after < FOUND:
                raise CalibrationError(
                    f"only {0 if edges is None else edges.after:.0%} of the outline fits the image edges after the fit",
                    expected=f"{FOUND:.0%} or more",
                    hint="move the rendered robot closer by hand first",
                )
            sigma = 1e3 * float(np.sqrt(np.linalg.eigvalsh(edges.covariance[:3, :3])[-1]))
            pose, how = edges.base_T_camera, f"fitted to the edges of one image, one sigma {sigma:.1f} mm"
        with self._lock:
            self._numbers, self._fitted = numbers_of(pose), how
        return how

    def extrinsics(self) -> Extrinsics:
        """Return the extrinsics to save: method "manual", with the residual on these images if it is known."""
        measured = self.measure()
        with self._lock:
            pose, fitted = pose_of(self._numbers), self._fitted
        notes = [
            fitted or "set by hand with sliders, uncertainty unknown",
            f"{measured.share:.0%} of the outline fits the {measured.by} of {measured.pictures} images",
        ]
        return Extrinsics(
            self._robot.base_link,
            self._camera.frame_id,
            pose,
            method="manual" + (", then fitted" if fitted else ""),
            date=datetime.date.today().isoformat(),
            residuals=Residuals(px=measured.px, mm=measured.mm, mask_iou=measured.iou, poses=measured.pictures),
            notes="; ".join(notes),
        )

    @property
    def camera(self) -> PinholeCamera:
        """Camera with lens distortion at the current pose."""
        with self._lock:
            return self._camera.posed(pose_of(self._numbers))
