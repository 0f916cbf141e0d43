"""`RemotePolicy`: a policy in another process or on another machine, over a websocket (kind `remote`).

client                                            server
  <- {"protocol": "kinema4d_policy", "version": 1, "name"}
  {"type": "reset", "robot", "joint_names", "instruction", "task", "seed"} ->      <- {"type": "ok"}
  {"type": "act", "image", "camera", "joints", "gripper_m", "time_s"} ->
                        <- {"type": "chunk", "times", "joints" | "base_T_tool" + "gripper_m", "done"}
                        <- {"type": "error", "code", "what", "expected"}

`style=openpi` uses the openpi protocol instead: one map of observations in, {"actions"} out. It follows the published
protocol and was tested only against our own server.
"""

from __future__ import annotations

import os
import time
from typing import Any
from urllib.parse import urlsplit

import cv2
import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.sync.client import ClientConnection, connect

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.policies.protocol import ActionChunk, EpisodeStart, Observation, PolicyError
from kinema4d_ros.policies.wire import MAX_MESSAGE_BYTES, PROTOCOL, VERSION, pack, unpack

__all__ = ["TOKEN_VARIABLE", "RemotePolicy"]

TOKEN_VARIABLE = "KINEMA4D_POLICY_TOKEN"  # noqa: S105  # nosec B105 - a variable's name, not a token
"""Environment variable with the server's token; not part of the spec, because specs are printed in reports."""

STYLES = ("kinema4d", "openpi")
_TOO_BIG = 1009


class RemotePolicy:
    """Client of a policy server at `ws://HOST:PORT`. A lost connection ends the episode; the next one reconnects.

    Args:
        source: HOST:PORT, or a ws:// or wss:// address.
        timeout_s: timeout of a chunk.
        reset_timeout_s: timeout of the connection and of the start of an episode, which may load weights.
        style: "kinema4d" or "openpi".
        hz, image_key, state_key, image_size: of the openpi style: rate of the actions, names of the inputs, and the
            side in pixels of the square to which images are padded (0 = unchanged).
    """

    def __init__(
        self,
        source: str = "",
        *,
        timeout_s: float = 10.0,
        reset_timeout_s: float = 60.0,
        style: str = "kinema4d",
        hz: float = 10.0,
        image_key: str = "observation/image",
        state_key: str = "observation/state",
        image_size: int = 224,
    ) -> None:
        self._uri = _address(source)
        numbers = {"timeout_s": timeout_s, "reset_timeout_s": reset_timeout_s, "hz": hz}
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 3600:
                raise _bad_option(name, value, "more than 0, at most 3600")
        if style not in STYLES:
            raise _bad_option("style", style, f"one of {', '.join(STYLES)}")
        if not isinstance(image_size, int) or not 0 <= image_size <= 4096:
            raise _bad_option("image_size", image_size, "0 to 4096")
        self._timeout_s, self._reset_timeout_s = float(timeout_s), float(reset_timeout_s)
        self._openpi, self._hz, self._image_size = style == "openpi", float(hz), image_size
        self._image_key, self._state_key = image_key, state_key
        self._socket: ClientConnection | None = None
        self._start: EpisodeStart | None = None
        self._server = ""

    @property
    def name(self) -> str:
        """`remote:` with the address, and the server's name once it is known."""
        return f"remote:{self._uri}" + (f" ({self._server})" if self._server else "")

    def reset(self, start: EpisodeStart) -> None:
        """Connect if needed and begin an episode. The lab's true state is never sent.

        Raises:
            PolicyError: the server does not answer or refuses.
        """
        self._start = None
        if self._socket is None:
            self._connect()
        if not self._openpi:
            robot = start.robot
            answer = self._ask(
                {
                    "type": "reset",
                    "robot": robot.name,
                    "joint_names": list(robot.joint_names),
                    "instruction": start.instruction,
                    "task": start.task,
                    "seed": start.seed,
                },
                self._reset_timeout_s,
            )
            if answer.get("type") != "ok":
                raise self._dropped(f"answered a reset with {str(answer.get('type'))[:40]!r}", "ok",
                                    ErrorCode.POLICY_BAD_ACTION)  # fmt: skip
        self._start = start

    def act(self, observation: Observation) -> ActionChunk:
        """Request the next actions.

        Raises:
            PolicyError: POLICY_TIMEOUT, POLICY_BAD_ACTION for an invalid chunk, POLICY_FAILED for a lost connection.
        """
        if self._start is None:
            raise PolicyError(f"{self.name} has no episode", expected="reset before act")
        if self._openpi:
            return self._openpi_chunk(self._ask(self._openpi_observation(observation), self._timeout_s))
        camera = observation.camera
        answer = self._ask(
            {
                "type": "act",
                "image": observation.image,
                "camera": {"width": camera.width, "height": camera.height, "K": camera.K,
                           "base_T_camera": camera.base_T_camera},
                "joints": observation.joints,
                "gripper_m": float(observation.gripper_m),
                "time_s": float(observation.time_s),
            },
            self._timeout_s,
        )  # fmt: skip
        if answer.get("type") != "chunk":
            raise self._dropped(
                f"answered with {str(answer.get('type'))[:40]!r}", "a chunk", ErrorCode.POLICY_BAD_ACTION
            )
        return ActionChunk(
            answer.get("times", ()),
            answer.get("joints"),
            answer.get("base_T_tool"),
            answer.get("gripper_m"),
            done=answer.get("done") is True,
        )

    def close(self) -> None:
        """Close the connection."""
        socket, self._socket, self._start = self._socket, None, None
        if socket is not None:
            socket.close()

    def _connect(self) -> None:
        token = os.environ.get(TOKEN_VARIABLE, "")
        headers = {"Authorization": f"{'Api-Key' if self._openpi else 'Bearer'} {token}"} if token else None
        try:
            self._socket = connect(
                self._uri,
                additional_headers=headers,
                open_timeout=self._reset_timeout_s,
                close_timeout=1.0,
                compression=None,
                max_size=MAX_MESSAGE_BYTES,
                # A server without a thread for pings does not answer them while it computes; timeouts are used instead.
                ping_interval=None,
                proxy=None,
            )
        except (OSError, InvalidHandshake, InvalidURI, EOFError) as error:
            raise PolicyError(
                f"{self._uri} cannot be reached: {error}",
                expected="a policy server",
                hint=f"start one with `kinema4d policy serve SPEC`; a server with a token needs {TOKEN_VARIABLE}",
                code=ErrorCode.POLICY_TIMEOUT if isinstance(error, TimeoutError) else ErrorCode.POLICY_UNAVAILABLE,
            ) from None
        hello = self._receive(self._reset_timeout_s)
        if self._openpi:
            self._server = "openpi"
            return
        if hello.get("protocol") != PROTOCOL or hello.get("version") != VERSION:
            raise self._dropped(
                f"speaks {str(hello.get('protocol'))[:40]!r} version {str(hello.get('version'))[:8]}",
                f"{PROTOCOL} version {VERSION}",
                ErrorCode.POLICY_UNAVAILABLE,
            )
        self._server = str(hello.get("name", ""))[:200]

    def _ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        socket = self._socket
        if socket is None:
            raise PolicyError(f"{self._uri} is not connected", expected="reset before act")
        try:
            socket.send(pack(message, openpi=self._openpi))
        except (ConnectionClosed, OSError) as error:
            raise self._dropped(f"hung up: {_reason(error)}", "an answer", ErrorCode.POLICY_FAILED) from None
        answer = self._receive(timeout_s)
        if answer.get("type") == "error":
            raise PolicyError(
                f"{self._uri}: {str(answer.get('what', 'no reason given'))[:500]}",
                expected=str(answer.get("expected", ""))[:500],
                code=_code(answer.get("code")),
            )
        return answer

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        socket = self._socket
        if socket is None:
            raise PolicyError(f"{self._uri} is not connected", expected="reset before act")
        begun = time.monotonic()
        try:
            data = socket.recv(timeout=timeout_s)
        except TimeoutError:
            # A late answer would be taken for the answer to the next request: close the connection.
            took = time.monotonic() - begun
            raise self._dropped(f"did not answer within {took:.1f} s", "an answer in time",
                                ErrorCode.POLICY_TIMEOUT) from None  # fmt: skip
        except (ConnectionClosed, OSError, EOFError) as error:
            if isinstance(error, ConnectionClosed) and error.sent is not None and error.sent.code == _TOO_BIG:
                raise self._dropped(f"sent more than {MAX_MESSAGE_BYTES:,} bytes", "a smaller answer",
                                    ErrorCode.POLICY_BAD_ACTION) from None  # fmt: skip
            raise self._dropped(f"hung up: {_reason(error)}", "an answer", ErrorCode.POLICY_FAILED) from None
        try:
            return unpack(data)
        except PolicyError as error:
            raise self._dropped(f"sent garbage: {error.what}", error.expected, ErrorCode.POLICY_BAD_ACTION) from None

    def _dropped(self, what: str, expected: str, code: ErrorCode) -> PolicyError:
        """Close the connection and return the error to raise."""
        self.close()
        return PolicyError(f"{self._uri} {what}", expected=expected, code=code)

    def _openpi_observation(self, observation: Observation) -> dict[str, Any]:
        image = observation.image if not self._image_size else _padded(observation.image, self._image_size)
        prompt = "" if self._start is None else self._start.instruction
        state = observation.joints.astype(np.float32)
        return {self._image_key: image, self._state_key: state, "prompt": prompt}

    def _openpi_chunk(self, answer: dict[str, Any]) -> ActionChunk:
        actions = answer.get("actions")
        joints = 0 if self._start is None else len(self._start.robot.joint_names)
        if not isinstance(actions, np.ndarray) or actions.ndim != 2 or actions.shape[1] < joints or not len(actions):
            shape = actions.shape if isinstance(actions, np.ndarray) else type(actions).__name__
            raise PolicyError(
                f"{self._uri} answered with actions {shape}",
                expected=f"an array (N, {joints}) named actions",
                code=ErrorCode.POLICY_BAD_ACTION,
            )
        times = (np.arange(len(actions)) + 1) / self._hz
        return ActionChunk(times, actions[:, :joints].astype(np.float64))


def _padded(image: np.typing.NDArray[np.uint8], side: int) -> np.typing.NDArray[np.uint8]:
    """Fit the image into a black square, keeping its aspect ratio."""
    height, width = image.shape[:2]
    scale = side / max(height, width)
    w, h = max(1, round(width * scale)), max(1, round(height * scale))
    small = cv2.resize(image, (w, h), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    out = np.zeros((side, side, 3), np.uint8)
    top, left = (side - h) // 2, (side - w) // 2
    out[top : top + h, left : left + w] = small
    return out


def _address(source: str) -> str:
    uri = source if "://" in str(source) else f"ws://{source}"
    try:
        parts = urlsplit(uri)
        usable = parts.scheme in ("ws", "wss") and bool(parts.hostname) and (parts.port is not None or "://" in source)
    except ValueError:
        usable = False
    if not source or not usable:
        raise PolicyError(
            f"address {source!r} is not a websocket address",
            expected="HOST:PORT, ws://... or wss://...",
            code=ErrorCode.POLICY_UNAVAILABLE,
        )
    return uri


def _code(number: Any) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.POLICY_FAILED


def _reason(error: BaseException) -> str:
    return str(error)[:200] or type(error).__name__


def _bad_option(name: str, value: object, expected: str) -> PolicyError:
    return PolicyError(f"{name} is {value!r}", expected=expected, code=ErrorCode.ARGUMENT_INVALID)
