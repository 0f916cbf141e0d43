"""Simulation and rendering of a sampled scene to an episode; `Refused` gives the reason if it is unusable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.episode import (
    Episode,
    ObjectTrack,
    Outcome,
    load_robot,
    pack_depth,
    point_bounds,
    points_from_depth,
    recorded_task,
    unpack_depth,
    versions,
)
from kinema4d_model.data.lab_config import LabConfig
from kinema4d_model.data.lab_layout import Cast
from kinema4d_model.data.lab_scene import colour_word
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, ErrorCode, EvaluationError, KinemaError
from kinema4d_ros.core.task import Task
from kinema4d_ros.kinematics import Kinematics, choose_kinematics
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
    Style,
)
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.worlds import LabWorld, Run

__all__ = ["Refused", "Scene", "first_look", "kinematics_of", "outcome_of", "record", "simulate"]

Array = NDArray[np.float64]

SEEN_FRACTION = 0.45
"""Required share of the pixels that the unoccluded target would cover in the first image."""
LEAST_PIXELS = 16
TABLE_EDGE_M = -0.02


class Refused(Exception):  # noqa: N818 - expected: the next attempt follows
    """An attempt without a usable episode, with a short reason."""


@dataclass(frozen=True, eq=False)
class Scene:
    """Everything that is sampled before the physics runs.

    Attributes:
        kind: of the episode, such as "pick".
        split, number: identify the episode.
        cast: the motion and its objects.
        start: (J,) start positions of the joints.
        objects: all objects on the table, the target first.
        camera: the recording camera.
        style: table, walls, light, colour of the robot.
    """

    kind: str
    split: str
    number: int
    cast: Cast
    start: Array
    objects: tuple[PlacedObject, ...]
    camera: PinholeCamera
    style: Style


@lru_cache(maxsize=2)
def kinematics_of(robot: str) -> Kinematics:
    """Return the kinematics of a robot by name, cached per process."""
    return choose_kinematics(load_robot(robot))


def first_look(config: LabConfig, scene: Scene, state: LabState) -> tuple[LabCamera, LabImage]:
    """Create the camera and take the first image.

    Raises:
        Refused: the target is out of view or mostly hidden.
    """
    quality = SMALL if config.quality == "small" else FULL
    eye = LabCamera(load_robot(config.robot), scene.camera, style=scene.style, quality=quality)
    first = eye.capture(state, truth=True)
    _require_seen(first, eye, state, scene.cast.target.name)
    return eye, first


def record(
    config: LabConfig,
    scene: Scene,
    run: Run,
    outcome: Outcome,
    eye: LabCamera,
    first: LabImage,
    *,
    key: str,
    seeds: Mapping[str, int],
    refused: Mapping[str, int],
) -> Episode:
    """Render all images of a run and return the episode."""
    robot, cast, camera, states = load_robot(config.robot), scene.cast, scene.camera, run.states
    pictures = [first, *(eye.capture(state, truth=True) for state in states[1:])]
    depth = unpack_depth(pack_depth(np.stack([_known(p.depth_m) for p in pictures])))
    actions = np.stack([s.commanded for s in states])
    condition = render_pointmaps(robot, actions, camera, threads=1)
    points = points_from_depth(depth, camera)
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
        task=scene.kind,
        outcome=outcome,
        source=f"lab/{config.name}",
        captions={
            "instruction": _task(scene).instruction,
            "description": f"a robot arm over a table with the {_called(cast)}",
        },
        seeds=seeds,
        versions=versions(),
        details={
            "split": scene.split,
            "variant": cast.variant,
            "table": scene.style.table,
            "refused": dict(refused),
            **_details(cast),
        },
    )


def simulate(config: LabConfig, scene: Scene) -> Run:
    """Run the motion in the lab; the states are the frames, evenly spaced in whole physics steps.

    Raises:
        Refused: objects are unstable, the motion is too fast, or the physics diverged.
    """
    cast, robot = scene.cast, load_robot(config.robot)
    goal = cast.plan.goal if cast.plan.goal is not None else cast.target.position[:2]
    scenario = Scenario(scene.kind, scene.number, scene.objects, cast.target.name, np.asarray(goal), scene.style.seed)
    length = cast.plan.trajectory.duration_s + config.tail_s
    step_s = config.step_s * max(1, int(np.ceil(length / (config.frames - 1) / config.step_s)))
    try:
        lab = LabSimulation(scenario, robot=robot, start=scene.start, timestep_s=config.step_s)
    except ScenarioError:
        raise Refused("unstable") from None
    world = LabWorld(lab, kinematics_of(config.robot), sample_s=step_s, frames=config.frames)
    try:
        run = world.run(cast.plan.trajectory, _task(scene), until_s=(config.frames - 1) * step_s)
    except EvaluationError:  # the target's path is not finite
        raise Refused("physics") from None
    except KinemaError as error:
        raise Refused("physics" if error.code is ErrorCode.ARM_ABORTED else "too fast") from None
    if not all(np.all(np.isfinite(s.positions)) for s in run.states):
        raise Refused("physics")
    return run


def outcome_of(scene: Scene, states: Sequence[LabState]) -> Outcome:
    """Return the outcome of a run's states by `Task`, with the paths of all objects.

    Raises:
        Refused: the target fell off the table.
    """
    name, tracks = scene.cast.target.name, []
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
    done = _task(scene).outcome(poses)
    if scene.cast.plan.goal is not None:
        facts["goal_error_m"] = done.value_m
    return Outcome(done.success, name, facts, tuple(tracks))


def _details(cast: Cast) -> dict[str, Any]:
    goal = {} if cast.plan.goal is None else {"goal_xy": [float(v) for v in cast.plan.goal]}
    return {**cast.plan.facts, **goal, **cast.details}


def _task(scene: Scene) -> Task:
    cast = scene.cast
    return recorded_task(scene.kind, cast.target.name, _details(cast), "the scene", _called(cast))


def _called(cast: Cast) -> str:
    thing = cast.target.object
    return f"{colour_word(thing.rgb)} {thing.shape}".replace("_", " ")


def _require_seen(first: LabImage, eye: LabCamera, state: LabState, target: str) -> None:
    """Require the target inside the first image and not mostly hidden by the arm or another object."""
    seen = first.mask(target)
    if int(seen.sum()) < LEAST_PIXELS or seen[[0, -1]].any() or seen[:, [0, -1]].any():
        raise Refused("out of view")
    thing = state.objects[target]
    half = np.array(thing.object.size) / 2
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) * half
    p_base = corners @ thing.base_T_object[:3, :3].T + thing.position
    camera_T_base = eye.camera.camera_T_base
    uv = eye.camera.project(p_base @ camera_T_base[:3, :3].T + camera_T_base[:3, 3])
    # A box or cylinder covers about 0.7 of the bounding rectangle of its corners.
    covered = 0.7 * float(np.prod(np.ptp(uv, axis=0)))
    if seen.sum() < SEEN_FRACTION * covered:
        raise Refused("hidden")


def _known(array: Any) -> NDArray[Any]:
    if array is None:
        raise DataError("a lab image has no ground truth", expected="depth and segmentation")
    return np.asarray(array)
