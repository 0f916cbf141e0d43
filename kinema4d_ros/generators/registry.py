"""Generators by name: what a parameter or a command line says becomes an object that generates."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from kinema4d_ros.errors import ErrorCode, GeneratorError
from kinema4d_ros.generators.protocol import Generator

__all__ = ["best_preset", "create_generator", "generator_names", "register_generator"]

Factory = Callable[..., Generator]

_factories: dict[str, Factory] = {}


def register_generator(name: str, factory: Factory) -> None:
    """Make `create_generator(name, **options)` call `factory(**options)`; a name can be taken once."""
    if not name or name in _factories:
        raise GeneratorError(f"generator name '{name}' is {'taken' if name else 'empty'}", expected="a new name")
    _factories[name] = factory


def generator_names() -> tuple[str, ...]:
    """The names `create_generator` accepts, sorted."""
    return tuple(sorted(_factories))


def create_generator(name: str, **options: Any) -> Generator:
    """A generator by name; options are those of its class.

    >>> create_generator("composite", table_height_m=0.0).name
    'composite'
    """
    if name not in _factories:
        raise GeneratorError(
            f"generator '{name}' is not available",
            expected=f"one of {', '.join(generator_names())}",
            code=ErrorCode.GENERATOR_UNAVAILABLE,
        )
    try:
        return _factories[name](**options)
    except TypeError as error:
        raise GeneratorError(
            f"generator '{name}' cannot be made from {', '.join(options) or 'no options'}: {error}",
            expected="the options of its class",
            code=ErrorCode.GENERATOR_BAD_REQUEST,
        ) from error


def best_preset() -> str:
    """What "auto" stands for: the nano model where its packages and weights are installed, "composite" otherwise."""
    if any(find_spec(name) is None for name in ("torch", "diffusers", "kinema4d_model")):
        return "composite"
    from kinema4d_model.shipped import shipped_weights

    return "nano" if shipped_weights("nano") is not None else "composite"


def _composite(**options: Any) -> Generator:
    # Compiled kernels and OpenCV are loaded by the first use, not by importing the names.
    from kinema4d_ros.generators.composite import CompositeGenerator

    return CompositeGenerator(**options)


def _diffusion(**options: Any) -> Generator:
    try:
        from kinema4d_model.backend import DiffusionGenerator
    except ImportError as error:
        raise GeneratorError(
            f"the learned generator cannot be loaded: {error}",
            expected="torch, diffusers and what else requirements/model.in names",
            hint="pip install -r requirements/model.in, or preset:=composite",
            code=ErrorCode.GENERATOR_UNAVAILABLE,
        ) from error
    return DiffusionGenerator(**options)


def _ros(**options: Any) -> Generator:
    # The bridge stands above the core, so it is found by name, and only when somebody asks for it.
    try:
        module = import_module("kinema4d_ros.bridge.remote_generator")
    except ImportError as error:
        raise GeneratorError(
            f"a generator node cannot be asked: {error}",
            expected="ROS 2 and kinema4d_msgs",
            hint="make setup",
            code=ErrorCode.GENERATOR_UNAVAILABLE,
        ) from error
    made: Generator = module.RemoteGenerator(**options)
    return made


register_generator("composite", _composite)
register_generator("diffusion", _diffusion)
register_generator("ros", _ros)
