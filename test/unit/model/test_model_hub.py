"""Tests of fetching weights with the real client from a hub on loopback: listing, resuming, hashes, errors."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support.small_hub import COMMIT, SmallHub

from kinema4d_model.checkpoints.hub import RemoteFile, fetch, list_remote
from kinema4d_model.checkpoints.manifest import check_manifest
from kinema4d_model.preset import load_preset
from kinema4d_model.preset_parts import WeightSource
from kinema4d_ros.cli import main
from kinema4d_ros.core.errors import ErrorCode, FileFormatError, SetupError

SOURCE = WeightSource("act", "owner/name", ("ckpt/*.safetensors",))
FILES = {"ckpt/a.safetensors": bytes(range(256)) * 40, "ckpt/b.safetensors": b"b" * 999, "ckpt/notes.txt": b"no"}


@pytest.fixture
def hub() -> Iterator[SmallHub]:
    with SmallHub(dict(FILES)).serve() as running:
        yield running


def downloads(hub: SmallHub) -> list[tuple[str, str]]:
    """Return (file, range) of every requested body."""
    mark = f"/resolve/{COMMIT}/"
    return [(path.split(mark)[1], part) for method, path, part in hub.requests if method == "GET" and mark in path]


def test_the_list_has_sizes_and_only_files_named_in_the_preset(hub: SmallHub) -> None:
    commit, files = list_remote(SOURCE, endpoint=hub.endpoint)
    assert commit == COMMIT
    assert [(f.name, f.bytes) for f in files] == [("ckpt/a.safetensors", 10240), ("ckpt/b.safetensors", 999)]
    assert isinstance(files[0], RemoteFile)
    assert all(len(f.sha256) == 64 for f in files)


def test_files_are_fetched_once_with_a_manifest(hub: SmallHub, tmp_path: Path) -> None:
    said: list[str] = []
    folder = fetch(SOURCE, tmp_path, endpoint=hub.endpoint, say=said.append)
    assert folder == tmp_path / "ckpt"
    for name in ("a.safetensors", "b.safetensors"):
        assert (folder / name).read_bytes() == FILES[f"ckpt/{name}"]
    assert not (folder / "notes.txt").exists()
    assert set(check_manifest(folder).files) == {"a.safetensors", "b.safetensors"}
    assert "2 files" in said[0]

    hub.requests.clear()
    fetch(SOURCE, tmp_path, endpoint=hub.endpoint, say=said.append)
    assert downloads(hub) == []
    assert "are already present" in said[-1]

    (folder / "b.safetensors").write_bytes(b"b" * 990)
    fetch(SOURCE, tmp_path, endpoint=hub.endpoint)
    assert (folder / "b.safetensors").read_bytes() == FILES["ckpt/b.safetensors"]
    assert [name for name, _ in downloads(hub)] == ["ckpt/b.safetensors"]


def test_into_puts_a_source_below_the_model_s_folder(hub: SmallHub, tmp_path: Path) -> None:
    base = WeightSource("base", "owner/name", ("*",), into="base")
    hub.files["vae/config.json"] = b"{}"
    assert fetch(base, tmp_path, endpoint=hub.endpoint) == tmp_path / "base"
    assert set(check_manifest(tmp_path / "base").files) == {*FILES, "vae/config.json"}


def test_an_interrupted_download_is_resumed(hub: SmallHub, tmp_path: Path) -> None:
    mega = 1024 * 1024
    hub.files["ckpt/a.safetensors"] = bytes(range(256)) * (13 * mega // 256)
    hub.break_after = 12 * mega
    folder = fetch(SOURCE, tmp_path, endpoint=hub.endpoint)
    assert (folder / "a.safetensors").read_bytes() == hub.files["ckpt/a.safetensors"]
    parts = [part for name, part in downloads(hub) if name == "ckpt/a.safetensors"]
    assert parts[0] == ""
    assert int(parts[1].removeprefix("bytes=").split("-")[0]) >= 10 * mega


def test_a_file_that_differs_from_its_hash_is_named(hub: SmallHub, tmp_path: Path) -> None:
    hub.corrupt = "ckpt/a.safetensors"
    with pytest.raises(FileFormatError, match=r"a\.safetensors has another sha256 than the hub's"):
        fetch(SOURCE, tmp_path, endpoint=hub.endpoint)


def test_a_repository_without_these_files_is_named(hub: SmallHub) -> None:
    source = WeightSource("pm", "owner/name", ("pm/*",))
    with pytest.raises(FileFormatError, match=r"owner/name at main has none of pm/\*") as caught:
        list_remote(source, endpoint=hub.endpoint)
    assert caught.value.code is ErrorCode.FILE_MISSING


def test_a_repository_that_does_not_exist_is_named(hub: SmallHub) -> None:
    with pytest.raises(SetupError, match="owner/other cannot be fetched: there is no such repository"):
        list_remote(WeightSource("act", "owner/other", ("*",)), endpoint=hub.endpoint)


@pytest.mark.parametrize(
    ("repo", "into"), [("../../etc", "."), ("owner/name/extra", "."), ("owner/name", "../x"), ("owner/name", "/x")]
)
def test_a_preset_cannot_write_outside_its_folder(repo: str, into: str) -> None:
    with pytest.raises(FileFormatError, match="cannot be fetched"):
        list_remote(WeightSource("act", repo, ("*",), into=into))


def test_a_full_disk_is_detected_before_the_download(hub: SmallHub, tmp_path: Path) -> None:
    info = hub.info()
    info["siblings"] = [{"rfilename": "ckpt/a.safetensors", "size": 10**18, "lfs": None}]
    hub.info = lambda: info  # type: ignore[method-assign]
    with pytest.raises(FileFormatError, match=r"the download needs 1000000000\.0 GB") as caught:
        fetch(SOURCE, tmp_path, endpoint=hub.endpoint)
    assert caught.value.code is ErrorCode.FILE_NOT_WRITABLE
    assert downloads(hub) == []


@pytest.fixture
def preset_file(tmp_path: Path) -> Path:
    import yaml

    from kinema4d_model.config_files import plain

    document = plain(load_preset("tiny"))
    document["weights"] = [{"role": "act", "repo": "owner/name", "files": ["ckpt/*.safetensors"]}]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document))
    return tmp_path / "mine.yaml"


def test_an_unreachable_hub_gives_a_one_line_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(SetupError, match=r"owner/name cannot be fetched: .*[Cc]onnect"):
        list_remote(SOURCE, endpoint=endpoint)


def test_the_command_checks_existing_files(
    hub: SmallHub, preset_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["fetch-weights", "--preset", str(preset_file), "--out", str(tmp_path / "model"), "--check"]
    assert main(command) == 2
    assert "no weights for preset 'tiny'" in capsys.readouterr().err
    command += ["--role", "act"]
    assert main(command) == 1
    assert "nothing here has a manifest" in capsys.readouterr().out
    fetch(SOURCE, tmp_path / "model", endpoint=hub.endpoint)
    assert main(command) == 0
    assert "2 files" in capsys.readouterr().out
    manifest = tmp_path / "model" / "ckpt" / "manifest.json"
    document = json.loads(manifest.read_text())
    document["files"]["a.safetensors"]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(document))
    assert main(command) == 2
    assert "another sha256" in capsys.readouterr().err


def test_the_flow_shift_of_the_base_is_fetched() -> None:
    (base,) = (source for source in load_preset("wan14b").weights if source.role == "base")
    assert any(fnmatch("scheduler/scheduler_config.json", pattern) for pattern in base.files)


def test_the_command_names_the_roles_a_preset_has(preset_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch-weights", "--preset", str(preset_file), "--role", "init"]) == 2
    assert "expected one of its roles: act" in capsys.readouterr().err
