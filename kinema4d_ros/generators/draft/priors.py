"""Priors of what an image does not show: mass, friction, servos (`config/draft.yaml`).

Readers of the file are strict: a missing, unknown or implausible entry is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from kinema4d_ros.core.errors import FileFormatError
from kinema4d_ros.io.documents import parse_yaml
from kinema4d_ros.io.files import read_bytes
from kinema4d_ros.io.resources import share_path

__all__ = ["Normal", "Priors", "Spread", "read_priors"]

_MAX_BYTES = 100_000


@dataclass(frozen=True)
class Spread:
    """A log-normal prior of a positive quantity, limited to a range.

    Attributes:
        median: of the draws.
        factor: 68 % of the draws are within median / factor and median * factor.
        low, high: the range.
    """

    median: float
    factor: float
    low: float
    high: float

    def at(self, share: ArrayLike) -> NDArray[np.float64]:
        """Return the quantiles at shares 0 to 1 (exclusive), in the shape of `share`."""
        return np.asarray(np.clip(self.median * self.factor ** ndtri(np.asarray(share)), self.low, self.high))


@dataclass(frozen=True)
class Normal:
    """A normal prior of three numbers: `mean` and `std`, each (3,)."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def at(self, share: ArrayLike) -> NDArray[np.float64]:
        """Return the quantiles at shares (..., 3), 0 to 1 (exclusive)."""
        return np.asarray(np.array(self.mean) + np.array(self.std) * ndtri(np.asarray(share)))


@dataclass(frozen=True)
class Priors:
    """All priors of a draft.

    Attributes:
        density: kg per cubic metre of the fitted shape.
        mass: smallest and largest mass, kg.
        object_friction, table_friction, finger_friction: sliding friction.
        center_of_mass: as a share of half the object's size along each axis, object frame.
        spinning, rolling: friction of contacts with the table and objects, metres.
        span_rad, span_m: position error at which a servo gives its full effort.
        delay_s: from a command to its effect.
        rotor_inertia, rotor_mass: see `physics.model.Materials`.
    """

    density: Spread
    mass: tuple[float, float]
    object_friction: Spread
    center_of_mass: Normal
    table_friction: Spread
    spinning: float
    rolling: float
    finger_friction: Spread
    span_rad: Spread
    span_m: Spread
    delay_s: Spread
    rotor_inertia: float
    rotor_mass: float


_ENTRIES = {
    "objects": ("density", "mass", "friction", "center_of_mass"),
    "table": ("friction", "spinning", "rolling"),
    "fingers": ("friction",),
    "servos": ("span_rad", "span_m", "delay_s", "rotor_inertia", "rotor_mass"),
}


def read_priors(path: str | Path | None = None) -> Priors:
    """Read priors from a YAML file; None = the package's `config/draft.yaml`.

    Raises:
        FileFormatError: the file is missing, or an entry is missing, unknown or out of range; the text names it.
    """
    where = share_path("config/draft.yaml") if path is None else Path(path)
    document = parse_yaml(read_bytes(where, limit=_MAX_BYTES), str(where))
    _require_keys(where, "", document, tuple(_ENTRIES))
    for part, names in _ENTRIES.items():
        _require_keys(where, f"{part}.", document[part], names)
    things, table, fingers, servos = (document[part] for part in _ENTRIES)
    mass = _numbers(where, "objects.mass", things["mass"], ("low", "high"))
    if not 0 < mass[0] < mass[1]:
        raise _refuse(where, "objects.mass", things["mass"], "0 < low < high")
    return Priors(
        density=_spread(where, "objects.density", things["density"]),
        mass=(mass[0], mass[1]),
        object_friction=_spread(where, "objects.friction", things["friction"]),
        center_of_mass=_normal(where, "objects.center_of_mass", things["center_of_mass"]),
        table_friction=_spread(where, "table.friction", table["friction"]),
        spinning=_positive(where, "table.spinning", table["spinning"]),
        rolling=_positive(where, "table.rolling", table["rolling"]),
        finger_friction=_spread(where, "fingers.friction", fingers["friction"]),
        span_rad=_spread(where, "servos.span_rad", servos["span_rad"]),
        span_m=_spread(where, "servos.span_m", servos["span_m"]),
        delay_s=_spread(where, "servos.delay_s", servos["delay_s"]),
        rotor_inertia=_positive(where, "servos.rotor_inertia", servos["rotor_inertia"]),
        rotor_mass=_positive(where, "servos.rotor_mass", servos["rotor_mass"]),
    )


def _refuse(where: Path, name: str, value: Any, expected: str) -> FileFormatError:
    return FileFormatError(f"{where}: '{name}' is {value!r}"[:300], expected=expected)


def _require_keys(where: Path, prefix: str, found: Any, names: tuple[str, ...]) -> None:
    if not isinstance(found, Mapping):
        raise _refuse(where, prefix.rstrip(".") or "the document", found, f"a mapping with {', '.join(names)}")
    missing = [f"{prefix}{name}" for name in names if name not in found]
    unknown = [f"{prefix}{name}" for name in found if name not in names]
    if missing or unknown:
        problems = [f"lacks {', '.join(missing)}"] if missing else []
        problems += [f"has the unknown {', '.join(unknown)}"] if unknown else []
        raise FileFormatError(f"{where} {' and '.join(problems)}", expected=f"exactly {', '.join(names)}")


def _number(where: Path, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise _refuse(where, name, value, "a finite number (YAML reads 1e-3 as text: write 1.0e-3)")
    return float(value)


def _positive(where: Path, name: str, value: Any) -> float:
    number = _number(where, name, value)
    if number <= 0:
        raise _refuse(where, name, value, "a number above 0")
    return number


def _numbers(where: Path, name: str, value: Any, keys: tuple[str, ...]) -> list[float]:
    _require_keys(where, f"{name}.", value, keys)
    return [_number(where, f"{name}.{key}", value[key]) for key in keys]


def _spread(where: Path, name: str, value: Any) -> Spread:
    spread = Spread(*_numbers(where, name, value, ("median", "factor", "low", "high")))
    if not (0 <= spread.low < spread.median < spread.high and spread.factor >= 1):
        raise _refuse(where, name, value, "0 <= low < median < high and a factor of 1 or more")
    return spread


def _normal(where: Path, name: str, value: Any) -> Normal:
    _require_keys(where, f"{name}.", value, ("mean", "std"))
    triples = []
    for key in ("mean", "std"):
        if not isinstance(value[key], list) or len(value[key]) != 3:
            raise _refuse(where, f"{name}.{key}", value[key], "three numbers")
        x, y, z = (_number(where, f"{name}.{key}", number) for number in value[key])
        triples.append((x, y, z))
    mean, std = triples
    if min(std) < 0 or max(np.abs(mean)) >= 1:
        raise _refuse(where, name, value, "a mean between -1 and 1 and a std of 0 or more")
    return Normal(mean, std)
