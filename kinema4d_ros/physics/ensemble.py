"""Simulation of one commanded motion in many variants of a scene: `run_members`.

    Member: objects, materials, delay ─> build_model ─> settle ─> mujoco.rollout in chunks ─> MemberRun: poses, contacts
    JointTrajectory ─> TrajectoryController ─> servo commands, once for each distinct start and delay

Members run in threads, each with its own model, so that shapes may differ. A member's result does not depend on the
others or on the number of threads. All objects take part; those at rest sleep and cost next to nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import mujoco
import numpy as np
from mujoco import rollout
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import Cancelled, ErrorCode, KinemaError, TrajectoryError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import from_quaternion
from kinema4d_ros.physics.controller import TrajectoryController
from kinema4d_ros.physics.model import Materials, Room, build_model, joint_addresses, servo_lead
from kinema4d_ros.physics.objects import PlacedObject
from kinema4d_ros.physics.settling import settle
from kinema4d_ros.robot.model import Robot

__all__ = ["STEP_S", "Contact", "Member", "MemberRun", "run_members"]

Array = NDArray[np.float64]

STEP_S = 0.004
"""Time step of members: half the cost of the lab's, with the same outcomes."""
CONTACT_S = 0.02
"""Interval at which contacts are looked for."""
CHUNK_S = 0.5
"""Simulated time between two checks for cancellation."""
_POLL_S = 0.02
_STATE = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)


@dataclass(frozen=True, eq=False)
class Member:
    """One variant of a scene.

    Attributes:
        objects: the same names in the same order in all members.
        materials: friction and servos.
        delay_s: of the servos' commands, 0 or more.
        held: names of objects between the fingers at the start.
    """

    objects: tuple[PlacedObject, ...]
    materials: Materials
    delay_s: float = 0.0
    held: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contact:
    """First touch of an object and something else.

    Attributes:
        time_s: on the clock of the commands, to `CONTACT_S`; the start for what touches from the beginning.
        object: its name.
        other: a link of the robot, another object, "table", "floor" or a wall.
    """

    time_s: float
    object: str
    other: str


@dataclass(frozen=True, eq=False)
class MemberRun:
    """What happened in one member.

    Attributes:
        times: (T,) float64 seconds on the clock of the commands.
        base_T_object: (T, N, 4, 4) float64, metres, in the order of `Member.objects`; at the start after settling.
        joints: (T, J) float64 simulated positions, `robot.joint_names` order.
        contacts: in order of time; one for each pair.
        stable: False = the physics became unstable; later poses are the last good ones.
    """

    times: Array
    base_T_object: Array
    joints: Array
    contacts: tuple[Contact, ...]
    stable: bool


def run_members(
    robot: Robot,
    members: Sequence[Member],
    commands: JointTrajectory,
    times: ArrayLike,
    *,
    start: ArrayLike,
    room: Room | None = None,
    threads: int | None = None,
    cancel: Callable[[], bool] | None = None,
    step_s: float = STEP_S,
) -> list[MemberRun]:
    """Simulate a commanded motion in every member, open loop.

    Args:
        robot: any robot, with or without gripper.
        members: with the same object names in the same order.
        commands: followed with their own timing and splines, as the lab's controller does; joints that they do not name
            hold. After the end the last position is held.
        times: (T,) increasing seconds on the clock of `commands`, whose first time is the start of the motion.
        start: (J,) joint positions at the start: measured, or commanded if nothing was measured; fingers that would be
            inside a held object begin at its sides.
        room: table and walls.
        threads: at most this many members at a time; None = all cores.
        cancel: called from this thread every few milliseconds; True ends the simulation with `Cancelled` within
            `CHUNK_S` of simulated time.
        step_s: of the physics.

    Raises:
        TrajectoryError: commands that the controller refuses: limits, speeds, or a start too far from `start`.
        KinemaError: members with different objects, or an unknown held one.
        Cancelled: by `cancel`.
    """
    moments = _require_times(times, commands)
    begin = np.array(start, dtype=np.float64)
    if begin.shape != (len(robot.joint_names),) or not np.all(np.isfinite(begin)):
        raise KinemaError(f"start is {begin}", expected=f"{len(robot.joint_names)} finite positions")
    _require_members(members)
    steps = max(1, int(np.ceil((moments[-1] - commands.times[0]) / step_s - 1e-9)))
    clock = step_s * np.arange(steps, dtype=np.float64)
    motion = _Motion(robot, commands, begin, clock)
    plans = [motion.of(member) for member in members]
    stop = threading.Event()

    def run(member: Member, plan: tuple[Array, Array, Array]) -> MemberRun:
        model = build_model(robot, member.objects, member.materials, room, step_s)
        # Where fingers jam several objects, Newton's method diverges on elliptic cones and objects fly off.
        model.opt.solver = mujoco.mjtSolver.mjSOL_CG
        return _simulate(model, robot, member, plan, begin, moments, float(commands.times[0]), stop)

    if threads is None:
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(max(1, min(threads, len(members) or 1))) as pool:
        jobs = [pool.submit(run, member, plan) for member, plan in zip(members, plans, strict=True)]
        try:
            _wait(jobs, stop, cancel)
        finally:
            stop.set()
            for job in jobs:
                job.cancel()
    return [job.result() for job in jobs]


def _wait(jobs: list[Future[MemberRun]], stop: threading.Event, cancel: Callable[[], bool] | None) -> None:
    """Wait for all jobs; raise the first error, or `Cancelled`."""
    pending = set(jobs)
    while pending:
        if cancel is not None and cancel():
            stop.set()
            raise Cancelled(f"cancelled by the caller with {len(jobs) - len(pending)} of {len(jobs)} members simulated")
        done, pending = wait(pending, timeout=None if cancel is None else _POLL_S, return_when=FIRST_EXCEPTION)
        for job in done:
            job.result()


class _Motion:
    """Commands of the controller over time; computed once for each distinct start and delay."""

    def __init__(self, robot: Robot, commands: JointTrajectory, start: Array, clock: Array) -> None:
        self._robot, self._commands, self._start, self._clock = robot, commands, start, clock
        self._controllers: dict[bytes, TrajectoryController] = {}
        self._known: dict[tuple[bytes, float], tuple[Array, Array]] = {}

    def of(self, member: Member) -> tuple[Array, Array, Array]:
        """Return the first command (J,), and commanded positions and velocities (N, J) at the steps."""
        first = self._first(bool(member.held))
        if first.tobytes() not in self._controllers:
            controller = TrajectoryController(self._robot, first)
            controller.follow(self._commands, 0.0, self._start)
            self._controllers[first.tobytes()] = controller
        which = (first.tobytes(), member.delay_s)
        if which not in self._known:
            self._known[which] = self._controllers[which[0]].targets(self._clock - member.delay_s)
        return first, *self._known[which]

    def _first(self, held: bool) -> Array:
        """Return the command (J,) before the motion: fingers that hold something as closed as the plan begins."""
        gripper = self._robot.gripper
        first = self._start.copy()
        if held and gripper is not None and gripper.joint in self._commands.names:
            column = self._robot.joint_names.index(gripper.joint)
            planned = float(self._commands.positions[0, self._commands.names.index(gripper.joint)])
            if (planned - first[column]) * (gripper.closed - gripper.open) > 0:
                first[column] = planned
        return first


def _simulate(
    model: mujoco.MjModel,
    robot: Robot,
    member: Member,
    plan: tuple[Array, Array, Array],
    start: Array,
    moments: Array,
    begin_s: float,
    stop: threading.Event,
) -> MemberRun:
    names = [placed.name for placed in member.objects]
    command, q, v = plan
    data, kept = settle(model, robot, names, start, command, member.held)
    # What presses the fingers on a held object presses them until the plan opens them.
    controls = q + servo_lead(model) * v + (kept - command)
    states, good = _roll(model, data, controls, stop)
    times = np.arange(len(states)) * model.opt.timestep
    qpos = _between(model, times[:good], states[:good, 1 : 1 + model.nq], moments - begin_s)
    return MemberRun(
        times=moments,
        base_T_object=np.stack([_poses(model, name, qpos) for name in names], axis=1)
        if names
        else np.empty((len(moments), 0, 4, 4)),
        joints=qpos[:, joint_addresses(model, robot)],
        contacts=_contacts(model, names, states[:good, 1 : 1 + model.nq], begin_s),
        stable=good == len(states),
    )


def _roll(
    model: mujoco.MjModel, data: mujoco.MjData, controls: Array, stop: threading.Event
) -> tuple[NDArray[np.float64], int]:
    """Step through the controls (N, J); return the states (N + 1, S), the first included, and how many are good."""
    states = np.empty((len(controls) + 1, mujoco.mj_stateSize(model, _STATE)))
    mujoco.mj_getState(model, data, states[0], _STATE)
    size = max(1, round(CHUNK_S / model.opt.timestep))
    for i in range(0, len(controls), size):
        if stop.is_set():
            raise Cancelled("the simulation of a member was cancelled")
        part = controls[None, i : i + size]
        made, _ = rollout.rollout(model, data, states[i], part, initial_warmstart=data.qacc_warmstart.copy())
        states[i + 1 : i + 1 + part.shape[1]] = made[0]
        # On overflow MuJoCo resets the state, and a rollout stops at the first warning: time stands still.
        fine = (np.diff(states[i : i + 1 + part.shape[1], 0]) > 0) & np.isfinite(made[0]).all(axis=1)
        if not fine.all():
            return states, i + 1 + int(np.argmin(fine))
    return states, len(states)


def _between(model: mujoco.MjModel, times: Array, qpos: Array, moments: Array) -> Array:
    """Interpolate generalised positions (N, nq) at moments (T,); after the end, hold the last ones."""
    at = np.clip(moments, times[0], times[-1])
    i = np.clip(np.searchsorted(times, at, side="right") - 1, 0, max(len(times) - 2, 0))
    j = np.minimum(i + 1, len(times) - 1)
    share = ((at - times[i]) / model.opt.timestep)[:, None]
    found = qpos[i] + share * (qpos[j] - qpos[i])
    for joint in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE):
        turn = slice(model.jnt_qposadr[joint] + 3, model.jnt_qposadr[joint] + 7)
        found[:, turn] /= np.linalg.norm(found[:, turn], axis=1, keepdims=True)
    return np.asarray(found)


def _poses(model: mujoco.MjModel, name: str, qpos: Array) -> Array:
    """Return `base_T_object` (T, 4, 4) of positions (T, nq)."""
    at = int(model.joint(name).qposadr[0])
    return from_quaternion(qpos[:, [at + 4, at + 5, at + 6, at + 3]], qpos[:, at : at + 3])


def _contacts(model: mujoco.MjModel, names: Sequence[str], qpos: Array, begin_s: float) -> tuple[Contact, ...]:
    """Find the first touch of every pair in positions (N, nq), by collision detection at intervals."""
    order = {model.body(name).id: i for i, name in enumerate(names)}
    # Nothing sleeps here: the contacts of sleeping objects are not computed.
    model.opt.enableflags &= ~int(mujoco.mjtEnableBit.mjENBL_SLEEP)
    data = mujoco.MjData(model)
    seen: set[tuple[int, int]] = set()
    first: dict[tuple[str, str], float] = {}
    every = max(1, round(CONTACT_S / model.opt.timestep))
    for step in sorted({*range(0, len(qpos), every), len(qpos) - 1}):
        data.qpos[:] = qpos[step]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_collision(model, data)
        new = set(map(tuple, data.contact.geom.tolist())) - seen
        seen |= new
        for geoms in new:
            ends = sorted(geoms, key=lambda geom: order.get(int(model.geom_bodyid[geom]), len(order)))
            if int(model.geom_bodyid[ends[0]]) in order:
                pair = (_named(model, ends[0]), _named(model, ends[1]))
                first.setdefault(pair, begin_s + step * model.opt.timestep)
    found = [Contact(time_s, *pair) for pair, time_s in first.items()]
    return tuple(sorted(found, key=lambda contact: (contact.time_s, contact.object, contact.other)))


def _named(model: mujoco.MjModel, geom: int) -> str:
    """Return the name of a geom's body; of the world's geoms their own."""
    body = int(model.geom_bodyid[geom])
    return str(model.geom(geom).name if body == 0 else model.body(body).name)


def _require_times(times: ArrayLike, commands: JointTrajectory) -> Array:
    moments = np.array(times, dtype=np.float64)
    if moments.ndim != 1 or not len(moments) or not np.all(np.isfinite(moments)) or np.any(np.diff(moments) <= 0):
        raise TrajectoryError(
            f"the times of a simulation have shape {moments.shape}", expected="(T,) finite, strictly increasing seconds"
        )
    if moments[0] < commands.times[0] - 1e-6:
        raise TrajectoryError(
            f"the first time is {moments[0]:g} s, before the commands begin",
            expected=f"{commands.times[0]:g} s or later, on the clock of the commands",
        )
    return moments


def _require_members(members: Sequence[Member]) -> None:
    for k, member in enumerate(members):
        names = [placed.name for placed in member.objects]
        first = [placed.name for placed in members[0].objects]
        if names != first or len(set(names)) != len(names):
            raise KinemaError(
                f"member {k} has the objects {', '.join(names) or 'none'}",
                expected=f"{', '.join(first) or 'none'}, as the first member, each once",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        unknown = [name for name in member.held if name not in names]
        if unknown or not (np.isfinite(member.delay_s) and member.delay_s >= 0):
            raise KinemaError(
                f"member {k} holds {', '.join(member.held) or 'nothing'} and has a delay of {member.delay_s} s",
                expected=f"held objects among {', '.join(names) or 'none'}, and 0 or more seconds",
                code=ErrorCode.ARGUMENT_INVALID,
            )
