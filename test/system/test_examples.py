"""The programs in examples/, run with the commands of their docstrings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str | Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "examples")])}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_preview(tmp_path: Path) -> None:
    out = run("examples/preview.py", "--frames", "5", "--out", tmp_path / "made")
    assert "5 frames in" in out
    assert "warning: No depth was measured" in out
    assert (tmp_path / "made" / "preview.mp4").is_file()


def test_evaluate() -> None:
    out = run("examples/evaluate.py", "--policy", "expert", "--tables", "1", "--frames", "5")
    assert "table 0: lab True, composite " in out
    assert "of 1 verdicts agree" in out


def test_my_robot(tmp_path: Path) -> None:
    out = run("examples/my_robot.py", "--out", tmp_path / "robot.png")
    assert "primitive_arm: joints " in out
    assert (tmp_path / "robot.png").stat().st_size > 1000


def test_my_generator(tmp_path: Path) -> None:
    out = run(
        "-m", "kinema4d_ros.cli", "generate", "--preset", "my_generator:Fading", "--frames", "5",
        "--trajectory", "config/demo/pick_and_place.csv", "--out", tmp_path / "fading",
    )  # fmt: skip
    assert "5 frames" in out
    assert (tmp_path / "fading" / "rgb" / "0004.png").is_file()


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_examples_import_only_the_package_and_numpy(example: str) -> None:
    lines = (ROOT / "examples" / example).read_text().splitlines()
    roots = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert roots <= {"argparse", "dataclasses", "kinema4d_ros", "math", "numpy"}
