"""Helpers for small arm motions through a client: current joints, a plan from there, waiting for rest."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.ros import names
from kinema4d_ros.ros.client import PreviewClient

WAIT_S = 180.0
"""Timeout in seconds for loaded machines; no test asserts the duration."""


def arm(graph: PreviewClient) -> tuple[list[str], np.ndarray]:
    """Return joint names and positions of the newest joint state.

    Waits for the first one: the twin's images may reach a client before the arm's messages.
    """
    graph.wait_for(lambda: graph.newest(names.JOINT_STATES) is not None, WAIT_S, "a joint state")
    state = graph.newest(names.JOINT_STATES)
    return list(state.name), np.array(state.position)


def swing(graph: PreviewClient, angle: float = 0.2, duration_s: float = 2.0, start: float = 0.0) -> JointTrajectory:
    """Return a plan from the current joints that turns joint1 by an angle; `start` offsets its start."""
    joints, q = arm(graph)
    times = np.linspace(0.0, duration_s, 21)
    path = np.tile(q, (21, 1))
    path[:, joints.index("joint1")] += start + angle * (1 - np.cos(np.pi * times / duration_s)) / 2
    return JointTrajectory.from_positions(joints, path, times=times)


def refused(graph: PreviewClient, plan: JointTrajectory) -> ErrorCode:
    """Return the error code with which the preview refuses a plan."""
    with pytest.raises(KinemaError) as caught:
        graph.preview(plan, timeout_s=WAIT_S)
    assert len(caught.value.what) > 10
    return caught.value.code


def code_of(call: object, *arguments: object) -> ErrorCode:
    """Return the error code raised by a call of the client."""
    with pytest.raises(KinemaError) as caught:
        call(*arguments)  # type: ignore[operator]
    assert len(caught.value.what) > 10
    return caught.value.code


READY = {"preview": "ready for a plan", "gate": "closed until a plan is approved"}
"""Status text of a node that receives all its inputs."""


def wait_until_ready(graph: PreviewClient, *which: str) -> None:
    """Wait until the preview (or `which`) reports that it receives arm, camera and generator."""
    waited_for = set(which or ("preview",))

    def look(message: Any) -> None:
        for status in message.status:
            name = status.name.rpartition("/")[2]
            if name in waited_for and status.message.startswith(READY[name]):
                waited_for.discard(name)

    graph.listen(names.DIAGNOSTICS, look)
    graph.wait_for(lambda: not waited_for, WAIT_S, f"ready nodes ({', '.join(which) or 'preview'})")


def settle(graph: PreviewClient) -> None:
    """Wait until the arm is at rest over many messages, because a loaded machine sends few per second."""
    arm(graph)

    def still() -> bool:
        seen = [graph.newest(names.JOINT_STATES)]
        deadline = time.monotonic() + WAIT_S
        while len(seen) < 25 and time.monotonic() < deadline:
            newest = graph.newest(names.JOINT_STATES)
            if newest.header.stamp != seen[-1].header.stamp:
                seen.append(newest)
            time.sleep(0.002)
        return bool(np.ptp([m.position for m in seen], axis=0).max() < 1e-4)

    graph.wait_for(still, WAIT_S, "an arm at rest")
