"""Conversion `KinemaError` <-> kinema4d_msgs/ErrorCode, so that clients receive the server's error."""

from __future__ import annotations

from typing import Any

from kinema4d_msgs.msg import ErrorCode as ErrorCodeMsg
from kinema4d_ros.core.errors import ErrorCode, KinemaError

__all__ = ["error_from_msg", "error_to_msg", "raise_from_msg"]


def error_to_msg(error: BaseException | None = None) -> Any:
    """Convert an exception to a kinema4d_msgs/ErrorCode; NONE for None, UNKNOWN for anything but a KinemaError."""
    if error is None:
        return ErrorCodeMsg(code=int(ErrorCode.NONE), message="")
    if isinstance(error, KinemaError):
        prefix = f"[{error.code.name}] "
        return ErrorCodeMsg(code=int(error.code), message=str(error).removeprefix(prefix))
    return ErrorCodeMsg(code=int(ErrorCode.UNKNOWN), message=f"{type(error).__name__}: {error}")


def error_from_msg(message: Any) -> KinemaError | None:
    """Return the error in a message, or None for NONE."""
    if message.code == ErrorCode.NONE:
        return None
    try:
        code = ErrorCode(message.code)
    except ValueError:
        # A newer peer may send codes that this version does not have.
        return KinemaError(f"{message.message or 'no explanation'} (error code {message.code}, not known here)")
    return KinemaError(message.message or "no explanation", code=code)


def raise_from_msg(message: Any) -> None:
    """Raise the error in a message, if there is one."""
    error = error_from_msg(message)
    if error is not None:
        raise error
