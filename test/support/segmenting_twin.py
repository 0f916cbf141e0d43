"""A twin whose segmenter takes the largest dark grey region as the lab's robot, for tests of the drift check."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.ros.nodes.common import run_node
from kinema4d_ros.ros.nodes.twin import Twin


def largest_dark_thing(rgb: NDArray[np.uint8], q: NDArray[np.float64]) -> NDArray[np.bool_]:
    brightest, darkest = rgb.max(axis=2).astype(int), rgb.min(axis=2).astype(int)
    dark = ((brightest < 150) & (brightest - darkest < 28)).astype(np.uint8)
    closed = cv2.morphologyEx(dark, cv2.MORPH_CLOSE, np.ones((5, 5), np.uint8))
    _, label, stats, _ = cv2.connectedComponentsWithStats(closed)
    return np.asarray(label == 1 + np.argmax(stats[1:, cv2.CC_STAT_AREA]))


if __name__ == "__main__":
    raise SystemExit(run_node(lambda: Twin(segment=largest_dark_thing)))
