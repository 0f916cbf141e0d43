"""`AssetError`: an acquisition that cannot go on, with the frame, file or number that is in the way."""

from __future__ import annotations

from kinema4d_ros.core.errors import ErrorCode, KinemaError

__all__ = ["AssetError"]


class AssetError(KinemaError):
    """Pictures, poses, masks or meshes from which no robot can be made; the text says which and why."""

    default_code = ErrorCode.IMAGE_INVALID
