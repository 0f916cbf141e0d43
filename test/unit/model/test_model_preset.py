from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from kinema4d_model.config_files import plain
from kinema4d_model.preset import Preset, load_preset, preset_names, save_preset
from kinema4d_model.preset_parts import Ablation
from kinema4d_ros.core.errors import ErrorCode, FileFormatError


@pytest.mark.parametrize("name", preset_names())
def test_shipped_presets_round_trip_through_yaml(name: str, tmp_path: Path) -> None:
    preset = load_preset(name)
    assert preset.name == name
    save_preset(preset, tmp_path / "copy.yaml")
    assert load_preset(tmp_path / "copy.yaml") == preset


def test_wan14b_has_the_released_sizes() -> None:
    p = load_preset("wan14b")
    assert (p.frames, p.height, p.width) == (49, 480, 720)
    assert (p.latent_frames, p.latent_height, p.latent_width) == (13, 60, 90)
    assert (p.transformer.layers, p.transformer.width, p.transformer.ffn_dim) == (40, 5120, 13824)
    assert p.robot.position_grid == (13, 4, 6)
    assert (p.codec.xyz_mean, p.codec.xyz_std) == (-0.17, 1.36)
    assert (p.sampler.kind, p.sampler.steps, p.sampler.shift, p.sampler.guidance_scale) == ("unipc", 50, 3.0, 5.0)
    assert p.lora is not None
    assert p.lora.alpha / p.lora.rank == 0.5
    assert len(p.codec.latents_mean) == len(p.codec.latents_std) == 16
    assert {w.role: w.repo for w in p.weights} == {
        "base": "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers",
        "act": "Minoday/Kinema4D",
        "pm": "Minoday/Kinema4D",
        "init": "FrozenBurning/4DNex-Lora",
    }


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(FileFormatError, match=", ".join(preset_names())) as caught:
        load_preset("giant")
    assert caught.value.code is ErrorCode.FILE_MISSING
    assert {"nano", "tiny", "wan14b"} <= set(preset_names())


def test_every_wrong_key_of_a_file_is_named_at_once(tiny: Preset, tmp_path: Path) -> None:
    document = plain(tiny)
    document["colour"] = "red"
    del document["frames"]
    document["transformer"]["layers"] = "two"
    document["robot"]["variant"] = "arm"
    document["condition"]["ablation"] = "everything"
    document["robot"]["position_grid"] = [1, 2]
    document["codec"]["is_residual"] = 1
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(FileFormatError) as caught:
        load_preset(tmp_path / "bad.yaml")
    for part in (
        "unknown key colour",
        "missing key frames",
        "transformer.layers is 'two', not of type int",
        "robot.variant is 'arm', not one of act, pm",
        "condition.ablation is 'everything', not one of rgb_pointmap",
        "robot.position_grid is [1, 2], not a list of 3",
        "codec.is_residual is 1, not of type bool",
    ):
        assert part in caught.value.what


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"frames": 8}, "frames 8 is not 1 + a multiple of 4"),
        ({"height": 40}, "height 40 is not a multiple of 16"),
        ({"width": 0}, "width 0 is not a multiple of 16"),
        ({"image_encoder": None}, "must be set together"),
        ({"transformer": {"in_channels": 35}}, "in_channels 35"),
        ({"transformer": {"head_dim": 5}}, "head_dim 5"),
        ({"transformer": {"image_tokens": 6}}, "image_encoder outputs 5 tokens of 32"),
        ({"transformer": {"patch": (2, 2, 2)}}, "merges frames"),
        ({"codec": {"latents_mean": (0.0,) * 17}}, "hold 17 and 16 values"),
        ({"codec": {"xyz_std": 0.0}}, "not positive"),
        ({"condition": {"soft_ratio": 1.5}}, "soft_ratio 1.5"),
        ({"condition": {"ablation": Ablation.EMBEDDING}}, "needs robot.action_dim"),
        ({"sampler": {"steps": 0}}, "sampler.steps"),
    ],
)
def test_inconsistent_sizes_are_refused(tiny: Preset, change: dict[str, object], words: str) -> None:
    parts = {
        name: dataclasses.replace(getattr(tiny, name), **value) if isinstance(value, dict) else value
        for name, value in change.items()
    }
    with pytest.raises(FileFormatError, match="preset 'tiny' is inconsistent") as caught:
        dataclasses.replace(tiny, **parts)
    assert words in caught.value.what
