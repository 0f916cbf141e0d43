"""Typed access to the values of a calibration document, with errors that name the file and the key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import CalibrationError

__all__ = ["Fields"]


class Fields:
    """A mapping read from `source`; every getter either returns the type asked for or raises CalibrationError."""

    def __init__(self, document: Mapping[str, Any], source: str) -> None:
        self._document = document
        self._source = source

    def __contains__(self, key: str) -> bool:
        return key in self._document

    def refuse(self, key: str, expected: str, hint: str = "") -> CalibrationError:
        """The error for a key whose value is missing or wrong."""
        if key not in self._document:
            names = ", ".join(map(str, self._document)) or "nothing"
            return CalibrationError(f"{self._source} has no '{key}', only {names}", expected=expected, hint=hint)
        value = repr(self._document[key])
        shown = value if len(value) < 200 else value[:200] + "..."
        return CalibrationError(f"'{key}' of {self._source} is {shown}", expected=expected, hint=hint)

    def only(self, known: Iterable[str]) -> None:
        """Refuse keys that are not known: they are usually misspelt ones."""
        allowed = list(known)
        for key in self._document:
            if key not in allowed:
                raise self.refuse(key, f"no such key; known are {', '.join(allowed)}", "check the spelling")

    def section(self, key: str) -> Fields:
        """A nested mapping."""
        value = self._document.get(key)
        if not isinstance(value, Mapping):
            raise self.refuse(key, "a group of named values")
        return Fields(value, f"'{key}' of {self._source}")

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._document.get(key, default)
        if not isinstance(value, str):
            raise self.refuse(key, "text")
        return value

    def integer(self, key: str) -> int:
        """A whole number."""
        value = self._document.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(key, "a whole number")
        return value

    def number(self, key: str) -> float:
        """A finite number."""
        number = _number(self._document.get(key))
        if number is None:
            raise self.refuse(key, "a finite number")
        return number

    def numbers(self, key: str, count: int | None = None) -> NDArray[np.float64]:
        """(N,) finite numbers of a list, or of a list of rows read row by row."""
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
    # YAML 1.1 reads 1e-05, which C++ writers produce, as text.
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if np.isfinite(number) else None
