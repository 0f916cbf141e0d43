"""Multithreaded CPU rendering of many frames; each thread has its own working memory.

Threads exist only during a call and share only a counter, so the process may fork before or after, and the result does
not depend on their number.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.render.numba_raster import render_frame
from kinema4d_ros.render.packed import Packed, Scratch, make_scratch
from kinema4d_ros.render.shading import LAMPS

__all__ = ["Progress", "available_cores", "render_frames"]

Progress = Callable[[int, int], None]


def available_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def render_frames(
    packed: Packed,
    camera_T_link: NDArray[np.float64],
    camera: NDArray[np.float64],
    xyz: NDArray[np.float32],
    ids: NDArray[np.uint8],
    rgb: NDArray[np.uint8] | None,
    threads: int,
    progress: Progress | None,
    pool: list[Scratch],
) -> None:
    """Render T frames of poses (T, L, 3, 4) into xyz (T, H, W, 3), ids (T, H, W) and rgb (T, H, W, 3) or None.

    `pool` holds reusable working memory for this robot, image size and use of colours; it is returned after use.
    `progress(done, total)` is called from the calling thread; an exception in it stops the rendering and propagates.
    """
    total, height, width = ids.shape
    colours = np.zeros((total, 0, 0, 3), np.uint8) if rgb is None else rgb
    upcoming, finished = itertools.count(), itertools.count(1)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(report: Progress | None) -> None:
        try:
            scratch = pool.pop()
        except IndexError:
            scratch = make_scratch(packed, height, width, rgb is not None)
        for t in upcoming:
            if t >= total or stop.is_set():
                break
            render_frame(packed, camera_T_link[t], camera, LAMPS, scratch, xyz[t], ids[t], colours[t], rgb is not None)
            done = next(finished)
            if report is not None:
                report(done, total)
        pool.append(scratch)

    def guarded() -> None:
        try:
            work(None)
        except BaseException as error:
            failures.append(error)
            stop.set()

    helpers = [threading.Thread(target=guarded, daemon=True) for _ in range(min(threads, total) - 1)]
    for helper in helpers:
        helper.start()
    try:
        work(progress)
    except BaseException:
        stop.set()
        raise
    finally:
        for helper in helpers:
            helper.join()
    if failures:
        raise failures[0]
    if progress is not None and helpers:
        progress(total, total)
