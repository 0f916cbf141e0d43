"""Headless Chromium for tests of the web page, with a record of its errors."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
MISSING = "needs Chromium: apt-get install -y chromium"

# WebGL on the CPU; no background requests of the browser, which fail without a network.
_FLAGS = [
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--ignore-gpu-blocklist",
]
_HARMLESS = ("THREE.Clock", "GPU stall due to ReadPixels")
"""Warnings of the page's libraries that are irrelevant for the page."""


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser."""
    from playwright.sync_api import sync_playwright

    flags = [*_FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags, timeout=180_000)
        try:
            yield browser
        finally:
            browser.close()


# Rendering WebGL on the CPU at full rate would leave no time for the graph under test.
_SLOW_DISPLAY = """
window.requestAnimationFrame = draw => setTimeout(() => draw(performance.now()), 400);
window.cancelAnimationFrame = clearTimeout;
"""
_POLL_MS = 200


class Window:
    """A browser window with the page; records errors and all requested URLs."""

    def __init__(self, browser: Any, url: str, *, wait_s: float, size: tuple[int, int] = (1000, 700)) -> None:
        # Half the resolution: rendering runs on the CPU.
        self.page = browser.new_page(viewport={"width": size[0], "height": size[1]}, device_scale_factor=0.5)
        self.page.set_default_timeout(1000 * wait_s)
        self.page.add_init_script(_SLOW_DISPLAY)
        self.complaints: list[str] = []
        self.addresses: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        self.page.on("request", lambda request: self.addresses.append(request.url))
        self.page.on("websocket", lambda socket: self.addresses.append(socket.url))
        self.page.goto(url)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning") and not any(part in message.text for part in _HARMLESS):
            self.complaints.append(f"{message.type}: {message.text}")

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True)

    def press(self, name: str) -> None:
        """Click once enabled, by script, because a busy renderer delays the browser's mouse events."""
        self.wait_until(name, enabled=True)
        self.button(name).evaluate("button => button.click()")

    def wait_until(self, name: str, *, enabled: bool) -> None:
        self.wait_for(
            "([name, enabled]) => [...document.querySelectorAll('button')]"
            ".some(b => b.innerText.trim() === name && b.disabled !== enabled)",
            [name, enabled],
            f"'{name}' to be {'enabled' if enabled else 'disabled'}",
        )

    def wait_for_text(self, text: str) -> None:
        self.wait_for("text => document.body.innerText.includes(text)", text, f"'{text}'")

    def wait_for(self, condition: str, argument: Any, what: str) -> None:
        """Wait until a function of the page returns true; a failure shows the text of the page."""
        from playwright.sync_api import TimeoutError as WaitedTooLong

        try:
            self.page.wait_for_function(condition, arg=argument, polling=_POLL_MS)
        except WaitedTooLong:
            text = self.page.evaluate("() => document.body.innerText")
            raise AssertionError(f"waited for {what} in vain; the page says:\n{text}") from None

    def slider(self) -> tuple[float, float]:
        """Return the position and the end of the time slider."""
        thumb = self.page.get_by_role("slider").first
        return float(thumb.get_attribute("aria-valuenow")), float(thumb.get_attribute("aria-valuemax"))
