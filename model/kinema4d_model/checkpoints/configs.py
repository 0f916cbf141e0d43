"""What a part's configuration says against what the preset says: shapes do not tell heads, statistics or shift."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinema4d_model.checkpoints.tensor_files import raise_if
from kinema4d_ros.core.errors import FileFormatError
from kinema4d_ros.io.files import read_json

__all__ = ["check_config", "check_shift"]

CONFIG = "config.json"
SCHEDULER_CONFIG = "scheduler_config.json"
SHIFT_KEYS = ("flow_shift", "shift")
"""What UniPC's and Euler's configurations call it."""
ANOTHER_MODEL = "the weights are of another model; choose the preset that they were made for"


def check_config(
    folder: Path, ours: Mapping[str, Any], name: str = CONFIG, hint: str = ANOTHER_MODEL
) -> dict[str, Any]:
    """What a folder's configuration says; refused where it gives another value to a key that both have.

    Without the file there is nothing to check, and nothing is returned.
    """
    path = folder / name
    if not path.is_file():
        return {}
    document = read_json(path)
    try:
        theirs = {str(key): value for key, value in document.items() if not str(key).startswith("_")}
    except AttributeError as error:
        raise FileFormatError(f"{path} is not a configuration: {error!r}") from None
    differ = [
        f"{key} is {theirs[key]!r}, the preset's is {_plain(value)!r}"
        for key, value in ours.items()
        if key in theirs and _plain(theirs[key]) != _plain(value)
    ]
    raise_if(differ, path, hint=hint, expected="the values of the preset")
    return theirs


def check_shift(base: Path, shift: float) -> float | None:
    """The flow shift of a base's `scheduler/`; None where it states none.

    Args:
        base: holds transformer/ and, as released, scheduler/.
        shift: what the preset says that the base was trained with.
    """
    theirs = check_config(
        base / "scheduler",
        dict.fromkeys(SHIFT_KEYS, shift),
        SCHEDULER_CONFIG,
        hint="choose the preset of this base; to sample with another shift on purpose, give --shift, or state the "
        "base's own as sampler.trained_shift in the preset",
    )
    return next((float(theirs[key]) for key in SHIFT_KEYS if key in theirs), None)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
