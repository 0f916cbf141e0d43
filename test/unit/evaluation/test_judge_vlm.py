"""The VLM judge against a real server on loopback, with valid and invalid answers."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import cv2
import numpy as np
import pytest
from support.judge_scenes import pick

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.evaluation import EvaluationError, Lifted, Task
from kinema4d_ros.evaluation.judges import VlmJudge


class Server(ThreadingHTTPServer):
    """Server that sends `reply` and stores the requests."""

    daemon_threads = True
    reply: object = ""
    status = 200
    delay_s = 0.0
    asked: list[dict]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append({"path": self.path, "body": body, "key": self.headers.get("Authorization")})
        time.sleep(self.server.delay_s)
        reply = self.server.reply
        if isinstance(reply, str):
            reply = {"choices": [{"message": {"role": "assistant", "content": reply}}]}
        data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(self.server.status)
        if self.server.status == 302:
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    http = Server(("127.0.0.1", 0), Handler)
    http.asked = []
    thread = threading.Thread(target=http.serve_forever, args=(0.02,))
    thread.start()
    yield http
    http.shutdown()
    http.server_close()
    thread.join()


def judge(server: Server, **rest) -> VlmJudge:
    return VlmJudge(f"http://127.0.0.1:{server.server_port}/v1", "eyes", frames=4, **rest)


def test_frames_are_sent_and_the_answer_is_parsed(server: Server) -> None:
    rollout, target, _ = pick()
    server.reply = 'Here: {"success": true, "progress": 1, "confidence": 0.8, "frame": 13, "reason": "it is up"}'
    verdict = judge(server, api_key="secret").judge(rollout, Task(Lifted(0.04), "ball", "pick up the ball"), target)
    assert (verdict.success, verdict.progress, verdict.confidence, verdict.reason) == (True, 1.0, 0.8, "it is up")
    assert verdict.deciding_frame == 14, "the nearest frame that was shown"
    assert verdict.track is None
    (asked,) = server.asked
    assert asked["path"] == "/v1/chat/completions"
    assert asked["key"] == "Bearer secret"
    assert asked["body"]["model"] == "eyes"
    content = asked["body"]["messages"][1]["content"]
    assert "pick up the ball" in content[0]["text"]
    assert "4 cm higher" in content[0]["text"]
    pictures = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    assert len(pictures) == 4
    data = base64.b64decode(pictures[-1].removeprefix("data:image/png;base64,"))
    seen = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    np.testing.assert_array_equal(seen, rollout.rgb[-1])


def test_the_answer_may_be_cannot_tell(server: Server) -> None:
    server.reply = '{"success": null, "confidence": 0.9}'
    verdict = judge(server).judge(pick()[0], Task(Lifted()))
    assert (verdict.success, verdict.confidence) == (None, 0.0)
    assert server.asked[0]["key"] is None


@pytest.mark.parametrize(
    "reply",
    [
        "I think it worked.",
        '{"success": "yes"}',
        '{"success": true, "progress": 7}',
        '{"success": true, "confidence": NaN}',
        '{"progress": 1}',
        '["success"]',
        "",
        b"<html>",
        {"choices": []},
        {"choices": [{"message": {"content": None}}]},
        b"x" * 1_100_000,
    ],
    ids=lambda reply: str(reply)[:20],
)
def test_invalid_answers_are_refused(server: Server, reply: object) -> None:
    server.reply = reply
    with pytest.raises(EvaluationError):
        judge(server).judge(pick()[0], Task(Lifted()))


@pytest.mark.parametrize("status", [302, 401, 500])
def test_errors_of_the_server_are_reported(server: Server, status: int) -> None:
    server.status, server.reply = status, b"no such thing"
    with pytest.raises(EvaluationError, match=f"answers {status}") as caught:
        judge(server).judge(pick()[0], Task(Lifted()))
    assert caught.value.code == ErrorCode.SETUP_MISSING
    assert len(server.asked) == 1, "a redirection is not followed"


def test_a_slow_or_missing_server(server: Server) -> None:
    server.delay_s, server.reply = 1.0, "{}"
    with pytest.raises(EvaluationError, match="does not answer") as caught:
        judge(server, timeout_s=0.2).judge(pick()[0], Task(Lifted()))
    assert caught.value.code == ErrorCode.SETUP_MISSING
    with pytest.raises(EvaluationError, match="does not answer"):
        VlmJudge("http://127.0.0.1:9/v1", "eyes", timeout_s=2).judge(pick()[0], Task(Lifted()))


def test_bad_settings_are_refused_and_the_key_is_not_shown() -> None:
    for bad in ({"url": "file:///etc/passwd"}, {"url": "localhost"}, {"model": ""}, {"frames": 1}, {"timeout_s": 0}):
        with pytest.raises(EvaluationError) as caught:
            VlmJudge(**{"url": "http://a/v1", "model": "eyes", **bad})
        assert caught.value.code == ErrorCode.ARGUMENT_INVALID
    assert "secret" not in repr(VlmJudge("http://a/v1", "eyes", "secret"))
