"""Playback node: publishes one outcome of the newest rollout as images and clouds at the plan's rate, in a loop."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from kinema4d_msgs.srv import Playback as PlaybackSrv
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.outcomes import Patches
from kinema4d_ros.previews.playback import PlaybackClock
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.errors import error_to_msg
from kinema4d_ros.ros.messages.images import decode_rgb, image_from_array
from kinema4d_ros.ros.messages.outcomes import alternatives_from_msg, outcomes_to_markers
from kinema4d_ros.ros.messages.points import cloud_from_points
from kinema4d_ros.ros.messages.rollout import basis_from_msg, decode_points, require_whole
from kinema4d_ros.ros.messages.stamps import header, nanoseconds
from kinema4d_ros.ros.nodes.common import Health, KinemaNode, run_node

__all__ = ["PlaybackNode", "main"]

TICK_S = 0.005


class PlaybackNode(KinemaNode):
    """Publisher of the rollout's frames, and server of the playback service."""

    def __init__(self) -> None:
        super().__init__("playback")
        self._player = PlaybackClock()
        self._lock = threading.Lock()
        self._rollout: tuple[Any, PinholeCamera] | None = None
        self._show_again = threading.Event()
        self._published = 0
        self._image = self.publisher(names.PREDICTED_IMAGE)
        self._cloud = self.publisher(names.PREDICTED_POINTS)
        self._outcomes = self.publisher(names.PREDICTED_OUTCOMES)
        self._alternatives: tuple[Any, tuple[Patches, ...]] | None = None
        """A rollout message and the frames of its other outcomes, decoded when one of them is first shown."""
        self.subscription(names.PREDICTED_ROLLOUT, self._take)
        self.service(names.PLAYBACK, self._control)
        self._worker = threading.Thread(target=self._play_forever, name="play", daemon=True)
        self._worker.start()

    def _take(self, message: Any) -> None:
        try:
            camera = require_whole(message)
        except KinemaError as error:
            self.complain(error, "rollout: ")
            return
        with self._lock:
            self._rollout = (message, camera)
            self._player.load(list(message.times), self.now_s(), len(message.outcomes))
            self._outcomes.publish(outcomes_to_markers(message, 0))
        self._show_again.set()

    def _play_forever(self) -> None:
        shown: tuple[str, int, int, bool, bool] | None = None
        while not self.closing.wait(TICK_S):
            with self._lock:
                rollout = self._rollout
                frame, outcome = self._player.frame(self.now_s()), self._player.outcome
            if rollout is None or frame is None:
                continue
            # A new subscriber gets the current frame even when paused; without subscribers nothing is decoded.
            picture = self._image.get_subscription_count() > 0
            points = self._cloud.get_subscription_count() > 0
            due = (rollout[0].rollout_id, outcome, frame, picture, points)
            if due == shown and not self._show_again.is_set():
                continue
            self._show_again.clear()
            shown = due
            try:
                if picture or points:
                    self._publish(*rollout, outcome, frame, picture=picture, points=points)
            except Exception as error:
                self.complain(error, "a frame of the rollout: ")

    def _publish(
        self, message: Any, camera: PinholeCamera, outcome: int, frame: int, *, picture: bool, points: bool
    ) -> None:
        stamp_ns = nanoseconds(message.header.stamp) + round(message.times[frame] * 1e9)
        head = header(stamp_ns, camera.frame_id)
        rgb = decode_rgb([message.rgb[frame]], width=camera.width, height=camera.height)[0]
        xyz = np.empty(rgb.shape, np.float32)
        basis = None
        if points:
            decode_points(message.points[frame], camera, out=xyz)
            basis = basis_from_msg(message, camera, slice(frame, frame + 1))
        source = None if basis is None else basis[0]
        if outcome:
            self._frames_of(message, camera)[outcome - 1][frame].write(rgb, xyz, None, source)
        if picture:
            self._image.publish(image_from_array(rgb, "rgb8", head))
        if points:
            self._cloud.publish(cloud_from_points(xyz, rgb, head, basis=source))
        self._published += 1

    def _frames_of(self, message: Any, camera: PinholeCamera) -> tuple[Patches, ...]:
        """Return the frames of the outcomes after the first; the playback's thread only."""
        if self._alternatives is None or self._alternatives[0] is not message:
            shape = (len(message.times), camera.height, camera.width)
            self._alternatives = (message, alternatives_from_msg(message.alternatives, shape))
        return self._alternatives[1]

    def _control(self, request: Any, response: Any) -> Any:
        now_s = self.now_s()
        try:
            with self._lock:
                self._command(request.command, request.value, now_s)
            response.error = error_to_msg()
        except KinemaError as error:
            response.error = error_to_msg(error)
        with self._lock:
            response.playing = self._player.playing and self._rollout is not None
            response.time_s = self._player.position_s(now_s)
            response.duration_s = self._player.duration_s
            response.speed = self._player.speed
            response.outcome = self._player.outcome
            response.rollout_id = "" if self._rollout is None else self._rollout[0].rollout_id
        return response

    def _command(self, command: int, value: float, now_s: float) -> None:
        request = PlaybackSrv.Request
        if command == request.STATUS:
            return
        if self._rollout is None:
            raise KinemaError(
                "there is no rollout to play",
                expected="a previewed plan",
                hint="send a plan first",
                code=ErrorCode.NO_ROLLOUT,
            )
        if command == request.PLAY:
            self._player.play(now_s)
        elif command == request.PAUSE:
            self._player.pause(now_s)
        elif command == request.SEEK:
            self._player.seek(value, now_s)
            self._show_again.set()
        elif command == request.SPEED:
            self._player.set_speed(value, now_s)
        elif command == request.OUTCOME:
            self._player.show_outcome(value)
            self._outcomes.publish(outcomes_to_markers(self._rollout[0], self._player.outcome))
        else:
            raise KinemaError(
                f"playback command {command} is not known",
                expected="STATUS, PLAY, PAUSE, SEEK, SPEED or OUTCOME",
                code=ErrorCode.PLAYBACK_BAD_COMMAND,
            )

    def health(self) -> Health:
        """Report whether a rollout is playing."""
        values = {"frames published": self._published, "speed": self._player.speed}
        if self._rollout is None:
            return Health(message="waiting for a rollout", values=values)
        return Health(message="playing" if self._player.playing else "paused", values=values)

    def close(self) -> None:
        """Wait for the playback thread."""
        super().close()
        self._worker.join(timeout=5.0)


def main() -> int:
    """Run the node."""
    return run_node(PlaybackNode)


if __name__ == "__main__":
    raise SystemExit(main())
