"""Print the figures of the fault suite as Markdown: `python tools/fault_report.py out/faults`."""

import json
import sys
from pathlib import Path


def table(path):
    """Format one module's figures as a table with a row for each fault."""
    found = json.loads(path.read_text())
    scale = "" if found["full"] else " (short run: the figures of `make faults` are larger)"
    lines = [f"### {path.stem.replace('_', ' ')}{scale}", "", "| what | measured |", "|---|---|"]
    for fault, figures in found["notes"].items():
        lines.append(f"| {fault} | {'; '.join(f'{name}: {value}' for name, value in figures.items())} |")
    return "\n".join(lines)


def main():
    """Print all tables of a folder, sorted by name."""
    folder = Path(sys.argv[1])
    found = sorted(folder.glob("*.json"))
    if not found:
        sys.exit(f"error: no figures in {folder}: `make faults` writes them")
    print("\n\n".join(table(path) for path in found))


if __name__ == "__main__":
    main()
