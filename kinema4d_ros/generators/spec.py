"""`load_generator(spec)`: create a generator from a spec of the command line or of a start-up parameter.

composite              the static scene with the exact robot composited into it
carry                  the carry hypothesis: the object at the closing fingers moves with the gripper
draft                  physics: the commanded motion simulated with the objects that the image shows
draft+nano             the draft with colours refined by a preset's network (one with `condition.carry`)
nano, wan14b, ...      a preset of config/model
path/to/preset.yaml    a user's preset
ros, ros:NAMESPACE     the generator node of a running graph
ros:gpu1+ros:gpu2      one model that several nodes serve (`evaluate`), see `pool`
package.module:Class   a user's class
auto                   the best generator that this machine can run, chosen for every request, see `auto`

A class is imported and runs with the caller's rights. Never pass a spec that came in a message, a goal or a file.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from kinema4d_ros.core.errors import ErrorCode, GeneratorError, KinemaError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.generators.draft.detection import has_detector
from kinema4d_ros.generators.protocol import (
    Cancel,
    GenerateRequest,
    Generator,
    ReceiveFrames,
    ReportProgress,
    StreamingGenerator,
    deliver,
)
from kinema4d_ros.io.resources import share_directory

__all__ = ["SPECS", "GeneratorSpec", "best_preset", "best_without_draft", "load_generator", "preset_names"]

SPECS = (
    "auto, composite, carry, draft, draft+nano, a preset's name or YAML file, ros:NAMESPACE, or package.module:Class"
)
"""For help texts."""

Kind = Literal["auto", "composite", "carry", "draft", "refined", "preset", "ros", "class"]

# Modules above the core layer are imported by name on first use.
_BUILT_IN = {
    "composite": "kinema4d_ros.generators.composite:CompositeGenerator",
    "carry": "kinema4d_ros.generators.composite:CarryGenerator",
    "draft": "kinema4d_ros.generators.draft.generator:DraftGenerator",
    "refined": "kinema4d_model.pipeline.refine:RefinedGenerator",
    "auto": "kinema4d_ros.generators.auto:AutoGenerator",
    "preset": "kinema4d_model.pipeline.backend:DiffusionGenerator",
    "ros": "kinema4d_ros.ros.generate_client:RemoteGenerator",
    "pool": "kinema4d_ros.generators.pool:GeneratorPool",
}
_MODEL = ("torch, diffusers and the rest of requirements/model.in", "make setup TORCH=cpu, or use composite or draft")
_NEEDS = {
    "preset": _MODEL,
    "refined": _MODEL,
    "ros": ("ROS 2 and kinema4d_msgs", "make setup"),
}

_SIMPLE: tuple[Kind, ...] = ("auto", "composite", "carry", "draft")
_DRAFT = "draft+"
_CLASS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_NODE = re.compile(r"ros(:/?([A-Za-z_]\w*(/[A-Za-z_]\w*)*/?)?)?", re.ASCII)


@dataclass(frozen=True)
class GeneratorSpec:
    """A spec with valid syntax; whether its weights, nodes or class exist is not checked.

    >>> GeneratorSpec.parse("ros:gpu1+ros:/gpu2/").nodes, GeneratorSpec.parse("ros").nodes
    (('gpu1', 'gpu2'), ('',))
    >>> GeneratorSpec.parse("my_package.physics:Generator").kind
    'class'
    >>> GeneratorSpec.parse("draft+nano").preset
    'nano'
    """

    kind: Kind
    text: str
    nodes: tuple[str, ...] = ()

    @property
    def preset(self) -> str:
        """Name or file of the preset whose weights are used, always or where there is no draft; "" without one."""
        if self.kind == "auto":
            found = best_without_draft()
            return found if found in preset_names() else ""
        return self.text.removeprefix(_DRAFT) if self.kind in ("preset", "refined") else ""

    @classmethod
    def parse(cls, text: str) -> GeneratorSpec:
        """Parse a spec.

        Raises:
            GeneratorError: GENERATOR_UNAVAILABLE with the available specs.
        """
        for kind in _SIMPLE:
            if text == kind:
                return cls(kind, text)
        parts = text.split("+")
        if all(_NODE.fullmatch(part) for part in parts):
            nodes = tuple(part.partition(":")[2].strip("/") for part in parts)
            if len(set(nodes)) == len(nodes):
                return cls("ros", text, nodes)
        elif _CLASS.fullmatch(text):
            return cls("class", text)
        elif _is_preset(text.removeprefix(_DRAFT)):
            return cls("refined" if text.startswith(_DRAFT) else "preset", text)
        raise GeneratorError(
            f"generator '{text}' is unknown",
            expected=f"auto, composite, carry, draft, draft+PRESET, {', '.join(preset_names())}, the path of a "
            "preset's YAML file, ros:NAMESPACE, nodes joined by + (ros:gpu1+ros:gpu2, each once), or "
            "package.module:Class",
            code=ErrorCode.GENERATOR_UNAVAILABLE,
        )


def load_generator(spec: str, *, offered: Mapping[str, Any] | None = None, **options: Any) -> Generator:
    """Create the generator of a spec.

    Args:
        spec: see above; only from the command line or a start-up parameter.
        offered: options that are passed only if the constructor has them, such as `device`.
        options: that the constructor must have. None, an empty text and an empty mapping count as not given.

    Raises:
        GeneratorError: GENERATOR_UNAVAILABLE if it is unknown, not installed or not a generator,
            GENERATOR_BAD_REQUEST for unknown options.
        KinemaError: the generator's own error, such as missing weights.

    >>> load_generator("composite", table_height_m=0.0).name
    'composite'
    """
    parsed = GeneratorSpec.parse(spec)
    if parsed.kind == "class":
        own_class = _import_class(parsed.text)
        return _make_own(own_class, parsed.text, _fitting(own_class, parsed.text, {}, offered or {}, options))
    fixed: dict[str, Any] = {}
    if parsed.kind in ("preset", "refined"):
        fixed = {"preset": parsed.preset}
    elif parsed.kind == "ros":
        fixed = {"namespaces": parsed.nodes} if len(parsed.nodes) > 1 else {"namespace": parsed.nodes[0]}
    make = _built_in("pool" if "namespaces" in fixed else parsed.kind, parsed.text)
    made: Generator = make(**_fitting(make, parsed.text, fixed, offered or {}, options))
    return made


def best_preset(*, depth: bool = False) -> str:
    """Return the spec that "auto" stands for, with or without measured depth, if there are objects to fit."""
    return "draft" if depth or has_detector() else best_without_draft()


def best_without_draft() -> str:
    """Return "nano" where its packages and weights are installed, "composite" otherwise."""
    if any(find_spec(name) is None for name in ("torch", "diffusers", "kinema4d_model")):
        return "composite"
    found = import_module("kinema4d_model.shipped").shipped_weights("nano")
    return "composite" if found is None else "nano"


def preset_names() -> tuple[str, ...]:
    """Return the names of the presets of the package, sorted."""
    return tuple(sorted(path.stem for path in (share_directory() / "config" / "model").glob("*.yaml")))


def _is_preset(text: str) -> bool:
    path = Path(text)
    return text in preset_names() or path.suffix in (".yaml", ".yml") or len(path.parts) > 1


def _built_in(kind: str, spec: str) -> Callable[..., Any]:
    module, _, name = _BUILT_IN[kind].partition(":")
    try:
        found: Callable[..., Any] = getattr(import_module(module), name)
    except ImportError as error:
        expected, hint = _NEEDS.get(kind, ("a complete install of kinema4d_ros", "install the package again"))
        raise _unavailable(f"generator '{spec}' cannot be loaded: {error}", expected, hint) from error
    return found


def _import_class(spec: str) -> type:
    module, _, name = spec.partition(":")
    try:
        found = getattr(import_module(module), name, None)
    except Exception as error:  # the user's own code: whatever it raises
        raise _unavailable(
            f"generator '{spec}': importing {module} raised {type(error).__name__}: {error}",
            "package.module:Class of a module that can be imported",
            "install its package, or put its folder on PYTHONPATH",
        ) from error
    if not isinstance(found, type):
        what = f"has no '{name}'" if found is None else f"has '{name}', but it is not a class"
        raise _unavailable(f"generator '{spec}': module {module} {what}", "package.module:Class")
    if not callable(getattr(found, "generate", None)):
        raise _unavailable(f"generator '{spec}': the class has no method generate", _PROTOCOL)
    return found


_PROTOCOL = "a class with a `name` and `generate(request, progress, cancel) -> Rollout`"


def _fitting(
    make: Callable[..., Any],
    spec: str,
    fixed: Mapping[str, Any],
    offered: Mapping[str, Any],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Select the constructor's arguments: those fixed by the spec, those given, and those offered that it has."""
    given = {name: value for name, value in options.items() if not _is_empty(value)}
    try:
        parameters = inspect.signature(make).parameters
    except ValueError:  # a compiled class without a signature
        return {**given, **fixed}
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    known = [name for name, one in parameters.items() if one.kind not in stars and name not in fixed]
    open_ended = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    unknown = [name for name in given if name not in known and not open_ended]
    chosen = {**{name: value for name, value in offered.items() if name in known}, **given}
    missing = [name for name in known if parameters[name].default is inspect.Parameter.empty and name not in chosen]
    if unknown or missing:
        words = [f"has no option {', '.join(unknown)}"] if unknown else []
        words += [f"needs {', '.join(missing)}"] if missing else []
        raise GeneratorError(
            f"generator '{spec}' {' and '.join(words)}",
            expected=f"options out of {', '.join(known) or 'none'}",
            code=ErrorCode.GENERATOR_BAD_REQUEST,
        )
    return {**chosen, **fixed}


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | Mapping) and not value)


def _make_own(make: Callable[..., Any], spec: str, arguments: Mapping[str, Any]) -> Generator:
    try:
        made = make(**arguments)
    except KinemaError as error:
        error.name_file(spec)
        raise
    except MemoryError:
        raise
    except Exception as error:  # the user's own code: whatever it raises
        raise _unavailable(
            f"generator '{spec}': its constructor raised {type(error).__name__}: {error}", "a class that can be created"
        ) from error
    if not isinstance(made, Generator):
        raise _unavailable(f"generator '{spec}': the class has no name", _PROTOCOL)
    try:
        inspect.signature(made.generate).bind(None, None, None)
    except TypeError as error:
        raise _unavailable(f"generator '{spec}': its generate cannot be called: {error}", _PROTOCOL) from None
    except ValueError:
        pass  # compiled, without a signature
    return _OwnGenerator(made, spec)


class _OwnGenerator:
    """A user's generator with validated rollouts."""

    def __init__(self, made: Generator, spec: str) -> None:
        self._made, self._spec = made, spec

    @property
    def name(self) -> str:
        """Name of the user's class."""
        return str(self._made.name)

    def generate(
        self, request: GenerateRequest, progress: ReportProgress | None = None, cancel: Cancel | None = None
    ) -> Rollout:
        """Generate and validate a rollout; GENERATOR_FAILED if it is not a rollout of this request."""
        return self._checked(request, self._made.generate(request, progress, cancel))

    def stream(
        self,
        request: GenerateRequest,
        receive: ReceiveFrames | None,
        progress: ReportProgress | None = None,
        cancel: Cancel | None = None,
    ) -> Rollout:
        """Generate and validate a rollout; its frames are delivered at the end by a class without `stream`."""
        if isinstance(self._made, StreamingGenerator):
            return self._checked(request, self._made.stream(request, receive, progress, cancel))
        rollout = self.generate(request, progress, cancel)
        deliver(receive, "refined", 0, rollout, final=True)
        return rollout

    def _checked(self, request: GenerateRequest, rollout: Any) -> Rollout:
        if not isinstance(rollout, Rollout):
            raise GeneratorError(
                f"generator '{self._spec}' returned {type(rollout).__name__}", expected="a Rollout from generate"
            )
        size = (request.camera.width, request.camera.height)
        for what, got, wanted in (
            ("frames", len(rollout), len(request)),
            ("pixels", (rollout.camera.width, rollout.camera.height), size),
            ("plan_hash", rollout.plan_hash, request.plan_hash),
        ):
            if got != wanted:
                raise GeneratorError(
                    f"generator '{self._spec}' returned a rollout of another request: {what} {got!r}",
                    expected=f"{wanted!r}, as in the request",
                )
        return rollout

    def close(self) -> None:
        """Close the user's generator if it has `close`."""
        close = getattr(self._made, "close", None)
        if callable(close):
            close()


def _unavailable(what: str, expected: str, hint: str = "") -> GeneratorError:
    return GeneratorError(what, expected=expected, hint=hint, code=ErrorCode.GENERATOR_UNAVAILABLE)
