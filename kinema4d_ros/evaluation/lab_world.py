"""`LabArena`: a scene of the lab with its camera and task, in which policies run episodes; `true_rollout`.

scenario, seed ─> scene ─> observation ─> policy ─> chunk ─> physics ─> ... ─> Run: commands, poses, outcome
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import FileFormatError, KinemaError, RenderError
from kinema4d_ros.core.rollout import Provenance, Rollout
from kinema4d_ros.core.task import make_task
from kinema4d_ros.core.trajectory import FRAMES, JointTrajectory
from kinema4d_ros.evaluation.judges import TruthJudge, Verdict
from kinema4d_ros.io.files import replacing_file
from kinema4d_ros.kinematics.protocol import Kinematics
from kinema4d_ros.lab import LabCamera, LabImage, LabSimulation, LabState, PlacedObject, Style
from kinema4d_ros.policies.protocol import EpisodeStart, Observation, Policy, PolicyError

__all__ = ["LabArena", "Run", "true_rollout"]

Array = NDArray[np.float64]

SAMPLE_S = 0.02
SETTLE_S = 0.4
"""Time after the last action for released objects to come to rest."""
LEAST_MOTION_S = 0.2


@dataclass(frozen=True, eq=False)
class Run:
    """One run in the lab, sampled every 20 ms and at its end.

    Attributes:
        commands: commanded positions of all joints, from time 0.
        target: (T, 4, 4) base_T_object of the target at those times.
        states: `FRAMES` states, evenly spaced, from which images are rendered; velocities and efforts are not kept.
        chunks: number of chunks requested from the policy.
        seconds: computing time.
    """

    commands: JointTrajectory
    target: Array
    states: tuple[LabState, ...]
    chunks: int
    seconds: float

    def save(self, path: str | Path) -> None:
        """Write the run as .npz for `load`."""
        names = list(self.states[0].objects)
        with replacing_file(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(
                file,
                times=self.commands.times,
                commands=self.commands.positions,
                target=self.target,
                frame_times=np.array([s.time_s for s in self.states]),
                positions=np.stack([s.positions for s in self.states]),
                commanded=np.stack([s.commanded for s in self.states]),
                base_T_link=np.stack([s.base_T_link for s in self.states]),
                base_T_object=np.stack([[s.objects[n].base_T_object for n in names] for s in self.states]),
                counts=np.array([self.chunks, self.seconds]),
            )

    @classmethod
    def load(cls, path: str | Path, start: LabState) -> Run:
        """Read a run of the scene whose initial state is `start`.

        Raises:
            FileFormatError: not a run, or a run of another scene.
        """
        try:
            # Plain arrays only: object arrays would need unpickling, which is unsafe.
            with np.load(path, allow_pickle=False) as file:
                data = {name: file[name] for name in file.files}
            names, things = start.joint_names, start.objects.values()
            states = tuple(
                replace(
                    start,
                    time_s=float(data["frame_times"][i]),
                    positions=data["positions"][i],
                    commanded=data["commanded"][i],
                    base_T_link=data["base_T_link"][i],
                    objects={
                        thing.name: PlacedObject(thing.object, pose)
                        for thing, pose in zip(things, data["base_T_object"][i], strict=True)
                    },
                )
                for i in range(len(data["frame_times"]))
            )
            commands = JointTrajectory(names, data["times"], data["commands"])
            return cls(commands, data["target"], states, int(data["counts"][0]), float(data["counts"][1]))
        except (OSError, ValueError, KeyError, IndexError, EOFError, BadZipFile) as error:
            raise FileFormatError(
                f"{path} is not a run of this scene: {error}", expected="a file of `Run.save`"
            ) from None


class LabArena:
    """A scene of the lab that is reset for every run. Not thread safe.

    Args:
        scenario, seed: of the scene.
        camera: with its pose; images are rectified.
        kinematics: of the robot.
        kind: of the task, one of `task.LAB_TASKS`.
    """

    def __init__(self, scenario: str, seed: int, camera: PinholeCamera, kinematics: Kinematics, kind: str) -> None:
        self._kinematics = kinematics
        self.camera = camera.rectified()
        self._lab = LabSimulation(scenario, seed, kinematics.robot, self.camera)
        self._scenario, self._seed = self._lab.scenario.name, seed
        self.start = self._lab.state()
        self._untouched = True
        self.kind = kind
        style = Style.varied(self._lab.scenario.style)
        self._eye = LabCamera(kinematics.robot, self.camera, style=style)
        self.first = self._eye.capture(self.start, truth=True)
        self.task = make_task(kind, self.start.target, goal_xy=self.start.goal)
        self.target_mask = self.first.mask(self.start.target)

    def episode_start(self, seed: int) -> EpisodeStart:
        """Build the episode start for a policy."""
        robot = self._kinematics.robot
        return EpisodeStart(robot, self.task.instruction, self.kind, seed, self.start)

    def picture(self, state: LabState) -> LabImage:
        """Render an image of a state of this scene."""
        return self._eye.capture(state)

    def measure(self, state: LabState) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_]]:
        """Render image, depth (H, W) in metres (NaN = no surface) and robot mask (H, W) of a state."""
        image = self._eye.capture(state, truth=True)
        if image.depth_m is None or image.segmentation is None:
            raise RenderError("the image has no depth", expected="capture(..., truth=True)")
        robot = (image.segmentation > 0) & (image.segmentation <= len(self._kinematics.robot.links))
        return image.rgb, image.depth_m, robot

    def observe(self, image: NDArray[np.uint8], joints: Array, time_s: float) -> Observation:
        """Build an observation from an image of the lab or of a model, and joint positions (J,)."""
        robot = self._kinematics.robot
        width = float("nan")
        if robot.gripper is not None:
            width = float(robot.gripper.width_from_position(joints[robot.joint_names.index(robot.gripper.joint)]))
        return Observation(image, self.camera, joints, width, time_s)

    def run(self, policy: Policy, *, seed: int, limit_s: float = 30.0) -> Run:
        """Run a policy until it is done or `limit_s` is reached.

        Raises:
            PolicyError: the policy failed, or requested a motion that the arm cannot do.
        """
        began = time.perf_counter()
        state = self._restart()
        policy.reset(self.episode_start(seed))
        recorder = _Recorder(self._lab)
        chunks, done = 0, False
        while not done and self._lab.time_s < limit_s:
            chunk = policy.act(self.observe(self.picture(state).rgb, state.positions, state.time_s))
            chunks += 1
            done = chunk.done
            if len(chunk.times):
                self._follow(chunk.trajectory(self._kinematics, state.commanded))
                recorder.until_still(limit_s)
            state = self._lab.state()
        return self._finish(recorder, chunks, began)

    def judge(self, run: Run) -> Verdict:
        """Judge a run by the true poses of the target."""
        return TruthJudge(run.target).judge(None, self.task)

    def _restart(self) -> LabState:
        # A new scene needs no reset.
        if not self._untouched:
            self._lab.reset(self._scenario, self._seed)
        self._untouched = False
        return self._lab.state()

    def _finish(self, recorder: _Recorder, chunks: int, began: float) -> Run:
        if recorder.time_s < LEAST_MOTION_S:
            raise PolicyError("the policy ended the episode without a motion", expected="at least one action")
        recorder.wait(SETTLE_S)
        return recorder.run(chunks, time.perf_counter() - began)

    def _follow(self, motion: JointTrajectory) -> None:
        try:
            self._lab.follow(motion)
        except PolicyError:
            raise
        except KinemaError as error:
            raise PolicyError(f"the arm refuses the motion: {error.what}", expected=error.expected) from error


class _Recorder:
    """Recorder that steps the physics and keeps a state every 20 ms."""

    def __init__(self, lab: LabSimulation) -> None:
        self._lab = lab
        self._states = [lab.state()]

    @property
    def time_s(self) -> float:
        return self._states[-1].time_s

    def until_still(self, limit_s: float) -> None:
        while self._lab.moving and self._lab.time_s < limit_s:
            self._step()

    def wait(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / SAMPLE_S))):
            self._step()

    def _step(self) -> None:
        try:
            self._lab.step(SAMPLE_S)
        except KinemaError as error:
            raise PolicyError(error.what, expected=error.expected) from error
        self._states.append(self._lab.state())

    def run(self, chunks: int, seconds: float) -> Run:
        states = self._states
        times = np.array([s.time_s for s in states])
        commands = JointTrajectory(states[0].joint_names, times, np.stack([s.commanded for s in states]))
        target = np.stack([s.objects[s.target].base_T_object for s in states])
        frames = np.linspace(0, len(states) - 1, FRAMES).round().astype(int)
        return Run(commands, target, tuple(states[i] for i in frames), chunks, seconds)


# The lab's own images as a rollout: shows the judge's errors without a model's.


def true_rollout(arena: LabArena, run: Run, frames: int) -> Rollout:
    """Render images and points of a run in the evaluation's camera, at most `frames` states, evenly spaced."""
    count = min(frames, len(run.states))
    states = [run.states[i] for i in np.linspace(0, len(run.states) - 1, count).round().astype(int)]
    camera = arena.camera
    rays = np.asarray(camera.rays(), np.float32)
    shape = (count, camera.height, camera.width)
    rgb, xyz, mask = np.empty((*shape, 3), np.uint8), np.empty((*shape, 3), np.float32), np.empty(shape, np.bool_)
    for i, state in enumerate(states):
        rgb[i], depth_m, mask[i] = arena.measure(state)
        xyz[i] = rays * depth_m[..., None]
    return Rollout(rgb, xyz, mask, camera, np.array([s.time_s for s in states]), Provenance("truth"))
