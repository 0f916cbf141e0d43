"""The headless demo: start the graph, preview a pick, approve and execute it in the lab, save, exit.

It moves only the simulated lab. With a real arm it stops after the preview.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.io.files import replacing_folder
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.io.trajectories import read_trajectory
from kinema4d_ros.robot import Robot
from kinema4d_ros.runtime.child import on_end_signal
from kinema4d_ros.runtime.processes import ProcessSpec, Supervisor

__all__ = ["PagePicture", "run_demo"]

# Screenshot of the web page by a headless browser.

OPEN_MS = 120_000
PICTURE_S = 120.0
FADED_IN = 25.0
"""Grey-level standard deviation above which the scene counts as drawn; a blank page is below."""

# Limits the frame rate: WebGL at full speed in software would take the CPU from the graph.
_SLOW_DISPLAY = "window.requestAnimationFrame = draw => setTimeout(() => draw(performance.now()), 300);"
_CLOSE_NOTES = "() => document.querySelectorAll('[class*=Notification-close]').forEach(button => button.click())"


class PagePicture(threading.Thread):
    """Thread that opens the page early, because software rendering is slow, and takes a screenshot on request.

    Errors are printed in one line; the demo continues without the screenshot.
    """

    def __init__(self, path: Path, port: int) -> None:
        super().__init__(name="page picture", daemon=True)
        self._path = path
        self._url = f"http://127.0.0.1:{port}"
        self._due = threading.Event()
        self._given_up = threading.Event()

    def take(self, wait_s: float) -> None:
        """Request the screenshot; returns when it is written, or after `wait_s`."""
        self._due.set()
        self.join(timeout=wait_s)

    def give_up(self, wait_s: float) -> None:
        """Wait up to `wait_s` for the screenshot, then end the thread without it."""
        self.join(timeout=wait_s)
        self._given_up.set()
        self._due.set()
        self.join(timeout=10.0)

    def run(self) -> None:
        """Run the browser until the screenshot is written or given up."""
        browser = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
        try:
            from playwright.sync_api import Error, sync_playwright
        except ImportError:
            browser = None
        if browser is None:
            print("no screenshot of the page: it needs Chromium (sudo apt-get install chromium) and playwright")
            return
        options = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--disable-background-networking"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.append("--no-sandbox")  # Chromium's sandbox does not start as root
        try:
            with sync_playwright() as playwright:
                chromium = playwright.chromium.launch(executable_path=browser, args=options)
                self._photograph(chromium.new_page(viewport={"width": 1280, "height": 800}))
                chromium.close()
        except (Error, OSError) as error:
            print(f"no screenshot of the page: {str(error).splitlines()[0]}")

    def _photograph(self, page: Any) -> None:
        page.add_init_script(_SLOW_DISPLAY)
        page.goto(self._url, timeout=OPEN_MS)
        page.wait_for_selector("canvas", timeout=OPEN_MS)
        while not self._due.is_set():
            page.wait_for_timeout(200)
        deadline = time.monotonic() + PICTURE_S
        while not self._given_up.is_set():
            page.wait_for_timeout(1_000)
            page.evaluate(_CLOSE_NOTES)
            picture = page.screenshot(timeout=1000 * PICTURE_S)
            if _contrast(picture) > FADED_IN or time.monotonic() > deadline:
                self._path.write_bytes(picture)
                return


def _contrast(png: bytes) -> float:
    """Compute the standard deviation of the grey levels in the middle of an image."""
    grey = np.asarray(cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_GRAYSCALE))
    height, width = grey.shape
    return float(grey[height // 4 : 3 * height // 4, width // 3 : 2 * width // 3].std())


START_S = 180.0
"""Timeout of the graph's start. The first start compiles the rasteriser; later ones take seconds."""

PREVIEW_S = 600.0
LOOK_S, LATE_S = 60.0, 120.0
"""Timeouts of the screenshot before the approval, which must come while the preview is fresh, and at the end."""

SUMMARY = "demo.json"


def run_demo(processes: Sequence[ProcessSpec], out: Path, values: Mapping[str, str], port: int) -> int:
    """Run the demo to its end; exit code 0 on success, 1 when a step failed."""
    from kinema4d_ros.cli.sim import graph_environment

    os.environ.update(graph_environment())
    supervisor = Supervisor(processes)
    on_end_signal(_interrupt)
    thread = threading.Thread(target=supervisor.run, name="graph")
    thread.start()
    try:
        with replacing_folder(out, is_ours=lambda folder: (folder / SUMMARY).is_file()) as folder:
            summary = _demonstrate(folder, values, port, supervisor)
            (folder / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
        print(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
        return 0
    except KinemaError as error:
        print(f"the demonstration stopped: {error}")
        return 1
    finally:
        supervisor.stop.set()
        thread.join(timeout=60.0)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _demonstrate(folder: Path, values: Mapping[str, str], port: int, supervisor: Supervisor) -> dict[str, Any]:
    from kinema4d_ros.ros import names
    from kinema4d_ros.ros.client import PreviewClient
    from kinema4d_ros.ros.messages.rollout import rollout_from_msg

    robot = Robot.load(values["robot"])
    lab = values["lab"].lower() == "true"
    started = time.monotonic()
    summary: dict[str, Any] = {"arguments": dict(values)}
    with PreviewClient(values["namespace"]) as client:
        for endpoint in (names.JOINT_STATES, names.CAMERA_IMAGE, names.PREDICTED_ROLLOUT, names.ROBOT_OVERLAY):
            client.listen(endpoint)
        if lab:
            client.listen(names.LAB_OBJECTS)

        def live() -> bool:
            if any(member.failed for member in supervisor.members):
                raise KinemaError(
                    "a node failed to start", expected="all nodes running", hint="see its error message above"
                )
            wanted = [names.JOINT_STATES, names.ROBOT_OVERLAY, *([names.LAB_OBJECTS] if lab else [])]
            return all(client.newest(endpoint) is not None for endpoint in wanted)

        client.wait_for(live, START_S, "the live twin")
        summary["live_after_s"] = round(time.monotonic() - started, 2)
        picture = PagePicture(folder / "page.png", port) if values["viewer"].lower() == "true" else None
        plan, target = _plan(client, robot, lab)
        report = client.preview(plan, timeout_s=PREVIEW_S)
        summary["previewed_after_s"] = round(time.monotonic() - started, 2)
        if picture is not None:
            # Not earlier: a browser with software rendering would slow down the loading of the model.
            picture.start()
        summary["report"] = _numbers(report)
        rollout = rollout_from_msg(client.newest(names.PREDICTED_ROLLOUT))
        saved = rollout.save(folder / "rollout")
        shutil.copyfile(saved / "preview.mp4", folder / "prediction.mp4")
        if picture is not None:
            picture.take(LOOK_S)
        if lab:
            summary["execution"] = _execute(client, report.plan_hash, target)
        if picture is not None:
            picture.give_up(LATE_S)
    return summary


def _plan(client: Any, robot: Robot, lab: bool) -> tuple[Any, str]:
    from kinema4d_ros.kinematics import choose_kinematics
    from kinema4d_ros.ros import names
    from kinema4d_ros.ros.messages.page import objects_from_markers
    from kinema4d_ros.web.demo import plan_pick_and_place

    if not lab:
        return read_trajectory(share_path("config/demo/pick_and_place.csv"), robot), ""
    state = client.newest(names.JOINT_STATES)
    q = robot.positions(list(state.name), np.array(state.position)[None])[0]
    markers = client.newest(names.LAB_OBJECTS)
    target = next(marker.ns for marker in markers.markers if "target" in marker.text.split())
    return plan_pick_and_place(choose_kinematics(robot), q, objects_from_markers(markers), target), target


def _execute(client: Any, plan_hash: str, target: str) -> dict[str, Any]:
    from kinema4d_ros.ros import names
    from kinema4d_ros.ros.messages.page import objects_from_markers

    def position() -> Any:
        return objects_from_markers(client.newest(names.LAB_OBJECTS))[target].position

    before = position().copy()
    token = client.approve(plan_hash, "the demonstration, in the simulated lab")
    duration_s = client.execute(plan_hash, token)
    time.sleep(duration_s + 1.0)
    moved = float(np.linalg.norm(position() - before))
    print(f"executed in the lab: '{target}' moved {100 * moved:.1f} cm")
    return {"object": target, "moved_m": round(moved, 4), "duration_s": duration_s}


def _numbers(report: Any) -> dict[str, Any]:
    return {
        "plan_hash": report.plan_hash,
        "rollout_id": report.rollout_id,
        "min_clearance_m": _known(report.min_clearance_m),
        "min_clearance_link": report.min_clearance_link,
        "clearance_basis": report.clearance_basis,
        "grasp_s": _known(report.grasp_s),
        "release_s": _known(report.release_s),
        "contact": report.contact,
        "warnings": list(report.warnings),
    }


def _known(value: float) -> float | None:
    """Return None for NaN and infinity, which JSON cannot represent."""
    return value if math.isfinite(value) else None
