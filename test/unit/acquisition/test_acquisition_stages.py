"""Cached stages: run once, run again when their inputs change, and never left incomplete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kinema4d_ros.acquisition.stages import STAMP, StageRunner, hash_files, read_json
from kinema4d_ros.core.errors import FileFormatError


def work(text: str):
    def write(folder: Path) -> None:
        (folder / "result.txt").write_text(text)

    return write


def chain(out: Path, first: int = 1, second: int = 1, third: int = 1) -> StageRunner:
    runner = StageRunner(out)
    runner.run(1, "a", {"x": first}, (), work(f"a{first}"))
    runner.run(2, "b", {"x": second}, ("a",), work(f"b{second}"))
    runner.run(3, "c", {"x": third}, ("a",), work(f"c{third}"))
    return runner


def test_second_run_reuses_all_stages(tmp_path: Path) -> None:
    assert chain(tmp_path / "out").made == ["a", "b", "c"]
    before = (tmp_path / "out/2_b" / STAMP).stat().st_mtime_ns
    assert chain(tmp_path / "out").made == []
    assert (tmp_path / "out/2_b" / STAMP).stat().st_mtime_ns == before
    assert json.loads((tmp_path / "out/2_b" / STAMP).read_text())["options"] == {"x": 1}


def test_changed_option_reruns_dependent_stages(tmp_path: Path) -> None:
    chain(tmp_path)
    assert chain(tmp_path, second=2).made == ["b"]
    assert (tmp_path / "2_b/result.txt").read_text() == "b2"
    assert chain(tmp_path, first=2, second=2).made == ["a", "b", "c"]


def test_interrupted_stage_leaves_nothing_and_runs_again(tmp_path: Path) -> None:
    runner = StageRunner(tmp_path)
    runner.run(1, "a", {}, (), work("a"))

    def breaks(folder: Path) -> None:
        (folder / "half.txt").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run(2, "b", {}, ("a",), breaks)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1_a"]
    again = StageRunner(tmp_path)
    again.run(1, "a", {}, (), work("a"))
    folder = again.run(2, "b", {}, ("a",), work("b"))
    assert again.made == ["b"]
    assert (folder / "result.txt").read_text() == "b"


def test_broken_stamp_reruns_the_stage(tmp_path: Path) -> None:
    chain(tmp_path)
    (tmp_path / "2_b" / STAMP).write_text("{ nonsense")
    assert chain(tmp_path).made == ["b"]


def test_foreign_folders_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "1_a").mkdir()
    (tmp_path / "1_a/precious.txt").write_text("mine")
    with pytest.raises(FileFormatError, match="holds something else"):
        chain(tmp_path)
    assert (tmp_path / "1_a/precious.txt").read_text() == "mine"
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(FileFormatError, match="is a file"):
        StageRunner(file)


def test_hashes_depend_on_names_and_contents(tmp_path: Path) -> None:
    for name, text in (("a", "1"), ("b", "2")):
        (tmp_path / name).write_text(text)
    first = hash_files([tmp_path])
    assert first == hash_files([tmp_path])
    (tmp_path / "b").write_text("3")
    assert hash_files([tmp_path]) != first
    (tmp_path / "b").write_text("2")
    (tmp_path / "b").rename(tmp_path / "c")
    assert hash_files([tmp_path]) != first
    with pytest.raises(FileFormatError, match="cannot be read"):
        hash_files([tmp_path / "none"])
    (tmp_path / "bad.json").write_text("[1,")
    with pytest.raises(FileFormatError, match="is not JSON"):
        read_json(tmp_path / "bad.json")
