"""Tests of `kinema4d generate` and `kinema4d cost` without ROS."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.official_files import write_official, write_wan

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.preset import load_preset
from kinema4d_ros.cli import doctor as health
from kinema4d_ros.cli import main
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.io.resources import share_path


def test_generate_writes_a_rollout_with_its_details(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kinema4d_ros.calibration import read_camera
    from kinema4d_ros.io.images import write_image

    ModelBundle.from_preset("tiny", seed=1).save_pretrained(tmp_path / "weights")
    camera = read_camera(share_path("calibration/demo_lab.yaml"))
    picture = np.random.default_rng(0).integers(0, 256, (camera.height, camera.width, 3), dtype=np.uint8)
    write_image(tmp_path / "image.png", picture)
    out = tmp_path / "out"
    code = main(
        [
            "generate", "--image", str(tmp_path / "image.png"), "--trajectory",
            str(share_path("config/demo/pick_and_place.csv")), "--camera",
            str(share_path("calibration/demo_lab.yaml")), "--preset", "tiny", "--checkpoint", str(tmp_path / "weights"),
            "--frames", "3", "--seeds", "2", "--seed", "5", "--steps", "1", "--device", "cpu", "--out", str(out),
        ]
    )  # fmt: skip
    assert code == 0
    rollout = Rollout.load(out)
    assert len(rollout) == 3
    assert rollout.camera.width == camera.width
    assert rollout.provenance.preset == "tiny"
    assert rollout.provenance.seed == 5
    assert "1 steps" in rollout.provenance.versions["recipe"]
    details = json.loads((tmp_path / "out_details.json").read_text())
    assert details["passes"] == 2
    assert len(details["chunks"]) == 1
    assert details["chunks"][0]["metric"]["pixels"] > 0
    with np.load(tmp_path / "out_confidence.npz") as confidence:
        assert confidence["confidence"].shape == rollout.robot_mask.shape
    assert (tmp_path / "out_clearance.png").is_file()
    assert "chunk 0" in capsys.readouterr().out


def test_missing_weights_end_with_the_command_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trajectory = str(share_path("config/demo/pick_and_place.csv"))
    arguments = ["--preset", "wan14b", "--checkpoint", str(tmp_path / "none"), "--out", str(tmp_path / "out")]
    assert main(["generate", "--trajectory", trajectory, *arguments]) == 2
    told = capsys.readouterr().err
    assert str(tmp_path / "none") in told
    assert "kinema4d fetch-weights --preset wan14b" in told
    assert not (tmp_path / "out").exists()


def test_the_base_without_an_adapter_is_refused_unless_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_wan(load_preset("tiny"), tmp_path / "model" / "base")
    command = [
        "generate", "--trajectory", str(share_path("config/demo/pick_and_place.csv")), "--preset", "tiny",
        "--checkpoint", str(tmp_path / "model"), "--frames", "3", "--steps", "1", "--device", "cpu",
        "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "holds the base model and no adapter" in told
    assert "--allow-base" in told
    assert not (tmp_path / "out").exists()
    assert main([*command, "--allow-base"]) == 0
    warning = "The base model without the 'act' adapter was used."
    assert f"warning: {warning}" in capsys.readouterr().out
    said = Rollout.load(tmp_path / "out").provenance.versions
    assert said["warning"] == warning
    assert said["variant"] == "act"
    assert said["flow shift"] == "3 (base 3)"
    assert said["weights"].startswith("base of ")


def test_fetch_weights_and_doctor_check_a_folder_as_generate_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wan(load_preset("tiny"), tmp_path / "tiny" / "base")
    check = ["fetch-weights", "--preset", "tiny", "--out", str(tmp_path / "tiny"), "--check"]
    assert main(check) == 2
    assert "holds the base model and no adapter" in capsys.readouterr().err
    monkeypatch.setenv("KINEMA4D_CHECKPOINTS", str(tmp_path))
    assert health._checkpoints().status == "optional"
    assert "holds the base model and no adapter" in health._checkpoints().detail
    write_official(tmp_path / "tiny" / "kinema4d_ckpt", ModelBundle.from_preset("tiny").transformer)
    assert main(check) == 0
    assert "fits preset 'tiny': variant act; weights base of " in capsys.readouterr().out
    assert health._checkpoints().status == "ok"


def test_cost_prints_stages_and_the_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--preset", "tiny", "--steps", "3", "--quantise", "int8"]) == 0
    table = capsys.readouterr().out
    assert "3 steps x 1 pass, float32, int8 weights" in table
    assert "times fewer FLOPs" in table
    assert main(["cost", "--preset", "tiny", "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["rollout"]["stages"]["transformer"]["runs"] == 2
    assert numbers["official"]["stages"]["transformer"]["runs"] == 100


@pytest.mark.parametrize("bad", [["--size", "big"], ["--frames", "10"], ["--preset", "giant"]], ids=lambda b: b[0])
def test_bad_arguments_are_refused(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--preset", "tiny", *bad]) == 2
    assert "kinema4d: [" in capsys.readouterr().err
