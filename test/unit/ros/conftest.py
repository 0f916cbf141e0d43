"""Fixtures of the message tests: a small camera and a small rollout."""

from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.rollout import Provenance, Rollout

pytest.importorskip("kinema4d_msgs.msg", reason="needs ROS 2 and the built messages")


@pytest.fixture(scope="session")
def camera() -> PinholeCamera:
    return PinholeCamera.look_at((1.0, 0.2, 0.8), (0.2, 0.0, 0.1), width=48, height=32, fov_y_deg=45)


@pytest.fixture(scope="session")
def rollout(camera: PinholeCamera) -> Rollout:
    """Three frames with points on the pixels' rays; the top rows are empty, a square robot moves."""
    rng = np.random.default_rng(5)
    z = rng.uniform(0.5, 2.0, (3, camera.height, camera.width))
    z[:, :4] = np.nan
    xyz = (camera.rays() * z[..., None]).astype(np.float32)
    mask = np.zeros(z.shape, bool)
    for t in range(3):
        mask[t, 10:20, 5 + 4 * t : 15 + 4 * t] = True
    rgb = rng.integers(0, 256, (*z.shape, 3), dtype=np.uint8)
    provenance = Provenance("composite", seed=2**63 + 7, versions={"numpy": "2.0", "odd": "a=b"})
    return Rollout(rgb, xyz, mask, camera, np.array([0.0, 0.1, 0.25]), provenance, plan_hash="ab" * 32)
