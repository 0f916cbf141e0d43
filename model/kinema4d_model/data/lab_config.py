"""`LabConfig`: ranges and sizes of lab episodes, read from `config/data/*.yaml` and validated."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinema4d_ros.core.errors import DataError, ErrorCode
from kinema4d_ros.io.files import read_yaml
from kinema4d_ros.io.resources import share_directory, share_path
from kinema4d_ros.lab.profile import CONSTANT, profile_names

__all__ = ["KINDS", "MISSES", "SPLITS", "LabConfig", "Ranges", "load_config"]

KINDS = ("pick", "miss", "push", "place", "stack", "slip", "noise")
MISSES = ("beside", "above", "late", "early")
SPLITS = ("train", "val", "ood")
_SCENE = {
    "workspace": ("radius_m", "bearing_deg"),
    "target": ("shapes", "width_m", "height_m", "hue", "saturation", "value"),
    "distractors": ("count", "width_m", "height_m", "reach_m"),
    "start": ("home", "height_m", "spread_m"),
    "looks": (
        *("tables", "tint", "tint_spread", "wall", "wall_spread", "lamp_radius_m", "lamp_height_m", "warmth"),
        *("robot_shell", "robot_as_drawn"),
    ),
    "camera": ("azimuth_deg", "elevation_deg", "distance_m", "view_m", "aim_spread_m", "aim_height_m"),
}

Ranges = Mapping[str, Mapping[str, Any]]
"""Sections of the file's `scene`: names to numbers, ranges [low, high] or lists of choices."""


@dataclass(frozen=True)
class LabConfig:
    """Everything except the seed that determines an episode.

    Attributes:
        name: name of the dataset.
        robot: name of the robot.
        frames, width, height: of an episode; frames are uniform in time.
        quality: "small" or "full".
        step_s: physics time step, seconds.
        tail_s: seconds recorded after the end of the plan.
        shard_episodes: episodes per shard.
        kinds: share of each kind of `KINDS`; the sum is 1.
        misses: share of each kind of `MISSES`.
        scene: ranges for train and val.
        ood: ranges for the out-of-distribution split.
        document: content of the file, stored in dataset.json.
        profile: of the lab, see `kinema4d_ros.lab.profile`; "constant" where the file does not name one.
    """

    name: str
    robot: str
    frames: int
    width: int
    height: int
    quality: str
    step_s: float
    tail_s: float
    shard_episodes: int
    kinds: Mapping[str, float]
    misses: Mapping[str, float]
    scene: Ranges
    ood: Ranges
    document: Mapping[str, Any]
    profile: str = CONSTANT

    def ranges(self, split: str) -> Ranges:
        """Return the ranges of a split."""
        return self.ood if split == "ood" else self.scene


def load_config(name_or_path: str | Path) -> LabConfig:
    """Load a configuration by name ("nano") or file; errors name the file."""
    path = Path(name_or_path)
    if path.suffix != ".yaml":
        known = sorted(p.stem for p in (share_directory() / "config" / "data").glob("*.yaml"))
        if str(name_or_path) not in known:
            raise DataError(
                f"there is no data configuration {str(name_or_path)!r}",
                expected=f"one of {', '.join(known)}, or a .yaml file",
                code=ErrorCode.FILE_MISSING,
            )
        path = share_path(f"config/data/{name_or_path}.yaml")
    return parse_config(read_yaml(path), str(path))


def parse_config(document: Mapping[str, Any], where: str) -> LabConfig:
    """Parse the document of a configuration read from `where`."""
    wanted = {
        "name",
        "robot",
        "frames",
        "width",
        "height",
        "quality",
        "step_s",
        "tail_s",
        "shard_episodes",
        "kinds",
        "misses",
    }
    _require_keys(document, wanted | {"scene", "ood"}, where, optional={"profile"})
    scene = _scene(document["scene"], {}, f"{where}: scene")
    config = LabConfig(
        name=str(document["name"]),
        robot=str(document["robot"]),
        frames=_whole(document, "frames", 2, 1000, where),
        width=_whole(document, "width", 16, 4096, where),
        height=_whole(document, "height", 16, 4096, where),
        quality=str(document["quality"]),
        step_s=_number(document["step_s"], f"{where}: step_s", 0.0005, 0.005),
        tail_s=_number(document["tail_s"], f"{where}: tail_s", 0.0, 5.0),
        shard_episodes=_whole(document, "shard_episodes", 1, 10_000, where),
        kinds=_shares(document["kinds"], KINDS, f"{where}: kinds"),
        misses=_shares(document["misses"], MISSES, f"{where}: misses"),
        scene=scene,
        ood=_scene(document["ood"], scene, f"{where}: ood"),
        document=dict(document),
        profile=str(document.get("profile", CONSTANT)),
    )
    if config.profile not in profile_names():
        raise DataError(f"{where}: profile is {config.profile!r}", expected=f"one of {', '.join(profile_names())}")
    if config.quality not in ("small", "full"):
        raise DataError(f"{where}: quality is {config.quality!r}", expected="'small' or 'full'")
    return config


def _require_keys(document: Any, wanted: set[str], where: str, optional: Set[str] = frozenset()) -> None:
    if not isinstance(document, Mapping):
        raise DataError(f"{where} is {type(document).__name__}", expected="named values")
    missing, unknown = sorted(wanted - set(document)), sorted(set(document) - wanted - optional)
    if missing or unknown:
        what = [f"lacks {', '.join(missing)}"] if missing else []
        what += [f"has unknown {', '.join(unknown)}"] if unknown else []
        raise DataError(f"{where} {' and '.join(what)}", expected=f"{', '.join(sorted(wanted | optional))}")


def _scene(document: Any, base: Ranges, where: str) -> Ranges:
    if not isinstance(document, Mapping) or not set(document) <= set(_SCENE):
        raise DataError(f"{where} is {document!r}"[:200], expected=f"sections {', '.join(_SCENE)}")
    merged = {}
    for section, keys in _SCENE.items():
        values = {**base.get(section, {}), **(document.get(section) or {})}
        _require_keys(values, set(keys), f"{where}.{section}")
        for key, value in values.items():
            _check_value(value, f"{where}.{section}.{key}")
        merged[section] = values
    return merged


def _check_value(value: Any, where: str) -> None:
    """Require a number, an ordered range, a list of ranges or colours, or a list of names."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return
    if isinstance(value, list) and value:
        numbers = [v for v in value if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if len(numbers) == len(value) == 2 and value[0] <= value[1]:
            return
        if all(isinstance(v, str) for v in value):
            return
        if all(isinstance(v, list) and len(v) in (2, 3) and all(isinstance(x, (int, float)) for x in v) for v in value):
            return
    raise DataError(f"{where} is {value!r}"[:200], expected="a number, [low, high], or a list of choices")


def _shares(document: Any, names: tuple[str, ...], where: str) -> Mapping[str, float]:
    if not isinstance(document, Mapping) or not set(document) <= set(names):
        raise DataError(f"{where} is {document!r}"[:200], expected=f"shares of {', '.join(names)}")
    shares = {name: _number(document.get(name, 0.0), f"{where}.{name}", 0.0, 1.0) for name in names}
    if abs(sum(shares.values()) - 1.0) > 1e-6:
        raise DataError(f"{where} add up to {sum(shares.values()):g}", expected="1")
    return shares


def _number(value: Any, where: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise DataError(f"{where} is {value!r}", expected=f"a number from {low:g} to {high:g}")
    return float(value)


def _whole(document: Mapping[str, Any], name: str, low: int, high: int, where: str) -> int:
    value = document[name]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise DataError(f"{where}: {name} is {value!r}", expected=f"a whole number from {low} to {high}")
    return value
