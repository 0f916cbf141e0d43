"""`LabSimulation`: a stand-in for arm, table and objects with real contact physics, in its own time.

scenario, seed ─> layout ─> MuJoCo ─> settle ─┐
JointTrajectory ─> follow() ─> controller ────┴─> step(dt) ─> state(): joints, object poses, time
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import from_quaternion, make
from kinema4d_ros.lab.scenario import Scenario, ScenarioError, make_scenario
from kinema4d_ros.physics.controller import TrajectoryController
from kinema4d_ros.physics.model import TIMESTEP_S, Materials, Room, build_model
from kinema4d_ros.physics.objects import PlacedObject
from kinema4d_ros.robot.model import Robot

__all__ = ["MATERIALS", "LabSimulation", "LabState"]

Array = NDArray[np.float64]

MATERIALS = Materials(
    friction=(0.5, 0.01, 0.001),  # wood and plastic
    finger_friction=1.2,  # rubber
    servo_span_rad=0.15,  # stiff as the vendor's, soft enough to give way on contact
    servo_span_m=0.02,
    rotor_inertia=7e-4,  # about that of small geared servos
    rotor_mass=2e-3,
)
"""The lab's true constants. What predicts the lab must not read them."""

SETTLE_S = 0.5
SETTLE_MOVE_M = 0.01
"""A layout in which something slides or tips by more than this while it settles is refused and drawn again."""
SETTLE_TRIES = 20
MAX_STEP_S = 10.0


@dataclass(frozen=True, eq=False)
class LabState:
    """A copy of everything one may know about the lab at one time.

    Attributes:
        time_s: simulation time since the reset.
        joint_names: J actuated joints, `robot.joint_names`.
        positions, velocities, efforts: (J,) measured; radians or metres, per second, N m or N.
        base_T_link: (L, 4, 4) `robot.links` order, as simulated: each finger where it is.
        commanded: (J,) what the controller asks for; fingers that hold something are commanded further closed.
        objects: by name, with `base_T_object`.
        target: name of the object the scenario is about.
        goal: (2,) x, y in metres: a free spot of the table.
        moving: a trajectory is under way.
    """

    time_s: float
    joint_names: tuple[str, ...]
    positions: Array
    velocities: Array
    efforts: Array
    base_T_link: Array
    commanded: Array
    objects: Mapping[str, PlacedObject]
    target: str
    goal: Array
    moving: bool


class LabSimulation:
    """Arm, table and objects, stepped by the caller. Nothing runs by itself.

    Thread safety: one lock inside; any method may be called from any thread, each call is atomic,
    and what it returns is a copy. A long `step` makes other callers wait, so step in small pieces.
    The same scenario, seed and calls give the same numbers.

    Args:
        scenario: "canonical", "cluttered", "dynamic", or a `Scenario`.
        seed: 0 or more.
        robot: a name, a path, or a `Robot`.
        camera: whose position occluders hide the target from; by default the demonstration camera's.
        room: the table and the walls.
        timestep_s: of the physics.
        start: (J,) where the arm is after a reset; by default the robot's home.

    >>> lab = LabSimulation("canonical", seed=3)                            # doctest: +SKIP
    >>> lab.follow(pick_plan(lab.state(), lab.scenario.target, kinematics)) # doctest: +SKIP
    >>> while lab.moving:                                                   # doctest: +SKIP
    ...     lab.step(0.01)
    """

    def __init__(
        self,
        scenario: str | Scenario = "canonical",
        seed: int = 0,
        robot: str | Robot = "yam",
        camera: PinholeCamera | None = None,
        *,
        room: Room | None = None,
        timestep_s: float = TIMESTEP_S,
        start: ArrayLike | None = None,
    ) -> None:
        """Lay the table and let it settle."""
        self._lock = threading.RLock()
        self._robot = robot if isinstance(robot, Robot) else Robot.load(robot)
        self._camera = camera
        self._room = room or Room()
        self._timestep_s = timestep_s
        self._start = self._robot.home_position() if start is None else np.array(start, dtype=np.float64)
        if self._start.shape != (len(self._robot.joint_names),) or not np.all(np.isfinite(self._start)):
            raise KinemaError(f"start is {self._start}", expected=f"{len(self._robot.joint_names)} finite positions")
        self.reset(scenario, seed)

    @property
    def robot(self) -> Robot:
        """The robot that the lab simulates."""
        return self._robot

    @property
    def room(self) -> Room:
        """The table and the walls."""
        return self._room

    @property
    def scenario(self) -> Scenario:
        """The current layout as it was drawn."""
        return self._scenario

    @property
    def moving(self) -> bool:
        """Whether a trajectory is under way."""
        with self._lock:
            return self._controller.busy(self._data.time)

    @property
    def time_s(self) -> float:
        """Simulation time since the reset."""
        with self._lock:
            return float(self._data.time)

    @property
    def remaining_s(self) -> float:
        """Seconds to the end of the trajectory under way, 0 without one."""
        with self._lock:
            return self._controller.remaining_s(self._data.time)

    def reset(self, scenario: str | Scenario | None = None, seed: int = 0) -> LabState:
        """Lay the table anew (None: the same scenario) and put the arm at its start; returns the settled state.

        Raises:
            ScenarioError: `SCENARIO_UNKNOWN` with the names there are; the lab then stays as it is.
        """
        with self._lock:
            if isinstance(scenario, Scenario):
                if not self._settled(scenario):
                    raise ScenarioError(
                        f"the objects of scenario '{scenario.name}' do not stay where they are put",
                        expected="objects that stand on the table and do not touch",
                    )
                return self.state()
            name = self._scenario.name if scenario is None else scenario
            eye = None if self._camera is None else self._camera.base_T_camera[:3, 3]
            for attempt in range(SETTLE_TRIES):
                # Attempts use seeds far outside the range people use, so no two seeds share a table.
                drawn = make_scenario(name, seed + attempt * (1 << 32), eye)
                if self._settled(Scenario(**{**vars(drawn), "seed": seed})):
                    return self.state()
            raise ScenarioError(f"no stable layout for '{name}' with seed {seed}", expected="ranges that leave room")

    def step(self, dt: float) -> None:
        """Advance by `dt` seconds, rounded to whole physics steps (at least one), under the controller's command.

        Raises:
            KinemaError: ARM_ABORTED, the physics became unstable; the table is then as it was after the reset.
        """
        if not (np.isfinite(dt) and 0.0 < dt <= MAX_STEP_S):
            raise KinemaError(f"dt is {dt}", expected=f"more than 0 and at most {MAX_STEP_S:g} seconds")
        with self._lock:
            for _ in range(max(1, round(dt / self._timestep_s))):
                self._command()
                before = self._data.time
                mujoco.mj_step(self._model, self._data)
                # MuJoCo starts anew at time 0 when its numbers overflow: whoever waits for an end would wait for ever.
                if not self._data.time > before:
                    self._settled(self._scenario)
                    raise KinemaError(
                        f"the physics became unstable after {before:.2f} s",
                        expected="a motion that the arm can do",
                        hint="the table was laid anew; a slower or smoother motion may help",
                        code=ErrorCode.ARM_ABORTED,
                    )

    def follow(self, trajectory: JointTrajectory) -> None:
        """Start a trajectory now, in place of the one under way; see `TrajectoryController.follow` for refusals."""
        with self._lock:
            self._controller.follow(trajectory, self._data.time, self._data.qpos[self._qpos].copy())

    def stop(self) -> None:
        """Brake and hold."""
        with self._lock:
            self._controller.stop(self._data.time)

    def run(self, trajectory: JointTrajectory, settle_s: float = 0.3) -> LabState:
        """Follow a trajectory to its end, wait, and return the state: for scripts that need no pictures in between."""
        self.follow(trajectory)
        while self.moving:
            self.step(0.05)
        self.step(settle_s)
        return self.state()

    def state(self) -> LabState:
        """A copy of the current state."""
        with self._lock:
            data = self._data
            commanded, _ = self._controller.target(data.time)
            return LabState(
                time_s=float(data.time),
                joint_names=self._robot.joint_names,
                positions=data.qpos[self._qpos].copy(),
                velocities=data.qvel[self._dofs].copy(),
                efforts=data.qfrc_actuator[self._dofs].copy(),
                base_T_link=make(data.xmat[self._bodies].reshape(-1, 3, 3), data.xpos[self._bodies]),
                commanded=commanded,
                objects={p.name: PlacedObject(p.object, self._object_pose(p.name)) for p in self._scenario.objects},
                target=self._scenario.target,
                goal=self._scenario.goal.copy(),
                moving=self._controller.busy(data.time),
            )

    def touching(self, name: str) -> tuple[str, ...]:
        """Names of the bodies in contact with an object: links, other objects, or "world" for table and walls.

        Objects at rest on the table are asleep in the physics and touch nothing until something moves them.
        """
        with self._lock:
            self._require_object(name)
            body = self._model.body(name).id
            found = set()
            for geoms in self._data.contact.geom:
                bodies = [int(self._model.geom_bodyid[g]) for g in geoms]
                if body in bodies:
                    found.add(self._model.body(bodies[0] if bodies[1] == body else bodies[1]).name)
            return tuple(sorted(found))

    def move_object(self, name: str, base_T_object: ArrayLike) -> None:
        """Put an object somewhere else, at rest: for counterfactuals and tests."""
        with self._lock:
            self._require_object(name)
            pose = np.asarray(base_T_object, dtype=np.float64)
            joint = self._model.joint(name)
            quat = np.zeros(4)
            mujoco.mju_mat2Quat(quat, np.ascontiguousarray(pose[:3, :3]).ravel())
            self._data.qpos[joint.qposadr[0] : joint.qposadr[0] + 7] = [*pose[:3, 3], *quat]
            self._data.qvel[joint.dofadr[0] : joint.dofadr[0] + 6] = 0.0
            mujoco.mj_forward(self._model, self._data)

    def _require_object(self, name: str) -> None:
        names = [p.name for p in self._scenario.objects]
        if name not in names:
            raise ScenarioError(f"object {name!r} is not on the table", expected=f"one of {', '.join(names)}")

    def _settled(self, scenario: Scenario) -> bool:
        """Build the world of a scenario and let it come to rest; keeps it and returns True if nothing moved much."""
        model = build_model(self._robot, scenario.objects, MATERIALS, self._room, self._timestep_s)
        data = mujoco.MjData(model)
        home = self._start
        qpos = np.array([int(model.joint(n).qposadr[0]) for n in self._robot.joint_names])
        data.qpos[qpos] = home
        for joint in self._robot.joints:
            if joint.mimic:
                leader = home[self._robot.joint_names.index(joint.mimic.joint)]
                data.qpos[model.joint(joint.name).qposadr[0]] = joint.mimic.multiplier * leader + joint.mimic.offset
        data.ctrl[:] = home
        for _ in range(round(SETTLE_S / self._timestep_s)):
            mujoco.mj_step(model, data)
        for placed in scenario.objects:
            moved = np.linalg.norm(data.body(placed.name).xpos - placed.position)
            if not moved <= SETTLE_MOVE_M:
                return False
        data.time = 0.0
        mujoco.mj_forward(model, data)
        self._model, self._data, self._scenario = model, data, scenario
        self._qpos = qpos
        self._dofs = np.array([int(model.joint(n).dofadr[0]) for n in self._robot.joint_names])
        self._bodies = np.array([model.body(link.name).id for link in self._robot.links])
        self._lead_s = -model.actuator_biasprm[:, 2] / model.actuator_gainprm[:, 0]
        self._controller = TrajectoryController(self._robot, home)
        return True

    def _command(self) -> None:
        q, v = self._controller.target(self._data.time)
        # A position servo damps all motion; asking for a little ahead makes it damp only the error.
        self._data.ctrl[:] = q + self._lead_s * v

    def _object_pose(self, name: str) -> Array:
        body = self._data.body(name)
        w, x, y, z = body.xquat
        return from_quaternion([x, y, z, w], body.xpos)
