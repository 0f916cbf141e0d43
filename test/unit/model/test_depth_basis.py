"""Tests of the depth source that a rollout of the learned generator reports."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from kinema4d_model.pipeline.blend import Window, _lift
from kinema4d_model.pipeline.lifting import LiftedDepth
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.generators import GenerateRequest

CAMERA = PinholeCamera.look_at((0.9, -0.4, 0.7), (0.3, 0.0, 0.03), width=48, height=32, focal_px=60.0)


class Says:
    """Lifter that finds an object on a share of the image."""

    def __init__(self, share: float) -> None:
        self._share = share

    def lift(
        self,
        image: NDArray[np.uint8],
        camera: PinholeCamera,
        robot_mask: NDArray[np.bool_] | None = None,
        table_height_m: float = 0.0,
    ) -> LiftedDepth:
        thing = np.zeros(image.shape[:2], np.float32)
        thing.reshape(-1)[: round(self._share * thing.size)] = 0.9
        return LiftedDepth(np.full(image.shape[:2], 0.8, np.float32), thing)


@pytest.mark.parametrize(("share", "basis"), [(0.0, "unknown"), (0.1, "lifted")])
def test_a_bare_plane_gives_unknown_depth(share: float, basis: str) -> None:
    shape = (2, CAMERA.height, CAMERA.width)
    robot = PointmapSequence(
        np.full((*shape, 3), np.nan, np.float32), np.zeros(shape, np.uint8), CAMERA, np.array([0.0, 0.1])
    )
    request = GenerateRequest(np.zeros((*shape[1:], 3), np.uint8), robot)
    lifted, found = _lift(request, Window(0, 0, CAMERA.width, CAMERA.height), Says(share), 0.0)
    assert found == basis
    assert lifted.depth is not None
