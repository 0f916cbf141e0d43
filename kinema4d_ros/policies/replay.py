"""`ReplayPolicy`: replays recorded actions from NPZ, CSV, JSON, a LeRobot dataset or a ROS 2 bag (kind `replay`).

It uses only the arm's position at the start: the paper's open-loop protocol, in which the outcome of the actions of a
real run is predicted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.files import read_bytes
from kinema4d_ros.io.joint_match import parse_gripper_range, parse_joint_map
from kinema4d_ros.io.trajectories import read_trajectory
from kinema4d_ros.physics.controller import START_TOLERANCE_M, START_TOLERANCE_RAD
from kinema4d_ros.policies.protocol import ActionChunk, EpisodeStart, Observation, PlanHandout, PolicyError
from kinema4d_ros.robot.model import Robot

__all__ = ["ReplayPolicy"]

SPEEDS = (0.01, 10.0)
_MAX_INFO_BYTES = 50_000_000


class ReplayPolicy:
    """Policy that replays a recording.

    Args:
        source: a .npz, .csv, .json or .mcap file, a bag's or a LeRobot dataset's folder.
        episode: index in a LeRobot dataset, from 0; "seed" uses the seed of the episode start as the index.
        feature: of a LeRobot dataset; `action` where it has one.
        topic: of a bag; by default its joint states, or its plan.
        joint_map: a file of recorded and robot joint names, see `readers.match`.
        gripper_range: OPEN:CLOSED, the recorded values of an open and of a closed gripper.
        speed: factor; 2 is twice as fast.
        chunk_s: seconds of motion in one chunk; 0 = all in one chunk.
    """

    def __init__(
        self,
        source: str = "",
        *,
        episode: int | str = 0,
        feature: str = "",
        topic: str = "",
        joint_map: str = "",
        gripper_range: str = "",
        speed: float = 1.0,
        chunk_s: float = 1.0,
    ) -> None:
        self._source = Path(source)
        if not source or not self._source.exists():
            raise PolicyError(
                f"recording '{source}' does not exist",
                expected="a file or folder with recorded actions: replay:PATH",
                code=ErrorCode.POLICY_UNAVAILABLE,
            )
        if isinstance(speed, bool) or not isinstance(speed, int | float) or not SPEEDS[0] <= speed <= SPEEDS[1]:
            raise _bad_option("speed", speed, f"{SPEEDS[0]:g} to {SPEEDS[1]:g}")
        if episode != "seed" and (isinstance(episode, bool) or not isinstance(episode, int) or episode < 0):
            raise _bad_option("episode", episode, "0 or more, or seed")
        self._episode, self._feature, self._topic, self._speed = episode, feature, topic, float(speed)
        self._joints: dict[str, Any] = {}
        if joint_map:
            self._joints["joint_map"] = parse_joint_map(joint_map)
        if gripper_range:
            self._joints["gripper_range"] = parse_gripper_range(gripper_range)
        self._handout = PlanHandout(chunk_s)
        self._robot: Robot | None = None
        self._first: np.typing.NDArray[np.float64] | None = None

    @property
    def name(self) -> str:
        """`replay:` and the recording's name."""
        return f"replay:{self._source.name}"

    def reset(self, start: EpisodeStart) -> None:
        """Read the recording.

        Raises:
            PolicyError: it cannot be read, is of another robot, lacks joints, or exceeds the arm's limits.
        """
        self._handout.clear()
        robot = start.robot
        try:
            recorded = read_trajectory(self._source, robot, **self._joints, **self._options(start.seed))
            self._require_joints(robot, recorded)
            q = recorded.for_robot(robot)
            plan = JointTrajectory(robot.joint_names, (recorded.times - recorded.times[0]) / self._speed, q)
            plan.validate(robot, check_velocity=True)
        except PolicyError:
            raise
        except KinemaError as error:
            raise PolicyError(
                f"'{self._source}' cannot be replayed on robot '{robot.name}': {error.what}",
                expected=error.expected,
                hint=error.hint,
                code=ErrorCode.POLICY_FAILED,
            ) from error
        self._handout.load(plan)
        self._robot, self._first = robot, q[0]

    def act(self, observation: Observation) -> ActionChunk:
        """Return the next chunk of the recording.

        Raises:
            PolicyError: the arm is not at the start of the recording.
        """
        if self._first is not None and self._robot is not None:
            self._require_start(self._robot, self._first, observation.joints)
            self._first = None
        return self._handout.next_chunk(observation.time_s)

    def close(self) -> None:
        """Discard the recording."""
        self._handout.clear()

    def _options(self, seed: int) -> dict[str, Any]:
        if self._source.is_dir() and (self._source / "meta" / "info.json").is_file():
            feature = self._feature or ("action" if _has_actions(self._source) else "")
            episode = seed if self._episode == "seed" else self._episode
            return {"episode": episode, **({"feature": feature} if feature else {})}
        for option, value in (("feature", self._feature), ("episode", self._episode)):
            if value:
                raise _bad_option(option, value, "none: only LeRobot datasets have it")
        return {"topic": self._topic} if self._topic else {}

    def _require_joints(self, robot: Robot, recorded: JointTrajectory) -> None:
        fingers = set() if robot.gripper is None else {v.name for v in robot.gripper.vendor} & set(recorded.names)
        missing = [
            name
            for name in robot.joint_names
            if name not in recorded.names
            and not (fingers and robot.gripper is not None and name == robot.gripper.joint)
        ]
        if missing:
            raise PolicyError(
                f"'{self._source}' has no values for joint {', '.join(missing)} of robot '{robot.name}'",
                expected=f"{', '.join(robot.joint_names)}",
                hint="record all joints, including the gripper",
            )

    def _require_start(
        self, robot: Robot, first: np.typing.NDArray[np.float64], joints: np.typing.NDArray[np.float64]
    ) -> None:
        limits = [START_TOLERANCE_M if j.kind == "prismatic" else START_TOLERANCE_RAD for j in robot.actuated]
        away = np.abs(first - joints) / limits
        if np.any(away > 1.0):
            worst = int(np.argmax(away))
            raise PolicyError(
                f"the recording starts with joint '{robot.joint_names[worst]}' at {first[worst]:.3f}, "
                f"but the arm is at {joints[worst]:.3f}",
                expected=f"a start within {limits[worst]:g} of the arm",
                hint="move the arm to the start of the recording first",
            )


def _has_actions(folder: Path) -> bool:
    try:
        return b'"action"' in read_bytes(folder / "meta" / "info.json", _MAX_INFO_BYTES)
    except KinemaError:
        return False


def _bad_option(name: str, value: object, expected: str) -> PolicyError:
    return PolicyError(f"{name} is {value!r}", expected=expected, code=ErrorCode.ARGUMENT_INVALID)
