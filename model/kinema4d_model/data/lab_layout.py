"""Layouts for each kind of episode: the virtual object that the plan is made for, and the real objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.lab_plans import SEGMENTS, SIGMAS, Grasp, Plan, disturb, grasp_plan, place_plan, push_plan
from kinema4d_model.data.lab_scene import SceneDraw
from kinema4d_ros.kinematics.gripping import finger_shape
from kinema4d_ros.kinematics.protocol import Kinematics
from kinema4d_ros.lab import LabObject, PlacedObject
from kinema4d_ros.robot import Fingers

__all__ = ["CASTS", "Cast"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Cast:
    """A motion and its objects.

    Attributes:
        variant: variant of the kind, such as "beside".
        plan: the motion.
        target: the target object at its real pose.
        others: further objects that the task needs.
        expected: required outcome; None accepts any.
        points: x, y (2,) points that the camera must see.
        details: plain values for the episode's `details`.
    """

    variant: str
    plan: Plan
    target: PlacedObject
    others: tuple[PlacedObject, ...] = ()
    expected: bool | None = None
    points: tuple[Array, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def clear(self) -> list[Array]:
        """x, y (2,) points that the gripper descends to; no other object may stand there."""
        return [self.plan.tool[:2, 3], *(self.plan.path if self.plan.path is not None else ())]


Caster = Callable[[SceneDraw, Kinematics, Array, np.random.Generator, Mapping[str, float]], Cast]


def _late(rng: np.random.Generator, share: float) -> dict[str, float]:
    """With probability `share`, raise the gripper before it closes; independent of the outcome."""
    return {"rise_m": float(rng.uniform(0.012, 0.05))} if rng.uniform() < share else {}


def _pick(draw: SceneDraw, kin: Kinematics, start: Array, rng: np.random.Generator, _: Mapping[str, float]) -> Cast:
    late = _late(rng, 0.2)
    ghost = draw.standing(draw.thing("target", height_m=draw.tall() if late else None), draw.spot())
    plan = grasp_plan(kin, start, ghost, Grasp.drawn(rng, **late), rng)
    target = _moved(ghost, rng.normal(0.0, 0.0015, 2))
    return Cast("late" if late else "plain", plan, target, expected=True, points=(ghost.position[:2],))


def _miss(
    draw: SceneDraw, kin: Kinematics, start: Array, rng: np.random.Generator, shares: Mapping[str, float]
) -> Cast:
    variant = str(rng.choice(list(shares), p=list(shares.values())))
    if variant == "beside":
        # The other misses use tall objects: use fewer here so that misses and picks close at the same heights.
        late = _late(rng, 0.1)
        limits = draw.tall() if late or rng.uniform() < 0.25 else draw.short()
        ghost = draw.standing(draw.thing("target", height_m=limits), draw.spot())
        plan = grasp_plan(kin, start, ghost, Grasp.drawn(rng, **late), rng)
        target = _beside(draw, draw.thing("target"), plan, finger_shape(kin.robot), rng)
    else:
        # Low objects under a grasp that would have caught a tall one.
        ghost = draw.standing(draw.thing("target", height_m=draw.tall()), draw.spot())
        changes = {
            "late": {"rise_m": float(rng.uniform(0.02, 0.05))},
            "early": {"early_m": float(rng.uniform(0.02, 0.05))},
        }
        plan = grasp_plan(kin, start, ghost, Grasp.drawn(rng, **changes.get(variant, {})), rng)
        top = max(0.022, min(float(plan.tool[2, 3]) - 0.006, 0.05))
        low = draw.thing("target", height_m=(0.02, top), width_m=(0.022, min(0.05, top + 0.02)))
        target = _moved(draw.standing(low, ghost.position[:2]), rng.normal(0.0, 0.004, 2))
    return Cast(variant, plan, target, expected=False, points=(ghost.position[:2],))


def _beside(draw: SceneDraw, thing: LabObject, plan: Plan, fingers: Fingers, rng: np.random.Generator) -> PlacedObject:
    """Place the object just outside the fingers' path: mostly across, sometimes along or under a finger."""
    along, across = plan.tool[:2, 0], plan.tool[:2, 1]
    side = float(rng.choice([-1.0, 1.0]))
    near = thing.radius if thing.shape != "box" else thing.size[0] / 2
    if rng.uniform() < 0.7:
        offset = across * side * (near + fingers.pad_width_m / 2 + float(rng.uniform(0.001, 0.018)))
        offset = offset + along * float(rng.uniform(-1, 1)) * plan.open_m / 2
    else:
        offset = along * side * (plan.open_m / 2 + near + float(rng.uniform(0.0, fingers.thickness_m + 0.015)))
        offset = offset + across * float(rng.uniform(-0.01, 0.01))
    return draw.standing(thing, plan.tool[:2, 3] + offset)


def _push(draw: SceneDraw, kin: Kinematics, start: Array, rng: np.random.Generator, _: Mapping[str, float]) -> Cast:
    ghost = draw.standing(draw.thing("target"), draw.spot())
    plan = push_plan(kin, start, ghost, rng)
    path = plan.path if plan.path is not None else np.zeros((2, 2))
    unit = (path[1] - path[0]) / max(float(np.linalg.norm(path[1] - path[0])), 1e-9)
    aside = np.array([-unit[1], unit[0]])
    full = rng.uniform() < 0.7
    reach = 0.006 if full else ghost.object.radius + 0.025
    target = _moved(ghost, aside * float(rng.uniform(-reach, reach)))
    return Cast("full" if full else "glancing", plan, target, points=(ghost.position[:2], path[1]))


def _goal_away(draw: SceneDraw, spot: Array) -> Array:
    for _ in range(40):
        goal = draw.spot()
        if 0.09 <= float(np.hypot(*(goal - spot))) <= 0.17:
            return goal
    return spot + np.array([0.0, 0.10 if spot[1] < 0 else -0.10])


def _place(draw: SceneDraw, kin: Kinematics, start: Array, rng: np.random.Generator, _: Mapping[str, float]) -> Cast:
    ghost = draw.standing(draw.thing("target"), draw.spot())
    goal = _goal_away(draw, ghost.position[:2])
    plan = place_plan(kin, start, ghost, goal, 0.0, Grasp.drawn(rng), rng)
    return Cast("table", plan, ghost, points=(ghost.position[:2], goal))


def _stack(draw: SceneDraw, kin: Kinematics, start: Array, rng: np.random.Generator, _: Mapping[str, float]) -> Cast:
    ghost = draw.standing(draw.thing("target", height_m=(0.026, 0.05)), draw.spot())
    goal = _goal_away(draw, ghost.position[:2])
    height, side = float(rng.uniform(0.025, 0.045)), float(rng.uniform(0.05, 0.07))
    base = LabObject("support_box", "box", (side, side, height), draw.colour(), 0.12)
    plan = place_plan(kin, start, ghost, goal, height, Grasp.drawn(rng), rng)
    off = float(rng.uniform(0.0, 0.03))
    turn = float(rng.uniform(-np.pi, np.pi))
    support = draw.standing(base, goal + off * np.array([np.cos(turn), np.sin(turn)]))
    details = {"support": base.name, "support_height_m": height}
    return Cast("box", plan, ghost, (support,), points=(ghost.position[:2], goal), details=details)


def _slip(draw: SceneDraw, kin: Kinematics, start: Array, rng: np.random.Generator, _: Mapping[str, float]) -> Cast:
    ghost = draw.standing(draw.thing("target"), draw.spot())
    plan = grasp_plan(kin, start, ghost, Grasp.drawn(rng, squeeze_m=float(rng.uniform(-0.0012, 0.0006))), rng)
    return Cast("weak grip", plan, _moved(ghost, rng.normal(0.0, 0.001, 2)), points=(ghost.position[:2],))


def _noise(draw: SceneDraw, kin: Kinematics, start: Array, rng: np.random.Generator, _: Mapping[str, float]) -> Cast:
    ghost = draw.standing(draw.thing("target"), draw.spot())
    plan = grasp_plan(kin, start, ghost, Grasp.drawn(rng), rng)
    segment, sigma = int(rng.integers(SEGMENTS)), float(rng.choice(SIGMAS))
    disturbed = disturb(kin, plan.trajectory, segment, sigma, rng)
    noisy = Plan(disturbed, plan.tool, plan.open_m, facts={**plan.facts, "segment": segment, "sigma": sigma})
    return Cast(f"segment {segment}, sigma {sigma:g}", noisy, ghost, points=(ghost.position[:2],))


def _moved(placed: PlacedObject, by: Array) -> PlacedObject:
    pose = placed.base_T_object.copy()
    pose[:2, 3] += by
    return PlacedObject(placed.object, pose)


CASTS: Mapping[str, Caster] = {
    "pick": _pick,
    "miss": _miss,
    "push": _push,
    "place": _place,
    "stack": _stack,
    "slip": _slip,
    "noise": _noise,
}
