"""QoS profiles by purpose: a node asks for `SENSOR_IN`, not for depths and reliabilities."""

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
"""Best effort takes data from every driver, reliable or not; a late sample is worth nothing anyway."""

PLAN_IN = _profile(10)
"""A plan must arrive, but one that was sent before we listened must not be previewed as if it were new."""

STREAM_OUT = _profile(30)
"""Reliable, because best effort loses most clouds of 5 MB; a second of 30 Hz, so that a receiver that stalls for less
loses none. A viewer that should skip and not lag has a shorter queue of its own, as RViz has."""

LATCHED = _profile(1, latched=True)
"""Results and states: whoever joins late gets the newest one at once."""

STATUS = _profile(20, latched=True)
"""Steps of one piece of work: all of them arrive, and whoever joins late gets the newest ones, the last one last."""

COMMAND_OUT = _profile(1)
"""To the arm: delivered, never queued up, never replayed to a controller that joins later."""

EVENT = _profile(10)
"""Must arrive at those who listen now, and means nothing to those who listen later."""

TF = _profile(100)
"""As tf2_ros has it."""

TF_STATIC = _profile(1, latched=True)
"""As tf2_ros has it: every broadcaster repeats all its frames in one message."""

DIAGNOSTICS = _profile(10)
"""Reliable, because a warning that is lost has not been given."""

PROFILES: dict[str, QoSProfile] = {
    "COMMAND_OUT": COMMAND_OUT,
    "DIAGNOSTICS": DIAGNOSTICS,
    "EVENT": EVENT,
    "LATCHED": LATCHED,
    "PLAN_IN": PLAN_IN,
    "SENSOR_IN": SENSOR_IN,
    "STATUS": STATUS,
    "STREAM_OUT": STREAM_OUT,
    "TF": TF,
    "TF_STATIC": TF_STATIC,
}


def profile(endpoint: Endpoint) -> QoSProfile:
    """The profile that the table of names gives a topic."""
    return PROFILES[endpoint.qos]
