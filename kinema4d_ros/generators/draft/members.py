"""Members of a draft: draws of everything that is uncertain, few and well spread.

    FittedScene: estimates with weights ─┐
    Priors: mass, friction, servos ──────┼─> draw_members ─> Members that differ in all of it
    spread of the calibration ───────────┘

Draws are stratified: over K members every quantity takes values from K equal parts of its distribution, and every
hypothesis of an object appears in about its share of the members. Member 0 has the best estimates and the medians.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.transforms import axis_angle, invert, make
from kinema4d_ros.generators.draft.priors import Priors
from kinema4d_ros.generators.draft.scene import FittedObject, FittedScene
from kinema4d_ros.physics.ensemble import Member
from kinema4d_ros.physics.model import Materials, Room
from kinema4d_ros.physics.objects import LabObject, PlacedObject, volume_of
from kinema4d_ros.robot.model import Robot

__all__ = ["CameraSpread", "draw_members", "open_room"]

Array = NDArray[np.float64]

_GREY = (0.5, 0.5, 0.5)
_FAR_M = 3.0
"""Half the side of a table whose edges are unknown, and the distance of walls that are unknown."""
_LEVEL = 0.02
"""Sine of the angle below which a line of sight is parallel to the table."""


@dataclass(frozen=True, eq=False)
class CameraSpread:
    """Uncertainty of the camera's pose, which shifts all objects together.

    Attributes:
        base_T_camera: (4, 4) the calibrated pose, metres.
        std: (6,) standard deviations of a small change of that pose in the camera frame: x, y, z in metres, then
            rotations about x, y, z in radians.
        axes: (6, 6) orthogonal, columns: the changes of that pose to which `std` belongs; None = the six above.
    """

    base_T_camera: Array
    std: tuple[float, float, float, float, float, float]
    axes: Array | None = None

    @classmethod
    def of_covariance(cls, base_T_camera: Array, covariance: Array) -> CameraSpread:
        """Make the spread of a calibration's covariance (6, 6), as `calibration.pose_estimate` defines it.

        That one has the translation in the base frame and the rotation in the camera frame.
        """
        pose = np.asarray(base_T_camera, dtype=np.float64)
        to_camera = np.eye(6)
        to_camera[:3, :3] = pose[:3, :3].T
        variances, axes = np.linalg.eigh(to_camera @ np.asarray(covariance, dtype=np.float64) @ to_camera.T)
        a, b, c, d, e, f = np.sqrt(np.maximum(variances, 0.0)).tolist()
        return cls(pose, (a, b, c, d, e, f), axes)


def open_room(table_height_m: float, table: tuple[float, float, float, float] | None = None) -> Room:
    """Return the room of a fitted scene: a table with edges (x0, x1, y0, y1) where they are known, walls far away."""
    x0, x1, y0, y1 = np.clip(table or (-_FAR_M, _FAR_M, -_FAR_M, _FAR_M), -_FAR_M, _FAR_M).tolist()
    return Room(
        table=(x0, x1, y0, y1),
        table_z=table_height_m,
        table_thickness=0.1,
        back_wall_x=-_FAR_M,
        side_wall_y=_FAR_M,
        floor_z=table_height_m - 0.74,
    )


def draw_members(
    scene: FittedScene,
    robot: Robot,
    priors: Priors,
    count: int,
    rng: np.random.Generator,
    *,
    camera: CameraSpread | None = None,
) -> list[Member]:
    """Draw members of equal weight.

    Args:
        scene: the fitted objects; each member takes one estimate of every object.
        robot: a member without a gripper holds nothing.
        priors: of what the image does not show.
        count: 1 or more.
        rng: equal states give equal members.
        camera: uncertainty of the calibration. Objects stay on the table: they shift and turn in its plane, and those
            between the fingers stay there.

    Raises:
        KinemaError: no member is asked for, or an object has no estimates or weights that are not positive.
    """
    if count < 1:
        raise KinemaError(f"{count} members", expected="1 or more", code=ErrorCode.ARGUMENT_INVALID)
    draw = _Draws(count, rng)
    table, fingers = priors.table_friction.at(draw.shares()), priors.finger_friction.at(draw.shares())
    span_rad, span_m = priors.span_rad.at(draw.shares()), priors.span_m.at(draw.shares())
    delay = priors.delay_s.at(draw.shares())
    errors = _camera_errors(camera, draw)
    placed = [
        [
            PlacedObject(thing, pose if one.held else _moved(pose, camera, error))
            for (thing, pose), error in zip(_variants(one, priors, draw), errors, strict=True)
        ]
        for one in scene.objects
    ]
    held = tuple(one.name for one in scene.objects if one.held) if robot.gripper is not None else ()
    return [
        Member(
            objects=tuple(variants[k] for variants in placed),
            materials=Materials(
                friction=(float(table[k]), priors.spinning, priors.rolling),
                finger_friction=float(fingers[k]),
                servo_span_rad=float(span_rad[k]),
                servo_span_m=float(span_m[k]),
                rotor_inertia=priors.rotor_inertia,
                rotor_mass=priors.rotor_mass,
            ),
            delay_s=float(delay[k]),
            held=held,
        )
        for k in range(count)
    ]


class _Draws:
    """Stratified draws for K members; the first member's are central."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.count, self._rng = count, rng

    def shares(self, columns: int | None = None) -> Array:
        """Return shares between 0 and 1, (K,) or (K, columns): 0.5 first, then one from each of K - 1 equal parts."""
        if columns is not None:
            return np.stack([self.shares() for _ in range(columns)], axis=1)
        rest = self.count - 1
        drawn = (self._rng.permutation(rest) + self._rng.random(rest)) / max(rest, 1)
        return np.concatenate([[0.5], np.clip(drawn, 1e-6, 1 - 1e-6)])

    def choices(self, weights: Array) -> NDArray[np.intp]:
        """Return an index (K,) of the weights for each member: the first 0, all about as often as their weight.

        Systematic sampling: K equally spaced points on the cumulative weights. The first point belongs to member 0; the
        others are shuffled, so that hypotheses of different objects combine.
        """
        ends = np.cumsum(weights) / np.sum(weights)
        points = (np.arange(self.count) + self._rng.random()) / self.count
        found = np.minimum(np.searchsorted(ends, points, side="right"), len(weights) - 1)
        rest = found[1:]
        return np.concatenate([[0], self._rng.permutation(rest)]).astype(np.intp)


def _variants(one: FittedObject, priors: Priors, draw: _Draws) -> list[tuple[LabObject, Array]]:
    """Return the object and its fitted pose (4, 4) of every member."""
    weights = np.array([estimate.weight for estimate in one.estimates])
    if not len(weights) or not np.all(np.isfinite(weights)) or weights.min() < 0 or weights.sum() <= 0:
        raise KinemaError(
            f"the estimates of '{one.name}' have the weights {weights.tolist()}"[:200],
            expected="at least one estimate, weights of 0 or more with a positive sum",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    chosen = draw.choices(weights)
    density, friction = priors.density.at(draw.shares()), priors.object_friction.at(draw.shares())
    centers = priors.center_of_mass.at(draw.shares(3))
    made = []
    for k, which in enumerate(chosen):
        estimate = one.estimates[which]
        uniform = LabObject(one.name, estimate.shape, estimate.size, _GREY, 1.0, vertices=estimate.vertices)
        dx, dy, dz = (centers[k] * np.array(estimate.size) / 2).tolist()
        if estimate.shape == "sphere":
            # A ball at rest lies on its heavy side.
            dx, dy, dz = 0.0, 0.0, -abs(dz)
        thing = replace(
            uniform,
            mass=float(np.clip(density[k] * volume_of(uniform), *priors.mass)),
            friction=float(friction[k]),
            center_of_mass=(dx, dy, dz),
        )
        made.append((thing, estimate.base_T_object))
    return made


def _camera_errors(camera: CameraSpread | None, draw: _Draws) -> list[Array | None]:
    """Return the motion (4, 4) of the camera in the base frame for each member; None without uncertainty."""
    if camera is None:
        return [None] * draw.count
    errors: list[Array | None] = []
    changes = np.array(camera.std) * ndtri(draw.shares(6))
    for change in changes if camera.axes is None else changes @ camera.axes.T:
        angle = float(np.linalg.norm(change[3:]))
        turn = axis_angle(change[3:] / angle, angle)[:3, :3] if angle > 0 else np.eye(3)
        errors.append(camera.base_T_camera @ make(turn, change[:3]) @ invert(camera.base_T_camera))
    return errors


def _moved(pose: Array, camera: CameraSpread | None, error: Array | None) -> Array:
    """Return the pose (4, 4) of an object on the table as a camera that is off by `error` sees it.

    The height of the table is known from the robot: the object's centre slides along its line of sight to its old
    height, and the object turns only about the vertical.
    """
    if camera is None or error is None:
        return pose
    eye, seen = (error @ p for p in (camera.base_T_camera[:, 3], pose[:, 3]))
    ray = (seen - eye)[:3]
    if abs(ray[2]) < _LEVEL * np.linalg.norm(ray):
        return pose
    yaw = float(np.arctan2(error[1, 0] - error[0, 1], error[0, 0] + error[1, 1]))
    moved = axis_angle([0.0, 0.0, 1.0], yaw) @ pose
    moved[:3, 3] = eye[:3] + ray * (pose[2, 3] - eye[2]) / ray[2]
    return np.asarray(moved)
