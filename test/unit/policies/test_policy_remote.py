"""A policy over a real socket, and servers that hang, crash, or send invalid or oversized data."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.sync.server import Server, ServerConnection, serve

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.tables import write_trajectory
from kinema4d_ros.policies import EpisodeStart, Observation, PolicyError
from kinema4d_ros.policies.registry import make_policy
from kinema4d_ros.policies.remote import TOKEN_VARIABLE, RemotePolicy
from kinema4d_ros.policies.server import PolicyServer
from kinema4d_ros.policies.wire import MAX_MESSAGE_BYTES, PROTOCOL, pack, unpack
from kinema4d_ros.robot import Robot

CAMERA = PinholeCamera(4, 3, [[4, 0, 2], [0, 4, 1.5], [0, 0, 1]])
HELLO = {"protocol": PROTOCOL, "version": 1, "name": "odd"}


def seen(robot: Robot, time_s: float = 0.0) -> Observation:
    return Observation(np.zeros((3, 4, 3), np.uint8), CAMERA, robot.home_position(), 0.05, time_s)


@pytest.fixture
def recording(tmp_path: Path, yam: Robot) -> Path:
    times = np.arange(31) / 10
    q = yam.home_position() + np.outer(0.05 * times, [1, 1, 1, 1, 1, 1, 0])
    write_trajectory(JointTrajectory(yam.joint_names, times, q), tmp_path / "run.npz")
    return tmp_path / "run.npz"


@pytest.fixture
def odd() -> Iterator[Callable[[Callable[[ServerConnection], None]], str]]:
    """Start servers with a given behaviour; returns their address."""
    servers: list[Server] = []

    def start(handler: Callable[[ServerConnection], None]) -> str:
        server = serve(handler, "127.0.0.1", 0, compression=None, close_timeout=0.2, max_size=None)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"127.0.0.1:{server.socket.getsockname()[1]}"

    yield start
    for server in servers:
        server.shutdown()


def answering(answer: Callable[[ServerConnection], None]) -> Callable[[ServerConnection], None]:
    """Follow the protocol until the first observation, then send the given answer."""

    def handler(connection: ServerConnection) -> None:
        connection.send(pack(HELLO))
        for data in connection:
            if unpack(data)["type"] == "reset":
                connection.send(pack({"type": "ok"}))
            else:
                answer(connection)

    return handler


def sending(message: Any) -> Callable[[ServerConnection], None]:
    return answering(lambda connection: connection.send(message))


@settings(max_examples=40)
@given(
    array=hnp.arrays(
        st.sampled_from([np.uint8, np.float64, np.float32, np.int64, np.bool_]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    ),
    openpi=st.booleans(),
)
def test_arrays_cross_the_wire_unchanged(array: np.ndarray[Any, Any], openpi: bool) -> None:
    back = unpack(pack({"a": {"b": [array, 3, "text", None]}}, openpi=openpi))["a"]["b"]
    assert back[0].dtype == array.dtype
    np.testing.assert_array_equal(back[0], array)
    assert back[1:] == [3, "text", None]


@settings(max_examples=60)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_policy_error(data: bytes) -> None:
    code = ErrorCode.POLICY_BAD_ACTION
    try:
        message: Any = unpack(data)
    except PolicyError as error:
        message, code = {}, ErrorCode(error.code)
    assert isinstance(message, dict)
    assert code == ErrorCode.POLICY_BAD_ACTION


@pytest.mark.parametrize(
    "array",
    [
        {"shape": [1 << 40], "dtype": "<f8", "data": b"12345678"},
        {"shape": [-1], "dtype": "<f8", "data": b"12345678"},
        {"shape": [1], "dtype": "|O", "data": b"12345678"},
        {"shape": "1", "dtype": "<f8", "data": b"12345678"},
        {"shape": [1], "dtype": "<f8", "data": "text"},
        {"shape": [2], "dtype": "<f8", "data": b"12345678"},
    ],
)
def test_arrays_with_inconsistent_shape_or_dtype(array: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="array"):
        unpack(pack({"joints": array}))


def test_a_served_policy_answers_as_in_process(recording: Path, yam: Robot) -> None:
    home = make_policy(f"replay:{recording}")
    home.reset(EpisodeStart(yam, seed=3))
    with PolicyServer(f"replay:{recording}", yam) as server:
        far = make_policy(f"remote:127.0.0.1:{server.port}")
        for _ in range(2):  # two episodes over one connection
            far.reset(EpisodeStart(yam, seed=3))
            first = far.act(seen(yam))
        here = home.act(seen(yam))
        np.testing.assert_array_equal(first.times, here.times)
        np.testing.assert_array_equal(first.joints, here.joints)
        assert not first.done
        last = [far.act(seen(yam, 1.0 + i)) for i in range(2)][-1]
        assert last.done
        assert "replay:run.npz" in far.name
        far.close()
        far.close()


def test_refusals_of_the_served_policy_arrive_with_their_code(
    yam: Robot, recording: Path, primitive_arm: Robot
) -> None:
    with PolicyServer("expert", yam) as server:
        far = RemotePolicy(f"127.0.0.1:{server.port}")
        with pytest.raises(PolicyError, match="needs the scene's true state") as caught:
            far.reset(EpisodeStart(yam))
        assert caught.value.code == ErrorCode.POLICY_UNAVAILABLE
        with pytest.raises(PolicyError, match="primitive_arm"):
            far.reset(EpisodeStart(primitive_arm))
        with pytest.raises(PolicyError, match="no episode"):
            far.act(seen(yam))
    with PolicyServer(f"replay:{recording}", yam) as server:
        far = RemotePolicy(f"127.0.0.1:{server.port}")
        far.reset(EpisodeStart(yam))
        with pytest.raises(PolicyError, match=r"joints \(3,\)"):
            far.act(Observation(np.zeros((3, 4, 3), np.uint8), CAMERA, np.zeros(3), 0.0, 0.0))
        assert len(far.act(seen(yam)).times) == 10  # and continues to serve


def test_a_lost_server_ends_the_episode_and_the_next_one_reconnects(recording: Path, yam: Robot) -> None:
    first = PolicyServer(f"replay:{recording}", yam)
    port = first.port
    far = RemotePolicy(f"127.0.0.1:{port}", timeout_s=5)
    far.reset(EpisodeStart(yam))
    far.act(seen(yam))
    first.close()
    with pytest.raises(PolicyError, match="hung up") as caught:
        far.act(seen(yam, 1.0))
    assert caught.value.code == ErrorCode.POLICY_FAILED
    with pytest.raises(PolicyError, match="no episode"):
        far.act(seen(yam, 1.0))
    with pytest.raises(PolicyError, match="cannot be reached") as caught:
        far.reset(EpisodeStart(yam))
    assert caught.value.code == ErrorCode.POLICY_UNAVAILABLE
    with PolicyServer(f"replay:{recording}", yam, port=port):
        far.reset(EpisodeStart(yam))
        assert len(far.act(seen(yam)).times) == 10


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"\xc1\xff\x00garbage", "are not msgpack"),
        ("Traceback: out of memory", "out of memory"),
        (pack({"type": "poem"}), "poem"),
        (pack({"type": "chunk", "times": [0.1], "joints": np.zeros(7)}), "joints have shape"),
        (pack({"type": "chunk", "times": [0.1], "joints": np.full((1, 7), np.nan)}), "not finite"),
        (pack({"type": "chunk", "times": "soon", "joints": np.zeros((1, 7))}), "times"),
        (pack({"type": "chunk", "times": [0.1]}), "no actions"),
        (b"\x00" * (MAX_MESSAGE_BYTES + 1), "more than"),
    ],
)
def test_invalid_answers(odd: Any, yam: Robot, message: Any, words: str) -> None:
    far = RemotePolicy(odd(sending(message)), timeout_s=20)
    far.reset(EpisodeStart(yam))
    with pytest.raises(PolicyError, match=words) as caught:
        far.act(seen(yam))
    assert caught.value.code == ErrorCode.POLICY_BAD_ACTION
    far.close()


def test_a_timeout_and_a_late_answer_is_discarded(odd: Any, yam: Robot) -> None:
    release = threading.Event()

    def late(connection: ServerConnection) -> None:
        release.wait(20)
        connection.send(pack({"type": "chunk", "times": [0.1], "joints": np.ones((1, 7))}))

    far = RemotePolicy(odd(answering(late)), timeout_s=0.2)
    far.reset(EpisodeStart(yam))
    with pytest.raises(PolicyError, match="did not answer within") as caught:
        far.act(seen(yam))
    assert caught.value.code == ErrorCode.POLICY_TIMEOUT
    release.set()
    with pytest.raises(PolicyError, match="no episode"):
        far.act(seen(yam))


def test_servers_with_another_protocol(odd: Any, yam: Robot) -> None:
    with pytest.raises(PolicyError, match="speaks 'gopher'") as caught:
        RemotePolicy(odd(lambda c: c.send(pack({"protocol": "gopher", "version": 9})))).reset(EpisodeStart(yam))
    assert caught.value.code == ErrorCode.POLICY_UNAVAILABLE
    with socket.create_server(("127.0.0.1", 0)) as mute:
        with pytest.raises(PolicyError, match="cannot be reached") as caught:
            RemotePolicy(f"127.0.0.1:{mute.getsockname()[1]}", reset_timeout_s=0.3).reset(EpisodeStart(yam))
        assert caught.value.code == ErrorCode.POLICY_TIMEOUT


@pytest.mark.parametrize("source", ["", "nowhere", "http://127.0.0.1:80", "127.0.0.1:port", "ws://"])
def test_invalid_addresses(source: str) -> None:
    with pytest.raises(PolicyError, match="is not a websocket address"):
        RemotePolicy(source)


@pytest.mark.parametrize(
    "options", [{"timeout_s": 0}, {"timeout_s": "x"}, {"style": "morse"}, {"hz": -1}, {"image_size": -3}]
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match=next(iter(options))) as caught:
        RemotePolicy("127.0.0.1:9", **options)
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID


def test_other_hosts_need_a_token_and_clients_must_send_it(
    recording: Path, yam: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "example.org"):  # noqa: S104 - it is refused
        with pytest.raises(PolicyError, match="no token"):
            PolicyServer(f"replay:{recording}", yam, host=host)
    with PolicyServer(f"replay:{recording}", yam, token="open sesame") as server:  # noqa: S106
        monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
        with pytest.raises(PolicyError, match="401"):
            RemotePolicy(f"127.0.0.1:{server.port}").reset(EpisodeStart(yam))
        monkeypatch.setenv(TOKEN_VARIABLE, "open sesame")
        far = RemotePolicy(f"127.0.0.1:{server.port}")
        far.reset(EpisodeStart(yam))
        assert len(far.act(seen(yam)).times) == 10
        far.close()


def test_browsers_and_ports_in_use_are_refused(recording: Path, yam: Robot) -> None:
    with PolicyServer(f"replay:{recording}", yam) as server:
        with pytest.raises(InvalidStatus, match="403"):
            connect(f"ws://127.0.0.1:{server.port}", origin="http://evil.example", proxy=None)  # type: ignore[arg-type]
        with pytest.raises(PolicyError, match="cannot listen on port"):
            PolicyServer(f"replay:{recording}", yam, port=server.port)
        with pytest.raises(PolicyError, match="does not exist"):
            PolicyServer("replay:nowhere", yam)


def test_a_client_with_invalid_data_gets_an_error_and_others_are_served(recording: Path, yam: Robot) -> None:
    with (
        PolicyServer(f"replay:{recording}", yam) as server,
        connect(f"ws://127.0.0.1:{server.port}", proxy=None) as raw,
    ):
        assert unpack(raw.recv())["protocol"] == PROTOCOL
        for message in (b"\xc1", "text", pack({"type": "dance"}), pack({"type": "act", "image": 3})):
            raw.send(message)
            assert unpack(raw.recv(timeout=10))["type"] == "error"
        far = RemotePolicy(f"127.0.0.1:{server.port}")
        far.reset(EpisodeStart(yam))
        assert len(far.act(seen(yam)).times) == 10
        far.close()


def test_openpi_style(odd: Any, yam: Robot) -> None:
    asked: list[dict[str, Any]] = []

    def handler(connection: ServerConnection) -> None:
        connection.send(pack({"action_horizon": 5}, openpi=True))
        for data in connection:
            asked.append(unpack(data))
            width = 7 if len(asked) == 1 else 3
            connection.send(pack({"actions": np.full((5, width), 0.25, np.float32)}, openpi=True))

    far = RemotePolicy(odd(handler), style="openpi", hz=20, image_size=8)
    far.reset(EpisodeStart(yam, instruction="pick the box"))
    chunk = far.act(seen(yam))
    np.testing.assert_allclose(chunk.times, [0.05, 0.1, 0.15, 0.2, 0.25])
    assert chunk.joints is not None
    assert np.all(chunk.joints == 0.25)
    assert asked[0]["prompt"] == "pick the box"
    assert asked[0]["observation/image"].shape == (8, 8, 3)
    np.testing.assert_allclose(asked[0]["observation/state"], yam.home_position(), atol=1e-6)
    with pytest.raises(PolicyError, match=r"actions \(5, 3\)"):
        far.act(seen(yam))
    far.close()
