"""Trials in which a model and the lab disagree, the most confident mistakes first, with their strips."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2

from kinema4d_ros.evaluation.trial import Trial, TrialRecord

__all__ = ["Disagreement", "choose", "disagreements", "strip_uri"]

STRIP_PX = 1080
STRIP_QUALITY = 60
WORDS = {True: "success", False: "failure", None: "cannot tell"}


@dataclass(frozen=True)
class Disagreement:
    """A trial that ends otherwise in the model; a verdict of None = the judge cannot tell of a real success."""

    label: str
    trial: Trial
    lab: bool
    verdict: bool | None
    confidence: float
    reason: str
    picture: str

    @property
    def words(self) -> str:
        """Both outcomes."""
        sure = "" if self.verdict is None else f", confidence {self.confidence:.2f}"
        return f"lab: {WORDS[self.lab]}; {self.label}: {WORDS[self.verdict]}{sure}"


def disagreements(records: Iterable[TrialRecord]) -> list[Disagreement]:
    """All of them: wrong verdicts by confidence, then those without one."""
    found = [
        Disagreement(label, record.trial, record.lab.success, one.success, one.confidence, one.reason, one.picture)
        for record in records
        if record.lab.success is not None
        for label, one in record.models.items()
        if not one.error and (one.success is True) != record.lab.success
    ]
    return sorted(found, key=lambda one: (one.verdict is None, -one.confidence, one.label, one.trial))


def choose(found: Sequence[Disagreement], most: int) -> list[Disagreement]:
    """At most so many, in order; every model gets its share, and what one leaves goes to the others."""
    by_label: dict[str, list[Disagreement]] = {}
    for one in found:
        by_label.setdefault(one.label, []).append(one)
    chosen: list[Disagreement] = []
    while len(chosen) < most and any(by_label.values()):
        for waiting in by_label.values():
            if waiting and len(chosen) < most:
                chosen.append(waiting.pop(0))
    kept = {(one.label, one.trial) for one in chosen}
    return [one for one in found if (one.label, one.trial) in kept]


def strip_uri(folder: Path, name: str) -> str:
    """A strip as a data URI, small enough for a page that holds many; "" = it cannot be read.

    Args:
        folder: of the evaluation.
        name: of the picture; one that leads out of the folder is not read.
    """
    path = (folder / name).resolve()
    if not name or not path.is_relative_to(folder.resolve()) or not path.is_file():
        return ""
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        return ""
    if image.shape[1] > STRIP_PX:
        size = (STRIP_PX, max(1, round(image.shape[0] * STRIP_PX / image.shape[1])))
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    good, data = cv2.imencode(".webp", image, [cv2.IMWRITE_WEBP_QUALITY, STRIP_QUALITY])
    return f"data:image/webp;base64,{base64.b64encode(data.tobytes()).decode()}" if good else ""


def counts(found: Iterable[Disagreement]) -> Mapping[str, int]:
    """How many there are in each model."""
    number: dict[str, int] = {}
    for one in found:
        number[one.label] = number.get(one.label, 0) + 1
    return number
