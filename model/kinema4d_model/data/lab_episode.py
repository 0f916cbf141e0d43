"""`make_episode`: generate one lab episode from its number: sample a scene, plan, simulate, check, render.

(seed, split, number, attempt) ─> scene, plan ─> physics ─> outcome ─> images, truth ─> Episode
               ^                      │ no grasp    │ not as drawn   │ target not visible
               └── next attempt ──────┴─────────────┴────────────────┘   rejections are counted by reason
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.episode import Episode
from kinema4d_model.data.lab_config import SPLITS, LabConfig
from kinema4d_model.data.lab_layout import CASTS
from kinema4d_model.data.lab_plans import Unreachable, reach_of, start_position
from kinema4d_model.data.lab_record import Refused, Scene, first_look, kinematics_of, outcome_of, record, simulate
from kinema4d_model.data.lab_scene import SceneDraw
from kinema4d_ros.core.errors import DataError, TrajectoryError
from kinema4d_ros.kinematics import Kinematics, NoSolution
from kinema4d_ros.lab import PlacedObject
from kinema4d_ros.lab.profile import CONSTANT

__all__ = ["Change", "Refused", "TwinRefused", "draw_scene", "episode_key", "episode_kind", "make_episode"]

Array = NDArray[np.float64]

ATTEMPTS = 60
_PROFILE_STREAM = 19


class TwinRefused(Refused):
    """The target collides at its new position, or falls off the table."""


def episode_key(split: str, number: int) -> str:
    """Return the key of an episode, such as "train-000042"."""
    return f"{split}-{number:06d}"


def episode_kind(config: LabConfig, seed: int, split: str, number: int) -> str:
    """Return the kind of an episode; every block of 100 episodes has the configured shares, shuffled."""
    block = np.random.default_rng([seed, SPLITS.index(split), number // 100, 11])
    marks = (block.permutation(100) + 0.5) / 100
    edges = np.cumsum(list(config.kinds.values()))
    return list(config.kinds)[int(np.searchsorted(edges, marks[number % 100] * edges[-1]))]


Change = Callable[[PlacedObject], PlacedObject]
"""Moves the target before the motion runs."""


def make_episode(config: LabConfig, seed: int, split: str, number: int, change: Change | None = None) -> Episode:
    """Generate the episode of these numbers; deterministic for equal package versions.

    Args:
        config: ranges and sizes.
        seed, split, number: identify the episode.
        change: makes a twin: the same motion, camera and scene with the target moved; any outcome is accepted.

    Raises:
        DataError: no attempt was usable; the message counts the reasons.
        TwinRefused: the target cannot stand at the position that `change` sets.
    """
    kind = episode_kind(config, seed, split, number)
    reasons: dict[str, int] = {}
    for attempt in range(ATTEMPTS):
        try:
            scene = draw_scene(config, kind, seed, split, number, attempt)
            run = simulate(config, scene)
            outcome = outcome_of(scene, run.states)
            # Drawn physics decides outcomes too: asking for one of them would keep only the physics that agrees.
            expected = scene.cast.expected if config.profile == CONSTANT else None
            if expected is not None and outcome.success is not expected:
                raise Refused("outcome")
            eye, first = first_look(config, scene, run.states[0])
            if change is not None:
                name = scene.cast.target.name
                scene = replace(scene, objects=tuple(change(o) if o.name == name else o for o in scene.objects))
                try:
                    run = simulate(config, scene)
                    outcome = outcome_of(scene, run.states)
                except Refused as refusal:
                    raise TwinRefused(str(refusal)) from None
                first = eye.capture(run.states[0], truth=True)
            return record(
                config,
                scene,
                run,
                outcome,
                eye,
                first,
                key=episode_key(split, number),
                seeds={"dataset": seed, "number": number, "attempt": attempt},
                refused=reasons,
            )
        except TwinRefused:
            raise
        except Refused as refusal:
            reasons[str(refusal)] = reasons.get(str(refusal), 0) + 1
    counts = ", ".join(f"{name} {count}" for name, count in reasons.items())
    raise DataError(
        f"episode {episode_key(split, number)} ({kind}): no usable scene in {ATTEMPTS} attempts: {counts}",
        expected="ranges within the arm's reach and the camera's view",
    )


def draw_scene(config: LabConfig, kind: str, seed: int, split: str, number: int, attempt: int) -> Scene:
    """Sample the scene and motion of an attempt; depends only on the arguments.

    Raises:
        Refused: the arm cannot perform the motion, or objects would overlap.
    """
    rng = np.random.default_rng([seed, SPLITS.index(split), number, attempt])
    kinematics = kinematics_of(config.robot)
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
    objects = (*needed, *draw.distractors(needed, cast.target.position[:2], cast.clear))
    camera = draw.camera([*cast.points], config.width, config.height)
    hidden = np.random.SeedSequence([seed, SPLITS.index(split), number, attempt, _PROFILE_STREAM])
    drawn = int(hidden.generate_state(1, np.uint64)[0])
    return Scene(kind, split, number, cast, start, objects, camera, draw.style(), drawn)


def _start(config: LabConfig, split: str, draw: SceneDraw, kinematics: Kinematics, rng: np.random.Generator) -> Array:
    """Sample (J,) start positions: near home, or with the tool above the workspace."""
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
