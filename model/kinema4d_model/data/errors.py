"""`DataError`: an episode, a shard or a dataset that must not be trained on, by name."""

from __future__ import annotations

from kinema4d_ros.core.errors import ErrorCode, KinemaError

__all__ = ["DataError"]


class DataError(KinemaError):
    """Data that is damaged, inconsistent or not what a field promises; the text names the episode or file."""

    default_code = ErrorCode.FILE_MALFORMED
