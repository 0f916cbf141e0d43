"""The page's time slider and the playback node, kept in step through the playback service."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kinema4d_msgs.srv import Playback
from kinema4d_ros.bridge import names
from kinema4d_ros.bridge.calls import ServiceCalls
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.nodes.common import KinemaNode
from kinema4d_ros.viewer.page import Page

__all__ = ["PlaybackFollower"]


class PlaybackFollower:
    """Passes on what is wished of the playback, and shows where it is."""

    def __init__(self, node: KinemaNode, page: Page, calls: ServiceCalls, rollout_id: Callable[[], str | None]) -> None:
        self._node = node
        self._page = page
        self._calls = calls
        self._rollout_id = rollout_id
        """Of the prediction on the page; None when there is none."""
        self._lock = threading.Lock()
        self._wishes: dict[int, float] = {}

    def wish(self, command: int, value: float = 0.0) -> None:
        """Ask for a command of kinema4d_msgs/srv/Playback; of several alike the newest counts."""
        with self._lock:
            self._wishes[command] = value

    def seek(self, time_s: float) -> None:
        """Ask for a moment of the rollout."""
        self._page.touched_slider()
        self.wish(Playback.Request.SEEK, time_s)

    def follow(self) -> None:
        """One round: wishes out, or a look at where the playback is."""
        with self._lock:
            wishes, self._wishes = self._wishes, {}
        if not wishes and (self._rollout_id() is None or not self._page.windows):
            return
        try:
            for command, value in wishes.items() or ((Playback.Request.STATUS, 0.0),):
                answer = self._calls.call(names.PLAYBACK, Playback.Request(command=command, value=value))
        except KinemaError as error:
            self._page.playback_missing(f"The prediction cannot be played: {error.what}")
            self._node.closing.wait(1.0)
            return
        if answer.rollout_id == self._rollout_id():
            self._page.show_playback(answer.time_s, answer.playing, answer.speed)
