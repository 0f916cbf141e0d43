"""Errors on the wire: `KinemaError` <-> kinema4d_msgs/ErrorCode, so that a client sees what the server saw."""

from __future__ import annotations

from typing import Any

from kinema4d_msgs.msg import ErrorCode as ErrorCodeMsg
from kinema4d_ros.core.errors import ErrorCode, KinemaError

__all__ = ["error_from_msg", "error_to_msg", "raise_from_msg"]


def error_to_msg(error: BaseException | None = None) -> Any:
    """kinema4d_msgs/ErrorCode of an exception; NONE for None, UNKNOWN for what we did not raise on purpose."""
    if error is None:
        return ErrorCodeMsg(code=int(ErrorCode.NONE), message="")
    if isinstance(error, KinemaError):
        prefix = f"[{error.code.name}] "
        return ErrorCodeMsg(code=int(error.code), message=str(error).removeprefix(prefix))
    return ErrorCodeMsg(code=int(ErrorCode.UNKNOWN), message=f"{type(error).__name__}: {error}")


def error_from_msg(message: Any) -> KinemaError | None:
    """The error that a message carries, or None for NONE."""
    if message.code == ErrorCode.NONE:
        return None
    try:
        code = ErrorCode(message.code)
    except ValueError:
        # A newer peer may know codes that we do not.
        return KinemaError(f"{message.message or 'no explanation'} (error code {message.code}, not known here)")
    return KinemaError(message.message or "no explanation", code=code)


def raise_from_msg(message: Any) -> None:
    """Raise the error that a message carries, if it carries one."""
    error = error_from_msg(message)
    if error is not None:
        raise error
