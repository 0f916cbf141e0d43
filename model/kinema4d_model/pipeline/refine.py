"""`RefinedGenerator`: a physics draft whose images a small diffusion model refines; the spec `draft+nano`.

    request ─ DraftGenerator ─> frames, outcomes, basis, unknowns ─┐
    request ─ still world ─────────────────────────────────────────┼─ network ─> colours that neither world shows
                                                                   └─ draft's frames + these colours ─> Rollout

The draft decides what happens, so its points, masks and outcomes stay as they are; the network changes colours of the
scene in the most probable outcome. The other outcomes are shown as drafted. Without a draft the model falls back to its
own carry hypothesis, and the rollout says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinema4d_model.pipeline.backend import Details, DiffusionGenerator
from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.core.outcomes import Patches, patches_between
from kinema4d_ros.core.rollout import WARNING, Frames, Provenance, Rollout
from kinema4d_ros.generators.draft.generator import MEMBERS, DraftGenerator, Fit
from kinema4d_ros.generators.protocol import Cancel, GenerateRequest, ReceiveFrames, ReportProgress

__all__ = ["RefinedGenerator"]


class RefinedGenerator:
    """Generator that drafts, then refines.

    Args:
        preset: of a model with `condition.carry`.
        table_height_m: height of the supporting plane above the robot's base, metres.
        members, priors, threads, fit: of the draft, see `DraftGenerator`.
        options: of the model, see `DiffusionGenerator`: checkpoint, device, sampler, seeds, ...
    """

    def __init__(
        self,
        *,
        preset: str | Path = "nano",
        table_height_m: float = 0.0,
        members: int = MEMBERS,
        priors: str | Path = "",
        threads: int | None = None,
        fit: Fit | None = None,
        checkpoint: str | Path = "",
        device: str = "auto",
        sampler: Mapping[str, Any] | None = None,
        speed: Mapping[str, Any] | None = None,
        lora: str | Path = "",
        seeds: int = 1,
        require_metric: bool = False,
        warm_start: bool = False,
        random_weights: bool = False,
        allow_base: bool = False,
    ) -> None:
        """Load the model and the priors."""
        self._draft = DraftGenerator(
            table_height_m=table_height_m, members=members, priors=priors, threads=threads, fit=fit
        )
        self._model = DiffusionGenerator(
            preset=preset,
            table_height_m=table_height_m,
            checkpoint=checkpoint,
            device=device,
            sampler=sampler,
            speed=speed,
            lora=lora,
            seeds=seeds,
            require_metric=require_metric,
            warm_start=warm_start,
            random_weights=random_weights,
            allow_base=allow_base,
        )
        found = self._model.pipeline.preset
        if not found.condition.carry:
            raise GeneratorError(
                f"preset '{found.name}' cannot refine a draft",
                expected="a preset with condition.carry, such as nano",
                code=ErrorCode.GENERATOR_BAD_REQUEST,
            )
        self.name = f"draft+{found.name}"

    @property
    def details(self) -> Details | None:
        """Details of the model's last run."""
        return self._model.details

    def generate(
        self, request: GenerateRequest, progress: ReportProgress | None = None, cancel: Cancel | None = None
    ) -> Rollout:
        """Generate the rollout of a request; equal for equal seed, inputs, checkpoint and options."""
        return self.stream(request, None, progress, cancel)

    def stream(
        self,
        request: GenerateRequest,
        receive: ReceiveFrames | None,
        progress: ReportProgress | None = None,
        cancel: Cancel | None = None,
    ) -> Rollout:
        """Generate the rollout; deliver the scene at rest, the drafted frames, then the refined ones."""
        if request.motion is not None:
            self._draft.show_still(request, receive, cancel)
        reason = self._draft.refusal(request, cancel)
        if reason:
            return _fallen_back(self._model.stream(request, receive, progress, cancel), self.name, reason)
        draft = self._draft.draft(request, receive, progress, cancel, final=False)
        made = self._model.refine(request, Frames(*draft.arrays), progress, cancel, receive=receive)
        return replace(
            made,
            provenance=self._provenance(draft.provenance, made.provenance),
            outcomes=draft.outcomes,
            alternatives=tuple(_as_drafted(made, draft, index) for index in range(1, len(draft.outcomes))),
            basis=draft.basis,
            unknowns=draft.unknowns,
        )

    def _provenance(self, draft: Provenance, model: Provenance) -> Provenance:
        """Merge what made the draft and what made its images; the checkpoint is the model's."""
        said = {
            "hypothesis": "draft: its points, masks and outcomes are kept; the network changed colours of the first "
            "outcome, the others are shown as drafted",
        }
        if draft.checkpoint_sha256:
            said["detector sha256"] = draft.checkpoint_sha256
        return replace(
            model,
            generator=self.name,
            depth=draft.depth,
            # The points are the draft's: the network's fit to the robot does not apply to them.
            metric_residual_m=draft.metric_residual_m,
            versions={**model.versions, **draft.versions, **said},
        )


def _as_drafted(made: Rollout, draft: Rollout, index: int) -> Patches:
    """Return an outcome's patches against the refined frames: with them applied it is exactly as drafted."""
    other = draft.with_outcome(index)
    return patches_between(made, other, draft.basis, other.basis)


def _fallen_back(rollout: Rollout, name: str, reason: str) -> Rollout:
    """State in provenance, and as a warning, that there is no draft."""
    given = rollout.provenance
    warning = f"{name} fell back to the carry hypothesis: {reason}."
    if WARNING in given.versions:
        warning = f"{given.versions[WARNING]} {warning}"
    versions = {**given.versions, "hypothesis": f"carry: {reason}", WARNING: warning}
    return replace(rollout, provenance=replace(given, versions=versions))
