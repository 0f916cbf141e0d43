"""Dataset checks on deliberately damaged datasets; statistics and contact sheets of valid ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from kinema4d_model.data.check import check_dataset
from kinema4d_model.data.check_episode import check_episode
from kinema4d_model.data.dataset_folder import DatasetFolder
from kinema4d_model.data.episode import Episode, Outcome, point_bounds
from kinema4d_model.data.episode_files import encode_episode
from kinema4d_model.data.lab_config import load_config, parse_config
from kinema4d_model.data.lab_episode import make_episode
from kinema4d_model.data.overview import choose_episodes, dataset_stats, episode_row, stats_table, write_sheet
from kinema4d_model.data.shards import index_path, open_index, write_shard
from kinema4d_ros.cli import main
from kinema4d_ros.core.errors import DataError


@pytest.fixture(scope="module")
def sound() -> Episode:
    document = {**load_config("nano").document, "frames": 5, "width": 60, "height": 40, "kinds": {"push": 1.0}}
    return make_episode(parse_config(document, "test"), 2, "train", 1)


def write(folder: Path, episodes: dict[str, list[Episode]], promised: int | None = None) -> Path:
    counts = {split: len(found) if promised is None else promised for split, found in episodes.items()}
    DatasetFolder.create(folder, {"name": "test", "splits": counts})
    for split, found in episodes.items():
        write_shard(folder / split / f"{split}-000000.tar", ((e.key, encode_episode(e)) for e in found))
    return folder


def names(folder: Path) -> list[str]:
    return [defect.name for defect in check_dataset(folder)]


def test_a_sound_dataset_has_no_defect(tmp_path: Path, sound: Episode, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "data", {"train": [sound]})
    assert check_dataset(folder) == []
    assert main(["data", "check", str(folder)]) == 0
    assert "no defects" in capsys.readouterr().out


def edit(**changes: object) -> Callable[[Episode], Episode]:
    return lambda episode: replace(episode, **changes)  # type: ignore[arg-type]


def _stretch(episode: Episode) -> Episode:
    times = episode.times.copy()
    times[2:] += 1.0
    return replace(episode, times=times)


def _hole(episode: Episode) -> Episode:
    depth = episode.depth_m.copy()  # type: ignore[union-attr]
    depth[1][episode.robot_mask[1]] = np.nan
    return replace(episode, depth_m=depth)


def _shifted_camera(episode: Episode) -> Episode:
    pose = episode.camera.base_T_camera.copy()
    pose[0, 3] += 0.1
    return replace(episode, camera=episode.camera.posed(pose))


def _flipped_ids(episode: Episode) -> Episode:
    return replace(episode, condition_ids=episode.condition_ids[:, ::-1].copy())  # type: ignore[index]


def _past_limits(episode: Episode) -> Episode:
    return replace(episode, joints=episode.joints + 3.0)  # type: ignore[operator]


def _dark(episode: Episode) -> Episode:
    rgb = episode.rgb.copy()
    rgb[3] = 0
    return replace(episode, rgb=rgb)


def _still_arm(episode: Episode) -> Episode:
    """Move only the gripper, as if no joint name of the arm was matched."""
    q = np.tile(episode.joints[0], (len(episode), 1))  # type: ignore[index]
    q[:, -1] = np.linspace(0.0, 0.03, len(episode))
    return replace(episode, joints=q, actions=q)


def _frozen(episode: Episode) -> Episode:
    return replace(episode, rgb=np.repeat(episode.rgb[:1], len(episode), axis=0))


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (_still_arm, "motion"),
        (_frozen, "motion"),
        (_stretch, "times"),
        (_dark, "rgb"),
        (_hole, "mask"),
        (edit(depth_m=None), "depth"),
        (edit(link_count=99), "ids"),
        (edit(ids=None), "ids"),
        (edit(names=("a",)), "ids"),
        (edit(bounds=np.array([[0.0, 0, 0], [1, 1, 1]])), "bounds"),
        (edit(bounds=None), "bounds"),
        (edit(known_bounds=np.array([[0.0, 0, 0.5], [0.1, 0.1, 0.6]])), "bounds"),
        (edit(condition_ids=None), "condition"),
        (_flipped_ids, "condition"),
        (_shifted_camera, "condition"),
        (_shifted_camera, "outcome"),
        (edit(actions=None), "actions"),
        (_past_limits, "joints"),
        (edit(joint_names=("x",) * 7), "joints"),
        (edit(robot="no_such_robot"), "robot"),
        (edit(outcome=Outcome(None)), "outcome"),
        (edit(task=""), "task"),
    ],
)
def test_defects_of_an_episode_are_named(sound: Episode, damage: Callable[[Episode], Episode], name: str) -> None:
    assert name not in [f.name for f in check_episode(sound)]
    assert name in [f.name for f in check_episode(damage(sound))]


def test_finding_of_a_still_arm_states_motion_and_change(sound: Episode) -> None:
    what = next(f.what for f in check_episode(_still_arm(sound)) if f.name == "motion")
    assert "no joint of the arm moves more than 0.0000" in what
    assert "% of the image changes" in what


def test_without_a_camera_no_robot_is_rendered(sound: Episode) -> None:
    blind = replace(sound, missing=("camera",), condition_ids=None)
    with pytest.raises(DataError, match="no camera"):
        blind.robot_condition()
    seeing, row = episode_row(sound), episode_row(blind)
    width = row.shape[1] // 9
    assert seeing[20:, -width:].any(), "the robot, rendered from its camera"
    assert not row[20:, -width:].any(), "black, not the robot from a camera at the origin"


def test_fields_listed_as_missing_are_no_defect(sound: Episode) -> None:
    bare = replace(
        sound, depth_m=None, actions=None, joints=None, condition_ids=None, bounds=None, known_bounds=None, robot="",
        outcome=Outcome(None), missing=("depth", "actions", "joints", "condition", "outcome"),
    )  # fmt: skip
    assert check_episode(bare) == []


def test_defects_of_folders_and_shards_are_named(tmp_path: Path, sound: Episode) -> None:
    assert [d.name for d in check_dataset(tmp_path / "nowhere")] == ["dataset"]
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "dataset.json").write_text("{")
    assert names(tmp_path / "bad") == ["dataset"]
    assert names(write(tmp_path / "short", {"train": [sound]}, promised=9)) == ["count"]
    twin = replace(sound, key="val-1")
    assert "leak" in names(write(tmp_path / "leak", {"train": [sound], "val": [twin]}))
    assert "duplicate" in names(write(tmp_path / "twice", {"train": [sound], "val": [sound]}))

    folder = write(tmp_path / "cut", {"train": [sound]})
    shard = folder / "train" / "train-000000.tar"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-6000])
    assert {"index", "shard", "count"} <= set(names(folder))
    shard.write_bytes(whole)
    index_path(shard).write_text("[]")
    assert names(folder) == ["index"]

    damaged = bytearray(whole)
    damaged[whole.index(b"matroska") + 400] ^= 255
    shard.write_bytes(bytes(damaged))
    write_index_of(shard, whole)
    assert names(folder) == ["damaged"]


def write_index_of(shard: Path, whole: bytes) -> None:
    other = shard.parent / "other" / shard.name
    other.parent.mkdir()
    other.write_bytes(whole)
    open_index(other)
    document = json.loads(index_path(other).read_text())
    index_path(shard).write_text(json.dumps(document))
    for path in other.parent.iterdir():
        path.unlink()
    other.parent.rmdir()


def test_defects_of_files_are_named(tmp_path: Path, sound: Episode, capsys: pytest.CaptureFixture[str]) -> None:
    files = encode_episode(sound)

    def folder(name: str, changed: dict[str, bytes]) -> Path:
        DatasetFolder.create(tmp_path / name, {"name": name, "splits": {"train": 1}})
        write_shard(tmp_path / name / "train" / "train-000000.tar", [(sound.key, changed)])
        return tmp_path / name

    document = json.loads(files["json"])
    frames = json.dumps({**document, "frames": 4}).encode()
    assert names(folder("json", {**files, "json": b"{"})) == ["json"]
    assert names(folder("frames", {**files, "json": frames})) == ["fields"]
    assert names(folder("gone", {k: v for k, v in files.items() if k != "ids.mkv"})) == ["stream"]
    assert names(folder("broken", {**files, "ids.mkv": files["ids.mkv"][:200]})) == ["stream"]
    assert names(folder("swapped", {**files, "rgb.mkv": b"video?"})) == ["stream"]
    other = json.dumps({**document, "key": "somebody-else"}).encode()
    assert "key" in names(folder("key", {**files, "json": other}))
    assert main(["data", "check", str(tmp_path / "gone")]) == 1
    assert "ids.mkv is missing" in capsys.readouterr().out


def test_statistics_and_sheets(tmp_path: Path, sound: Episode, capsys: pytest.CaptureFixture[str]) -> None:
    assert sound.outcome.success
    at_rest = [replace(o, base_T_object=np.repeat(o.base_T_object[:1], len(sound), 0)) for o in sound.outcome.objects]
    failed = replace(sound, key="train-000009", outcome=replace(sound.outcome, success=False, objects=tuple(at_rest)))
    folder = write(tmp_path / "data", {"train": [sound, failed], "val": []})
    stats = dataset_stats(folder)
    train = stats["splits"]["train"]
    assert train["episodes"] == 2
    assert train["tasks"] == {"push": {"episodes": 2, "share": 1.0, "successes": int(bool(sound.outcome.success))}}
    assert train["frames"] == [5.0, 5.0, 5.0]
    assert "push" in stats_table(stats)
    assert main(["data", "stats", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(stats))

    row = episode_row(sound)
    assert row.shape == (12 + 96, 9 * 144, 3)
    assert main(["data", "sheet", str(folder), "--out", str(tmp_path / "sheet.png"), "--count", "2"]) == 0
    picture = cv2.imread(str(tmp_path / "sheet.png"))
    assert picture is not None
    assert picture.shape == (2 * (12 + 96), 9 * 144, 3)
    page = write_sheet([sound], tmp_path / "sheet.html").read_text()
    assert page.count("<img") == 1
    assert sound.key in page
    assert list(choose_episodes(folder, "train", 4, "pick")) == []
    for bad in (lambda: write_sheet([], tmp_path / "x.png"), lambda: write_sheet([sound], tmp_path / "x.gif")):
        with pytest.raises(DataError):
            bad()
    with pytest.raises(DataError, match="no episodes"):
        list(choose_episodes(folder, "val", 4))


def test_bounds_need_a_finite_point() -> None:
    with pytest.raises(DataError, match="no finite point"):
        point_bounds(np.full((2, 3), np.nan, np.float32))
