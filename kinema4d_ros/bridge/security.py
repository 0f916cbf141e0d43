"""Why ROS security refuses a node, in words; without it a keystore that is not there is a traceback."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from rclpy.impl.implementation_singleton import rclpy_implementation

from kinema4d_ros.core.errors import SetupError

__all__ = ["security_explained"]


@contextlib.contextmanager
def security_explained() -> Iterator[None]:
    """While a context or a node is made: a refusal by ROS security becomes an error that says what to do.

    Raises:
        SetupError: ROS_SECURITY_ENABLE is set, and ROS could not do as told; nothing runs unprotected instead.
    """
    try:
        yield
    except rclpy_implementation.RCLError as error:
        if os.environ.get("ROS_SECURITY_ENABLE", "").lower() != "true":
            raise
        raise SetupError(
            f"ROS security is on and refuses: {error}",
            expected="a keystore with this node's enclave (ROS_SECURITY_KEYSTORE) and a DDS built with security",
            hint="config/sros2/README.md says how; without ROS_SECURITY_ENABLE the graph runs unprotected",
        ) from None
