"""ROS parameters declared as frozen dataclasses: name, default, description and range in one place.

>>> @dataclass(frozen=True)
... class Settings:
...     rate_hz: float = parameter(30.0, "Images per second.", low=1.0, high=120.0)
...     generator: str = parameter("composite", "Back-end.", choices=("composite", "diffusion"))
>>> check(Settings, {"rate_hz": 60}).rate_hz
60.0

Parameters are declared with dynamic typing, because ROS reads `rate_hz: 30` in a YAML file as an integer; this
module accepts it as a float and checks types itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, ParameterType, SetParametersResult

from kinema4d_ros.core.errors import ErrorCode, KinemaError

__all__ = ["ParameterError", "check", "declare", "descriptors", "parameter", "watch"]

T = TypeVar("T")

_TYPES = {
    bool: ParameterType.PARAMETER_BOOL,
    int: ParameterType.PARAMETER_INTEGER,
    float: ParameterType.PARAMETER_DOUBLE,
    str: ParameterType.PARAMETER_STRING,
    list: ParameterType.PARAMETER_STRING_ARRAY,
}


class ParameterError(KinemaError):
    """An invalid parameter value."""

    default_code = ErrorCode.PARAMETER_INVALID


@dataclass(frozen=True)
class _Rule:
    kind: type
    description: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    read_only: bool

    def describe_range(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        kind = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list of texts"}
        text = kind[self.kind]
        if self.low is not None and self.high is not None:
            return f"{text} from {self.low:g} to {self.high:g}"
        return text


def parameter(
    default: Any,
    description: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    read_only: bool = False,
) -> Any:
    """Return a dataclass field that declares a ROS parameter.

    Args:
        default: bool, int, float, str or tuple of str; its type is the parameter's type.
        description: one sentence for `ros2 param describe`.
        low, high: both or none; inclusive range of a number.
        choices: allowed strings.
        read_only: whether the value can only be set at startup.
    """
    kind = list if isinstance(default, tuple) else type(default)
    if kind not in _TYPES or (low is None) != (high is None):
        raise TypeError(f"parameter with default {default!r}, range {low} to {high}")
    return dataclasses.field(
        default=default, metadata={"rule": _Rule(kind, description, low, high, choices, read_only)}
    )


def descriptors(settings: type[Any]) -> dict[str, Any]:
    """Return the rcl_interfaces/ParameterDescriptor of each parameter, by name."""
    out = {}
    for field in dataclasses.fields(settings):
        rule: _Rule = field.metadata["rule"]
        descriptor = ParameterDescriptor(
            name=field.name,
            type=_TYPES[rule.kind],
            description=rule.description,
            additional_constraints=rule.describe_range(),
            read_only=rule.read_only,
            dynamic_typing=True,
        )
        if rule.low is not None and rule.high is not None and rule.kind is int:
            descriptor.integer_range = [IntegerRange(from_value=int(rule.low), to_value=int(rule.high), step=1)]
        elif rule.low is not None and rule.high is not None:
            descriptor.floating_point_range = [
                FloatingPointRange(from_value=float(rule.low), to_value=float(rule.high), step=0.0)
            ]
        out[field.name] = descriptor
    return out


def check(settings: type[T], values: Mapping[str, Any], base: T | None = None) -> T:
    """Return the settings with `values` over `base` or the defaults; raise ParameterError for an invalid value."""
    rules = {field.name: field.metadata["rule"] for field in dataclasses.fields(settings)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - set(rules))
    if unknown:
        raise ParameterError(f"parameter '{unknown[0]}' is not known", expected=f"one of {', '.join(rules)}")
    clean = {name: _convert(name, rules[name], value) for name, value in values.items()}
    return settings(**clean) if base is None else dataclasses.replace(base, **clean)  # type: ignore[type-var]


def declare(node: Any, settings: type[T]) -> T:
    """Declare all parameters on a node and return their values, including command line and parameter files."""
    values = {}
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}  # type: ignore[arg-type]
    for name, descriptor in descriptors(settings).items():
        default = defaults[name]
        given = node.declare_parameter(
            name,
            list(default) if isinstance(default, tuple) else default,
            # The range is checked below; rclpy's own check ends the node without naming the range.
            _without_range(descriptor),
        ).value
        values[name] = given
    try:
        result = check(settings, values)
    except ParameterError as error:
        raise ParameterError(f"{node.get_name()}: {error.what}", expected=error.expected, hint=error.hint) from None
    for name, descriptor in descriptors(settings).items():
        node.set_descriptor(name, descriptor)
    return result


def watch(node: Any, settings: type[T], current: T, on_change: Callable[[T], None]) -> None:
    """Reject invalid values set at run time, and call `on_change` for valid ones.

    `on_change` receives the complete new settings before ROS stores them; a `KinemaError` from it rejects the change.
    """
    names = {field.name for field in dataclasses.fields(settings)}  # type: ignore[arg-type]
    state = [current]

    def callback(parameters: list[Any]) -> Any:
        values = {p.name: p.value for p in parameters if p.name in names}
        if not values:
            return SetParametersResult(successful=True)
        try:
            changed = check(settings, values, state[0])
            on_change(changed)
        except KinemaError as error:
            return SetParametersResult(successful=False, reason=str(error))
        state[0] = changed
        return SetParametersResult(successful=True)

    node.add_on_set_parameters_callback(callback)


def _without_range(descriptor: Any) -> Any:
    return ParameterDescriptor(
        name=descriptor.name,
        type=descriptor.type,
        description=descriptor.description,
        additional_constraints=descriptor.additional_constraints,
        dynamic_typing=True,
    )


def _convert(name: str, rule: _Rule, value: Any) -> Any:
    good: bool
    if rule.kind is list:
        good = isinstance(value, (list, tuple)) and all(isinstance(entry, str) for entry in value)
        value = tuple(value) if good else value
    elif rule.kind is float:
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        value = float(value) if good else value
    else:
        good = type(value) is rule.kind
    if good and rule.low is not None and rule.high is not None:
        good = rule.low <= value <= rule.high
    if good and rule.choices:
        good = value in rule.choices
    if not good:
        raise ParameterError(f"parameter '{name}' is {value!r}", expected=rule.describe_range())
    return value
