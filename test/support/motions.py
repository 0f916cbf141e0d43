"""Small motions of an arm that a test watches through a client: where it is, a plan from there, at rest or not."""

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
"""A loaded machine is slow; nothing here asserts how slow."""


def arm(graph: PreviewClient) -> tuple[list[str], np.ndarray]:
    """Joint names and positions as the graph's newest joint state has them.

    The first one is waited for: the twin's pictures may find their way to a client before the arm's messages do.
    """
    graph.wait_for(lambda: graph.newest(names.JOINT_STATES) is not None, WAIT_S, "a joint state")
    state = graph.newest(names.JOINT_STATES)
    return list(state.name), np.array(state.position)


def swing(graph: PreviewClient, angle: float = 0.2, duration_s: float = 2.0, start: float = 0.0) -> JointTrajectory:
    """A plan from where the arm is: joint1 turns by an angle and the others stay; `start` puts its start off."""
    joints, q = arm(graph)
    times = np.linspace(0.0, duration_s, 21)
    path = np.tile(q, (21, 1))
    path[:, joints.index("joint1")] += start + angle * (1 - np.cos(np.pi * times / duration_s)) / 2
    return JointTrajectory.from_positions(joints, path, times=times)


def refused(graph: PreviewClient, plan: JointTrajectory) -> ErrorCode:
    """The code that the preview refuses a plan with."""
    with pytest.raises(KinemaError) as caught:
        graph.preview(plan, timeout_s=WAIT_S)
    assert len(caught.value.what) > 10
    return caught.value.code


def code_of(call: object, *arguments: object) -> ErrorCode:
    """The code that a call of the client raises."""
    with pytest.raises(KinemaError) as caught:
        call(*arguments)  # type: ignore[operator]
    assert len(caught.value.what) > 10
    return caught.value.code


READY = {"preview": "ready for a plan", "gate": "closed until a plan is approved"}
"""What a node says of itself once it hears what it needs."""


def wait_until_ready(graph: PreviewClient, *which: str) -> None:
    """Wait until the preview (or `which`) says that it hears what it needs: arm, camera and generator."""
    waited_for = set(which or ("preview",))

    def look(message: Any) -> None:
        for status in message.status:
            name = status.name.rpartition("/")[2]
            if name in waited_for and status.message.startswith(READY[name]):
                waited_for.discard(name)

    graph.listen(names.DIAGNOSTICS, look)
    graph.wait_for(lambda: not waited_for, WAIT_S, f"ready nodes ({', '.join(which) or 'preview'})")


def settle(graph: PreviewClient) -> None:
    """Wait until the arm stands still: over many of its messages, because a loaded machine sends few a second."""
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
