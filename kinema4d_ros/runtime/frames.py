"""Framed messages over a stream socket: kind, job number, length, bytes."""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Any

from kinema4d_ros.core.errors import ErrorCode, GeneratorError, KinemaError

__all__ = ["Connection", "Frame", "Kind", "error_from_json", "error_to_json"]

_HEADER = struct.Struct("!BQQ")
_MAX_BYTES = 4 << 30
"""No frame is larger: a 49-frame rollout of raw floats is a quarter of a gigabyte."""


@unique
class Kind(IntEnum):
    """What a frame is for."""

    READY = 1
    REQUEST = 2
    CANCEL = 3
    PROGRESS = 4
    RESULT = 5
    ERROR = 6


@dataclass(frozen=True)
class Frame:
    """One message; `job` is 0 when it belongs to none."""

    kind: Kind
    job: int
    payload: bytes


class Connection:
    """Sends and receives whole frames. One thread may send while another receives."""

    def __init__(self, endpoint: socket.socket) -> None:
        self._socket = endpoint

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def settimeout(self, seconds: float) -> None:
        """How long one call may wait for the other side."""
        self._socket.settimeout(seconds)

    def send(self, kind: Kind, job: int = 0, payload: bytes = b"") -> None:
        """Send one frame; OSError when the other side is gone or does not read in time."""
        self._socket.sendall(_HEADER.pack(kind, job, len(payload)))
        self._socket.sendall(payload)

    def receive(self) -> Frame | None:
        """The next frame; None when the other side has closed. Blocks as the socket does."""
        head = self._exactly(_HEADER.size)
        if head is None:
            return None
        kind, job, size = _HEADER.unpack(head)
        if size > _MAX_BYTES:
            return None
        payload = self._exactly(size)
        return None if payload is None else Frame(Kind(kind), job, payload)

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray(count)
        view = memoryview(data)
        filled = 0
        while filled < count:
            try:
                received = self._socket.recv_into(view[filled:])
            except ConnectionError:
                return None
            if received == 0:
                return None
            filled += received
        return bytes(data)

    def close(self) -> None:
        """Close this side; the other receives None."""
        self._socket.close()


def error_to_json(error: BaseException) -> bytes:
    """An exception as bytes; memory errors keep their own code, whatever library raised them."""
    if isinstance(error, KinemaError):
        fields: dict[str, Any] = {
            "code": int(error.code),
            "what": error.what,
            "expected": error.expected,
            "hint": error.hint,
        }
    elif _is_about_memory(error):
        fields = {
            "code": int(ErrorCode.GENERATOR_OUT_OF_MEMORY),
            "what": f"the generator ran out of memory: {error}",
            "expected": "a rollout that fits into memory",
            "hint": "use a smaller preset, fewer frames or a smaller image",
        }
    else:
        fields = {
            "code": int(ErrorCode.GENERATOR_FAILED),
            "what": f"the generator failed: {type(error).__name__}: {error}",
            "expected": "a rollout",
            "hint": "its log has the traceback",
        }
    return json.dumps(fields).encode()


def _is_about_memory(error: BaseException) -> bool:
    """True for Python's and torch's own errors, and for what torch's CPU allocator and OpenCV raise in their place."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    words = ("can't allocate memory", "OutOfMemoryError", "std::bad_alloc")
    # OpenCV's error is no RuntimeError, and neither library is known here.
    return type(error).__name__ in ("RuntimeError", "error") and any(word in str(error) for word in words)


def error_from_json(payload: bytes) -> KinemaError:
    """The exception again, on the other side."""
    fields = json.loads(payload)
    return GeneratorError(
        fields["what"], expected=fields["expected"], hint=fields["hint"], code=ErrorCode(fields["code"])
    )
