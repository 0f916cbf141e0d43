"""TF: tf2_ros where it is installed, otherwise `_tf_standin` with the same names and calls.

from kinema4d_ros.ros.tf import Buffer, TransformListener, TransformBroadcaster, LookupException
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "USES_TF2_ROS",
    "Buffer",
    "ConnectivityException",
    "ExtrapolationException",
    "InvalidArgumentException",
    "LookupException",
    "StaticTransformBroadcaster",
    "TimeoutException",
    "TransformBroadcaster",
    "TransformException",
    "TransformListener",
]

USES_TF2_ROS = False

if not TYPE_CHECKING:
    try:
        from tf2_ros import (
            Buffer,
            ConnectivityException,
            ExtrapolationException,
            InvalidArgumentException,
            LookupException,
            StaticTransformBroadcaster,
            TimeoutException,
            TransformBroadcaster,
            TransformException,
            TransformListener,
        )

        USES_TF2_ROS = True
    except ImportError:
        pass

if TYPE_CHECKING or not USES_TF2_ROS:
    from kinema4d_ros.ros._tf_standin import (
        Buffer,
        ConnectivityException,
        ExtrapolationException,
        InvalidArgumentException,
        LookupException,
        StaticTransformBroadcaster,
        TimeoutException,
        TransformBroadcaster,
        TransformException,
        TransformListener,
    )
