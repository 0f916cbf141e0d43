"""`WorldEnv`: any world as a Gymnasium environment, for reinforcement learning and data collection.

    import gymnasium, kinema4d_ros.worlds.gym_env
    env = gymnasium.make("kinema4d/Lab-v0", scenario="cluttered", task="pick")        # MuJoCo lab
    env = gymnasium.make("kinema4d/Lab-v0", profile="hidden")                         # its physics drawn anew each time
    env = gymnasium.make("kinema4d/Model-v0", model="composite")                      # predicted world

Actions are joint positions, to be reached within one period of the control rate. Every reset sets up a new scene, drawn
from the seed; `reset(options={"scene": 7})` asks for a certain one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import ErrorCode, EvaluationError, KinemaError, SetupError
from kinema4d_ros.core.task import Task
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.generators import load_generator
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.lab.profile import CONSTANT
from kinema4d_ros.policies.protocol import Observation
from kinema4d_ros.robot import Robot
from kinema4d_ros.worlds.lab import LabWorld
from kinema4d_ros.worlds.model import ModelWorld
from kinema4d_ros.worlds.world import LIMIT_S, Session, World

try:
    import gymnasium
except ImportError as error:
    raise SetupError(
        f"gymnasium is not installed: {error}", expected="gymnasium 1.0 or newer", hint="pip install kinema4d_ros[gym]"
    ) from error

__all__ = ["WorldEnv", "lab_env", "model_env"]

SPEED = 0.95
"""Share of the joints' velocity limits that one action may use."""
SCENES = 2**31

Sensed = dict[str, NDArray[Any]]
MakeWorld = Callable[[int], tuple[World, Task]]


class WorldEnv(gymnasium.Env[Sensed, NDArray[np.float32]]):
    """Environment of a world.

    Args:
        make_world: returns the world and the task of a scene number.
        rate_hz: actions per second.
        limit_s: duration of an episode, after which it is truncated.
        reward: "progress" = change of the task's progress, "success" = 1 in the step that reaches the goal.
        render_mode: "rgb_array", or None.

    Observations: `image` (H, W, 3) uint8 RGB; `joints` (J,) radians or metres; `gripper_m` (1,) metres, if there is a
    gripper. Actions: (J,) joint positions within the limits; a faster motion than the joints allow is shortened, and
    `info["shortened"]` says so. `info` also has `success`, `progress`, `value_m`, `time_s`, `scene`, and `error`: why
    the arm could not perform the action, or why the world could not be judged; either ends the episode.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}  # type: ignore[misc]

    def __init__(
        self,
        make_world: MakeWorld,
        *,
        rate_hz: float = 5.0,
        limit_s: float = LIMIT_S,
        reward: Literal["progress", "success"] = "progress",
        render_mode: str | None = None,
    ) -> None:
        if not (rate_hz > 0 and limit_s >= 1 / rate_hz) or reward not in ("progress", "success"):
            raise EvaluationError(
                f"rate_hz {rate_hz}, limit_s {limit_s}, reward {reward!r}",
                expected="a rate above 0, a limit of at least one period, and progress or success",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise EvaluationError(
                f"render_mode is {render_mode!r}", expected="rgb_array or None", code=ErrorCode.ARGUMENT_INVALID
            )
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": rate_hz}  # type: ignore[misc]
        self._make_world, self._period_s, self._limit_s, self._reward = make_world, 1.0 / rate_hz, limit_s, reward
        self._scene = 0
        self._world, self._task = make_world(self._scene)
        self._session: Session | None = None
        self._seen: Observation | None = None
        self._progress = 0.0
        robot, camera = self._world.kinematics.robot, self._world.scene.camera
        self.action_space = gymnasium.spaces.Box(robot.lower.astype(np.float32), robot.upper.astype(np.float32))
        sensed: dict[str, gymnasium.Space[Any]] = {
            "image": gymnasium.spaces.Box(0, 255, (camera.height, camera.width, 3), np.uint8),
            "joints": gymnasium.spaces.Box(-np.inf, np.inf, (len(robot.joint_names),), np.float64),
        }
        if robot.gripper is not None:
            sensed["gripper_m"] = gymnasium.spaces.Box(0.0, np.inf, (1,), np.float64)
        self.observation_space = gymnasium.spaces.Dict(sensed)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Sensed, dict[str, Any]]:
        """Set up a new scene and return its first observation."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(SCENES))
        scene = int((options or {}).get("scene", drawn))
        if scene != self._scene:
            self._scene = scene
            self._world, self._task = self._make_world(scene)
        self._session, self._progress = self._world.begin(), 0.0
        return self._sensed(self._session), {"scene": scene, "instruction": self._task.instruction, "success": False}

    def step(self, action: NDArray[np.float32]) -> tuple[Sensed, float, bool, bool, dict[str, Any]]:
        """Move to joint positions (J,) within one period."""
        session = self._session
        if session is None:
            raise EvaluationError("no episode has begun", expected="reset before step", code=ErrorCode.ARGUMENT_INVALID)
        robot, start = self._world.kinematics.robot, session.commanded
        wanted = np.clip(np.asarray(action, dtype=np.float64), robot.lower, robot.upper)
        reach = SPEED * self._period_s * np.array([joint.limits.velocity for joint in robot.actuated])
        target = np.clip(wanted, start - reach, start + reach)
        info: dict[str, Any] = {"scene": self._scene, "shortened": bool(np.any(target != wanted)), "error": ""}
        verdict = None
        try:
            times = np.array([0.0, self._period_s])
            session.follow(JointTrajectory(robot.joint_names, times, np.stack([start, target])))
            verdict = session.verdict(self._task)
        except KinemaError as error:
            info["error"] = str(error)
        success, progress = (None, 0.0) if verdict is None else (verdict.success, verdict.progress)
        gained, self._progress = progress - self._progress, progress
        value_m = None if verdict is None or np.isnan(verdict.value_m) else verdict.value_m
        info |= {"success": success, "progress": progress, "value_m": value_m, "time_s": session.time_s}
        ended = success is True or verdict is None
        if ended:
            self._session = None
        reward = gained if self._reward == "progress" else float(success is True)
        return self._sensed(session), float(reward), ended, session.time_s >= self._limit_s - 1e-6, info

    def render(self) -> NDArray[np.uint8] | None:
        """Return the last image with render_mode "rgb_array"."""
        return self._seen.image if self.render_mode is not None and self._seen is not None else None

    def _sensed(self, session: Session) -> Sensed:
        seen = self._seen = session.observe()
        found: Sensed = {"image": seen.image.copy(), "joints": np.array(seen.joints, dtype=np.float64)}
        if "gripper_m" in self.observation_space.spaces:  # type: ignore[attr-defined]
            found["gripper_m"] = np.array([seen.gripper_m])
        return found


def _lab(scenario: str, task: str, robot: str, width: int, profile: str) -> Callable[[int], tuple[LabWorld, Task]]:
    kinematics = choose_kinematics(Robot.load(robot))
    camera = read_camera(share_path("calibration/demo_lab.yaml")).rectified()
    camera = camera.scaled(width, max(1, round(width * camera.height / camera.width)))

    def make(scene: int) -> tuple[LabWorld, Task]:
        world = LabWorld.of(scenario, scene, camera, kinematics, profile=profile)
        return world, world.task(task)

    return make


def lab_env(
    scenario: str = "canonical",
    task: str = "pick",
    robot: str = "yam",
    width: int = 180,
    profile: str = CONSTANT,
    **options: Any,
) -> WorldEnv:
    """Return the lab as an environment; images are `width` pixels wide, other options are those of `WorldEnv`.

    `profile` is the lab's: with "hidden", mass, friction, servos and camera differ from scene to scene.
    """
    return WorldEnv(_lab(scenario, task, robot, width, profile), **options)


def model_env(
    model: str = "auto",
    scenario: str = "canonical",
    task: str = "pick",
    robot: str = "yam",
    width: int = 180,
    frames: int = 17,
    depth: bool = False,
    profile: str = CONSTANT,
    **options: Any,
) -> WorldEnv:
    """Return scenes of the lab whose reaction a generator predicts; every step predicts all commands so far."""
    lab, generator = _lab(scenario, task, robot, width, profile), load_generator(model)

    def make(scene: int) -> tuple[World, Task]:
        world, goal = lab(scene)
        return ModelWorld(world.scene, generator, world.kinematics, depth=depth, frames=frames), goal

    return WorldEnv(make, **options)


gymnasium.register("kinema4d/Lab-v0", entry_point=lab_env)
gymnasium.register("kinema4d/Model-v0", entry_point=model_env)
