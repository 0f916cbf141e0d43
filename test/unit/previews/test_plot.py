"""Clearance plot: positions and colours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.scenes import cast_world, overhead_camera, rollout_of, slider

from kinema4d_ros.core.errors import RolloutError
from kinema4d_ros.previews.report import PlanReport, clearance_plot, make_report

RED, BLUE = (217, 45, 32), (21, 112, 239)


def report(tmp_path: Path, heights: list[float]) -> PlanReport:
    table = cast_world(overhead_camera())
    robot = slider(tmp_path, '<box size="0.08 0.06 0.04"/>')
    return make_report(rollout_of(overhead_camera(), [table] * len(heights)), robot, np.array(heights)[:, None])


def near(image: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    return np.abs(image.astype(int) - colour).max(-1) < 30


def test_the_curve_falls_where_the_clearance_falls(tmp_path: Path) -> None:
    image = clearance_plot(report(tmp_path, [0.30, 0.25, 0.20, 0.15, 0.10]), 640, 260)
    assert image.shape == (260, 640, 3)
    assert image.dtype == np.uint8
    heights = [np.nonzero(near(image, BLUE)[:, x : x + 20])[0].mean() for x in range(80, 600, 40)]
    assert np.all(np.diff(heights) > 0)


def test_only_contact_is_red(tmp_path: Path) -> None:
    image = clearance_plot(report(tmp_path, [0.20, 0.20, 0.20, 0.01, 0.01]), 640, 260)
    red = near(image, RED)
    assert red[60:220, 500:610].sum() > 10 * max(1, red[60:180, 60:300].sum())
    safe = clearance_plot(report(tmp_path, [0.2, 0.2]), 640, 260)
    assert near(safe, RED).sum() < 2000


def test_cursor_theme_single_frame_and_no_world(tmp_path: Path) -> None:
    some = report(tmp_path, [0.2, 0.1, 0.2])
    with_cursor = clearance_plot(some, cursor_s=0.1)
    columns = np.flatnonzero((with_cursor != clearance_plot(some)).any((0, 2)))
    assert 0 < np.ptp(columns) < 8
    assert clearance_plot(some, theme="dark").mean() < 80 < 200 < clearance_plot(some).mean()
    assert near(clearance_plot(report(tmp_path, [0.2])), BLUE).any()
    empty = np.full_like(cast_world(overhead_camera()), np.nan)
    nothing = make_report(rollout_of(overhead_camera(), [empty]), slider(tmp_path, '<sphere radius="0.1"/>'), [[0.5]])
    assert not near(clearance_plot(nothing), BLUE).any()


@pytest.mark.parametrize(("width", "height", "theme"), [(100, 260, "light"), (640, 50, "light"), (640, 260, "pink")])
def test_bad_sizes_and_themes(tmp_path: Path, width: int, height: int, theme: str) -> None:
    with pytest.raises(RolloutError):
        clearance_plot(report(tmp_path, [0.2]), width, height, theme=theme)
