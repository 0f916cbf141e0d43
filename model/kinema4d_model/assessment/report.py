"""Assessment report: all numbers as JSON, tables as Markdown, strips of the best and worst predictions."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from kinema4d_model.assessment.run import (
    GRASPS,
    THREADS,
    Outcomes,
    Scored,
    Setup,
    TwinTable,
    assess,
    degradation_seed,
    episodes_of,
    outcomes_of,
    roll_out,
    summaries,
)
from kinema4d_model.assessment.scores import MODEL, NAMES, Summary, composite, episode_request, generated
from kinema4d_ros.core.degrade import Degradation
from kinema4d_ros.generators.protocol import Generator
from kinema4d_ros.io.files import replacing_file
from kinema4d_ros.io.images import write_image

__all__ = ["markdown", "outcome_table", "score_table", "strip", "write_assessment", "write_film"]

HEADS = {
    "psnr": "PSNR dB", "psnr_dynamic": "dynamic", "ssim": "SSIM", "ssim_dynamic": "dynamic",
    "chamfer_l1_mm": "CD-L1 mm", "f_score": "F@1 cm", "chamfer_l1_dynamic_mm": "CD-L1 dyn.", "f_score_dynamic": "F dyn",
}  # fmt: skip
STRIP_FRAMES = 6


def write_assessment(
    load: Callable[[], Generator],
    data: Path,
    split: str,
    out: Path,
    *,
    limit: int | None = None,
    depth: bool = False,
    twins: int = 0,
    strips: int = 8,
    config: str = "nano",
    degradations: Sequence[Degradation] = (),
    ablations: Sequence[str] = (),
    workers: int = 0,
    engine: str = "local",
) -> int:
    """Assess a generator against first frame, composite and carry hypothesis, and write the report; return 0.

    `load` makes the generator, in every worker if there are any: then it must be picklable. For the others see `Setup`
    and `assess`.
    """
    out.mkdir(parents=True, exist_ok=True)
    with _worker_threads(), tqdm(desc=f"assess {split}", unit="episode", file=sys.stderr) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        # Without workers one generator serves the scores and the strips.
        make = load if workers else functools.cache(load)
        setup = Setup(make, depth, tuple(degradations), tuple(ablations), config)
        rows, tables = assess(
            setup, data, split, limit=limit, twins=twins, workers=workers, engine=engine, progress=progress
        )
        _write_tables(out, rows, tables, split, setup)
        _write_strips(out, choose_strips(rows, strips), data, split, limit, setup)
    print(markdown(rows, tables, split, depth))
    return 0


@contextmanager
def _worker_threads() -> Iterator[None]:
    """Set torch's number of threads as the workers do, and restore it."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _write_tables(out: Path, rows: Sequence[Scored], tables: Sequence[TwinTable], split: str, setup: Setup) -> None:
    keys = list(dict.fromkeys(row.key for row in rows))
    names = list(dict.fromkeys(row.predictor for row in rows))
    document = {
        "split": split,
        "depth": "measured" if setup.depth else "from the picture",
        "ablations": list(setup.ablations),
        "degradations": [
            {"label": d.label, **dataclasses.asdict(d), "seeds": {key: degradation_seed(key) for key in keys}}
            for d in setup.degradations
        ],
        "summaries": {p: {n: dataclasses.asdict(s) for n, s in t.items()} for p, t in summaries(rows).items()},
        "outcomes": {p: dataclasses.asdict(outcomes_of(rows, p)) for p in names},
        "outcomes by what is in the hand": {p: dataclasses.asdict(outcomes_of(rows, p, judge=False)) for p in names},
        "twins": [dataclasses.asdict(t) for t in tables],
        "episodes": [dataclasses.asdict(row) for row in rows],
    }
    with replacing_file(out / "assessment.json") as temporary:
        temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    with replacing_file(out / "assessment.md") as temporary:
        temporary.write_text(markdown(rows, tables, split, setup.depth), encoding="utf-8")


def _write_strips(
    out: Path, chosen: Mapping[str, str], data: Path, split: str, limit: int | None, setup: Setup
) -> None:
    if not chosen:
        return
    model = generated(setup.load())
    for episode in episodes_of(data, split, limit):
        if episode.key in chosen:
            request = episode_request(episode, depth=setup.depth)
            shown = [episode.rgb, roll_out(model, request).rgb, roll_out(composite, request).rgb]
            name = f"{chosen[episode.key]}-{episode.task}-{episode.key}"
            write_image(out / f"{name}.png", strip(shown))
            write_film(out / f"{name}.gif", shown, float(np.diff(episode.times).mean()))


def choose_strips(rows: Sequence[Scored], count: int) -> dict[str, str]:
    """Return keys and labels of the episodes to show: half the best in the dynamic region, half the worst."""
    mine = [r for r in rows if r.predictor == MODEL and np.isfinite(r.numbers["psnr_dynamic"])]
    mine.sort(key=lambda r: r.numbers["psnr_dynamic"])
    found = {r.key: "bad" for r in mine[: count // 2]}
    return {**{r.key: "good" for r in mine[len(mine) - (count - count // 2) :]}, **found}


def strip(videos: Sequence[NDArray[np.uint8]], frames: int = STRIP_FRAMES, scale: int = 2) -> NDArray[np.uint8]:
    """Return an image with one row per video, `frames` frames side by side, enlarged by `scale`."""
    rows = []
    for video in videos:
        chosen = np.linspace(0, len(video) - 1, frames).astype(int)
        large = [cv2.resize(video[t], None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC) for t in chosen]
        rows.append(np.concatenate(large, axis=1))
    return np.asarray(np.concatenate(rows), np.uint8)


def write_film(path: Path, videos: Sequence[NDArray[np.uint8]], frame_s: float, scale: int = 2) -> None:
    """Write a GIF of videos (T, H, W, 3) side by side, enlarged by `scale`."""
    frames = []
    for shown in zip(*videos, strict=True):
        large = [cv2.resize(f, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC) for f in shown]
        gap = np.full((large[0].shape[0], 4, 3), 255, np.uint8)
        row = [part for picture in large for part in (picture, gap)][:-1]
        frames.append(Image.fromarray(np.concatenate(row, axis=1)))
    # One palette for all frames avoids flicker.
    whole = Image.fromarray(np.concatenate([np.asarray(f) for f in frames[:: max(1, len(frames) // 6)]]))
    palette = whole.quantize(128, dither=Image.Dither.NONE)
    drawn = [f.quantize(palette=palette, dither=Image.Dither.NONE) for f in frames]
    with replacing_file(path) as temporary:
        drawn[0].save(
            temporary, format="GIF", save_all=True, append_images=drawn[1:], duration=round(1000 * frame_s), loop=0
        )


def markdown(rows: Sequence[Scored], twins: Sequence[TwinTable], split: str, depth: bool) -> str:
    """Format all tables."""
    given = "first image and its measured depth" if depth else "first image alone"
    episodes = len({row.key for row in rows})
    parts = [f"Split {split}, {episodes} episodes, given: {given}.", score_table(summaries(rows))]
    names = list(dict.fromkeys(row.predictor for row in rows))
    parts.append("By the geometric judge, which follows the target:")
    parts.append(outcome_table({name: outcomes_of(rows, name) for name in names}))
    parts.append("By the held object in the last frame:")
    parts.append(outcome_table({name: outcomes_of(rows, name, judge=False) for name in names}))
    seconds = [row.seconds for row in rows if row.predictor == MODEL]
    if seconds:
        parts.append(f"A prediction of the model took {np.median(seconds):.2f} s (median).")
    if twins:
        lines = [
            "| picks with the target | n | lifted, before -> after | predicted, before -> after | agreement |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {t.change} | {t.count} | {t.physics_before} -> {t.physics_after} | "
            f"{t.predicted_before} -> {t.predicted_after} | {t.agreement_after:.0%} |"
            for t in twins
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def score_table(table: Mapping[str, Mapping[str, Summary]]) -> str:
    """Format the means of every predictor; the best of each column in bold."""
    lower = {"chamfer_l1_mm", "chamfer_l1_dynamic_mm"}
    lines = ["| | " + " | ".join(HEADS[n] for n in NAMES) + " |", "|---|" + "---|" * len(NAMES)]
    best = {n: (min if n in lower else max)(t[n].mean for t in table.values()) for n in NAMES}
    for predictor, numbers in table.items():
        cells = [_number(n, numbers[n].mean, numbers[n].mean == best[n]) for n in NAMES]
        lines.append(f"| {predictor} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _number(name: str, value: float, bold: bool) -> str:
    text = f"{value:.3f}" if name.startswith(("ssim", "f_")) else f"{value:.2f}"
    return f"**{text}**" if bold else text


def outcome_table(table: Mapping[str, Outcomes]) -> str:
    """Format the confusion of every predictor on grasps."""
    lines = [
        f"| {' and '.join(GRASPS)}: said, was | yes, yes | yes, no | no, yes | no, no | cannot tell | agreement |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, o in table.items():
        counts: list[Any] = [o.held_success, o.held_failure, o.empty_success, o.empty_failure, o.undecided]
        lines.append(f"| {name} | " + " | ".join(str(c) for c in counts) + f" | {o.agreement:.1%} of {o.count} |")
    return "\n".join(lines)
