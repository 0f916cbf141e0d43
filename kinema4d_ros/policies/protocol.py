"""The policy protocol: an observation in, a chunk of actions out; `PlanHandout` splits a plan into chunks.

reset(EpisodeStart) ─> act(Observation) ─> ActionChunk ─> act(...) ... until a chunk is `done` or the time limit

A policy gets what is available on a real robot: one camera, the joints, the gripper, the instruction. Only scripted
experts read `EpisodeStart.scene`, the lab's true state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.kinematics.protocol import Kinematics
from kinema4d_ros.lab.simulation import LabState
from kinema4d_ros.robot.model import Robot

__all__ = ["ActionChunk", "EpisodeStart", "Observation", "PlanHandout", "Policy", "PolicyError"]

Array = NDArray[np.float64]


class PolicyError(KinemaError):
    """A policy cannot be loaded, does not answer, or returns an invalid action."""

    default_code = ErrorCode.POLICY_FAILED


@dataclass(frozen=True, eq=False)
class EpisodeStart:
    """Input of a policy at the start of an episode.

    Attributes:
        robot: that the policy controls.
        instruction: the task as a sentence.
        task: "pick", "place" or "push".
        seed: of all its randomness in this episode; equal seeds give equal actions.
        scene: true state of the simulator; None on a real robot.
    """

    robot: Robot
    instruction: str = ""
    task: str = "pick"
    seed: int = 0
    scene: LabState | None = None


@dataclass(frozen=True, eq=False)
class Observation:
    """Input of a policy at one time.

    Attributes:
        image: (H, W, 3) uint8 RGB, rectified.
        camera: of that image.
        joints: (J,) float64 measured positions, `robot.joint_names` order, radians or metres.
        gripper_m: opening between the fingers in metres; NaN without a gripper.
        time_s: since the episode began.
    """

    image: NDArray[np.uint8]
    camera: PinholeCamera
    joints: Array
    gripper_m: float
    time_s: float


@dataclass(frozen=True, eq=False)
class ActionChunk:
    """The next actions: joint positions, or tool poses with the gripper's opening.

    Invalid values are refused on construction. Times count from the observation: the first is above 0.

    Attributes:
        times: (N,) seconds, strictly increasing, above 0; N may be 0 when `done`.
        joints: (N, J) `robot.joint_names` order; or None.
        base_T_tool: (N, 4, 4) metres, base frame; or None. Exactly one of the two is given.
        gripper_m: (N,) opening in metres; required with poses; None with joints, which include the gripper.
        done: the episode ends after this chunk.
    """

    times: Array
    joints: Array | None = None
    base_T_tool: Array | None = None
    gripper_m: Array | None = None
    done: bool = False

    def __post_init__(self) -> None:
        """Check shapes and values and keep private copies."""
        times = _numbers("times", self.times)
        if times.ndim != 1 or np.any(np.diff(times) <= 0) or (len(times) and times[0] <= 0):
            raise _garbage(f"times are {_short(times)}", "strictly increasing seconds above 0")
        if not len(times) and not self.done:
            raise _garbage("the chunk is empty", "at least one action, or done")
        if (self.joints is None) == (self.base_T_tool is None):
            raise _garbage("the chunk has " + ("no actions" if self.joints is None else "two kinds of actions"),
                           "joints, or base_T_tool with gripper_m")  # fmt: skip
        object.__setattr__(self, "times", times)
        if self.joints is not None:
            joints = _numbers("joints", self.joints)
            if joints.ndim != 2 or len(joints) != len(times):
                raise _garbage(f"joints have shape {joints.shape} for {len(times)} times", f"({len(times)}, J)")
            object.__setattr__(self, "joints", joints)
            return
        poses = _numbers("base_T_tool", self.base_T_tool)
        widths = _numbers("gripper_m", () if self.gripper_m is None else self.gripper_m)
        if poses.shape != (len(times), 4, 4) or widths.shape != times.shape:
            raise _garbage(
                f"base_T_tool has shape {poses.shape}, gripper_m {widths.shape} for {len(times)} times",
                f"({len(times)}, 4, 4) and ({len(times)},)",
            )
        object.__setattr__(self, "base_T_tool", poses)
        object.__setattr__(self, "gripper_m", widths)

    def trajectory(self, kinematics: Kinematics, start: ArrayLike) -> JointTrajectory:
        """Convert the chunk to joint positions from `start` (J,) at time 0, which becomes the first sample.

        Raises:
            PolicyError: the number of joints is not the robot's.
            NoSolution: the arm cannot reach a tool pose.
        """
        robot, first = kinematics.robot, np.asarray(start, dtype=np.float64)
        if not len(self.times):
            return JointTrajectory.from_positions(robot.joint_names, first[None], times=[0.0])
        if self.joints is not None:
            if self.joints.shape[1] != len(robot.joint_names):
                raise _garbage(
                    f"actions have {self.joints.shape[1]} joints, robot '{robot.name}' has {len(robot.joint_names)}",
                    f"{', '.join(robot.joint_names)}",
                )
            q = self.joints
        else:
            poses = np.asarray(self.base_T_tool)
            q = JointTrajectory.from_poses(
                kinematics, poses, times=self.times, seed=first, gripper=self.gripper_m
            ).positions
        return JointTrajectory(robot.joint_names, np.concatenate([[0.0], self.times]), np.vstack([first, q]))


@runtime_checkable
class Policy(Protocol):
    """Interface of policies."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    def reset(self, start: EpisodeStart) -> None:
        """Begin an episode and discard the state of the previous one."""
        ...

    def act(self, observation: Observation) -> ActionChunk:
        """Return the next actions.

        Raises:
            PolicyError: no action is possible; the trial is recorded as failed, other trials continue.
        """
        ...

    def close(self) -> None:
        """Release processes, sockets and memory; may be called twice."""
        ...


def _numbers(name: str, values: Any) -> Array:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise _garbage(f"{name} are not numbers: {error}", "a table of numbers") from None
    if not np.all(np.isfinite(array)):
        raise _garbage(f"{name} are not finite: {_short(array)}", "finite numbers")
    array.setflags(write=False)
    return array


def _short(array: Array) -> str:
    return np.array2string(array.ravel()[:6], precision=4) + (" ..." if array.size > 6 else "")


def _garbage(what: str, expected: str) -> PolicyError:
    return PolicyError(what, expected=expected, code=ErrorCode.POLICY_BAD_ACTION)


# `PlanHandout`: splits a whole plan into chunks.

MAX_CHUNK_S = 600.0
_SAME_S = 1e-6


class PlanHandout:
    """Splitter of a trajectory, with columns `robot.joint_names`, into chunks.

    If only part of a chunk was executed, the next chunk repeats the rest; waiting between chunks skips nothing.

    Args:
        chunk_s: seconds in one chunk; 0 = the whole motion at once.
    """

    def __init__(self, chunk_s: float) -> None:
        if isinstance(chunk_s, bool) or not isinstance(chunk_s, int | float) or not 0.0 <= chunk_s <= MAX_CHUNK_S:
            raise PolicyError(
                f"chunk_s is {chunk_s!r}",
                expected=f"0 (everything at once) to {MAX_CHUNK_S:g} seconds",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        self._chunk_s = chunk_s or np.inf
        self.clear()

    def clear(self) -> None:
        """Discard the plan."""
        self._plan: JointTrajectory | None = None
        self._first_s: float | None = None
        self._given_s = 0.0

    def load(self, plan: JointTrajectory) -> None:
        """Start a plan; its first sample is the arm's current position."""
        self.clear()
        self._plan = plan

    def next_chunk(self, time_s: float) -> ActionChunk:
        """Return the chunk for this time of the episode; the chunk with the last sample is `done`.

        Raises:
            PolicyError: `load` was not called.
        """
        if self._plan is None:
            raise PolicyError("no episode has begun", expected="reset before act")
        if self._first_s is None:
            self._first_s = time_s
        # Time without motion does not advance the plan: the arm would jump.
        now = min(time_s - self._first_s, self._given_s)
        times = self._plan.times - self._plan.times[0]
        end = now + self._chunk_s
        chosen = (times > now + _SAME_S) & (times <= end + _SAME_S)
        if not np.any(chosen) and now < times[-1] - _SAME_S:
            chosen = np.arange(len(times)) == int(np.argmax(times > now + _SAME_S))
        rows = self._plan.positions[chosen]
        self._given_s = float(times[chosen][-1]) if np.any(chosen) else now
        return ActionChunk(times[chosen] - now, rows, done=bool(self._given_s >= times[-1] - _SAME_S))
