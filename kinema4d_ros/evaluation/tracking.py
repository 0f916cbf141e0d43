"""Tracking of an object through a rollout: its position and confidence in every frame.

    frame 0   the object's points and colours
    frame t   every point gets a weight: similarity of its pixel to the object, if it is in front of the scene
              -> the place with the most weight near the last position, or elsewhere if much more weight is there
              -> the shift at which the object's own points, without those the robot hides, have that centroid

An object hidden by the robot keeps its position; one that should be in view but is not found is lost: NaN,
confidence 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import EvaluationError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.evaluation.target import centre_behind
from kinema4d_ros.previews.report.plane import fit_plane

__all__ = ["Scene", "Track", "likeness", "palette", "scene_without", "track_object"]

# Weight of each pixel: the object's colours against those of the scene behind it.
#
# A learned model fades and blurs uncertain objects. So a pixel is modelled as a mixture of alpha parts of one of the
# object's colours and 1 - alpha parts of the scene behind; alpha is the weight of its point: a half-faded object is
# still found, with half the weight.

_RING_PX = 12
_FRONT_M = 0.005
"""A point is in front of the scene if it is nearer by this much along the optical axis."""
_COLOURS = 4
_LEAST_ALPHA = 0.25
_RESIDUAL = 22.0
"""Of 255: colours at this distance from every mixture have weight 0.6."""
_SHADE = 0.4
"""Weight of brightness relative to hue: the shading of a lifted object changes."""
_CONTRAST = 35.0
"""Of 255: minimum colour difference between object and scene for a reliable alpha."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Scene:
    """The scene without the object.

    Attributes:
        rgb: (H, W, 3) float32, 0 to 255.
        depth_m: (H, W) float32, along the optical axis, NaN = unknown.
    """

    rgb: Floats
    depth_m: Floats


def scene_without(rgb: NDArray[np.uint8], xyz: Floats, hidden: Mask, body: Mask, camera: PinholeCamera) -> Scene:
    """Reconstruct the scene of a sequence without the object.

    Args:
        rgb, xyz: (T, H, W, 3) images and points, camera frame.
        hidden: (T, H, W) bool, the robot and its rim.
        body: (H, W) bool, the object in frame 0.
        camera: of the images.

    Frame 0 where it shows the scene; behind the robot, the farthest later depth of the pixel; under the object, the
    plane around it, with colours inpainted from its rim.
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
        # Not nearer than the measured depth: at the object's rim the plane may pass in front of the scene.
        depth[wide] = np.where(behind > 0, np.fmax(behind, np.where(body[wide], -np.inf, depth[wide])), np.nan)
    else:
        depth[wide & body] = np.nan
    unknown = (wide | ~np.isfinite(depth)).astype(np.uint8)
    filled = cv2.inpaint(np.clip(picture, 0, 255).astype(np.uint8), unknown, 3, cv2.INPAINT_TELEA)
    return Scene(np.where(unknown[..., None] > 0, filled, picture).astype(np.float32), depth.astype(np.float32))


def palette(rgb: NDArray[np.uint8], body: Mask) -> Floats:
    """Compute the object's main colours (K, 3) float32 in an image (H, W, 3), without its mixed rim if possible."""
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
    """Compute weight and opacity of each pixel, (H, W) float32, 0 to 1.

    The weight is 0 on the robot, where depth is unknown, and where nothing is in front of the scene. The opacity is 1
    where the colours are too similar to estimate it.
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
        # Without contrast alpha is noise; then the only evidence is a point in front of the scene.
        clear = np.minimum(np.sqrt(squared) / _CONTRAST, 1.0)
        mixed = clear * alpha + (1 - clear) * 0.5
        score = np.where(mixed < _LEAST_ALPHA, 0.0, mixed * fit).astype(np.float32)
        better = score > best
        best[better], solid[better] = score[better], np.where(clear < 1, 1.0, alpha)[better]
    weight[stands], opaque[stands] = best, solid
    return weight, opaque


def _dilate(mask: Mask, reach: int) -> Mask:
    return np.asarray(cv2.dilate(mask.astype(np.uint8), np.ones((2 * reach + 1, 2 * reach + 1), np.uint8)) != 0)


_LEAST_POINTS = 10
_WORK_POINTS = 600
"""Above this number of points the images are subsampled to save time."""
_MARGIN_M = 0.012
_LEAST_VIEW = 0.12
"""Minimum share of the object's points in view to estimate its position."""
_LOST = 0.12
"""Share of the expected weight below which the object is lost."""
_JUMP_M = 0.12
_SETTLED_M = 2e-4
_SOLID, _LEAST_OPACITY = 0.8, 0.35
_FLOATS_M, _HELD_M = 0.008, 0.05
_HIDDEN_FADE = 0.93
"""Factor per frame by which the confidence of a hidden object decreases."""

Mask = NDArray[np.bool_]
Points = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Track:
    """Path of an object.

    Attributes:
        position: (T, 3) float64, metres, base frame: its centre along the table, estimated from the visible side, at
            the height of the centroid of the surface visible in frame 0; NaN = lost.
        confidence: (T,) float64, 0 to 1: share of the object found at its position, reduced if similar points are
            elsewhere too; 0 = lost.
        visible: (T,) float64, 0 to 1: share of its points that the robot does not hide.
        points: number of its pixels in frame 0.
    """

    position: Points
    confidence: NDArray[np.float64]
    visible: NDArray[np.float64]
    points: int


def track_object(rollout: Rollout, target: Mask) -> Track:
    """Track the object whose pixels in frame 0 are `target` (H, W) bool.

    Raises:
        EvaluationError: the mask has the wrong shape or dtype, or fewer than ten points that the robot does not hide.
    """
    shape = rollout.robot_mask.shape[1:]
    mask = np.asarray(target)
    if mask.dtype != np.bool_ or mask.shape != shape:
        raise EvaluationError(f"target is {mask.dtype} of shape {mask.shape}", expected=f"bool of shape {shape}")
    step = max(1, int(np.sqrt(mask.sum() / _WORK_POINTS)))
    every = (slice(None), slice(step // 2, None, step), slice(step // 2, None, step))
    # Pixels next to the robot mix its colour with the scene's.
    hidden = np.stack([cv2.dilate(m.view(np.uint8), np.ones((3, 3), np.uint8)) != 0 for m in rollout.robot_mask[every]])
    rgb, xyz = rollout.rgb[every], rollout.xyz[every]
    body = mask[every[1:]] & np.isfinite(xyz[0, ..., 2])
    if (body & ~hidden[0]).sum() >= _LEAST_POINTS:
        body &= ~hidden[0]
    else:
        body &= ~rollout.robot_mask[0][every[1:]]
    if body.sum() < _LEAST_POINTS:
        raise EvaluationError(
            f"the target has {int(body.sum())} points in the first frame",
            expected=f"at least {_LEAST_POINTS} points in view with depth",
            hint="start with the arm beside the object, or pass another mask",
        )
    camera = _thinned(rollout.camera, step, body.shape)
    scene = scene_without(rgb, xyz, hidden, body, camera)
    colours = palette(rgb[0], body)
    search = _Search(camera, xyz[0][body].astype(np.float64), up=rollout.camera.base_T_camera[2, :3])
    frames = len(rollout)
    shift, confidence, visible = np.zeros((frames, 3)), np.zeros(frames), np.zeros(frames)
    start, held = np.zeros(3), 1.0
    for t in range(frames):
        weight, opaque = likeness(rgb[t], xyz[t, ..., 2], hidden[t], scene, colours)
        some = weight > 0
        cloud = _Cloud(
            points=xyz[t][some].astype(np.float64),
            weight=weight[some].astype(np.float64),
            opaque=opaque[some].astype(np.float64),
            behind_m=scene.depth_m[some].astype(np.float64),
            robot=xyz[t][rollout.robot_mask[t][every[1:]]].astype(np.float64),
        )
        found = search.frame(cloud, ~hidden[t], start)
        if found is None:
            # Hidden at its last position: it stays there until it is found elsewhere.
            held *= _HIDDEN_FADE
            shift[t], confidence[t], visible[t] = start, held, 0.0
            continue
        shift[t], confidence[t], visible[t] = found.shift, found.confidence, found.visible
        if found.confidence > 0:
            start, held = found.shift, found.confidence
        else:
            shift[t] = np.nan
    points = apply(rollout.camera.base_T_camera, search.points)
    behind = centre_behind(points, rollout.camera.base_T_camera[:3, 3]) - points.mean(axis=0)
    position = apply(rollout.camera.base_T_camera, search.centre + shift) + behind
    return Track(position, confidence, visible, int(mask.sum()))


@dataclass(frozen=True)
class _Found:
    shift: Points
    confidence: float
    visible: float


@dataclass(frozen=True, eq=False)
class _Cloud:
    """Candidate points of the object in a frame: (M, 3) points, (M,) weights, opacities and depths of the scene behind.

    `robot` (R, 3) are the robot's points. All in the camera frame.
    """

    points: Points
    weight: NDArray[np.float64]
    opaque: NDArray[np.float64]
    behind_m: NDArray[np.float64]
    robot: Points

    def unfaded(self, factor: float) -> Points:
        """Move the points along their rays to `factor` times their distance in front of the scene."""
        z = self.points[:, 2]
        further = np.where(np.isfinite(self.behind_m), self.behind_m - factor * (self.behind_m - z), z)
        return np.asarray(self.points * (further / z)[:, None])


class _Search:
    """Search for the object's points (N, 3) of frame 0, camera frame, in weighted clouds.

    `up` (3,) is the base's vertical axis in the camera frame.
    """

    def __init__(self, camera: PinholeCamera, points: Points, up: Points) -> None:
        self.points = points
        self.centre = points.mean(axis=0)
        self._camera = camera
        self._up = up
        self._reach = float(np.linalg.norm(points - self.centre, axis=1).max()) + _MARGIN_M

    def frame(self, cloud: _Cloud, in_view: Mask, start: Points) -> _Found | None:
        """Find the object in a cloud; None = hidden at its last position, and not found elsewhere."""
        points, weight = cloud.points, cloud.weight
        places = [start]
        if len(points):
            places.append(self._densest(points, weight, start))
        answers = [self._settle(points, weight, in_view, place) for place in places]
        # Jumps are penalised: evidence halves with every 12 cm.
        scores = [e * 0.5 ** (np.linalg.norm(s - start) / _JUMP_M) for s, e, _ in answers]
        best = int(np.argmax(scores))
        shift, evidence, seen = answers[best]
        _, _, seen_at_start = answers[0]
        if seen_at_start < _LEAST_VIEW and evidence < 2 * _LOST * len(self.points):
            return None
        expected = max(seen, _LEAST_VIEW) * len(self.points)
        share = min(evidence / expected, 1.0)
        if share < _LOST:
            return _Found(shift, 0.0, seen)
        elsewhere = np.linalg.norm(points - (self.centre + shift), axis=1) > 1.5 * self._reach
        rival = 0.0
        if elsewhere.any():
            other = self._densest(points[elsewhere], weight[elsewhere], shift)
            rival = self._evidence(points[elsewhere], weight[elsewhere], other)
        # A rival with a third of the evidence is noise; with equal evidence the position is a guess.
        doubt = np.clip((rival / evidence - 0.33) / 0.67, 0.0, 1.0)
        return _Found(self._unfade(cloud, in_view, shift), float(share * (1 - 0.6 * doubt)), seen)

    def _unfade(self, cloud: _Cloud, in_view: Mask, shift: Points) -> Points:
        """Correct a shift for fading.

        Where colours are mixed with the scene, so are depths: points slide back along their rays. This only moves an
        object down, so one that still floats is held: its points are moved forward according to its opacity, if the
        robot is near enough to hold it. One that does not float is moved to its initial height.
        """
        near = np.linalg.norm(cloud.points - (self.centre + shift), axis=1) < self._reach
        opacity = _weighted_median(cloud.opaque[near], cloud.weight[near]) if near.any() else 1.0
        if opacity > _SOLID:
            return shift

        def put_back(factor: float) -> Points:
            points = cloud.unfaded(factor)
            moved = np.average(points[near] - cloud.points[near], axis=0, weights=cloud.weight[near])
            return self._settle(points, cloud.weight, in_view, shift + moved)[0]

        most = 1.0 / max(opacity, _LEAST_OPACITY)
        if float(shift @ self._up) > _FLOATS_M:
            held = put_back(most)
            by_robot = len(cloud.robot) > 0 and cKDTree(cloud.robot).query(self.centre + held)[0] < _HELD_M
            return held if by_robot else shift
        answers = [put_back(float(factor)) for factor in np.linspace(1.0, most, 6)]
        return min(answers, key=lambda answer: abs(float(answer @ self._up)))

    def _densest(self, cloud: Points, weight: NDArray[np.float64], start: Points) -> Points:
        """Return the shift to the place with the most weight around it; nearer places are preferred."""
        far = np.linalg.norm(cloud - (self.centre + start), axis=1)
        order = np.argsort(-weight * 0.5 ** (far / _JUMP_M))[:: max(1, len(cloud) // 200)][:200]
        seeds = cloud[order]
        near = np.linalg.norm(seeds[:, None] - cloud[None], axis=-1) < self._reach
        votes = (near * weight).sum(axis=1) * 0.5 ** (far[order] / _JUMP_M)
        inside = near[int(votes.argmax())]
        return np.asarray(np.average(cloud[inside], axis=0, weights=weight[inside]) - self.centre)

    def _evidence(self, cloud: Points, weight: NDArray[np.float64], shift: Points) -> float:
        near = np.linalg.norm(cloud - (self.centre + shift), axis=1) < self._reach
        return float(weight[near].sum())

    def _visible(self, in_view: Mask, shift: Points) -> Mask:
        """Mark the shifted points of the object that the robot does not hide: (N,) bool."""
        uv = self._camera.project(self.points + shift)
        with np.errstate(invalid="ignore"):
            u, v = np.floor(uv[:, 0]), np.floor(uv[:, 1])
            inside = (u >= 0) & (v >= 0) & (u < in_view.shape[1]) & (v < in_view.shape[0])
        seen = np.zeros(len(self.points), np.bool_)
        seen[inside] = in_view[v[inside].astype(np.int64), u[inside].astype(np.int64)]
        return seen

    def _settle(
        self, cloud: Points, weight: NDArray[np.float64], in_view: Mask, shift: Points
    ) -> tuple[Points, float, float]:
        """Refine a first guess: return the shift, the weight there, and the share of the object in view there."""
        for _ in range(15):
            seen = self._visible(in_view, shift)
            near = np.linalg.norm(cloud - (self.centre + shift), axis=1) < self._reach
            if seen.sum() < _LEAST_VIEW * len(seen) or weight[near].sum() < _LOST * seen.sum():
                break
            step = np.average(cloud[near], axis=0, weights=weight[near]) - (self.points[seen].mean(axis=0) + shift)
            shift = shift + step
            if np.linalg.norm(step) < _SETTLED_M:
                break
        return shift, self._evidence(cloud, weight, shift), float(self._visible(in_view, shift).mean())


def _thinned(camera: PinholeCamera, step: int, shape: tuple[int, ...]) -> PinholeCamera:
    """Return the camera of every `step`-th pixel, starting in the middle of the first block."""
    if step == 1:
        return camera
    height, width = shape
    K = camera.K.copy()
    offset = step // 2
    # Pixel i of the subsampled image, centre i + 0.5, is pixel i step + offset of the full image.
    K[:2, 2] = (K[:2, 2] - (offset + 0.5)) / step + 0.5
    K[:2, :2] /= step
    return PinholeCamera(width, height, K, camera.base_T_camera, frame_id=camera.frame_id, base_frame=camera.base_frame)


def _weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
