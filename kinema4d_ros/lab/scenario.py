"""Seeded scene layouts: canonical (one target), cluttered (objects within 5 cm), dynamic (many, with occlusion).

`config/lab/NAME.yaml` holds the ranges of a scenario:

    workspace:   {radius_m: [lo, hi], bearing_deg: [lo, hi]}  position of the target relative to the base
    target:      {shapes, width_m, height_m}
    distractors: {count, shapes, width_m, height_m, gap_to_target_m}  the gap is between outlines, from above
    passage:     {opening_m, post_width_m, post_height_m}  two posts on either side of the target (optional)
    occlusion:   {hidden: [lo, hi], width_m, height_m, gap_m}  one object between camera and target (optional)

The same name, seed and camera position give the same layout, on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.core.transforms import apply, invert
from kinema4d_ros.io.resources import share_directory, share_path
from kinema4d_ros.physics.objects import LabObject, PlacedObject, Shape

__all__ = ["Scenario", "ScenarioError", "demo_eye", "hidden_fraction", "make_scenario", "scenario_names"]


def hidden_fraction(target: PlacedObject, others: Sequence[PlacedObject], p_eye: ArrayLike) -> float:
    """Estimate the share (0 to 1) of the target's side and top that other objects hide from a point (3,), base frame.

    Casts rays from points of the target's surface to the eye; spheres and bins are replaced by their bounding
    cylinder and box. Accurate to a few percent: for layouts, not for rendering.
    """
    eye = np.asarray(p_eye, dtype=np.float64)
    points = apply(target.base_T_object, _surface(target.object))
    # Only the half that faces the eye is visible.
    points = points[(points - target.position) @ (eye - target.position) > 0]
    hidden = np.zeros(len(points), dtype=bool)
    for other in others:
        object_T_base = invert(other.base_T_object)
        start = apply(object_T_base, points)
        hidden |= _crosses(other.object, start, apply(object_T_base, eye[None])[0] - start)
    return float(hidden.mean())


def _surface(thing: LabObject) -> NDArray[np.float64]:
    x, y, z = (np.array(thing.size) / 2).tolist()
    levels = np.linspace(-0.9, 0.9, 7)
    if thing.shape in ("box", "bin"):
        a, b = (g.ravel() for g in np.meshgrid(levels, levels))
        one = np.ones_like(a)
        sides = ((one, a, b), (-one, a, b), (a, one, b), (a, -one, b), (a, b, one))
        unit: NDArray[np.float64] = np.concatenate([np.stack(side, 1) for side in sides])
        return np.asarray(unit * np.array([x, y, z]))
    turn, level = (g.ravel() for g in np.meshgrid(np.linspace(0, 2 * np.pi, 24, endpoint=False), levels))
    width = np.sqrt(1 - level**2) if thing.shape == "sphere" else np.ones_like(level)
    side = np.stack([x * width * np.cos(turn), y * width * np.sin(turn), z * level], 1)
    if thing.shape == "sphere":
        return side
    top = np.stack([0.7 * x * np.cos(turn[:24]), 0.7 * y * np.sin(turn[:24]), np.full(24, z)], 1)
    return np.concatenate([side, top])


def _crosses(thing: LabObject, start: NDArray[np.float64], ray: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return (N,) whether the segments start + t ray, 0 < t < 1, intersect the object, in its frame."""
    half = np.array(thing.size) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        t0, t1 = (-half - start) / ray, (half - start) / ray
    near, far = np.minimum(t0, t1), np.maximum(t0, t1)
    if thing.shape in ("cylinder", "sphere"):
        a = np.sum(ray[:, :2] ** 2, axis=1)
        b = np.sum(start[:, :2] * ray[:, :2], axis=1)
        c = np.sum(start[:, :2] ** 2, axis=1) - half[0] ** 2
        root = np.sqrt(np.maximum(b * b - a * c, 0.0))
        misses = b * b < a * c
        enter = np.maximum(np.where(misses, np.inf, (-b - root) / a), near[:, 2])
        leave = np.minimum(np.where(misses, -np.inf, (-b + root) / a), far[:, 2])
    else:
        enter, leave = near.max(axis=1), far.min(axis=1)
    return np.asarray((enter < leave) & (leave > 0.0) & (enter < 1.0))


MIN_GAP_M = 0.006
TRIES = 400
LAYOUTS = 200
KEEP_CLEAR_M = 0.17
"""Smallest distance of an object from the arm's base axis."""

_DENSITY = 650.0
_COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.80, 0.16, 0.14),
    "blue": (0.13, 0.36, 0.74),
    "green": (0.18, 0.56, 0.30),
    "yellow": (0.93, 0.74, 0.16),
    "orange": (0.91, 0.45, 0.12),
    "purple": (0.46, 0.27, 0.62),
    "teal": (0.10, 0.55, 0.58),
    "pink": (0.88, 0.47, 0.58),
    "white": (0.88, 0.88, 0.86),
    "slate": (0.30, 0.34, 0.40),
}
_TARGET_COLOURS = ("red", "blue", "green", "yellow", "orange")


class ScenarioError(KinemaError):
    """Error of an unknown scenario, or of one that leaves no room for its objects."""

    default_code = ErrorCode.SCENARIO_UNKNOWN


@dataclass(frozen=True, eq=False)
class Scenario:
    """A layout: the placed objects, the target and its goal.

    Attributes:
        name: "canonical", "cluttered", "dynamic" or the name of a file in `config/lab/`.
        seed: of the layout.
        objects: the target first; poses before the physics settles.
        target: the name of the object to act on.
        goal: (2,) x, y in metres: a free place on the table for the target, base frame.
        style: seed of table, wall and light variations in images; equal scenario seeds give equal styles.
    """

    name: str
    seed: int
    objects: tuple[PlacedObject, ...]
    target: str
    goal: NDArray[np.float64]
    style: int


def scenario_names() -> tuple[str, ...]:
    """List the names of all scenarios, sorted."""
    return tuple(sorted(p.stem for p in (share_directory() / "config" / "lab").glob("*.yaml")))


@lru_cache(maxsize=1)
def demo_eye() -> NDArray[np.float64]:
    """Return the position (3,) of the demo camera, metres, base frame."""
    return read_camera(share_path("calibration/demo_lab.yaml")).base_T_camera[:3, 3]


def make_scenario(name: str, seed: int = 0, camera_position: ArrayLike | None = None) -> Scenario:
    """Draw the layout of a scenario for a seed.

    `camera_position` (3,) metres, base frame, is the viewpoint for occluders; by default the demo camera's.

    Raises:
        ScenarioError: `SCENARIO_UNKNOWN`, with the known names.
    """
    if name not in scenario_names():
        raise ScenarioError(
            f"scenario {name!r} does not exist",
            expected=f"one of {', '.join(scenario_names())}",
            code=ErrorCode.SCENARIO_UNKNOWN,
        )
    if seed < 0:
        raise ScenarioError(f"seed is {seed}", expected="0 or more")
    config = _read(name)
    eye = demo_eye() if camera_position is None else np.asarray(camera_position, dtype=np.float64)
    # The name is part of the seed, so that equal seeds of two scenarios give different scenes.
    rng = np.random.default_rng([seed, *name.encode()])
    for _ in range(LAYOUTS):
        layout = _Layout(config, rng, eye)
        if layout.build():
            objects = tuple(layout.placed)
            return Scenario(name, seed, objects, objects[0].name, layout.goal, int(rng.integers(1 << 16)))
    raise ScenarioError(
        f"scenario {name!r} leaves no room for its objects (seed {seed})",
        expected="ranges in its file that fit the workspace",
        hint="use fewer or smaller distractors, or larger gaps",
    )


def _read(name: str) -> dict[str, Any]:
    path = share_path(f"config/lab/{name}.yaml")
    config = yaml.safe_load(path.read_text())
    missing = [k for k in ("workspace", "target", "distractors") if k not in (config or {})]
    if missing:
        raise FileFormatError(f"{path} lacks {', '.join(missing)}", expected="a scenario file")
    return dict(config)


class _Layout:
    """One attempt at a layout; `build` returns whether every object could be placed."""

    def __init__(self, config: dict[str, Any], rng: np.random.Generator, eye: NDArray[np.float64]) -> None:
        self._config, self._rng, self._eye = config, rng, eye
        self.placed: list[PlacedObject] = []
        self.goal = np.zeros(2)
        self._colours = [str(c) for c in rng.permutation(list(_COLOURS))]

    def build(self) -> bool:
        self._place_target()
        config = self._config
        count = int(self._rng.integers(config["distractors"]["count"][0], config["distractors"]["count"][1] + 1))
        if "passage" in config and not self._place_passage(config["passage"]):
            return False
        if "occlusion" in config and not self._place_occluder(config["occlusion"]):
            return False
        while len(self.placed) - 1 < count:
            if not self._place_distractor(config["distractors"]):
                return False
        if "occlusion" in config:
            low, high = config["occlusion"]["hidden"]
            if not low <= hidden_fraction(self.placed[0], self.placed[1:], self._eye) <= high:
                return False
        return self._find_goal()

    def _between(self, limits: list[float]) -> float:
        return float(self._rng.uniform(limits[0], limits[1]))

    def _make(self, shapes: list[Shape], width: list[float], height: list[float], colour: str) -> LabObject:
        shape: Shape = shapes[int(self._rng.integers(len(shapes)))]
        w, h = self._between(width), self._between(height)
        size = (w, w, h)
        if shape == "sphere":
            size = (w, w, w)
        elif shape == "bin":
            size = (max(1.6 * w, 0.07), max(1.6 * w, 0.07), min(h, 0.04))
        fill = {"box": 1.0, "cylinder": 0.785, "sphere": 0.524, "bin": 0.35}[shape]
        mass = float(np.clip(_DENSITY * fill * size[0] * size[1] * size[2], 0.015, 0.15))
        return LabObject(f"{colour}_{shape}", shape, size, _COLOURS[colour], mass)

    def _place_target(self) -> None:
        config = self._config["target"]
        choices = [c for c in self._colours if c in _TARGET_COLOURS]
        self._colours.remove(choices[0])
        thing = self._make(config["shapes"], config["width_m"], config["height_m"], choices[0])
        workspace = self._config["workspace"]
        radius = self._between(workspace["radius_m"])
        bearing = np.radians(self._between(workspace["bearing_deg"]))
        self._add(thing, radius * np.cos(bearing), radius * np.sin(bearing), self._rng.uniform(-np.pi, np.pi))

    def _add(self, thing: LabObject, x: float, y: float, yaw: float) -> None:
        self.placed.append(PlacedObject.standing(thing, float(x), float(y), float(yaw)))

    def _free(self, thing: LabObject, x: float, y: float, gap: float = MIN_GAP_M) -> bool:
        if np.hypot(x, y) < KEEP_CLEAR_M + thing.radius or not (-0.1 < x < 0.6 and abs(y) < 0.45):
            return False
        return all(np.hypot(*(p.position[:2] - (x, y))) >= thing.radius + p.object.radius + gap for p in self.placed)

    def _place_passage(self, config: dict[str, Any]) -> bool:
        target = self.placed[0]
        bearing = self._rng.uniform(0.0, np.pi)
        opening, width = self._between(config["opening_m"]), config["post_width_m"]
        for side in (-1.0, 1.0):
            post = self._make(["cylinder"], [width, width], config["post_height_m"], self._colours.pop())
            offset = side * (opening + width) / 2 * np.array([np.cos(bearing), np.sin(bearing)])
            x, y = target.position[:2] + offset
            if not self._free(post, x, y):
                return False
            self._add(post, x, y, 0.0)
        return True

    def _place_occluder(self, config: dict[str, Any]) -> bool:
        target = self.placed[0]
        towards = self._eye[:2] - target.position[:2]
        towards = towards / np.linalg.norm(towards)
        across = np.array([-towards[1], towards[0]])
        thing = self._make(["box", "cylinder"], config["width_m"], config["height_m"], self._colours.pop())
        for _ in range(TRIES // 4):
            gap = self._between(config["gap_m"])
            aside = self._rng.uniform(-0.03, 0.03)
            x, y = target.position[:2] + towards * (target.object.radius + thing.radius + gap) + across * aside
            if self._free(thing, x, y):
                candidate = PlacedObject.standing(thing, float(x), float(y), float(self._rng.uniform(-np.pi, np.pi)))
                if config["hidden"][0] <= hidden_fraction(target, [candidate], self._eye) <= config["hidden"][1]:
                    self.placed.append(candidate)
                    return True
        return False

    def _place_distractor(self, config: dict[str, Any]) -> bool:
        target = self.placed[0]
        if not self._colours:
            return False
        thing = self._make(config["shapes"], config["width_m"], config["height_m"], self._colours.pop())
        for _ in range(TRIES):
            distance = target.object.radius + thing.radius + self._between(config["gap_to_target_m"])
            bearing = self._rng.uniform(-np.pi, np.pi)
            x, y = target.position[:2] + distance * np.array([np.cos(bearing), np.sin(bearing)])
            if self._free(thing, x, y):
                self._add(thing, x, y, self._rng.uniform(-np.pi, np.pi))
                return True
        return False

    def _find_goal(self) -> bool:
        thing = self.placed[0].object
        workspace = self._config["workspace"]
        for _ in range(TRIES):
            radius = self._between(workspace["radius_m"])
            bearing = np.radians(self._rng.uniform(-60.0, 60.0))
            x, y = radius * np.cos(bearing), radius * np.sin(bearing)
            # Leave space for the fingers, which open beside the object on release.
            if self._free(thing, x, y, gap=0.05):
                self.goal = np.array([x, y])
                return True
        return False
