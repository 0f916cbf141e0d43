"""Every package that is installed for users and tests is pinned and has hashes; quality tools are pinned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "requirements"
HASHED = ("lock.txt", "model-lock.txt", "bench-lock.txt", "lerobot.txt", "assets.txt")
NOT_HASHED = {"overrides.txt", "model-overrides.txt", "quality.txt"}
"""The resolver's overrides install nothing; the quality tools touch nothing that is shipped."""
CONSTRAINTS = {"constraints-noble.txt"}


def entries(text: str) -> list[str]:
    """Requirements with their continuation lines joined, without comments."""
    joined = re.sub(r"\\\n", " ", text)
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def test_every_file_is_known() -> None:
    assert {path.name for path in FOLDER.glob("*.txt")} == {*HASHED, *NOT_HASHED, *CONSTRAINTS}


@pytest.mark.parametrize("name", HASHED)
def test_every_line_is_pinned_and_hashed(name: str) -> None:
    found = entries((FOLDER / name).read_text())
    assert found
    for line in found:
        assert re.match(r"^[A-Za-z0-9._\[\],-]+==[A-Za-z0-9.+!-]+(\s|$)", line), f"not pinned: {line[:80]}"
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", line), f"no hash: {line[:80]}"


def test_a_line_without_a_hash_would_be_seen() -> None:
    assert entries("# c\na==1 \\\n  --hash=sha256:00\nb==2\n") == ["a==1    --hash=sha256:00", "b==2"]


def test_quality_tools_are_pinned() -> None:
    for line in entries((FOLDER / "quality.txt").read_text()):
        assert re.fullmatch(r"[a-z-]+==[0-9.]+", line)


def test_pip_is_told_to_check_the_hashes() -> None:
    """Hashes that are not checked protect against nothing."""
    text = (FOLDER.parent / "tools" / "bootstrap.py").read_text()
    assert 'locked = ("--no-deps", "--require-hashes", "-r")' in text
    variables = dict(re.findall(r'(\w+) = ROOT / "requirements" / "([a-z-]+\.txt)"', text))
    assert set(variables.values()) == set(HASHED)
    for variable, name in variables.items():
        assert re.search(rf"\*locked, str\({variable}\)", text), f"{name} is installed without its hashes"
