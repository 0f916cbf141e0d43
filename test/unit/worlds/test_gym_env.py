"""Worlds as Gymnasium environments, checked with Gymnasium's own `check_env`."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from kinema4d_ros.core.errors import EvaluationError
from kinema4d_ros.lab.scripted import pick_plan
from kinema4d_ros.worlds.gym_env import WorldEnv, lab_env, model_env

SMALL = {"width": 60, "limit_s": 12.0}


@pytest.mark.parametrize("name", ["kinema4d/Lab-v0", "kinema4d/Model-v0"])
@pytest.mark.filterwarnings("ignore:.*Box observation space .*infinity")
@pytest.mark.filterwarnings("ignore:.*For Box action spaces, we recommend")
def test_check_env_accepts_the_world(name: str) -> None:
    options = {"model": "composite", "frames": 3, "width": 120} if "Model" in name else {}
    check_env(gymnasium.make(name, render_mode="rgb_array", **{**SMALL, **options}).unwrapped)


def follow(env: WorldEnv, scene: int) -> list[tuple[float, bool, dict]]:  # type: ignore[type-arg]
    """Step through the scripted pick of a scene."""
    env.reset(options={"scene": scene})
    state = env._world.scene.truth
    assert state is not None
    plan = pick_plan(state, state.target, env._world.kinematics)
    steps = []
    for k in range(1, 60):
        _, reward, ended, truncated, info = env.step(plan.at(min(k * 0.2, plan.duration_s))[0].astype(np.float32))
        steps.append((reward, ended, info))
        if ended or truncated:
            break
    return steps


def test_a_scripted_pick_earns_the_whole_progress_and_ends_the_episode() -> None:
    env = lab_env(**SMALL)  # type: ignore[arg-type]
    steps = follow(env, 3)
    _, ended, info = steps[-1]
    assert ended
    assert info["success"] is True
    assert info["error"] == ""
    assert sum(r for r, _, _ in steps) == pytest.approx(1.0)
    assert not any(one["shortened"] for _, _, one in steps)
    assert env.render() is None
    with pytest.raises(EvaluationError, match="reset before step"):
        env.step(env.action_space.sample())


def test_an_environment_may_have_hidden_physics() -> None:
    env = lab_env(width=60, profile="hidden")
    drawn = []
    for scene in (3, 4):
        env.reset(options={"scene": scene})
        drawn.append(env._world.lab.constants.delay_s)  # type: ignore[attr-defined]
    assert drawn[0] != drawn[1]


def test_too_fast_actions_are_shortened_and_episodes_truncated() -> None:
    env = lab_env(width=60, limit_s=0.6, reward="success", rate_hz=5.0)
    first, _ = env.reset(options={"scene": 3})
    far = env.action_space.high.copy()  # type: ignore[attr-defined]
    ends = []
    for _ in range(3):
        seen, reward, ended, truncated, info = env.step(far)
        assert info["shortened"]
        assert (reward, ended, info["error"]) == (0.0, False, "")
        ends.append(truncated)
    assert ends == [False, False, True]
    assert np.abs(seen["joints"] - first["joints"]).max() > 0.3


def test_a_world_model_is_an_environment_too() -> None:
    env = model_env("composite", frames=3, width=120, limit_s=1.0)
    first, info = env.reset(options={"scene": 3})
    assert info["instruction"].startswith("pick up the")
    seen, _, ended, _, info = env.step(env.action_space.high)  # type: ignore[attr-defined]
    assert not ended
    assert np.abs(seen["image"].astype(int) - first["image"]).max() > 40
    small = model_env("composite", frames=3, width=24, limit_s=1.0)
    small.reset(options={"scene": 3})
    _, _, ended, _, info = small.step(small.action_space.high)  # type: ignore[attr-defined]
    assert ended
    assert info["success"] is None
    assert "points in the first frame" in info["error"]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"rate_hz": 0.0}, "rate_hz 0"), ({"reward": "love"}, "reward 'love'"), ({"render_mode": "human"}, "render_mode")],
)
def test_invalid_options(options: dict[str, object], words: str) -> None:
    with pytest.raises(EvaluationError, match=words):
        lab_env(width=60, **options)  # type: ignore[arg-type]
