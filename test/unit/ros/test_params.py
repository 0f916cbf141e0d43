"""Parameters: one declaration gives descriptors and checked values; invalid values give clear errors."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from rcl_interfaces.msg import ParameterType

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.ros.params import ParameterError, check, descriptors, parameter


@dataclass(frozen=True)
class Settings:
    rate_hz: float = parameter(30.0, "Images per second.", low=1.0, high=120.0)
    frames: int = parameter(49, "Frames of a rollout.", low=2, high=200)
    loop: bool = parameter(True, "Start again at the end.")
    generator: str = parameter("composite", "Back-end.", choices=("composite", "diffusion"))
    robot: str = parameter("yam", "Name or file.", read_only=True)
    ignore_links: tuple[str, ...] = parameter(("base",), "Links that may touch.")


def test_defaults_are_valid_and_floats_accept_integers() -> None:
    assert check(Settings, {}) == Settings()
    given = check(Settings, {"rate_hz": 60, "ignore_links": ["a", "b"], "loop": False})
    assert given == Settings(rate_hz=60.0, ignore_links=("a", "b"), loop=False)
    assert isinstance(given.rate_hz, float)
    assert check(Settings, {"frames": 2}, given).rate_hz == 60.0


def test_descriptors_are_complete() -> None:
    found = descriptors(Settings)
    assert list(found) == ["rate_hz", "frames", "loop", "generator", "robot", "ignore_links"]
    assert found["rate_hz"].type == ParameterType.PARAMETER_DOUBLE
    [span] = found["rate_hz"].floating_point_range
    assert (span.from_value, span.to_value) == (1.0, 120.0)
    [span] = found["frames"].integer_range
    assert (span.from_value, span.to_value, span.step) == (2, 200, 1)
    assert found["generator"].additional_constraints == "one of composite, diffusion"
    assert found["robot"].read_only
    assert not found["loop"].read_only
    assert all(d.description for d in found.values())


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("rate_hz", 0.5, "a number from 1 to 120"),
        ("rate_hz", float("nan"), "a number from 1 to 120"),
        ("rate_hz", True, "a number from 1 to 120"),
        ("rate_hz", "fast", "a number from 1 to 120"),
        ("frames", 49.0, "a whole number from 2 to 200"),
        ("frames", 201, "a whole number from 2 to 200"),
        ("frames", True, "a whole number from 2 to 200"),
        ("loop", 1, "true or false"),
        ("generator", "magic", "one of composite, diffusion"),
        ("robot", 5, "text"),
        ("robot", None, "text"),
        ("ignore_links", "base", "a list of texts"),
        ("ignore_links", [1, 2], "a list of texts"),
    ],
)
def test_the_error_of_an_invalid_value_names_the_range(name: str, value: object, expected: str) -> None:
    with pytest.raises(ParameterError) as caught:
        check(Settings, {name: value})
    assert caught.value.code == ErrorCode.PARAMETER_INVALID
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)
    assert caught.value.expected == expected


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ParameterError, match="'rate' is not known; expected one of rate_hz"):
        check(Settings, {"rate": 5})


def test_an_invalid_declaration_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        parameter(1.0, "Half a range.", low=0.0)
    with pytest.raises(TypeError):
        parameter({}, "No such type in ROS.")
