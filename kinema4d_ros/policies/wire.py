"""Messages between policy client and server: msgpack maps with numpy arrays, limited in size and validated.

array    {"shape": [2, 7], "dtype": "<f8", "data": bytes}             ours
         {b"__ndarray__": true, b"shape", b"dtype", b"data"}          openpi's

Messages hold only maps, text, numbers, bytes and arrays of plain numbers; decoding never executes code.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.policies.protocol import PolicyError

__all__ = ["MAX_MESSAGE_BYTES", "PROTOCOL", "VERSION", "pack", "unpack"]

PROTOCOL, VERSION = "kinema4d_policy", 1
MAX_MESSAGE_BYTES = 32 * 2**20
"""Larger than any image; larger messages close the connection."""

DTYPES = ("|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<i8", "<f4", "<f8")
MAX_DIMENSIONS = 8
_MAX_DEPTH = 8


def pack(message: dict[str, Any], *, openpi: bool = False) -> bytes:
    """Encode a message; arrays may be at any level."""
    return msgspec.msgpack.encode(_plain(message, openpi))


def unpack(data: Any) -> dict[str, Any]:
    """Decode a message, with arrays as numpy arrays.

    Raises:
        PolicyError: POLICY_BAD_ACTION for text, invalid msgpack, or arrays with a wrong size or dtype.
    """
    if not isinstance(data, bytes):
        raise _garbage(f"the message is text: {str(data)[:200]!r}", "a msgpack map")
    try:
        message = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError, TypeError) as error:
        raise _garbage(f"{len(data)} bytes are not msgpack: {error}", "a msgpack map") from None
    if not isinstance(message, dict):
        raise _garbage(f"the message is a {type(message).__name__}", "a msgpack map")
    restored = _restored(message, 0)
    if not isinstance(restored, dict):
        raise _garbage("the message is an array", "a msgpack map")
    return restored


def _plain(value: Any, openpi: bool) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        array = array.astype(array.dtype.newbyteorder("<"))
        if openpi:
            return {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": array.dtype.str, b"shape": array.shape}
        return {"shape": list(array.shape), "dtype": array.dtype.str, "data": array.tobytes()}
    if isinstance(value, dict):
        return {key: _plain(item, openpi) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, openpi) for item in value]
    return value


def _restored(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise _garbage("maps are nested too deeply", f"at most {_MAX_DEPTH} levels")
    if isinstance(value, dict):
        if set(value) == {"shape", "dtype", "data"} or b"__ndarray__" in value:
            return _array({(k.decode() if isinstance(k, bytes) else k): v for k, v in value.items()})
        if b"__npgeneric__" in value:
            return value.get(b"data")
        return {_text(key): _restored(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_restored(item, depth + 1) for item in value]
    if isinstance(value, msgspec.msgpack.Ext):
        raise _garbage(f"extension type {value.code}", "maps, lists, text, numbers and bytes")
    return value


def _text(key: Any) -> str:
    if isinstance(key, bytes):
        return key.decode("utf-8", "replace")
    if not isinstance(key, str):
        raise _garbage(f"key {key!r} is not text", "text keys")
    return key


def _array(parts: dict[str, Any]) -> np.ndarray[Any, Any]:
    shape, dtype, data = parts.get("shape"), _decoded(parts.get("dtype")), parts.get("data")
    sound = isinstance(shape, list | tuple) and len(shape) <= MAX_DIMENSIONS
    if not sound or not all(type(n) is int and n >= 0 for n in shape or ()):
        raise _garbage(f"an array's shape is {str(shape)[:80]}", "a list of sizes")
    if dtype not in DTYPES or not isinstance(data, bytes):
        raise _garbage(f"an array's dtype is {str(dtype)[:40]!r}", f"one of {', '.join(DTYPES)}, with its bytes")
    kind = np.dtype(dtype)
    if math.prod(shape or ()) * kind.itemsize != len(data):
        raise _garbage(
            f"an array of shape {tuple(shape or ())} and type {dtype} has {len(data)} bytes",
            "the bytes of all elements",
        )
    return np.frombuffer(data, kind).reshape(shape or ()).copy()


def _decoded(value: Any) -> Any:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def _garbage(what: str, expected: str) -> PolicyError:
    return PolicyError(what, expected=expected, code=ErrorCode.POLICY_BAD_ACTION)
