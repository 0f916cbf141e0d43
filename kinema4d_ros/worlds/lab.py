"""`LabWorld`: a scene of the MuJoCo lab; `true_rollout` renders a run as a rollout."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import FileFormatError, RenderError
from kinema4d_ros.core.rollout import Provenance, Rollout
from kinema4d_ros.core.task import Task, make_task
from kinema4d_ros.core.trajectory import FRAMES, JointTrajectory
from kinema4d_ros.evaluation.judges import TruthJudge, Verdict
from kinema4d_ros.io.files import replacing_file
from kinema4d_ros.kinematics.protocol import Kinematics
from kinema4d_ros.lab import LabCamera, LabImage, LabProfile, LabSimulation, LabState, PlacedObject, Style
from kinema4d_ros.lab.profile import CONSTANT
from kinema4d_ros.policies.protocol import Observation
from kinema4d_ros.worlds.world import LIMIT_S, Array, Run, Scene, Session, World

__all__ = ["LabWorld", "true_rollout"]

SAMPLE_S = 0.02
RAISED_M = 0.01
"""A target that stands, and whose foot is higher above the table than this, does not start on the table."""


class LabWorld(World):
    """A scene of the lab.

    Args:
        lab: the simulation, as it was set up.
        kinematics: of its robot.
        eye: its camera; by default the demo camera. Rendering starts with the first image that is asked for.
        sample_s: interval of the states, in whole steps of the physics.
        frames: number of states that a run keeps, evenly spaced.
    """

    def __init__(
        self,
        lab: LabSimulation,
        kinematics: Kinematics,
        eye: LabCamera | None = None,
        *,
        sample_s: float = SAMPLE_S,
        frames: int = FRAMES,
    ) -> None:
        super().__init__(kinematics)
        self.lab, self.sample_s, self.frames = lab, sample_s, frames
        self.start = lab.state()
        self._given_eye = eye
        self._untouched = True

    @classmethod
    def of(
        cls,
        scenario: str,
        seed: int,
        camera: PinholeCamera,
        kinematics: Kinematics,
        *,
        profile: str | LabProfile = CONSTANT,
    ) -> LabWorld:
        """Set up a scene with its own colours and textures, seen by a rectified camera."""
        camera = camera.rectified()
        lab = LabSimulation(scenario, seed, kinematics.robot, camera, profile=profile)
        eye = LabCamera.of(lab, camera, style=Style.varied(lab.scenario.style))
        return cls(lab, kinematics, eye)

    @cached_property
    def eye(self) -> LabCamera:
        """The camera."""
        return self._given_eye or LabCamera.of(self.lab)

    @cached_property
    def scene(self) -> Scene:
        """The scene before a motion, with measured depth and the target's pixels."""
        first = self.eye.capture(self.start, truth=True)
        mask = first.mask(self.start.target)
        return Scene(first.rgb, self.eye.camera, self.start.commanded, first.depth_m, mask, self.start)

    def task(self, kind: str) -> Task:
        """Return a task with this scene's target and goal."""
        placed = self.start.objects[self.start.target]
        foot = float(placed.position[2]) - placed.object.height / 2 - self.lab.room.table_z
        # The goal is on the table; the target may start on another object or in the gripper.
        support_m = -foot if foot > RAISED_M else 0.0
        return make_task(kind, self.start.target, goal_xy=self.start.goal, support_m=support_m)

    def begin(self, seed: int = 0) -> LabSession:
        """Reset the scene; a new one needs no reset."""
        if not self._untouched:
            self.lab.reset(self.lab.scenario.name, self.lab.scenario.seed)
        self._untouched = False
        return LabSession(self)

    def picture(self, state: LabState) -> LabImage:
        """Render an image of a state."""
        return self.eye.capture(state)

    def measure(self, state: LabState) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_]]:
        """Render image, depth (H, W) in metres (NaN = no surface) and robot mask (H, W) of a state."""
        image = self.eye.capture(state, truth=True)
        if image.depth_m is None or image.segmentation is None:
            raise RenderError("the image has no depth", expected="capture(..., truth=True)")
        robot = (image.segmentation > 0) & (image.segmentation <= len(self.kinematics.robot.links))
        return image.rgb, image.depth_m, robot

    def save(self, run: Run, path: str | Path) -> None:
        """Write a run of this scene as .npz for `load`; velocities and efforts are not kept."""
        names = list(self.start.objects)
        states = run.states
        with replacing_file(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(
                file,
                times=run.commands.times,
                commands=run.commands.positions,
                target=np.asarray(run.target),
                frame_times=np.array([s.time_s for s in states]),
                positions=np.stack([s.positions for s in states]),
                commanded=np.stack([s.commanded for s in states]),
                base_T_link=np.stack([s.base_T_link for s in states]),
                base_T_object=np.stack([[s.objects[n].base_T_object for n in names] for s in states]),
                counts=np.array([run.chunks, run.seconds]),
            )

    def load(self, path: str | Path, task: Task) -> Run:
        """Read a run of this scene and judge it again.

        Raises:
            FileFormatError: not a run, or a run of another scene.
        """
        start = self.start
        try:
            # Plain arrays only: object arrays would need unpickling, which is unsafe.
            with np.load(path, allow_pickle=False) as file:
                data = {name: file[name] for name in file.files}
            states = tuple(
                replace(
                    start,
                    time_s=float(data["frame_times"][i]),
                    positions=data["positions"][i],
                    commanded=data["commanded"][i],
                    base_T_link=data["base_T_link"][i],
                    objects={
                        thing.name: PlacedObject(thing.object, pose)
                        for thing, pose in zip(start.objects.values(), data["base_T_object"][i], strict=True)
                    },
                )
                for i in range(len(data["frame_times"]))
            )
            commands = JointTrajectory(start.joint_names, data["times"], data["commands"])
            target, (chunks, seconds) = data["target"], data["counts"]
        except (OSError, ValueError, KeyError, IndexError, EOFError, BadZipFile) as error:
            raise FileFormatError(
                f"{path} is not a run of this scene: {error}", expected="a file of `LabWorld.save`"
            ) from None
        verdict = TruthJudge(target).judge(None, task)
        return Run(commands, verdict, int(chunks), float(seconds), states=states, target=target)


class LabSession(Session):
    """A run in the lab; keeps a state every `sample_s`."""

    def __init__(self, world: LabWorld) -> None:
        self._world, self._lab = world, world.lab
        self._states = [self._lab.state()]

    @property
    def time_s(self) -> float:
        """Simulation time."""
        return self._states[-1].time_s

    @property
    def commanded(self) -> Array:
        """(J,) the controller's command."""
        return self._states[-1].commanded

    def observe(self) -> Observation:
        """Render the present state."""
        state = self._states[-1]
        return self._world.observation(self._world.picture(state).rgb, state.positions, state.time_s)

    def follow(self, motion: JointTrajectory, limit_s: float = LIMIT_S) -> None:
        """Follow a motion to its end."""
        self._lab.follow(motion)
        while self._lab.moving and self.time_s < limit_s:
            self._step()

    def wait(self, seconds: float) -> None:
        """Step the physics without a new command."""
        for _ in range(round(seconds / self._world.sample_s)):
            self._step()

    def verdict(self, task: Task) -> Verdict:
        """Judge by the true poses of the task's target."""
        return TruthJudge(self._target(task)).judge(None, task)

    def finish(self, task: Task, chunks: int, began: float) -> Run:
        """Return the run with evenly spaced states."""
        states = self._states
        times = np.array([s.time_s for s in states])
        commands = JointTrajectory(states[0].joint_names, times, np.stack([s.commanded for s in states]))
        kept = np.linspace(0, len(states) - 1, self._world.frames).round().astype(int)
        return Run(
            commands,
            self.verdict(task),
            chunks,
            time.perf_counter() - began,
            states=tuple(states[i] for i in kept),
            target=self._target(task),
        )

    def _target(self, task: Task) -> Array:
        name = task.target or self._states[0].target
        return np.stack([s.objects[name].base_T_object for s in self._states])

    def _step(self) -> None:
        self._lab.step(self._world.sample_s)
        self._states.append(self._lab.state())


def true_rollout(world: LabWorld, run: Run, frames: int) -> Rollout:
    """Render the lab's own images and points of a run, at most `frames`, evenly spaced.

    It shows a judge's errors without a model's.
    """
    count = min(frames, len(run.states))
    states = [run.states[i] for i in np.linspace(0, len(run.states) - 1, count).round().astype(int)]
    camera = world.eye.camera
    rays = np.asarray(camera.rays(), np.float32)
    shape = (count, camera.height, camera.width)
    rgb, xyz, mask = np.empty((*shape, 3), np.uint8), np.empty((*shape, 3), np.float32), np.empty(shape, np.bool_)
    for i, state in enumerate(states):
        rgb[i], depth_m, mask[i] = world.measure(state)
        xyz[i] = rays * depth_m[..., None]
    return Rollout(rgb, xyz, mask, camera, np.array([s.time_s for s in states]), Provenance("truth"))
