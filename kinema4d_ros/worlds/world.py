"""`World`: a scene to act in. One loop runs a policy or commands in every world.

    begin() ─> Session: observe() ─> policy ─> chunk ─> follow() ─> observe() ─> ... ─> Run

A world implements `scene` and `begin`; a session is one run in progress.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.task import Task
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.evaluation.judges import Verdict
from kinema4d_ros.kinematics.protocol import Kinematics
from kinema4d_ros.lab.simulation import LabState
from kinema4d_ros.policies.protocol import EpisodeStart, Observation, Policy, PolicyError

__all__ = ["LEAST_MOTION_S", "LIMIT_S", "SETTLE_S", "Run", "Scene", "Session", "Watch", "World"]

Array = NDArray[np.float64]
Watch = Callable[[Observation], object]
"""Called with every observation that a policy is given."""

LIMIT_S = 30.0
SETTLE_S = 0.4
"""Time after a policy's last action for released objects to come to rest."""
LEAST_MOTION_S = 0.2
SHA_DIGITS = 16
"""Digits of the weights' sha256 in `Run.made_by`: enough to distinguish checkpoints."""


@dataclass(frozen=True, eq=False)
class Scene:
    """A scene before a motion, as its camera sees it.

    Attributes:
        image: (H, W, 3) uint8 RGB, rectified.
        camera: of that image, with its pose.
        joints: (J,) float64 commanded positions, `robot.joint_names` order.
        depth_m: (H, W) float32 measured metres, NaN = none; or None.
        target_mask: (H, W) bool, the target's pixels; None = the judge finds the target.
        truth: the lab's state, for scripted experts only; None outside the lab.
    """

    image: NDArray[np.uint8]
    camera: PinholeCamera
    joints: Array
    depth_m: NDArray[np.float32] | None = None
    target_mask: NDArray[np.bool_] | None = None
    truth: LabState | None = None


@dataclass(frozen=True, eq=False)
class Run:
    """One run in a world.

    Attributes:
        commands: commanded positions of all joints, from time 0.
        verdict: on the task, by true poses or by a judge.
        chunks: requested from the policy; 0 for commands.
        seconds: computing time.
        rollout: of a world model; None elsewhere.
        states: evenly spaced states of the lab, from which images are rendered; empty elsewhere.
        target: (T, 4, 4) base_T_object of the target at the times of `commands`; None outside the lab.
    """

    commands: JointTrajectory
    verdict: Verdict
    chunks: int = 0
    seconds: float = 0.0
    rollout: Rollout | None = None
    states: tuple[LabState, ...] = ()
    target: Array | None = None

    @property
    def made_by(self) -> str:
        """Generator, preset and weights of the rollout, such as "diffusion nano 3f2a..."; "" without a rollout."""
        if self.rollout is None:
            return ""
        source = self.rollout.provenance
        return " ".join(filter(None, (source.generator, source.preset, source.checkpoint_sha256[:SHA_DIGITS])))


class Session(ABC):
    """A run in progress."""

    @property
    @abstractmethod
    def time_s(self) -> float:
        """Time since the run began."""

    @property
    @abstractmethod
    def commanded(self) -> Array:
        """(J,) the last command."""

    @abstractmethod
    def observe(self) -> Observation:
        """Return what a policy sees now."""

    @abstractmethod
    def follow(self, motion: JointTrajectory, limit_s: float = LIMIT_S) -> None:
        """Perform a motion that starts at `commanded`, at most until `limit_s`.

        Raises:
            KinemaError: the arm refuses the motion; ARM_ABORTED if it failed on the way.
        """

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Hold still."""

    @abstractmethod
    def verdict(self, task: Task) -> Verdict:
        """Judge the run so far."""

    @abstractmethod
    def finish(self, task: Task, chunks: int, began: float) -> Run:
        """Return the run; `began` is its start on `time.perf_counter`."""


class World(ABC):
    """A scene, reset for every run. Not thread safe.

    Args:
        kinematics: of the robot.
    """

    def __init__(self, kinematics: Kinematics) -> None:
        self.kinematics = kinematics

    @property
    @abstractmethod
    def scene(self) -> Scene:
        """The scene before a motion."""

    @abstractmethod
    def begin(self, seed: int = 0) -> Session:
        """Reset the scene and begin a run."""

    def run(
        self,
        actor: Policy | JointTrajectory,
        task: Task,
        *,
        seed: int = 0,
        limit_s: float = LIMIT_S,
        until_s: float = 0.0,
        watch: Watch = lambda seen: None,
    ) -> Run:
        """Run a policy until it is done or `limit_s` is reached, or commands to their end.

        Args:
            actor: a policy, or commands that start where the robot is.
            task: given to the policy and judged at the end.
            seed: of the policy and of the world model.
            limit_s: time limit of the motion.
            until_s: after commands, hold still until this time.
            watch: called with every observation.

        Raises:
            PolicyError: the policy failed, or requested a motion that the arm refuses.
            KinemaError: the arm refuses the commands.
        """
        began, chunks = time.perf_counter(), 0
        session = self.begin(seed)
        if isinstance(actor, JointTrajectory):
            session.follow(actor, limit_s)
            if until_s > session.time_s:
                session.wait(until_s - session.time_s)
        else:
            actor.reset(self.episode_start(task, seed))
            chunks = self._act(actor, session, limit_s, watch)
            session.wait(SETTLE_S)
        return session.finish(task, chunks, began)

    def episode_start(self, task: Task, seed: int = 0) -> EpisodeStart:
        """Return what a policy is given at the start of an episode."""
        return EpisodeStart(self.kinematics.robot, task.instruction, task.kind, seed, self.scene.truth)

    def _act(self, policy: Policy, session: Session, limit_s: float, watch: Watch) -> int:
        chunks, done = 0, False
        while not done and session.time_s < limit_s:
            seen = session.observe()
            watch(seen)
            chunk = policy.act(seen)
            chunks, done = chunks + 1, chunk.done
            if len(chunk.times):
                # From the command, not the measured joints: fingers that hold an object do not reach their command.
                motion = chunk.trajectory(self.kinematics, session.commanded)
                try:
                    session.follow(motion, limit_s)
                except PolicyError:
                    raise
                except KinemaError as error:
                    refused = "" if error.code is ErrorCode.ARM_ABORTED else "the arm refuses the motion: "
                    raise PolicyError(f"{refused}{error.what}", expected=error.expected) from error
        if session.time_s < LEAST_MOTION_S:
            raise PolicyError("the policy ended the episode without a motion", expected="at least one action")
        return chunks

    def observation(self, image: NDArray[np.uint8], joints: Array, time_s: float) -> Observation:
        """Return an observation of an image of this scene's camera and joint positions (J,)."""
        robot, width = self.kinematics.robot, float("nan")
        if robot.gripper is not None:
            finger = float(joints[robot.joint_names.index(robot.gripper.joint)])
            low, high = sorted((robot.gripper.closed, robot.gripper.open))
            width = float(robot.gripper.width_from_position(min(max(finger, low), high)))
        return Observation(image, self.scene.camera, joints, width, time_s)
