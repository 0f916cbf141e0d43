from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from kinema4d_ros.core.errors import SetupError
from kinema4d_ros.runtime.processes import require_shared_memory, sweep_shared_memory


def segment(folder: Path, digits: str, age_s: float = 60.0) -> Path:
    """Create a segment and its lock as Fast DDS leaves them; return the lock."""
    name = f"fastrtps_{digits * 16}"
    for path in (folder / name, folder / f"{name}_el"):
        path.write_bytes(bytes(10))
        os.utime(path, (path.stat().st_atime - age_s, path.stat().st_mtime - age_s))
    return folder / f"{name}_el"


def test_only_segments_of_dead_processes_are_removed(tmp_path: Path) -> None:
    held = segment(tmp_path, "a")
    segment(tmp_path, "b", age_s=0.0)
    segment(tmp_path, "c")
    others = ["fastrtps_port7411", "fastrtps_port7411_el", "sem.fastrtps_port7411_mutex", "somebody_el"]
    for name in others:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    with held.open() as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        assert sweep_shared_memory(tmp_path) == 1
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {*others, *(f"fastrtps_{d * 16}{end}" for d in "ab" for end in ("", "_el"))}
    assert sweep_shared_memory(tmp_path) == 1
    assert not held.exists()
    assert sweep_shared_memory(tmp_path / "nothing") == 0


def test_full_shared_memory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_shared_memory(tmp_path)
    require_shared_memory(tmp_path / "nowhere")
    full = SimpleNamespace(f_blocks=16, f_bavail=0, f_frsize=4096)
    monkeypatch.setattr("kinema4d_ros.runtime.processes.os.statvfs", lambda _: full)
    with pytest.raises(SetupError, match="is full"):
        require_shared_memory(tmp_path)
