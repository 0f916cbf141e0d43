"""Settings of an evaluation, validated before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kinema4d_ros.core.errors import ErrorCode, EvaluationError, GeneratorError
from kinema4d_ros.core.task import LAB_TASKS
from kinema4d_ros.evaluation.judges import GEOMETRIC, make_judge
from kinema4d_ros.evaluation.trial import Mode, Trial
from kinema4d_ros.generators import GeneratorSpec
from kinema4d_ros.lab.profile import CONSTANT, profile_names
from kinema4d_ros.lab.scenario import scenario_names
from kinema4d_ros.policies.registry import PolicySpec, policy_kinds

__all__ = [
    "LAB_MODELS",
    "ORACLE",
    "TRUTH",
    "EvaluationSettings",
    "has_weights",
    "model_label",
    "model_modes",
    "node_names",
]

TRUTH = "truth"
"""Model name for which the judge sees the lab's own images; separates the judge's errors from a model's."""

ORACLE = "oracle"
"""Model name for a draft with the lab's true shapes and poses but drawn physics: what a perfect fit could know."""

LAB_MODELS = (TRUTH, ORACLE)
"""Models that read the lab's truth, to compare others with."""

MAX_RUNS = 100_000
MODES: tuple[Mode, ...] = ("open", "closed")


def model_label(model: str, mode: str) -> str:
    """Return the label of a world model in a mode in records and reports, such as "nano/open"."""
    return f"{model}/{mode}"


def model_modes(models: Sequence[str], modes: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """List every model in every mode; "truth" and "oracle" have the mode "open" only."""
    return tuple((model, mode) for model in models for mode in (("open",) if model in LAB_MODELS else modes))


def node_names(model: str) -> tuple[str, ...]:
    """Return the namespaces of the generator nodes of a model; empty if it runs in this process."""
    return () if model in LAB_MODELS else GeneratorSpec.parse(model).nodes


def has_weights(model: str) -> bool:
    """Return whether a model uses a preset's weights, in a folder of this machine."""
    return model not in LAB_MODELS and bool(GeneratorSpec.parse(model).preset)


@dataclass(frozen=True)
class EvaluationSettings:
    """Policies x scenarios x runs in the lab, each also run in every model and mode.

    Attributes:
        policies: specs, see `policies.registry`.
        scenarios: names of the lab's scenarios.
        runs: scenes of each scenario; their seeds are `seed`, `seed + 1`, ...
        models: specs of generators, see `generators.spec`; or "truth" or "oracle".
        modes: "open", "closed" or both.
        task: "pick", "place" or "push".
        seed: of the first scene.
        robot, camera: name or file; an empty camera name is the demonstration camera.
        width: of the images in pixels; the height keeps the camera's aspect ratio.
        frames: number of frames of a rollout.
        depth: give the models the measured depth of the first image.
        limit_s: maximum duration of an episode.
        act_timeout_s: timeout of a policy's answer.
        checkpoints: folders with weights by model, where they are not the preset's own.
        judge: of predictions: "geometric", or "vlm:URL,MODEL".
        profile: of the lab: "constant", or "hidden" physics and camera, see `lab.profile`.
    """

    policies: Sequence[str]
    scenarios: Sequence[str] = ("canonical", "cluttered", "dynamic")
    runs: int = 50
    models: Sequence[str] = ("composite",)
    modes: Sequence[str] = ("open",)
    task: str = "pick"
    seed: int = 0
    robot: str = "yam"
    camera: str = ""
    width: int = 360
    frames: int = 49
    depth: bool = False
    limit_s: float = 30.0
    act_timeout_s: float = 60.0
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    judge: str = GEOMETRIC
    profile: str = CONSTANT

    def __post_init__(self) -> None:
        """Check all settings; an invalid one raises an EvaluationError that names it."""
        specs = self.specs()
        labels = [spec.label for spec in specs]
        for name, values in (("policies", labels), ("scenarios", self.scenarios), ("models", self.models)):
            twice = sorted({str(v) for v in values if list(values).count(v) > 1})
            if not values or twice:
                raise _refuse(
                    f"{name} are {list(values)}", "at least one, without duplicates (use LABEL=SPEC to distinguish two)"
                )
        for spec in specs:
            if spec.kind not in policy_kinds():
                raise _refuse(f"policy '{spec.kind}' is unknown", f"one of {', '.join(policy_kinds())}")
        for what, given, known in (
            ("scenario", self.scenarios, scenario_names()),
            ("mode", self.modes, MODES),
            ("task", (self.task,), LAB_TASKS),
            ("profile", (self.profile,), profile_names()),
        ):
            unknown = [str(v) for v in given if v not in known]
            if unknown or not given:
                raise _refuse(f"{what} {', '.join(unknown) or 'is missing'}", f"one of {', '.join(known)}")
        make_judge(self.judge)
        try:
            for model in self.models:
                node_names(model)
        except GeneratorError as error:
            raise _refuse(error.what, error.expected) from None
        for name, value, least, most in (
            ("runs", self.runs, 1, MAX_RUNS),
            ("seed", self.seed, 0, 2**31),
            ("width", self.width, 64, 4096),
            ("frames", self.frames, 2, 1000),
            ("limit_s", self.limit_s, 0.5, 600.0),
            ("act_timeout_s", self.act_timeout_s, 0.01, 3600.0),
        ):
            if not least <= value <= most:
                raise _refuse(f"{name} is {value}", f"{least} to {most}")

    def specs(self) -> tuple[PolicySpec, ...]:
        """Parse the policy specs."""
        return tuple(PolicySpec.parse(text) for text in self.policies)

    def labels(self) -> tuple[str, ...]:
        """Return the label of every model in every mode."""
        return tuple(model_label(model, mode) for model, mode in self.pairs())

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return every model in every mode."""
        return model_modes(self.models, self.modes)

    def trials(self) -> tuple[Trial, ...]:
        """List all trials scene by scene, so that an interrupted evaluation still has all policies on its scenes."""
        return tuple(
            Trial(spec.label, scenario, self.seed + number)
            for number in range(self.runs)
            for scenario in self.scenarios
            for spec in self.specs()
        )

    def _is_told(self, model: str) -> bool:
        return has_weights(model) or model in self.checkpoints

    def to_json(self) -> dict[str, Any]:
        """Convert to plain types."""
        return {
            "policies": {spec.label: spec.text for spec in self.specs()},
            "scenarios": list(self.scenarios),
            "runs": self.runs,
            "models": list(self.models),
            "modes": list(self.modes),
            "task": self.task,
            "seed": self.seed,
            "robot": self.robot,
            "camera": self.camera,
            "width": self.width,
            "frames": self.frames,
            "depth": self.depth,
            "limit_s": self.limit_s,
            "act_timeout_s": self.act_timeout_s,
            # Also empty ones: a later call must not use other weights for the same model.
            "checkpoints": {m: str(self.checkpoints.get(m, "")) for m in self.models if self._is_told(m)},
            "judge": self.judge,
            "profile": self.profile,
        }


def _refuse(what: str, expected: str) -> EvaluationError:
    return EvaluationError(what, expected=expected, code=ErrorCode.ARGUMENT_INVALID)
