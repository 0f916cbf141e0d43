"""Fuzzing of file readers with damaged files in a child process, which must not hang, grow or die.

Parent: `fuzz(table, cases, folder)` -> an `Outcome` for every reader.
Child:  `python -m support.fuzz_files TABLE FOLDER READER=FIRST=CASES...`: prints a line before and after each case.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["LIMIT_BYTES", "LIMIT_S", "Outcome", "fuzz"]

LIMIT_S = float(os.environ.get("KINEMA4D_FUZZ_LIMIT_S", "10"))
LIMIT_BYTES = 2**30
GRACE_S = 30.0
"""A case that cannot be interrupted is killed this many seconds after LIMIT_S."""

_ODD_FILES = ("missing", "a folder", "a link to itself", "a dangling link", "a link to /dev/zero", "a pipe")


@dataclass
class Outcome:
    """Results of a reader's cases; `findings` are all except success and a clear error."""

    reader: str
    cases: int = 0
    accepted: int = 0
    refused: int = 0
    longest_s: float = 0.0
    largest_mb: float = 0.0
    codes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


def fuzz(table: str, cases: Mapping[str, int], folder: Path) -> dict[str, Outcome]:
    """Return outcomes by reader for `cases` cases each; a dead child is restarted after the case that killed it."""
    outcomes = {name: Outcome(name, count) for name, count in cases.items()}
    left = [f"{name}=0={count}" for name, count in cases.items()]
    while left:
        left = _run_child(table, left, folder, outcomes)
    return outcomes


def _run_child(table: str, left: list[str], folder: Path, outcomes: dict[str, Outcome]) -> list[str]:
    command = [sys.executable, "-m", "support.fuzz_files", table, str(folder), *left]
    here = Path(__file__).resolve().parents[1]
    env = {**os.environ, "PYTHONPATH": str(here), "OMP_NUM_THREADS": "1", "OPENCV_LOG_LEVEL": "SILENT"}
    log = folder / "child.log"
    with log.open("ab") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=env, cwd=folder)
    assert child.stdout is not None
    at: tuple[str, int, str] | None = None
    try:
        for line in _lines(child):
            report = json.loads(line)
            if "begin" in report:
                at = (report["reader"], report["begin"], report["what"])
            else:
                _count(outcomes[report["reader"]], report)
        code = child.wait(GRACE_S)
    except TimeoutError:
        child.kill()
        code = child.wait()
    finally:
        child.stdout.close()
    if code == 0:
        return []
    if at is None or code == 1:  # 1: an exception outside the reader, which is ours
        raise RuntimeError(f"the child ended with {code}:\n{log.read_text(errors='replace')[-3000:]}")
    reader, number, what = at
    ended = f"killed after {LIMIT_S + GRACE_S:.0f} s" if code == -signal.SIGKILL else f"the process ended with {code}"
    outcomes[reader].findings.append(f"case {number} ({what}): {ended}")
    names = [entry.split("=")[0] for entry in left]
    return [f"{reader}={number + 1}={outcomes[reader].cases}", *left[names.index(reader) + 1 :]]


def _lines(child: subprocess.Popen[bytes]) -> Iterator[str]:
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        rest, first = b"", True
        while True:
            # The first case includes the imports.
            if not selector.select(300.0 if first else LIMIT_S + GRACE_S):
                raise TimeoutError
            data = os.read(child.stdout.fileno(), 1 << 16)
            if not data:
                return
            first = False
            *whole, rest = (rest + data).split(b"\n")
            yield from (line.decode() for line in whole)


def _count(outcome: Outcome, report: dict[str, Any]) -> None:
    outcome.longest_s = max(outcome.longest_s, report["seconds"])
    outcome.largest_mb = max(outcome.largest_mb, report["grown_mb"])
    if report["result"] == "accepted":
        outcome.accepted += 1
    elif report["result"] == "refused":
        outcome.refused += 1
        outcome.codes[report["code"]] += 1
    else:
        outcome.findings.append(f"case {report['end']} ({report['what']}): {report['result']}")


class _TooLong(BaseException):
    """Timeout; not an Exception, so that readers with a broad except do not catch it."""


def _ring(*_: Any) -> None:
    raise _TooLong


def _say(**report: Any) -> None:
    os.write(_OUT, json.dumps(report).encode() + b"\n")


def _virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _link_tree(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, copy_function=os.link)
    else:
        os.link(source, target)


def _prepare(
    seed: Path, work: Path, patterns: Sequence[str], rng: random.Random, mend: Any, odd: bool
) -> tuple[Path, str]:
    """Copy the valid files to `work` and damage one of them."""
    from support.file_mutations import mutate

    root, _, name = seed.as_posix().partition("/valid/")
    shutil.rmtree(work, ignore_errors=True)
    _link_tree(Path(root) / "valid", work)
    files = sorted(
        p for pattern in patterns for p in (Path(root) / "valid").rglob(pattern) if p.is_file() and not p.is_symlink()
    )
    # Of many similar files (the images of a sequence) the first two are enough.
    chosen = rng.choice([f for f in files if not f.stem.isdigit() or int(f.stem) < 2] or files)
    target = work / chosen.relative_to(Path(root) / "valid")
    target.unlink()
    if odd and rng.random() < 0.02:
        what = rng.choice(_ODD_FILES)
        _odd(target, what)
    else:
        data, what = mutate(chosen.read_bytes(), chosen.name, rng)
        target.write_bytes(data)
        if mend is not None and rng.random() < 0.7:
            try:
                mend(work / name)
                what += ", signed"
            except Exception:
                what += ", not to be signed"
            if not target.exists():
                target.write_bytes(data)
    return work / name, f"{what} of {chosen.name}"


def _odd(path: Path, what: str) -> None:
    if what == "a folder":
        path.mkdir()
    elif what == "a link to itself":
        path.symlink_to(path.name)
    elif what == "a dangling link":
        path.symlink_to("nowhere")
    elif what == "a link to /dev/zero":
        path.symlink_to("/dev/zero")
    elif what == "a pipe":
        os.mkfifo(path)


def _judge(reader: Any, path: Path, what: str, work: Path) -> dict[str, Any]:
    from kinema4d_ros.core.errors import ErrorCode, KinemaError

    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        reader.read(path)
        return {"result": "accepted"}
    except KinemaError as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        text = str(error)
        names = {path.name, *(p.name for p in work.rglob("*"))}
        if error.code in (ErrorCode.UNKNOWN, ErrorCode.NONE) or not error.what.strip():
            return {"result": f"no code: {text[:300]}"}
        if len(text) > 4000:
            return {"result": f"an error of {len(text)} letters: {text[:200]}"}
        if reader.names_file and not any(name in text for name in names):
            return {"result": f"names no file: {text[:300]}"}
        return {"result": "refused", "code": error.code.name}
    except _TooLong:
        return {"result": f"longer than {LIMIT_S:.0f} s: {_where(sys.exc_info()[2])}"}
    except BaseException as error:
        return {"result": f"{type(error).__name__}: {str(error)[:200]} at {_where(error.__traceback__)}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _where(trace: Any) -> str:
    frames = [f for f in traceback.extract_tb(trace) if "kinema4d" in f.filename and "/test/" not in f.filename]
    return " > ".join(f"{Path(f.filename).name}:{f.lineno}" for f in frames[-3:])


def _main(table: str, folder: Path, wanted: list[str]) -> None:
    module, _, attribute = table.partition(":")
    readers = {reader.name: reader for reader in getattr(importlib.import_module(module), attribute)}
    signal.signal(signal.SIGALRM, _ring)
    usual = resource.getrlimit(resource.RLIMIT_AS)
    for entry in wanted:
        name, first, cases = entry.split("=")
        reader = readers[name]
        resource.setrlimit(resource.RLIMIT_AS, usual)
        root = folder / name.replace(" ", "_").replace("'", "").replace(",", "")
        shutil.rmtree(root, ignore_errors=True)
        (root / "valid").mkdir(parents=True)
        seed = reader.make(root / "valid")
        reader.read(seed)  # the valid file must be readable, or the cases below are meaningless
        resource.setrlimit(resource.RLIMIT_AS, (_virtual_bytes() + LIMIT_BYTES, usual[1]))
        for number in range(int(first), int(cases)):
            rng = random.Random(f"{name} {number}")  # noqa: S311
            path, what = _prepare(seed, root / "work", reader.files, rng, reader.repair, reader.names_file)
            _say(begin=number, reader=name, what=what)
            before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
            verdict = _judge(reader, path, what, root / "work")
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            _say(end=number, reader=name, what=what, seconds=time.monotonic() - started, grown_mb=grown, **verdict)


if __name__ == "__main__":
    # Libraries may print to stdout; keep it for the reports only.
    _OUT = os.dup(1)
    os.dup2(2, 1)
    _main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
