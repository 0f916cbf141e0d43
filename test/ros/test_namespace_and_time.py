"""The graph in a namespace, on a simulation's clock: a plan goes all the way, and nothing is left outside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.motions import WAIT_S, arm, settle, swing, wait_until_ready
from support.ros_graph import Graph, own_domain
from support.sim_clock import SimClock
from support.sim_graph import client, running, small_camera

from kinema4d_ros.ros import names
from kinema4d_ros.ros.client import PreviewClient
from kinema4d_ros.ros.messages.stamps import nanoseconds

NODES = ("lab", "twin", "preview", "generator", "playback", "gate")
SPACE = "lab1"
GLOBAL = {"/tf", "/tf_static", "/diagnostics", "/rosout", "/parameter_events", "/clock"}

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def domain() -> Iterator[int]:
    """Apart from what other tests of this process have left behind."""
    with own_domain() as number:
        yield number


@pytest.fixture(scope="module")
def clock(domain: int) -> Iterator[SimClock]:
    graph = Graph(threads=1)
    yield SimClock(graph)
    graph.close()


@pytest.fixture(scope="module")
def graph(clock: SimClock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreviewClient]:
    scene = {"calibration": small_camera(tmp_path_factory.mktemp("camera"))}
    options = {"lab": scene, "twin": scene, "preview": {**scene, "frames": 9}}
    arguments = ["-r", f"__ns:=/{SPACE}", "-p", "use_sim_time:=true"]
    with running(NODES, options, arguments), client(SPACE) as made:
        for endpoint in (names.TF, names.PREDICTED_IMAGE, names.EXECUTION_STATUS):
            made.listen(endpoint)
        # Each is discovered and sent on its own: the overlay may be there before the first joint state.
        for endpoint in (names.ROBOT_OVERLAY, names.JOINT_STATES, names.CAMERA_IMAGE, names.TF):
            made.wait_for(lambda e=endpoint: made.newest(e) is not None, WAIT_S, endpoint.name)  # type: ignore[misc]
        wait_until_ready(made, "preview", "gate")
        yield made


def test_a_plan_goes_all_the_way(graph: PreviewClient) -> None:
    settle(graph)
    before = arm(graph)[1]
    report = graph.preview(swing(graph), timeout_s=WAIT_S)
    graph.execute(report.plan_hash, graph.approve(report.plan_hash, "test"))
    graph.wait_for(lambda: arm(graph)[1][0] - before[0] > 0.19, WAIT_S, "the motion")
    graph.wait_for(lambda: graph.newest(names.PREDICTED_IMAGE) is not None, WAIT_S, "the prediction")


def test_stamps_are_of_the_simulation_s_clock(graph: PreviewClient, clock: SimClock) -> None:
    graph.wait_for(lambda: graph.newest(names.EXECUTION_STATUS) is not None, WAIT_S, "an executed plan")
    tf = graph.newest(names.TF).transforms[0]
    stamped = [graph.newest(e) for e in (names.JOINT_STATES, names.CAMERA_IMAGE, names.EXECUTION_STATUS)]
    for message in (*stamped, tf):
        assert 1000.0 <= nanoseconds(message.header.stamp) * 1e-9 <= clock.now_s()


def test_every_topic_and_service_is_in_the_namespace(graph: PreviewClient) -> None:
    def ours() -> set[str]:
        found = graph.node.get_topic_names_and_types() + graph.node.get_service_names_and_types()
        return {name for name, _ in found if name not in GLOBAL}

    graph.wait_for(lambda: f"/{SPACE}/kinema4d/execute" in ours(), WAIT_S, "the gate's service")
    strays = sorted(name for name in ours() if not name.startswith((f"/{SPACE}/", "/sim_clock/")))
    assert not strays
