"""Outcomes of a rollout: what may happen, how probable it is, and the frames of every outcome.

A rollout's own frames show its most probable outcome. Another outcome differs in few pixels (an object that stays
instead of being lifted), so only these are kept: one `FramePatch` for each frame.

>>> lifted = Outcome(0.83, "lifted", ((1.2, "the fingers touch object_1"),))
>>> lifted.probability, lifted.events
(0.83, ((1.2, 'the fingers touch object_1'),))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core._kernels import differing_pixels
from kinema4d_ros.core.errors import RolloutError
from kinema4d_ros.core.pointmap import map_frames

if TYPE_CHECKING:
    from kinema4d_ros.core.rollout import Frames

__all__ = [
    "MAX_EVENTS",
    "MAX_LETTERS",
    "MAX_OBJECTS",
    "MAX_OUTCOMES",
    "MAX_UNKNOWNS",
    "FramePatch",
    "ObjectMotion",
    "Outcome",
    "Patches",
    "PointBasis",
    "outcome_lines",
    "patches_between",
    "require_alternatives",
    "require_basis",
    "require_outcomes",
    "require_unknowns",
]

MAX_OUTCOMES, MAX_EVENTS, MAX_OBJECTS, MAX_UNKNOWNS, MAX_LETTERS = 8, 64, 256, 16, 500
"""Limits of a rollout: outcomes, events and objects of each, unknowns, and letters of a label, a name or a sentence."""

_SUM_TOLERANCE = 1e-6


class PointBasis(IntEnum):
    """Source of a pixel's point; the values of `Rollout.basis`."""

    UNKNOWN = 0
    """Not stated, or no point."""
    MEASURED = 1
    """A depth camera, at this pixel."""
    FITTED = 2
    """The surface of a shape that was fitted to the image."""
    PLANE = 3
    """The assumed table."""
    ROBOT = 4
    """The rendered robot: exact."""
    LIFTED = 5
    """A network's estimate of the image's depth."""
    GENERATED = 6
    """A network's prediction."""


@dataclass(frozen=True)
class ObjectMotion:
    """How one object moves in an outcome.

    Attributes:
        name: of the object, as in the outcome's label.
        start, end: its position in the first and the last frame, metres, base frame.
        displacement_m: largest distance from its start.
        first_motion_s: seconds on the rollout's clock at which it leaves its start; None = it stays.
    """

    name: str
    start: tuple[float, float, float]
    end: tuple[float, float, float]
    displacement_m: float
    first_motion_s: float | None = None

    def __post_init__(self) -> None:
        """Check every field; keep plain types."""
        _require_text(self.name, "the name of an object")
        for name in ("start", "end"):
            values = tuple(_number(value, f"the {name} of '{self.name}'") for value in getattr(self, name))
            if len(values) != 3:
                raise RolloutError(f"the {name} of '{self.name}' is {values}"[:200], expected="x, y and z in metres")
            object.__setattr__(self, name, values)
        moved = _number(self.displacement_m, f"the displacement of '{self.name}'")
        if moved < 0:
            raise RolloutError(f"the displacement of '{self.name}' is {moved}", expected="metres, 0 or more")
        object.__setattr__(self, "displacement_m", moved)
        if self.first_motion_s is not None:
            object.__setattr__(self, "first_motion_s", _number(self.first_motion_s, "the time of a first motion"))


@dataclass(frozen=True)
class Outcome:
    """One of the things that may happen.

    Attributes:
        probability: 0 to 1.
        label: what happens, in plain words: "lifted", "slips out of the gripper".
        events: (time in seconds on the rollout's clock, text), in order of time.
        objects: the motion of every object of the scene; None = the generator does not state it.
    """

    probability: float
    label: str
    events: tuple[tuple[float, str], ...] = ()
    objects: tuple[ObjectMotion, ...] | None = None

    def __post_init__(self) -> None:
        """Check every field; keep plain types."""
        probability = _number(self.probability, "the probability of an outcome")
        if not 0 <= probability <= 1:
            raise RolloutError(f"the probability of an outcome is {probability}", expected="0 to 1")
        _require_text(self.label, "the label of an outcome")
        try:
            events = tuple((_number(moment, "the time of an event"), text) for moment, text in self.events)
        except (TypeError, ValueError):
            raise RolloutError(
                f"the events of an outcome are {self.events!r}"[:200], expected="pairs of seconds and text"
            ) from None
        if len(events) > MAX_EVENTS:
            raise RolloutError(f"an outcome has {len(events)} events", expected=f"at most {MAX_EVENTS}")
        for _, text in events:
            _require_text(text, "the text of an event")
        if any(after[0] < before[0] for before, after in pairwise(events)):
            raise RolloutError("the events of an outcome are not in order", expected="times that do not decrease")
        object.__setattr__(self, "probability", probability)
        object.__setattr__(self, "events", events)
        if self.objects is not None:
            objects = tuple(self.objects)
            if len(objects) > MAX_OBJECTS or not all(isinstance(one, ObjectMotion) for one in objects):
                raise RolloutError(
                    f"an outcome has {len(objects)} objects: {objects!r}"[:200],
                    expected=f"at most {MAX_OBJECTS} of ObjectMotion, or None",
                )
            object.__setattr__(self, "objects", objects)


@dataclass(frozen=True, eq=False)
class FramePatch:
    """The pixels of one frame in which an outcome differs from the rollout's own frame.

    Attributes:
        index: (N,) uint32, strictly increasing: row * width + column.
        rgb: (N, 3) uint8.
        xyz: (N, 3) float32, metres, camera optical frame; NaN in all three = no point.
        robot_mask: (N,) bool, True = rendered robot; None = as in the rollout's own frame.
        basis: (N,) uint8 of `PointBasis`; None = not stated.
    """

    index: NDArray[np.uint32]
    rgb: NDArray[np.uint8]
    xyz: NDArray[np.float32]
    robot_mask: NDArray[np.bool_] | None = None
    basis: NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        """Check types, shapes and the order of the pixels."""
        count = len(self.index) if isinstance(self.index, np.ndarray) and self.index.ndim == 1 else -1
        arrays: list[tuple[str, Any, type, tuple[int, ...]]] = [
            ("index", self.index, np.uint32, (count,)),
            ("rgb", self.rgb, np.uint8, (count, 3)),
            ("xyz", self.xyz, np.float32, (count, 3)),
        ]
        if self.robot_mask is not None:
            arrays.append(("robot_mask", self.robot_mask, np.bool_, (count,)))
        if self.basis is not None:
            arrays.append(("basis", self.basis, np.uint8, (count,)))
        for name, array, dtype, shape in arrays:
            if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
                found = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array)
                wanted = "N" if count < 0 else str(count)
                shown = f"({wanted}, 3)" if len(shape) == 2 else f"({wanted},)"
                raise RolloutError(f"{name} of a patch is {found}", expected=f"{np.dtype(dtype).name} of shape {shown}")
        if count > 1 and not np.all(self.index[1:] > self.index[:-1]):
            raise RolloutError("the pixels of a patch are not in order", expected="strictly increasing indices")
        if self.basis is not None:
            require_basis(self.basis, self.basis.shape)

    def __len__(self) -> int:
        """Number of pixels."""
        return len(self.index)

    def write(
        self,
        rgb: NDArray[np.uint8],
        xyz: NDArray[np.float32],
        robot_mask: NDArray[np.bool_] | None = None,
        basis: NDArray[np.uint8] | None = None,
    ) -> None:
        """Write the pixels into the arrays of the rollout's own frame, contiguous: (H, W, 3) and (H, W)."""
        rgb.reshape(-1, 3)[self.index] = self.rgb
        xyz.reshape(-1, 3)[self.index] = self.xyz
        if robot_mask is not None and self.robot_mask is not None:
            robot_mask.reshape(-1)[self.index] = self.robot_mask
        if basis is not None:
            basis.reshape(-1)[self.index] = PointBasis.UNKNOWN if self.basis is None else self.basis


Patches = tuple[FramePatch, ...]
"""One outcome's frames: a patch for each frame of the rollout."""


def patches_between(
    main: Frames,
    other: Frames,
    main_basis: NDArray[np.uint8] | None = None,
    other_basis: NDArray[np.uint8] | None = None,
) -> Patches:
    """Return the pixels in which `other` differs from `main`, bit by bit; frames of the same shape.

    `main_basis` and `other_basis` (T, H, W) uint8 are given both or not at all.
    """
    if main.robot_mask.shape != other.robot_mask.shape:
        raise RolloutError(
            f"frames of shape {other.robot_mask.shape} are compared with {main.robot_mask.shape}", expected="equal ones"
        )

    def patch(t: int) -> FramePatch:
        # Bits, because NaN differs from itself.
        ours, theirs = (
            (
                np.ascontiguousarray(frames.rgb[t]).reshape(-1, 3),
                np.ascontiguousarray(frames.xyz[t]).view(np.uint32).reshape(-1, 3),
                np.ascontiguousarray(frames.robot_mask[t]).reshape(-1),
            )
            for frames in (main, other)
        )
        found = np.empty(len(ours[2]), np.uint32)
        index = found[: differing_pixels(*ours, *theirs, found)].copy()
        basis = None
        if main_basis is not None and other_basis is not None:
            source = other_basis[t].reshape(-1)
            elsewhere = np.flatnonzero(main_basis[t].reshape(-1) != source).astype(np.uint32)
            index = np.union1d(index, elsewhere)
            basis = source[index]
        rgb, xyz, mask = theirs
        return FramePatch(index, rgb[index], xyz[index].view(np.float32), mask[index], basis)

    return tuple(map_frames(patch, range(len(main))))


def outcome_lines(outcomes: Sequence[Any]) -> list[str]:
    """Format each outcome, or its message, as in "83 % lifted"; what their probabilities lack to 1 comes last."""
    lines = [f"{100 * one.probability:.0f} % {one.label}" for one in outcomes]
    rest = 1.0 - sum(one.probability for one in outcomes)
    if lines and rest >= 0.005:
        lines.append(f"{100 * rest:.0f} % not known")
    return lines


def require_outcomes(outcomes: Any) -> tuple[Outcome, ...]:
    """Return the outcomes as a tuple: the most probable first, probabilities with a sum of at most 1."""
    found = tuple(outcomes)
    if not all(isinstance(one, Outcome) for one in found):
        raise RolloutError(f"the outcomes are {found!r}"[:200], expected="a sequence of Outcome")
    if len(found) > MAX_OUTCOMES:
        raise RolloutError(f"the rollout has {len(found)} outcomes", expected=f"at most {MAX_OUTCOMES}")
    shares = [one.probability for one in found]
    if sum(shares) > 1 + _SUM_TOLERANCE:
        raise RolloutError(f"the probabilities of the outcomes are {shares}", expected="a sum of at most 1")
    if any(after > before for before, after in pairwise(shares)):
        raise RolloutError(f"the probabilities of the outcomes are {shares}", expected="the most probable one first")
    return found


def require_alternatives(
    alternatives: Any, outcomes: Sequence[Outcome], shape: tuple[int, int, int]
) -> tuple[Patches, ...]:
    """Return the patches of every outcome but the first, checked against frames of shape (T, H, W)."""
    found = tuple(tuple(patches) for patches in alternatives)
    if len(found) != max(0, len(outcomes) - 1):
        raise RolloutError(
            f"the rollout has frames of {len(found)} alternatives for {len(outcomes)} outcomes",
            expected="frames for every outcome but the first, which its own frames show",
        )
    frames, height, width = shape
    for number, patches in enumerate(found, 1):
        if len(patches) != frames or not all(isinstance(patch, FramePatch) for patch in patches):
            raise RolloutError(
                f"outcome {number} has {len(patches)} patches", expected=f"{frames}: a FramePatch for each frame"
            )
        for t, patch in enumerate(patches):
            if len(patch) and int(patch.index[-1]) >= height * width:
                raise RolloutError(
                    f"the patch of outcome {number} in frame {t} has pixel {int(patch.index[-1])}",
                    expected=f"pixels below {height * width}, the size of a frame",
                )
    return found


def require_basis(basis: Any, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an array uint8 of this shape whose values are all a `PointBasis`."""
    if not isinstance(basis, np.ndarray) or basis.dtype != np.uint8 or basis.shape != shape:
        found = f"{basis.dtype} of shape {basis.shape}" if isinstance(basis, np.ndarray) else type(basis).__name__
        raise RolloutError(f"basis is {found}", expected=f"uint8 of shape {shape}")
    if basis.size and int(basis.max()) > max(PointBasis):
        raise RolloutError(f"basis holds the value {int(basis.max())}", expected=f"0 to {max(PointBasis):d}")
    return basis


def require_unknowns(unknowns: Any) -> tuple[str, ...]:
    """Return the sentences as a tuple."""
    found = tuple(unknowns) if not isinstance(unknowns, str) else (unknowns, None)
    if len(found) > MAX_UNKNOWNS or not all(isinstance(one, str) for one in found):
        raise RolloutError(f"unknowns are {unknowns!r}"[:200], expected=f"at most {MAX_UNKNOWNS} sentences")
    for text in found:
        _require_text(text, "an unknown")
    return found


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise RolloutError(f"{name} is {value!r}"[:200], expected="a number")
    if not math.isfinite(value):
        raise RolloutError(f"{name} is {value}", expected="a finite number")
    return float(value)


def _require_text(text: Any, name: str) -> None:
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_LETTERS:
        raise RolloutError(f"{name} is {text!r}"[:200], expected=f"1 to {MAX_LETTERS} letters")
