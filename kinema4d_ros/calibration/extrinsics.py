"""Extrinsics YAML: camera pose with method, date, residuals and covariance; checked access to YAML fields."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import CalibrationError, ErrorCode
from kinema4d_ros.core.transforms import from_quaternion, make, require_rigid, to_quaternion
from kinema4d_ros.io.files import read_yaml, reading, write_yaml

__all__ = ["Extrinsics", "Fields", "Residuals", "read_extrinsics", "write_extrinsics"]


class Fields:
    """Mapping read from `source` with typed getters that raise CalibrationError on a missing or wrong value."""

    def __init__(self, document: Mapping[str, Any], source: str) -> None:
        self._document = document
        self._source = source

    def __contains__(self, key: str) -> bool:
        return key in self._document

    def refuse(self, key: str, expected: str, hint: str = "") -> CalibrationError:
        """Build the error for a key whose value is missing or wrong."""
        if key not in self._document:
            names = ", ".join(map(str, self._document)) or "nothing"
            return CalibrationError(f"{self._source} has no '{key}', only {names}", expected=expected, hint=hint)
        value = repr(self._document[key])
        shown = value if len(value) < 200 else value[:200] + "..."
        return CalibrationError(f"'{key}' of {self._source} is {shown}", expected=expected, hint=hint)

    def only(self, known: Iterable[str]) -> None:
        """Reject unknown keys, which are usually misspelt."""
        allowed = list(known)
        for key in self._document:
            if key not in allowed:
                raise self.refuse(key, f"only the keys {', '.join(allowed)}", "check the spelling")

    def section(self, key: str) -> Fields:
        """Get a nested mapping."""
        value = self._document.get(key)
        if not isinstance(value, Mapping):
            raise self.refuse(key, "a mapping")
        return Fields(value, f"'{key}' of {self._source}")

    def text(self, key: str, default: str | None = None) -> str:
        """Get a string."""
        value = self._document.get(key, default)
        if not isinstance(value, str):
            raise self.refuse(key, "text")
        return value

    def integer(self, key: str) -> int:
        """Get an integer."""
        value = self._document.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(key, "an integer")
        return value

    def number(self, key: str) -> float:
        """Get a finite number."""
        number = _number(self._document.get(key))
        if number is None:
            raise self.refuse(key, "a finite number")
        return number

    def numbers(self, key: str, count: int | None = None) -> NDArray[np.float64]:
        """Get (N,) finite numbers from a list, or from a list of rows in row-major order."""
        value = self._document.get(key)
        expected = f"{'a list of' if count is None else count} finite numbers"
        if not isinstance(value, list):
            raise self.refuse(key, expected)
        flat = [_number(item) for row in value for item in (row if isinstance(row, list) else [row])]
        found = [number for number in flat if number is not None]
        if len(found) != len(flat) or (count is not None and len(flat) != count):
            raise self.refuse(key, expected)
        return np.array(found, dtype=np.float64)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    # YAML 1.1 parses 1e-05, which C++ writers produce, as a string.
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if np.isfinite(number) else None


_KEYS = (
    "parent_frame",
    "child_frame",
    "translation_m",
    "rotation_xyzw",
    "rotation_matrix",
    "method",
    "date",
    "residuals",
    "covariance",
    "degrees_of_freedom",
    "notes",
)
_MAX_DISTANCE_M = 100.0


@dataclass(frozen=True)
class Residuals:
    """Residuals of a calibration on its own data; None = not measured.

    Attributes:
        px: root mean square reprojection error, pixels.
        mm: root mean square position error, millimetres.
        mask_iou: overlap of the rendered and the observed robot, 0 to 1.
        poses: number of robot poses used.
        spread_deg: largest angle between two of them, degrees.
        spread_mm: largest distance between two of them, millimetres.
    """

    px: float | None = None
    mm: float | None = None
    mask_iou: float | None = None
    poses: int | None = None
    spread_deg: float | None = None
    spread_mm: float | None = None


@dataclass(frozen=True, eq=False)
class Extrinsics:
    """Pose of a camera's optical frame.

    Attributes:
        parent_frame: the robot's base frame.
        child_frame: the camera's optical frame (x right, y down, z forward).
        parent_T_child: (4, 4) float64, metres.
        method, notes: free text.
        date: ISO 8601, or "".
        residuals: fit quality.
        covariance: (6, 6) float64 of a small change of the pose, as defined in `pose_estimate`; None = unknown.
        degrees_of_freedom: of the covariance estimate; infinite if unknown.
    """

    parent_frame: str
    child_frame: str
    parent_T_child: NDArray[np.float64]
    method: str = ""
    date: str = ""
    residuals: Residuals = field(default_factory=Residuals)
    notes: str = ""
    covariance: NDArray[np.float64] | None = None
    degrees_of_freedom: float = float("inf")

    def __post_init__(self) -> None:
        """Reject unnamed frames and invalid poses."""
        for what, name in (("parent_frame", self.parent_frame), ("child_frame", self.child_frame)):
            if not name or name != name.strip():
                raise CalibrationError(
                    f"{what} of the extrinsics is {name!r}",
                    expected="a frame name, such as base_link or camera_optical_frame",
                    code=ErrorCode.CALIBRATION_FRAME_MISMATCH,
                )
        if self.parent_frame == self.child_frame:
            raise CalibrationError(
                f"parent_frame and child_frame of the extrinsics are both '{self.parent_frame}'",
                expected="the robot's base and the camera's optical frame",
                code=ErrorCode.CALIBRATION_FRAME_MISMATCH,
            )
        pose = require_rigid(self.parent_T_child, f"{self.parent_frame}_T_{self.child_frame}")
        distance = float(np.linalg.norm(pose[:3, 3]))
        if distance > _MAX_DISTANCE_M:
            raise CalibrationError(
                f"the camera is {distance:.0f} m away from {self.parent_frame}",
                expected=f"at most {_MAX_DISTANCE_M:.0f} m",
                hint="check that the translation is in metres, not millimetres",
            )
        object.__setattr__(self, "parent_T_child", pose)
        if self.covariance is not None:
            object.__setattr__(self, "covariance", _require_covariance(self.covariance))
        if not self.degrees_of_freedom > 0:
            raise CalibrationError(f"degrees_of_freedom is {self.degrees_of_freedom}", expected="more than 0")

    @staticmethod
    def from_document(document: Mapping[str, Any], source: str) -> Extrinsics:
        """Read the mapping of a YAML file; `source` names it in errors."""
        fields = Fields(document, source)
        fields.only(_KEYS)
        for key in ("parent_frame", "child_frame"):
            if key not in fields:
                error = fields.refuse(key, "a frame name")
                raise CalibrationError(error.what, expected=error.expected, code=ErrorCode.CALIBRATION_FRAME_MISMATCH)
        return Extrinsics(
            parent_frame=fields.text("parent_frame"),
            child_frame=fields.text("child_frame"),
            parent_T_child=make(_rotation(fields, source), fields.numbers("translation_m", 3)),
            method=fields.text("method", ""),
            date=_date(fields, document),
            residuals=_residuals(fields),
            notes=fields.text("notes", ""),
            covariance=fields.numbers("covariance", 36).reshape(6, 6) if "covariance" in fields else None,
            degrees_of_freedom=(
                fields.number("degrees_of_freedom") if "degrees_of_freedom" in fields else float("inf")
            ),
        )

    def document(self) -> dict[str, Any]:
        """Return the mapping to write."""
        measured = {key: value for key, value in asdict(self.residuals).items() if value is not None}
        optional: dict[str, Any] = {"method": self.method, "date": self.date, "residuals": measured}
        if self.covariance is not None:
            optional["covariance"] = self.covariance.tolist()
            if np.isfinite(self.degrees_of_freedom):
                optional["degrees_of_freedom"] = float(self.degrees_of_freedom)
        optional["notes"] = self.notes
        return {
            "parent_frame": self.parent_frame,
            "child_frame": self.child_frame,
            "translation_m": self.parent_T_child[:3, 3].tolist(),
            "rotation_xyzw": to_quaternion(self.parent_T_child).tolist(),
            **{key: value for key, value in optional.items() if value},
        }


def read_extrinsics(path: str | Path) -> Extrinsics:
    """Read an extrinsics YAML."""
    with reading(path, "an extrinsics file", error=CalibrationError):
        return Extrinsics.from_document(read_yaml(path), str(path))


def write_extrinsics(path: str | Path, extrinsics: Extrinsics) -> None:
    """Write an extrinsics YAML."""
    write_yaml(path, extrinsics.document())


def unit_quaternion(xyzw: NDArray[np.float64], source: str) -> NDArray[np.float64]:
    """Convert a unit quaternion to a rotation (3, 3).

    Other lengths are rejected, not normalised: they are usually Euler angles or rotation vectors.
    """
    length = float(np.linalg.norm(xyzw))
    if abs(length - 1.0) > 1e-3:
        raise CalibrationError(
            f"the rotation {xyzw.tolist()} of {source} has length {length:.4g}",
            expected="a unit quaternion in the order x, y, z, w",
            hint="convert Euler angles and rotation vectors first",
            code=ErrorCode.NOT_A_ROTATION,
        )
    return from_quaternion(xyzw)[:3, :3]


def _require_covariance(value: NDArray[np.float64]) -> NDArray[np.float64]:
    """Check that a covariance is (6, 6), symmetric and positive semidefinite; return it exactly symmetric."""
    C = np.asarray(value, dtype=np.float64)
    if C.shape != (6, 6) or not np.isfinite(C).all():
        raise CalibrationError(f"the covariance has shape {C.shape}", expected="6 x 6 finite numbers")
    largest = float(np.abs(C).max())
    if not np.allclose(C, C.T, atol=1e-6 * largest) or float(np.linalg.eigvalsh(C)[0]) < -1e-6 * largest:
        raise CalibrationError(
            "the covariance is not symmetric or has negative variances",
            expected="a symmetric, positive semidefinite 6 x 6 matrix, m and rad squared",
        )
    return np.asarray((C + C.T) / 2)


def _rotation(fields: Fields, source: str) -> NDArray[np.float64]:
    if ("rotation_xyzw" in fields) == ("rotation_matrix" in fields):
        raise fields.refuse("rotation_xyzw", "exactly one of rotation_xyzw and rotation_matrix")
    if "rotation_matrix" in fields:
        return fields.numbers("rotation_matrix", 9).reshape(3, 3)
    return unit_quaternion(fields.numbers("rotation_xyzw", 4), source)


def _date(fields: Fields, document: Mapping[str, Any]) -> str:
    value = document.get("date", "")
    # YAML parses an unquoted ISO date into a date object.
    if isinstance(value, datetime.date):
        return value.isoformat()
    text = fields.text("date", "")
    try:
        if text:
            datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise fields.refuse("date", "an ISO 8601 date such as 2026-01-31") from None
    return text


def _residuals(fields: Fields) -> Residuals:
    if "residuals" not in fields:
        return Residuals()
    section = fields.section("residuals")
    numbers = ("px", "mm", "mask_iou", "spread_deg", "spread_mm")
    section.only((*numbers, "poses"))
    for key in numbers:
        upper = 1.0 if key == "mask_iou" else np.inf
        if key in section and not 0.0 <= section.number(key) <= upper:
            raise section.refuse(key, "a number from 0 to 1" if upper == 1.0 else "a number >= 0")
    if "poses" in section and section.integer("poses") < 1:
        raise section.refuse("poses", "a positive integer")
    return Residuals(
        **{key: section.number(key) for key in numbers if key in section},
        poses=section.integer("poses") if "poses" in section else None,
    )
