"""The nine failures of a demonstration as episodes: its own motion with noise, among other things, in another room.

demonstration (JSON) ─> its scene and plan again ─┬─ noise on one of three segments ───┐
                                                  └─ new colours, distractors, room ───┴─> physics ─> Episode

Arm, camera, and the place, shape and size of what the task is about stay those of the demonstration, so that the
noise alone decides the outcome. The physics says what it is: small noise may still succeed, and is labelled so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.episode import Episode
from kinema4d_model.data.lab_config import SPLITS, LabConfig
from kinema4d_model.data.lab_episode import ATTEMPTS, draw_scene, kinematics_of
from kinema4d_model.data.lab_record import Refused, Scene, first_look, outcome_of, record, simulate
from kinema4d_model.data.lab_scene import SceneDraw
from kinema4d_ros.core.errors import DataError, TrajectoryError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import from_rpy, make
from kinema4d_ros.kinematics.protocol import Kinematics
from kinema4d_ros.lab import PlacedObject

__all__ = [
    "RATE_HZ",
    "SEGMENTS",
    "SIGMAS",
    "UNIT_M",
    "UNIT_RAD",
    "VARIANTS",
    "Demonstration",
    "disturb",
    "failure_episodes",
    "failure_key",
]

# The paper's failure synthesis: noise on one third of a successful motion's pose, the gripper untouched.
#
# Three segments x sigma 0.5, 0.8, 1.2 make nine failures of one demonstration. Sigma is in units of the action
# space: one unit is a step of 10 mm and 0.05 rad at 10 Hz here, stated because the paper names none. Steps add up
# along the segment; afterwards the motion goes on from where the noise has brought it.

SEGMENTS = 3
SIGMAS = (0.5, 0.8, 1.2)
VARIANTS = tuple((segment, sigma) for segment in range(SEGMENTS) for sigma in SIGMAS)
"""(segment, sigma) of the nine failures; `lab_failures` makes episodes of them."""
RATE_HZ = 10.0
UNIT_M = 0.010
UNIT_RAD = 0.05
_LOWEST_M = 0.008
_SPEED_FRACTION = 0.8


def disturb(
    kinematics: Kinematics, demonstration: JointTrajectory, segment: int, sigma: float, rng: np.random.Generator
) -> JointTrajectory:
    """The demonstration with Gaussian noise on its tool's pose in one of three segments; the gripper as it was.

    Poses out of reach become the nearest reachable ones. Where a joint would be too fast, the motion takes longer.
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
    # The controller's cubic between samples may be up to 1.5 times as fast as their mean.
    needed = 1.5 * np.max(np.abs(np.diff(q, axis=0)) / (_SPEED_FRACTION * limits), axis=1)
    clock = np.concatenate([[0.0], np.cumsum(np.maximum(spans, needed))])
    return JointTrajectory(names, clock, q)


_STREAM = 9119
"""Sets the random numbers of failures apart from those of demonstrations."""


@dataclass(frozen=True)
class Demonstration:
    """What identifies a successful episode of the lab: its motion follows from these and the configuration."""

    key: str
    kind: str
    split: str
    seed: int
    number: int
    attempt: int

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Demonstration | None:
        """The demonstration of an episode's JSON; None unless it succeeded. Noise is not put on noise."""
        if document["outcome"]["success"] is not True or document["task"] == "noise":
            return None
        try:
            seeds, split = document["seeds"], str(document["details"]["split"])
            numbers = (int(seeds["dataset"]), int(seeds["number"]), int(seeds["attempt"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"episode '{document['key']}' does not say how it was drawn: {error!r}"[:300],
                expected="an episode that `kinema4d data make` made",
            ) from None
        return cls(str(document["key"]), str(document["task"]), split, *numbers)

    @property
    def failure_keys(self) -> list[str]:
        """The keys of its nine failures."""
        return [failure_key(self.key, segment, sigma) for segment, sigma in VARIANTS]


def failure_key(parent: str, segment: int, sigma: float) -> str:
    """Such as "train-000042-s1-08": segment 1, sigma 0.8."""
    return f"{parent}-s{segment}-{round(10 * sigma):02d}"


def failure_episodes(config: LabConfig, demonstration: Demonstration) -> Iterator[Episode]:
    """Its nine failures, in the order of `VARIANTS`."""
    d = demonstration
    parent = draw_scene(config, d.kind, d.seed, d.split, d.number, d.attempt)
    for segment, sigma in VARIANTS:
        yield _failure(config, d, parent, segment, sigma)


def _failure(config: LabConfig, d: Demonstration, parent: Scene, segment: int, sigma: float) -> Episode:
    reasons: dict[str, int] = {}
    for attempt in range(ATTEMPTS):
        variant = VARIANTS.index((segment, sigma))
        rng = np.random.default_rng([d.seed, SPLITS.index(d.split), d.number, _STREAM, variant, attempt])
        try:
            scene = _disturbed(config, d, parent, segment, sigma, rng)
            states = simulate(config, scene)
            outcome = outcome_of(scene, states)
            eye, first = first_look(config, scene, states[0])
        except Refused as refusal:
            reasons[str(refusal)] = reasons.get(str(refusal), 0) + 1
            continue
        seeds = {"dataset": d.seed, "number": d.number, "attempt": attempt, "parent_attempt": d.attempt}
        key = failure_key(d.key, segment, sigma)
        return record(config, scene, states, outcome, eye, first, key=key, seeds=seeds, refused=reasons)
    counts = ", ".join(f"{name} {count}" for name, count in reasons.items())
    raise DataError(
        f"segment {segment}, sigma {sigma:g} of episode '{d.key}' gave nothing in {ATTEMPTS} attempts: {counts}",
        expected=f"a motion that stands noise of {max(SIGMAS):g}",
    )


def _disturbed(
    config: LabConfig, d: Demonstration, parent: Scene, segment: int, sigma: float, rng: np.random.Generator
) -> Scene:
    cast = parent.cast
    draw = SceneDraw(config.ranges(d.split), rng)
    try:
        motion = disturb(kinematics_of(config.robot), cast.plan.trajectory, segment, sigma, rng)
    except TrajectoryError:
        raise Refused("reach") from None
    needed = [_recoloured(thing, draw) for thing in (cast.target, *cast.others)]
    objects = (*needed, *draw.distractors(needed, cast.target.position[:2], cast.clear))
    labels = {"parent": d.key, "segment": segment, "sigma": sigma}
    noisy = replace(
        cast,
        variant=f"segment {segment}, sigma {sigma:g}",
        plan=replace(cast.plan, trajectory=motion),
        target=needed[0],
        others=tuple(needed[1:]),
        expected=None,
        details={**cast.details, **labels},
    )
    return replace(parent, cast=noisy, objects=objects, style=draw.style())


def _recoloured(placed: PlacedObject, draw: SceneDraw) -> PlacedObject:
    return replace(placed, object=replace(placed.object, rgb=draw.colour()))
