"""Demonstrations of the scripted expert in the lab for training policies: images, joints, commands.

DIR/demos.json             scenario, rate, view, robot, joints: must be equal to continue a folder
DIR/episode_000000.npz     image (T, H, W, 3) uint8 RGB, state (T, J) measured, action (T, J) command one step later,
                           lifted () bool

In every second episode noise is added to the arm's motion but not to the recorded commands: a policy then learns to
recover. The arm starts near home. Each episode depends only on its own seed, so an interrupted run can be resumed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.io.files import read_arrays, read_json, replacing_file
from kinema4d_ros.kinematics.protocol import choose_kinematics
from kinema4d_ros.lab.picture import SMALL, LabCamera
from kinema4d_ros.lab.scenario import make_scenario
from kinema4d_ros.lab.scripted import pick_plan
from kinema4d_ros.lab.simulation import LabSimulation
from kinema4d_ros.policies.errors_by_design import ExpertErrors
from kinema4d_ros.policies.protocol import PolicyError
from kinema4d_ros.policies.view import WorkspaceView, demo_view
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.runtime.pool import Lost, Recipe, run_jobs
from kinema4d_ros.worlds.lab import LabWorld

__all__ = ["FIRST_SEED", "DemoSettings", "Demonstration", "make_demos", "read_demo", "record_demo"]

FIRST_SEED = 1_000_000
"""First seed of demonstrations: evaluations count from 0 and never use a scene of the training data."""

HOLD_S = 0.6
"""Time at rest at the end, so that the policy learns to stop."""

_FORMAT = "kinema4d_demonstrations"
_MAX_DEMO_BYTES = 2**30


@dataclass(frozen=True)
class DemoSettings:
    """Settings of a folder of demonstrations.

    Attributes:
        scenario: of the lab.
        rate_hz: samples per second.
        seed: the first episode has the seed `FIRST_SEED + seed`.
        start_rad: standard deviation of the arm's start position around home.
        tremble_rad: standard deviation of the noise in every second episode.
    """

    scenario: str = "canonical"
    rate_hz: float = 10.0
    seed: int = 0
    start_rad: float = 0.03
    tremble_rad: float = 0.012

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not (1.0 <= self.rate_hz <= 50.0 and self.seed >= 0 and 0 <= self.start_rad < 0.2 > self.tremble_rad >= 0):
            raise PolicyError(
                f"rate_hz {self.rate_hz}, seed {self.seed}, start_rad {self.start_rad}, tremble_rad {self.tremble_rad}",
                expected="1 to 50 Hz, seed 0 or more, angles 0 to 0.2",
                code=ErrorCode.ARGUMENT_INVALID,
            )


@dataclass(frozen=True, eq=False)
class Demonstration:
    """One episode; T samples at a constant rate.

    Attributes:
        image: (T, H, W, 3) uint8 RGB.
        state: (T, J) float32 measured joints.
        action: (T, J) float32 commanded joints one sample later.
        lifted: the pick succeeded, as `Task` decides.
    """

    image: NDArray[np.uint8]
    state: NDArray[np.float32]
    action: NDArray[np.float32]
    lifted: bool


def record_demo(robot: Robot, view: WorkspaceView, settings: DemoSettings, index: int) -> Demonstration:
    """Record one pick of the scripted expert; the view is rendered at its own size, which saves half of the time.

    Raises:
        KinemaError: the target is out of reach from the arm's start.
    """
    seed = FIRST_SEED + settings.seed + index
    rng = np.random.default_rng([seed, 7])
    start = robot.home_position()
    arm = [robot.joint_names.index(joint.name) for joint in robot.arm]
    start[arm] += np.clip(rng.normal(0.0, settings.start_rad, len(arm)), -0.09, 0.09)
    lab = LabSimulation(settings.scenario, seed, robot, start=np.clip(start, robot.lower, robot.upper))
    state, kinematics = lab.state(), choose_kinematics(robot)
    plan = pick_plan(state, state.target, kinematics)
    errors = ExpertErrors(noise_rad=settings.tremble_rad if index % 2 else 0.0)
    period = 1.0 / settings.rate_hz
    samples = int(np.ceil((plan.duration_s + HOLD_S) * settings.rate_hz))
    camera = LabCamera(robot, view.camera(), quality=SMALL)
    world = LabWorld(lab, kinematics, camera, sample_s=period, frames=samples + 1)
    run = world.run(errors.performed(robot, plan, None, rng), world.task("pick"), until_s=samples * period)
    seen = run.states[:-1]
    return Demonstration(
        np.array([world.picture(now).rgb for now in seen], np.uint8),
        np.array([now.positions for now in seen], np.float32),
        np.array([plan.at(now.time_s + period)[0] for now in seen], np.float32),
        bool(run.verdict.success),
    )


def make_demos(
    folder: str | Path,
    episodes: int,
    settings: DemoSettings | None = None,
    *,
    robot: Robot | None = None,
    view: WorkspaceView | None = None,
    workers: int = 1,
    engine: str = "local",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[int, int]:
    """Fill a folder up to `episodes`, keep existing ones, and return (episodes, lifted).

    Args:
        folder: created if needed.
        episodes: number in the whole folder.
        settings, robot, view: by default the canonical scenario, the YAM, the demonstration camera.
        workers: processes; 1 local one = this process.
        engine: where they run, see `runtime.pool`. Machines of a cluster must share the folder.
        progress: called with the number of finished episodes, and how many of them lifted.

    Raises:
        ScenarioError: the scenario does not exist.
        PolicyError: the folder holds demonstrations with other settings, or the workers of some episodes died twice;
            the others are recorded, and the error names the missing ones.
    """
    settings, view = settings or DemoSettings(), view or demo_view()
    robot = robot or Robot.load("yam")
    if episodes < 1 or workers < 1:
        raise PolicyError(
            f"{episodes} episodes, {workers} workers", expected="1 or more", code=ErrorCode.ARGUMENT_INVALID
        )
    make_scenario(settings.scenario)  # an unknown one would only give empty demonstrations
    root = Path(folder)
    _claim(root, settings, view, robot)
    count = lifted = 0

    def finished(success: bool) -> None:
        nonlocal count, lifted
        count, lifted = count + 1, lifted + success
        if progress is not None:
            progress(count, lifted)

    missing = []
    for index in range(episodes):
        if (path := _episode_file(root, index)).is_file():
            finished(read_demo(path).lifted)
        else:
            missing.append(index)
    recorder = Recipe("kinema4d_ros.policies.demos:DemoRecorder", (root.absolute(), settings, robot, view))
    here = engine == "local" and (workers == 1 or len(missing) < 2)
    lost: list[Lost] = []
    for result in run_jobs(recorder, missing, workers=0 if here else workers, engine=engine):
        if isinstance(result, Lost):
            lost.append(result)
        else:
            finished(result.value)
    if lost:
        numbers = ", ".join(str(index) for index in sorted(one.job for one in lost))
        raise PolicyError(
            f"not recorded: episodes {numbers}; {lost[-1].text}",
            expected="workers that finish their episodes",
            hint="run the same command again: it records only what is missing",
        )
    return episodes, lifted


class DemoRecorder:
    """Worker of the pool: records and writes one episode per job.

    Args:
        turn: of the worker; not used.
        root: the folder.
        settings, robot, view: of all episodes.
    """

    def __init__(self, turn: int, root: Path, settings: DemoSettings, robot: Robot, view: WorkspaceView) -> None:
        self._root, self._settings, self._robot, self._view = root, settings, robot, view

    def __call__(self, index: int) -> bool:
        """Write the episode's file and return whether the target was lifted."""
        try:
            demo = record_demo(self._robot, self._view, self._settings, index)
        except KinemaError:
            # The target cannot be picked: an empty demonstration keeps the index.
            empty = np.zeros((0, len(self._robot.joint_names)), np.float32)
            demo = Demonstration(np.zeros((0, self._view.height, self._view.width, 3), np.uint8), empty, empty, False)
        with replacing_file(_episode_file(self._root, index)) as temporary:
            np.savez_compressed(
                temporary, image=demo.image, state=demo.state, action=demo.action, lifted=np.array(demo.lifted)
            )
        return demo.lifted


def _episode_file(root: Path, index: int) -> Path:
    return root / f"episode_{index:06d}.npz"


def read_demo(path: str | Path) -> Demonstration:
    """Read the file of an episode.

    Raises:
        PolicyError: the file is missing, truncated, or not a demonstration.
    """
    try:
        found = read_arrays(path, ("image", "state", "action", "lifted"), _MAX_DEMO_BYTES)
    except FileFormatError as error:
        raise PolicyError(
            f"{path} is not a demonstration: {error.what}",
            expected="image, state, action and lifted",
            hint="delete the file and record it again",
            code=ErrorCode.FILE_MALFORMED,
        ) from None
    demo = Demonstration(found["image"], found["state"], found["action"], bool(found["lifted"].any()))
    if not (demo.image.ndim == 4 and demo.state.shape == demo.action.shape and len(demo.image) == len(demo.state)):
        raise PolicyError(
            f"{path}: image {demo.image.shape}, state {demo.state.shape}, action {demo.action.shape}",
            expected="equal lengths",
            code=ErrorCode.FILE_MALFORMED,
        )
    return demo


def _claim(root: Path, settings: DemoSettings, view: WorkspaceView, robot: Robot) -> None:
    wanted: dict[str, Any] = {
        "format": _FORMAT,
        "version": 1,
        **vars(settings),
        "robot": robot.name,
        "joint_names": list(robot.joint_names),
        "view": view.as_dict(),
    }
    file = root / "demos.json"
    if not file.is_file():
        with replacing_file(file) as temporary:
            temporary.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")
        return
    try:
        found = read_json(file)
    except FileFormatError:
        found = {}
    other = [
        key for key in wanted if not isinstance(found, dict) or found.get(key) != json.loads(json.dumps(wanted))[key]
    ]
    if other:
        raise PolicyError(
            f"{root} holds demonstrations with other settings: {', '.join(other)} differ",
            expected="the same settings, or an empty folder",
            code=ErrorCode.ARGUMENT_INVALID,
        )
