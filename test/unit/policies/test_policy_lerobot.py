"""A LeRobot Diffusion Policy, saved by LeRobot and loaded from its folder; and invalid folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.policies import EpisodeStart, Observation, PolicyError
from kinema4d_ros.policies.registry import make_policy
from kinema4d_ros.robot import Robot

torch = pytest.importorskip("torch", reason="learned policies need torch")

from kinema4d_model.policies.lerobot_policy import find_lerobot  # noqa: E402

INSTALLED = find_lerobot()
needs_lerobot = pytest.mark.skipif(not INSTALLED, reason="LeRobot is optional: make setup-lerobot")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, yam: Robot) -> Path:
    """A Diffusion Policy with LeRobot's own classes and small sizes, as LeRobot saves it; its weights are random."""
    from kinema4d_model.policies.lerobot_policy import policy_class

    kind = policy_class("diffusion")
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.policies.diffusion.processor_diffusion import make_diffusion_pre_post_processors

    torch.manual_seed(0)
    config = DiffusionConfig(
        device="cpu",
        n_obs_steps=2,
        horizon=8,
        n_action_steps=4,
        input_features={
            "observation.image": PolicyFeature(FeatureType.VISUAL, (3, 32, 48)),
            "observation.state": PolicyFeature(FeatureType.STATE, (7,)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (7,))},
        down_dims=(16, 32),
        diffusion_step_embed_dim=16,
        spatial_softmax_num_keypoints=4,
        crop_shape=None,
        noise_scheduler_type="DDIM",
        num_inference_steps=2,
    )
    policy = kind(config)
    home = torch.tensor(yam.home_position(), dtype=torch.float32)
    span = {"min": home - 0.05, "max": home + 0.05}
    picture = {"mean": torch.full((3, 1, 1), 0.5), "std": torch.full((3, 1, 1), 0.25)}
    stats = {"observation.state": span, "action": span, "observation.image": picture}
    folder = tmp_path_factory.mktemp("lerobot") / "dp"
    policy.save_pretrained(folder)
    for processor in make_diffusion_pre_post_processors(config, dataset_stats=stats):
        processor.save_pretrained(folder)
    return folder


def seen(robot: Robot) -> Observation:
    camera = read_camera(share_path("calibration/demo_lab.yaml")).scaled(180, 120)
    image = np.random.default_rng(0).integers(0, 255, (120, 180, 3), dtype=np.uint8)
    return Observation(image, camera, robot.home_position(), 0.05, 0.0)


@needs_lerobot
def test_a_saved_policy_acts_within_its_normalisation(saved: Path, yam: Robot) -> None:
    policy = make_policy(f"lerobot:{saved},hz=20")
    assert policy.name == "lerobot:dp"
    policy.reset(EpisodeStart(yam, seed=1))
    first = policy.act(seen(yam))
    np.testing.assert_allclose(first.times, [0.05, 0.1, 0.15, 0.2])
    assert first.joints is not None
    # Its normalisation puts every action within 0.05 of home, with clipped samples.
    assert np.abs(first.joints - yam.home_position()).max() <= 0.051
    policy.reset(EpisodeStart(yam, seed=1))
    torch.randn(5)  # other random draws have no effect
    np.testing.assert_array_equal(policy.act(seen(yam)).joints, first.joints)
    policy.reset(EpisodeStart(yam, seed=2))
    assert np.any(policy.act(seen(yam)).joints != first.joints)
    policy.close()
    with pytest.raises(PolicyError, match="no episode"):
        policy.act(seen(yam))


@needs_lerobot
def test_options_change_the_chunk_the_view_and_the_end(saved: Path, yam: Robot) -> None:
    one = make_policy(f"lerobot:{saved},steps=1,view=workspace,limit_s=0.05")
    one.reset(EpisodeStart(yam))
    chunk = one.act(seen(yam))
    assert len(chunk.times) == 1
    assert chunk.done


@needs_lerobot
def test_another_robot_and_another_type_are_refused(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "hinge.urdf").write_text(
        '<robot name="hinge"><link name="base"/><link name="door"/><joint name="turn" type="revolute">'
        '<parent link="base"/><child link="door"/><axis xyz="0 0 1"/>'
        '<limit lower="-1" upper="1" effort="1" velocity="1"/></joint></robot>'
    )
    with pytest.raises(PolicyError, match="state of 7 and action of 7 numbers, robot 'hinge' has 1 joints"):
        make_policy(f"lerobot:{saved}").reset(EpisodeStart(Robot.load(tmp_path / "hinge.urdf")))
    copy = Path(shutil.copytree(saved, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "type": "telepathy"}))
    with pytest.raises(PolicyError, match="telepathy") as caught:
        make_policy(f"lerobot:{copy}")
    assert "diffusion" in caught.value.expected


@needs_lerobot
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "policy_preprocessor.json"])
def test_broken_files_are_refused(saved: Path, tmp_path: Path, name: str) -> None:
    copy = Path(shutil.copytree(saved, tmp_path / "copy"))
    (copy / name).write_bytes((copy / name).read_bytes()[:40])
    with pytest.raises(PolicyError) as caught:
        make_policy(f"lerobot:{copy}")
    assert caught.value.code == ErrorCode.POLICY_UNAVAILABLE


@needs_lerobot
def test_a_processor_may_not_name_foreign_classes(saved: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(saved, tmp_path / "copy"))
    document = json.loads((copy / "policy_postprocessor.json").read_text())
    document["steps"].append({"class": "subprocess.Popen", "config": {}})
    (copy / "policy_postprocessor.json").write_text(json.dumps(document))
    with pytest.raises(PolicyError, match=r"subprocess\.Popen"):
        make_policy(f"lerobot:{copy}")


def test_missing_folders(tmp_path: Path) -> None:
    for spec in ("lerobot", f"lerobot:{tmp_path / 'nowhere'}", f"lerobot:{tmp_path}"):
        with pytest.raises(PolicyError, match=r"has no config\.json") as caught:
            make_policy(spec)
        assert caught.value.code == ErrorCode.POLICY_UNAVAILABLE


@pytest.mark.parametrize(
    "options", [{"view": "upside-down"}, {"gripper": "claw"}, {"hz": 0}, {"steps": -1}, {"limit_s": -1}]
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, Any]) -> None:
    from kinema4d_model.policies.lerobot_policy import FILES, LerobotPolicy

    for name in FILES:
        (tmp_path / name).write_text("{}")
    with pytest.raises(PolicyError, match=next(iter(options))) as caught:
        LerobotPolicy(str(tmp_path), **options)
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID


@pytest.mark.skipif(INSTALLED, reason="LeRobot is installed")
def test_without_lerobot_the_command_that_installs_it_is_named(tmp_path: Path) -> None:
    from kinema4d_model.policies.lerobot_policy import FILES

    for name in FILES:
        (tmp_path / name).write_text("{}")
    with pytest.raises(PolicyError, match="LeRobot is not installed") as caught:
        make_policy(f"lerobot:{tmp_path}")
    assert caught.value.hint == "make setup-lerobot"
