"""The page for placing a camera by hand, in a real browser: sliders, fit, reset and save; files, then a live graph."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.browser import CHROMIUM, MISSING, Window, chromium
from support.drivers import Drivers
from support.knocking import ask, listeners, status, upgrade
from support.ros_graph import ROOT, Graph
from support.seen_robot import random_joints

from kinema4d_ros.calibration import read_camera, read_pose, save_camera
from kinema4d_ros.calibration.pose_estimate import changed, difference
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.images import write_image
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.io.tables import write_trajectory
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.lab import LabSimulation
from kinema4d_ros.lab.picture import SMALL, LabCamera
from kinema4d_ros.robot import Robot
from kinema4d_ros.web.calibration_page import COARSE

pytest.importorskip("playwright", reason="needs playwright")

pytestmark = [
    pytest.mark.full,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not CHROMIUM, reason=MISSING),
]

WAIT_S = 120.0
STEP_M = COARSE[0] / 200
"""How far an arrow key moves the first slider."""

POSES = 4
TRUTH = read_camera(share_path("calibration/demo_lab.yaml")).scaled(480, 320)
ROUGH = changed(TRUTH.base_T_camera, [0.02, -0.015, 0.01, *np.radians([0.5, -1.0, 0.8])])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, yam: Robot) -> Path:
    """Pictures, masks, joint positions, and a camera file that is 27 mm and 1.4 degrees off."""
    made = tmp_path_factory.mktemp("page")
    lab = LabSimulation("canonical", 0, yam, TRUTH)
    eye = LabCamera(yam, TRUTH, room=lab.room, noise=2.0, quality=SMALL)
    q = random_joints(yam, np.random.default_rng(3), POSES)
    for i in range(POSES):
        image = eye.capture(
            replace(lab.state(), positions=q[i], base_T_link=forward_all(yam, q[i : i + 1])[0]), truth=True
        )
        assert image.segmentation is not None
        robot = (image.segmentation >= 1) & (image.segmentation <= len(yam.links))
        for kind, picture in (("images", image.rgb), ("masks", np.repeat(255 * robot[..., None], 3, axis=2))):
            (made / kind).mkdir(exist_ok=True)
            write_image(made / kind / f"{i}.png", np.asarray(picture, np.uint8))
    write_trajectory(JointTrajectory(yam.joint_names, np.arange(POSES, dtype=float), q), made / "joints.csv")
    save_camera(made / "rough.yaml", TRUTH.posed(ROUGH))
    return made


@contextmanager
def served(folder: Path, *options: str) -> Iterator[str]:
    """The address of the page of a `kinema4d calibrate page` that runs; it must end well with Ctrl-C."""
    command = [sys.executable, "-u", "-m", "kinema4d_ros.cli", "calibrate", "page", "--port", "0"]
    command += ["--camera", str(folder / "rough.yaml"), *options]
    process = subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"the page is at (http://127\.0\.0\.1:\d+)", line)
        assert found is not None, line + (process.stderr.read() if process.stderr else "")
        yield found[1]
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


def numbers(window: Window) -> dict[str, float]:
    """IoU, residual and x as the page writes them."""
    text = window.page.evaluate("() => document.body.innerText")
    out = {}
    for name, pattern in (("iou", r"IoU ([\d.]+)"), ("px", r"([\d.]+) px"), ("x", r"x (-?[\d.]+)")):
        found = re.search(pattern, text)
        if found is not None:
            out[name] = float(found[1])
    return out


def pushed(window: Window, steps: int) -> None:
    """Move the first coarse slider with the keyboard, as a person may."""
    thumb = window.page.get_by_role("slider").first
    thumb.focus()
    for _ in range(abs(steps)):
        thumb.press("ArrowRight" if steps > 0 else "ArrowLeft")


def wait_for_value(window: Window, name: str, wanted: float) -> None:
    """Wait for a number; it may pass by others, because the page draws what the slider passes by."""
    deadline = time.monotonic() + WAIT_S
    while abs(numbers(window).get(name, np.inf) - wanted) > 1.5e-4:
        assert time.monotonic() < deadline, f"{name} is {numbers(window).get(name)}, not {wanted}"
        time.sleep(0.1)


def wait_for_change(window: Window, name: str, old: float) -> dict[str, float]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        now = numbers(window)
        if now.get(name, old) != old:
            return now
        time.sleep(0.1)
    raise AssertionError(f"{name} stayed at {old}")


def test_sliders_fit_reset_and_save(browser: Any, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "lab.yaml"
    options = [str(folder / "images"), "--masks", str(folder / "masks"), "--joints", str(folder / "joints.csv")]
    with served(folder, *options, "--out", str(out)) as url:
        window = Window(browser, url, wait_s=WAIT_S, size=(1300, 900))
        window.wait_for_text("IoU")
        port = int(url.rsplit(":", 1)[1])
        assert listeners(port) == {"127.0.0.1"}
        assert status(ask(port, headers={"Host": f"evil.example:{port}"})) == 403
        assert status(ask(port, headers=upgrade(Origin="http://evil.example"))) == 403
        first = numbers(window)
        assert first["iou"] < 0.9
        assert first["x"] == pytest.approx(ROUGH[0, 3], abs=1e-4)
        pushed(window, 8)
        wait_for_value(window, "x", first["x"] + 8 * STEP_M)
        window.press("Reset")
        window.wait_for_text("Reset to the start pose")
        wait_for_value(window, "x", first["x"])
        window.press("Fit")
        window.wait_for_text(f"fitted to {POSES} masks")
        fitted = wait_for_change(window, "iou", first["iou"])
        assert fitted["iou"] > 0.97
        assert fitted["px"] < first["px"]
        window.press("Save")
        window.wait_for_text("Saved")
        assert not window.complaints
        picture = os.environ.get("KINEMA4D_PAGE_PICTURE")
        if picture:
            window.page.screenshot(path=picture)
        window.page.close()
    d = difference(read_camera(out).base_T_camera, TRUTH.base_T_camera)
    assert 1e3 * np.linalg.norm(d[:3]) < 3.0
    assert np.degrees(np.linalg.norm(d[3:])) < 0.3
    saved = read_pose(out)
    assert saved.method.startswith("manual")
    assert saved.residuals.mask_iou == pytest.approx(fitted["iou"], abs=0.002)


def test_a_live_camera_is_followed(browser: Any, folder: Path, tmp_path: Path, yam: Robot, graph: Graph) -> None:
    drivers = Drivers(graph, yam, TRUTH)
    with served(folder, "--topic", "camera/image_raw", "--out", str(tmp_path / "live.yaml")) as url:
        window = Window(browser, url, wait_s=WAIT_S, size=(1300, 900))
        window.wait_for_text("of the outline fits the edges")
        source = "() => document.querySelector('img[alt]').src"
        before = window.page.evaluate(source)
        drivers.positions[yam.joint_names.index("joint1")] += 0.6
        window.wait_for(f"old => ({source})() !== old", before, "the arm's new place in the picture")
        assert not window.complaints
        window.page.close()
