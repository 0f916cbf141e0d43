"""`SceneDraw`: samples objects, appearance and camera of a lab scene from the ranges of a configuration."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.lab_config import Ranges
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.lab import LabObject, PlacedObject, Style
from kinema4d_ros.physics.objects import ODD_SHAPES, volume_of
from kinema4d_ros.physics.parts import odd_size

__all__ = ["SceneDraw", "colour_word"]

Array = NDArray[np.float64]

_DENSITY = 650.0
_FILL = {"box": 1.0, "cylinder": 0.785, "sphere": 0.524}
_KEEP_CLEAR_M = 0.17
_TRIES = 60
_WORDS = ((0.04, "red"), (0.11, "orange"), (0.19, "yellow"), (0.44, "green"), (0.54, "teal"), (0.70, "blue"))
_WORDS_LATE = ((0.80, "purple"), (0.94, "pink"), (1.01, "red"))


def colour_word(rgb: Sequence[float]) -> str:
    """Return the name of an sRGB colour, 0 to 1."""
    hue, saturation, value = colorsys.rgb_to_hsv(*rgb)
    if value < 0.15:
        return "black"
    if saturation < 0.15:
        return "white" if value > 0.8 else "grey"
    return next(word for limit, word in (*_WORDS, *_WORDS_LATE) if hue < limit)


class SceneDraw:
    """Sampler for the parts of one scene; equal ranges and random state give an equal scene."""

    def __init__(self, ranges: Ranges, rng: np.random.Generator) -> None:
        self._ranges, self._rng = ranges, rng

    def between(self, limits: Sequence[float]) -> float:
        """Sample a number from a range."""
        return float(self._rng.uniform(limits[0], limits[1]))

    def spot(self) -> Array:
        """Sample (2,) x, y in the workspace, metres, base frame."""
        workspace = self._ranges["workspace"]
        radius, bearing = self.between(workspace["radius_m"]), np.radians(self.between(workspace["bearing_deg"]))
        return np.array([radius * np.cos(bearing), radius * np.sin(bearing)])

    def colour(self) -> tuple[float, float, float]:
        """Sample the sRGB colour of an object."""
        target = self._ranges["target"]
        bands = target["hue"]
        widths = np.array([high - low for low, high in bands])
        low, high = bands[int(self._rng.choice(len(bands), p=widths / widths.sum()))]
        hsv = (self.between((low, high)), self.between(target["saturation"]), self.between(target["value"]))
        r, g, b = colorsys.hsv_to_rgb(hsv[0] % 1.0, hsv[1], hsv[2])
        return r, g, b

    def thing(
        self,
        name: str,
        section: str = "target",
        *,
        width_m: Sequence[float] | None = None,
        height_m: Sequence[float] | None = None,
    ) -> LabObject:
        """Sample an object with the sizes of a section, or of the given ranges in metres."""
        ranges = self._ranges[section]
        shapes = self._ranges["target"]["shapes"]
        shape: Any = shapes[int(self._rng.integers(len(shapes)))]
        width = self.between(width_m or ranges["width_m"])
        height = self.between(height_m or ranges["height_m"])
        if shape == "sphere" and height > width:
            width = min(height, ranges["width_m"][1])  # height and width of a sphere are equal
        if shape == "sphere" and height_m and not height_m[0] <= width <= height_m[1]:
            shape = "cylinder"
        depth = width * self.between((1.0, 1.5)) if shape == "box" else width
        size = (width, width, width) if shape == "sphere" else (width, depth, height)
        if shape in ODD_SHAPES:
            size = odd_size(shape, width, height)
            volume = volume_of(LabObject(name, shape, size, (0.0, 0.0, 0.0), 0.0))
        else:
            volume = _FILL[shape] * size[0] * size[1] * size[2]
        mass = float(np.clip(_DENSITY * volume, 0.015, 0.15))
        return LabObject(f"{name}_{shape}", shape, size, self.colour(), mass)

    def tall(self) -> tuple[float, float]:
        """Return the upper half of the target's height range, metres."""
        low, high = self._ranges["target"]["height_m"]
        return (low + high) / 2, high

    def short(self) -> tuple[float, float]:
        """Return the lower half of the target's height range, metres."""
        low, high = self._ranges["target"]["height_m"]
        return low, (low + high) / 2

    def standing(self, thing: LabObject, xy: Array, yaw: float | None = None) -> PlacedObject:
        """Place an object upright at x, y, with a random yaw unless `yaw` is given."""
        turn = float(self._rng.uniform(-np.pi, np.pi)) if yaw is None else yaw
        return PlacedObject.standing(thing, float(xy[0]), float(xy[1]), turn)

    def distractors(self, placed: Sequence[PlacedObject], around: Array, clear: Sequence[Array]) -> list[PlacedObject]:
        """Sample distractors around x, y that do not touch `placed` and leave room for the gripper at `clear`."""
        ranges = self._ranges["distractors"]
        count = int(self._rng.integers(ranges["count"][0], ranges["count"][1] + 1))
        found: list[PlacedObject] = []
        for number in range(count):
            thing = self.thing(f"other{number}", "distractors")
            for _ in range(_TRIES):
                bearing, reach = self._rng.uniform(-np.pi, np.pi), ranges["reach_m"] * np.sqrt(self._rng.uniform())
                xy = around + reach * np.array([np.cos(bearing), np.sin(bearing)])
                gaps = [np.hypot(*(p.position[:2] - xy)) - p.object.radius for p in (*placed, *found)]
                hands = [np.hypot(*(point - xy)) for point in clear]
                room = np.hypot(*xy) > _KEEP_CLEAR_M + thing.radius
                if room and min(gaps) > thing.radius + 0.006 and min(hands) > thing.radius + 0.055:
                    found.append(self.standing(thing, xy))
                    break
        return found

    def style(self) -> Style:
        """Sample table, walls, light and colour of the robot."""
        looks, rng = self._ranges["looks"], self._rng
        turn = rng.uniform(-np.pi, np.pi)
        radius = self.between(looks["lamp_radius_m"])
        wall = np.clip(self.between(looks["wall"]) + rng.uniform(-1, 1, 3) * looks["wall_spread"], 0.05, 1.0)
        tint = np.clip(self.between(looks["tint"]) + rng.uniform(-1, 1, 3) * looks["tint_spread"], 0.1, 1.5)
        shell = None
        if rng.uniform() >= looks["robot_as_drawn"]:
            base = np.array(looks["robot_shell"][int(rng.integers(len(looks["robot_shell"])))])
            shell = tuple(float(v) for v in np.clip(base + rng.uniform(-0.06, 0.06, 3), 0.02, 1.0))
        return Style(
            table=str(looks["tables"][int(rng.integers(len(looks["tables"])))]),
            wall_rgb=(float(wall[0]), float(wall[1]), float(wall[2])),
            lamp=(
                float(0.25 + radius * np.cos(turn)),
                float(radius * np.sin(turn)),
                self.between(looks["lamp_height_m"]),
            ),
            warmth=self.between(looks["warmth"]),
            seed=int(rng.integers(1 << 16)),
            tint=(float(tint[0]), float(tint[1]), float(tint[2])),
            robot_rgb=shell,  # type: ignore[arg-type]
        )

    def camera(self, points: Sequence[Array], width: int, height: int) -> PinholeCamera:
        """Sample a camera aimed at the mean of x, y `points` that sees all of them with a margin."""
        ranges, rng = self._ranges["camera"], self._rng
        middle = np.mean(points, axis=0)
        spread = max((float(np.hypot(*(p - middle))) for p in points), default=0.0)
        aim = np.array(
            [*(middle + rng.uniform(-1, 1, 2) * ranges["aim_spread_m"]), self.between(ranges["aim_height_m"])]
        )
        a, e = np.radians(self.between(ranges["azimuth_deg"])), np.radians(self.between(ranges["elevation_deg"]))
        distance = self.between(ranges["distance_m"])
        view = self.between(ranges["view_m"]) + max(0.0, 2 * spread - 0.10)
        eye = aim + distance * np.array([np.cos(a) * np.cos(e), np.sin(a) * np.cos(e), np.sin(e)])
        return PinholeCamera.look_at(eye, aim, width=width, height=height, focal_px=width * distance / view)
