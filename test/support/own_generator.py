"""User-defined generators: the example of docs/model.md, and faulty ones."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.ros_graph import ROOT

from kinema4d_ros.generators import load_generator


def documented(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Save the documented example, add it to the path of this and all child processes, and return its spec."""
    blocks = re.findall(r"```python\n(# my_generator\.py\n.*?)```", (ROOT / "docs" / "model.md").read_text(), re.S)
    (folder / "my_generator.py").write_text("".join(blocks))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return "my_generator:Grey"


class Mute:
    """Has no `generate`."""

    name = "mute"


class Nameless:
    def generate(self, request: Any, progress: Any = None, cancel: Any = None) -> Any:
        return load_generator("composite").generate(request, progress, cancel)


class Blunt(Nameless):
    """Does not accept the standard arguments."""

    name = "blunt"

    def generate(self, request: Any) -> Any:  # type: ignore[override]
        return super().generate(request)


class Stillborn(Nameless):
    name = "stillborn"

    def __init__(self) -> None:
        raise ZeroDivisionError("no luck")


class Demanding(Nameless):
    name = "demanding"

    def __init__(self, depth_server: str) -> None:
        self.depth_server = depth_server


class Wrong(Nameless):
    """Returns the result selected by `how` instead of the requested rollout."""

    name = "wrong"

    def __init__(self, *, how: str = "", device: str = "", **more: Any) -> None:
        self.how, self.device, self.more, self.closed = how, device, more, False

    def generate(self, request: Any, progress: Any = None, cancel: Any = None) -> Any:
        made = super().generate(request, progress, cancel)
        return {
            "": made,
            "array": made.rgb,
            "frames": replace(
                made, rgb=made.rgb[1:], xyz=made.xyz[1:], robot_mask=made.robot_mask[1:], times=made.times[1:]
            ),
            "plan": replace(made, plan_hash="e" * 64),
        }[self.how]

    def close(self) -> None:
        self.closed = True


class Array(Wrong):
    """Always returns an array."""

    def __init__(self) -> None:
        super().__init__(how="array")


class Killed(Nameless):
    """Kills its process at its first requests, `times` of them over all processes; the folder holds a mark for each."""

    name = "killed"

    def __init__(self, *, marks: str, times: int) -> None:
        self.marks, self.times = Path(marks), times

    def generate(self, request: Any, progress: Any = None, cancel: Any = None) -> Any:
        killed = len(list(self.marks.iterdir()))
        if killed < self.times:
            (self.marks / str(killed)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().generate(request, progress, cancel)


NOT_A_CLASS = Nameless()
