"""Invalid chunks, invalid specs, and policies that hang, crash or return invalid answers."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.policies import ActionChunk, EpisodeStart, Observation, Policy, PolicyError
from kinema4d_ros.policies.guard import GuardedPolicy
from kinema4d_ros.policies.registry import PolicySpec, make_policy, policy_kinds
from kinema4d_ros.robot import Robot

CAMERA = PinholeCamera(4, 3, [[4, 0, 2], [0, 4, 1.5], [0, 0, 1]])


def seen(joints: Any) -> Observation:
    return Observation(np.zeros((3, 4, 3), np.uint8), CAMERA, np.asarray(joints, float), 0.05, 0.0)


class Scripted:
    """Policy that behaves as configured, correctly or not."""

    def __init__(self, act: Any) -> None:
        self._act = act

    @property
    def name(self) -> str:
        return "scripted"

    def reset(self, start: EpisodeStart) -> None:
        self._seed = start.seed

    def act(self, observation: Observation) -> Any:
        return self._act(observation)

    def close(self) -> None:
        self._act = None


@pytest.mark.parametrize(
    "fields",
    [
        {"times": [0.1, 0.1], "joints": np.zeros((2, 7))},
        {"times": [0.0, 0.1], "joints": np.zeros((2, 7))},
        {"times": [], "joints": np.zeros((0, 7))},
        {"times": [0.1], "joints": np.full((1, 7), np.nan)},
        {"times": [np.inf], "joints": np.zeros((1, 7))},
        {"times": [0.1], "joints": np.zeros(7)},
        {"times": [0.1]},
        {"times": [0.1], "joints": np.zeros((1, 7)), "base_T_tool": np.eye(4)[None]},
        {"times": [0.1], "base_T_tool": np.eye(4)[None]},
        {"times": [0.1], "base_T_tool": np.eye(3)[None], "gripper_m": [0.1]},
        {"times": [0.1], "joints": [["left"] * 7]},
    ],
)
def test_chunks_that_are_no_motion(fields: dict[str, Any]) -> None:
    with pytest.raises(PolicyError) as caught:
        ActionChunk(**fields)
    assert caught.value.code == ErrorCode.POLICY_BAD_ACTION
    assert caught.value.expected


def test_joints_become_a_trajectory_from_the_start_position(yam: Robot) -> None:
    kinematics = choose_kinematics(yam)
    home = yam.home_position()
    chunk = ActionChunk([0.1, 0.3], home + np.array([[0.01], [0.02]]))
    made = chunk.trajectory(kinematics, home)
    assert made.times.tolist() == [0.0, 0.1, 0.3]
    np.testing.assert_array_equal(made.positions, [home, home + 0.01, home + 0.02])
    assert ActionChunk([], np.zeros((0, 7)), done=True).trajectory(kinematics, home).positions.tolist() == [list(home)]
    with pytest.raises(PolicyError, match="3 joints"):
        ActionChunk([0.1], np.zeros((1, 3))).trajectory(kinematics, home)


def test_poses_become_joints_that_reach_them(yam: Robot) -> None:
    kinematics = choose_kinematics(yam)
    home = yam.home_position()
    pose = np.array([[1, 0, 0, 0.3], [0, -1, 0, 0.0], [0, 0, -1, 0.15], [0, 0, 0, 1.0]])
    made = ActionChunk([0.5], base_T_tool=pose[None], gripper_m=[0.05]).trajectory(kinematics, home)
    assert made.positions.shape == (2, len(yam.joint_names))
    tool = [link.name for link in yam.links].index(yam.tool_link)
    np.testing.assert_allclose(kinematics.forward(made.positions[-1])[tool], pose, atol=2e-4)


@pytest.mark.parametrize("text", ["", ":", "expert:", "a=", "=expert", "expert:offset_m=1,offset_m=2", "expert:a=1,b"])
def test_invalid_specs(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        PolicySpec.parse(text)
    assert caught.value.code == ErrorCode.POLICY_UNAVAILABLE


def test_specs_with_sources_and_labels() -> None:
    assert PolicySpec.parse("remote:127.0.0.1:8000").options == {"source": "127.0.0.1:8000"}
    assert PolicySpec.parse("replay:a=b.npz").options == {"a": "b.npz"}
    spec = PolicySpec.parse("mine=replay:runs/a,b.npz")
    assert (spec.label, spec.text, spec.options) == ("mine", "replay:runs/a,b.npz", {"source": "runs/a,b.npz"})
    spec = PolicySpec.parse("lerobot:runs/dp,steps=8,deterministic=true")
    assert spec.options == {"source": "runs/dp", "steps": 8, "deterministic": True}


def test_a_kind_that_nobody_registered() -> None:
    with pytest.raises(PolicyError, match="telepathy") as caught:
        make_policy("telepathy")
    assert caught.value.code == ErrorCode.POLICY_UNAVAILABLE
    assert all(kind in caught.value.expected for kind in policy_kinds())


def test_a_good_answer_passes_the_guard(yam: Robot) -> None:
    chunk = ActionChunk([0.1], yam.home_position()[None])
    guarded = GuardedPolicy(Scripted(lambda _: chunk))
    assert isinstance(guarded, Policy)
    guarded.reset(EpisodeStart(yam))
    assert guarded.act(seen(yam.home_position())) is chunk
    guarded.close()
    assert not guarded.lost


def test_a_policy_that_raises_or_answers_with_garbage(yam: Robot) -> None:
    def fail(_: Observation) -> None:
        raise ZeroDivisionError("no grasp")

    dying = GuardedPolicy(Scripted(fail))
    with pytest.raises(PolicyError, match="ZeroDivisionError in 'act': no grasp") as caught:
        dying.act(seen(yam.home_position()))
    assert caught.value.code == ErrorCode.POLICY_FAILED
    babbling = GuardedPolicy(Scripted(lambda _: [1, 2, 3]))
    with pytest.raises(PolicyError, match="answered with list") as caught:
        babbling.act(seen(yam.home_position()))
    assert caught.value.code == ErrorCode.POLICY_BAD_ACTION
    assert not babbling.lost


def test_a_policy_that_hangs_is_lost_and_nobody_waits_for_it_again(yam: Robot) -> None:
    release = threading.Event()
    hanging = GuardedPolicy(Scripted(lambda _: release.wait(60)), act_timeout_s=0.05)
    for _ in range(2):
        with pytest.raises(PolicyError, match=r"did not answer 'act' within 0.05 s") as caught:
            hanging.act(seen(yam.home_position()))
        assert caught.value.code == ErrorCode.POLICY_TIMEOUT
    assert hanging.lost
    hanging.close()
    release.set()
