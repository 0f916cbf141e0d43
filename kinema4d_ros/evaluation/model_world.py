"""`WorldModel`: a generator and a judge in place of the lab, in open and in closed loop.

open     the run's commands ─> robot frames ─> one rollout ─> verdict
closed   first image ─> policy ─> chunk ─> rollout of all commands so far ─> its last picture ─> policy ─> ...

In closed loop every rollout begins at the first, real picture and covers all commands so far. Beginning at the last
predicted picture would be cheaper by little and adds up the model's errors; what the hand closed around in an earlier
chunk would be unknown to the next.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.task import Task
from kinema4d_ros.core.trajectory import FRAMES, JointTrajectory
from kinema4d_ros.evaluation.judges import GeometricJudge, Judge, Verdict
from kinema4d_ros.evaluation.lab_world import LEAST_MOTION_S, SETTLE_S, LabArena
from kinema4d_ros.generators.protocol import Generator
from kinema4d_ros.kinematics.protocol import Kinematics
from kinema4d_ros.policies.protocol import Policy, PolicyError
from kinema4d_ros.previews.preview import predict

__all__ = ["Imagined", "Scene", "WorldModel", "scene_of"]

SHA_DIGITS = 16
"""Of the weights' sha256 in a record: one line a trial, and enough to tell two checkpoints apart."""


@dataclass(frozen=True, eq=False)
class Scene:
    """What a world model is given before a motion, in a lab or from a recording.

    Attributes:
        image: (H, W, 3) uint8 RGB, rectified.
        camera: of that image, with its pose.
        depth_m: (H, W) float32 measured metres, NaN = none; or None.
        task: what the judge looks for.
        target_mask: (H, W) bool, the target's pixels in the image; None = the judge finds it.
    """

    image: NDArray[np.uint8]
    camera: PinholeCamera
    depth_m: NDArray[np.float32] | None
    task: Task
    target_mask: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class Imagined:
    """A predicted run and its verdict."""

    rollout: Rollout
    verdict: Verdict
    chunks: int
    seconds: float

    @property
    def made_by(self) -> str:
        """Generator, preset and weights of the rollout, such as "diffusion nano 3f2a..."."""
        source = self.rollout.provenance
        return " ".join(filter(None, (source.generator, source.preset, source.checkpoint_sha256[:SHA_DIGITS])))


class WorldModel:
    """Predicts and judges.

    Args:
        generator: of rollouts.
        kinematics: of the robot.
        judge: by default the geometric one.
        depth: whether the generator is given the measured depth of the first picture.
        frames: of a rollout.
        threads: that draw the robot.
    """

    def __init__(
        self,
        generator: Generator,
        kinematics: Kinematics,
        *,
        judge: Judge | None = None,
        depth: bool = False,
        frames: int = FRAMES,
        threads: int = 1,
    ) -> None:
        self._generator, self._kinematics = generator, kinematics
        self._judge = judge or GeometricJudge()
        self._depth, self._frames, self._threads = depth, frames, threads

    def open_loop(self, scene: Scene, commands: JointTrajectory, *, seed: int = 0) -> Imagined:
        """What the model makes of commands that were given before."""
        began = time.perf_counter()
        rollout = self.predict(scene, commands, seed=seed)
        verdict = self._judge.judge(rollout, scene.task, scene.target_mask)
        return Imagined(rollout, verdict, 0, time.perf_counter() - began)

    def close(self) -> None:
        """Let go of the generator; one of another process is left."""
        close = getattr(self._generator, "close", None)
        if callable(close):
            close()

    def closed_loop(self, arena: LabArena, policy: Policy, *, seed: int = 0, limit_s: float = 30.0) -> Imagined:
        """Let a policy act on predicted pictures until it is done or the time is over.

        Raises:
            PolicyError: the policy failed, or asked for a motion that the arm does not do.
        """
        began = time.perf_counter()
        policy.reset(arena.episode_start(seed))
        scene = scene_of(arena)
        image = scene.image
        commands = _Commands(self._kinematics, arena.start.commanded)
        chunks, done = 0, False
        while not done and commands.time_s < limit_s:
            chunk = policy.act(arena.observe(image, commands.last, commands.time_s))
            chunks += 1
            done = chunk.done
            if len(chunk.times):
                commands.append(chunk.trajectory(self._kinematics, commands.last), limit_s)
            if not done and commands.time_s < limit_s:
                image = self.predict(scene, commands.trajectory(), seed=seed).rgb[-1]
        if commands.time_s < LEAST_MOTION_S:
            raise PolicyError("the policy ended the episode without a motion", expected="at least one action")
        commands.hold(SETTLE_S)
        rollout = self.predict(scene, commands.trajectory(), seed=seed)
        verdict = self._judge.judge(rollout, scene.task, scene.target_mask)
        return Imagined(rollout, verdict, chunks, time.perf_counter() - began)

    def predict(self, scene: Scene, commands: JointTrajectory, *, seed: int = 0) -> Rollout:
        """The rollout of commands that begin at the scene's picture."""
        return predict(
            commands.resample(self._frames),
            self._kinematics.robot,
            scene.camera,
            self._generator,
            image=scene.image,
            depth=scene.depth_m if self._depth else None,
            seed=seed,
            threads=self._threads,
        )


def scene_of(arena: LabArena) -> Scene:
    """A table of the lab before the motion."""
    return Scene(arena.first.rgb, arena.camera, arena.first.depth_m, arena.task, arena.target_mask)


class _Commands:
    """Commands so far, checked like a controller would."""

    def __init__(self, kinematics: Kinematics, start: NDArray[np.float64]) -> None:
        self._robot = kinematics.robot
        self._times, self._positions = [0.0], [np.asarray(start, dtype=np.float64)]

    @property
    def time_s(self) -> float:
        return self._times[-1]

    @property
    def last(self) -> NDArray[np.float64]:
        return self._positions[-1]

    def append(self, motion: JointTrajectory, limit_s: float) -> None:
        try:
            motion.validate(self._robot, check_velocity=True)
        except KinemaError as error:
            raise PolicyError(f"the arm refuses the motion: {error.what}", expected=error.expected) from error
        began = self.time_s
        for moment, position in zip(motion.times[1:], motion.positions[1:], strict=True):
            if began + moment > limit_s:
                return
            self._times.append(began + float(moment))
            self._positions.append(np.asarray(position))

    def hold(self, seconds: float) -> None:
        self._times.append(self.time_s + seconds)
        self._positions.append(self.last)

    def trajectory(self) -> JointTrajectory:
        return JointTrajectory(self._robot.joint_names, np.array(self._times), np.stack(self._positions))
