"""How much of each pixel is the object: its colours against those of the scene behind it.

A learned model fades and blurs what it is unsure of. So a pixel is explained as a mixture, alpha parts of one of the
object's colours and 1 - alpha parts of what was behind, and alpha is the weight of its point: a half-faded object is
still found, at half the weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.report.plane import fit_plane

__all__ = ["Scene", "likeness", "palette", "scene_without"]

_RING_PX = 12
_FRONT_M = 0.005
"""Something stands before the scene where it is nearer by this much along the optical axis."""
_COLOURS = 4
_LEAST_ALPHA = 0.25
_RESIDUAL = 22.0
"""Of 255: colours this far from every mixture weigh 0.6."""
_SHADE = 0.4
"""Weight of brightness against hue: a thing that is lifted turns its faces to other lamps."""
_CONTRAST = 35.0
"""Of 255: an object whose colour differs less from the scene's cannot be told from it by colour."""

Mask = NDArray[np.bool_]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Scene:
    """What is behind the object.

    Attributes:
        rgb: (H, W, 3) float32, 0 to 255.
        depth_m: (H, W) float32, along the optical axis, NaN = unknown.
    """

    rgb: Floats
    depth_m: Floats


def scene_without(rgb: NDArray[np.uint8], xyz: Floats, hidden: Mask, body: Mask, camera: PinholeCamera) -> Scene:
    """The scene of a sequence as if the object were not in it.

    Args:
        rgb, xyz: (T, H, W, 3) pictures and points, camera frame.
        hidden: (T, H, W) bool, the robot and its rim.
        body: (H, W) bool, the object in frame 0.
        camera: of the pictures.

    Frame 0 where it shows the scene; where the robot stands in it, the farthest that is seen there later; under the
    object, the plane around it, with colours from its rim.
    """
    z = np.where(hidden, np.float32(np.nan), xyz[..., 2])
    depth, picture = z[0].copy(), rgb[0].astype(np.float32)
    covered = hidden[0]
    if covered.any():
        later = np.where(np.isfinite(z[:, covered]), z[:, covered], np.float32(-np.inf))
        at = later.argmax(axis=0)
        depth[covered] = np.where(np.isfinite(later.max(axis=0)), later.max(axis=0), np.nan)
        picture[covered] = rgb[:, covered][at, np.arange(at.size)]
    wide = _dilate(body, 2)
    ring = _dilate(body, _RING_PX) & ~wide & ~covered & np.isfinite(depth)
    plane = fit_plane(xyz[0][ring].astype(np.float64), tolerance_m=0.006, least_points=20)
    if plane is not None:
        rays = camera.rays()[wide]
        with np.errstate(divide="ignore", invalid="ignore"):
            behind = -plane[3] / (rays @ plane[:3])
        # Never nearer than what is seen: at the rim the object's shape bulges over the table's edge.
        depth[wide] = np.where(behind > 0, np.fmax(behind, np.where(body[wide], -np.inf, depth[wide])), np.nan)
    else:
        depth[wide & body] = np.nan
    unknown = (wide | ~np.isfinite(depth)).astype(np.uint8)
    filled = cv2.inpaint(np.clip(picture, 0, 255).astype(np.uint8), unknown, 3, cv2.INPAINT_TELEA)
    return Scene(np.where(unknown[..., None] > 0, filled, picture).astype(np.float32), depth.astype(np.float32))


def palette(rgb: NDArray[np.uint8], body: Mask) -> Floats:
    """(K, 3) float32: the object's main colours in a picture (H, W, 3), without its mixed rim if it can be."""
    inner = cv2.erode(body.astype(np.uint8), np.ones((3, 3), np.uint8)) != 0
    pixels = rgb[inner if inner.sum() >= 4 * _COLOURS else body].astype(np.float32)
    if len(pixels) < 2 * _COLOURS:
        return np.asarray(pixels.mean(axis=0, keepdims=True), np.float32)
    cv2.setRNGSeed(0)
    criteria = (cv2.TERM_CRITERIA_EPS + cv2.TERM_CRITERIA_MAX_ITER, 20, 0.5)
    _, labels, centres = cv2.kmeans(pixels, _COLOURS, None, criteria, 2, cv2.KMEANS_PP_CENTERS)
    share = np.bincount(labels.ravel(), minlength=_COLOURS) / len(pixels)
    return np.asarray(centres[share >= 0.05], np.float32)


def likeness(
    rgb: NDArray[np.uint8], depth_m: Floats, hidden: Mask, scene: Scene, colours: Floats
) -> tuple[Floats, Floats]:
    """(H, W) float32, 0 to 1: the weight of each pixel, and how opaque the object is in it.

    The weight is 0 where the robot hides it, where depth is unknown, and where nothing stands before the scene.
    Opaque is 1 where colours are too much alike to tell.
    """
    picture = rgb.astype(np.float32)
    weight, opaque = np.zeros(hidden.shape, np.float32), np.ones(hidden.shape, np.float32)
    with np.errstate(invalid="ignore"):
        stands = ~hidden & np.isfinite(depth_m) & ~(scene.depth_m - depth_m < _FRONT_M)
    c, b = picture[stands], scene.rgb[stands]
    best, solid = np.zeros(len(c), np.float32), np.ones(len(c), np.float32)
    for colour in colours:
        way = colour - b
        squared = np.maximum((way * way).sum(-1), 1.0)
        alpha = np.clip(((c - b) * way).sum(-1) / squared, 0.0, 1.0)
        rest = c - b - alpha[:, None] * way
        shade = rest @ (colour / max(float(np.linalg.norm(colour)), 1.0))
        residual = (rest * rest).sum(-1) - (1 - _SHADE**2) * shade * shade
        fit = np.exp(-0.5 * residual / _RESIDUAL**2)
        # Without contrast alpha is noise; then standing where the scene was not is all the evidence there is.
        clear = np.minimum(np.sqrt(squared) / _CONTRAST, 1.0)
        mixed = clear * alpha + (1 - clear) * 0.5
        score = np.where(mixed < _LEAST_ALPHA, 0.0, mixed * fit).astype(np.float32)
        better = score > best
        best[better], solid[better] = score[better], np.where(clear < 1, 1.0, alpha)[better]
    weight[stands], opaque[stands] = best, solid
    return weight, opaque


def _dilate(mask: Mask, reach: int) -> Mask:
    return np.asarray(cv2.dilate(mask.astype(np.uint8), np.ones((2 * reach + 1, 2 * reach + 1), np.uint8)) != 0)
