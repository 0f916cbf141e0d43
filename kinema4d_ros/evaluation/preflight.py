"""`check_setup`: check of everything that an evaluation needs before its first trial; nothing is written.

robot, camera ─> a scene ─> every policy created once ─> every model's weights or nodes ─> provenance

An error here would fail every trial. Policies are external code: `check_apart` runs the check in a separate process,
where a policy that hangs or crashes does no harm.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from tempfile import TemporaryDirectory

import kinema4d_ros
from kinema4d_ros.core.errors import ErrorCode, GeneratorError, KinemaError
from kinema4d_ros.evaluation.execute import evaluation_camera
from kinema4d_ros.evaluation.settings import LAB_MODELS, EvaluationSettings, has_weights, node_names
from kinema4d_ros.generators import GeneratorSpec, load_generator
from kinema4d_ros.generators.pool import FIND_S, GeneratorPool
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.lab import LabSimulation
from kinema4d_ros.policies.protocol import PolicyError
from kinema4d_ros.policies.registry import make_policy
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.runtime.pool import Lost, Recipe, run_jobs

__all__ = ["Setup", "check_apart", "check_setup", "software"]

TABLES = 3
"""Number of scenes to try per scenario, because a single seed may have no room for its objects."""
PACKAGES = ("numpy", "mujoco", "opencv-python-headless", "torch", "diffusers")


@dataclass(frozen=True)
class Setup:
    """Provenance of an evaluation.

    Attributes:
        weights: sha256 of the weights by model, where they are on this machine.
        software: versions by name.
        notes: warnings, such as a node that does not answer.
    """

    weights: Mapping[str, str] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def provenance(self) -> dict[str, object]:
        """Convert to entries of the evaluation's settings."""
        return {"weights": dict(self.weights), "software": [dict(self.software)]}


def check_setup(settings: EvaluationSettings, *, find_s: float = FIND_S) -> Setup:
    """Check robot, camera, scenes, policies and models.

    Args:
        settings: of the evaluation.
        find_s: time to wait for generator nodes.

    Raises:
        KinemaError: the first problem, with its own code.
    """
    kinematics = choose_kinematics(Robot.load(settings.robot))
    camera = evaluation_camera(settings)
    _lay_a_table(
        settings, lambda name, seed: LabSimulation(name, seed, kinematics.robot, camera, profile=settings.profile)
    )
    for spec in settings.specs():
        policy = make_policy(spec)
        with suppress(PolicyError):
            policy.close()
    weights: dict[str, str] = {}
    notes: list[str] = []
    for model in settings.models:
        if node_names(model):
            if settings.checkpoints.get(model):
                raise GeneratorError(
                    f"model '{model}' is a generator node and takes no checkpoint",
                    expected="--checkpoint of a preset",
                    hint="start the node with checkpoint:=DIR",
                    code=ErrorCode.GENERATOR_BAD_REQUEST,
                )
            notes += _find_nodes(model, find_s)
        elif has_weights(model):
            weights[model] = _weights(GeneratorSpec.parse(model).preset, settings.checkpoints.get(model, ""))
        elif model not in LAB_MODELS:
            made = load_generator(model, checkpoint=settings.checkpoints.get(model, ""))
            if hasattr(made, "close"):
                made.close()
    return Setup(weights, software(), tuple(notes))


def software() -> dict[str, str]:
    """Return the versions of the software that affects results."""
    found = {"kinema4d_ros": kinema4d_ros.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _lay_a_table(settings: EvaluationSettings, lay: Callable[[str, int], object]) -> None:
    for scenario in settings.scenarios:
        refusal: KinemaError | None = None
        for seed in range(settings.seed, settings.seed + min(TABLES, settings.runs)):
            try:
                lay(scenario, seed)
            except KinemaError as error:
                refusal = error
                continue
            break
        else:
            raise refusal or KinemaError(f"scenario '{scenario}' has no scene", expected="at least one run")


def _weights(preset: str, checkpoint: str) -> str:
    try:
        module = import_module("kinema4d_model.checkpoints.loading")
    except ImportError as error:
        raise GeneratorError(
            f"model '{preset}' cannot be loaded: {error}",
            expected="torch, diffusers and the other packages of requirements/model.in",
            hint="make setup TORCH=cpu, or --models composite",
            code=ErrorCode.GENERATOR_UNAVAILABLE,
        ) from error
    return str(module.weights_sha256(preset, checkpoint))


def _find_nodes(model: str, find_s: float) -> list[str]:
    names = node_names(model)
    with TemporaryDirectory() as locks:
        pool = GeneratorPool(names, locks)
        try:
            found = pool.ready(find_s)
        finally:
            pool.close()
    if not found:
        raise GeneratorError(
            f"no generator node of '{model}' answers",
            expected=f"one within {find_s:g} s in ROS domain {os.environ.get('ROS_DOMAIN_ID', '0')}",
            hint="python -m kinema4d_ros.ros.nodes.generator --ros-args -r __ns:=/NAMESPACE",
            code=ErrorCode.GENERATOR_UNAVAILABLE,
        )
    return [f"no generator node answers in '{name}': the others do its work" for name in names if name not in found]


def check_apart(settings: EvaluationSettings, *, timeout_s: float = 300.0, find_s: float = FIND_S) -> Setup:
    """Run `check_setup` in a separate process that is killed after `timeout_s`."""
    recipe = Recipe("kinema4d_ros.evaluation.preflight:setup_checker")
    (result,) = run_jobs(recipe, [(settings, find_s)], timeout_s=timeout_s, retries=0)
    if isinstance(result, Lost):
        late = result.reason == "timeout"
        raise PolicyError(
            f"the check of policies and models{' took too long' if late else ''}: {result.text}",
            expected="policies that can be created",
            hint="try a policy with kinema4d policy try SPEC",
            code=ErrorCode.POLICY_TIMEOUT if late else ErrorCode.POLICY_FAILED,
        )
    checked: Setup = result.value
    return checked


def setup_checker(turn: int) -> Callable[[tuple[EvaluationSettings, float]], Setup]:
    """Build the pool's worker for `check_apart`."""

    def check(job: tuple[EvaluationSettings, float]) -> Setup:
        settings, find_s = job
        try:
            return check_setup(settings, find_s=find_s)
        except KinemaError:
            raise
        except Exception as error:
            raise KinemaError(f"{type(error).__name__}: {error}") from error

    return check
