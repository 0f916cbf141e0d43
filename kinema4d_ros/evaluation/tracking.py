"""Where an object goes in a predicted future: its position in every frame, and how sure that is.

    frame 0   its points and colours
    frame t   every point weighs as much as its pixel is like the object and stands before the scene
              -> the place where most weight is, near to where it was, or elsewhere if much more is there
              -> the shift at which the object's own points, without those the robot hides, have that centroid

Hidden by the robot it stays where it was; in view and not there it is lost: NaN, confidence 0.
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

# How much of each pixel is the object: its colours against those of the scene behind it.
#
# A learned model fades and blurs what it is unsure of. So a pixel is explained as a mixture, alpha parts of one of the
# object's colours and 1 - alpha parts of what was behind, and alpha is the weight of its point: a half-faded object is
# still found, at half the weight.

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


_LEAST_POINTS = 10
_WORK_POINTS = 600
"""More points of the object than this only cost time: then rows and columns are left out."""
_MARGIN_M = 0.012
_LEAST_VIEW = 0.12
"""Share of its points that must be in view to say where it is."""
_LOST = 0.12
"""Share of the expected weight below which it is not there."""
_JUMP_M = 0.12
_SETTLED_M = 2e-4
_SOLID, _LEAST_OPACITY = 0.8, 0.35
_FLOATS_M, _HELD_M = 0.008, 0.05
_HIDDEN_FADE = 0.93
"""What is hidden gets less certain by this factor a frame."""

Mask = NDArray[np.bool_]
Points = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Track:
    """An object through time.

    Attributes:
        position: (T, 3) float64, metres, base frame: its middle along the table, as far as one side can tell, at the
            height of the centroid of the surface that frame 0 showed; NaN = lost.
        confidence: (T,) float64, 0 to 1: share of the object that was found where it is said to be, less if
            something like it is elsewhere too; 0 = lost.
        visible: (T,) float64, 0 to 1: share of its points that the robot does not hide there.
        points: how many pixels it had in frame 0.
    """

    position: Points
    confidence: NDArray[np.float64]
    visible: NDArray[np.float64]
    points: int


def track_object(rollout: Rollout, target: Mask) -> Track:
    """Follow the object whose pixels in frame 0 are `target` (H, W) bool.

    Raises:
        EvaluationError: the mask does not fit, or shows fewer than ten points that the robot does not hide.
    """
    shape = rollout.robot_mask.shape[1:]
    mask = np.asarray(target)
    if mask.dtype != np.bool_ or mask.shape != shape:
        raise EvaluationError(f"target is {mask.dtype} of shape {mask.shape}", expected=f"bool of shape {shape}")
    step = max(1, int(np.sqrt(mask.sum() / _WORK_POINTS)))
    every = (slice(None), slice(step // 2, None, step), slice(step // 2, None, step))
    # A pixel beside the robot mixes it with the world.
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
            expected=f"at least {_LEAST_POINTS} that are in view and have depth",
            hint="start with the arm beside the object, or give another mask",
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
            # Not in view at its place: it stays there until it is seen elsewhere.
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
    """What may be the object in a frame: (M, 3) points, (M,) weights, opacities and depths of the scene behind.

    `robot` (R, 3) are the robot's points. All in the camera's frame.
    """

    points: Points
    weight: NDArray[np.float64]
    opaque: NDArray[np.float64]
    behind_m: NDArray[np.float64]
    robot: Points

    def unfaded(self, factor: float) -> Points:
        """The points, `factor` times as far before the scene as they are."""
        z = self.points[:, 2]
        further = np.where(np.isfinite(self.behind_m), self.behind_m - factor * (self.behind_m - z), z)
        return np.asarray(self.points * (further / z)[:, None])


class _Search:
    """The object's points (N, 3) of frame 0, camera frame, and how to find them in a weighted cloud.

    `up` (3,) is the base's vertical in the camera's frame.
    """

    def __init__(self, camera: PinholeCamera, points: Points, up: Points) -> None:
        self.points = points
        self.centre = points.mean(axis=0)
        self._camera = camera
        self._up = up
        self._reach = float(np.linalg.norm(points - self.centre, axis=1).max()) + _MARGIN_M

    def frame(self, cloud: _Cloud, in_view: Mask, start: Points) -> _Found | None:
        """Where it is in a cloud; None = hidden where it was, and nothing like it in view."""
        points, weight = cloud.points, cloud.weight
        places = [start]
        if len(points):
            places.append(self._densest(points, weight, start))
        answers = [self._settle(points, weight, in_view, place) for place in places]
        # A jump must be worth it: evidence halves with every 12 cm.
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
        # A rival of a third of the evidence is noise; one as strong leaves nothing but a guess.
        doubt = np.clip((rival / evidence - 0.33) / 0.67, 0.0, 1.0)
        return _Found(self._unfade(cloud, in_view, shift), float(share * (1 - 0.6 * doubt)), seen)

    def _unfade(self, cloud: _Cloud, in_view: Mask, shift: Points) -> Points:
        """The shift without what fading did to it.

        Where colours are a mixture with the scene, so are depths: points slide back along their rays by as much. That
        only ever pulls an object down, so one that floats nevertheless is held, and its points go back by what its
        opacity says, as long as the robot is there to hold it. One that does not float is put where it is neither
        higher nor lower than at first.
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
        """The shift to the place with the most weight around it, nearer ones preferred."""
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
        """(N,) bool: which of its points, shifted, the robot does not hide."""
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
        """From a first guess: the shift, the weight there, and the share of the object in view there."""
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
    """The camera whose pixels are every `step`th of the other's, starting in the middle of the first block."""
    if step == 1:
        return camera
    height, width = shape
    K = camera.K.copy()
    offset = step // 2
    # Pixel i of the thin picture, centre i + 0.5, is pixel i step + offset of the full one.
    K[:2, 2] = (K[:2, 2] - (offset + 0.5)) / step + 0.5
    K[:2, :2] /= step
    return PinholeCamera(width, height, K, camera.base_T_camera, frame_id=camera.frame_id, base_frame=camera.base_frame)


def _weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
