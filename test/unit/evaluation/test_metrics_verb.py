"""`kinema4d metrics` on rollouts and videos, its output files, and bad input."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import av
import numpy as np
import pytest
from support.judge_scenes import CAMERA, pick

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.cli import main
from kinema4d_ros.core.errors import EvaluationError
from kinema4d_ros.core.rollout import Provenance, Rollout
from kinema4d_ros.evaluation import frame_distances, psnr_overall, ssim
from kinema4d_ros.evaluation.compare import Motion, Sight, compare
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.io.video import VideoWriter
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A prediction with the ball left on the table, and the truth with the ball carried."""
    root = tmp_path_factory.mktemp("rollouts")
    for name, carried in (("predicted", False), ("true", True)):
        pick(6, carried=carried, noise=2.0)[0].save(root / name)
    return root / "predicted", root / "true"


def changed(folder: Path, out: Path, **fields) -> Path:
    rollout = Rollout.load(folder)
    parts = {n: getattr(rollout, n) for n in ("rgb", "xyz", "robot_mask", "camera", "times")}
    Rollout(**{**parts, **fields}, provenance=Provenance("changed")).save(out)
    return out


def video(path: Path, frames: np.ndarray) -> Path:
    with VideoWriter(path, 10, frames.shape[2:0:-1]) as writer:
        for frame in frames:
            writer.write(frame)
    return path


def test_table_csv_json_and_video(folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predicted, truth = (Rollout.load(folder) for folder in folders)
    files = {name: tmp_path / f"out.{name}" for name in ("csv", "json", "mp4")}
    code = main(
        ["metrics", *map(str, folders), "--thresholds", "0.01,0.05", "--csv", str(files["csv"]), "--json",
         str(files["json"]), "--video", str(files["mp4"])]
    )  # fmt: skip
    assert code == 0
    table = capsys.readouterr().out
    found = json.loads(files["json"].read_text())
    assert found["overall"]["psnr"] == pytest.approx(psnr_overall(predicted.rgb, truth.rgb))
    assert found["overall"]["ssim"] == pytest.approx(ssim(predicted.rgb, truth.rgb).mean())
    clouds = frame_distances(predicted.xyz, truth.xyz, (0.01, 0.05))
    assert found["overall"]["chamfer_l1"] == pytest.approx(np.mean([c.chamfer_l1 for c in clouds]))
    assert found["overall"]["f_score@0.05"] == pytest.approx(np.mean([c.f_score[1] for c in clouds]))
    assert found["overall"]["psnr_dynamic"] < found["overall"]["psnr"], "what is wrong is where things move"
    assert found["overall"]["robot_iou"] == pytest.approx(1.0, abs=0.2)
    for name in found["overall"]:
        assert name in table
    rows = list(csv.DictReader(files["csv"].open()))
    assert [row["frame"] for row in rows] == list("012345")
    assert rows[0]["chamfer_l1_temp"] == ""
    assert float(rows[5]["chamfer_l1"]) == pytest.approx(clouds[5].chamfer_l1)
    with av.open(str(files["mp4"])) as container:
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(pictures) == 6
    assert pictures[0].shape[1] == 3 * 144 + 2 * 2
    grey = pictures[5][40:60, -100:-60].astype(int)
    assert abs(np.median(grey) - 127) < 8, "where nothing differs the difference is grey"


def test_json_to_the_terminal(folders, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", str(folders[1]), str(folders[1]), "--json", "-"]) == 0
    overall = json.loads(capsys.readouterr().out)["overall"]
    assert (overall["psnr"], overall["ssim"], overall["chamfer_l1"], overall["f_score@0.01"]) == ("inf", 1.0, 0.0, 1.0)
    assert (overall["robot_iou"], overall["robot_depth_error"]) == (1.0, 0.0)


def test_videos_are_compared_by_images_only(folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = Rollout.load(folders[1])
    file = video(tmp_path / "truth.mp4", truth.rgb)
    assert main(["metrics", str(file), str(folders[1]), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["overall"]["psnr"] > 30
    assert "psnr_dynamic" in found["overall"]
    assert "chamfer_l1" not in found["overall"]
    assert "no clouds" in " ".join(found["notes"])
    assert main(["metrics", str(file), str(file)]) == 0
    assert "no dynamic region" in capsys.readouterr().out


def refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


def test_bad_input_is_refused_with_its_reason(folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predicted, truth = map(str, folders)
    rollout = Rollout.load(folders[0])
    short = {n: getattr(rollout, n)[:4] for n in ("rgb", "xyz", "robot_mask", "times")}
    refused([str(changed(folders[0], tmp_path / "short", **short)), truth], "4 frames, the truth 6", capsys)
    small = {n: getattr(rollout, n)[:, :48] for n in ("rgb", "xyz", "robot_mask")}
    cut = changed(folders[0], tmp_path / "small", camera=CAMERA.cropped(0, 0, 144, 48), **small)
    refused([str(cut), truth], "144 x 48", capsys)
    other = CAMERA.posed(CAMERA.base_T_camera @ np.diag([1.0, -1.0, -1.0, 1.0]))
    refused([str(changed(folders[0], tmp_path / "pose", camera=other)), truth], "different cameras", capsys)
    half = rollout.xyz.copy()
    half[2, 5, 7, 1] = np.nan
    refused([str(changed(folders[0], tmp_path / "half", xyz=half)), truth], "partly NaN", capsys)
    refused([predicted, str(tmp_path / "nothing")], "does not exist", capsys)
    (tmp_path / "text.mp4").write_text("not a video")
    refused([predicted, str(tmp_path / "text.mp4")], "cannot be read", capsys)
    refused([predicted, truth, "--thresholds", "near"], "--thresholds is 'near'", capsys)
    refused([predicted, truth, "--thresholds", "-1"], "thresholds are", capsys)
    refused([predicted, truth, "--csv", str(tmp_path / "text.mp4" / "x.csv")], "FILE_NOT_WRITABLE", capsys)


def test_a_frame_without_points_is_left_out_and_reported(folders, tmp_path: Path) -> None:
    rollout = Rollout.load(folders[0])
    xyz, mask = rollout.xyz.copy(), rollout.robot_mask.copy()
    xyz[3], mask[3] = np.nan, False
    empty = Rollout(rollout.rgb, xyz, mask, rollout.camera, rollout.times, rollout.provenance)
    found = compare(Sight.of_rollout(empty), Sight.of_rollout(Rollout.load(folders[1])))
    assert np.isnan(found.frames["chamfer_l1"][3])
    assert np.isfinite(found.overall["chamfer_l1"])
    assert found.counts["chamfer_l1"] == 5
    assert "(5 frames)" in found.table()
    assert json.loads(found.json())["frames"]["chamfer_l1"][3] is None


def test_a_scene_without_a_table_has_no_plausibility_and_a_note(folders) -> None:
    rollout = Rollout.load(folders[0])
    wild = np.random.default_rng(0).normal(0, 0.3, rollout.xyz.shape).astype(np.float32)
    wild[..., 2] = np.abs(wild[..., 2]) + 0.5
    odd = Rollout(rollout.rgb, wild, rollout.robot_mask, rollout.camera, rollout.times, rollout.provenance)
    found = compare(Sight.of_rollout(odd), Sight.of_rollout(Rollout.load(folders[1])))
    assert "vanished" not in found.overall
    assert any("contain no plane" in note for note in found.notes)


def test_the_predicted_robot_is_compared_with_the_exact_one(primitive_arm: Robot, tmp_path: Path) -> None:
    """A robot 4 cm too far away matches nothing; the exact one matches fully; half of it matches half."""
    camera = read_camera(share_path("calibration/demo_lab.yaml")).scaled(96, 64)
    q = np.tile(primitive_arm.home_position(), (3, 1))
    exact = render_pointmaps(primitive_arm, q, camera)
    world = (camera.rays() * 2.0).astype(np.float32)
    xyz = np.where(exact.mask[..., None], exact.xyz, world)
    far = np.where(exact.mask[..., None], exact.xyz * (1 + 0.04 / exact.xyz[..., 2:]), world)
    half = xyz.copy()
    half[2] = np.where(exact.mask[2][..., None] & (np.arange(96) % 2 == 0)[:, None], np.nan, xyz[2])
    found = {}
    for name, points in (("exact", xyz), ("far", far), ("half", half)):
        shown = exact.mask & np.isfinite(points[..., 2])
        rollout = Rollout(
            np.zeros((3, 64, 96, 3), np.uint8), points, shown, camera, np.arange(3) * 0.1, Provenance(name)
        )
        sight = Sight.of_rollout(rollout)
        found[name] = compare(sight, sight, motion=Motion(primitive_arm, q)).overall
    assert found["exact"]["adherence_iou"] == 1
    assert found["exact"]["adherence_depth_error"] == 0
    assert found["far"]["adherence_iou"] == 0
    assert found["far"]["adherence_depth_error"] == pytest.approx(0.04, rel=1e-3)
    assert found["half"]["adherence_missing"] == pytest.approx(0.5 / 3, abs=0.03)
    with pytest.raises(EvaluationError, match="3 frames, the motion 2"):
        compare(sight, sight, motion=Motion(primitive_arm, q[:2]))
    with pytest.raises(EvaluationError, match="video without points"):
        compare(Sight(sight.rgb), sight, motion=Motion(primitive_arm, q))
