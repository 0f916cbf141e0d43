"""`dataset_stats`: how many episodes of what, how they ended, how long and large; it reads the JSON only."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d_model.data.dataset_folder import DatasetFolder
from kinema4d_model.data.shards import read_document

__all__ = ["dataset_stats", "stats_table"]


def dataset_stats(path: str | Path) -> dict[str, Any]:
    """Counts and ranges by split, as plain JSON."""
    dataset = DatasetFolder.open(path)
    return {"name": dataset.document.get("name"), "splits": {s: _split(dataset, s) for s in dataset.splits}}


def _split(dataset: DatasetFolder, split: str) -> dict[str, Any]:
    tasks: Counter[str] = Counter()
    successes: Counter[str] = Counter()
    variants: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    durations, frames, sizes, objects = [], [], [], []
    size = 0
    for index in dataset.indices(split):
        size += index.size
        for number in range(len(index.episodes)):
            document = read_document(index, number)
            task = str(document["task"])
            tasks[task] += 1
            successes[task] += bool(document["outcome"]["success"])
            variants[f"{task}/{document['details'].get('variant', '')}"] += 1
            refused.update(document["details"].get("refused", {}))
            missing.update(document["missing"])
            times = document["times_s"]
            durations.append(times[-1] - times[0])
            frames.append(len(times))
            sizes.append((document["width"], document["height"]))
            objects.append(len(document["outcome"]["objects"]))
    return {
        "episodes": sum(tasks.values()),
        "bytes": size,
        "tasks": {
            task: {"episodes": count, "share": round(count / sum(tasks.values()), 4), "successes": successes[task]}
            for task, count in tasks.most_common()
        },
        "variants": dict(variants.most_common()),
        "frames": _range(frames),
        "duration_s": _range(durations),
        "objects": _range(objects),
        "sizes": [f"{w} x {h}" for w, h in sorted(set(sizes))],
        "refused_attempts": dict(refused.most_common()),
        "missing": dict(missing.most_common()),
    }


def _range(values: list[float] | list[int]) -> list[float] | None:
    """Smallest, mean, largest."""
    if not values:
        return None
    return [round(float(v), 3) for v in (np.min(values), np.mean(values), np.max(values))]


def stats_table(stats: dict[str, Any]) -> str:
    """The same for people."""
    lines = []
    for split, found in stats["splits"].items():
        per = found["bytes"] / max(found["episodes"], 1) / 1000
        sizes = ", ".join(found["sizes"]) or "-"
        lines.append(
            f"{split}: {found['episodes']} episodes, {found['bytes'] / 1e6:.1f} MB ({per:.0f} kB each), {sizes}"
        )
        if not found["episodes"]:
            continue
        low, mean, high = found["duration_s"]
        lines.append(
            f"  frames {found['frames'][0]:g} to {found['frames'][2]:g}, {low:.1f} to {high:.1f} s (mean {mean:.1f})"
        )
        for task, numbers in found["tasks"].items():
            n, ok = numbers["episodes"], numbers["successes"]
            lines.append(f"  {task:<8} {n:6d}  {100 * numbers['share']:5.1f} %   success {ok} ({100 * ok / n:.0f} %)")
        if found["refused_attempts"]:
            lines.append("  drawn again: " + ", ".join(f"{k} {v}" for k, v in found["refused_attempts"].items()))
        if found["missing"]:
            lines.append("  missing: " + ", ".join(f"{k} {v}" for k, v in found["missing"].items()))
    return "\n".join(lines)
