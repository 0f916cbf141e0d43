from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kinema4d_ros.core.errors import CalibrationError, ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.io.files import (
    read_bytes,
    read_yaml,
    reading,
    replacing_file,
    replacing_folder,
    swap,
    write_yaml,
    writing,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_complete_and_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.txt"
    with replacing_file(target) as temporary:
        assert temporary.suffix == ".txt"
        temporary.write_text("one")
        assert not target.exists()
    assert target.read_text() == "one"
    assert names(target.parent) == ["a.txt"]


def test_an_error_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail() -> None:
        with replacing_file(target) as temporary:
            temporary.write_text("half")
            raise KeyError("stop")

    with pytest.raises(KeyError):
        fail()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    target = tmp_path / "file" / "sub" / "a.txt"

    def write() -> None:
        with replacing_file(target) as temporary:
            temporary.write_text("x")

    with pytest.raises(FileFormatError, match=r"a\.txt cannot be written") as caught:
        write()
    assert caught.value.code == ErrorCode.FILE_NOT_WRITABLE
    with pytest.raises(FileFormatError) as caught, replacing_folder(target, lambda _: True):
        pass
    assert caught.value.code == ErrorCode.FILE_NOT_WRITABLE


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="No space left") as caught, replacing_file(tmp_path / "a.txt"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.code == ErrorCode.FILE_NOT_WRITABLE


def test_errors_of_the_block_pass_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"input\.bin"), replacing_file(tmp_path / "a.txt"):
        (tmp_path / "input.bin").read_bytes()
    with pytest.raises(ConnectionError), replacing_folder(tmp_path / "folder", lambda _: True):
        raise ConnectionError("unrelated")
    assert names(tmp_path) == []


def test_a_folder_replaces_only_empty_ones_and_its_own(tmp_path: Path) -> None:
    target = tmp_path / "out"

    def is_ours(folder: Path) -> bool:
        return (folder / "mine").exists()

    def write(text: str) -> None:
        with replacing_folder(target, is_ours) as folder:
            (folder / "mine").write_text(text)

    target.mkdir()
    write("1")
    (target / "extra").write_text("of an older version")
    write("2")
    assert names(tmp_path) == ["out"]
    assert names(target) == ["mine"]
    assert (target / "mine").read_text() == "2"

    (target / "mine").unlink()
    (target / "thesis.tex").write_text("years of work")
    with pytest.raises(FileFormatError, match="holds something else") as caught:
        write("3")
    assert caught.value.code == ErrorCode.FILE_NOT_WRITABLE
    assert (target / "thesis.tex").read_text() == "years of work"


def test_a_file_in_the_place_of_a_folder_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with (
        pytest.raises(FileFormatError, match="holds something else"),
        replacing_folder(tmp_path / "out", lambda _: True),
    ):
        pass
    assert (tmp_path / "out").read_text() == "a file"


def test_a_failed_folder_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with replacing_folder(target, lambda _: True) as folder:
        (folder / "a").write_text("old")

    def fail() -> None:
        with replacing_folder(target, lambda _: True) as folder:
            (folder / "a").write_text("new")
            raise KeyError("stop")

    with pytest.raises(KeyError):
        fail()
    assert (target / "a").read_text() == "old"
    assert names(tmp_path) == ["out"]


_KILLED = """
import os, signal, sys
from pathlib import Path
from kinema4d_ros.io.files import replacing_file, replacing_folder
with replacing_file(sys.argv[1]) as file, replacing_folder(sys.argv[2], lambda _: True) as folder:
    file.write_text("half")
    (folder / "a").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_temporary_files_of_killed_writers_are_removed_by_the_next(tmp_path: Path) -> None:
    file, folder = tmp_path / "a [1].txt", tmp_path / "out"
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", _KILLED, str(file), str(folder)], check=False, timeout=120)
        assert done.returncode == -signal.SIGKILL
        assert len(names(tmp_path)) == 2, "only the last one's"
    others = [tmp_path / ".b.txt", tmp_path / ".a [1].00000000-1-0123456789ab.txt"]
    for path in others:
        path.write_text("not ours to remove: another file, another machine")
    with replacing_file(file) as mine, replacing_file(file) as second:
        mine.write_text("one")
        second.write_text("two")
        assert mine.is_file(), "its writer lives"
    with replacing_folder(folder, lambda _: True) as temporary:
        (temporary / "a").write_text("whole")
    assert names(tmp_path) == sorted([*(path.name for path in others), "a [1].txt", "out"])


def test_folders_are_swapped_atomically(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    (one / "first").touch()
    (other / "second").touch()
    assert swap(one, other)
    assert (names(one), names(other)) == (["second"], ["first"])
    assert not swap(one, tmp_path / "nothing")
    assert names(one) == ["second"]


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"none\.yaml does not exist") as caught:
        read_yaml(tmp_path / "none.yaml")
    assert caught.value.code == ErrorCode.FILE_MISSING
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_bytes(tmp_path)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"a: [1, 2", "is not YAML"),
        (b"a: \xff\xfe", "is not YAML"),
        (b"- 1\n- 2\n", "holds list"),
        (b"", "holds NoneType"),
        (b"1: 2", "holds dict"),
        (b"a: !!python/object/apply:os.getcwd []", "is not YAML"),
        (b"%YAML:1.0\n---\nK: !!opencv-matrix\n  rows: 3\n", "is not YAML"),
        (b"[" * 20000, "is not YAML"),
        (b"a: " + b"x" * 1_000_001, "has 1000004 bytes"),
    ],
)
def test_what_is_not_plain_yaml_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=why) as caught:
        read_yaml(path)
    assert caught.value.code == ErrorCode.FILE_MALFORMED
    assert "bad.yaml" in str(caught.value)


def test_yaml_round_trips_in_order_and_full_precision(tmp_path: Path) -> None:
    document = {"z": 0.1 + 0.2, "a": [1e-17, 3], "name": "Gerät", "empty": {}}
    write_yaml(tmp_path / "a.yaml", document, "first\nsecond")
    assert read_yaml(tmp_path / "a.yaml") == document
    text = (tmp_path / "a.yaml").read_text(encoding="utf-8")
    assert text.startswith("# first\n# second\nz: ")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_disk_errors_of_rust_libraries_name_the_target(tmp_path: Path, number: int) -> None:
    target = tmp_path / "weights.safetensors"
    target.write_bytes(b"as it was")

    def write() -> None:
        with replacing_file(target) as temporary:
            temporary.write_bytes(b"half")
            raise ValueError(f"Error while serializing: I/O error: {os.strerror(number)} (os error {number})")

    with pytest.raises(KinemaError, match=os.strerror(number)) as caught:
        write()
    assert caught.value.code == ErrorCode.FILE_NOT_WRITABLE
    assert str(target) in caught.value.what
    assert names(tmp_path) == [target.name]
    assert target.read_bytes() == b"as it was"


@pytest.mark.parametrize("text", ["a bug", "No such file or directory (os error 2)"])
def test_other_errors_of_a_block_are_not_converted(tmp_path: Path, text: str) -> None:
    def write() -> None:
        with writing(tmp_path / "a"):
            raise ValueError(text)

    with pytest.raises(ValueError, match=re.escape(text)):
        write()


def test_an_error_inside_a_folder_names_the_target_folder(tmp_path: Path) -> None:
    target = tmp_path / "result"

    def write() -> None:
        with replacing_folder(target, lambda path: False) as temporary:
            (temporary / "camera.yaml").mkdir()
            write_yaml(temporary / "camera.yaml", {"a": 2})

    with pytest.raises(KinemaError) as caught:
        write()
    assert caught.value.code == ErrorCode.FILE_NOT_WRITABLE
    assert caught.value.what.startswith(str(target / "camera.yaml"))


def test_pipes_and_devices_are_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name, what in (("pipe", "a pipe"), ("zero", "a device")):
        with pytest.raises(FileFormatError, match=f"{name} cannot be read: it is {what}"):
            read_bytes(tmp_path / name)


def test_parser_exceptions_become_errors_that_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(FileFormatError, match=r"a\.txt cannot be read: IndexError: no 7"), reading(path, "a text"):
        raise IndexError("no 7")
    with pytest.raises(CalibrationError, match=r"a\.txt: the lens is bent") as caught, reading(path, "a text"):
        raise CalibrationError("the lens is bent", code=ErrorCode.CAMERA_BAD_DISTORTION)
    assert caught.value.code is ErrorCode.CAMERA_BAD_DISTORTION


def test_errors_are_shortened_and_escaped() -> None:
    text = str(FileFormatError("a\x1b[31mb\ud800" + "x" * 100_000))
    text.encode()
    assert "\x1b" not in text
    assert len(text) < 2000
