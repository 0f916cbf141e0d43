"""Seeded scene layouts: canonical (one target), cluttered (objects within 5 cm), dynamic (many, with occlusion),
stacked (the target on another object, or under one), held (the target in the gripper at the start).

`config/lab/NAME.yaml` holds the ranges of a scenario:

    workspace:   {radius_m: [lo, hi], bearing_deg: [lo, hi]}  position of the target relative to the base
    target:      {shapes, width_m, height_m}
    distractors: {count, shapes, width_m, height_m, gap_to_target_m}  the gap is between outlines, from above
    passage:     {opening_m, post_width_m, post_height_m}  two posts on either side of the target (optional)
    occlusion:   {hidden: [lo, hi], width_m, height_m, gap_m}  one object between camera and target (optional)
    stack:       {under: share, aside_m, below: {...}, above: {...}}  one object below the target or, in the share
                 `under` of the scenes, above it; each with shapes, width_m, height_m (optional)
    held:        {height_m: [lo, hi]}  the gripper holds the target so high above where it stood (optional)

The same name, seed and camera position give the same layout, on every machine. `odd_share` replaces targets and
distractors by shapes that no box, cylinder or sphere fits; `twins` adds distractors of the target's colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.io.resources import share_directory, share_path
from kinema4d_ros.lab.occlusion import hidden_fraction
from kinema4d_ros.physics.objects import ODD_SHAPES, LabObject, PlacedObject, Shape, volume_of
from kinema4d_ros.physics.parts import odd_size

__all__ = ["TABLE_SCENARIOS", "Scenario", "ScenarioError", "demo_eye", "make_scenario", "scenario_names"]

TABLE_SCENARIOS = ("canonical", "cluttered", "dynamic")
"""Scenarios whose objects all stand on the table, apart from each other."""
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
_ODD_WIDTH_M: dict[Shape, list[float]] = {
    "mug": [0.040, 0.056],
    "bottle": [0.030, 0.046],
    "hollow_box": [0.036, 0.056],
    "taper": [0.040, 0.058],
    "ell": [0.046, 0.060],
}
"""Widths of the odd shapes' bodies, which the YAM can hold."""
_ODD_HEIGHT_M: dict[Shape, list[float]] = {
    "mug": [0.042, 0.060],
    "bottle": [0.070, 0.105],
    "hollow_box": [0.030, 0.050],
    "taper": [0.035, 0.055],
    "ell": [0.028, 0.045],
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
        held_m: the gripper holds the target at the start, lifted by this much from its place in `objects`; None = it
            stands there.
    """

    name: str
    seed: int
    objects: tuple[PlacedObject, ...]
    target: str
    goal: NDArray[np.float64]
    style: int
    held_m: float | None = None


def scenario_names() -> tuple[str, ...]:
    """List the names of all scenarios, sorted."""
    return tuple(sorted(p.stem for p in (share_directory() / "config" / "lab").glob("*.yaml")))


@lru_cache(maxsize=1)
def demo_eye() -> NDArray[np.float64]:
    """Return the position (3,) of the demo camera, metres, base frame."""
    return read_camera(share_path("calibration/demo_lab.yaml")).base_T_camera[:3, 3]


def make_scenario(
    name: str,
    seed: int = 0,
    camera_position: ArrayLike | None = None,
    *,
    odd_share: float = 0.0,
    twins: float = 0.0,
) -> Scenario:
    """Draw the layout of a scenario for a seed.

    Args:
        name: of a file in `config/lab/`.
        seed: 0 or more.
        camera_position: (3,) metres, base frame: the viewpoint for occluders; by default the demo camera's.
        odd_share: probability, 0 to 1, that the target is one of `ODD_SHAPES`, with its own range of sizes; the same
            for each distractor but for the posts of a passage and the occluder.
        twins: probability, 0 to 1, that one distractor, if the scenario has any besides posts and occluder, has the
            colour of the target; its shape is another one.

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
    if not (0.0 <= odd_share <= 1.0 and 0.0 <= twins <= 1.0):
        raise ScenarioError(f"odd_share is {odd_share}, twins is {twins}", expected="probabilities from 0 to 1")
    config = _read(name)
    eye = demo_eye() if camera_position is None else np.asarray(camera_position, dtype=np.float64)
    # The name is part of the seed, so that equal seeds of two scenarios give different scenes.
    rng = np.random.default_rng([seed, *name.encode()])
    for _ in range(LAYOUTS):
        layout = _Layout(config, rng, eye, odd_share, twins)
        if layout.build():
            objects = tuple(layout.placed)
            style = int(rng.integers(1 << 16))
            return Scenario(name, seed, objects, objects[0].name, layout.goal, style, layout.held_m)
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

    def __init__(
        self,
        config: dict[str, Any],
        rng: np.random.Generator,
        eye: NDArray[np.float64],
        odd_share: float,
        twins: float,
    ) -> None:
        self._config, self._rng, self._eye = config, rng, eye
        self._odd_share, self._twins = odd_share, twins
        self.placed: list[PlacedObject] = []
        self.goal = np.zeros(2)
        self.held_m: float | None = None
        self._colours = [str(c) for c in rng.permutation(list(_COLOURS))]

    def build(self) -> bool:
        self._place_target()
        config = self._config
        count = int(self._rng.integers(config["distractors"]["count"][0], config["distractors"]["count"][1] + 1))
        if "stack" in config and not self._stack(config["stack"]):
            return False
        if "held" in config:
            self.held_m = self._between(config["held"]["height_m"])
        others = len(self.placed)
        if "passage" in config and not self._place_passage(config["passage"]):
            return False
        if "occlusion" in config and not self._place_occluder(config["occlusion"]):
            return False
        twin = self._happens(self._twins)
        while len(self.placed) - others < count:
            if not self._place_distractor(config["distractors"], twin):
                return False
            twin = False
        if "occlusion" in config:
            low, high = config["occlusion"]["hidden"]
            if not low <= hidden_fraction(self.placed[0], self.placed[1:], self._eye) <= high:
                return False
        return self._find_goal()

    def _between(self, limits: list[float]) -> float:
        return float(self._rng.uniform(limits[0], limits[1]))

    def _happens(self, probability: float) -> bool:
        # Without a draw at 0, so that the default layouts do not depend on these options.
        return probability > 0.0 and float(self._rng.uniform()) < probability

    def _make(self, shapes: Sequence[Shape], width: list[float], height: list[float], colour: str) -> LabObject:
        shape: Shape = shapes[int(self._rng.integers(len(shapes)))]
        if shape in ODD_SHAPES:
            return self._make_odd(shape, colour)
        w, h = self._between(width), self._between(height)
        size = (w, w, h)
        if shape == "sphere":
            size = (w, w, w)
        elif shape == "bin":
            size = (max(1.6 * w, 0.07), max(1.6 * w, 0.07), min(h, 0.04))
        fill = {"box": 1.0, "cylinder": 0.785, "sphere": 0.524, "bin": 0.35}[shape]
        mass = float(np.clip(_DENSITY * fill * size[0] * size[1] * size[2], 0.015, 0.15))
        return LabObject(f"{colour}_{shape}", shape, size, _COLOURS[colour], mass)

    def _make_odd(self, shape: Shape, colour: str) -> LabObject:
        size = odd_size(shape, self._between(_ODD_WIDTH_M[shape]), self._between(_ODD_HEIGHT_M[shape]))
        thing = LabObject(f"{colour}_{shape}", shape, size, _COLOURS[colour], 0.0)
        return replace(thing, mass=float(np.clip(_DENSITY * volume_of(thing), 0.015, 0.15)))

    def _shapes(self, config: dict[str, Any]) -> Sequence[Shape]:
        shapes: Sequence[Shape] = ODD_SHAPES if self._happens(self._odd_share) else config["shapes"]
        return shapes

    def _place_target(self) -> None:
        config = self._config["target"]
        choices = [c for c in self._colours if c in _TARGET_COLOURS]
        self._colours.remove(choices[0])
        thing = self._make(self._shapes(config), config["width_m"], config["height_m"], choices[0])
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

    def _stack(self, config: dict[str, Any]) -> bool:
        """Put an object under the target, which then stands on it, or one on top of the target."""
        target = self.placed[0]
        under = float(self._rng.uniform()) < config["under"]
        other = config["above" if under else "below"]
        thing = self._make(other["shapes"], other["width_m"], other["height_m"], self._colours.pop())
        if under and target.object.shape not in ("box", "cylinder"):
            return False
        aside = self._rng.uniform(-1.0, 1.0, 2) * config["aside_m"]
        x, y = target.position[:2] + aside
        yaw = float(self._rng.uniform(-np.pi, np.pi))
        lower, upper = (target.object, thing) if under else (thing, target.object)
        if under:
            self.placed.append(PlacedObject.standing(upper, float(x), float(y), yaw, lower.height))
            return True
        pose = target.base_T_object.copy()
        pose[2, 3] += lower.height
        self.placed[0] = PlacedObject(upper, pose)
        self._add(lower, float(x), float(y), yaw)
        return True

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

    def _place_distractor(self, config: dict[str, Any], twin: bool = False) -> bool:
        target = self.placed[0]
        if not self._colours:
            return False
        shapes = self._shapes(config)
        if twin:
            # Another shape, so that the two have different names.
            shapes = [s for s in shapes if s != target.object.shape] or [
                s for s in ODD_SHAPES if s != target.object.shape
            ]
        colour = target.name.split("_")[0] if twin else self._colours.pop()
        thing = self._make(shapes, config["width_m"], config["height_m"], colour)
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
