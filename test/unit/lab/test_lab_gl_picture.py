from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import RenderError
from kinema4d_ros.lab import LabCamera, LabSimulation
from kinema4d_ros.lab.gl_picture import GlCamera
from kinema4d_ros.robot import Robot

# OpenGL and its environment variable belong to a whole process, so the comparison runs in one of its own.
COMPARE = """
import sys
import numpy as np
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import SetupError
from kinema4d_ros.lab import LabCamera, LabSimulation
from kinema4d_ros.lab.gl_picture import GlCamera
from kinema4d_ros.lab.simulation import LabSimulation

given = np.load(sys.argv[1])
camera = PinholeCamera(360, 240, given["K"], given["base_T_camera"])
lab = LabSimulation("canonical", 0)
try:
    gl = GlCamera(lab.robot, camera, lab.room)
    picture = gl.capture(lab.state())
except SetupError as error:
    print(error)
    sys.exit(77)
gl.close()
np.save(sys.argv[2], picture)
"""


@pytest.mark.full
def test_opengl_sees_the_target_where_we_see_it(
    shared_lab: LabSimulation, lab_camera: LabCamera, tmp_path: Path
) -> None:
    demo = lab_camera.camera.scaled(360, 240)
    K = demo.K.copy()
    K[:2, 2] += (21.0, -13.0)
    camera = PinholeCamera(360, 240, K, demo.base_T_camera)
    np.savez(tmp_path / "camera.npz", K=K, base_T_camera=demo.base_T_camera)
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, str(tmp_path / "camera.npz"), str(tmp_path / "picture.npy")],
        env={**os.environ, "MUJOCO_GL": os.environ.get("MUJOCO_GL", "egl")},
        capture_output=True,
        text=True,
        timeout=200,
    )
    last = (done.stdout + done.stderr).strip().splitlines()[-1:]
    # Without the libraries MuJoCo already fails to import, in words of its OpenGL binding.
    if done.returncode == 77 or (done.returncode and "gl" in "".join(last).lower()):
        pytest.skip(f"no OpenGL here: {''.join(last)}")
    assert done.returncode == 0, done.stderr
    picture = np.load(tmp_path / "picture.npy").astype(float)
    state = shared_lab.reset("canonical", 0)
    mask = LabCamera.of(shared_lab, camera).capture(state, truth=True).mask(state.target)
    rgb = np.array(state.objects[state.target].object.rgb)
    hue = picture / np.maximum(picture.sum(axis=2, keepdims=True), 1) - rgb / rgb.sum()
    drawn = (np.abs(hue).max(axis=2) < 0.12) & (picture.max(axis=2) > 40)
    rows, columns = np.nonzero(mask)
    near = np.zeros_like(mask)
    near[rows.min() - 15 : rows.max() + 15, columns.min() - 15 : columns.max() + 15] = True
    drawn &= near
    assert (mask & drawn).sum() > 0.8 * (mask | drawn).sum()


def test_distortion_and_skew_are_refused(yam: Robot) -> None:
    K = [[200.0, 0.0, 90.0], [0.0, 200.0, 60.0], [0.0, 0.0, 1.0]]
    with pytest.raises(RenderError, match="distortion"):
        GlCamera(yam, PinholeCamera(180, 120, K, distortion=(-0.1, 0.0, 0.0, 0.0, 0.0)))
