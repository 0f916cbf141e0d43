"""`make quality`: static checks of sources, dependencies and history; with --coverage the test coverage too.

Every check reports passed, FAILED or NOT RUN with the reason; a check that did not run never counts as passed.
Tools are installed in .venv/quality, separate from the tested packages. Reports go to out/quality.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / "quality" / "bin"
OUT = ROOT / "out" / "quality"
SOURCES = ("kinema4d_ros", "model/kinema4d_model", "tools", "launch", "setup.py")
LOCKS = ("lock.txt", "model-lock.txt", "assets.txt", "bench-lock.txt", "lerobot.txt")
# Control: a version with known vulnerabilities (such as CVE-2020-28493), which every usable database must report.
CONTROL = "jinja2==2.11.2"
AUDIT_S, AUDIT_REQUEST_S = 600, 15


class NotRunError(Exception):
    """A check could not run on this machine; the text is the reason."""


def install():
    """Install the tools of requirements/quality.txt, once for each version of that file."""
    wanted, stamp = (ROOT / "requirements" / "quality.txt").read_text(), VENV / "quality" / "installed.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    subprocess.run([sys.executable, "-m", "venv", str(VENV / "quality")], check=True)
    pip = [str(BIN / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "-r", str(ROOT / "requirements" / "quality.txt")], check=True)
    stamp.write_text(wanted)


def call(*command, timeout_s=1800):
    """Run a command in the checkout and return (exit code, output)."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stdout


def simply(*command):
    """Make a check that passes when a command succeeds."""

    def check():
        return call(*command)

    return check


def bandit():
    """Run bandit with the exceptions of pyproject.toml."""
    return call(BIN / "bandit", "--quiet", "--configfile", "pyproject.toml", "--recursive", *SOURCES)


def audit():
    """Run pip-audit on the lock files; NOT RUN if no database reports the known vulnerabilities of `CONTROL`."""
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as control:
            control.write(CONTROL + "\n")
            control.flush()
            known = _audited("--no-deps", "-r", control.name)
        if not any(package.get("vulns") for package in known):
            raise NotRunError(f"no vulnerability database reachable (none knows that {CONTROL} is vulnerable)")
        bad, skipped, seen = [], [], 0
        for lock in LOCKS:
            for package in _audited("-r", str(ROOT / "requirements" / lock)):
                seen += 1
                skipped += [f"{package['name']}: {package['skip_reason']}"] if "skip_reason" in package else []
                ids = ", ".join(v["id"] for v in package.get("vulns", ()))
                bad += [f"{lock}: {package['name']} {package['version']}: {ids}"] if ids else []
    except subprocess.TimeoutExpired as late:
        raise NotRunError(f"no vulnerability database reachable (no answer within {late.timeout:.0f} s)") from None
    said = "\n".join([*bad, *(f"not audited: {s}" for s in skipped), f"{len(bad)} vulnerable, {seen} audited"])
    return (1 if bad else 0), said


def _audited(*options):
    done = subprocess.run(
        [BIN / "pip-audit", "--disable-pip", "--progress-spinner=off", "--format=json", f"--timeout={AUDIT_REQUEST_S}",
         *options],
        cwd=ROOT, capture_output=True, text=True, timeout=AUDIT_S, check=False,
    )  # fmt: skip
    try:
        return json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        lines = done.stderr.strip().splitlines()
        raise NotRunError(
            f"no vulnerability database reachable ({lines[-1][:150] if lines else 'no answer'})"
        ) from None


CHECKS = {
    "ruff": simply(VENV / "bin" / "ruff", "check", "."),
    "ruff format": simply(VENV / "bin" / "ruff", "format", "--check", "."),
    "mypy --strict": simply(VENV / "bin" / "mypy"),
    "bandit": bandit,
    "dead code (vulture)": simply(BIN / "vulture", "--config", "pyproject.toml"),
    "copies": simply(sys.executable, "tools/duplicates.py"),
    "import layers, hashes of locks": simply(
        VENV / "bin" / "python", "-m", "pytest", "-q", "test/unit/test_layers.py", "test/unit/test_requirements.py"
    ),
    "secrets": simply(sys.executable, "tools/secrets_scan.py"),
    "dependency audit": audit,
}


def coverage():
    """Measure the statement coverage of test/unit by package; node processes are not counted."""
    OUT.mkdir(parents=True, exist_ok=True)
    report = OUT / "coverage.json"
    code, said = call(
        VENV / "bin" / "python", "-m", "pytest", "test/unit", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider",
        "--cov=kinema4d_ros", "--cov=kinema4d_model", "--cov-report=", f"--cov-report=json:{report}", timeout_s=7200,
    )  # fmt: skip
    (OUT / "coverage.log").write_text(said)
    if not report.exists():
        return code or 1, said
    (OUT / "coverage.md").write_text(coverage_table(json.loads(report.read_text())))
    return code, f"{said.strip().splitlines()[-1]}\n{(OUT / 'coverage.md').read_text()}"


def coverage_table(report):
    """Format a Markdown table with a row for each package and its least covered module."""
    packages = {}
    for path, found in report["files"].items():
        parts = Path(path).parts
        at = next(i for i, part in enumerate(parts) if part in ("kinema4d_ros", "kinema4d_model"))
        inside = parts[at:]
        packages.setdefault("/".join(inside[:2]) if len(inside) > 2 else f"{inside[0]} (top)", []).append(
            (found["summary"]["num_statements"], found["summary"]["covered_lines"], "/".join(inside))
        )
    rows = ["| package | modules | statements | covered | least covered module |", "|---|---|---|---|---|"]
    for name, modules in sorted(packages.items()):
        total, hit = sum(m[0] for m in modules), sum(m[1] for m in modules)
        worst = min((m for m in modules if m[0]), key=lambda m: m[1] / m[0], default=(1, 1, ""))
        share = f"{100 * hit / total:.0f} %" if total else "nothing to cover"
        rows.append(f"| {name} | {len(modules)} | {total} | {share} | {worst[2]} {100 * worst[1] / worst[0]:.0f} % |")
    totals = report["totals"]
    share = 100 * totals["covered_lines"] / totals["num_statements"]
    rows.append(f"| **all** | {len(report['files'])} | {totals['num_statements']} | **{share:.1f} %** | |")
    return "\n".join(rows) + "\n"


def main():
    """Run the selected checks and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coverage", action="store_true", help="also run test/unit with coverage (minutes)")
    parser.add_argument(
        "--only", action="append", choices=[*CHECKS, "coverage"], help="run only this check; may be repeated"
    )
    arguments = parser.parse_args()
    checks = {**CHECKS, "coverage": coverage}
    chosen = arguments.only or [*CHECKS, *(["coverage"] if arguments.coverage else [])]
    install()
    results = {}
    for name in chosen:
        print(f"-- {name}", flush=True)
        try:
            code, said = checks[name]()
            results[name] = "passed" if code == 0 else "FAILED"
            if code or name in ("secrets", "copies", "dependency audit", "coverage"):
                print(said.strip(), flush=True)
        except NotRunError as why:
            results[name] = f"NOT RUN: {why}"
            print(f"not run: {why}", flush=True)
    width = max(map(len, results))
    print("\n" + "\n".join(f"{name:<{width}}  {result}" for name, result in results.items()))
    return 1 if "FAILED" in results.values() else 0


if __name__ == "__main__":
    sys.exit(main())
