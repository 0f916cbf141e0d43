"""The generator protocol: request, progress, cancellation, frames as soon as they exist, rollout; hash of a request.

A generator predicts the scene while the exact robot moves. It reports progress, stops within one step when cancelled,
and never changes the robot. Some also deliver frames before the rollout is complete, see `stream_frames`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import Cancelled, ErrorCode, GeneratorError, KinemaError
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.rollout import Frames, Rollout, require_plan_hash, require_seed, require_times
from kinema4d_ros.core.trajectory import JointTrajectory, hash_trajectory
from kinema4d_ros.generators._kernels import pack_robot
from kinema4d_ros.robot.description import description_sha256
from kinema4d_ros.robot.model import Robot

__all__ = [
    "Cancel",
    "Cancelled",
    "CommandedMotion",
    "GenerateRequest",
    "Generator",
    "Progress",
    "ReadyFrames",
    "ReceiveFrames",
    "ReportProgress",
    "Stage",
    "StreamingGenerator",
    "deliver",
    "raise_if_cancelled",
    "request_sha256",
    "stream_frames",
]


@dataclass(frozen=True)
class Progress:
    """Progress of a generation: `step` of `steps` in `phase` are done; 0 of 0 when unknown."""

    phase: str
    step: int = 0
    steps: int = 0


ReportProgress = Callable[[Progress], None]
"""Callback, called between steps from the thread that generates."""

Cancel = Callable[[], bool]
"""Callback, called between steps; True raises `Cancelled`."""


Stage = Literal["still", "draft", "refined"]
"""What frames show: the scene at rest; the scene as a draft or a hypothesis moves it; the output of a network."""


@dataclass(frozen=True, eq=False)
class ReadyFrames:
    """Some frames of a rollout that is not complete yet.

    Attributes:
        stage: what they show, always with the exact robot.
        start: index of the first in the rollout.
        frames: read-only. Those that are not final may be overwritten after the receiver returns.
        final: the rollout has exactly these frames; otherwise later ones replace them.
    """

    stage: Stage
    start: int
    frames: Frames
    final: bool


ReceiveFrames = Callable[[ReadyFrames], None]
"""Callback, called from the thread that generates."""


_CLOCK_TOLERANCE_S = 1e-6
"""Tolerance between the times of commands and frames, which messages round to nanoseconds."""


@dataclass(frozen=True, eq=False)
class CommandedMotion:
    """The robot and the commands behind the robot frames, for generators that simulate the motion.

    Attributes:
        robot: that executes the commands.
        commands: positions of all its actuated joints, in the order of `robot.joint_names`, with the plan's own points,
            velocities and timing (not resampled to the frames), on the clock of the frames; a single point is held.
    """

    robot: Robot
    commands: JointTrajectory

    def __post_init__(self) -> None:
        """Check that the commands are the robot's."""
        if not isinstance(self.robot, Robot) or not isinstance(self.commands, JointTrajectory):
            raise _refuse(
                f"the motion has a {type(self.robot).__name__} and a {type(self.commands).__name__}",
                "a Robot and its JointTrajectory",
            )
        if self.commands.names != self.robot.joint_names:
            raise _refuse(
                f"the commands are of {', '.join(self.commands.names)}"[:300],
                f"{', '.join(self.robot.joint_names)}, the joints of '{self.robot.name}'",
                "make them with CommandedMotion.of",
            )

    @classmethod
    def of(cls, robot: Robot, commands: JointTrajectory, start: NDArray[np.float64] | None = None) -> CommandedMotion:
        """Make the motion of a trajectory of some of the robot's joints, in any order.

        The other joints stay at `start` (J,), by default at home. Velocities and accelerations are kept; efforts are
        not, because they do not affect the motion.
        """
        if set(commands.names) <= {joint.name for joint in robot.joints}:
            positions = robot.positions(commands.names, commands.positions, fill=start)
        else:
            # The vendor's fingers: positions are converted, velocities are not, so the spline is sampled.
            commands = commands.dense() if commands.velocities is not None else commands
            return cls(robot, JointTrajectory(robot.joint_names, commands.times, commands.for_robot(robot)))
        tables = [_rates(robot, commands, table) for table in (commands.velocities, commands.accelerations)]
        return cls(robot, JointTrajectory(robot.joint_names, commands.times, positions, *tables))

    def require_frames(self, times: NDArray[np.float64]) -> None:
        """Require that the commands start at the first of the frames' times (T,) and cover the others."""
        clock = self.commands.times
        late = abs(float(clock[0] - times[0])) > _CLOCK_TOLERANCE_S
        if late or (len(clock) > 1 and clock[-1] < times[-1] - _CLOCK_TOLERANCE_S):
            raise _refuse(
                f"the commands last from {clock[0]:g} to {clock[-1]:g} s, the frames from {times[0]:g} to "
                f"{times[-1]:g} s",
                "commands that start at the first frame and cover all of them",
            )


def _rates(robot: Robot, commands: JointTrajectory, table: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    """Return (T, J) derivatives of the robot's joints, 0 for those not named, from (T, N); None without them."""
    if table is None:
        return None
    still = np.zeros(len(robot.joint_names))
    # Positions are linear in the values (mimic joints have an offset), so a difference converts derivatives.
    moved = robot.positions(commands.names, table, fill=still)
    return moved - robot.positions(commands.names, np.zeros_like(table), fill=still)


@dataclass(frozen=True, eq=False)
class GenerateRequest:
    """Input of a generator: one image, the exact robot over time, and measured depth.

    Attributes:
        image: (H, W, 3) uint8 RGB, rectified, with the robot in the pose of frame 0.
        robot: the exact robot in the same camera, with its shaded colours in `robot.rgb` or None.
        depth: (H, W) float32 measured z in metres at the same time, NaN = unknown; None = not measured.
        plan_hash: 64 hex digits, copied to the rollout; "" without a plan.
        seed: of all randomness.
        motion: the robot and its commands, for generators that simulate; others ignore it. None = not known.
    """

    image: NDArray[np.uint8]
    robot: PointmapSequence
    depth: NDArray[np.float32] | None = None
    plan_hash: str = ""
    seed: int = 0
    motion: CommandedMotion | None = None

    def __post_init__(self) -> None:
        """Check shapes, types and values; errors have the code GENERATOR_BAD_REQUEST."""
        if not isinstance(self.robot, PointmapSequence):
            raise _refuse(f"robot is {type(self.robot).__name__}", "a PointmapSequence")
        size = (self.camera.height, self.camera.width)
        _require_array(self.image, "image", np.uint8, (*size, 3))
        if self.depth is not None:
            _require_array(self.depth, "depth", np.float32, size)
            if np.isinf(self.depth).any() or (self.depth <= 0).any():
                raise _refuse("depth holds infinity, zero or negative metres", "positive metres, NaN where unknown")
        if self.robot.times is None:
            raise _refuse("the robot frames have no times", "strictly increasing seconds, one for each frame")
        try:
            require_times(self.robot.times)
            require_plan_hash(self.plan_hash)
            object.__setattr__(self, "seed", require_seed(self.seed))
        except KinemaError as error:
            raise _refuse(error.what, error.expected) from None
        if self.motion is not None:
            if not isinstance(self.motion, CommandedMotion):
                raise _refuse(f"motion is {type(self.motion).__name__}", "a CommandedMotion, or None")
            self.motion.require_frames(self.times)

    @property
    def camera(self) -> PinholeCamera:
        """The distortion-free camera of image, depth and robot frames, with its pose."""
        return self.robot.camera

    @property
    def times(self) -> NDArray[np.float64]:
        """(T,) float64 seconds, strictly increasing."""
        return require_times(self.robot.times)

    def __len__(self) -> int:
        """Number of frames."""
        return len(self.robot)


@runtime_checkable
class Generator(Protocol):
    """Interface of generators, which predict the scene's reaction to the robot's motion."""

    @property
    def name(self) -> str:
        """Name of the back end in logs and reports."""
        ...

    def generate(
        self, request: GenerateRequest, progress: ReportProgress | None = None, cancel: Cancel | None = None
    ) -> Rollout:
        """Generate the rollout of a request.

        Args:
            request: to predict.
            progress: called after every step.
            cancel: called between steps; if it returns True, `Cancelled` is raised within one step.
        """
        ...


@runtime_checkable
class StreamingGenerator(Generator, Protocol):
    """Generator that delivers frames as soon as they exist."""

    def stream(
        self,
        request: GenerateRequest,
        receive: ReceiveFrames | None,
        progress: ReportProgress | None = None,
        cancel: Cancel | None = None,
    ) -> Rollout:
        """Generate the same rollout as `generate`, and deliver its frames on the way.

        Args:
            request: to predict.
            receive: called with frames; None = deliver nothing. For every index, the last delivery is final.
            progress, cancel: as for `generate`.
        """
        ...


def stream_frames(
    generator: Generator,
    request: GenerateRequest,
    receive: ReceiveFrames | None,
    progress: ReportProgress | None = None,
    cancel: Cancel | None = None,
) -> Rollout:
    """Generate a rollout; deliver frames as soon as they exist, or all at the end by a generator that cannot stream."""
    if isinstance(generator, StreamingGenerator):
        return generator.stream(request, receive, progress, cancel)
    rollout = generator.generate(request, progress, cancel)
    deliver(receive, "refined", 0, rollout, final=True)
    return rollout


def deliver(receive: ReceiveFrames | None, stage: Stage, start: int, frames: Frames, *, final: bool) -> None:
    """Pass frames to a receiver, if there is one, as views that it cannot write to."""
    if receive is None:
        return
    rgb, xyz, mask = frames.rgb.view(), frames.xyz.view(), frames.robot_mask.view()
    for flags in (rgb.flags, xyz.flags, mask.flags):
        flags.writeable = False
    receive(ReadyFrames(stage, start, Frames(rgb, xyz, mask), final))


def raise_if_cancelled(cancel: Cancel | None, progress: Progress) -> None:
    """Raise `Cancelled` with the current progress if `cancel` returns True."""
    if cancel is not None and cancel():
        where = f"step {progress.step} of {progress.steps} of " if progress.steps else ""
        raise Cancelled(f"cancelled by the caller at {where}'{progress.phase}'")


def _require_array(array: Any, name: str, dtype: type, shape: tuple[int, ...]) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        found = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise _refuse(
            f"{name} is {found}",
            f"{np.dtype(dtype).name} of shape {shape}, the size of the robot frames",
            "rectify the image and render the robot with the same camera",
        )


def _refuse(what: str, expected: str, hint: str = "") -> GeneratorError:
    return GeneratorError(what, expected=expected, hint=hint, code=ErrorCode.GENERATOR_BAD_REQUEST)


# Hash of a request, with which a result names its inputs.

_THREADS = 4


def request_sha256(request: GenerateRequest) -> str:
    """Hash image, measured depth, camera, times, robot frames and commands, without the seed, to 64 hex digits.

    Of a robot frame the link ids and the z and colours of its robot pixels are hashed: for a pinhole camera pixel and
    z give the point, and a tenth of the 203 MB of 49 frames is fast to hash. The hashes of the frames are hashed in
    order, so they can be computed in parallel.
    """
    robot, camera = request.robot, request.camera
    no_colours = np.empty((0, 0, 3), np.uint8)

    def frame(t: int) -> bytes:
        ids = np.ascontiguousarray(robot.link_ids[t])
        rgb = no_colours if robot.rgb is None else np.ascontiguousarray(robot.rgb[t])
        depths, colours = np.empty(ids.size, np.float32), np.empty((ids.size if len(rgb) else 0, 3), np.uint8)
        count = pack_robot(np.ascontiguousarray(robot.xyz[t]), ids, rgb, depths, colours)
        digest = hashlib.sha256(ids.data)
        digest.update(depths[:count].data)
        digest.update(colours[:count].data)
        return digest.digest()

    whole = hashlib.sha256(b"kinema4d request 1\n")
    whole.update(f"{camera.width} {camera.height} {len(robot)} {robot.rgb is not None}\n".encode())
    for array in (camera.K, camera.base_T_camera, request.times):
        whole.update(np.ascontiguousarray(array, dtype="<f8").data)
    whole.update(np.ascontiguousarray(request.image).data)
    whole.update(b"no depth" if request.depth is None else np.ascontiguousarray(request.depth).data)
    with ThreadPoolExecutor(_THREADS) as pool:
        for digest in pool.map(frame, range(len(robot))):
            whole.update(digest)
    if request.motion is not None:
        # Appended, so that requests without commands keep the hash that they had before there were any.
        named = description_sha256(request.motion.robot), hash_trajectory(request.motion.commands)
        whole.update(f"motion {' '.join(named)}\n".encode())
    return whole.hexdigest()
