"""`kinema4d doctor`: one screen that tells what this machine has, what it lacks and what mends it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from kinema4d_ros.runtime.health import Check, examine

__all__ = ["register", "run"]

COLOURS = {"ok": "32", "missing": "31", "optional": "33"}


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser("doctor", help="tell what this machine has and lacks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    parser.add_argument("--camera", type=Path, metavar="FILE", help="also check this calibration file")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print every check; exit code 1 when something that is needed is missing."""
    checks = []
    for check in examine(arguments.camera):
        checks.append(check)
        if not arguments.json:
            print(_line(check), flush=True)
    missing = [check.name for check in checks if check.status == "missing"]
    if arguments.json:
        print(json.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    elif missing:
        print(f"\nmissing: {', '.join(missing)}")
    else:
        print("\neverything that is needed is here")
    return 1 if missing else 0


def _line(check: Check) -> str:
    status = f"{check.status:<8}"
    if sys.stdout.isatty():
        status = f"\033[{COLOURS[check.status]}m{status}\033[0m"
    fix = f"\n{'':25}-> {check.fix}" if check.fix else ""
    return f"{status} {check.name:<15} {check.detail}{fix}"
