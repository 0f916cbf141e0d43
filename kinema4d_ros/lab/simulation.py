"""`LabSimulation`: MuJoCo simulation of arm, table and objects, with its own clock.

scenario, seed ─> layout ─> MuJoCo ─> settle ─┐
JointTrajectory ─> follow() ─> controller ────┴─> step(dt) ─> state(): joints, object poses, time
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError, KinematicsError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import from_quaternion, make
from kinema4d_ros.kinematics.protocol import Kinematics
from kinema4d_ros.lab.profile import CONSTANT, MATERIALS, LabProfile, SceneConstants, load_profile
from kinema4d_ros.lab.scenario import Scenario, ScenarioError, make_scenario
from kinema4d_ros.lab.sensor import Sensor
from kinema4d_ros.physics.controller import TrajectoryController
from kinema4d_ros.physics.model import (
    TIMESTEP_S,
    Room,
    build_model,
    joint_addresses,
    place_arm,
    servo_lead,
)
from kinema4d_ros.physics.objects import PlacedObject
from kinema4d_ros.robot.model import Robot

__all__ = ["MATERIALS", "LabSimulation", "LabState"]

Array = NDArray[np.float64]

SETTLE_S = 0.5
SETTLE_MOVE_M = 0.01
"""A layout is rejected and drawn again if an object moves by more than this while it settles."""
SETTLE_TRIES = 20
HOLD_S = 0.3
"""Rest after an object was taken up, before the scene begins."""
MAX_STEP_S = 10.0
_UPRIGHT = 0.98
"""Smallest z component of the z axis of an object that was taken up straight."""


@dataclass(frozen=True, eq=False)
class LabState:
    """Snapshot of the lab's state at one time; its arrays are copies.

    Attributes:
        time_s: simulation time since the reset.
        joint_names: J actuated joints, `robot.joint_names`.
        positions, velocities, efforts: (J,) measured; radians or metres, per second, N m or N.
        base_T_link: (L, 4, 4) `robot.links` order, as simulated: each finger at its own position.
        commanded: (J,) the controller's command, before any delay; while an object is held the gripper's command is
            more closed.
        objects: by name, with `base_T_object`; mass, friction and centre of mass are the nominal ones.
        target: name of the scenario's target object.
        goal: (2,) x, y in metres: a free place on the table, base frame.
        moving: a trajectory is running.
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
    """Simulation of arm, table and objects, advanced only by the caller's `step`.

    Thread safety: one internal lock; any method may be called from any thread, each call is atomic and
    returns copies. A long `step` blocks other callers, so step in small increments.
    The same scenario, seed, profile and calls give the same numbers.

    Args:
        scenario: a name of `scenario_names`, or a `Scenario`.
        seed: 0 or more.
        robot: a name, a path, or a `Robot`.
        camera: viewpoint that the scenario's occluders hide the target from; by default the demo camera.
        room: the table and the walls.
        timestep_s: of the physics.
        start: (J,) joint positions after a reset; by default the robot's home.
        profile: name of the physics and the camera, see `LabProfile`; or a profile.

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
        profile: str | LabProfile = CONSTANT,
    ) -> None:
        """Set up the scene and let it settle."""
        self._lock = threading.RLock()
        self._profile = load_profile(profile)
        self._robot = robot if isinstance(robot, Robot) else Robot.load(robot)
        self._camera = camera
        self._room = room or Room()
        self._timestep_s = timestep_s
        self._kinematics: Kinematics | None = None
        self._start = self._robot.home_position() if start is None else np.array(start, dtype=np.float64)
        if self._start.shape != (len(self._robot.joint_names),) or not np.all(np.isfinite(self._start)):
            raise KinemaError(f"start is {self._start}", expected=f"{len(self._robot.joint_names)} finite positions")
        self.reset(scenario, seed)

    @property
    def robot(self) -> Robot:
        """The simulated robot."""
        return self._robot

    @property
    def room(self) -> Room:
        """The table and the walls."""
        return self._room

    @property
    def scenario(self) -> Scenario:
        """The current layout, as drawn from the seed, with nominal objects."""
        return self._scenario

    @property
    def profile(self) -> LabProfile:
        """Which constants are drawn for every scene."""
        return self._profile

    @property
    def constants(self) -> SceneConstants:
        """The scene's true constants; generators, judges and policies must not read them."""
        return self._constants

    @property
    def sensor(self) -> Sensor:
        """The camera's faults in this scene."""
        return self._constants.sensor

    @property
    def moving(self) -> bool:
        """Whether a trajectory is running."""
        with self._lock:
            return self._controller.busy(self._data.time)

    @property
    def time_s(self) -> float:
        """Simulation time since the reset."""
        with self._lock:
            return float(self._data.time)

    @property
    def remaining_s(self) -> float:
        """Seconds to the end of the running trajectory, 0 without one."""
        with self._lock:
            return self._controller.remaining_s(self._data.time)

    def reset(self, scenario: str | Scenario | None = None, seed: int = 0) -> LabState:
        """Reset the scene (None: the same scenario) and the arm, and return the settled state.

        Raises:
            ScenarioError: `SCENARIO_UNKNOWN`, with the known names; the lab is then unchanged.
        """
        with self._lock:
            if isinstance(scenario, Scenario):
                if not self._settled(scenario):
                    raise ScenarioError(
                        f"the objects of scenario '{scenario.name}' are not stable",
                        expected="objects that stand on the table and do not touch each other",
                    )
                return self.state()
            name = self._scenario.name if scenario is None else scenario
            eye = None if self._camera is None else self._camera.base_T_camera[:3, 3]
            for attempt in range(SETTLE_TRIES):
                # Retries use seeds far outside the usual range, so that no two seeds give the same scene.
                drawn = make_scenario(
                    name,
                    seed + attempt * (1 << 32),
                    eye,
                    odd_share=self._profile.odd_share,
                    twins=self._profile.twins,
                )
                if self._settled(Scenario(**{**vars(drawn), "seed": seed})):
                    return self.state()
            raise ScenarioError(
                f"no stable layout for scenario '{name}' with seed {seed}",
                expected="ranges that leave room for the objects",
            )

    def step(self, dt: float) -> None:
        """Advance by `dt` seconds, rounded to whole physics steps (at least one), under the controller's command.

        Raises:
            KinemaError: ARM_ABORTED, the physics became unstable; the scene is then reset.
        """
        if not (np.isfinite(dt) and 0.0 < dt <= MAX_STEP_S):
            raise KinemaError(f"dt is {dt}", expected=f"more than 0 and at most {MAX_STEP_S:g} seconds")
        with self._lock:
            for _ in range(max(1, round(dt / self._timestep_s))):
                self._command()
                before = self._data.time
                mujoco.mj_step(self._model, self._data)
                # MuJoCo resets itself to time 0 on overflow; callers would then wait forever for the motion to end.
                if not self._data.time > before:
                    self._settled(self._scenario)
                    raise KinemaError(
                        f"the physics became unstable after {before:.2f} s",
                        expected="a motion that the arm can follow",
                        hint="the scene was reset; try a slower or smoother motion",
                        code=ErrorCode.ARM_ABORTED,
                    )

    def follow(self, trajectory: JointTrajectory) -> None:
        """Start a trajectory now and replace a running one; raises as `TrajectoryController.follow` does."""
        with self._lock:
            self._controller.follow(trajectory, self._data.time, self._data.qpos[self._qpos].copy())

    def stop(self) -> None:
        """Brake and hold."""
        with self._lock:
            self._controller.stop(self._data.time)

    def run(self, trajectory: JointTrajectory, settle_s: float = 0.3) -> LabState:
        """Follow a trajectory to its end, wait `settle_s`, and return the state."""
        self.follow(trajectory)
        while self.moving:
            self.step(0.05)
        self.step(settle_s)
        return self.state()

    def state(self) -> LabState:
        """Return a copy of the current state."""
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
        """Return the names of the bodies in contact with an object: links, objects, or "world" for table and walls.

        Objects at rest are asleep in MuJoCo and report no contacts until they are moved.
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
        """Set an object's pose (4, 4), at rest; for counterfactuals and tests."""
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
        """Build a scenario's model and let it settle; keep it and return True if no object moved too far."""
        constants = self._profile.draw(scenario.name, scenario.seed, scenario.objects)
        model = build_model(self._robot, constants.objects, constants.materials, self._room, self._timestep_s)
        data = mujoco.MjData(model)
        home = self._start
        place_arm(model, data, self._robot, home)
        data.ctrl[:] = home
        for _ in range(round(SETTLE_S / self._timestep_s)):
            mujoco.mj_step(model, data)
        for placed in scenario.objects:
            moved = np.linalg.norm(data.body(placed.name).xpos - placed.position)
            if not moved <= SETTLE_MOVE_M:
                return False
        data.time = 0.0
        mujoco.mj_forward(model, data)
        self._model, self._data, self._scenario, self._constants = model, data, scenario, constants
        self._qpos = joint_addresses(model, self._robot)
        self._dofs = np.array([int(model.joint(n).dofadr[0]) for n in self._robot.joint_names])
        self._bodies = np.array([model.body(link.name).id for link in self._robot.links])
        self._lead_s = servo_lead(model)
        self._controller = TrajectoryController(self._robot, home)
        self._commands = deque([data.ctrl.copy()] * round(constants.delay_s / self._timestep_s))
        return scenario.held_m is None or self._take_up(scenario.held_m)

    def _take_up(self, height_m: float) -> bool:
        """Let the arm take up the target, and begin there; return False if it does not hold it so high above."""
        # Plans are made from states of this module.
        from kinema4d_ros.kinematics import choose_kinematics
        from kinema4d_ros.lab.scripted import pick_plan

        name = self._scenario.target
        before = self._object_pose(name)
        self._kinematics = self._kinematics or choose_kinematics(self._robot)
        try:
            plan = pick_plan(self, name, self._kinematics, lift_m=height_m)
        except KinematicsError:
            return False
        self.run(plan, HOLD_S)
        after = self._object_pose(name)
        if not (abs(after[2, 3] - before[2, 3] - height_m) < SETTLE_MOVE_M and after[2, 2] > _UPRIGHT):
            return False
        commanded, _ = self._controller.target(self._data.time)
        self._data.time = 0.0
        self._controller = TrajectoryController(self._robot, commanded)
        return True

    def _command(self) -> None:
        q, v = self._controller.target(self._data.time)
        # Commands wait in a queue, not in the controller: a plan that replaces another must not skip its delay.
        self._commands.append(q + self._lead_s * v)
        self._data.ctrl[:] = self._commands.popleft()

    def _object_pose(self, name: str) -> Array:
        body = self._data.body(name)
        w, x, y, z = body.xquat
        return from_quaternion([x, y, z, w], body.xpos)
