"""A picture of the web page, taken by a headless browser beside the demonstration."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np

__all__ = ["PagePicture"]

OPEN_MS = 120_000
PICTURE_S = 120.0
FADED_IN = 25.0
"""Grey levels of contrast that the scene has when it is drawn, and the white page before it does not."""

# A few pictures a second are enough, and a CPU that draws WebGL at full speed has no time for the graph.
_SLOW_DISPLAY = "window.requestAnimationFrame = draw => setTimeout(() => draw(performance.now()), 300);"
_CLOSE_NOTES = "() => document.querySelectorAll('[class*=Notification-close]').forEach(button => button.click())"


class PagePicture(threading.Thread):
    """Opens the page at once, because a CPU takes long to draw it, and takes its picture when told to.

    What goes wrong is printed in a line and costs nothing but the picture.
    """

    def __init__(self, path: Path, port: int) -> None:
        super().__init__(name="page picture", daemon=True)
        self._path = path
        self._url = f"http://127.0.0.1:{port}"
        self._due = threading.Event()
        self._given_up = threading.Event()

    def take(self, wait_s: float) -> None:
        """Take the picture from now on; returns when it is there, or after `wait_s`."""
        self._due.set()
        self.join(timeout=wait_s)

    def give_up(self, wait_s: float) -> None:
        """Wait a little longer, then end without a picture."""
        self.join(timeout=wait_s)
        self._given_up.set()
        self._due.set()
        self.join(timeout=10.0)

    def run(self) -> None:
        """The thread."""
        browser = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
        try:
            from playwright.sync_api import Error, sync_playwright
        except ImportError:
            browser = None
        if browser is None:
            print("no picture of the page: it needs Chromium (sudo apt-get install chromium) and playwright")
            return
        options = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--disable-background-networking"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.append("--no-sandbox")  # as root, Chromium does not start with its sandbox
        try:
            with sync_playwright() as playwright:
                chromium = playwright.chromium.launch(executable_path=browser, args=options)
                self._photograph(chromium.new_page(viewport={"width": 1280, "height": 800}))
                chromium.close()
        except (Error, OSError) as error:
            print(f"no picture of the page: {str(error).splitlines()[0]}")

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
    """Standard deviation of the grey levels in the middle of a picture."""
    grey = np.asarray(cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_GRAYSCALE))
    height, width = grey.shape
    return float(grey[height // 4 : 3 * height // 4, width // 3 : 2 * width // 3].std())
