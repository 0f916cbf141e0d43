"""`ExpertErrors`: errors of a chosen size for the scripted expert, to create policies of any success rate.

LabState ─> believed() ─> a plan for a scene that is slightly wrong ─> performed() ─> mistimed, released early, noisy
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import from_rpy
from kinema4d_ros.lab.simulation import LabState
from kinema4d_ros.physics.objects import PlacedObject
from kinema4d_ros.policies.protocol import PolicyError
from kinema4d_ros.robot.model import Robot

__all__ = ["ExpertErrors"]

Array = NDArray[np.float64]

NOISE_KNOT_S = 0.4
"""Interval of the joint noise's knots; it is smooth in between, so that the motors can follow."""
_STEP_S = 0.02
OPENING_SPEED = 0.5
"""Mean speed of an early release as a share of the fingers' velocity limit."""
FALL_S = 0.4
"""The arm holds this long after a release, so that the object has landed when it is judged."""


@dataclass(frozen=True)
class ExpertErrors:
    """Kinds and sizes of errors. All zero = no errors.

    Attributes:
        offset_m: error of the object's position along the table, in a random direction per episode.
        spread_m: standard deviation of an additional position error, both axes.
        height_m: error of the object's height; above 0 = believed too high.
        yaw_deg: error of the object's yaw, to a random side; no effect on round objects.
        delay_s: delay of the gripper's commands relative to the arm's; below 0 = earlier.
        early_release: the fingers open at this share of the lift, 0 = at its start, 1 = at its end; None = never.
        noise_rad: standard deviation of a smooth noise on every arm joint.
        chance: share of episodes with these errors.
    """

    offset_m: float = 0.0
    spread_m: float = 0.0
    height_m: float = 0.0
    yaw_deg: float = 0.0
    delay_s: float = 0.0
    early_release: float | None = None
    noise_rad: float = 0.0
    chance: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values that are not numbers or out of range."""
        bounds = {
            "offset_m": (0.0, 0.3),
            "spread_m": (0.0, 0.3),
            "height_m": (-0.02, 0.2),
            "yaw_deg": (0.0, 180.0),
            "delay_s": (-5.0, 5.0),
            "early_release": (0.0, 1.0),
            "noise_rad": (0.0, 0.3),
            "chance": (0.0, 1.0),
        }
        for field in fields(self):
            value: Any = getattr(self, field.name)
            if value is None and field.name == "early_release":
                continue
            low, high = bounds[field.name]
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise PolicyError(
                    f"{field.name} is {value!r}",
                    expected=f"a number from {low:g} to {high:g}",
                    code=ErrorCode.ARGUMENT_INVALID,
                )

    def for_episode(self, rng: np.random.Generator) -> ExpertErrors:
        """Return these errors with probability `chance`, otherwise none."""
        return self if rng.random() < self.chance else ExpertErrors()

    def believed(self, scene: LabState, rng: np.random.Generator) -> LabState:
        """Return the scene as the expert believes it: the target displaced, raised and turned."""
        angle, side = rng.uniform(0.0, 2 * np.pi), rng.choice([-1.0, 1.0])
        shift = self.offset_m * np.array([np.cos(angle), np.sin(angle)]) + self.spread_m * rng.standard_normal(2)
        target = scene.objects[scene.target]
        pose = target.base_T_object.copy()
        pose[:3, :3] = from_rpy([0.0, 0.0, side * np.radians(self.yaw_deg)])[:3, :3] @ pose[:3, :3]
        pose[:3, 3] += [*shift, self.height_m]
        return replace(scene, objects={**scene.objects, target.name: PlacedObject(target.object, pose)})

    def performed(
        self, robot: Robot, plan: JointTrajectory, lift: tuple[float, float] | None, rng: np.random.Generator
    ) -> JointTrajectory:
        """Return the plan with the errors of its execution.

        Args:
            robot: of the plan, whose columns are `robot.joint_names`.
            plan: starts at time 0.
            lift: start and end of the lift, seconds; None = no lift.
            rng: of this episode.
        """
        times, q = plan.times, plan.positions.copy()
        arm = [
            i for i, joint in enumerate(robot.actuated) if robot.gripper is None or joint.name != robot.gripper.joint
        ]
        if self.noise_rad:
            q[:, arm] += self._tremor(times, len(arm), rng)
        fingers = None if robot.gripper is None else robot.joint_names.index(robot.gripper.joint)
        if robot.gripper is not None and fingers is not None and lift is not None and self.early_release is not None:
            begin = lift[0] + self.early_release * (lift[1] - lift[0])
            speed = OPENING_SPEED * robot.actuated[fingers].limits.velocity
            times, q = _released(times, q, fingers, begin, robot.gripper.open, speed)
        if fingers is not None and self.delay_s:
            times, q = _delayed(times, q, fingers, arm, self.delay_s)
        return JointTrajectory(plan.names, times, np.clip(q, robot.lower, robot.upper))

    def _tremor(self, times: Array, joints: int, rng: np.random.Generator) -> Array:
        """Draw smooth noise (T, joints) that starts at 0."""
        knots = np.arange(0.0, times[-1] + 2 * NOISE_KNOT_S, NOISE_KNOT_S)
        values = self.noise_rad * rng.standard_normal((len(knots), joints))
        values[0] = 0.0
        i = np.minimum((times / NOISE_KNOT_S).astype(int), len(knots) - 2)
        s = times / NOISE_KNOT_S - i
        s = (s * s * (3 - 2 * s))[:, None]
        return np.asarray((1 - s) * values[i] + s * values[i + 1])


def _released(
    times: Array, q: Array, fingers: int, begin: float, open_position: float, speed: float
) -> tuple[Array, Array]:
    """Return times and positions with the fingers opening from `begin` on, and a hold while the object falls."""
    takes = float(np.max(np.abs(open_position - q[times >= begin - _STEP_S, fingers]))) / speed
    times, q = _held(times, q, begin + takes + FALL_S - times[-1])
    s = np.clip((times - begin) / takes, 0.0, 1.0)
    q[:, fingers] += s * s * (3 - 2 * s) * (open_position - q[:, fingers])
    return times, q


def _held(times: Array, q: Array, for_s: float) -> tuple[Array, Array]:
    """Extend the motion by `for_s` seconds at its last position; below 0, return it unchanged."""
    extra = np.arange(1, int(np.ceil(max(for_s, 0.0) / _STEP_S)) + 1) * _STEP_S
    return np.concatenate([times, times[-1] + extra]), np.vstack([q, np.repeat(q[-1:], len(extra), axis=0)])


def _delayed(times: Array, q: Array, fingers: int, arm: list[int], delay_s: float) -> tuple[Array, Array]:
    """Delay the fingers relative to the arm; a negative delay delays the arm instead."""
    longer, out = _held(times, q, abs(delay_s))
    for column in [fingers] if delay_s > 0 else arm:
        out[:, column] = np.interp(longer - abs(delay_s), times, q[:, column])
    return longer, out
