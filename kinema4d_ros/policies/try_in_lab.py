"""`try_policy`: one episode of a policy in the lab, with its outcome and images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.core.task import Task, make_task
from kinema4d_ros.kinematics.protocol import choose_kinematics
from kinema4d_ros.lab.picture import LabCamera
from kinema4d_ros.lab.simulation import LabSimulation
from kinema4d_ros.policies.protocol import EpisodeStart, Observation, Policy, PolicyError
from kinema4d_ros.robot.model import Robot

__all__ = ["Outcome", "perform", "try_policy"]

SETTLE_S = 0.3


@dataclass(frozen=True, eq=False)
class Outcome:
    """Outcome of an episode.

    Attributes:
        task: of the episode.
        success: its goal holds at the end.
        rise_m, moved_m: displacement of the target, upwards and along the table.
        time_s: simulated duration.
        chunks: number of chunks requested.
        pictures: (N, H, W, 3) uint8 RGB, images before each chunk and at the end.
    """

    task: Task
    success: bool
    rise_m: float
    moved_m: float
    time_s: float
    chunks: int
    pictures: NDArray[np.uint8]


def try_policy(
    policy: Policy,
    *,
    scenario: str = "canonical",
    seed: int = 0,
    task: str = "pick",
    robot: Robot | None = None,
    camera: LabCamera | None = None,
    limit_s: float = 20.0,
) -> Outcome:
    """Run a policy in the lab until it is done or `limit_s` is reached.

    Raises:
        PolicyError: the policy failed, or requested a motion that the arm refuses.
    """
    robot = robot or Robot.load("yam")
    kinematics = choose_kinematics(robot)
    lab = LabSimulation(scenario, seed, robot)
    lens = camera or LabCamera.of(lab)
    before = state = lab.state()
    asked = make_task(task, before.target, goal_xy=before.goal)
    policy.reset(EpisodeStart(robot, asked.instruction, task, seed, before))
    pictures, chunks, done = [], 0, False
    while not done and state.time_s < limit_s:
        pictures.append(lens.capture(state).rgb)
        width = float("nan")
        if robot.gripper is not None:
            finger = state.positions[robot.joint_names.index(robot.gripper.joint)]
            low, high = sorted((robot.gripper.closed, robot.gripper.open))
            width = float(robot.gripper.width_from_position(min(max(float(finger), low), high)))
        chunk = policy.act(Observation(pictures[-1], lens.camera, state.positions, width, state.time_s))
        chunks, done = chunks + 1, chunk.done
        if len(chunk.times):
            try:
                # From the command, not the measured joints: fingers that hold an object do not reach their command.
                lab.follow(chunk.trajectory(kinematics, state.commanded))
            except PolicyError:
                raise
            except KinemaError as error:
                raise PolicyError(
                    f"'{policy.name}' requested a motion that the arm refuses: {error.what}", expected=error.expected
                ) from error
            perform(lab, policy.name)
        state = lab.state()
    lab.step(SETTLE_S)
    after = lab.state()
    pictures.append(lens.capture(after).rgb)
    first, last = (state.objects[asked.target].position for state in (before, after))
    return Outcome(
        asked,
        bool(asked.outcome([first, last]).success),
        float(last[2] - first[2]),
        float(np.linalg.norm((last - first)[:2])),
        after.time_s,
        chunks,
        np.array(pictures),
    )


def perform(lab: LabSimulation, name: str) -> None:
    """Step the simulation until the motion ends."""
    try:
        while lab.moving:
            lab.step(min(0.05, max(lab.remaining_s, 1e-3)))
    except KinemaError as error:
        raise PolicyError(f"'{name}': {error.what}", expected=error.expected) from error
