from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError, PointmapError
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.io.store import load_pointmaps, save_pointmaps

Make = Callable[..., PointmapSequence]


@pytest.mark.parametrize("rgb", [True, False])
def test_lossless_is_lossless(tmp_path: Path, make_sequence: Make, rgb: bool) -> None:
    sequence = make_sequence(rgb=rgb)
    save_pointmaps(tmp_path / "a", sequence, lossless=True)
    back = load_pointmaps(tmp_path / "a")
    np.testing.assert_array_equal(back.xyz, sequence.xyz)
    np.testing.assert_array_equal(back.link_ids, sequence.link_ids)
    np.testing.assert_array_equal(back.times, sequence.times)
    np.testing.assert_allclose(back.camera.K, sequence.camera.K, rtol=1e-14)
    if sequence.rgb is None:
        assert back.rgb is None
    else:
        np.testing.assert_array_equal(back.rgb, sequence.rgb)


def test_the_depth_error_is_at_most_a_twentieth_of_a_millimetre(tmp_path: Path, make_sequence: Make) -> None:
    sequence = make_sequence()
    save_pointmaps(tmp_path / "a", sequence)
    back = load_pointmaps(tmp_path / "a")
    np.testing.assert_array_equal(back.link_ids, sequence.link_ids)
    np.testing.assert_array_equal(back.rgb, sequence.rgb)
    error = np.nanmax(np.abs(back.xyz - sequence.xyz))
    assert 1e-5 < error <= 0.5e-4 + 4e-7


def test_common_tools_open_the_folder(tmp_path: Path, make_sequence: Make) -> None:
    sequence = make_sequence()
    save_pointmaps(tmp_path / "a", sequence, link_names=["base", "tip"])
    depth = np.asarray(Image.open(tmp_path / "a" / "depth" / "00001.png")).astype(np.float64) * 1e-4
    np.testing.assert_allclose(depth[sequence.mask[1]], sequence.xyz[1, ..., 2][sequence.mask[1]], atol=0.51e-4)
    assert not depth[~sequence.mask[1]].any()
    ids = np.asarray(Image.open(tmp_path / "a" / "link_ids" / "00002.png"))
    np.testing.assert_array_equal(ids, sequence.link_ids[2])
    meta = json.loads((tmp_path / "a" / "meta.json").read_text())
    assert meta["link_names"] == ["base", "tip"]
    assert meta["times_s"] == pytest.approx([0.0, 0.1, 0.2])
    assert read_camera(tmp_path / "a" / "camera.yaml").width == 31

    save_pointmaps(tmp_path / "b", sequence, lossless=True)
    points = np.load(tmp_path / "b" / "points.npz")["points"]
    np.testing.assert_array_equal(points, sequence.xyz[sequence.mask])


def test_saving_again_replaces_the_older_result(tmp_path: Path, make_sequence: Make) -> None:
    save_pointmaps(tmp_path / "a", make_sequence(frames=5), lossless=True)
    save_pointmaps(tmp_path / "a", make_sequence(frames=2, rgb=False))
    assert len(load_pointmaps(tmp_path / "a")) == 2
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["camera.yaml", "depth", "link_ids", "meta.json"]
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_other_content_is_not_touched(tmp_path: Path, make_sequence: Make) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "meta.json").write_text('{"format": "something else"}')
    with pytest.raises(FileFormatError, match="something else") as caught:
        save_pointmaps(tmp_path / "a", make_sequence())
    assert caught.value.code == ErrorCode.FILE_NOT_WRITABLE
    assert (tmp_path / "a" / "meta.json").read_text() == '{"format": "something else"}'


def test_a_sequence_that_cannot_be_saved_leaves_nothing(tmp_path: Path, make_sequence: Make) -> None:
    sequence = make_sequence()
    far = replace(sequence, xyz=sequence.xyz * 10)
    with pytest.raises(PointmapError, match="do not fit"):
        save_pointmaps(tmp_path / "a", far)
    broken = replace(sequence, xyz=np.full_like(sequence.xyz, np.nan))
    with pytest.raises(PointmapError):
        save_pointmaps(tmp_path / "a", broken, lossless=True)
    assert list(tmp_path.iterdir()) == []
    save_pointmaps(tmp_path / "a", far, lossless=True)
    np.testing.assert_array_equal(load_pointmaps(tmp_path / "a").xyz, far.xyz)


def test_without_times(tmp_path: Path, make_sequence: Make) -> None:
    save_pointmaps(tmp_path / "a", replace(make_sequence(), times=None))
    assert load_pointmaps(tmp_path / "a").times is None


def edit_meta(folder: Path, **changes: Any) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, **changes}))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"format": "x"}, ErrorCode.FILE_MALFORMED),
        ({"version": 2}, ErrorCode.FILE_UNSUPPORTED),
        ({"encoding": "jpeg"}, ErrorCode.FILE_MALFORMED),
        ({"frames": 0}, ErrorCode.FILE_MALFORMED),
        ({"frames": 10**9}, ErrorCode.FILE_MALFORMED),
        ({"frames": 4, "times_s": None}, ErrorCode.FILE_MISSING),
        ({"frames": "3"}, ErrorCode.FILE_MALFORMED),
        ({"width": 30}, ErrorCode.FILE_MALFORMED),
        ({"depth_unit_m": 0.0}, ErrorCode.FILE_MALFORMED),
        ({"depth_unit_m": "a"}, ErrorCode.FILE_MALFORMED),
        ({"has_rgb": 1}, ErrorCode.FILE_MALFORMED),
        ({"times_s": [0.0]}, ErrorCode.FILE_MALFORMED),
        ({"times_s": ["a", "b", "c"]}, ErrorCode.FILE_MALFORMED),
        ({"times_s": [2.0, 1.0, 0.0]}, ErrorCode.POINTMAP_BAD_INPUT),
        ({"encoding": "float32"}, ErrorCode.FILE_MISSING),
    ],
)
def test_a_changed_description_is_refused(
    tmp_path: Path, make_sequence: Make, changes: dict[str, Any], code: ErrorCode
) -> None:
    save_pointmaps(tmp_path / "a", make_sequence())
    edit_meta(tmp_path / "a", **changes)
    with pytest.raises(KinemaError) as caught:
        load_pointmaps(tmp_path / "a")
    assert caught.value.code == code


@pytest.mark.parametrize("lossless", [False, True])
def test_every_missing_or_truncated_file_is_refused(tmp_path: Path, make_sequence: Make, lossless: bool) -> None:
    save_pointmaps(tmp_path / "a", make_sequence(), lossless=lossless)
    files = [p for p in (tmp_path / "a").rglob("*") if p.is_file()]
    assert len(files) == (9 if lossless else 11)
    for file in files:
        data = file.read_bytes()
        file.unlink()
        with pytest.raises(KinemaError, match=file.name) as caught:
            load_pointmaps(tmp_path / "a")
        assert caught.value.code == ErrorCode.FILE_MISSING
        file.write_bytes(data[: len(data) // 2])
        with pytest.raises(KinemaError):
            load_pointmaps(tmp_path / "a")
        file.write_bytes(data)
    load_pointmaps(tmp_path / "a").check_points()


def test_points_that_do_not_belong_are_refused(tmp_path: Path, make_sequence: Make) -> None:
    sequence = make_sequence()
    save_pointmaps(tmp_path / "a", sequence, lossless=True)
    points = sequence.xyz[sequence.mask]
    broken = points.copy()
    broken[0] = np.nan
    for other in (points[:-1], np.concatenate([points] * 9), points.astype(np.float64), broken, np.array(["x"])):
        np.savez_compressed(tmp_path / "a" / "points.npz", points=other)
        with pytest.raises(KinemaError):
            load_pointmaps(tmp_path / "a")
    np.savez(tmp_path / "a" / "points.npz", points=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(FileFormatError, match="damaged"):
        load_pointmaps(tmp_path / "a")


def test_an_invalid_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"meta\.json does not exist"):
        load_pointmaps(tmp_path / "none")
    (tmp_path / "meta.json").write_text("not json")
    with pytest.raises(FileFormatError, match="not JSON"):
        load_pointmaps(tmp_path)
