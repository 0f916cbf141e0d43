"""`PolicyServer`: websocket server for any policy of this package; the client is in `remote.py`.

Loopback needs no token, every other address does, because clients can use this machine's computing time. Web pages
are refused by their `Origin`, and by a `Host` name that is not this machine's own (DNS rebinding).
"""

from __future__ import annotations

import contextlib
import http
import logging
import socket
import threading
from types import TracebackType
from typing import Any

import numpy as np
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.policies.guard import GuardedPolicy
from kinema4d_ros.policies.protocol import ActionChunk, EpisodeStart, Observation, PolicyError
from kinema4d_ros.policies.registry import PolicySpec, make_policy
from kinema4d_ros.policies.remote import TOKEN_VARIABLE
from kinema4d_ros.policies.wire import MAX_MESSAGE_BYTES, PROTOCOL, VERSION, pack, unpack
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.runtime.access import is_loopback, is_own_name, require_token, same_secret

__all__ = ["PolicyServer"]

MAX_CLIENTS = 8
MAX_CONNECTIONS = 32
"""Maximum open sockets, each with a thread. Above it, the oldest one without a request is closed."""

REQUEST_TIMEOUT_S = 5.0
"""Timeout of a client's HTTP request."""

ALIVE_EVERY_S, ALIVE_WITHIN_S = 60.0, 120.0
"""Interval and timeout of pings, which free the place of a client that has disappeared."""

_log = logging.getLogger(__name__)
# The library logs a traceback for every client that is refused or sends invalid data.
_quiet_log = logging.getLogger(f"{__name__}.connections")
_quiet_log.setLevel(logging.CRITICAL)


class PolicyServer:
    """Server of a policy; every connection gets its own instance.

    Args:
        spec: of the policy.
        robot: that the policy controls; clients with another robot are refused.
        host: address to listen on; anything but loopback needs a token.
        port: 0 = any free port, see `port`.
        token: that clients must send; "" = none.
        act_timeout_s: timeout of one chunk.

    >>> with PolicyServer("replay:run.npz", robot) as server:   # doctest: +SKIP
    ...     server.wait()
    """

    def __init__(
        self,
        spec: str | PolicySpec,
        robot: Robot,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        act_timeout_s: float = 30.0,
    ) -> None:
        require_token(host, token, TOKEN_VARIABLE, PolicyError)
        self._spec = spec if isinstance(spec, PolicySpec) else PolicySpec.parse(spec)
        make_policy(self._spec).close()  # fail early if the policy cannot be created
        self._robot, self._token, self._act_timeout_s = robot, token, act_timeout_s
        self._local = is_loopback(host)
        self._places = threading.BoundedSemaphore(MAX_CLIENTS)
        self._lock = threading.Lock()
        self._sockets: dict[socket.socket, bool] = {}
        """In the order of connection; True = open, without a request yet."""
        self._connections: set[ServerConnection] = set()
        try:
            self._server = serve(
                self._handle,
                host,
                port,
                process_request=self._admit,
                compression=None,
                max_size=MAX_MESSAGE_BYTES,
                max_queue=2,
                open_timeout=REQUEST_TIMEOUT_S,
                close_timeout=1,
                ping_interval=ALIVE_EVERY_S,
                ping_timeout=ALIVE_WITHIN_S,
                logger=_quiet_log,
            )
        except (OSError, OverflowError) as error:
            raise PolicyError(
                f"cannot listen on port {port} of {host}: {error}",
                expected="a free port",
                code=ErrorCode.POLICY_UNAVAILABLE,
            ) from None
        self._talk, self._server.handler = self._server.handler, self._take
        self._thread = threading.Thread(target=self._server.serve_forever, name="policy server", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port the server listens on."""
        return int(self._server.socket.getsockname()[1])

    def wait(self) -> None:
        """Block until the server is closed."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._server.shutdown()
        self._thread.join(5.0)
        for connection in tuple(self._connections):
            connection.close(1001, "the server is shutting down")

    def __enter__(self) -> PolicyServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _take(self, accepted: socket.socket, address: Any) -> None:
        with self._lock:
            self._sockets[accepted] = True
            oldest = None
            if len(self._sockets) > MAX_CONNECTIONS:
                oldest = next((one for one, waiting in self._sockets.items() if waiting), accepted)
                self._sockets[oldest] = False
        try:
            if oldest is not None:
                with contextlib.suppress(OSError):  # the client has just disconnected
                    oldest.shutdown(socket.SHUT_RDWR)
            self._talk(accepted, address)
        finally:
            with self._lock:
                del self._sockets[accepted]

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        headers = request.headers
        # A page in a browser on this machine reaches loopback too; programs send no Origin.
        if "Origin" in headers:
            return _refusal(http.HTTPStatus.FORBIDDEN, "not for browsers")
        if self._local and not is_own_name("".join(headers.get_all("Host"))):
            return _refusal(http.HTTPStatus.FORBIDDEN, "this server does not have that name")
        if self._token and not same_secret("".join(headers.get_all("Authorization")), f"Bearer {self._token}"):
            return _refusal(http.HTTPStatus.UNAUTHORIZED, "a token is needed")
        return None

    def _handle(self, connection: ServerConnection) -> None:
        with self._lock:
            self._sockets[connection.socket] = False
        if not self._places.acquire(blocking=False):
            connection.close(1013, "too many clients")
            return
        policy: GuardedPolicy | None = None
        self._connections.add(connection)
        try:
            policy = GuardedPolicy(make_policy(self._spec), act_timeout_s=self._act_timeout_s)
            connection.send(pack({"protocol": PROTOCOL, "version": VERSION, "name": policy.name}))
            for data in connection:
                try:
                    answer = self._answer(policy, unpack(data))
                except KinemaError as error:
                    answer = {"type": "error", "code": int(error.code), "what": error.what, "expected": error.expected}
                if policy.lost:
                    policy = GuardedPolicy(make_policy(self._spec), act_timeout_s=self._act_timeout_s)
                connection.send(pack(answer))
        except ConnectionClosed:
            _log.info("a client disconnected")
        finally:
            self._connections.discard(connection)
            self._places.release()
            if policy is not None:
                policy.close()

    def _answer(self, policy: GuardedPolicy, message: dict[str, Any]) -> dict[str, Any]:
        if message.get("type") == "reset":
            policy.reset(self._start(message))
            return {"type": "ok"}
        if message.get("type") == "act":
            return _chunk_message(policy.act(_observation(message, len(self._robot.joint_names))))
        raise PolicyError(f"message of type {str(message.get('type'))[:40]!r}", expected="reset or act")

    def _start(self, message: dict[str, Any]) -> EpisodeStart:
        names = message.get("joint_names")
        if not isinstance(names, list) or tuple(names) != self._robot.joint_names:
            raise PolicyError(
                f"robot {str(message.get('robot'))[:80]!r} has joints {str(names)[:200]}",
                expected=f"robot '{self._robot.name}' with {', '.join(self._robot.joint_names)}",
            )
        seed = message.get("seed", 0)
        if type(seed) is not int or seed < 0:
            raise PolicyError(f"seed is {str(seed)[:40]}", expected="0 or more")
        return EpisodeStart(self._robot, str(message.get("instruction", "")), str(message.get("task", "pick")), seed)


def _observation(message: dict[str, Any], joints: int) -> Observation:
    try:
        image, camera = message["image"], message["camera"]
        q = np.asarray(message["joints"], dtype=np.float64)
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or q.shape != (joints,):
            raise ValueError(f"image {image.shape} of {image.dtype}, joints {q.shape}")
        seen = PinholeCamera(image.shape[1], image.shape[0], camera["K"], base_T_camera=camera["base_T_camera"])
        return Observation(image, seen, q, float(message["gripper_m"]), float(message["time_s"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PolicyError(
            f"the observation cannot be read: {error!r}"[:300],
            expected=f"image (H, W, 3) uint8, camera, joints ({joints},), gripper_m, time_s",
        ) from None


def _refusal(status: http.HTTPStatus, why: str) -> Response:
    body = f"{why}\n".encode()
    return Response(status, status.phrase, Headers({"Content-Length": str(len(body)), "Connection": "close"}), body)


def _chunk_message(chunk: ActionChunk) -> dict[str, Any]:
    fields = {"joints": chunk.joints, "base_T_tool": chunk.base_T_tool, "gripper_m": chunk.gripper_m}
    return {"type": "chunk", "times": chunk.times, "done": chunk.done} | {
        k: v for k, v in fields.items() if v is not None
    }
