"""Which implementation computes attention: diffusers' dispatcher, with what this machine can run."""

from __future__ import annotations

from typing import Any

from kinema4d_ros.core.errors import ErrorCode, GeneratorError, SetupError

__all__ = ["attention_backends", "set_attention"]


def attention_backends() -> tuple[str, ...]:
    """Names the dispatcher knows; not all run everywhere."""
    from diffusers.models.attention_dispatch import AttentionBackendName

    return tuple(sorted(member.value for member in AttentionBackendName))


def set_attention(transformer: Any, name: str) -> None:
    """Let every attention layer use back-end `name`; "auto" leaves torch's own choice."""
    if name == "auto":
        return
    if name not in attention_backends():
        raise GeneratorError(
            f"attention back-end '{name}'",
            expected=f"auto or one of {', '.join(attention_backends())}",
            code=ErrorCode.GENERATOR_BAD_REQUEST,
        )
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as Registry

    everyone, _ = Registry.get_active_backend()
    try:
        transformer.set_attention_backend(name)
    except (ImportError, RuntimeError, ValueError) as error:
        raise SetupError(
            f"attention back-end '{name}' cannot be used here: {error}",
            expected="its package, and a device that it supports",
            hint="attention: auto works everywhere",
        ) from error
    finally:
        # diffusers also changes the default of every other model in the process; this one has its own now.
        Registry.set_active_backend(everyone)
