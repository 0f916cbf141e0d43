"""`ScriptedExpert`: plans with the lab's true poses and makes errors of a chosen size (kind `expert`).

EpisodeStart.scene ─> believed scene ─> pick, place or push plan ─> performed plan ─> chunks

It cannot run on a real robot because it uses the true poses. It spans success rates from 0 to 1 to test judges, world
models and statistics.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, KinemaError, KinematicsError
from kinema4d_ros.core.task import LAB_TASKS
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.kinematics.protocol import Kinematics, choose_kinematics
from kinema4d_ros.lab.scripted import is_held, pick_and_place_plan, pick_plan, place_plan, push_plan
from kinema4d_ros.lab.simulation import LabState
from kinema4d_ros.policies.errors_by_design import ExpertErrors
from kinema4d_ros.policies.protocol import ActionChunk, EpisodeStart, Observation, PlanHandout, PolicyError
from kinema4d_ros.robot.model import Robot

__all__ = ["ScriptedExpert"]

Array = NDArray[np.float64]

_STILL = 1e-9


class ScriptedExpert:
    """The lab's scripted expert with optional errors.

    Args:
        chunk_s: seconds of motion in one chunk; 0 = all in one chunk.
        seed: additional seed; equal seeds give equal episodes.
        offset_m, spread_m, height_m, yaw_deg, delay_s, early_release, noise_rad, chance: see `ExpertErrors`.
    """

    def __init__(
        self,
        *,
        chunk_s: float = 1.0,
        seed: int = 0,
        offset_m: float = 0.0,
        spread_m: float = 0.0,
        height_m: float = 0.0,
        yaw_deg: float = 0.0,
        delay_s: float = 0.0,
        early_release: float | None = None,
        noise_rad: float = 0.0,
        chance: float = 1.0,
    ) -> None:
        self._errors = ExpertErrors(
            offset_m, spread_m, height_m, yaw_deg, delay_s, early_release, noise_rad, chance
        )  # fmt: skip
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise PolicyError(f"seed is {seed!r}", expected="0 or more", code=ErrorCode.ARGUMENT_INVALID)
        self._seed = seed
        self._handout = PlanHandout(chunk_s)
        self._kinematics: Kinematics | None = None

    @property
    def name(self) -> str:
        """`expert` with its errors."""
        default = vars(ExpertErrors())
        made = [f"{k}={v:g}" for k, v in vars(self._errors).items() if v != default[k]]
        return "expert" + (":" + ",".join(made) if made else "")

    def reset(self, start: EpisodeStart) -> None:
        """Plan the whole episode.

        Raises:
            PolicyError: no scene, an unknown task, or a target out of reach.
        """
        self._handout.clear()
        if start.scene is None:
            raise PolicyError(
                "the scripted expert needs the scene's true state",
                expected="EpisodeStart.scene, which only the lab has",
                hint="use a policy that works on images, or replay recorded actions",
                code=ErrorCode.POLICY_UNAVAILABLE,
            )
        if start.task not in LAB_TASKS:
            raise PolicyError(
                f"task '{start.task}' has no script",
                expected=f"one of {', '.join(LAB_TASKS)}",
                code=ErrorCode.POLICY_UNAVAILABLE,
            )
        # The draw does not depend on the name: experts that differ only in the size of an error err in the same
        # direction, which makes their comparison paired.
        rng = np.random.default_rng([self._seed, start.seed])
        errors = self._errors.for_episode(rng)
        try:
            plan, lift = self._plan(start.robot, errors.believed(start.scene, rng), start.task)
        except KinemaError as error:
            raise PolicyError(
                f"no plan to {start.task} '{start.scene.target}': {error.what}",
                expected=error.expected or "a target within reach",
                hint=error.hint,
                code=ErrorCode.POLICY_FAILED,
            ) from error
        self._handout.load(errors.performed(start.robot, plan, lift, rng))

    def act(self, observation: Observation) -> ActionChunk:
        """Return the next chunk of the plan; the image is not used."""
        return self._handout.next_chunk(observation.time_s)

    def close(self) -> None:
        """Discard the plan."""
        self._handout.clear()

    def _plan(self, robot: Robot, scene: LabState, task: str) -> tuple[JointTrajectory, tuple[float, float] | None]:
        if self._kinematics is None or self._kinematics.robot is not robot:
            self._kinematics = choose_kinematics(robot)
        if task == "push":
            if is_held(scene, scene.target, self._kinematics):
                raise KinematicsError("it is in the gripper", expected="a target that stands on the table")
            return push_plan(scene, scene.target, self._kinematics), None
        picked = pick_plan(scene, scene.target, self._kinematics)
        if is_held(scene, scene.target, self._kinematics):
            return self._with_held(robot, scene, task, picked)
        lift = _lift(robot, picked)
        if task == "pick":
            return picked, lift
        return pick_and_place_plan(scene, scene.target, self._kinematics), lift

    def _with_held(
        self, robot: Robot, scene: LabState, task: str, lifted: JointTrajectory
    ) -> tuple[JointTrajectory, tuple[float, float] | None]:
        """Plan with an object that is in the gripper: lift it, or carry it to its goal; an early release is on the way.

        Believed positions of a held object change where it is put down, not whether it is held.
        """
        if task == "pick" or self._kinematics is None:
            return lifted, (0.0, float(lifted.times[-1]))
        carried = place_plan(scene, scene.target, self._kinematics)
        return carried, _carry(robot, carried)


def _carry(robot: Robot, placed: JointTrajectory) -> tuple[float, float] | None:
    """Return start and end of the carry of a place plan: until the fingers move."""
    if robot.gripper is None:
        return None
    fingers = robot.joint_names.index(robot.gripper.joint)
    moves = np.abs(np.diff(placed.positions[:, fingers])) > _STILL
    return 0.0, float(placed.times[int(np.argmax(moves))] if moves.any() else placed.times[-1])


def _lift(robot: Robot, picked: JointTrajectory) -> tuple[float, float] | None:
    """Return start and end of a pick's lift: from the arm's first motion after the fingers' last one to the end."""
    if robot.gripper is None:
        return None
    fingers = robot.joint_names.index(robot.gripper.joint)
    moves = np.abs(np.diff(picked.positions, axis=0)) > _STILL
    closed = int(np.flatnonzero(moves[:, fingers])[-1]) + 1
    arm = np.any(np.delete(moves, fingers, axis=1), axis=1)
    return float(picked.times[closed + int(np.argmax(arm[closed:]))]), float(picked.times[-1])
