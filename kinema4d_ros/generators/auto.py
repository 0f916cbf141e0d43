"""`AutoGenerator`: the best generator that this machine can run, chosen for every request; the spec `auto`.

    measured depth, or weights of a detector ─> draft           (physics; any machine)
    otherwise, or where no object can be fitted ─> nano         (with torch and the shipped weights)
                                                ─> composite    (without them)

The rollout's provenance says which one made it, and why. docs/draft.md compares a draft, nano and both together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.generators.draft.generator import DraftGenerator
from kinema4d_ros.generators.protocol import (
    Cancel,
    GenerateRequest,
    Generator,
    ReceiveFrames,
    ReportProgress,
    stream_frames,
)
from kinema4d_ros.generators.spec import best_without_draft, load_generator

__all__ = ["AutoGenerator"]


class AutoGenerator:
    """Generator that drafts where it can, and otherwise uses the best of the others.

    Args:
        table_height_m: height of the supporting plane above the robot's base, metres.
        warm_start: load the other generator at once, with one empty step, not with the first request that needs it.
        device: of the model.
        model: other options of the model, such as its checkpoint; they are checked at once.
    """

    name = "auto"

    def __init__(
        self, *, table_height_m: float = 0.0, warm_start: bool = False, device: str = "auto", **model: Any
    ) -> None:
        """Read the draft's priors."""
        self._draft = DraftGenerator(table_height_m=table_height_m)
        self._offered = {"table_height_m": table_height_m, "warm_start": warm_start, "device": device}
        self._options = model
        self._other: tuple[str, Generator] | None = None
        if warm_start or model:
            self._without_draft()

    @property
    def details(self) -> Any:
        """Details of the model's last rollout; None if it made none."""
        return None if self._other is None else getattr(self._other[1], "details", None)

    def generate(
        self, request: GenerateRequest, progress: ReportProgress | None = None, cancel: Cancel | None = None
    ) -> Rollout:
        """Generate the rollout of a request with the chosen generator."""
        return self.stream(request, None, progress, cancel)

    def stream(
        self,
        request: GenerateRequest,
        receive: ReceiveFrames | None,
        progress: ReportProgress | None = None,
        cancel: Cancel | None = None,
    ) -> Rollout:
        """Generate the rollout; deliver the scene at rest before the choice, then frames as the chosen one does."""
        if request.motion is not None:
            self._draft.show_still(request, receive, cancel)
        reason = self._draft.refusal(request, cancel)
        if not reason:
            chosen = f"draft: {'measured depth' if request.depth is not None else 'objects detected in the image'}"
            return _said(self._draft.draft(request, receive, progress, cancel), chosen)
        spec, other = self._without_draft()
        return _said(stream_frames(other, request, receive, progress, cancel), f"{spec}: {reason}")

    def _without_draft(self) -> tuple[str, Generator]:
        if self._other is None:
            if best_without_draft() == "nano":
                self._other = "nano", load_generator("nano", offered=self._offered, **self._options)
            else:
                self._other = "composite", load_generator("composite", offered=self._offered, **self._options)
        return self._other


def _said(rollout: Rollout, chosen: str) -> Rollout:
    given = rollout.provenance
    return replace(rollout, provenance=replace(given, versions={**given.versions, "auto": chosen}))
