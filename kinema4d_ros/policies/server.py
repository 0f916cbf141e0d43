"""`PolicyServer`: any policy of this package behind a websocket, for the client in `remote.py`.

Loopback only, unless a token is set: whoever can reach the port can make this machine compute.
"""

from __future__ import annotations

import hmac
import http
import ipaddress
import logging
import threading
from types import TracebackType
from typing import Any

import numpy as np
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from kinema4d_ros.camera import PinholeCamera
from kinema4d_ros.errors import ErrorCode, KinemaError
from kinema4d_ros.policies.guard import GuardedPolicy
from kinema4d_ros.policies.protocol import ActionChunk, EpisodeStart, Observation, PolicyError
from kinema4d_ros.policies.registry import PolicySpec, make_policy
from kinema4d_ros.policies.wire import MAX_MESSAGE_BYTES, PROTOCOL, VERSION, pack, unpack
from kinema4d_ros.robot.model import Robot

__all__ = ["PolicyServer"]

MAX_CLIENTS = 8

_log = logging.getLogger(__name__)


class PolicyServer:
    """Serves a policy until it is closed; every connection has one of its own.

    Args:
        spec: the policy.
        robot: whose joints it moves; clients of others are refused.
        host: where to listen; anything but this machine needs a token.
        port: 0 = any free one, see `port`.
        token: that clients have to send; "" = none.
        act_timeout_s: for one chunk.

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
        if not token and not _is_loopback(host):
            raise PolicyError(
                f"host {host} can be reached from other machines and there is no token",
                expected="127.0.0.1, or a token",
                hint="set the token's environment variable on both sides, and use wss:// beyond your own network",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        self._spec = spec if isinstance(spec, PolicySpec) else PolicySpec.parse(spec)
        make_policy(self._spec).close()  # a policy that cannot be made is better known now
        self._robot, self._token, self._act_timeout_s = robot, token, act_timeout_s
        self._places = threading.BoundedSemaphore(MAX_CLIENTS)
        self._connections: set[ServerConnection] = set()
        try:
            self._server = serve(
                self._handle,
                host,
                port,
                process_request=self._admit,
                compression=None,
                max_size=MAX_MESSAGE_BYTES,
                open_timeout=10,
                close_timeout=1,
                ping_interval=None,
            )
        except (OSError, OverflowError) as error:
            raise PolicyError(
                f"port {port} of {host} cannot be listened on: {error}",
                expected="a free port",
                code=ErrorCode.POLICY_UNAVAILABLE,
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="policy server", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.socket.getsockname()[1])

    def wait(self) -> None:
        """Until somebody closes the server."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """Stop listening and hang up on everybody."""
        self._server.shutdown()
        self._thread.join(5.0)
        for connection in tuple(self._connections):
            connection.close(1001, "the server ends")

    def __enter__(self) -> PolicyServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        if self._token:
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                return Response(http.HTTPStatus.UNAUTHORIZED, "Unauthorized", Headers(), b"a token is needed\n")
        # A page in a browser on this machine reaches loopback too; programs send no Origin.
        if request.headers.get("Origin") is not None:
            return Response(http.HTTPStatus.FORBIDDEN, "Forbidden", Headers(), b"not for browsers\n")
        return None

    def _handle(self, connection: ServerConnection) -> None:
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
            _log.info("a client left")
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


def _chunk_message(chunk: ActionChunk) -> dict[str, Any]:
    fields = {"joints": chunk.joints, "base_T_tool": chunk.base_T_tool, "gripper_m": chunk.gripper_m}
    return {"type": "chunk", "times": chunk.times, "done": chunk.done} | {
        k: v for k, v in fields.items() if v is not None
    }


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
