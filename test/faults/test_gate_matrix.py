"""Every way to try to move the arm without a valid approval, over real DDS: each is refused by name, and nothing moves.

The test is driver, preview and controller in one: it says where the arm is, announces previewed plans as the preview
node does, and counts what reaches the arm's controller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.drivers import Drivers
from support.figures import Figures
from support.ros_graph import Graph, wait_for
from support.sim_graph import NodeProcess

from kinema4d_msgs.msg import PreviewedPlan
from kinema4d_msgs.srv import Approve, Execute
from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.messages.stamps import header, time_from_ns
from kinema4d_ros.ros.messages.trajectories import trajectory_to_msg
from kinema4d_ros.ros.qos import profile

WAIT_S = 60.0
APPROVAL_S, PLAN_S = 4.0, 8.0
"""How long approvals and previews live in this gate: short, so that a test can wait for their end."""

HEARD_S = 1.0
"""How long a new position of the arm, or a change of the world, may take to the gate."""

QUIET_S = 0.3
"""How long nothing may arrive at the controller after an attempt; a valid plan takes a few milliseconds."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class GateScene:
    """A gate in a process of its own, and all that it hears and answers."""

    def __init__(self, robot: Robot) -> None:
        self.robot = robot
        self.graph = Graph()
        self.node = NodeProcess("gate", {"approval_ttl_s": APPROVAL_S, "plan_max_age_s": PLAN_S})
        camera = read_camera(share_path("calibration/demo_lab.yaml")).scaled(90, 60)
        self.drivers = Drivers(self.graph, robot, camera)
        self.drivers.pictures = False
        person = self.graph.node("person")
        self.motions: list[Any] = []
        self._announce = person.create_publisher(
            PreviewedPlan, names.PREVIEWED_PLAN.name, profile(names.PREVIEWED_PLAN)
        )
        self._change = self.drivers.publisher(names.WORLD_CHANGED)
        arm = self.graph.node("controller")
        arm.create_subscription(
            names.ARM_TRAJECTORY.interface(),
            names.ARM_TRAJECTORY.name,
            self.motions.append,
            profile(names.ARM_TRAJECTORY),
        )
        self.person = person
        self._approve = person.create_client(Approve, names.APPROVE.name)
        self._execute = person.create_client(Execute, names.EXECUTE.name)
        self._reach = 0.1
        self._world_ns = 1_000_000_000
        self.node.wait_for_line("ready")
        self.wait_for_gate()

    def wait_for_gate(self) -> None:
        """Until the gate is found and has heard of the arm."""
        # DDS believes for 20 s that a killed gate is still there: being found is no proof of life, an answer is.
        self._knock(self._approve, Approve.Request(plan_hash="0" * 64), ErrorCode.PLAN_UNKNOWN)
        self._knock(self._execute, Execute.Request(token="0" * 32), ErrorCode.APPROVAL_INVALID)

    def _knock(self, service: Any, request: Any, answer: ErrorCode) -> None:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            asked = service.call_async(request)
            patience = time.monotonic() + 0.5
            while not asked.done() and time.monotonic() < patience:
                time.sleep(0.01)
            if asked.done() and asked.result().error.code == answer:
                return
            service.remove_pending_request(asked)
        raise AssertionError(f"the gate never answered {answer.name}")

    def plan(self, **changes: float) -> JointTrajectory:
        """A new plan from where the arm is; each differs from all before."""
        self._reach += 0.001
        q = np.array(self.drivers.positions)
        goal = q.copy()
        goal[0] += self._reach
        return JointTrajectory.from_positions(self.robot.joint_names, [q, goal], times=[0.0, changes.get("s", 1.0)])

    def announce(self, plan: JointTrajectory, plan_hash: str = "", world_ns: int = 0) -> str:
        """What the preview node says once a person can see a preview; a gate that runs has heard it on return."""
        self._world_ns += 1
        found = plan_hash or hash_trajectory(plan)
        message = PreviewedPlan(trajectory=trajectory_to_msg(plan, header(1)), plan_hash=found, rollout_id="r")
        message.world_stamp = time_from_ns(world_ns or self._world_ns)
        self._announce.publish(message)
        time.sleep(0.1)
        return found

    def previewed(self, **changes: float) -> str:
        """The hash of a plan that was previewed well."""
        plan = self.plan(**changes)

        def taken() -> bool:
            return self.approve(self.announce(plan))[0] == ErrorCode.NONE

        wait_for(taken, WAIT_S, "a plan that can be approved")
        return hash_trajectory(plan)

    def approved(self, **changes: float) -> tuple[str, str]:
        """Hash and token of a plan that may be executed now."""
        found = self.previewed(**changes)
        return found, self.approve(found)[1]

    def approve(self, plan_hash: str) -> tuple[int, str]:
        answer = self._ask(self._approve, Approve.Request(plan_hash=plan_hash, approver="test"))
        assert (answer.error.code == ErrorCode.NONE) == bool(answer.token)
        return answer.error.code, answer.token

    def execute(self, plan_hash: str, token: str) -> int:
        answer = self._ask(self._execute, Execute.Request(plan_hash=plan_hash, token=token))
        assert bool(answer.error.code) == bool(answer.error.message), "a refusal without its reason"
        return int(answer.error.code)

    def _ask(self, service: Any, request: Any) -> Any:
        asked = service.call_async(request)
        wait_for(asked.done, WAIT_S, "an answer of the gate")
        return asked.result()

    def change_the_world(self) -> None:
        self._world_ns += 10
        self._change.publish(header(time_from_ns(self._world_ns)))
        time.sleep(HEARD_S)

    def hear_again(self) -> None:
        """Wait until the gate knows where the arm is, at rest."""
        wait_for(lambda: self.approve("0" * 64)[0] == ErrorCode.PLAN_UNKNOWN, WAIT_S, "joint states at the gate")
        time.sleep(0.1)

    def close(self) -> None:
        code = self.node.stop()
        self.graph.close()
        assert code == 0, self.node.text


@pytest.fixture(scope="module")
def scene(yam: Robot) -> Iterator[GateScene]:
    made = GateScene(yam)
    yield made
    made.close()


def no_preview(s: GateScene) -> int:
    return s.approve(hash_trajectory(s.plan()))[0]


def no_approval(s: GateScene) -> int:
    return s.execute(s.announce(s.plan()), "")


def invented_token(s: GateScene) -> int:
    return s.execute(s.previewed(), "f" * 32)


def token_of_another_length(s: GateScene) -> int:
    plan_hash, token = s.approved()
    codes = {s.execute(plan_hash, text) for text in (token[:-1], token + "0", token.upper() + "é", "0" * 1_000_000)}
    assert len(codes) == 1
    return codes.pop()


def other_plan_with_a_good_token(s: GateScene) -> int:
    _, token = s.approved()
    return s.execute(hash_trajectory(s.plan()), token)


def plan_altered_after_its_preview(s: GateScene) -> int:
    """The announcement carries another trajectory under the hash that the person saw."""
    return s.approve(s.announce(s.plan(s=0.5), plan_hash=hash_trajectory(s.plan())))[0]


def plan_altered_after_its_approval(s: GateScene) -> int:
    """An altered trajectory under the approved hash must not be what moves: the approved one still is."""
    plan_hash, token = s.approved()
    s.announce(s.plan(s=0.3), plan_hash=plan_hash)
    return s.execute(hash_trajectory(s.plan(s=0.3)), token)


def other_velocities_after_its_approval(s: GateScene) -> int:
    """The approved positions with other velocities are another plan, and void the approval."""
    plan = s.plan()
    s.announce(plan)
    _, token = s.approve(hash_trajectory(plan))
    eased = JointTrajectory(plan.names, plan.times, plan.positions, 0 * plan.positions)
    s.announce(eased, plan_hash=hash_trajectory(plan))
    assert s.execute(hash_trajectory(eased), token) == ErrorCode.APPROVAL_INVALID
    s.announce(eased)
    return s.execute(hash_trajectory(plan), token)


def velocities_faster_than_the_arm(s: GateScene) -> int:
    plan = s.plan(s=2.0)
    middle = plan.resample(3)
    fast = np.zeros_like(middle.positions)
    fast[1, 0] = 40.0
    return s.approve(s.announce(JointTrajectory(plan.names, middle.times, middle.positions, fast)))[0]


def plan_that_ends_in_motion(s: GateScene) -> int:
    plan = s.plan(s=2.0)
    rates = np.zeros_like(plan.positions)
    rates[-1, 0] = 0.1
    return s.approve(s.announce(JointTrajectory(plan.names, plan.times, plan.positions, rates)))[0]


def plan_outside_the_limits(s: GateScene) -> int:
    q = np.array(s.drivers.positions)
    wild = JointTrajectory.from_positions(s.robot.joint_names, [q, q + 30.0], times=[0.0, 60.0])
    return s.approve(s.announce(wild))[0]


def plan_faster_than_the_arm(s: GateScene) -> int:
    return s.approve(s.announce(s.plan(s=0.001)))[0]


def superseded_plan(s: GateScene) -> int:
    plan_hash, token = s.approved()
    s.previewed()
    assert s.execute(plan_hash, token) in (ErrorCode.APPROVAL_INVALID, ErrorCode.PLAN_SUPERSEDED)
    return s.approve(plan_hash)[0]


def approval_replaced_by_a_later_one(s: GateScene) -> int:
    plan_hash, first = s.approved()
    _, _second = s.approve(plan_hash)
    return s.execute(plan_hash, first)


def expired_approval(s: GateScene) -> int:
    plan_hash, token = s.approved()
    time.sleep(APPROVAL_S + 0.5)
    return s.execute(plan_hash, token)


def stale_preview(s: GateScene) -> int:
    plan_hash = s.previewed()
    time.sleep(PLAN_S + 0.5)
    return s.approve(plan_hash)[0]


def preview_replayed_to_look_fresh(s: GateScene) -> int:
    """The recorded announcement is sent again and again: the plan gets no younger."""
    plan = s.plan()
    plan_hash = s.announce(plan)
    world_ns = s._world_ns
    until = time.monotonic() + PLAN_S + 0.5
    while time.monotonic() < until:
        s.announce(plan, world_ns=world_ns)
    return s.approve(plan_hash)[0]


def preview_of_an_older_image(s: GateScene) -> int:
    plan = s.plan()
    world_ns = s._world_ns
    s.previewed()
    return s.approve(s.announce(plan, world_ns=world_ns))[0]


def world_changed_after_approval(s: GateScene) -> int:
    plan_hash, token = s.approved()
    s.change_the_world()
    return s.execute(plan_hash, token)


def preview_of_the_world_before_it_changed(s: GateScene) -> int:
    world_ns = s._world_ns + 1
    s.change_the_world()
    return s.approve(s.announce(s.plan(), world_ns=world_ns))[0]


def arm_not_at_the_start(s: GateScene) -> int:
    plan_hash = s.announce(s.plan())
    with elsewhere(s, 0.05):
        return s.approve(plan_hash)[0]


def arm_moved_after_approval(s: GateScene) -> int:
    plan_hash, token = s.approved()
    with elsewhere(s, 0.05):
        return s.execute(plan_hash, token)


def finger_moved_after_approval(s: GateScene) -> int:
    plan_hash, token = s.approved()
    with elsewhere(s, -0.02, joint=len(s.robot.joint_names) - 1):
        return s.execute(plan_hash, token)


def arm_in_motion(s: GateScene) -> int:
    """It swings through the plan's start: near enough, but not at rest."""
    plan_hash, token = s.approved()
    home = np.array(s.drivers.positions)
    with wandering(s, home, 0.0035):
        return s.execute(plan_hash, token)


def joint_states_have_stopped(s: GateScene) -> int:
    plan_hash, token = s.approved()
    with silent(s, lambda state: None):
        return s.execute(plan_hash, token)


def joint_states_are_not_numbers(s: GateScene) -> int:
    plan_hash, token = s.approved()
    with silent(s, lambda state: setattr(state, "position", [float("nan")] * len(state.name)) or state):
        return s.execute(plan_hash, token)


def joint_states_leave_one_out(s: GateScene) -> int:
    def without_elbow(state: Any) -> Any:
        state.name, state.position = list(state.name)[:2] + list(state.name)[3:], list(state.position)[:-1]
        return state

    plan_hash, token = s.approved()
    with silent(s, without_elbow):
        return s.execute(plan_hash, token)


@dataclass
class elsewhere:  # noqa: N801 (reads as a word in a with statement)
    """The arm stands off for a while."""

    scene: GateScene
    by: float
    joint: int = 0

    def __enter__(self) -> None:
        self.scene.drivers.positions = self.scene.drivers.positions.copy()
        self.scene.drivers.positions[self.joint] += self.by
        time.sleep(HEARD_S)

    def __exit__(self, *_: object) -> None:
        self.scene.drivers.positions = self.scene.drivers.positions.copy()
        self.scene.drivers.positions[self.joint] -= self.by
        time.sleep(HEARD_S)


@dataclass
class wandering:  # noqa: N801
    """The arm swings back and forth by so many radians each 20 ms."""

    scene: GateScene
    home: np.ndarray
    step: float

    def __enter__(self) -> None:
        self.sign = 1.0

        def swing(state: Any) -> Any:
            self.sign = -self.sign
            state.position = [self.home[0] + self.sign * self.step, *list(state.position)[1:]]
            return state

        self.scene.drivers.alter = swing
        time.sleep(0.3)

    def __exit__(self, *_: object) -> None:
        self.scene.drivers.alter = None
        time.sleep(0.3)


@dataclass
class silent:  # noqa: N801
    """Joint states are changed, or kept back (None), for long enough that the last good ones are stale."""

    scene: GateScene
    change: Callable[[Any], Any]

    def __enter__(self) -> None:
        self.scene.drivers.alter = self.change
        time.sleep(0.8)

    def __exit__(self, *_: object) -> None:
        self.scene.drivers.alter = None
        self.scene.hear_again()


E = ErrorCode
ATTEMPTS: dict[Callable[[GateScene], int], ErrorCode] = {
    no_preview: E.PLAN_UNKNOWN,
    no_approval: E.APPROVAL_INVALID,
    invented_token: E.APPROVAL_INVALID,
    token_of_another_length: E.APPROVAL_INVALID,
    other_plan_with_a_good_token: E.APPROVAL_INVALID,
    plan_altered_after_its_preview: E.PLAN_UNKNOWN,
    plan_altered_after_its_approval: E.APPROVAL_INVALID,
    other_velocities_after_its_approval: E.APPROVAL_INVALID,
    velocities_faster_than_the_arm: E.PLAN_UNKNOWN,
    plan_that_ends_in_motion: E.PLAN_UNKNOWN,
    plan_outside_the_limits: E.PLAN_UNKNOWN,
    plan_faster_than_the_arm: E.PLAN_UNKNOWN,
    superseded_plan: E.PLAN_SUPERSEDED,
    approval_replaced_by_a_later_one: E.APPROVAL_INVALID,
    expired_approval: E.APPROVAL_EXPIRED,
    stale_preview: E.PLAN_STALE,
    preview_replayed_to_look_fresh: E.PLAN_STALE,
    preview_of_an_older_image: E.PLAN_UNKNOWN,
    world_changed_after_approval: E.WORLD_CHANGED,
    preview_of_the_world_before_it_changed: E.PLAN_UNKNOWN,
    arm_not_at_the_start: E.PLAN_START_MISMATCH,
    arm_moved_after_approval: E.ARM_MOVED,
    finger_moved_after_approval: E.ARM_MOVED,
    arm_in_motion: E.ARM_MOVED,
    joint_states_have_stopped: E.JOINT_STATES_STALE,
    joint_states_are_not_numbers: E.JOINT_STATES_STALE,
    joint_states_leave_one_out: E.JOINT_STATES_STALE,
}


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.__name__)
def test_an_attempt_is_refused_and_nothing_moves(
    scene: GateScene, figures: Figures, attempt: Callable[[GateScene], int]
) -> None:
    before = len(scene.motions)
    code = attempt(scene)
    time.sleep(QUIET_S)
    moved = len(scene.motions) - before
    figures.note(attempt.__name__.replace("_", " "), "motions", moved)
    figures.note(attempt.__name__.replace("_", " "), "refused with", ErrorCode(code).name)
    assert moved == 0
    assert code == ATTEMPTS[attempt]


def test_a_valid_approval_moves_the_arm_once_and_exactly_as_previewed(scene: GateScene, figures: Figures) -> None:
    straight = scene.plan()
    points = straight.resample(4)
    rng = np.random.default_rng(0)
    rates, slopes = rng.uniform(-0.01, 0.01, (2, *points.positions.shape))
    rates[[0, -1]] = 0.0
    plan = JointTrajectory(points.names, points.times, points.positions, rates, slopes)
    plan_hash = scene.announce(plan)
    _, token = scene.approve(plan_hash)
    before = len(scene.motions)
    assert scene.execute(plan_hash, token) == ErrorCode.NONE
    wait_for(lambda: len(scene.motions) > before, WAIT_S, "the motion")
    # Again with the same token: while it moves, and after.
    assert scene.execute(plan_hash, token) == ErrorCode.APPROVAL_USED
    assert scene.approve(plan_hash)[0] == ErrorCode.ARM_BUSY
    time.sleep(plan.duration_s + 0.2)
    assert scene.execute(plan_hash, token) == ErrorCode.APPROVAL_USED
    time.sleep(QUIET_S)
    assert len(scene.motions) == before + 1
    for what in ("positions", "velocities", "accelerations"):
        sent = [list(getattr(point, what)) for point in scene.motions[-1].points]
        np.testing.assert_array_equal(sent, getattr(plan, what))
    figures.note("a valid approval, its token used three times", "motions", len(scene.motions) - before)


def test_many_clients_at_once_with_one_token_make_one_motion(
    scene: GateScene, figures: Figures, full: Callable[[int, int], int]
) -> None:
    rounds, clients = full(20, 2), 8
    before = len(scene.motions)
    for _ in range(rounds):
        plan_hash, token = scene.approved(s=0.2)
        with ThreadPoolExecutor(clients) as pool:
            codes = list(pool.map(lambda _, h=plan_hash, t=token: scene.execute(h, t), range(clients)))
        assert sorted(codes)[0] == ErrorCode.NONE
        assert codes.count(ErrorCode.NONE) == 1
        assert set(codes) <= {ErrorCode.NONE, ErrorCode.APPROVAL_USED}
        time.sleep(0.4)
    wait_for(lambda: len(scene.motions) >= before + rounds, WAIT_S, "the motions")
    time.sleep(QUIET_S)
    figures.note(f"{clients} clients at once with one token", "approvals", rounds)
    figures.note(f"{clients} clients at once with one token", "motions", len(scene.motions) - before)
    assert len(scene.motions) == before + rounds


def test_a_gate_killed_between_approval_and_execution_forgets_both(
    scene: GateScene, figures: Figures, full: Callable[[int, int], int]
) -> None:
    kills = full(20, 1)
    before = len(scene.motions)
    for _ in range(kills):
        plan_hash, token = scene.approved()
        scene.node.kill()
        scene.node.lines.clear()
        scene.node.start()
        scene.node.wait_for_line("ready")
        scene.wait_for_gate()
        assert scene.execute(plan_hash, token) == ErrorCode.APPROVAL_INVALID
        assert scene.approve(plan_hash)[0] == ErrorCode.PLAN_UNKNOWN
    time.sleep(QUIET_S)
    figures.note("kill -9 of the gate between approval and execution", "kills", kills)
    figures.note("kill -9 of the gate between approval and execution", "motions", len(scene.motions) - before)
    assert len(scene.motions) == before
    plan_hash, token = scene.approved()
    assert scene.execute(plan_hash, token) == ErrorCode.NONE


def test_only_the_gate_speaks_to_the_arm(scene: GateScene) -> None:
    def speakers() -> set[str]:
        return {one.node_name for one in scene.person.get_publishers_info_by_topic(names.ARM_TRAJECTORY.name)}

    # DDS lists a publisher before its node has a name, and one that was killed until its lease ends.
    wait_for(lambda: "_NODE_NAME_UNKNOWN_" not in speakers(), WAIT_S, "the names of those who publish to the arm")
    assert speakers() == {"gate"}
