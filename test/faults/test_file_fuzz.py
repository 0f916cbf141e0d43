"""Damaged files: every reader refuses them with a clear error that names the file, or reads what is still whole.

The readers are a table in `support.file_readers` and `support.file_readers_model`; the damage is seeded and in
`support.file_mutations`. Each case has 10 seconds and 1 GB, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.figures import Figures
from support.file_readers import CORE
from support.file_readers_model import MODEL
from support.fuzz_files import LIMIT_BYTES, LIMIT_S, Outcome, fuzz

pytestmark = pytest.mark.timeout(3600)
"""Hundreds of processes of xacro take a while on a busy machine; each case has its own, short limit."""

TABLES = {"support.file_readers:CORE": CORE, "support.file_readers_model:MODEL": MODEL}
READERS = [reader.name for reader in CORE] + [pytest.param(reader.name, marks=pytest.mark.full) for reader in MODEL]
CASES, FEW = 300, 20


@pytest.fixture(scope="module")
def outcome_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """A reader's outcome. In full each has a process of its own; else one serves a table: importing takes longer."""
    full = request.config.getoption("--full")
    wanted = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    found: dict[str, Outcome] = {}

    def outcome(name: str) -> Outcome:
        if name not in found:
            table = next(t for t, readers in TABLES.items() if name in {r.name for r in readers})
            asked = [r for r in TABLES[table] if r.name == name or (not full and r.name in wanted)]
            cases = {r.name: CASES if full else FEW // 6 if r.slow else FEW for r in asked}
            found.update(fuzz(table, cases, tmp_path_factory.mktemp("fuzz")))
        return found[name]

    return outcome


@pytest.mark.parametrize("name", READERS, ids=str)
def test_damaged_files_are_read_or_refused(name: str, outcome_of: Callable[[str], Outcome], figures: Figures) -> None:
    outcome = outcome_of(name)
    fault = f"damaged file: {name}"
    figures.note(fault, "cases", outcome.cases)
    figures.note(fault, "refused", outcome.refused)
    figures.note(fault, "read", outcome.accepted)
    figures.note(fault, "findings", len(outcome.findings))
    figures.note(fault, "longest case", round(outcome.longest_s, 2), "s")
    figures.note(fault, "largest growth", round(outcome.largest_mb), "MB")
    assert not outcome.findings, "\n".join([f"{len(outcome.findings)} findings", *outcome.findings[:10]])
    assert outcome.accepted + outcome.refused == outcome.cases
    assert outcome.refused > 0, "damage that no reader notices is no damage"
    assert outcome.longest_s < LIMIT_S
    assert outcome.largest_mb < LIMIT_BYTES / 2**20


BROKEN = """
from support.file_readers import Reader

def make(folder):
    (folder / "a.txt").write_text("abc")
    return folder / "a.txt"

def read(path):
    import os, signal, time
    from kinema4d_ros.core.errors import FileFormatError
    {body}

TABLE = (Reader("broken", make, read),)
"""


@pytest.mark.parametrize(
    ("body", "finding"),
    [
        ("return path.read_text().index('abc') and 1 // 0", "ValueError"),
        ("if 'abc' not in path.read_bytes().decode(errors='replace'): raise FileFormatError('no')", "names no file"),
        ("if path.read_bytes() != b'abc': bytes(2**31)", "MemoryError"),
        ("if path.read_bytes() != b'abc': time.sleep(99)", "longer than"),
        ("if path.read_bytes() != b'abc': os.kill(os.getpid(), signal.SIGSEGV)", "ended with -11"),
        ("if path.read_bytes() != b'abc': raise FileFormatError(f'{path} is no abc')", ""),
    ],
)
def test_the_fuzzing_notices_a_broken_reader(
    body: str, finding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINEMA4D_FUZZ_LIMIT_S", "1")
    (tmp_path / "broken_reader.py").write_text(BROKEN.format(body=body))
    # The child starts in the folder it is given, which is on its path.
    outcome = fuzz("broken_reader:TABLE", {"broken": 3}, tmp_path)["broken"]
    if finding:
        assert any(finding in found for found in outcome.findings), outcome
    else:
        # A pipe or a folder in place of the file is not this reader's to refuse.
        assert outcome.refused >= 2, outcome
