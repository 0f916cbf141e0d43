"""`LabProfile`: which of the lab's constants are fixed, and which are drawn for every scene.

config/lab/profiles/NAME.yaml ─> LabProfile ─> draw(scenario, seed, objects) ─> SceneConstants: physics and camera

Two profiles come with the package. "constant" has the same physics and an exact camera in every scene. "hidden" draws
them. The drawn values are known to the simulation alone: states, scenes and requests contain the nominal objects.

    density          factor of every object's mass (log-uniform)
    friction         sliding friction of every object (log-uniform)
    center_of_mass   offset of every object's centre of mass along each axis, as a share of its half extent
    table_friction   sliding friction of table, walls and links that are not fingers (log-uniform)
    finger_friction  factor of the fingers' friction (log-uniform)
    servo_gain       factor of the servos' stiffness, drawn once for turning and once for sliding joints (log-uniform)
    delay_s          time from a command to its servo
    noise, exposure_ev, white_balance, jpeg_quality   of the images, see `Sensor`; white_balance is log-uniform
    odd_share, twins  probabilities of odd shapes and of objects of one colour, see `make_scenario`; not ranges
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.io.files import read_yaml
from kinema4d_ros.io.resources import share_directory, share_path
from kinema4d_ros.lab.sensor import Sensor
from kinema4d_ros.physics.model import Materials
from kinema4d_ros.physics.objects import LabObject, PlacedObject

__all__ = ["CONSTANT", "MATERIALS", "LabProfile", "SceneConstants", "load_profile", "profile_names"]

CONSTANT = "constant"
"""Name of the profile without drawn values, the default everywhere."""

MATERIALS = Materials(
    friction=(0.5, 0.01, 0.001),  # wood and plastic
    finger_friction=1.2,  # rubber
    servo_span_rad=0.15,  # stiff as the vendor's, soft enough to yield on contact
    servo_span_m=0.02,
    rotor_inertia=7e-4,  # about that of small geared servos
    rotor_mass=2e-3,
)
"""The lab's ground-truth constants. Models that predict the lab must not read them."""


class _Limits(NamedTuple):
    lowest: float
    highest: float
    log: bool


_LIMITS = {
    "density": _Limits(0.01, 100.0, True),
    "friction": _Limits(0.01, 5.0, True),
    "center_of_mass": _Limits(-0.9, 0.9, False),
    "table_friction": _Limits(0.01, 5.0, True),
    "finger_friction": _Limits(0.01, 10.0, True),
    "servo_gain": _Limits(0.1, 10.0, True),
    "delay_s": _Limits(0.0, 1.0, False),
    "noise": _Limits(0.0, 100.0, False),
    "exposure_ev": _Limits(-4.0, 4.0, False),
    "white_balance": _Limits(0.2, 5.0, True),
    "jpeg_quality": _Limits(1.0, 100.0, False),
}


@dataclass(frozen=True)
class SceneConstants:
    """The true constants of one scene. Models that predict the lab must not read them.

    Attributes:
        materials: of the physics.
        delay_s: time from a command to its servo.
        sensor: of the camera.
        objects: as the physics has them: the scene's objects with their true mass, friction and centre of mass.
    """

    materials: Materials
    delay_s: float
    sensor: Sensor
    objects: tuple[PlacedObject, ...] = ()


@dataclass(frozen=True)
class LabProfile:
    """Ranges of the constants that are drawn for every scene; the others have one value in all scenes.

    Attributes:
        name: of the file in `config/lab/profiles/`, or "constant".
        ranges: lowest and highest value by key; the module's docstring lists the keys.
        odd_share, twins: of the layouts that a simulation draws, see `make_scenario`.
    """

    name: str
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    odd_share: float = 0.0
    twins: float = 0.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        unknown = sorted(set(self.ranges) - set(_LIMITS))
        if unknown:
            raise _refuse(f"profile '{self.name}' has unknown {', '.join(unknown)}", f"{', '.join(_LIMITS)}")
        if not (0.0 <= self.odd_share <= 1.0 and 0.0 <= self.twins <= 1.0):
            raise _refuse(
                f"profile '{self.name}': odd_share is {self.odd_share}, twins is {self.twins}", "probabilities, 0 to 1"
            )
        for key, (low, high) in self.ranges.items():
            limits = _LIMITS[key]
            if not limits.lowest <= low <= high <= limits.highest:
                raise _refuse(
                    f"profile '{self.name}': {key} is [{low:g}, {high:g}]",
                    f"[lowest, highest] from {limits.lowest:g} to {limits.highest:g}",
                )

    def draw(self, scenario: str, seed: int, objects: Sequence[PlacedObject] = ()) -> SceneConstants:
        """Draw the constants of a scene.

        They depend on the scenario's name and the seed, not on the layout's random stream: profiles with equal shares
        of odd shapes and twins have equal layouts. The constants of an object depend on its place in the order as well.
        """
        # A key that is not in the profile consumes its random numbers too, so that the others do not change with it.
        stream = _Stream(self.ranges, scenario, seed)
        spinning, rolling = MATERIALS.friction[1:]
        materials = replace(
            MATERIALS,
            friction=(stream.draw("table_friction", MATERIALS.friction[0]), spinning, rolling),
            finger_friction=MATERIALS.finger_friction * stream.draw("finger_friction", 1.0),
            servo_span_rad=MATERIALS.servo_span_rad / stream.draw("servo_gain", 1.0),
            servo_span_m=MATERIALS.servo_span_m / stream.draw("servo_gain", 1.0),
        )
        delay_s = stream.draw("delay_s", 0.0)
        exact = Sensor()
        noise, exposure_ev = stream.draw("noise", exact.noise), stream.draw("exposure_ev", exact.exposure_ev)
        red, blue = (stream.draw("white_balance", gain) for gain in exact.white_balance)
        quality = round(stream.draw("jpeg_quality", 100.0)) if "jpeg_quality" in self.ranges else None
        sensor = Sensor(noise, exposure_ev, (red, blue), quality, (seed, *scenario.encode()))
        placed = (
            replace(one, object=_true_object(one.object, _Stream(self.ranges, f"{scenario}/{i}", seed)))
            for i, one in enumerate(objects)
        )
        return SceneConstants(materials, delay_s, sensor, tuple(placed))


class _Stream:
    """Random values of a scene or an object, apart from those of the layout."""

    def __init__(self, ranges: Mapping[str, tuple[float, float]], name: str, seed: int) -> None:
        self._ranges = ranges
        # Scenarios are named by files, so no name of one contains a slash.
        self._rng = np.random.default_rng([seed, *f"profile/{name}".encode()])

    def draw(self, key: str, constant: float) -> float:
        share = float(self._rng.uniform())
        if key not in self._ranges:
            return constant
        low, high = self._ranges[key]
        value = low * (high / low) ** share if _LIMITS[key].log else low + (high - low) * share
        return min(max(value, low), high)


def _true_object(thing: LabObject, stream: _Stream) -> LabObject:
    mass = thing.mass * stream.draw("density", 1.0)
    friction = stream.draw("friction", thing.friction)
    dx, dy, dz = (side / 2 * stream.draw("center_of_mass", 0.0) for side in thing.size)
    if thing.shape == "sphere":
        # A ball at rest lies on its heavy side.
        dx, dy, dz = 0.0, 0.0, -abs(dz)
    x, y, z = thing.center_of_mass
    return replace(thing, mass=mass, friction=friction, center_of_mass=(x + dx, y + dy, z + dz))


def profile_names() -> tuple[str, ...]:
    """List the names of all profiles, "constant" first."""
    files = (share_directory() / "config" / "lab" / "profiles").glob("*.yaml")
    return (CONSTANT, *sorted(path.stem for path in files))


def load_profile(profile: str | LabProfile) -> LabProfile:
    """Return a profile by its name.

    Raises:
        KinemaError: ARGUMENT_INVALID, with the known names.
        FileFormatError: the file is not a profile.
    """
    return profile if isinstance(profile, LabProfile) else _read(profile)


@lru_cache(maxsize=8)
def _read(name: str) -> LabProfile:
    if name not in profile_names():
        raise _refuse(f"lab profile {name!r} does not exist", f"one of {', '.join(profile_names())}")
    if name == CONSTANT:
        return LabProfile(CONSTANT)
    path = share_path(f"config/lab/profiles/{name}.yaml")
    ranges, shares = {}, {}
    for key, value in read_yaml(path).items():
        if key in ("odd_share", "twins") and type(value) in (int, float):
            shares[str(key)] = float(value)
            continue
        numbers = isinstance(value, list) and all(type(v) in (int, float) for v in value)
        if not numbers or len(value) != 2:
            raise FileFormatError(f"{path}: {key} is {value!r}", expected="[lowest, highest]")
        ranges[str(key)] = (float(value[0]), float(value[1]))
    return LabProfile(name, ranges, **shares)


def _refuse(what: str, expected: str) -> KinemaError:
    return KinemaError(what, expected=expected, code=ErrorCode.ARGUMENT_INVALID)
