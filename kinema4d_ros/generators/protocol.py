"""What every generator is given and gives back: one request, progress on the way, one rollout.

A generator predicts what the world does while the exact robot moves. It reports progress, stops within
one step when asked to, and never changes the robot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import Cancelled, ErrorCode, GeneratorError, KinemaError
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.rollout import Rollout, require_plan_hash, require_seed, require_times
from kinema4d_ros.generators._kernels import pack_depths

__all__ = [
    "Cancel",
    "Cancelled",
    "GenerateRequest",
    "Generator",
    "Progress",
    "ReportProgress",
    "raise_if_cancelled",
    "request_sha256",
]


@dataclass(frozen=True)
class Progress:
    """Where a generation stands: `step` of `steps` in `phase` are done; 0 of 0 when unknown."""

    phase: str
    step: int = 0
    steps: int = 0


ReportProgress = Callable[[Progress], None]
"""Called between steps, from the thread that generates."""

Cancel = Callable[[], bool]
"""Asked between steps; True ends the work with `Cancelled`."""


@dataclass(frozen=True, eq=False)
class GenerateRequest:
    """One image, the exact robot over time, and what is known about the scene.

    Attributes:
        image: (H, W, 3) uint8 RGB, rectified: what the camera saw when the robot was where frame 0 has it.
        robot: the exact robot in the same camera, with its shaded colours in `robot.rgb` or None.
        depth: (H, W) float32 measured z in metres of the same moment, NaN = none; or None without a measurement.
        plan_hash: 64 hex digits, carried through to the rollout; "" when there is no plan.
        seed: of all randomness.
    """

    image: NDArray[np.uint8]
    robot: PointmapSequence
    depth: NDArray[np.float32] | None = None
    plan_hash: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        """Check shapes, types and numbers; everything wrong is a GENERATOR_BAD_REQUEST."""
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
    """Predicts the world's reaction to the robot's motion."""

    @property
    def name(self) -> str:
        """The back-end's name, for logs and reports."""
        ...

    def generate(
        self, request: GenerateRequest, progress: ReportProgress | None = None, cancel: Cancel | None = None
    ) -> Rollout:
        """The rollout of a request.

        Args:
            request: what to predict.
            progress: told after every step.
            cancel: asked between steps; when it says True, `Cancelled` is raised within one step.
        """
        ...


def raise_if_cancelled(cancel: Cancel | None, progress: Progress) -> None:
    """Raise `Cancelled`, saying how far the work had come, if the caller wants it to end."""
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


# One hash for everything a generator was given, so that a result can name its inputs.

_THREADS = 4


def request_sha256(request: GenerateRequest) -> str:
    """64 hex digits over image, measured depth, camera, times and robot frames; the seed is not part of it.

    A robot frame counts with its link ids, the z of its robot pixels and its colours there: for a pinhole,
    pixel and z give the point, and hashing a tenth of the 203 MB of 49 frames is what keeps this fast. The
    frames' own hashes are hashed in order, so they can be computed side by side.
    """
    robot, camera = request.robot, request.camera

    def frame(t: int) -> bytes:
        ids = np.ascontiguousarray(robot.link_ids[t])
        depths = np.empty(ids.size, np.float32)
        count = pack_depths(np.ascontiguousarray(robot.xyz[t]), ids, depths)
        digest = hashlib.sha256(ids.data)
        digest.update(depths[:count].data)
        if robot.rgb is not None:
            digest.update(robot.rgb[t][ids != 0].data)
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
    return whole.hexdigest()
