"""Execution of one trial: the policy in the lab, its commands in every model, an image of every disagreement."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import FileFormatError, KinemaError
from kinema4d_ros.core.task import Task
from kinema4d_ros.evaluation.judges import make_judge
from kinema4d_ros.evaluation.pictures import STRIP_FRAMES, write_comparison
from kinema4d_ros.evaluation.settings import ORACLE, TRUTH, EvaluationSettings, model_label
from kinema4d_ros.evaluation.store import TrialStore
from kinema4d_ros.evaluation.trial import LabOutcome, ModelOutcome, Trial, TrialRecord, failure_text
from kinema4d_ros.generators import Generator, load_generator
from kinema4d_ros.generators.draft.generator import DraftGenerator
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.policies.guard import GuardedPolicy
from kinema4d_ros.policies.protocol import PolicyError
from kinema4d_ros.policies.registry import PolicySpec, make_policy
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.worlds import LabWorld, ModelWorld, Run, true_rollout
from kinema4d_ros.worlds.truth import scene_from_truth

__all__ = ["Executor", "evaluation_camera"]


def evaluation_camera(settings: EvaluationSettings) -> PinholeCamera:
    """Load the camera of an evaluation, rectified and scaled to its width."""
    camera = read_camera(settings.camera or share_path("calibration/demo_lab.yaml")).rectified()
    return camera.scaled(settings.width, max(1, round(settings.width * camera.height / camera.width)))


class Executor:
    """Runner of trials; robot, policies and models are created once and reused.

    Args:
        settings: of the evaluation.
        store: folder for runs and images; records are returned, not written.
        turn: index of the worker; workers start with different generator nodes.
    """

    def __init__(self, settings: EvaluationSettings, store: TrialStore, turn: int = 0) -> None:
        self._settings, self._store, self._turn = settings, store, turn
        self._kinematics = choose_kinematics(Robot.load(settings.robot))
        self._camera = evaluation_camera(settings)
        self._specs = {spec.label: spec for spec in settings.specs()}
        self._policies: dict[str, GuardedPolicy] = {}
        self._generators: dict[str, Generator] = {}
        self._judge = make_judge(settings.judge)
        self._last: tuple[tuple[str, int], LabWorld] | None = None

    def execute(self, trial: Trial, known: TrialRecord | None = None) -> TrialRecord:
        """Run a trial and return its record; outcomes that `known` already has are not run again."""
        try:
            world = self._world(trial)
        except KinemaError as error:
            # The scene cannot be set up: record a failure for every model too, so that the record is complete.
            text = failure_text(error)
            lost = {label: ModelOutcome(None, error=text) for label in self._settings.labels()}
            return TrialRecord(trial, LabOutcome(None, error=text), {**lost, **(known.models if known else {})})
        task = world.task(self._settings.task)
        lab, run = self._in_lab(trial, world, task, known.lab if known else None)
        models = dict(known.models) if known else {}
        for model, mode in self._settings.pairs():
            label = model_label(model, mode)
            if label not in models:
                models[label] = self._in_model(trial, world, task, model, mode, lab, run)
        return TrialRecord(trial, lab, models)

    def close(self) -> None:
        """Close policies and models; a policy that fails to close is ignored."""
        for policy in self._policies.values():
            try:
                policy.close()
            except PolicyError:
                continue
        self._policies.clear()
        for generator in self._generators.values():
            close = getattr(generator, "close", None)
            if callable(close):
                close()
        self._generators.clear()

    def _world(self, trial: Trial) -> LabWorld:
        # Policies run one after the other on the same scene: it is set up and rendered once.
        which = (trial.scenario, trial.seed)
        if self._last is None or self._last[0] != which:
            world = LabWorld.of(
                trial.scenario, trial.seed, self._camera, self._kinematics, profile=self._settings.profile
            )
            self._last = (which, world)
        return self._last[1]

    def _in_lab(
        self, trial: Trial, world: LabWorld, task: Task, known: LabOutcome | None
    ) -> tuple[LabOutcome, Run | None]:
        path = self._store.run_path(trial)
        if known is not None and known.error:
            return known, None
        if known is not None and known.success is not None:
            # A lost or damaged file is regenerated: equal seeds give equal runs.
            with suppress(FileFormatError):
                return known, world.load(path, task)
        began = time.perf_counter()
        try:
            run = world.run(self._policy(trial), task, seed=trial.seed, limit_s=self._settings.limit_s)
        except Exception as error:
            return LabOutcome(None, seconds=round(time.perf_counter() - began, 3), error=failure_text(error)), None
        world.save(run, path)
        outcome = LabOutcome(
            run.verdict.success,
            round(float(run.verdict.progress), 4),
            round(float(run.verdict.value_m), 5),
            round(run.commands.duration_s, 3),
            run.chunks,
            round(run.seconds, 3),
        )
        return outcome, run

    def _in_model(
        self, trial: Trial, world: LabWorld, task: Task, model: str, mode: str, lab: LabOutcome, run: Run | None
    ) -> ModelOutcome:
        began = time.perf_counter()
        try:
            if mode == "open" and run is None:
                return ModelOutcome(None, error=f"no actions: {lab.error}")
            predicted = self._predict(trial, world, task, model, run if mode == "open" else None)
        except Exception as error:
            return ModelOutcome(None, seconds=round(time.perf_counter() - began, 3), error=failure_text(error))
        picture = ""
        if lab.success is not None and bool(predicted.verdict.success) != lab.success and run is not None:
            picture = self._picture(trial, world, run, model_label(model, mode), predicted, lab)
        return ModelOutcome.of(predicted.verdict, predicted.seconds, predicted.chunks, picture, predicted.made_by)

    def _predict(self, trial: Trial, world: LabWorld, task: Task, model: str, run: Run | None) -> Run:
        """Predict in open loop with the run's commands, or in closed loop without a run."""
        if model == TRUTH and run is not None:
            began = time.perf_counter()
            rollout = true_rollout(world, run, self._settings.frames)
            verdict = self._judge.judge(rollout, task, world.scene.target_mask)
            return Run(run.commands, verdict, 0, time.perf_counter() - began, rollout)
        predicted = ModelWorld(
            world.scene,
            self._oracle(world) if model == ORACLE else self._generator(model),
            self._kinematics,
            judge=self._judge,
            depth=self._settings.depth or model == ORACLE,
            frames=self._settings.frames,
        )
        if run is not None:
            return predicted.run(run.commands, task, seed=trial.seed)
        return predicted.run(self._policy(trial), task, seed=trial.seed, limit_s=self._settings.limit_s)

    def _picture(self, trial: Trial, world: LabWorld, run: Run, label: str, predicted: Run, lab: LabOutcome) -> str:
        name = self._store.picture_name(trial, label)
        states = [run.states[i] for i in np.linspace(0, len(run.states) - 1, STRIP_FRAMES).round().astype(int)]
        real = [world.picture(state).rgb for state in states]
        if predicted.rollout is not None:
            write_comparison(self._store.folder / Path(name), real, predicted.rollout, predicted.verdict, lab)
        return name

    def _policy(self, trial: Trial) -> GuardedPolicy:
        known = self._policies.get(trial.policy)
        if known is None or known.lost:
            spec: PolicySpec = self._specs[trial.policy]
            known = GuardedPolicy(make_policy(spec), act_timeout_s=self._settings.act_timeout_s)
            self._policies[trial.policy] = known
        return known

    def _oracle(self, world: LabWorld) -> Generator:
        # The drawing sees what a depth camera sees; shapes and poses are the true ones.
        image = world.eye.capture(world.start, truth=True)
        held = (world.start.target,) if world.lab.scenario.held_m is not None else ()
        scene = scene_from_truth(world.start, image, room=world.lab.room, held=held)
        return DraftGenerator(fit=lambda request, cancel: scene, threads=1)

    def _generator(self, model: str) -> Generator:
        if model not in self._generators:
            self._generators[model] = load_generator(
                model,
                offered={"locks": self._store.folder / "locks", "turn": self._turn, "threads": 1},
                checkpoint=self._settings.checkpoints.get(model, ""),
            )
        return self._generators[model]
