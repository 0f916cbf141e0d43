"""Dataset overview: statistics from the JSON files (`dataset_stats`) and contact sheets (`write_sheet`)."""

from __future__ import annotations

import base64
import html
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_model.data.dataset_folder import DatasetFolder
from kinema4d_model.data.episode import Episode
from kinema4d_model.data.shards import read_document, read_episode
from kinema4d_ros.core.errors import DataError, KinemaError
from kinema4d_ros.io.files import replacing_file
from kinema4d_ros.io.png import encode_png

__all__ = ["choose_episodes", "dataset_stats", "episode_row", "stats_table", "write_sheet"]


def dataset_stats(path: str | Path) -> dict[str, Any]:
    """Return counts and ranges by split, as plain JSON."""
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
    """Return minimum, mean and maximum; None if empty."""
    if not values:
        return None
    return [round(float(v), 3) for v in (np.min(values), np.mean(values), np.max(values))]


def stats_table(stats: dict[str, Any]) -> str:
    """Format `dataset_stats` as text."""
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


# Contact sheets, as PNG or HTML. A row is one episode: frames, depth of the last frame, the commanded robot alone.

LABEL_PIXELS = 12
COLUMN = 144
_STYLE = "body{font:14px sans-serif;background:#fafafa;margin:1em}img{display:block}div{margin-bottom:.8em}"


def choose_episodes(path: str | Path, split: str, count: int, task: str = "") -> Iterator[Episode]:
    """Yield up to `count` episodes of a split, evenly spread; with `task`, the first ones of that task."""
    indices = DatasetFolder.open(path).indices(split)
    places = [(index, number) for index in indices for number in range(len(index.episodes))]
    if not places:
        raise DataError(f"{path} has no episodes in split '{split}'", expected="episodes to show")
    order = places if task else [places[int(i)] for i in np.linspace(0, len(places) - 1, min(count, len(places)))]
    shown = 0
    for index, number in order:
        episode = read_episode(index, number)
        if task and episode.task != task:
            continue
        yield episode
        shown += 1
        if shown >= count:
            return


def episode_row(episode: Episode, frames: int = 7) -> NDArray[np.uint8]:
    """Return (h, w, 3) uint8: frames, last depth, last condition (black if missing), with a title line above."""
    times = np.linspace(0, len(episode) - 1, frames).round().astype(int)
    tiles = [episode.rgb[t] for t in times]
    if episode.depth_m is not None:
        tiles.append(_depth_picture(episode.depth_m[-1]))
    try:
        drawn = episode.robot_condition().rgb
        tiles.append(np.zeros_like(tiles[0]) if drawn is None else drawn[-1])
    except KinemaError:
        tiles.append(np.zeros_like(tiles[0]) if episode.condition is None else episode.condition.rgb[-1])
    height = round(COLUMN * tiles[0].shape[0] / tiles[0].shape[1])
    resized = [cv2.resize(np.ascontiguousarray(tile), (COLUMN, height), interpolation=cv2.INTER_AREA) for tile in tiles]
    row = np.concatenate(resized, axis=1)
    label = np.full((LABEL_PIXELS, row.shape[1], 3), 255, np.uint8)
    cv2.putText(
        label, _title(episode), (2, LABEL_PIXELS - 3), cv2.FONT_HERSHEY_SIMPLEX, 0.35, (0, 0, 0), 1, cv2.LINE_AA
    )
    return np.asarray(np.concatenate([label, row]), np.uint8)


def write_sheet(episodes: Sequence[Episode], path: str | Path, frames: int = 7) -> Path:
    """Write a contact sheet: .png for an image, .html for a page with the facts of every episode."""
    target = Path(path)
    if target.suffix not in (".png", ".html"):
        raise DataError(f"the sheet is named {target.name!r}", expected="a name that ends in .png or .html")
    if not episodes:
        raise DataError("no episode to show", expected="at least one")
    rows = [episode_row(episode, frames) for episode in episodes]
    width = max(row.shape[1] for row in rows)
    rows = [np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0)), constant_values=255) for row in rows]
    with replacing_file(target) as temporary:
        if target.suffix == ".png":
            temporary.write_bytes(encode_png(np.ascontiguousarray(np.concatenate(rows))))
        else:
            temporary.write_text(_page(episodes, rows), encoding="utf-8")
    return target


def _page(episodes: Sequence[Episode], rows: Sequence[NDArray[np.uint8]]) -> str:
    parts = [f"<!doctype html><meta charset=utf-8><title>episodes</title><style>{_STYLE}</style>"]
    for episode, row in zip(episodes, rows, strict=True):
        picture = base64.b64encode(encode_png(np.ascontiguousarray(row[LABEL_PIXELS:]))).decode()
        facts = ", ".join(
            f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in episode.outcome.facts.items()
        )
        caption = episode.captions.get("instruction", "")
        parts.append(
            f"<div><b>{html.escape(_title(episode))}</b> {html.escape(caption)} <small>{html.escape(facts)}</small>"
            f'<img alt="{html.escape(episode.key)}" src="data:image/png;base64,{picture}"></div>'
        )
    return "\n".join(parts) + "\n"


def _title(episode: Episode) -> str:
    ended = {True: "success", False: "failure", None: "outcome unknown"}[episode.outcome.success]
    variant = episode.details.get("variant", "")
    return f"{episode.key}  {episode.task}{f' ({variant})' if variant else ''}: {ended}  {episode.times[-1]:.1f} s"


def _depth_picture(depth_m: NDArray[np.float32]) -> NDArray[np.uint8]:
    known = np.isfinite(depth_m)
    low, high = (np.percentile(depth_m[known], (2, 98))) if known.any() else (0.0, 1.0)
    grey = np.clip((high - np.nan_to_num(depth_m, nan=high)) / max(high - low, 1e-6), 0, 1)
    return np.asarray(np.repeat((255 * grey * known)[..., None], 3, axis=2), np.uint8)
