"""Motions of lab episodes, planned for a virtual object ("ghost"); success depends on the real object's pose.

A pick and a near-miss differ only in the object's pose, never in the arm's motion, so that the commanded motion alone
does not reveal the outcome. `disturb` adds the noise of the paper's failure synthesis; `Reach` caches reachability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import DataError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import from_rpy, make
from kinema4d_ros.kinematics.gripping import finger_shape
from kinema4d_ros.kinematics.protocol import Kinematics, NoSolution
from kinema4d_ros.lab.grips import Grip, grips_of
from kinema4d_ros.lab.scripted import Motion, tool_down
from kinema4d_ros.physics.objects import PLAIN_SHAPES, PlacedObject

__all__ = [
    "RATE_HZ",
    "SEGMENTS",
    "SIGMAS",
    "UNIT_M",
    "UNIT_RAD",
    "VARIANTS",
    "Grasp",
    "Plan",
    "Reach",
    "Unreachable",
    "disturb",
    "grasp_plan",
    "place_plan",
    "push_plan",
    "reach_of",
    "start_position",
]


# The paper's failure synthesis: noise on the tool pose in one third of a successful motion, gripper unchanged.
#
# Three segments x sigma 0.5, 0.8, 1.2 give nine failures per demonstration. Sigma is in units of the action space;
# the paper names no unit, here one unit is a step of 10 mm and 0.05 rad at 10 Hz. Steps accumulate along the
# segment; the rest of the motion keeps the accumulated offset.

SEGMENTS = 3


SIGMAS = (0.5, 0.8, 1.2)


VARIANTS = tuple((segment, sigma) for segment in range(SEGMENTS) for sigma in SIGMAS)
"""(segment, sigma) of the nine failures; used by `make`."""


RATE_HZ = 10.0


UNIT_M = 0.010


UNIT_RAD = 0.05


_LOWEST_M = 0.008


_SPEED_FRACTION = 0.8


def disturb(
    kinematics: Kinematics, demonstration: JointTrajectory, segment: int, sigma: float, rng: np.random.Generator
) -> JointTrajectory:
    """Add Gaussian noise to the tool pose in one of three segments; the gripper is unchanged.

    Unreachable poses are replaced by the nearest reachable ones. The motion is slowed where a joint would be too fast.
    """
    if not 0 <= segment < SEGMENTS or not (np.isfinite(sigma) and sigma > 0):
        raise DataError(f"segment {segment}, sigma {sigma}", expected=f"0 to {SEGMENTS - 1}, and more than 0")
    robot = kinematics.robot
    count = max(SEGMENTS * 2, int(np.ceil(demonstration.duration_s * RATE_HZ)) + 1)
    steps = demonstration.resample(count)
    q = steps.for_robot(robot)
    tool = [link.name for link in robot.links].index(robot.tool_link)
    poses = np.stack([kinematics.forward(row)[tool] for row in q])
    edges = np.linspace(0, count, SEGMENTS + 1).astype(int)
    noisy = np.zeros(count, dtype=bool)
    noisy[max(1, edges[segment]) : edges[segment + 1]] = True
    shift = np.cumsum(rng.normal(0.0, sigma * UNIT_M, (count, 3)) * noisy[:, None], axis=0)
    turn = np.cumsum(rng.normal(0.0, sigma * UNIT_RAD, (count, 3)) * noisy[:, None], axis=0)
    wanted = np.stack(
        [_moved(pose, shift[i], turn[i]) if i >= edges[segment] else pose for i, pose in enumerate(poses)]
    )
    wanted[:, 2, 3] = np.maximum(wanted[:, 2, 3], _LOWEST_M)
    path = kinematics.solve_path(wanted, seed=q[0])
    arm = path.q.copy()
    arm[0] = q[0]
    if robot.gripper is not None:
        column = robot.joint_names.index(robot.gripper.joint)
        arm[:, column] = q[:, column]
    return _slowed(robot.joint_names, steps.times, arm, np.array([j.limits.velocity for j in robot.actuated]))


def _moved(pose: NDArray[np.float64], shift: NDArray[np.float64], turn: NDArray[np.float64]) -> NDArray[np.float64]:
    return make(from_rpy(turn)[:3, :3] @ pose[:3, :3], pose[:3, 3] + shift)


def _slowed(
    names: tuple[str, ...], times: NDArray[np.float64], q: NDArray[np.float64], limits: NDArray[np.float64]
) -> JointTrajectory:
    spans = np.diff(times)
    # The controller's cubic interpolation can be up to 1.5 times as fast as the mean between samples.
    needed = 1.5 * np.max(np.abs(np.diff(q, axis=0)) / (_SPEED_FRACTION * limits), axis=1)
    clock = np.concatenate([[0.0], np.cumsum(np.maximum(spans, needed))])
    return JointTrajectory(names, clock, q)


# Reachability of a downward tool, computed once: lookups are cheap, failed IK searches are not.

_RADII = np.array([0.20, 0.25, 0.30, 0.35, 0.40, 0.45, 0.50])
_TURNS = np.radians(np.arange(-180, 180, 15))
_STEP_M = 0.01
_HIGHEST_M = 0.40


class Reach:
    """Reachable heights and yaws of a downward tool by distance from the base, found by inverse kinematics."""

    def __init__(self, kinematics: Kinematics) -> None:
        self._kinematics = kinematics
        self._turns = np.array([self._can(0.30, 0.10, turn) for turn in _TURNS])
        if not self._turns.any():
            self._turns[:] = True
        turn = float(_TURNS[int(np.flatnonzero(self._turns)[self._turns.sum() // 2])])
        self._highest = np.array([self._search(radius, turn) for radius in _RADII])

    def ceiling(self, x: float, y: float) -> float:
        """Return the highest z in metres that is surely reachable above x, y; 0 if none."""
        radius = float(np.hypot(x, y))
        i = int(np.clip(np.searchsorted(_RADII, radius), 1, len(_RADII) - 1))
        return float(min(self._highest[i - 1], self._highest[i]))

    def turns(self, x: float, y: float, yaw: float) -> bool:
        """Return whether the fingers can close along `yaw` at x, y; wrist limits rotate with the arm's bearing."""
        relative = (yaw - np.arctan2(y, x) - _TURNS[0]) % (2 * np.pi)
        i = int(relative / (_TURNS[1] - _TURNS[0]))
        return bool(self._turns[i % len(_TURNS)] and self._turns[(i + 1) % len(_TURNS)])

    def _can(self, radius: float, z: float, turn: float) -> bool:
        try:
            self._kinematics.inverse(tool_down(radius, 0.0, z, turn), seed=self._kinematics.robot.home_position())
        except NoSolution:
            return False
        return True

    def _search(self, radius: float, turn: float) -> float:
        low, high = 0.0, _HIGHEST_M
        while high - low > _STEP_M:
            middle = (low + high) / 2
            low, high = (middle, high) if self._can(radius, middle, turn) else (low, middle)
        return low


_REACHES: WeakKeyDictionary[Kinematics, Reach] = WeakKeyDictionary()


def reach_of(kinematics: Kinematics) -> Reach:
    """Return the cached reach of a kinematics; the first call takes about a second."""
    if kinematics not in _REACHES:
        _REACHES[kinematics] = Reach(kinematics)
    return _REACHES[kinematics]


Array = NDArray[np.float64]

TIP_M = 0.010
"""Minimum height of the tool point above the table: finger tips extend slightly below it."""
EDGE_M = 0.013
"""Minimum overlap of the fingers with the object's height."""
APPROACH_M = (0.05, 0.10)
LIFT_M = (0.07, 0.13)
PUSH_M = (0.05, 0.11)
LEAST_LIFT_M = 0.06


class Unreachable(Exception):  # noqa: N818 - expected: another scene is sampled
    """A motion that the arm cannot perform."""


@dataclass(frozen=True)
class Grasp:
    """Parameters of a grasp; metres.

    Attributes:
        gap_m: gap between each open finger and the object during the descent.
        squeeze_m: distance each finger is commanded into the object.
        rise_m: the tool rises by this before it closes ("too late" for low objects).
        early_m: the gripper closes this far above the lowest point and continues down ("too early").
    """

    gap_m: float
    squeeze_m: float
    rise_m: float = 0.0
    early_m: float = 0.0

    @classmethod
    def drawn(cls, rng: np.random.Generator, **changes: float) -> Grasp:
        """Sample a normal grasp, with `changes` applied."""
        return cls(
            **{"gap_m": float(rng.uniform(0.010, 0.018)), "squeeze_m": float(rng.uniform(0.004, 0.008)), **changes}
        )


@dataclass(frozen=True, eq=False)
class Plan:
    """A motion and its purpose.

    Attributes:
        trajectory: of all joints, from time 0.
        tool: (4, 4) base_T_tool where the fingers close, or where a push begins.
        open_m: width between the fingers during the descent.
        goal: (2,) x, y goal of the object, metres; None if the task has none.
        path: (2, 2) x, y of the first and last point of contact of a push; None otherwise.
        facts: plain numbers for the episode's `details`.
    """

    trajectory: JointTrajectory
    tool: Array
    open_m: float
    goal: Array | None = None
    path: Array | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def start_position(kinematics: Kinematics, xyz: Sequence[float], yaw: float, width_m: float) -> Array:
    """Return (J,) joint positions with the tool at a point (metres, base frame) pointing down, fingers open."""
    robot = kinematics.robot
    motion = Motion(kinematics, robot.home_position())
    motion.to_pose(tool_down(xyz[0], xyz[1], xyz[2], yaw))
    motion.grip(width_m)
    return motion.q.copy()


def grasp_plan(
    kinematics: Kinematics, start: Array, ghost: PlacedObject, grasp: Grasp, rng: np.random.Generator
) -> Plan:
    """Plan a pick of the virtual object with a reachable grasp: approach, descend, close, lift.

    Raises:
        Unreachable: no grasp is reachable.
    """
    motion = Motion(kinematics, start)
    tool, open_m = _append_grasp(motion, ghost, grasp, rng)
    facts = {"close_z_m": float(tool[2, 3]), "gap_m": grasp.gap_m, "squeeze_m": grasp.squeeze_m}
    facts |= {"rise_m": grasp.rise_m, "early_m": grasp.early_m}
    return Plan(_paced(motion, rng), tool, open_m, facts=facts)


def place_plan(
    kinematics: Kinematics,
    start: Array,
    ghost: PlacedObject,
    goal: Array,
    goal_z: float,
    grasp: Grasp,
    rng: np.random.Generator,
) -> Plan:
    """Plan a pick and a release above `goal` (2,) x, y at height `goal_z` metres: the table or another object."""
    motion = Motion(kinematics, start)
    tool, open_m = _append_grasp(motion, ghost, grasp, rng)
    # Rotating with the arm's bearing keeps the last joint within its limits.
    turn = float(np.arctan2(goal[1], goal[0]) - np.arctan2(ghost.position[1], ghost.position[0]))
    c, s = np.cos(turn), np.sin(turn)
    release = make([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]]) @ tool
    grip_above_foot = tool[2, 3] - (ghost.position[2] - ghost.object.height / 2)
    # An odd shape may be held beside its centre, which is what goes to the goal.
    aside = tool[:2, 3] - ghost.position[:2]
    release[:2, 3] = goal + np.array([c * aside[0] - s * aside[1], s * aside[0] + c * aside[1]])
    release[2, 3] = goal_z + grip_above_foot + 0.003
    over = _raised(release, float(rng.uniform(0.05, 0.08)))
    high = max(float(motion.tool_pose()[2, 3]), float(over[2, 3]))
    motion.line_to(_at_height(motion.tool_pose(), high))
    motion.to_pose(_at_height(over, high)).line_to(release, speed=0.7).wait(0.15)
    motion.grip(open_m).wait(0.1)
    motion.line_to(_raised(release, float(rng.uniform(*APPROACH_M))))
    facts = {"goal_z_m": goal_z, "close_z_m": float(tool[2, 3])}
    return Plan(_paced(motion, rng), tool, open_m, goal=np.asarray(goal), facts=facts)


def push_plan(kinematics: Kinematics, start: Array, ghost: PlacedObject, rng: np.random.Generator) -> Plan:
    """Plan a push: close, descend behind the virtual object, push in a reachable direction, rise."""
    distance = float(rng.uniform(*PUSH_M))
    closed = float(rng.uniform(0.0, 0.02))
    reach = reach_of(kinematics)
    for bearing in rng.uniform(-np.pi, np.pi, 6):
        unit = np.array([np.cos(bearing), np.sin(bearing)])
        behind = ghost.position[:2] - unit * (ghost.object.radius + 0.030)
        end = ghost.position[:2] - unit * (ghost.object.radius + 0.004) + unit * distance
        z = max(TIP_M, min(0.4 * ghost.object.height, 0.025))
        motion = Motion(kinematics, start)
        # Along or across the motion, whichever the wrist can reach at both ends.
        yaws = [
            float(v)
            for v in rng.permutation(bearing + np.pi / 2 * np.arange(4))
            if reach.turns(behind[0], behind[1], v) and reach.turns(end[0], end[1], v)
        ]
        rise = min(float(rng.uniform(*APPROACH_M)), reach.ceiling(*behind) - z, reach.ceiling(*end) - z)
        if not yaws or rise < 0.02:
            continue
        yaw = yaws[0]
        try:
            low, far = tool_down(behind[0], behind[1], z, yaw), tool_down(end[0], end[1], z, yaw)
            motion.grip(closed).to_pose(_raised(low, rise)).line_to(low)
            motion.line_to(far, speed=float(rng.uniform(0.4, 0.8)))
            motion.line_to(_raised(far, rise))
        except NoSolution:
            continue
        facts = {"push_m": distance, "bearing_rad": float(bearing)}
        return Plan(_paced(motion, rng), low, closed, path=np.stack([behind, end]), facts=facts)
    raise Unreachable("no direction to push in")


def _append_grasp(motion: Motion, ghost: PlacedObject, grasp: Grasp, rng: np.random.Generator) -> tuple[Array, float]:
    """Append a pick; return base_T_tool (4, 4) where the fingers close and the width between them before, metres."""
    reach = reach_of(motion.kinematics)
    if ghost.object.shape not in PLAIN_SHAPES:
        grips = _odd_grips(motion, ghost, rng, reach)
        approach, lift = float(rng.uniform(*APPROACH_M)), float(rng.uniform(*LIFT_M))
    else:
        close_z = _close_height(ghost, rng)
        approach, lift = float(rng.uniform(*APPROACH_M)), float(rng.uniform(*LIFT_M))
        x, y, _ = ghost.position
        ceiling = reach.ceiling(x, y) - close_z
        if min(lift, ceiling) < LEAST_LIFT_M:
            raise Unreachable("too high")
        width = min(ghost.object.size[:2])
        grips = [Grip(x, y, close_z, yaw, width) for yaw in _yaws(ghost, rng, reach)]
    motion.mark()
    for grip in grips:
        close_z, open_m, shut = grip.z, grip.width_m + 2 * grasp.gap_m, grip.width_m - 2 * grasp.squeeze_m
        lowest = max(TIP_M, close_z - grasp.rise_m - grasp.early_m)
        ceiling = reach.ceiling(grip.x, grip.y) - close_z
        if min(lift, ceiling) < LEAST_LIFT_M:
            continue
        try:
            tool = tool_down(grip.x, grip.y, close_z, grip.yaw)
            motion.grip(open_m)
            motion.to_pose(_at_height(tool, close_z + min(approach, ceiling)))
            if grasp.early_m:
                motion.line_to(tool).grip(shut).wait(0.1)
                motion.line_to(_at_height(tool, lowest), speed=0.7).wait(0.1)
            else:
                motion.line_to(_at_height(tool, lowest)).wait(0.08)
                if close_z - lowest > 1e-3:
                    motion.line_to(tool)
                motion.grip(shut).wait(0.15)
            motion.line_to(_at_height(tool, close_z + min(lift, ceiling)), speed=float(rng.uniform(0.6, 0.9)))
        except NoSolution:
            motion.rewind()
            continue
        return tool, open_m
    raise Unreachable("no grasp")


def _close_height(ghost: PlacedObject, rng: np.random.Generator) -> float:
    """Draw the height of the closing tool above the table, metres; a sphere is held near its middle."""
    thing = ghost.object
    low = max(TIP_M, 0.3 * thing.height)
    close_z = float(rng.uniform(low, max(low, thing.height - EDGE_M)))
    if thing.shape == "sphere":
        close_z = max(TIP_M, thing.height / 2 + float(rng.uniform(-0.003, 0.002)))
    return close_z


def _odd_grips(motion: Motion, ghost: PlacedObject, rng: np.random.Generator, reach: Reach) -> list[Grip]:
    """Return up to two reachable grips of an odd shape in random order; none if it is too wide for the gripper."""
    robot = motion.kinematics.robot
    widest = 0.0 if robot.gripper is None else robot.gripper.width_open_m
    grips = grips_of(ghost, finger_shape(robot), widest, TIP_M)
    order = rng.permutation(len(grips))
    return [grips[i] for i in order if reach.turns(grips[i].x, grips[i].y, grips[i].yaw)][:2]


def _yaws(ghost: PlacedObject, rng: np.random.Generator, reach: Reach) -> list[float]:
    """Return up to two reachable closing directions in random order: the faces of a box, any for round objects."""
    if ghost.object.shape == "box":
        R = ghost.base_T_object[:3, :3]
        wide, deep, _ = ghost.object.size
        first = float(np.arctan2(R[1, 0], R[0, 0])) + (0.0 if wide <= deep else np.pi / 2)
        turns = first + np.pi * np.arange(2) if abs(wide - deep) > 0.004 else first + np.pi / 2 * np.arange(4)
    else:
        turns = rng.uniform(-np.pi, np.pi, 8)
    x, y = ghost.position[:2]
    return [float(v) for v in rng.permutation(turns) if reach.turns(x, y, v)][:2]


def _raised(pose: Array, by: float) -> Array:
    return _at_height(pose, float(pose[2, 3]) + by)


def _at_height(pose: Array, z: float) -> Array:
    out: Array = pose.copy()
    out[2, 3] = z
    return out


def _paced(motion: Motion, rng: np.random.Generator) -> JointTrajectory:
    """Return the trajectory with its duration scaled by a random factor from 0.85 to 1.2."""
    made = motion.trajectory()
    return JointTrajectory(made.names, made.times * float(rng.uniform(0.85, 1.2)), made.positions)
