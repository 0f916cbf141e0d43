"""Rollout: predicted images and point clouds of the scene while the robot follows a plan; `Frames`: some of them.

>>> from kinema4d_ros.core.camera import PinholeCamera
>>> import numpy as np
>>> camera = PinholeCamera(4, 3, [[4, 0, 2], [0, 4, 1.5], [0, 0, 1]])
>>> rollout = Rollout(
...     rgb=np.zeros((2, 3, 4, 3), np.uint8),
...     xyz=np.full((2, 3, 4, 3), np.nan, np.float32),
...     robot_mask=np.zeros((2, 3, 4), bool),
...     camera=camera,
...     times=[0.0, 0.1],
...     provenance=Provenance("composite"),
... )
>>> len(rollout), len(rollout[1:]), rollout.duration_s, len(rollout.rollout_id)
(2, 1, 0.1, 16)
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CameraError, ErrorCode, RolloutError
from kinema4d_ros.core.outcomes import (
    Outcome,
    Patches,
    require_alternatives,
    require_basis,
    require_outcomes,
    require_unknowns,
)

__all__ = ["WARNING", "DepthBasis", "Frames", "Provenance", "Rollout", "new_rollout_id"]

WARNING = "warning"
"""Key of `Provenance.versions` for a warning about limited quality; reports repeat its text."""

DepthBasis = Literal["measured", "lifted", "plane", "unknown"]
"""Source of the points: a depth camera, a network estimate, the assumed table, or unknown."""

_MAX_SEED = 2**64 - 1


def new_rollout_id() -> str:
    """Return 16 random hex digits; two rollouts of the same inputs have different ids."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Provenance:
    """Origin of a rollout, sufficient to reproduce it.

    Attributes:
        generator: the back-end's name, e.g. "composite".
        preset: of the model; for "composite" the source of its scene, "depth" (measured) or "plane" (assumed);
            "" for a back-end without presets.
        checkpoint_sha256: 64 hex digits of the weights' hash; "" for a back-end without weights.
        input_sha256: 64 hex digits over image, depth, camera, robot frames and commands; "" when not computed.
        seed: of all randomness, 0 to 2^64 - 1.
        metric_residual_m: RMS error of the metric fit on the robot's own pixels, metres; 0 if the points are
            exact by construction.
        versions: of the components used, by name.
        depth: source of the scene's points.
    """

    generator: str
    preset: str = ""
    checkpoint_sha256: str = ""
    input_sha256: str = ""
    seed: int = 0
    metric_residual_m: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    depth: DepthBasis = "unknown"

    def __post_init__(self) -> None:
        """Check every field; replace the mapping by a private, read-only copy."""
        if not isinstance(self.generator, str) or not self.generator:
            raise RolloutError(f"the generator's name is {self.generator!r}", expected="a non-empty name")
        if not isinstance(self.preset, str):
            raise RolloutError(f"the preset is {self.preset!r}", expected="a name, or '' without one")
        if self.depth not in get_args(DepthBasis):
            raise RolloutError(
                f"the depth is {self.depth!r}"[:100], expected=f"one of {', '.join(get_args(DepthBasis))}"
            )
        _require_hex(self.checkpoint_sha256, "checkpoint_sha256", 64, may_be_empty=True)
        _require_hex(self.input_sha256, "input_sha256", 64, may_be_empty=True)
        object.__setattr__(self, "seed", require_seed(self.seed))
        if not (math.isfinite(self.metric_residual_m) and self.metric_residual_m >= 0):
            raise RolloutError(f"metric_residual_m is {self.metric_residual_m}", expected="metres, 0 or more")
        versions = dict(self.versions)
        if not all(isinstance(key, str) and isinstance(value, str) for key, value in versions.items()):
            raise RolloutError(f"versions are {versions!r}", expected="a mapping of names to text")
        object.__setattr__(self, "versions", MappingProxyType(versions))


@dataclass(frozen=True, eq=False)
class Frames:
    """Image and point per pixel of some frames; the one type for both from the generators to the message and the page.

    Construction checks shapes and types; the arrays are kept, not copied. `frames[2:5]` is a view, and
    `frames[2:5] = newer` replaces these frames in place.

    Attributes:
        rgb: (T, H, W, 3) uint8.
        xyz: (T, H, W, 3) float32, metres, camera optical frame; NaN in all three = no point.
        robot_mask: (T, H, W) bool, True = rendered robot (exact), False = predicted scene.
    """

    rgb: NDArray[np.uint8]
    xyz: NDArray[np.float32]
    robot_mask: NDArray[np.bool_]

    def __post_init__(self) -> None:
        """Check types and shapes; `check_points` checks every pixel."""
        shape = getattr(self.robot_mask, "shape", ())
        self._require_shape(shape if len(shape) == 3 else ("T", "H", "W"), "the same T, H and W for all")

    def _require_shape(self, shape: tuple[int | str, ...], why: str) -> None:
        _require_array(self.rgb, "rgb", np.uint8, (*shape, 3), why)
        _require_array(self.xyz, "xyz", np.float32, (*shape, 3), why)
        _require_array(self.robot_mask, "robot_mask", np.bool_, shape, why)

    @staticmethod
    def empty(frames: int, height: int, width: int) -> Frames:
        """Allocate frames to be written; their values are undefined."""
        shape = (frames, height, width)
        return Frames(np.empty((*shape, 3), np.uint8), np.empty((*shape, 3), np.float32), np.empty(shape, np.bool_))

    @property
    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_]]:
        """rgb, xyz and robot_mask, in this order, for `*frames.arrays`."""
        return self.rgb, self.xyz, self.robot_mask

    def __len__(self) -> int:
        """Number of frames."""
        return len(self.robot_mask)

    def __getitem__(self, part: slice) -> Frames:
        """Return some of the frames, as views."""
        return Frames(self.rgb[part], self.xyz[part], self.robot_mask[part])

    def __setitem__(self, part: slice, frames: Frames) -> None:
        """Write into some of the frames."""
        self.rgb[part], self.xyz[part], self.robot_mask[part] = frames.arrays

    def copy(self) -> Frames:
        """Return the frames in arrays of their own."""
        return Frames(self.rgb.copy(), self.xyz.copy(), self.robot_mask.copy())

    def check_points(self) -> None:
        """Raise RolloutError for points partly NaN, infinite, behind the camera, or missing under the robot mask."""
        for t in range(len(self)):
            # A sum is finite exactly when its terms are: float32 metres cannot overflow in float64.
            present = np.isfinite(self.xyz[t].sum(-1, dtype=np.float64))
            nothing = np.isnan(self.xyz[t]).all(-1)
            for wrong, what in (
                (~present & ~nothing, "is partly NaN or infinite"),
                (present & ~(self.xyz[t, ..., 2] > 0), "does not lie in front of the camera"),
                (self.robot_mask[t] & ~present, "is missing under the robot mask"),
            ):
                if wrong.any():
                    v, u = np.argwhere(wrong)[0]
                    raise RolloutError(
                        f"the point of row {v}, column {u} in frame {t} {what}: {self.xyz[t, v, u].tolist()}",
                        expected="finite metres with z > 0, or NaN in all three where there is no point",
                    )


@dataclass(frozen=True, eq=False)
class Rollout(Frames):
    """Predicted frames with their camera, times and origin.

    Construction checks shapes, types and values.

    Attributes:
        rgb, xyz, robot_mask: see `Frames`.
        camera: the distortion-free camera of that size, with its pose.
        times: (T,) float64, seconds, strictly increasing.
        provenance: its origin.
        rollout_id: 16 hex digits, unique.
        plan_hash: SHA-256 of the plan as 64 hex digits; "" without a plan.
        outcomes: what may happen, the most probable first; the rollout's own frames show the first. Empty = the
            generator states none. What their probabilities lack to 1 is not known.
        alternatives: frames of the outcomes after the first, as differences to the rollout's own; see `with_outcome`.
        basis: (T, H, W) uint8 of `PointBasis`, the source of every point of the rollout's own frames; None = not
            stated, see `Provenance.depth`.
        unknowns: why the generator cannot tell what happens and what would help, a sentence each; empty = it can.
    """

    camera: PinholeCamera
    times: NDArray[np.float64]
    provenance: Provenance
    rollout_id: str = field(default_factory=new_rollout_id)
    plan_hash: str = ""
    outcomes: tuple[Outcome, ...] = ()
    alternatives: tuple[Patches, ...] = ()
    basis: NDArray[np.uint8] | None = None
    unknowns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check everything except the points."""
        if not isinstance(self.camera, PinholeCamera):
            raise RolloutError(f"camera is {type(self.camera).__name__}", expected="a PinholeCamera")
        if self.camera.has_distortion:
            raise CameraError(
                f"the camera of a rollout has lens distortion {list(self.camera.distortion)}",
                expected="a pinhole",
                hint="use camera.rectified(), and camera.rectify(image) for its images",
                code=ErrorCode.CAMERA_BAD_DISTORTION,
            )
        object.__setattr__(self, "times", require_times(self.times))
        shape = (len(self.times), self.camera.height, self.camera.width)
        self._require_shape(shape, "to match times and camera")
        if not isinstance(self.provenance, Provenance):
            raise RolloutError(f"provenance is {type(self.provenance).__name__}", expected="a Provenance")
        _require_hex(self.rollout_id, "rollout_id", 16)
        require_plan_hash(self.plan_hash)
        object.__setattr__(self, "outcomes", require_outcomes(self.outcomes))
        object.__setattr__(self, "alternatives", require_alternatives(self.alternatives, self.outcomes, shape))
        if self.basis is not None:
            require_basis(self.basis, shape)
        object.__setattr__(self, "unknowns", require_unknowns(self.unknowns))

    @property
    def duration_s(self) -> float:
        """Seconds from the first frame to the last."""
        return float(self.times[-1] - self.times[0])

    def points_base(self, frame: int) -> NDArray[np.float32]:
        """Return the points of one frame: (H, W, 3) float32, metres, base frame, NaN = no point."""
        base_T_camera = self.camera.base_T_camera
        points: NDArray[np.float64] = self.xyz[frame] @ base_T_camera[:3, :3].T + base_T_camera[:3, 3]
        return points.astype(np.float32)

    def with_outcome(self, index: int) -> Rollout:
        """Return a rollout whose own frames show `outcomes[index]`, which is then its only one; 0 = this rollout.

        The frames are copies, under an id of their own.
        """
        if index == 0:
            return self
        if not 0 < index < len(self.outcomes):
            raise RolloutError(
                f"outcome {index} of {len(self.outcomes)} is asked for",
                expected="0 alone: the rollout states no others"
                if len(self.outcomes) < 2
                else f"0 to {len(self.outcomes) - 1}",
            )
        frames = self.copy()
        basis = None if self.basis is None else self.basis.copy()
        for t, patch in enumerate(self.alternatives[index - 1]):
            rgb, xyz, mask = frames.arrays
            patch.write(rgb[t], xyz[t], mask[t], None if basis is None else basis[t])
        return replace(
            self,
            rgb=frames.rgb,
            xyz=frames.xyz,
            robot_mask=frames.robot_mask,
            rollout_id=new_rollout_id(),
            outcomes=(self.outcomes[index],),
            alternatives=(),
            basis=basis,
        )

    def save(self, folder: str | Path) -> Path:
        """Write a folder that common viewers open and `load` reads back bit by bit; see `rollout_folder`."""
        from kinema4d_ros.io.rollout_folder import save_rollout

        return save_rollout(self, folder)

    @staticmethod
    def load(folder: str | Path) -> Rollout:
        """Load a folder written by `save`; raise an error if anything is missing, damaged or changed."""
        from kinema4d_ros.io.rollout_folder import load_rollout

        return load_rollout(folder)


def require_times(times: Any) -> NDArray[np.float64]:
    """Return a private, read-only (T,) float64 copy of strictly increasing seconds."""
    try:
        clock = np.array(times, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise RolloutError(f"times are not numbers: {error}", expected="(T,) seconds") from None
    if clock.ndim != 1 or clock.size == 0:
        raise RolloutError(f"times have shape {clock.shape}", expected="(T,) seconds with T >= 1")
    if not np.all(np.isfinite(clock)) or np.any(np.diff(clock) <= 0):
        raise RolloutError("times are not finite or do not increase", expected="strictly increasing seconds")
    clock.flags.writeable = False
    return clock


def require_seed(seed: Any) -> int:
    """Return the seed as a plain int from 0 to 2^64 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= int(seed) <= _MAX_SEED:
        raise RolloutError(f"the seed is {seed!r}", expected="a whole number from 0 to 2^64 - 1")
    return int(seed)


def require_plan_hash(plan_hash: Any) -> str:
    """Return the hash, 64 hex digits or ""."""
    return _require_hex(plan_hash, "plan_hash", 64, may_be_empty=True)


def _require_hex(text: Any, name: str, digits: int, *, may_be_empty: bool = False) -> str:
    if isinstance(text, str) and (re.fullmatch(f"[0-9a-f]{{{digits}}}", text) or (may_be_empty and not text)):
        return text
    raise RolloutError(
        f"{name} is {text!r}"[:200],
        expected=f"{digits} lower-case hex digits" + (" or ''" if may_be_empty else ""),
    )


def _require_array(array: Any, name: str, dtype: type, shape: tuple[int | str, ...], why: str) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        found = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        wanted = ", ".join(map(str, shape))
        raise RolloutError(f"{name} is {found}", expected=f"{np.dtype(dtype).name} of shape ({wanted}), {why}")
