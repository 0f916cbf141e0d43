"""Policies by name: `expert`, `expert:offset_m=0.012,seed=3`, `replay:runs/a.npz`, `remote:127.0.0.1:8000`.

A spec is a kind, followed after the first colon by options `name=value,...` or by a plain text, the kind's `source`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.policies.protocol import Policy, PolicyError

__all__ = ["PolicySpec", "make_policy", "policy_kinds", "register_policy"]

Factory = Callable[..., Policy]

_factories: dict[str, Factory | str] = {
    "diffusion": "kinema4d_model.policies.chunk_policy:DiffusionChunkPolicy",
    "expert": "kinema4d_ros.policies.scripted:ScriptedExpert",
    "lerobot": "kinema4d_model.policies.lerobot_policy:LerobotPolicy",
    "remote": "kinema4d_ros.policies.remote:RemotePolicy",
    "replay": "kinema4d_ros.policies.replay:ReplayPolicy",
    "python": "kinema4d_ros.policies.registry:python_class",
}

_OPTION = re.compile(r"^[a-z][a-z0-9_]*=")


@dataclass(frozen=True)
class PolicySpec:
    """A parsed spec: input of `make_policy`, and text for reports.

    >>> PolicySpec.parse("expert:offset_m=0.012,delay_s=1")
    PolicySpec(kind='expert', options={'offset_m': 0.012, 'delay_s': 1}, text='expert:offset_m=0.012,delay_s=1')
    >>> PolicySpec.parse("near=expert:offset_m=0.004").label
    'near'
    """

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    label: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str) -> PolicySpec:
        """Parse `[LABEL=]KIND[:OPTIONS]`; the label is the name in reports, by default the rest."""
        head, colon, tail = text.strip().partition(":")
        label, equals, kind = head.rpartition("=")
        if not kind or (equals and not label):
            raise _unavailable(f"policy {text!r} has no kind", "KIND, KIND:name=value,... or KIND:SOURCE")
        options: dict[str, Any] = {}
        if colon and not tail:
            raise _unavailable(f"policy {text!r} ends after its colon", "options or a source")
        if tail and not _OPTION.match(tail):
            source, comma, tail = tail.partition(",") if _has_options(tail) else (tail, "", "")
            options["source"] = source
            if comma and not tail:
                raise _unavailable(f"policy {text!r} ends after a comma", "name=value")
        for item in filter(None, tail.split(",")):
            name, equals, value = item.partition("=")
            if not equals or not name.strip().isidentifier() or name.strip() in options:
                raise _unavailable(f"option {item!r} of policy {text!r}", "name=value, without duplicate names")
            options[name.strip()] = _value(value.strip())
        full = head.rpartition("=")[2] + text.strip()[len(head) :]
        return cls(kind, options, full, label or full)


def _has_options(tail: str) -> bool:
    _, comma, rest = tail.partition(",")
    return bool(comma) and (not rest or bool(_OPTION.match(rest)))


def register_policy(kind: str, factory: Factory | str) -> None:
    """Register a factory, or `module:name` to import on first use, for `make_policy(kind)`."""
    if not kind or kind in _factories:
        raise PolicyError(f"policy kind '{kind}' is {'taken' if kind else 'empty'}", expected="a new name")
    _factories[kind] = factory


def policy_kinds() -> tuple[str, ...]:
    """Return the kinds of `make_policy`, sorted."""
    return tuple(sorted(_factories))


def make_policy(spec: str | PolicySpec) -> Policy:
    """Create a policy from its spec.

    Raises:
        PolicyError: POLICY_UNAVAILABLE with the available kinds or options; or the policy's own error.
    """
    wanted = spec if isinstance(spec, PolicySpec) else PolicySpec.parse(spec)
    if wanted.kind not in _factories:
        raise _unavailable(f"policy '{wanted.kind}' is unknown", f"one of {', '.join(policy_kinds())}")
    factory = _factories[wanted.kind]
    if isinstance(factory, str):
        module, _, name = factory.partition(":")
        try:
            factory = getattr(import_module(module), name)
        except ImportError as error:
            raise _unavailable(
                f"policy '{wanted.kind}' cannot be loaded: {error}", "the packages of the learned models (make setup)"
            ) from error
    try:
        return factory(**wanted.options)
    except TypeError as error:
        raise _unavailable(f"policy '{wanted.text}' cannot be created: {error}", "the options of its kind") from error


def python_class(source: str, **options: Any) -> Policy:
    """Create a policy of the kind `python`, a user's class: `python:package.module:MyPolicy`. It runs in-process."""
    module, _, name = source.partition(":")
    try:
        made = getattr(import_module(module), name)(**options)
    except (ImportError, AttributeError, ValueError) as error:
        raise _unavailable(f"policy 'python:{source}' cannot be created: {error}", "python:MODULE:CLASS") from error
    if not isinstance(made, Policy):
        raise _unavailable(f"{source} is not a policy", "a class with name, reset, act and close")
    return made


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)


def _unavailable(what: str, expected: str) -> PolicyError:
    return PolicyError(what, expected=expected, code=ErrorCode.POLICY_UNAVAILABLE)
