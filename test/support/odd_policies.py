"""Faulty policies for evaluations in other processes: `python:support.odd_policies:NAME`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d_ros.policies import ActionChunk, EpisodeStart, Observation


class Nod:
    """Moves one joint a little and ends; appends a line to the file `calls` for every episode."""

    def __init__(self, calls: str = "") -> None:
        self._calls = calls

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    def reset(self, start: EpisodeStart) -> None:
        self._seed = start.seed
        if self._calls:
            with Path(self._calls).open("a") as file:
                file.write(f"{start.seed}\n")

    def act(self, observation: Observation) -> Any:
        return ActionChunk([0.5], (observation.joints + np.array([0.05, 0, 0, 0, 0, 0, 0]))[None], done=True)

    def close(self) -> None:
        pass


class Dies(Nod):
    """Ends its process in scenes with an odd seed."""

    def act(self, observation: Observation) -> Any:
        if self._seed % 2:
            os._exit(3)
        return super().act(observation)


class Fragile(Nod):
    """Its process is killed the first time."""

    def act(self, observation: Observation) -> Any:
        if Path(self._calls).read_text().count("\n") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().act(observation)


class Doomed(Nod):
    """Its process is killed every time."""

    def act(self, observation: Observation) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class StillbornDies(Nod):
    """Ends its process in the constructor."""

    def __init__(self) -> None:
        os._exit(3)


class StillbornHangs(Nod):
    def __init__(self) -> None:
        time.sleep(3600)


class Hangs(Nod):
    """Hangs in scenes with an odd seed."""

    def act(self, observation: Observation) -> Any:
        if self._seed % 2:
            time.sleep(3600)
        return super().act(observation)


class Raises(Nod):
    def act(self, observation: Observation) -> Any:
        raise RuntimeError("the weights are upside down")


class Garbage(Nod):
    def act(self, observation: Observation) -> Any:
        return {"joints": "up"}


class Wild(Nod):
    """Commands a motion that is far too fast for the arm."""

    def act(self, observation: Observation) -> Any:
        return ActionChunk([0.001], (observation.joints + 1.0)[None], done=True)


class Watches(Nod):
    """Acts three times and keeps the observed images."""

    seen: tuple[np.ndarray, ...] = ()

    def reset(self, start: EpisodeStart) -> None:
        super().reset(start)
        type(self).seen = ()

    def act(self, observation: Observation) -> Any:
        type(self).seen = (*self.seen, observation.image.copy())
        step = np.array([0.15, 0, 0, 0, 0, 0, 0])
        return ActionChunk([0.5], (observation.joints + step)[None], done=len(self.seen) == 3)
