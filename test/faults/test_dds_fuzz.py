"""Structured fuzzing of every subscriber, service and action of the graph, over real DDS and by a seed.

Real nodes run with true drivers beside them. Batch by batch they are sent wrong messages; after each batch every
node is alive and has met nothing unforeseen, a good plan is previewed and approved, and the arm has not been told
to move. The endpoints come from the table of names: one without a seed here fails a test.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rclpy.serialization import serialize_message
from support.figures import Figures
from support.fuzz_graph import LAB, FuzzGraph
from support.fuzz_messages import GIANT, Mutator, leaves
from support.motions import WAIT_S
from support.ros_graph import Asker, wait_for

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.names import ENDPOINTS, Endpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SEED = 20_240
CHUNK = 40
"""Messages that are made, put into disorder and sent together."""

RAW = 0.08
"""Share of messages that are damaged as bytes: cut, with forged lengths, not UTF-8."""

GROWTH_MB = 350.0
"""No process may grow by more. The recorder's queues have 221 places in all (100 of them for /tf), and Fast DDS keeps
for each the memory of the largest message it held, here 1 MB; the rest is the allocator's, for a hundred sizes."""

ROUNDS, ROUND, LATE_MB = 5, 10_000, 10.0
"""Rounds of so many messages to all topics mixed; in the last two of them a process may grow by so much."""

THIRD = 5_000
"""Messages of a third of the run with one kind of topics; in its last third a process may grow by LATE_MB."""

ARM = (names.JOINT_STATES,)
CAMERA = (names.CAMERA_IMAGE, names.CAMERA_INFO, names.CAMERA_DEPTH)
PLANS = (names.PLAN, names.DISPLAY_PLAN, names.EE_PATH, names.EE_TIMED_PATH)
WORLD = (names.WORLD_CHANGED, names.PREVIEWED_PLAN)
RESULTS = (
    names.PREDICTED_ROLLOUT,
    names.PLAN_REPORT,
    names.PREVIEW_STATUS,
    names.EXECUTION_STATUS,
    names.MENU_FEEDBACK,
    names.LAB_OBJECTS,
    names.ROBOT_DESCRIPTION,
    names.TF,
    names.TF_STATIC,
    names.DIAGNOSTICS,
)
LAB_ARM = (names.ARM_TRAJECTORY,)
SERVICES = (names.PLAYBACK, names.APPROVE, names.EXECUTE, names.LAB_RESET)
ACTIONS = (names.GENERATE, names.EVALUATE, names.FOLLOW_TRAJECTORY)
BATCHES: dict[str, tuple[tuple[Endpoint, ...], int, int, float]] = {
    # Endpoints, messages of the full run and of the short one, messages a second.
    "arm": (ARM, 30_000, 700, 250.0),
    "camera": (CAMERA, 24_000, 500, 300.0),
    "plans": (PLANS, 18_000, 300, 150.0),
    "world": (WORLD, 8_000, 250, 250.0),
    "results": (RESULTS, 18_000, 100, 250.0),
    "lab's arm": (LAB_ARM, 2_000, 0, 200.0),
}
ASKED = {
    # Requests and goals of the full run and of the short one.
    names.PLAYBACK: (1500, 50),
    names.APPROVE: (1500, 50),
    names.EXECUTE: (1500, 50),
    names.LAB_RESET: (300, 20),
    names.GENERATE: (600, 40),
    names.EVALUATE: (60, 4),
    names.FOLLOW_TRAJECTORY: (400, 20),
}
OFFERED_BY = {names.GENERATE: "generator", names.EVALUATE: "evaluation", names.FOLLOW_TRAJECTORY: "lab"}
ALL = ("lab", "twin", "preview", "generator", "playback", "gate", "viewer", "rviz_marker", "recorder", "evaluation")
FEW = ("twin", "preview", "generator", "playback", "gate")
Full = Callable[[int, int], int]


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest) -> bool:
    """Whether this is the full run, with all nodes."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, yam: Robot, whole: bool) -> Iterator[FuzzGraph]:
    made = FuzzGraph(tmp_path_factory.mktemp("fuzz"), yam, ALL if whole else FEW)
    made.check("the start")
    made.growth_mb()
    yield made
    made.close()


@pytest.fixture(scope="module")
def sent() -> Counter[str]:
    """Messages by endpoint, over all tests of this module."""
    return Counter()


def test_every_endpoint_of_the_table_has_a_seed_and_a_batch(scene: FuzzGraph, whole: bool) -> None:
    assert scene.seeds.covered == {endpoint.name for endpoint in ENDPOINTS}
    fuzzed = {endpoint for batch in BATCHES.values() for endpoint in batch[0]} | set(ASKED)
    for endpoint in ENDPOINTS:
        if endpoint.kind in ("service", "action"):
            # A request without fields cannot be wrong.
            empty = not leaves(scene.seeds(endpoint, scene.drivers.now()))
            assert empty or endpoint in fuzzed, f"{endpoint.name} is not fuzzed"
        elif listeners := scene.subscribers(endpoint):
            assert endpoint in fuzzed, f"{endpoint.name} is not fuzzed although {sorted(listeners)} listen"
        elif whole:
            assert endpoint not in fuzzed, f"{endpoint.name} is fuzzed but has no listener"


def test_mutations_are_the_same_for_the_same_seed_and_reach_every_field(scene: FuzzGraph) -> None:
    stamp = scene.drivers.now()
    for endpoint in ENDPOINTS:
        message = scene.seeds(endpoint, stamp)
        if not leaves(message):
            continue
        one, other = Mutator(5), Mutator(5)
        for _ in range(5):
            # As text: of two NaN none equals the other, and bytes between fields are whatever they were.
            assert repr(one.mutate(message)) == repr(other.mutate(message))
    wanted = {path.replace("[]", "").split(".")[0] for path in leaves(scene.seeds(names.PLAN, stamp))}
    mutator = Mutator(1)
    reached = {mutator.mutate(scene.seeds(names.PLAN, stamp), 1)[1].split(":")[0].split(".")[0] for _ in range(300)}
    assert wanted <= {name.split("[")[0] for name in reached}


@pytest.mark.parametrize("batch", [b if b == "plans" else pytest.param(b, marks=pytest.mark.full) for b in BATCHES])
def test_topics(scene: FuzzGraph, sent: Counter[str], full: Full, figures: Figures, batch: str) -> None:
    every, much, little, rate_hz = BATCHES[batch]
    endpoints = [endpoint for endpoint in every if scene.subscribers(endpoint)]
    if not endpoints:
        pytest.skip("none of the few nodes of the short run listens")
    mutator = Mutator(SEED + list(BATCHES).index(batch))
    send_wrong(scene, sent, mutator, endpoints, full(much, little), rate_hz, f"/{LAB}/" if every is LAB_ARM else "")
    note(figures, scene, sent, batch, scene.check(batch))


def send_wrong(
    scene: FuzzGraph,
    sent: Counter[str],
    mutator: Mutator,
    endpoints: list[Endpoint],
    count: int,
    rate_hz: float,
    space: str = "",
) -> None:
    """So many damaged messages to topics chosen at random."""
    outputs = {endpoint.name: scene.output(endpoint, space) for endpoint in endpoints}
    for publisher in outputs.values():
        wait_for(lambda p=publisher: p.get_subscription_count() > 0, WAIT_S, publisher.topic_name)
    due = time.monotonic()
    done = 0
    while done < count:
        chunk: list[tuple[str, Any]] = []
        for _ in range(min(CHUNK, count - done)):
            endpoint = mutator.random.choice(endpoints)
            seed = scene.seeds(endpoint, scene.drivers.now())
            if mutator.random.random() < RAW:
                chunk.append((endpoint.name, mutator.damage_bytes(seed)[0]))
            else:
                chunk.append((endpoint.name, mutator.mutate(seed)[0]))
        for name, message in mutator.disorder(chunk):
            outputs[name].publish(message)
            sent[name] += 1
            due = max(due + 1.0 / rate_hz, time.monotonic() - 0.1)
            time.sleep(max(0.0, due - time.monotonic()))
        done += len(chunk)


def note(figures: Figures, scene: FuzzGraph, sent: Counter[str], batch: str, grown: dict[str, float]) -> None:
    worst = max(grown, key=lambda name: grown[name])
    print(f"{batch}: {sum(sent.values())} sent in all, growth { ({k: round(v) for k, v in grown.items()}) }")
    assert grown[worst] < GROWTH_MB, f"{worst} grew by {grown[worst]:.0f} MB"
    for name, count in sent.items():
        figures.note(f"fuzz of {name}", "sent", count, "messages")
    figures.note("fuzz of all endpoints", "sent", sum(sent.values()), "messages")
    figures.note("fuzz of all endpoints", "nodes alive", f"{len(scene.pids)} of {len(scene.nodes)}")
    for name, grown_mb in grown.items():
        figures.note("fuzz of all endpoints", f"growth of the {name}", round(grown_mb), "MB")
    figures.note("fuzz of all endpoints", "messages to the arm", len(scene.moved))


@pytest.mark.full
def test_services(scene: FuzzGraph, sent: Counter[str], full: Full, figures: Figures) -> None:
    """Requests to all services at once, some of them wrong in one place only; each one is answered."""
    mutator = Mutator(SEED + 100)
    scene.seeds.plan_hash = scene.preview("services").plan_hash
    clients = {e.name: scene.node.create_client(e.interface(), _in_lab(e)) for e in SERVICES}
    under_way: dict[str, list[Any]] = {name: [] for name in clients}
    offered = [e for e in SERVICES if e is not names.LAB_RESET or "lab" in scene.nodes]
    for endpoint in offered:
        wait_for(clients[endpoint.name].service_is_ready, WAIT_S, endpoint.name)
    todo = [endpoint for endpoint in offered for _ in range(full(*ASKED[endpoint]))]
    mutator.random.shuffle(todo)
    # Approvals first: each ends the one before, and the executions shall have a token that works.
    todo.sort(key=lambda endpoint: endpoint is names.EXECUTE)
    asked: list[tuple[Endpoint, Any]] = []
    for endpoint in todo:
        if endpoint is names.EXECUTE and sent[endpoint.name] % 500 == 0:
            wait_for(lambda: all(future.done() for _, future in asked), WAIT_S, "answers")
            scene.renew_token()
        request, _ = mutator.mutate(scene.seeds(endpoint, scene.drivers.now()))
        if endpoint is names.EXECUTE and request == scene.seeds(endpoint, None):
            continue
        mine = under_way[endpoint.name]
        # ROS keeps ten requests of a service: a client that sends more at once loses some, by design.
        wait_for(lambda mine=mine: sum(not f.done() for f in mine[-8:]) < 8, WAIT_S, f"answers of {endpoint.name}")
        mine.append(clients[endpoint.name].call_async(request))
        asked.append((endpoint, mine[-1]))
        sent[endpoint.name] += 1
    wait_for(lambda: all(future.done() for _, future in asked), WAIT_S, "all answers")
    for endpoint, future in asked:
        answer = future.result()
        scene.answered(endpoint.name, answer.error)
        if endpoint is names.APPROVE:
            assert bool(answer.token) == (answer.error.code == ErrorCode.NONE)
    assert scene.codes[names.EXECUTE.name, "NONE"] == 0
    grown = scene.check("services")
    for client in clients.values():
        scene.node.destroy_client(client)
    note(figures, scene, sent, "services", grown)


def _in_lab(endpoint: Endpoint) -> str:
    return f"/{LAB}/{endpoint.name}" if endpoint in (names.LAB_RESET, names.FOLLOW_TRAJECTORY) else endpoint.name


@pytest.mark.full
@pytest.mark.parametrize("endpoint", ACTIONS, ids=lambda endpoint: endpoint.name.rpartition("/")[2])
def test_actions(scene: FuzzGraph, sent: Counter[str], full: Full, figures: Figures, endpoint: Endpoint) -> None:
    """Goals one after the other: each is rejected or comes to an end, those that would run on are cancelled."""
    if OFFERED_BY[endpoint] not in scene.nodes:
        pytest.skip("its node is not among the few of the short run")
    mutator = Mutator(SEED + 200 + ACTIONS.index(endpoint))
    asker = Asker(scene.node, endpoint.interface(), _in_lab(endpoint))
    for _ in range(full(*ASKED[endpoint])):
        goal, what = mutator.mutate(scene.seeds(endpoint, scene.drivers.now()))
        handle = asker.send(goal)
        sent[endpoint.name] += 1
        if not handle.accepted:
            assert endpoint is names.FOLLOW_TRAJECTORY, f"{endpoint.name} rejected a goal: {what}"
            scene.codes[endpoint.name, "rejected"] += 1
            continue
        if endpoint is not names.GENERATE or mutator.random.random() < 0.1:
            asker.cancel(handle)
        result = asker.result(handle)
        if endpoint is names.FOLLOW_TRAJECTORY:
            scene.codes[endpoint.name, "accepted"] += 1
        else:
            scene.answered(endpoint.name, result.error)
    grown = scene.check(endpoint.name)
    note(figures, scene, sent, endpoint.name, grown)


@pytest.mark.long
@pytest.mark.parametrize("batch", ["arm", "camera", "plans", "results"])
def test_memory_stops_growing(scene: FuzzGraph, sent: Counter[str], figures: Figures, batch: str) -> None:
    """The queues are filled with the largest messages first; then a leak would take as much in every third."""
    topics = [endpoint for endpoint in BATCHES[batch][0] if scene.subscribers(endpoint)]
    for endpoint in topics:
        output = scene.output(endpoint)
        wait_for(lambda p=output: p.get_subscription_count() > 0, WAIT_S, output.topic_name)
        for _ in range(2 * output.qos_profile.depth):
            # Padded: a reader stops where the valid message ends.
            output.publish(serialize_message(scene.seeds(endpoint, scene.drivers.now())).ljust(GIANT, b"\0"))
            sent[endpoint.name] += 1
            time.sleep(0.02)
    scene.findings.clear()  # answers of the preview that were invented here
    before = scene.check("full queues")
    steps: dict[str, list[float]] = {}
    for turn in range(3):
        send_wrong(scene, sent, Mutator(SEED + 300 + turn), topics, THIRD, 400.0)
        scene.findings.clear()
        now = scene.check(f"third {turn}")
        for name, grown in now.items():
            steps.setdefault(name, []).append(grown - before[name])
        before = now
    for name, step in steps.items():
        words = " ".join(f"{s:.0f}" for s in step)
        print(f"{batch}: {name} {words}")
        figures.note(f"fuzz of {batch}, queues full", f"growth of the {name}, each third", words, "MB")
    for name, step in steps.items():
        assert step[-1] < LATE_MB, f"{name} grew by {step} MB"


@pytest.mark.long
def test_the_same_once_more_takes_hardly_more_memory(scene: FuzzGraph, sent: Counter[str], figures: Figures) -> None:
    """The queues have held their largest messages by now: what still grows would grow for ever."""
    topics = [e for batch in BATCHES.values() if batch[0] is not LAB_ARM for e in batch[0] if scene.subscribers(e)]
    steps: dict[str, list[float]] = {}
    before = scene.check("before the rounds")
    for turn in range(ROUNDS):
        send_wrong(scene, sent, Mutator(SEED + 300 + turn), topics, ROUND, 200.0)
        scene.findings.clear()  # answers of the preview that were invented here
        now = scene.check(f"round {turn}")
        for name, grown in now.items():
            steps.setdefault(name, []).append(grown - before[name])
        before = now
        print(f"round {turn}: { ({name: round(step[-1], 1) for name, step in steps.items()}) }")
    for name, step in steps.items():
        figures.note(
            "fuzz of all topics, again", f"growth of the {name} a round", " ".join(f"{s:.0f}" for s in step), "MB"
        )
        # Each place of a queue keeps its largest message so far, which grows ever more seldom; a leak grows as before.
        assert sum(step[-2:]) < max(LATE_MB, 0.6 * sum(step[:2])), f"{name} grew by {step} MB"


def test_the_one_right_way_still_moves_the_arm(scene: FuzzGraph, figures: Figures, sent: Counter[str]) -> None:
    """And so the silence on the arm's topic was the gate's doing."""
    report = scene.preview("everything")
    scene.renew_token()
    scene.client.execute(report.plan_hash, scene.seeds.token)
    wait_for(lambda: scene.moved, WAIT_S, "the plan at the arm")
    time.sleep(0.5)
    assert len(scene.moved) == 1
    assert list(scene.moved.pop().joint_names) == list(scene.seeds.plan.names)
    for (where, code), count in sorted(scene.codes.items()):
        print(f"{where}: {code} {count}")
    slowest = max(scene.healed_s, key=lambda batch: scene.healed_s[batch])
    healed_s = round(scene.healed_s[slowest], 1)
    figures.note("fuzz of all endpoints", f"slowest good plan, sent to approved (after {slowest})", healed_s, "s")
    if "recorder" in scene.nodes:
        recorded = wait_for(lambda: scene.value("recorder", "messages"), WAIT_S, "the recorder's count")
        figures.note("fuzz of all endpoints", "of them and of the graph's own recorded", int(recorded), "messages")
