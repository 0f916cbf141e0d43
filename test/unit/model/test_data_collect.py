"""Interrupted imports, resumed with the same or other options or another source; held-out scenes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.recordings import waving

from kinema4d_model.data.check import check_dataset
from kinema4d_model.data.dataset_folder import DatasetFolder
from kinema4d_model.data.episode import Episode
from kinema4d_model.data.importers.build import build_episode
from kinema4d_model.data.importers.collect import Item, collect
from kinema4d_model.data.importers.recording import Unusable
from kinema4d_model.data.importers.run import held_out, split_of, splitter
from kinema4d_ros.core.errors import DataError

NAMES = [f"n{i}" for i in range(6)] + ["bad"]


@pytest.fixture(scope="module")
def episode() -> Episode:
    return build_episode(waving(), frames=3, width=24, height=16)


class Source:
    """Items with a list of those that were loaded."""

    def __init__(self, episode: Episode, stop: str = "") -> None:
        self.episode, self.stop, self.loaded = episode, stop, list[str]()

    def __call__(self, names: list[str]) -> Iterator[Item]:
        for name in names:
            yield Item(name, split_of(name, 0.5), lambda name=name: self._load(name))  # type: ignore[misc]

    def _load(self, name: str) -> Episode:
        self.loaded.append(name)
        if name == self.stop:
            raise KeyboardInterrupt
        if name == "bad":
            raise Unusable("too dark")
        shift = int(name[1:])
        return replace(self.episode, key=name, rgb=(self.episode.rgb // 2) + shift)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_an_interrupted_import_resumes_with_the_same_bytes_and_reasons(tmp_path: Path, episode: Episode) -> None:
    source = Source(episode)
    whole, refused = collect(source(NAMES), tmp_path / "whole", "toy", shard_episodes=2)
    assert refused == {"bad": "too dark"}
    assert sum(whole.document["splits"].values()) == 6
    assert {split_of(n, 0.5) for n in NAMES} == {"train", "val"}
    assert sorted(source.loaded) == sorted(NAMES)
    assert check_dataset(tmp_path / "whole", redraw=False) == []

    again = Source(episode)
    _, refused = collect(again(NAMES), tmp_path / "whole", "toy", shard_episodes=2)
    assert again.loaded == [], "nothing is read again"
    assert refused == {"bad": "too dark"}, "the reasons are kept"

    stopped = Source(episode, stop=NAMES[4])
    with pytest.raises(KeyboardInterrupt):
        collect(stopped(NAMES), tmp_path / "stopped", "toy", shard_episodes=2)
    assert not (tmp_path / "stopped" / "dataset.json").exists()
    assert not list((tmp_path / "stopped").rglob(".*.tar")), "no incomplete shards"
    rest = Source(episode)
    collect(rest(NAMES), tmp_path / "stopped", "toy", shard_episodes=2)
    assert len(rest.loaded) < len(NAMES)
    assert files(tmp_path / "stopped") == files(tmp_path / "whole")


def test_other_options_and_other_sources_are_refused_by_name(tmp_path: Path, episode: Episode) -> None:
    source = Source(episode)
    options = {"width": 24, "lifter": ""}
    dataset, _ = collect(source(NAMES), tmp_path / "d", "toy", shard_episodes=2, options=options)
    assert dataset.document["options"]["width"] == 24
    before = files(tmp_path / "d")
    with pytest.raises(DataError, match=r"another lifter .*shipped.*, width \(24, now 48\)"):
        collect(source(NAMES), tmp_path / "d", "toy", shard_episodes=2, options={"width": 48, "lifter": "shipped"})
    with pytest.raises(DataError, match="another shard_episodes"):
        collect(source(NAMES), tmp_path / "d", "toy", shard_episodes=3, options=options)
    for other in (["n9", *NAMES], [*NAMES[:-1], "n8"], [*NAMES, "n7", "n8", "n9"]):
        with pytest.raises(DataError, match="other recordings"):
            collect(source(other), tmp_path / "d", "toy", shard_episodes=2, options=options)
    assert files(tmp_path / "d") == before
    (tmp_path / "d" / "import.json").write_text("{")
    with pytest.raises(DataError, match=r"import\.json cannot be used"):
        collect(source(NAMES), tmp_path / "d", "toy", shard_episodes=2, options=options)
    with pytest.raises(DataError, match="nothing to import"):
        collect([], tmp_path / "e", "toy")
    assert not (tmp_path / "e").exists()


def test_a_missing_or_damaged_shard_is_written_again(tmp_path: Path, episode: Episode) -> None:
    source = Source(episode)
    collect(source(NAMES), tmp_path / "d", "toy", shard_episodes=2)
    before = files(tmp_path / "d")
    shards = DatasetFolder.open(tmp_path / "d").shards("train")
    shards[0].unlink()
    shards[1].write_bytes(b"cut")
    again = Source(episode)
    collect(again(NAMES), tmp_path / "d", "toy", shard_episodes=2)
    assert 0 < len(again.loaded) <= 4
    assert files(tmp_path / "d") == before


def test_whole_scenes_are_held_out_by_share_or_by_number() -> None:
    assert split_of("x", 0.0) == "train"
    assert split_of("x", 1.0) == "val"
    episodes = {f"room{i}": 10 + i for i in range(50)}
    for wanted in (0, 9, 100, 333):
        chosen = held_out(episodes, wanted)
        total = sum(episodes[s] for s in chosen)
        assert wanted - 60 < total <= wanted
    assert held_out({"only": 5}, 5) == frozenset(), "one scene stays for training"
    assert held_out(episodes, 100) == held_out(dict(reversed(episodes.items())), 100)
    split = splitter(0.5, 100, lambda: episodes)
    assert {s for s in episodes if split(s) == "val"} == held_out(episodes, 100)
