from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kinema4d_ros
from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.io.resources import share_directory, share_path

PACKAGE = Path(kinema4d_ros.__file__).resolve().parent
SHOW = "from kinema4d_ros.io.resources import share_path; print(share_path('urdf/a.urdf'))"


def test_data_files_are_found() -> None:
    assert (share_directory() / "urdf").is_dir()
    assert share_path("calibration/demo_lab.yaml").is_file()


def test_a_missing_file_is_named() -> None:
    with pytest.raises(FileFormatError, match=r"urdf/none\.urdf is missing") as caught:
        share_path("urdf/none.urdf")
    assert caught.value.code == ErrorCode.FILE_MISSING


def run_installed(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of the package without its checkout, as pip or colcon would install it."""
    site = tmp_path / "site"
    site.mkdir()
    for name in ("__init__.py", "core/__init__.py", "core/errors.py", "io/__init__.py", "io/resources.py"):
        copy = site / "kinema4d_ros" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text((PACKAGE / name).read_text())
    env = {**os.environ, "PYTHONPATH": str(site), "AMENT_PREFIX_PATH": "", **environment}
    return subprocess.run(
        [sys.executable, "-c", SHOW], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_an_ament_prefix_is_searched(tmp_path: Path) -> None:
    urdf = tmp_path / "prefix" / "share" / "kinema4d_ros" / "urdf" / "a.urdf"
    urdf.parent.mkdir(parents=True)
    urdf.write_text("<robot/>")
    prefixes = os.pathsep.join([str(tmp_path / "other"), str(tmp_path / "prefix")])
    result = run_installed(tmp_path, AMENT_PREFIX_PATH=prefixes)
    assert result.stdout.strip() == str(urdf), result.stderr


def test_an_install_without_data_lists_the_searched_folders(tmp_path: Path) -> None:
    if (Path(sys.prefix) / "share" / "kinema4d_ros" / "urdf").is_dir():
        pytest.skip("the data files are installed in this environment's own prefix")
    result = run_installed(tmp_path, AMENT_PREFIX_PATH=str(tmp_path / "prefix"))
    assert result.returncode != 0
    assert "FILE_MISSING" in result.stderr
    assert str(tmp_path / "prefix" / "share" / "kinema4d_ros") in result.stderr
