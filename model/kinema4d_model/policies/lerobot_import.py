"""LeRobot's classes beside our own versions of torch, transformers and diffusers, which it does not ask for.

Two of its habits stand in the way of a plain import. Its package of policies imports every policy there is, and some
break with our transformers: only the wanted one is imported here. And torchvision, where it was built for CUDA and
torch was not, declares fake kernels for two operators that are then missing: they are declared first. Neither changes
a line that runs in a policy.

`make setup-lerobot` installs it into a folder of its own, which is looked into only when such a policy is asked for:
nothing else here notices that it is there, and our versions of what both have come first.
"""

from __future__ import annotations

import sys
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.policies.protocol import PolicyError

__all__ = ["find_lerobot", "policy_class", "policy_types", "require_lerobot"]

_INSTALL = "make setup-lerobot"
_NEEDED = ("lerobot", "torchvision", "draccus")
_OWN_FOLDER = Path(sys.prefix) / "share" / "kinema4d-lerobot"
_declared: list[Any] = []


def find_lerobot() -> bool:
    """Whether LeRobot is installed, here or in its own folder, which is then on the path: last, so that ours win."""
    if any(find_spec(name) is None for name in _NEEDED) and _OWN_FOLDER.is_dir() and str(_OWN_FOLDER) not in sys.path:
        sys.path.append(str(_OWN_FOLDER))
        invalidate_caches()
    return all(find_spec(name) is not None for name in _NEEDED)


def require_lerobot() -> None:
    """Make `lerobot.policies.*` importable.

    Raises:
        PolicyError: POLICY_UNAVAILABLE with the command that installs it.
    """
    if not find_lerobot():
        missing = [name for name in _NEEDED if find_spec(name) is None]
        raise PolicyError(
            f"LeRobot is not installed: {', '.join(missing)} missing",
            expected="the optional packages of requirements/lerobot.txt",
            hint=_INSTALL,
            code=ErrorCode.POLICY_UNAVAILABLE,
        )
    _declare_operators()
    if "lerobot.policies" not in sys.modules:
        package = ModuleType("lerobot.policies")
        package.__path__ = [str(Path(import_module("lerobot").__path__[0]) / "policies")]
        sys.modules["lerobot.policies"] = package


def policy_types() -> tuple[str, ...]:
    """The types of policies that the installed LeRobot has, by name."""
    require_lerobot()
    root = Path(sys.modules["lerobot.policies"].__path__[0])
    return tuple(sorted(p.name for p in root.iterdir() if (p / f"modeling_{p.name}.py").is_file()))


def policy_class(kind: str) -> Any:
    """LeRobot's class of a type of policy, such as "diffusion" or "act"; its configuration is then registered.

    Raises:
        PolicyError: no such type, or one that does not import with the versions here.
    """
    if kind not in policy_types():
        raise PolicyError(
            f"policy type {kind[:80]!r} is not one of LeRobot's",
            expected=f"one of {', '.join(policy_types())}",
            code=ErrorCode.POLICY_UNAVAILABLE,
        )
    try:
        import_module(f"lerobot.policies.{kind}.configuration_{kind}")
        module = import_module(f"lerobot.policies.{kind}.modeling_{kind}")
        base = import_module("lerobot.policies.pretrained").PreTrainedPolicy
    except Exception as error:  # what a package of other versions may do when imported is not ours to list
        raise PolicyError(
            f"LeRobot's '{kind}' cannot be imported here: {type(error).__name__}: {error}",
            expected="a policy type that works with the installed versions",
            hint="run it in LeRobot's own environment and connect with remote:HOST:PORT",
            code=ErrorCode.POLICY_UNAVAILABLE,
        ) from error
    found = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, base) and c is not base]
    named = [c for c in found if getattr(c, "name", "") == kind]
    if not named:
        raise PolicyError(f"LeRobot's '{kind}' has no policy class", expected="one", code=ErrorCode.POLICY_UNAVAILABLE)
    return named[0]


def _declare_operators() -> None:
    if "torchvision" in sys.modules or _declared:
        return
    try:
        import_module("torchvision")
        return
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)  # the operators live as long as it does
    import_module("torchvision")
