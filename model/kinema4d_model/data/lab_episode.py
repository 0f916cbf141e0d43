"""One episode of the lab by its number: draw a scene, plan, simulate, look whether it is usable, take the pictures.

(seed, split, number, attempt) ─> scene, plan ─> physics ─> outcome ─> pictures, truth ─> Episode
               ^                      │ no grasp    │ not as drawn   │ target not seen
               └── next attempt ──────┴─────────────┴────────────────┘   every refusal has a reason
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.depth import pack_depth, point_bounds, points_from_depth, unpack_depth
from kinema4d_model.data.episode import Episode, ObjectTrack, Outcome, load_robot
from kinema4d_model.data.errors import DataError
from kinema4d_model.data.lab_cast import CASTS, Cast
from kinema4d_model.data.lab_config import SPLITS, LabConfig
from kinema4d_model.data.lab_plans import Unreachable, start_position
from kinema4d_model.data.lab_reach import reach_of
from kinema4d_model.data.lab_scene import SceneDraw, colour_word
from kinema4d_model.data.versions import versions
from kinema4d_ros.errors import KinemaError, TrajectoryError
from kinema4d_ros.kinematics import Kinematics, NoSolution, choose_kinematics
from kinema4d_ros.lab import (
    FULL,
    SMALL,
    LabCamera,
    LabImage,
    LabSimulation,
    LabState,
    PlacedObject,
    Scenario,
    ScenarioError,
)
from kinema4d_ros.render import render_pointmaps

__all__ = ["Change", "Refused", "TwinRefused", "episode_key", "episode_kind", "make_episode"]

Array = NDArray[np.float64]

ATTEMPTS = 60
LIFTED_M = 0.04
MOVED_M = 0.02
PLACED_M = 0.03
SEEN_FRACTION = 0.45
"""Of the pixels that the target would cover in the first picture if nothing stood before it."""
LEAST_PIXELS = 16
TABLE_EDGE_M = -0.02


class Refused(Exception):  # noqa: N818 - an ordinary event: the next attempt follows
    """An attempt that gives no usable episode, with one word why."""


class TwinRefused(Refused):
    """There is no room for the target where it was put, or it fell from the table."""


def episode_key(split: str, number: int) -> str:
    """Such as "train-000042"."""
    return f"{split}-{number:06d}"


def episode_kind(config: LabConfig, seed: int, split: str, number: int) -> str:
    """The kind of an episode: shares are kept in every run of 100 episodes, in an order of its own."""
    block = np.random.default_rng([seed, SPLITS.index(split), number // 100, 11])
    marks = (block.permutation(100) + 0.5) / 100
    edges = np.cumsum(list(config.kinds.values()))
    return list(config.kinds)[int(np.searchsorted(edges, marks[number % 100] * edges[-1]))]


Change = Callable[[PlacedObject], PlacedObject]
"""Puts the target elsewhere before the motion runs."""


def make_episode(config: LabConfig, seed: int, split: str, number: int, change: Change | None = None) -> Episode:
    """The episode of these numbers; the same on every machine with the same versions.

    Args:
        config: ranges and sizes.
        seed, split, number: which one.
        change: makes a twin of it: the same motion, camera and scene, with the target elsewhere, whatever becomes
            of it.

    Raises:
        DataError: no attempt was usable; the reasons are counted in the text.
        TwinRefused: the target cannot stand where `change` puts it.
    """
    kind = episode_kind(config, seed, split, number)
    reasons: dict[str, int] = {}
    for attempt in range(ATTEMPTS):
        rng = np.random.default_rng([seed, SPLITS.index(split), number, attempt])
        try:
            return _attempt(config, split, kind, episode_key(split, number), rng, seed, number, reasons, change)
        except TwinRefused:
            raise
        except Refused as refusal:
            reasons[str(refusal)] = reasons.get(str(refusal), 0) + 1
    counts = ", ".join(f"{name} {count}" for name, count in reasons.items())
    raise DataError(
        f"episode {episode_key(split, number)} ({kind}) found no usable scene in {ATTEMPTS} attempts: {counts}",
        expected="ranges that the arm can reach and the camera sees",
    )


@lru_cache(maxsize=2)
def _kinematics(robot: str) -> Kinematics:
    return choose_kinematics(load_robot(robot))


def _attempt(
    config: LabConfig,
    split: str,
    kind: str,
    key: str,
    rng: np.random.Generator,
    seed: int,
    number: int,
    reasons: Mapping[str, int],
    change: Change | None = None,
) -> Episode:
    robot, kinematics = load_robot(config.robot), _kinematics(config.robot)
    draw = SceneDraw(config.ranges(split), rng)
    try:
        start = _start(config, split, draw, kinematics, rng)
        cast = CASTS[kind](draw, kinematics, start, rng, config.misses)
    except (NoSolution, Unreachable, TrajectoryError):
        raise Refused("reach") from None
    needed = [cast.target, *cast.others]
    if len(needed) > 1 and np.hypot(*(needed[0].position - needed[1].position)[:2]) < 0.004 + sum(
        p.object.radius for p in needed
    ):
        raise Refused("layout")
    clear = [cast.plan.tool[:2, 3], *(cast.plan.path if cast.plan.path is not None else ())]
    objects = (*needed, *draw.distractors(needed, cast.target.position[:2], clear))
    camera = draw.camera([*cast.points], config.width, config.height)
    style = draw.style()
    goal = cast.plan.goal if cast.plan.goal is not None else cast.target.position[:2]
    scenario = Scenario(kind, number, objects, cast.target.name, np.asarray(goal), style.seed)
    states = _simulate(config, scenario, cast, start)
    outcome = _outcome(kind, cast, states)
    if cast.expected is not None and outcome.success is not cast.expected:
        raise Refused("outcome")
    eye = LabCamera(robot, camera, style=style, quality=SMALL if config.quality == "small" else FULL)
    first = eye.capture(states[0], truth=True)
    _require_seen(first, eye, states[0], cast.target.name)
    if change is not None:
        moved = tuple(change(o) if o.name == cast.target.name else o for o in objects)
        try:
            states = _simulate(config, replace(scenario, objects=moved), cast, start)
            outcome = _outcome(kind, cast, states)
        except Refused as refusal:
            raise TwinRefused(str(refusal)) from None
        first = eye.capture(states[0], truth=True)
    pictures = [first, *(eye.capture(state, truth=True) for state in states[1:])]
    depth = unpack_depth(pack_depth(np.stack([_known(p.depth_m) for p in pictures])))
    actions = np.stack([s.commanded for s in states])
    condition = render_pointmaps(robot, actions, camera, threads=1)
    points = points_from_depth(depth, camera)
    colour = colour_word(cast.target.object.rgb)
    return Episode(
        key=key,
        rgb=np.stack([p.rgb for p in pictures]),
        depth_m=depth,
        ids=np.stack([_known(p.segmentation) for p in pictures]),
        names=first.names,
        link_count=len(robot.links),
        times=np.array([s.time_s for s in states]),
        camera=camera,
        robot=config.robot,
        joint_names=robot.joint_names,
        joints=np.stack([s.positions for s in states]),
        actions=actions,
        condition_ids=condition.link_ids,
        bounds=point_bounds(points),
        known_bounds=point_bounds(points[:1], condition.xyz),
        task=kind,
        outcome=outcome,
        source=f"lab/{config.name}",
        captions=_captions(kind, colour, cast),
        seeds={"dataset": seed, "number": number, "attempt": sum(reasons.values())},
        versions=versions(),
        details={
            "split": split,
            "variant": cast.variant,
            "table": style.table,
            "refused": dict(reasons),
            **cast.plan.facts,
            **cast.details,
        },
    )


def _start(config: LabConfig, split: str, draw: SceneDraw, kinematics: Kinematics, rng: np.random.Generator) -> Array:
    """(J,) at home with a little variation, or with the tool over the workspace."""
    ranges = config.ranges(split)["start"]
    robot = kinematics.robot
    if rng.uniform() < ranges["home"]:
        home = robot.home_position()
        spread = np.array([0.0 if j.kind == "prismatic" else 0.12 for j in robot.actuated])
        return np.clip(home + rng.uniform(-1, 1, len(home)) * spread, robot.lower, robot.upper)
    x, y = draw.spot() + rng.uniform(-1, 1, 2) * ranges["spread_m"]
    reach = reach_of(kinematics)
    turns = [float(v) for v in rng.uniform(-np.pi, np.pi, 8) if reach.turns(x, y, v)]
    z = min(draw.between(ranges["height_m"]), reach.ceiling(x, y))
    if not turns or z < ranges["height_m"][0]:
        raise Unreachable("start")
    return start_position(kinematics, (float(x), float(y), z), turns[0], float(rng.uniform(0.02, 0.09)))


def _simulate(config: LabConfig, scenario: Scenario, cast: Cast, start: Array) -> list[LabState]:
    """States at the frames: evenly spaced, in whole steps of the physics."""
    try:
        lab = LabSimulation(scenario, robot=load_robot(config.robot), start=start, timestep_s=config.step_s)
    except ScenarioError:
        raise Refused("unstable") from None
    try:
        lab.follow(cast.plan.trajectory)
    except KinemaError:
        raise Refused("too fast") from None
    length = cast.plan.trajectory.duration_s + config.tail_s
    step_s = config.step_s * max(1, int(np.ceil(length / (config.frames - 1) / config.step_s)))
    states = [lab.state()]
    try:
        for _ in range(config.frames - 1):
            lab.step(step_s)
            states.append(lab.state())
    except KinemaError:
        raise Refused("physics") from None
    if not all(np.all(np.isfinite(s.positions)) for s in states):
        raise Refused("physics")
    return states


def _outcome(kind: str, cast: Cast, states: list[LabState]) -> Outcome:
    name = cast.target.name
    tracks = []
    for thing in states[0].objects.values():
        poses = np.stack([s.objects[thing.name].base_T_object for s in states])
        tracks.append(ObjectTrack(thing.name, thing.object.shape, thing.object.size, thing.object.rgb, poses))
    poses = next(t.base_T_object for t in tracks if t.name == name)
    first, last = poses[0, :3, 3], poses[-1, :3, 3]
    if np.any(poses[:, 2, 3] < TABLE_EDGE_M):
        raise Refused("fell")
    facts: dict[str, Any] = {
        "lifted_m": float(last[2] - first[2]),
        "highest_m": float(poses[:, 2, 3].max() - first[2]),
        "moved_m": float(np.hypot(*(last - first)[:2])),
        "upright": float(poses[-1, 2, 2]),
    }
    if kind in ("pick", "miss", "slip", "noise"):
        success = facts["lifted_m"] > LIFTED_M
    elif kind == "push":
        success = facts["moved_m"] > MOVED_M
    else:
        goal = np.asarray(cast.plan.goal)
        facts["goal_error_m"] = float(np.hypot(*(last[:2] - goal)))
        success = facts["goal_error_m"] < PLACED_M
        if kind == "stack":
            success = success and facts["lifted_m"] > 0.5 * float(cast.details["support_height_m"])
    return Outcome(bool(success), name, facts, tuple(tracks))


def _require_seen(first: LabImage, eye: LabCamera, state: LabState, target: str) -> None:
    """The target must be inside the first picture and not mostly behind the arm or another object."""
    seen = first.mask(target)
    if int(seen.sum()) < LEAST_PIXELS or seen[[0, -1]].any() or seen[:, [0, -1]].any():
        raise Refused("out of view")
    thing = state.objects[target]
    half = np.array(thing.object.size) / 2
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) * half
    p_base = corners @ thing.base_T_object[:3, :3].T + thing.position
    camera_T_base = eye.camera.camera_T_base
    uv = eye.camera.project(p_base @ camera_T_base[:3, :3].T + camera_T_base[:3, 3])
    # About 0.7 of the box around the corners is what a box or a cylinder covers of it.
    covered = 0.7 * float(np.prod(np.ptp(uv, axis=0)))
    if seen.sum() < SEEN_FRACTION * covered:
        raise Refused("hidden")


def _known(array: Any) -> NDArray[Any]:
    if array is None:
        raise DataError("a picture came without its truth", expected="depth and segmentation")
    return np.asarray(array)


def _captions(kind: str, colour: str, cast: Cast) -> dict[str, str]:
    thing = f"the {colour} {cast.target.object.shape}"
    verb = {
        "push": f"push {thing}",
        "place": f"pick up {thing} and put it down elsewhere",
        "stack": f"stack {thing} on the box",
    }.get(kind, f"pick up {thing}")
    return {"instruction": verb, "description": f"a robot arm over a table with {thing}"}
