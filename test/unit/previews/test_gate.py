"""The execution gate: the one accepted sequence, and every refusal with its own code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory
from kinema4d_ros.previews.arm import ArmState
from kinema4d_ros.previews.checks import check_plan
from kinema4d_ros.previews.gate import REMEMBERED, ExecutionGate, GatePolicy
from kinema4d_ros.robot import Robot

DURATION_S = 4.0


def make_plan(robot: Robot, reach: float = 0.2) -> JointTrajectory:
    q = robot.home_position()
    goal = q.copy()
    goal[0] += reach
    return JointTrajectory.from_positions(robot.joint_names, [q, goal], times=[0.0, DURATION_S])


def make_arm(robot: Robot, offset: float = 0.0, speed: float = 0.0, joint: int = 0) -> ArmState:
    q, v = robot.home_position(), np.zeros(len(robot.joint_names))
    q[joint] += offset
    v[joint] = speed
    return ArmState(q, v, 0.0, 0.0)


class Scene:
    def __init__(self, robot: Robot, policy: GatePolicy | None = None) -> None:
        self.robot = robot
        self.gate = ExecutionGate(robot, policy)
        self.plan = make_plan(robot)
        self.hash = hash_trajectory(self.plan)
        self.gate.previewed(self.plan, self.hash, now_s=0.0)

    def approve(self, now_s: float = 1.0, arm: ArmState | None = None, plan_hash: str | None = None) -> str:
        return self.gate.approve(plan_hash or self.hash, "a person", arm or make_arm(self.robot), now_s).token

    def execute(
        self, token: str, now_s: float = 2.0, arm: ArmState | None = None, plan_hash: str | None = None
    ) -> JointTrajectory:
        return self.gate.execute(plan_hash or self.hash, token, arm or make_arm(self.robot), now_s)


@pytest.fixture
def scene(yam: Robot) -> Scene:
    return Scene(yam)


def refused(call: object, *arguments: object, **options: object) -> ErrorCode:
    with pytest.raises(KinemaError, match="the arm stays where it is") as caught:
        call(*arguments, **options)  # type: ignore[operator]
    return caught.value.code


def test_the_accepted_sequence_returns_exactly_the_plan(scene: Scene) -> None:
    plan = scene.execute(scene.approve())
    assert hash_trajectory(plan) == scene.hash
    np.testing.assert_array_equal(plan.positions, scene.plan.positions)


def test_the_same_positions_with_other_velocities_are_not_the_approved_plan(yam: Robot) -> None:
    scene = Scene(yam)
    token = scene.approve()
    eased = JointTrajectory(scene.plan.names, scene.plan.times, scene.plan.positions, 0 * scene.plan.positions)
    assert refused(scene.execute, token, plan_hash=hash_trajectory(eased)) == ErrorCode.APPROVAL_INVALID
    with pytest.raises(KinemaError) as caught:
        scene.gate.previewed(eased, scene.hash, 1.5)
    assert caught.value.code == ErrorCode.PLAN_UNKNOWN
    scene.gate.previewed(eased, hash_trajectory(eased), 1.5)
    assert refused(scene.execute, token) == ErrorCode.APPROVAL_INVALID
    scene.hash = hash_trajectory(eased)
    given = scene.execute(scene.approve())
    assert given.velocities is not None
    np.testing.assert_array_equal(given.velocities, eased.velocities)


def test_a_plan_with_a_pause_keeps_the_arm_busy_until_its_end(yam: Robot) -> None:
    scene = Scene(yam)
    late = JointTrajectory(scene.plan.names, scene.plan.times + 5.0, scene.plan.positions)
    scene.hash = hash_trajectory(late)
    scene.gate.previewed(late, scene.hash, 0.0)
    scene.execute(scene.approve(), now_s=2.0)
    assert refused(scene.approve, now_s=2.0 + 5.0 + DURATION_S - 0.1) == ErrorCode.ARM_BUSY
    scene.approve(now_s=2.0 + 5.0 + DURATION_S + 0.1)


def test_a_plan_that_cannot_be_sent_is_neither_approved_nor_executed(yam: Robot) -> None:
    open_ = True

    def permit(plan: JointTrajectory) -> None:
        if not open_:
            raise KinemaError("the arm stays where it is: no controller accepts it", code=ErrorCode.UNKNOWN_JOINT)

    scene = Scene(yam)
    scene.gate = ExecutionGate(yam, permit=permit)
    scene.gate.previewed(scene.plan, scene.hash, 0.0)
    token = scene.approve()
    open_ = False
    assert refused(scene.approve) == ErrorCode.UNKNOWN_JOINT
    assert refused(scene.execute, token) == ErrorCode.UNKNOWN_JOINT
    open_ = True
    scene.execute(token)


def test_a_plan_that_does_not_match_its_hash_is_not_taken(scene: Scene) -> None:
    altered = make_plan(scene.robot, 0.3)
    with pytest.raises(KinemaError) as caught:
        scene.gate.previewed(altered, scene.hash, 0.5)
    assert caught.value.code == ErrorCode.PLAN_UNKNOWN
    np.testing.assert_array_equal(scene.execute(scene.approve()).positions, scene.plan.positions)


def test_a_plan_outside_the_limits_is_not_taken(scene: Scene) -> None:
    wild = make_plan(scene.robot, 30.0)
    with pytest.raises(KinemaError) as caught:
        scene.gate.previewed(wild, hash_trajectory(wild), 0.5)
    assert caught.value.code in (ErrorCode.TRAJECTORY_OUT_OF_LIMITS, ErrorCode.TRAJECTORY_TOO_FAST)


def test_approving_what_was_never_previewed(scene: Scene) -> None:
    assert refused(scene.approve, plan_hash="0" * 64) == ErrorCode.PLAN_UNKNOWN


def test_executing_without_any_approval(scene: Scene) -> None:
    assert refused(scene.execute, "") == ErrorCode.APPROVAL_INVALID
    assert refused(scene.execute, "f" * 32) == ErrorCode.APPROVAL_INVALID


def test_a_token_works_once(scene: Scene) -> None:
    token = scene.approve()
    scene.execute(token)
    scene.gate.finished()
    assert refused(scene.execute, token, now_s=3.0) == ErrorCode.APPROVAL_USED


def test_a_second_approval_ends_the_first(scene: Scene) -> None:
    first, second = scene.approve(), scene.approve()
    assert refused(scene.execute, first) == ErrorCode.APPROVAL_INVALID
    scene.execute(second)


def test_an_approval_expires(scene: Scene) -> None:
    token = scene.approve(now_s=1.0)
    late = 1.0 + scene.gate.policy.approval_ttl_s + 0.01
    assert refused(scene.execute, token, now_s=late) == ErrorCode.APPROVAL_EXPIRED
    assert refused(scene.execute, token, now_s=2.0) == ErrorCode.APPROVAL_INVALID


def test_a_preview_gets_old(yam: Robot) -> None:
    scene = Scene(yam, GatePolicy(plan_max_age_s=10.0, approval_ttl_s=100.0))
    assert refused(scene.approve, now_s=10.1) == ErrorCode.PLAN_STALE
    token = scene.approve(now_s=9.0)
    assert refused(scene.execute, token, now_s=10.1) == ErrorCode.PLAN_STALE


def test_an_approval_names_one_plan(scene: Scene) -> None:
    token = scene.approve()
    assert refused(scene.execute, token, plan_hash="1" * 64) == ErrorCode.APPROVAL_INVALID


def test_a_newer_preview_voids_the_older_plan_and_its_approval(scene: Scene) -> None:
    token = scene.approve()
    newer = make_plan(scene.robot, 0.1)
    scene.gate.previewed(newer, hash_trajectory(newer), 1.5)
    assert refused(scene.execute, token) == ErrorCode.APPROVAL_INVALID
    assert refused(scene.approve) == ErrorCode.PLAN_SUPERSEDED


@pytest.mark.parametrize(("offset", "speed"), [(0.03, 0.0), (-0.03, 0.0), (0.0, 0.1), (0.0, -0.1)])
def test_an_arm_elsewhere_or_moving_cannot_be_approved(scene: Scene, offset: float, speed: float) -> None:
    arm = make_arm(scene.robot, offset, speed)
    assert refused(scene.approve, arm=arm) == ErrorCode.PLAN_START_MISMATCH


@pytest.mark.parametrize(("offset", "speed"), [(0.03, 0.0), (0.0, 0.1)])
def test_an_arm_that_moved_after_approval_voids_it(scene: Scene, offset: float, speed: float) -> None:
    token = scene.approve()
    assert refused(scene.execute, token, arm=make_arm(scene.robot, offset, speed)) == ErrorCode.ARM_MOVED
    assert refused(scene.execute, token) == ErrorCode.APPROVAL_INVALID


def test_fingers_have_their_own_tolerance_in_metres(scene: Scene) -> None:
    finger = scene.robot.joint_names.index("left_finger_joint")
    arm = make_arm(scene.robot, -0.004, joint=finger)
    assert refused(scene.approve, arm=arm) == ErrorCode.PLAN_START_MISMATCH
    scene.approve(arm=make_arm(scene.robot, -0.002, joint=finger))


def test_joints_that_a_plan_does_not_name_may_be_anywhere(yam: Robot) -> None:
    gate = ExecutionGate(yam)
    q = yam.home_position()[:6]
    plan = JointTrajectory.from_positions(yam.joint_names[:6], [q, q], times=[0.0, 1.0])
    gate.previewed(plan, hash_trajectory(plan), 0.0)
    gate.approve(hash_trajectory(plan), "a person", make_arm(yam, -0.02, joint=6), 0.1)


def test_a_busy_arm_takes_no_second_plan(scene: Scene) -> None:
    scene.execute(scene.approve(), now_s=2.0)
    assert refused(scene.approve, now_s=2.0 + DURATION_S - 0.1) == ErrorCode.ARM_BUSY
    scene.approve(now_s=2.0 + DURATION_S + 0.1)
    scene.gate.finished()


def test_an_arm_that_may_move_is_busy_from_then_on(scene: Scene) -> None:
    scene.execute(scene.approve(), now_s=2.0)
    scene.gate.may_move(2.0 + DURATION_S + 3.0)
    assert refused(scene.approve, now_s=2.0 + DURATION_S + 2.9) == ErrorCode.ARM_BUSY
    scene.gate.may_move(0.0)
    assert refused(scene.approve, now_s=2.0 + DURATION_S + 2.9) == ErrorCode.ARM_BUSY


def test_a_new_gate_knows_nothing(scene: Scene) -> None:
    token = scene.approve()
    reborn = ExecutionGate(scene.robot)
    assert refused(reborn.execute, scene.hash, token, make_arm(scene.robot), 2.0) == ErrorCode.APPROVAL_INVALID
    assert refused(reborn.approve, scene.hash, "a person", make_arm(scene.robot), 2.0) == ErrorCode.PLAN_UNKNOWN


def test_previewing_the_same_plan_again_renews_it(yam: Robot) -> None:
    scene = Scene(yam, GatePolicy(plan_max_age_s=10.0))
    scene.gate.previewed(scene.plan, scene.hash, now_s=50.0)
    scene.execute(scene.approve(now_s=55.0), now_s=56.0)


def test_a_changed_world_voids_the_plan_until_it_is_previewed_again(scene: Scene) -> None:
    token = scene.approve()
    assert scene.gate.world_changed(1_000)
    assert refused(scene.execute, token) == ErrorCode.WORLD_CHANGED
    assert refused(scene.approve) == ErrorCode.WORLD_CHANGED
    assert refused(scene.gate.previewed, scene.plan, scene.hash, 1.5, world_ns=1_000) == ErrorCode.WORLD_CHANGED
    scene.gate.previewed(scene.plan, scene.hash, 1.5, world_ns=1_001)
    assert refused(scene.execute, token) == ErrorCode.APPROVAL_INVALID
    scene.execute(scene.approve())


def test_a_change_before_the_image_voids_nothing(scene: Scene) -> None:
    scene.gate.previewed(scene.plan, scene.hash, 0.0, world_ns=2_000)
    token = scene.approve()
    assert not scene.gate.world_changed(1_999)
    scene.execute(token)


def test_an_arm_of_unknown_speed_does_not_count_as_still(scene: Scene) -> None:
    """After a gap or a clock jump the first state has a position but no velocity."""
    assert refused(scene.approve, arm=make_arm(scene.robot, speed=np.nan)) == ErrorCode.PLAN_START_MISMATCH
    token = scene.approve()
    assert refused(scene.execute, token, arm=make_arm(scene.robot, speed=np.nan)) == ErrorCode.ARM_MOVED


def test_a_replayed_announcement_renews_nothing(yam: Robot) -> None:
    scene = Scene(yam, GatePolicy(plan_max_age_s=10.0))
    scene.gate.previewed(scene.plan, scene.hash, 0.0, world_ns=1_000)
    scene.gate.previewed(scene.plan, scene.hash, 9.0, world_ns=1_000)
    assert refused(scene.approve, now_s=11.0) == ErrorCode.PLAN_STALE
    scene.gate.previewed(scene.plan, scene.hash, 12.0, world_ns=1_001)
    scene.execute(scene.approve(now_s=13.0), now_s=14.0)


def test_an_older_preview_does_not_replace_a_newer_one(scene: Scene) -> None:
    older = make_plan(scene.robot, 0.3)
    scene.gate.previewed(scene.plan, scene.hash, 0.0, world_ns=2_000)
    assert refused(scene.gate.previewed, older, hash_trajectory(older), 0.5, world_ns=1_999) == ErrorCode.PLAN_STALE
    scene.execute(scene.approve())


def test_a_clock_that_goes_back_counts_as_a_scene_change(scene: Scene) -> None:
    scene.gate.world_changed(5_000)
    scene.gate.previewed(scene.plan, scene.hash, 0.0, world_ns=6_000)
    token = scene.approve()
    assert scene.gate.world_changed(10)
    assert refused(scene.execute, token) == ErrorCode.WORLD_CHANGED


def test_a_clock_that_goes_back_does_not_close_the_gate_permanently(scene: Scene) -> None:
    scene.gate.world_changed(5_000_000_000)
    scene.gate.world_changed(10)
    scene.gate.previewed(scene.plan, scene.hash, 0.0, world_ns=20)
    scene.execute(scene.approve())


def test_the_gate_stores_a_thousand_entries_and_accepts_nothing_old(yam: Robot) -> None:
    scene = Scene(yam)
    tokens = []
    for index in range(REMEMBERED + 50):
        plan = make_plan(yam, 0.1 + 0.0001 * index)
        scene.gate.previewed(plan, hash_trajectory(plan), now_s=float(index))
        tokens.append(scene.gate.approve(hash_trajectory(plan), "x", make_arm(yam), float(index)).token)
        scene.gate.execute(hash_trajectory(plan), tokens[-1], make_arm(yam), float(index))
        scene.gate.finished()
    newest = hash_trajectory(plan)
    assert refused(scene.gate.execute, newest, tokens[-1], make_arm(yam), 1.0) == ErrorCode.APPROVAL_USED
    assert refused(scene.gate.execute, newest, tokens[-REMEMBERED], make_arm(yam), 1.0) == ErrorCode.APPROVAL_USED
    for old in tokens[:50]:
        assert refused(scene.gate.execute, newest, old, make_arm(yam), 1.0) == ErrorCode.APPROVAL_INVALID
    first = hash_trajectory(make_plan(yam, 0.1))
    assert refused(scene.gate.approve, first, "x", make_arm(yam), 1.0) == ErrorCode.PLAN_UNKNOWN
    kept = (len(scene.gate._used._texts), len(scene.gate._superseded._texts))
    assert kept == (REMEMBERED, REMEMBERED)


class Attack(RuleBasedStateMachine):
    """Random previews, approvals, executions, waits, bumps and changes: no motion without a valid approval of it."""

    robot = Robot.load("primitive_arm")

    def __init__(self) -> None:
        super().__init__()
        self.gate = ExecutionGate(self.robot)
        self.now = 0.0
        self.plans = [make_plan(self.robot, reach) for reach in (0.1, 0.2, 0.3)]
        self.hashes = [hash_trajectory(plan) for plan in self.plans]
        self.newest: tuple[int, float] | None = None
        self.valid: tuple[str, int, float] | None = None
        self.changes = 0
        self.seen: list[str] = ["", "0" * 32]
        self.busy_until = -1.0
        self.void = False

    @rule(which=st.integers(0, 2))
    def preview(self, which: int) -> None:
        self.gate.previewed(self.plans[which], self.hashes[which], self.now)
        if self.newest is None or self.newest[0] != which or self.void:
            self.valid = None
        self.newest = (which, self.now)
        self.void = False

    @rule(after=st.integers(1, 5))
    def change_the_world(self, after: int) -> None:
        self.changes += 1
        self.gate.world_changed(1_000_000 * self.changes + after)
        self.void = self.newest is not None

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 31.0, 121.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(which=st.integers(0, 2), offset=st.sampled_from([0.0, 0.0, 0.01, 0.5]))
    def approve(self, which: int, offset: float) -> None:
        allowed = (
            self.newest is not None
            and self.newest[0] == which
            and self.now - self.newest[1] <= 120.0
            and offset < 0.02
            and self.now >= self.busy_until
            and not self.void
        )
        try:
            approval = self.gate.approve(self.hashes[which], "x", make_arm(self.robot, offset), self.now)
        except KinemaError:
            assert not allowed
            return
        assert allowed
        self.valid = (approval.token, which, self.now)
        self.seen.append(approval.token)

    @rule(which=st.integers(0, 2), pick=st.integers(0, 50), offset=st.sampled_from([0.0, 0.0, 0.5]))
    def execute(self, which: int, pick: int, offset: float) -> None:
        token = self.seen[-1 - pick % len(self.seen)]
        allowed = (
            self.valid is not None
            and self.newest is not None
            and self.valid[:2] == (token, which)
            and self.now - self.valid[2] <= 30.0
            and self.now - self.newest[1] <= 120.0
            and self.now >= self.busy_until
            and offset < 0.02
            and not self.void
        )
        try:
            plan = self.gate.execute(self.hashes[which], token, make_arm(self.robot, offset), self.now)
        except KinemaError:
            assert not allowed
            if self.valid is not None and self.valid[0] == token and self.valid[1] == which:
                expired = self.now - self.valid[2] > 30.0
                fresh = self.newest is not None and self.now - self.newest[1] <= 120.0
                if expired or (fresh and not self.void and self.now >= self.busy_until and offset >= 0.02):
                    self.valid = None
            return
        assert allowed
        assert hash_trajectory(plan) == self.hashes[which]
        self.valid = None
        self.busy_until = self.now + DURATION_S


TestAttack = Attack.TestCase
TestAttack.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_policy_is_data(yam: Robot) -> None:
    policy = replace(GatePolicy(), start_tolerance_rad=0.5)
    scene = Scene(yam, policy)
    scene.approve(arm=make_arm(yam, 0.3))


@pytest.mark.parametrize(
    ("joint", "offset", "allowed"),
    [
        (0, 0.019, True),
        (0, -0.021, False),
        (0, 0.03, False),
        (0, -0.049, False),
        (6, 0.0029, True),
        (6, 0.0031, False),
        (6, 0.0049, False),
    ],
)
def test_a_plan_that_can_be_previewed_can_be_approved(scene: Scene, joint: int, offset: float, allowed: bool) -> None:
    arm = make_arm(scene.robot, offset, joint=joint)
    if allowed:
        assert check_plan(scene.robot, scene.plan, arm).plan_hash == scene.hash
        assert scene.approve(arm=arm)
        return
    with pytest.raises(KinemaError) as caught:
        check_plan(scene.robot, scene.plan, arm)
    assert caught.value.code == ErrorCode.PLAN_START_MISMATCH
    assert refused(scene.approve, arm=arm) == ErrorCode.PLAN_START_MISMATCH
