"""Closed-form inverse kinematics for six-joint arms whose axes 2, 3 and 4 are parallel: all solutions.

This family includes the YAM and the UR arms: a rotating base, three parallel axes, and two last axes
that intersect in a point. `ParallelAxesArm.of(robot)` checks the axes, not the name, and is None for
any other geometry.

Based on screw axes at q = 0: `base_T_tool(q) = e1 e2 e3 e4 e5 e6 M`, where `e_i` rotates by `q_i`
about the fixed line (a_i, p_i). With n the direction of axes 2 to 4:
  q1: e2 e3 e4 keep the n-component of the point W where axes 5 and 6 meet.       2 solutions
  q5: they also keep the n-component of the direction of axis 6.                  2 solutions
  q6, q2 + q3 + q4: the remaining rotation.
  q3: the distance of axis 4 from axis 2 (the elbow), then q2, then q4.           2 solutions
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.transforms import axis_angle, invert, make
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.robot.model import Robot

__all__ = ["ParallelAxesArm"]

Array = NDArray[np.float64]

ANGLE_TOLERANCE = 1e-4
DISTANCE_TOLERANCE_M = 1e-4
"""Accepted deviation of the axes from the ideal: URDFs write pi with six digits. Solutions deviate by as much."""

SINGULAR = 1e-7

LIMIT_SLACK = 1e-3
"""Radians past a limit that are clipped to it: near singularities the deviation of the axes is amplified."""

SLACK = 1e-5
"""Metres (or radians) out of reach that count as full stretch, to allow for the deviation of the axes."""


class ParallelAxesArm:
    """Closed-form solver for one arm; `robot.arm` order, radians."""

    def __init__(self, axes: Array, points: Array, base_T_tool: Array, lower: Array, upper: Array) -> None:
        """Store axes (6, 3) and points (6, 3) at q = 0, the tool pose there, and the limits (6,); see `of`."""
        self._a, self._p = axes, points
        self._tool_T_base = invert(base_T_tool)
        self._lower, self._upper = lower, upper
        self._n = axes[1]
        self._signs = np.sign(axes[1:4] @ self._n)
        self._W = _crossing(points[4], axes[4], points[5], axes[5])[0]

    @classmethod
    def of(cls, robot: Robot) -> ParallelAxesArm | None:
        """Return the solver for this robot's arm, or None if its axes are not of this family."""
        if len(robot.arm) != 6 or any(joint.kind == "prismatic" for joint in robot.arm):
            return None
        zero = forward_all(robot, np.zeros((1, len(robot.actuated))))[0]
        index = {link.name: i for i, link in enumerate(robot.links)}
        frames = np.array([zero[index[joint.child]] for joint in robot.arm])
        axes = np.array([frame[:3, :3] @ joint.axis for frame, joint in zip(frames, robot.arm, strict=True)])
        points = frames[:, :3, 3]

        def crossed(i: int, j: int) -> float:
            return float(np.linalg.norm(np.cross(axes[i], axes[j])))

        parallel = crossed(1, 2) < ANGLE_TOLERANCE and crossed(1, 3) < ANGLE_TOLERANCE
        turned = crossed(0, 1) > 0.1 and crossed(1, 4) > 0.1 and crossed(4, 5) > 0.1
        if not (parallel and turned) or _crossing(points[4], axes[4], points[5], axes[5])[1] > DISTANCE_TOLERANCE_M:
            return None
        lower = np.array([joint.limits.lower for joint in robot.arm])
        upper = np.array([joint.limits.upper for joint in robot.arm])
        return cls(axes, points, zero[index[robot.tool_link]], lower, upper)

    def solve(self, base_T_tool: Array, near: Array, *, stretch: bool = False) -> Array:
        """Return (K, 6) configurations inside the limits that reach a pose (4, 4); closest to `near` (6,) first.

        K is at most 8. See `solve_all`.
        """
        q: Array = self.solve_all(base_T_tool[None], near, stretch=stretch)[0]
        q = q[np.isfinite(q[:, 0])]
        order = np.argsort(np.linalg.norm(q - near, axis=1), kind="stable")
        return np.take(q, order, axis=0)

    def solve_all(self, base_T_tool: Array, near: Array, *, stretch: bool = False) -> Array:
        """Return (T, 8, 6) configurations inside the limits that reach poses (T, 4, 4); NaN = no such solution.

        Whole turns are chosen inside the limits and, within them, close to `near` (6,). At a wrist singularity joint 6
        keeps its value in `near`.

        Args:
            base_T_tool: the poses, metres.
            near: reference configuration.
            stretch: for poses out of reach, return configurations stretched or folded towards them, clipped to the
                limits: good seeds for a search for the closest pose.
        """
        G = base_T_tool @ self._tool_T_base
        q1 = self._column(G, stretch)
        G1 = invert(_turn(self._a[0], self._p[0], q1)) @ G[:, None]
        q5 = self._bend(G1[..., :3, :3], stretch)
        q6, total, H = self._wrist(G1[:, :, None], q5, near[5])
        q2, q3 = self._elbow(H, stretch)
        q4 = self._signs[2] * (total[..., None] - q2 - self._signs[1] * q3)
        columns = [q1[:, :, None, None], q2, q3, q4, q5[..., None], q6[..., None]]
        q = np.stack(np.broadcast_arrays(*columns), axis=-1).reshape(-1, 8, 6)
        return self._inside(q, near, stretch)

    def _column(self, G: Array, stretch: bool) -> Array:
        a, n = self._a[0], self._n
        v = G[:, :3, :3] @ self._W + G[:, :3, 3] - self._p[0]
        constant = n @ (self._W - self._p[0]) - (a @ n) * (v @ a)
        return _harmonic(v @ _across(a, n), v @ np.cross(a, n), constant, stretch)

    def _bend(self, R: Array, stretch: bool) -> Array:
        a5, a6, n = self._a[4], self._a[5], self._n
        along = (a5 @ a6) * (n @ a5)
        return _harmonic(n @ _across(a5, a6), n @ np.cross(a5, a6), (R @ a6) @ n - along, stretch)

    def _wrist(self, G1: Array, q5: Array, q6_near: float) -> tuple[Array, Array, Array]:
        n, a6 = self._n, self._a[5]
        e5 = _turn(self._a[4], self._p[4], q5)
        u, w = np.swapaxes(G1[..., :3, :3], -1, -2) @ n, np.swapaxes(e5[..., :3, :3], -1, -2) @ n
        singular = np.linalg.norm(np.cross(a6, w), axis=-1) < SINGULAR
        q6 = np.where(singular, q6_near, _angle_about(a6, u, w))
        H = G1 @ invert(e5 @ _turn(a6, self._p[5], q6))
        across = _across(n, self._p[3] - self._p[2])
        return q6, _angle_about(n, across, H[..., :3, :3] @ across), H

    def _elbow(self, H: Array, stretch: bool) -> tuple[Array, Array]:
        n, (p2, p3, p4) = self._n, self._p[1:4]
        goal = _across(n, H[..., :3, :3] @ p4 + H[..., :3, 3] - p2)
        u, v = _across(n, p4 - p3), _across(n, p2 - p3)
        lengths = float(np.linalg.norm(u) * np.linalg.norm(v))
        cosine = (u @ u + v @ v - np.sum(goal * goal, axis=-1)) / (2 * lengths)
        half = _arccos(cosine, SLACK * np.linalg.norm(goal, axis=-1) / lengths, stretch)
        q3 = float(_angle_about(self._a[2], u, v)) + np.stack([half, -half], axis=-1)
        return _angle_about(n, axis_angle(self._a[2], q3)[..., :3, :3] @ u - v, goal[..., None, :]), q3

    def _inside(self, q: Array, near: Array, clip: bool) -> Array:
        turn = 2 * np.pi
        q = q + turn * np.round((near - q) / turn)
        # The nearest whole turn may be outside the limits while the next one is inside.
        q = np.where(q < self._lower - LIMIT_SLACK, q + turn, np.where(q > self._upper + LIMIT_SLACK, q - turn, q))
        inside = np.all((q >= self._lower - LIMIT_SLACK) & (q <= self._upper + LIMIT_SLACK), axis=-1)
        return np.where(inside[..., None] | clip, np.clip(q, self._lower, self._upper), np.nan)


def _turn(axis: Array, point: Array, angle: Array) -> Array:
    R = axis_angle(axis, angle)[..., :3, :3]
    return make(R, point - R @ point)


def _across(n: Array, v: Array) -> Array:
    return v - (v @ n)[..., None] * n


def _angle_about(axis: Array, start: Array, end: Array) -> Array:
    """Return the rotation about `axis` that maps `start` to `end`, both projected perpendicular to the axis."""
    u, w = _across(axis, start), _across(axis, end)
    angle: Array = np.arctan2(np.cross(u, w) @ axis, np.sum(u * w, axis=-1))
    return angle


def _arccos(cosine: Array, slack: Array, clamp: bool) -> Array:
    """Return the arc cosine; NaN for arguments past 1 by more than the slack, unless clamped."""
    allowed = (np.abs(cosine) <= 1 + slack) | clamp
    return np.where(allowed, np.arccos(np.clip(cosine, -1.0, 1.0)), np.nan)


def _harmonic(a: ArrayLike, b: ArrayLike, c: Array, clamp: bool) -> Array:
    """Return (..., 2) angles x with a cos x + b sin x = c."""
    amplitude = np.maximum(np.hypot(a, b), SINGULAR)
    half = _arccos(c / amplitude, SLACK / amplitude, clamp)
    return np.arctan2(b, a)[..., None] + np.stack([half, -half], axis=-1)


def _crossing(p: Array, a: Array, q: Array, b: Array) -> tuple[Array, float]:
    """Return the point nearest to two lines, and the distance of the lines."""
    (s, t), *_ = np.linalg.lstsq(np.stack([a, -b], axis=1), q - p, rcond=None)
    on_a, on_b = p + s * a, q + t * b
    return (on_a + on_b) / 2, float(np.linalg.norm(on_a - on_b))
