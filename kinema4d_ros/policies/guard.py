"""`GuardedPolicy`: timeouts and errors around a policy that may hang, crash or return invalid answers.

Every call runs in its own thread, which is abandoned after the timeout: the policy is then lost, every later call is
refused at once, and the caller has to create a new policy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.policies.protocol import ActionChunk, EpisodeStart, Observation, Policy, PolicyError

__all__ = ["GuardedPolicy"]

_T = TypeVar("_T")


class GuardedPolicy:
    """A policy with timeouts.

    Args:
        policy: to call.
        act_timeout_s: timeout of one chunk.
        reset_timeout_s: timeout of the start of an episode, which may load weights.
    """

    def __init__(self, policy: Policy, *, act_timeout_s: float = 30.0, reset_timeout_s: float = 120.0) -> None:
        if not (act_timeout_s > 0 and reset_timeout_s > 0):
            raise PolicyError(
                f"timeouts are {act_timeout_s} and {reset_timeout_s} s",
                expected="more than 0",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        self._policy = policy
        self._act_timeout_s, self._reset_timeout_s = act_timeout_s, reset_timeout_s
        self._lost = ""

    @property
    def name(self) -> str:
        """The policy's own name."""
        return self._policy.name

    @property
    def lost(self) -> bool:
        """Whether a call timed out; a new policy is needed."""
        return bool(self._lost)

    def reset(self, start: EpisodeStart) -> None:
        """Call the policy's reset."""
        self._call("reset", self._reset_timeout_s, lambda: self._policy.reset(start))

    def act(self, observation: Observation) -> ActionChunk:
        """Call the policy's act and check that it returns a chunk."""
        chunk: Any = self._call("act", self._act_timeout_s, lambda: self._policy.act(observation))
        if not isinstance(chunk, ActionChunk):
            raise PolicyError(
                f"policy '{self.name}' answered with {type(chunk).__name__}",
                expected="an ActionChunk",
                code=ErrorCode.POLICY_BAD_ACTION,
            )
        return chunk

    def close(self) -> None:
        """Call the policy's close, unless the policy is lost."""
        if not self._lost:
            self._call("close", self._act_timeout_s, self._policy.close)

    def _call(self, what: str, timeout_s: float, ask: Callable[[], _T]) -> _T:
        if self._lost:
            raise PolicyError(self._lost, expected="a new policy", code=ErrorCode.POLICY_TIMEOUT)
        answer: list[Any] = []

        def run() -> None:
            try:
                answer.append((ask(), None))
            except BaseException as error:  # raised in the caller's thread below
                answer.append((None, error))

        thread = threading.Thread(target=run, name=f"policy {what}", daemon=True)
        thread.start()
        thread.join(timeout_s)
        if not answer:
            self._lost = f"policy '{self.name}' did not answer '{what}' within {timeout_s:g} s"
            raise PolicyError(self._lost, expected="an answer within the timeout", code=ErrorCode.POLICY_TIMEOUT)
        value, error = answer[0]
        if isinstance(error, PolicyError):
            raise error
        if error is not None:
            raise PolicyError(
                f"policy '{self.name}' raised {type(error).__name__} in '{what}': {error}",
                expected="an answer",
                code=ErrorCode.POLICY_FAILED,
            ) from error
        return value  # type: ignore[no-any-return]
