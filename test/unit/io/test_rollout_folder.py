"""Rollouts on disk: bit-exact round trips, files that common tools open, rejected damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
import trimesh
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from PIL import Image
from support.scenes import cast_world, overhead_camera

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.core.outcomes import ObjectMotion, Outcome, patches_between
from kinema4d_ros.core.rollout import Provenance, Rollout


def make(frames: int = 4, width: int = 36, height: int = 24, seed: int = 0) -> Rollout:
    rng = np.random.default_rng(seed)
    camera = overhead_camera(width, height)
    xyz = np.stack([cast_world(camera) for _ in range(frames)])
    xyz += rng.normal(0, 0.001, xyz.shape).astype(np.float32)
    xyz[rng.random(xyz.shape[:3]) < 0.1] = np.nan
    return Rollout(
        rgb=rng.integers(0, 256, xyz.shape, dtype=np.uint8),
        xyz=xyz,
        robot_mask=rng.random(xyz.shape[:3]) < 0.2,
        camera=camera,
        times=np.cumsum(rng.uniform(0.01, 0.3, frames)),
        provenance=Provenance(
            "composite", "plane", "a" * 64, "b" * 64, 2**64 - 1, 0.1 + 0.2, {"numpy": "2.0", "ä": "ö"}
        ),
        plan_hash="c" * 64,
    )


def assert_equal(a: Rollout, b: Rollout) -> None:
    assert np.array_equal(a.rgb, b.rgb)
    assert np.array_equal(a.xyz.view(np.uint32), b.xyz.view(np.uint32))
    assert np.array_equal(a.robot_mask, b.robot_mask)
    assert np.array_equal(a.times, b.times)
    assert np.array_equal(a.camera.K, b.camera.K)
    assert np.array_equal(a.camera.base_T_camera, b.camera.base_T_camera)
    assert (a.camera.frame_id, a.camera.base_frame) == (b.camera.frame_id, b.camera.base_frame)
    assert a.provenance == b.provenance
    assert (a.rollout_id, a.plan_hash) == (b.rollout_id, b.plan_hash)


def with_outcomes(rollout: Rollout) -> Rollout:
    """Three outcomes; the second differs in a region, the third nowhere."""
    basis = np.random.default_rng(3).integers(0, 7, rollout.robot_mask.shape, dtype=np.uint8)
    other, other_basis = rollout.copy(), basis.copy()
    other.rgb[1:, 4:9, 5:11] ^= 0x35
    other.xyz[2, 6:12, 7:9] = np.float32(0.7)
    other.xyz[2, 13, 7] = np.nan
    other.robot_mask[1, 4, 5] ^= True
    other_basis[1:, 4:9, 5:11] = 2
    return replace(
        rollout,
        outcomes=(
            Outcome(0.6, "lifted", ((0.1, "the fingers touch object_1"), (0.2, "object_1 leaves the table"))),
            Outcome(0.25, "slips", (), (ObjectMotion("object_1", (0.1, 0, 0), (0.2, 0, 0), 0.1, 0.1),)),
            Outcome(0.1, "tips over"),
        ),
        alternatives=(
            patches_between(rollout, other, basis, other_basis),
            patches_between(rollout, rollout, basis, basis),
        ),
        basis=basis,
        unknowns=("object_2 is hidden; a second view would help",),
    )


def test_outcomes_round_trip_bit_by_bit(tmp_path: Path) -> None:
    rollout = with_outcomes(make())
    back = Rollout.load(rollout.save(tmp_path / "a"))
    assert_equal(back, rollout)
    assert back.outcomes == rollout.outcomes
    assert back.unknowns == rollout.unknowns
    assert np.array_equal(back.basis, rollout.basis)
    for i in (1, 2):
        found, wanted = back.with_outcome(i), rollout.with_outcome(i)
        assert np.array_equal(found.rgb, wanted.rgb)
        assert np.array_equal(found.xyz.view(np.uint32), wanted.xyz.view(np.uint32))
        assert np.array_equal(found.robot_mask, wanted.robot_mask)
        assert np.array_equal(found.basis, wanted.basis)


def test_a_folder_without_outcomes_is_as_before(tmp_path: Path) -> None:
    folder = make().save(tmp_path / "a")
    meta = json.loads((folder / "meta.json").read_text())
    assert not {"outcomes", "unknowns", "basis"} & set(meta)
    assert not (folder / "outcomes").exists()
    assert not (folder / "basis").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["outcomes"][1].update(probability=0.9), "sum of at most 1"),
        (lambda m: m["outcomes"][0].update(probability="likely"), "probability of an outcome is 'likely'"),
        (lambda m: m["outcomes"][0].update(label=""), "label of an outcome is ''"),
        (lambda m: m["outcomes"][0].pop("events"), "KeyError"),
        (lambda m: m["outcomes"].append({"probability": 0.01, "label": "x", "events": []}), "3.patches"),
        (lambda m: m.update(unknowns=[3]), "unknowns are"),
    ],
)
def test_changed_outcomes_are_refused(tmp_path: Path, change: Callable[[dict], object], message: str) -> None:
    folder = with_outcomes(make()).save(tmp_path / "a")
    meta = json.loads((folder / "meta.json").read_text())
    change(meta)
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(KinemaError) as caught:
        Rollout.load(folder)
    assert message in str(caught.value)


def test_round_trips_are_bit_exact(tmp_path: Path) -> None:
    rollout = make()
    assert rollout.save(tmp_path / "a") == tmp_path / "a"
    assert_equal(Rollout.load(tmp_path / "a"), rollout)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@hypothesis_settings(max_examples=25)
@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=18, max_size=18), frames=st.integers(1, 3))
def test_any_float_round_trips(bits: list[int], frames: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Subnormals, negative zero, infinities and every kind of NaN."""
    camera = overhead_camera(3, 2)
    values = np.array(bits, np.uint32).view(np.float32).reshape(1, 2, 3, 3)
    rollout = Rollout(
        rgb=np.zeros((frames, 2, 3, 3), np.uint8),
        xyz=np.repeat(values, frames, axis=0),
        robot_mask=np.zeros((frames, 2, 3), np.bool_),
        camera=camera,
        times=np.arange(frames) / 3,
        provenance=Provenance("composite"),
    )
    folder = tmp_path_factory.mktemp("any") / "rollout"
    assert_equal(Rollout.load(rollout.save(folder)), rollout)


def test_other_tools_open_the_files(tmp_path: Path) -> None:
    rollout = make(width=64, height=48)
    folder = rollout.save(tmp_path / "a")
    assert np.array_equal(np.asarray(Image.open(folder / "rgb/0002.png")), rollout.rgb[2])
    assert np.array_equal(np.asarray(Image.open(folder / "robot_mask/0001.png")) == 255, rollout.robot_mask[1])
    tiff = cv2.imread(str(folder / "xyz/0003.tiff"), cv2.IMREAD_UNCHANGED)
    assert np.array_equal(tiff[..., ::-1], rollout.xyz[3], equal_nan=True)
    with av.open(str(folder / "preview.mp4")) as video:
        assert sum(1 for _ in video.decode(video=0)) == len(rollout)
    cloud = trimesh.load(folder / "last.ply")
    assert len(cloud.vertices) == np.isfinite(rollout.xyz[-1, ..., 2]).sum()
    camera = read_camera(folder / "camera.yaml")
    assert np.allclose(camera.base_T_camera, rollout.camera.base_T_camera, atol=1e-9)


def test_an_earlier_rollout_is_replaced_and_a_foreign_folder_is_not(tmp_path: Path) -> None:
    make(frames=6, seed=1).save(tmp_path / "a")
    newer = make(frames=2, seed=2)
    assert_equal(Rollout.load(newer.save(tmp_path / "a")), newer)
    assert not (tmp_path / "a/rgb/0005.png").exists()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.txt").write_text("years of work")
    with pytest.raises(FileFormatError) as caught:
        newer.save(tmp_path / "thesis")
    assert caught.value.code == ErrorCode.FILE_NOT_WRITABLE
    assert (tmp_path / "thesis/chapter.txt").read_text() == "years of work"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "name", ["rgb/0001.png", "xyz/0001.tiff", "robot_mask/0001.png", "basis/0001.png", "outcomes/1.patches"]
)
@pytest.mark.parametrize("damage", [cut, flip])
def test_damaged_frames_are_refused_by_name(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    folder = with_outcomes(make()).save(tmp_path / "a")
    damage(folder / name)
    with pytest.raises(FileFormatError, match="not the file that was saved") as caught:
        Rollout.load(folder)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["rgb/0001.png", "xyz/0001.tiff", "robot_mask/0001.png", "meta.json"])
def test_missing_files_are_refused(tmp_path: Path, name: str) -> None:
    folder = make().save(tmp_path / "a")
    (folder / name).unlink()
    with pytest.raises(FileFormatError) as caught:
        Rollout.load(folder)
    assert caught.value.code == ErrorCode.FILE_MISSING


def test_no_folder_and_no_rollout(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="missing"):
        Rollout.load(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileFormatError, match="a file"):
        Rollout.load(tmp_path / "file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format="other"), "says format 'other'"),
        (lambda m: m.pop("times"), "KeyError"),
        (lambda m: m.update(times=[0.0, "x"]), "ValueError"),
        (lambda m: m.update(times=[0.0] * 20000), "times have shape"),
        (lambda m: m.update(sha256=[1, 2]), "TypeError"),
        (lambda m: m["camera"].update(width=-3), "image width is -3"),
        (lambda m: m["camera"].update(K=[[1, 2], [3, 4]]), "camera matrix"),
        (lambda m: m["camera"].update(width=16000, height=16000), "is 36 x 24"),
        (lambda m: m["provenance"].update(surprise=1), "TypeError"),
        (lambda m: m["provenance"].update(seed="lucky"), "seed is 'lucky'"),
        (lambda m: m.update(times=[0.0, 1.0, 2.0, 3.0, 4.0]), "lacks frame 4 of 5"),
    ],
)
def test_changed_descriptions_are_refused(tmp_path: Path, change: Callable[[dict], object], message: str) -> None:
    folder = make().save(tmp_path / "a")
    meta = json.loads((folder / "meta.json").read_text())
    change(meta)
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(FileFormatError) as caught:
        Rollout.load(folder)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "nul", "[" * 100_000])
def test_invalid_meta_files(tmp_path: Path, text: str) -> None:
    folder = make().save(tmp_path / "a")
    (folder / "meta.json").write_text(text)
    with pytest.raises(FileFormatError, match=r"meta\.json"):
        Rollout.load(folder)


def test_a_valid_hash_over_a_wrong_picture_is_refused(tmp_path: Path) -> None:
    folder = make().save(tmp_path / "a")
    meta = json.loads((folder / "meta.json").read_text())
    meta["sha256"]["xyz/0000.tiff"] = meta["sha256"]["rgb/0000.png"]
    (folder / "xyz/0000.tiff").write_bytes((folder / "rgb/0000.png").read_bytes())
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(FileFormatError, match=r"0000\.tiff is uint8"):
        Rollout.load(folder)
