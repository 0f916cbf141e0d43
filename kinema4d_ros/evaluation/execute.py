"""Execution of one trial: the policy in the lab, its commands in every model, an image of every disagreement."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import FileFormatError, KinemaError
from kinema4d_ros.evaluation.judges import make_judge
from kinema4d_ros.evaluation.lab_world import LabArena, Run, true_rollout
from kinema4d_ros.evaluation.model_world import Imagined, WorldModel, scene_of
from kinema4d_ros.evaluation.pictures import STRIP_FRAMES, write_comparison
from kinema4d_ros.evaluation.settings import TRUTH, EvaluationSettings, model_label
from kinema4d_ros.evaluation.store import TrialStore
from kinema4d_ros.evaluation.trial import LabOutcome, ModelOutcome, Trial, TrialRecord, failure_text
from kinema4d_ros.generators import load_generator
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.lab.simulation import LabState
from kinema4d_ros.policies.guard import GuardedPolicy
from kinema4d_ros.policies.protocol import PolicyError
from kinema4d_ros.policies.registry import PolicySpec, make_policy
from kinema4d_ros.robot.model import Robot

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
        self._models: dict[str, WorldModel] = {}
        self._judge = make_judge(settings.judge)
        self._arena: tuple[tuple[str, int], LabArena] | None = None

    def execute(self, trial: Trial, known: TrialRecord | None = None) -> TrialRecord:
        """Run a trial and return its record; outcomes that `known` already has are not run again."""
        try:
            arena = self._table(trial)
        except KinemaError as error:
            # The scene cannot be set up: record a failure for every model too, so that the record is complete.
            text = failure_text(error)
            lost = {label: ModelOutcome(None, error=text) for label in self._settings.labels()}
            return TrialRecord(trial, LabOutcome(None, error=text), {**lost, **(known.models if known else {})})
        lab, run = self._in_lab(trial, arena, known.lab if known else None)
        models = dict(known.models) if known else {}
        for model, mode in self._settings.pairs():
            label = model_label(model, mode)
            if label not in models:
                models[label] = self._in_model(trial, arena, model, mode, lab, run)
        return TrialRecord(trial, lab, models)

    def close(self) -> None:
        """Close policies and models; a policy that fails to close is ignored."""
        for policy in self._policies.values():
            try:
                policy.close()
            except PolicyError:
                continue
        self._policies.clear()
        for world in self._models.values():
            world.close()
        self._models.clear()

    def _table(self, trial: Trial) -> LabArena:
        # Policies run one after the other on the same scene: it is set up and rendered once.
        which = (trial.scenario, trial.seed)
        if self._arena is None or self._arena[0] != which:
            arena = LabArena(trial.scenario, trial.seed, self._camera, self._kinematics, self._settings.task)
            self._arena = (which, arena)
        return self._arena[1]

    def _in_lab(self, trial: Trial, arena: LabArena, known: LabOutcome | None) -> tuple[LabOutcome, Run | None]:
        path = self._store.run_path(trial)
        if known is not None and known.error:
            return known, None
        if known is not None and known.success is not None:
            # A lost or damaged file is regenerated: equal seeds give equal runs.
            with suppress(FileFormatError):
                return known, Run.load(path, arena.start)
        began = time.perf_counter()
        try:
            run = arena.run(self._policy(trial), seed=trial.seed, limit_s=self._settings.limit_s)
            verdict = arena.judge(run)
        except Exception as error:
            return LabOutcome(None, seconds=round(time.perf_counter() - began, 3), error=failure_text(error)), None
        run.save(path)
        outcome = LabOutcome(
            verdict.success,
            round(float(verdict.progress), 4),
            round(float(verdict.value_m), 5),
            round(run.commands.duration_s, 3),
            run.chunks,
            round(run.seconds, 3),
        )
        return outcome, run

    def _in_model(
        self, trial: Trial, arena: LabArena, model: str, mode: str, lab: LabOutcome, run: Run | None
    ) -> ModelOutcome:
        began = time.perf_counter()
        try:
            if mode == "open" and run is None:
                return ModelOutcome(None, error=f"no actions: {lab.error}")
            imagined = self._imagine(trial, arena, model, run if mode == "open" else None)
        except Exception as error:
            return ModelOutcome(None, seconds=round(time.perf_counter() - began, 3), error=failure_text(error))
        picture = ""
        if lab.success is not None and bool(imagined.verdict.success) != lab.success and run is not None:
            picture = self._picture(trial, arena, run, model_label(model, mode), imagined, lab)
        return ModelOutcome.of(imagined.verdict, imagined.seconds, imagined.chunks, picture, imagined.made_by)

    def _imagine(self, trial: Trial, arena: LabArena, model: str, run: Run | None) -> Imagined:
        """Predict in open loop with the run's actions, or in closed loop without a run."""
        if model == TRUTH and run is not None:
            began = time.perf_counter()
            rollout = true_rollout(arena, run, self._settings.frames)
            verdict = self._judge.judge(rollout, arena.task, arena.target_mask)
            return Imagined(rollout, verdict, 0, time.perf_counter() - began)
        if run is not None:
            return self._model(model).open_loop(scene_of(arena), run.commands, seed=trial.seed)
        return self._model(model).closed_loop(
            arena, self._policy(trial), seed=trial.seed, limit_s=self._settings.limit_s
        )

    def _picture(self, trial: Trial, arena: LabArena, run: Run, label: str, imagined: Imagined, lab: LabOutcome) -> str:
        name = self._store.picture_name(trial, label)
        take: Callable[[LabState], np.ndarray] = lambda state: arena.picture(state).rgb  # noqa: E731
        states = [run.states[i] for i in np.linspace(0, len(run.states) - 1, STRIP_FRAMES).round().astype(int)]
        write_comparison(self._store.folder / Path(name), [take(s) for s in states], imagined, lab)
        return name

    def _policy(self, trial: Trial) -> GuardedPolicy:
        known = self._policies.get(trial.policy)
        if known is None or known.lost:
            spec: PolicySpec = self._specs[trial.policy]
            known = GuardedPolicy(make_policy(spec), act_timeout_s=self._settings.act_timeout_s)
            self._policies[trial.policy] = known
        return known

    def _model(self, model: str) -> WorldModel:
        if model not in self._models:
            generator = load_generator(
                model,
                offered={"locks": self._store.folder / "locks", "turn": self._turn},
                checkpoint=self._settings.checkpoints.get(model, ""),
            )
            self._models[model] = WorldModel(
                generator,
                self._kinematics,
                judge=self._judge,
                depth=self._settings.depth,
                frames=self._settings.frames,
            )
        return self._models[model]
