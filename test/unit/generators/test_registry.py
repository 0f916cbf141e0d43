"""Generators by name."""

from __future__ import annotations

import pytest

from kinema4d_ros.errors import ErrorCode, GeneratorError
from kinema4d_ros.generators import Generator, create_generator, generator_names, register_generator


def test_the_composite_is_there() -> None:
    assert "composite" in generator_names()
    generator = create_generator("composite", table_height_m=-0.02)
    assert isinstance(generator, Generator)
    assert generator.name == "composite"


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(GeneratorError, match=r"expected one of .*composite") as caught:
        create_generator("crystal ball")
    assert caught.value.code == ErrorCode.GENERATOR_UNAVAILABLE


def test_unknown_options_are_named() -> None:
    with pytest.raises(GeneratorError, match="colour") as caught:
        create_generator("composite", colour="red")
    assert caught.value.code == ErrorCode.GENERATOR_BAD_REQUEST


@pytest.mark.parametrize("name", ["", "composite"])
def test_names_are_taken_once(name: str) -> None:
    with pytest.raises(GeneratorError):
        register_generator(name, lambda: create_generator("composite"))
