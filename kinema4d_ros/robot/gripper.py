"""Gripper model: conversions between opening (0-1), width, joint position and vendor joints; finger geometry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import ErrorCode, RobotError

__all__ = ["Fingers", "Gripper", "VendorJoint"]

RANGE_TOLERANCE = 0.02
"""Fraction of the stroke by which an input may overshoot (encoder noise) and is clipped to the range."""

DISAGREEMENT_TOLERANCE = 0.02
"""Fraction of the stroke by which two vendor joints of one gripper may differ."""


LONGEST_FINGER_M = 1.0
"""Upper bound of finger sizes; a larger number is in another unit."""


@dataclass(frozen=True)
class Fingers:
    """Geometry of one finger; the other is its mirror image.

    Along the approach the finger extends from `length_m` before the grasp point to `tip_m` beyond it. All zero:
    the geometry is unknown and the pads are points.

    Attributes:
        pad_width_m: of the pad at the grasp point, across the closing direction.
        width_m: of the whole finger over its length, in the same direction; at least the pad's.
        thickness_m: of the finger behind its pad, along the closing direction.
        length_m: from the grasp point back against the approach.
        tip_m: from the grasp point to the finger tip; negative if the tip ends before it.
        grasp_point_m: between the pads, in the tool link's frame.
        closing_axis: the direction in which the leading finger opens, unit length, in the tool link's frame; None
            = derived from the joints.
        source: "description", or the shapes of the URDF that the sizes were derived from; "none" without any.
    """

    pad_width_m: float = 0.0
    width_m: float = 0.0
    thickness_m: float = 0.0
    length_m: float = 0.0
    tip_m: float = 0.0
    grasp_point_m: tuple[float, float, float] = (0.0, 0.0, 0.0)
    closing_axis: tuple[float, float, float] | None = None
    source: Literal["description", "collision", "visual", "none"] = "none"

    def __post_init__(self) -> None:
        """Reject invalid sizes and an axis without a direction; normalise the axis."""
        sizes = self.sizes_m
        if not np.all(np.isfinite([*sizes, *self.grasp_point_m])) or max(map(abs, sizes)) > LONGEST_FINGER_M:
            raise RobotError(
                f"fingers of {sizes} m with the grasp point {self.grasp_point_m}",
                expected=f"finite metres, no size above {LONGEST_FINGER_M:g}",
                hint="sizes are in metres",
            )
        if min(sizes[:4]) < 0 or self.pad_width_m > self.width_m or self.tip_m < -self.length_m:
            raise RobotError(
                f"fingers {self.width_m} m wide with pads of {self.pad_width_m} m, {self.thickness_m} m thick,"
                f" {self.length_m} m long, tips at {self.tip_m} m",
                expected="no negative size, pad_width_m <= width_m and tip_m >= -length_m",
            )
        if self.closing_axis is not None:
            length = float(np.linalg.norm(self.closing_axis))
            if not (np.isfinite(length) and length > 1e-6):
                raise RobotError(
                    f"the fingers close along {self.closing_axis}", expected="a direction of three numbers"
                )
            x, y, z = (float(v) / length for v in self.closing_axis)
            object.__setattr__(self, "closing_axis", (x, y, z))

    @property
    def sizes_m(self) -> tuple[float, float, float, float, float]:
        """Pad width, width, thickness, length and tip, as sent in messages."""
        return self.pad_width_m, self.width_m, self.thickness_m, self.length_m, self.tip_m


@dataclass(frozen=True)
class VendorJoint:
    """Joint in the vendor's data: `position of the leader = multiplier * vendor's + offset`.

    `joint` is the name of the same finger in the URDF.
    """

    name: str
    joint: str
    multiplier: float
    offset: float = 0.0


@dataclass(frozen=True)
class Gripper:
    """Gripper with one degree of freedom.

    Attributes:
        joint: the actuated joint; the other fingers mimic it.
        closed: its position when closed, radians or metres.
        open: its position when fully open.
        width_closed_m: distance between the finger pads when closed.
        width_open_m: distance between the finger pads when fully open.
        vendor: the joints used in the vendor's data instead, with their signs.
        fingers: geometry from the description; None = `kinematics.gripping.finger_shape` derives it from the URDF.

    All maps are linear. Inputs may overshoot the range by `RANGE_TOLERANCE` of the stroke and are
    clipped; larger overshoots are an error. Scalars and arrays of any shape are accepted.

    >>> gripper = Gripper("finger", closed=0.0, open=0.05, width_closed_m=0.0, width_open_m=0.1)
    >>> float(gripper.width_m(0.5)), float(gripper.position(0.5))
    (0.05, 0.025)
    """

    joint: str
    closed: float
    open: float
    width_closed_m: float
    width_open_m: float
    vendor: tuple[VendorJoint, ...] = ()
    fingers: Fingers | None = None

    def __post_init__(self) -> None:
        """Reject a gripper that cannot move or whose numbers are not finite."""
        numbers = (self.closed, self.open, self.width_closed_m, self.width_open_m)
        if not np.all(np.isfinite(numbers)):
            raise RobotError(f"gripper '{self.joint}' has numbers {numbers}", expected="finite metres or radians")
        if self.closed == self.open or not 0.0 <= self.width_closed_m < self.width_open_m:
            raise RobotError(
                f"gripper '{self.joint}' goes from {self.closed} to {self.open}, "
                f"{self.width_closed_m} m to {self.width_open_m} m wide",
                expected="two different joint positions and 0 <= width_closed_m < width_open_m",
            )

    def position(self, normalised: ArrayLike) -> NDArray[np.float64]:
        """Return the joint position of a normalised opening: 0 = closed, 1 = open."""
        s = self._check(normalised, 0.0, 1.0, "normalised opening")
        return self.closed + s * (self.open - self.closed)

    def normalised(self, position: ArrayLike) -> NDArray[np.float64]:
        """Return the normalised opening of a joint position: 0 = closed, 1 = open."""
        q = self._check(position, self.closed, self.open, f"position of '{self.joint}'")
        return (q - self.closed) / (self.open - self.closed)

    def width_m(self, normalised: ArrayLike) -> NDArray[np.float64]:
        """Return the distance between the finger pads in metres of a normalised opening."""
        s = self._check(normalised, 0.0, 1.0, "normalised opening")
        return self.width_closed_m + s * (self.width_open_m - self.width_closed_m)

    def normalised_from_width(self, width_m: ArrayLike) -> NDArray[np.float64]:
        """Return the normalised opening of a distance between the finger pads in metres."""
        w = self._check(width_m, self.width_closed_m, self.width_open_m, "opening width in metres")
        return (w - self.width_closed_m) / (self.width_open_m - self.width_closed_m)

    def position_from_width(self, width_m: ArrayLike) -> NDArray[np.float64]:
        """Return the joint position of a distance between the finger pads in metres."""
        return self.position(self.normalised_from_width(width_m))

    def width_from_position(self, position: ArrayLike) -> NDArray[np.float64]:
        """Return the distance between the finger pads in metres of a joint position."""
        return self.width_m(self.normalised(position))

    def to_vendor(self, position: ArrayLike) -> dict[str, NDArray[np.float64]]:
        """Return the vendor's joint values, by vendor joint name, of a position of `joint`."""
        self._require_vendor()
        q = self._check(position, self.closed, self.open, f"position of '{self.joint}'")
        return {v.name: (q - v.offset) / v.multiplier for v in self.vendor}

    def from_vendor(self, names: Sequence[str], values: ArrayLike) -> NDArray[np.float64]:
        """Return (T,) positions of `joint` from (T, N) values of the vendor joints `names`.

        Several fingers must agree to `DISAGREEMENT_TOLERANCE` of the stroke; their mean is used.
        """
        self._require_vendor()
        known = {v.name: v for v in self.vendor}
        table = np.asarray(values, dtype=np.float64)
        if table.ndim == 1:
            table = table[None]
        if table.ndim != 2 or table.shape[1] != len(names) or not names:
            raise RobotError(
                f"vendor values have shape {table.shape} for {len(names)} names",
                expected=f"(T, N) with one column per name, names from {', '.join(known)}",
            )
        columns = []
        for name, column in zip(names, table.T, strict=True):
            if name not in known:
                raise RobotError(
                    f"vendor joint '{name}' is not of gripper '{self.joint}'",
                    expected=f"some of {', '.join(known)}",
                    code=ErrorCode.UNKNOWN_JOINT,
                )
            vendor = known[name]
            converted = vendor.multiplier * column + vendor.offset
            columns.append(self._check(converted, self.closed, self.open, f"vendor joint '{name}', converted,"))
        fingers = np.stack(columns)
        gap = float(np.max(np.ptp(fingers, axis=0))) if fingers.shape[1] else 0.0
        if gap > DISAGREEMENT_TOLERANCE * abs(self.open - self.closed):
            raise RobotError(
                f"vendor joints {', '.join(names)} differ by {gap:.6g}",
                expected=f"fingers within {DISAGREEMENT_TOLERANCE:.0%} of the stroke of each other",
                hint="check the signs: this data may follow another convention",
            )
        mean: NDArray[np.float64] = fingers.mean(axis=0)
        return mean

    def _require_vendor(self) -> None:
        if not self.vendor:
            raise RobotError(
                f"gripper '{self.joint}' has no vendor convention",
                expected="'vendor' entries in the robot's .robot.yaml",
                code=ErrorCode.NO_GRIPPER,
            )

    @staticmethod
    def _check(value: ArrayLike, start: float, end: float, what: str) -> NDArray[np.float64]:
        array = np.asarray(value, dtype=np.float64)
        low, high = min(start, end), max(start, end)
        slack = RANGE_TOLERANCE * (high - low)
        bad = ~((array >= low - slack) & (array <= high + slack))  # also rejects NaN
        if np.any(bad):
            raise RobotError(
                f"{what} is {float(array[bad].flat[0]):.6g}",
                expected=f"[{low:g}, {high:g}], with {RANGE_TOLERANCE:.0%} of the stroke tolerated",
                hint="check the convention: 0 = closed, 1 = open; metres; or the vendor's negative metres",
                code=ErrorCode.TRAJECTORY_OUT_OF_LIMITS,
            )
        return np.clip(array, low, high)
