"""`ModelWorld`: a generator and a judge in place of the lab.

commands   ─> robot frames ─> one rollout ─> verdict                                                  open loop
policy     first image ─> chunk ─> rollout of all commands so far ─> its last image ─> chunk ─> ...   closed loop

In closed loop every rollout begins at the first, real image and covers all commands so far. Beginning at the last
predicted image would save little and accumulate the model's errors; what the gripper grasped in an earlier chunk would
be unknown to the next.
"""

from __future__ import annotations

import time

import numpy as np

from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.task import Task
from kinema4d_ros.core.trajectory import FRAMES, JointTrajectory
from kinema4d_ros.evaluation.judges import GeometricJudge, Judge, Verdict, judge_outcomes
from kinema4d_ros.generators.protocol import Generator
from kinema4d_ros.kinematics.protocol import Kinematics
from kinema4d_ros.policies.protocol import Observation, Policy
from kinema4d_ros.previews.preview import predict
from kinema4d_ros.worlds.world import LIMIT_S, Array, Run, Scene, Session, Watch, World

__all__ = ["ModelWorld"]


class ModelWorld(World):
    """A scene whose reaction is predicted.

    Args:
        scene: of another world, or of a camera.
        generator: of rollouts; it is not closed with the world.
        kinematics: of the robot.
        judge: by default the geometric one.
        depth: give the generator the scene's measured depth.
        frames: of a rollout.
        threads: that render the robot.
    """

    def __init__(
        self,
        scene: Scene,
        generator: Generator,
        kinematics: Kinematics,
        *,
        judge: Judge | None = None,
        depth: bool = False,
        frames: int = FRAMES,
        threads: int = 1,
    ) -> None:
        super().__init__(kinematics)
        self._scene, self._generator = scene, generator
        self._judge = judge or GeometricJudge()
        self._depth, self._frames, self._threads = depth, frames, threads

    @property
    def scene(self) -> Scene:
        """The scene before a motion."""
        return self._scene

    def begin(self, seed: int = 0) -> ModelSession:
        """Begin a run at the scene's image."""
        return ModelSession(self, seed)

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
        """Predict given commands unchanged and in one rollout; run a policy as every world does."""
        if not isinstance(actor, JointTrajectory) or until_s > actor.duration_s:
            return super().run(actor, task, seed=seed, limit_s=limit_s, until_s=until_s, watch=watch)
        began = time.perf_counter()
        rollout = self.predict(actor, seed=seed)
        return Run(actor, self.judge(rollout, task), 0, time.perf_counter() - began, rollout)

    def predict(self, commands: JointTrajectory, *, seed: int = 0) -> Rollout:
        """Return the rollout of commands that begin at the scene's image."""
        return predict(
            commands.resample(self._frames),
            self.kinematics.robot,
            self._scene.camera,
            self._generator,
            commands=commands,
            image=self._scene.image,
            depth=self._scene.depth_m if self._depth else None,
            seed=seed,
            threads=self._threads,
        )

    def judge(self, rollout: Rollout, task: Task) -> Verdict:
        """Judge a rollout of this scene and all its outcomes, see `judge_outcomes`."""
        return judge_outcomes(self._judge, rollout, task, self._scene.target_mask)


class ModelSession(Session):
    """Commands so far, checked as a controller would, and their rollout when one is needed."""

    def __init__(self, world: ModelWorld, seed: int) -> None:
        self._world, self._seed = world, seed
        self._times, self._positions = [0.0], [np.asarray(world.scene.joints, dtype=np.float64)]
        self._rollout: Rollout | None = None

    @property
    def time_s(self) -> float:
        """Time of the last command."""
        return self._times[-1]

    @property
    def commanded(self) -> Array:
        """(J,) the last command."""
        return self._positions[-1]

    def observe(self) -> Observation:
        """Return the scene's image at first, then the last predicted one, with the commanded joints."""
        image = self._world.scene.image if len(self._times) == 1 else self._predicted().rgb[-1]
        return self._world.observation(image, self.commanded, self.time_s)

    def follow(self, motion: JointTrajectory, limit_s: float = LIMIT_S) -> None:
        """Append a motion within the arm's limits."""
        motion.validate(self._world.kinematics.robot, check_velocity=True)
        began = self.time_s
        for moment, position in zip(motion.times[1:], motion.positions[1:], strict=True):
            if began + moment > limit_s:
                return
            self._append(began + float(moment), np.asarray(position))

    def wait(self, seconds: float) -> None:
        """Append the last command again."""
        self._append(self.time_s + seconds, self.commanded)

    def verdict(self, task: Task) -> Verdict:
        """Judge the rollout of the commands so far."""
        return self._world.judge(self._predicted(), task)

    def finish(self, task: Task, chunks: int, began: float) -> Run:
        """Predict and judge all commands."""
        rollout, verdict = self._predicted(), self.verdict(task)
        return Run(self._commands(), verdict, chunks, time.perf_counter() - began, rollout)

    def _append(self, time_s: float, position: Array) -> None:
        self._times.append(time_s)
        self._positions.append(position)
        self._rollout = None

    def _commands(self) -> JointTrajectory:
        names = self._world.kinematics.robot.joint_names
        return JointTrajectory(names, np.array(self._times), np.stack(self._positions))

    def _predicted(self) -> Rollout:
        if self._rollout is None:
            self._rollout = self._world.predict(self._commands(), seed=self._seed)
        return self._rollout
