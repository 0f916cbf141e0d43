"""QoS profiles by purpose: nodes use `SENSOR_IN` and the like, never depth and reliability directly."""

from __future__ import annotations

from rclpy.qos import QoSDurabilityPolicy, QoSHistoryPolicy, QoSProfile, QoSReliabilityPolicy

from kinema4d_ros.ros.names import Endpoint

__all__ = [
    "COMMAND_OUT",
    "DIAGNOSTICS",
    "EVENT",
    "LATCHED",
    "PLAN_IN",
    "PROFILES",
    "SENSOR_IN",
    "SENSOR_OUT",
    "STATUS",
    "STREAM_OUT",
    "TF",
    "TF_STATIC",
    "profile",
]


def _profile(depth: int, *, reliable: bool = True, latched: bool = False) -> QoSProfile:
    return QoSProfile(
        history=QoSHistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=QoSReliabilityPolicy.RELIABLE if reliable else QoSReliabilityPolicy.BEST_EFFORT,
        durability=QoSDurabilityPolicy.TRANSIENT_LOCAL if latched else QoSDurabilityPolicy.VOLATILE,
    )


SENSOR_IN = _profile(5, reliable=False)
"""Best effort matches every driver, reliable or not; late samples are useless anyway."""

SENSOR_OUT = _profile(5)
"""What the lab's arm publishes: reliable as ros2_control, so that subscribers with default QoS receive it too."""

PLAN_IN = _profile(10)
"""Reliable, but volatile: a plan sent before the node subscribed must not be previewed as if it were new."""

STREAM_OUT = _profile(30)
"""Reliable, because best effort loses most 5 MB clouds; depth of one second at 30 Hz, so that a receiver that stalls
for less loses none. A viewer that should skip rather than lag uses a shorter queue of its own, as RViz does."""

LATCHED = _profile(1, latched=True)
"""Results and states: late joiners receive the newest message."""

STATUS = _profile(20, latched=True)
"""Progress of one job: every message arrives, and late joiners receive the newest ones in order."""

COMMAND_OUT = _profile(1)
"""To the arm: reliable, never queued, never replayed to a controller that joins later."""

EVENT = _profile(10)
"""Reliable for current subscribers, not replayed to late joiners."""

TF = _profile(100)
"""Same as tf2_ros."""

TF_STATIC = _profile(1, latched=True)
"""Same as tf2_ros: every broadcaster repeats all its frames in one message."""

DIAGNOSTICS = _profile(10)
"""Reliable, because warnings must not be lost."""

PROFILES: dict[str, QoSProfile] = {
    "COMMAND_OUT": COMMAND_OUT,
    "DIAGNOSTICS": DIAGNOSTICS,
    "EVENT": EVENT,
    "LATCHED": LATCHED,
    "PLAN_IN": PLAN_IN,
    "SENSOR_IN": SENSOR_IN,
    "SENSOR_OUT": SENSOR_OUT,
    "STATUS": STATUS,
    "STREAM_OUT": STREAM_OUT,
    "TF": TF,
    "TF_STATIC": TF_STATIC,
}


def profile(endpoint: Endpoint) -> QoSProfile:
    """Return the QoS profile of a topic."""
    return PROFILES[endpoint.qos]
