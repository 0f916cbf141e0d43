"""`evaluate_recordings`: open-loop evaluation of recorded runs in a world model.

dataset (imported recordings) ─> first image, commands, known outcome ─> model ─> judge ─> the same report
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d_model.assessment.run import episodes_of
from kinema4d_model.data.episode import Episode, load_robot, recorded_task
from kinema4d_ros.core.errors import DataError, ErrorCode, EvaluationError
from kinema4d_ros.core.task import Task
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.evaluation.judges import GEOMETRIC, Judge, TruthJudge, Verdict, make_judge
from kinema4d_ros.evaluation.pictures import STRIP_FRAMES, write_comparison
from kinema4d_ros.evaluation.settings import has_weights, model_label
from kinema4d_ros.evaluation.store import TrialStore
from kinema4d_ros.evaluation.trial import LabOutcome, ModelOutcome, Trial, TrialRecord, failure_text, is_outage
from kinema4d_ros.generators import Generator, load_generator
from kinema4d_ros.kinematics import Kinematics, choose_kinematics
from kinema4d_ros.policies.protocol import Policy
from kinema4d_ros.worlds import ModelWorld, Run, Scene, Session, World

__all__ = ["RecordedWorld", "commands_of", "evaluate_recordings", "task_of", "trial_of"]

GROWS = ("policies", "scenarios", "models", "trials", "checkpoints")
ABSENT = {"judge": GEOMETRIC}


def trial_of(episode: Episode, number: int) -> Trial:
    """Return the trial of an episode; policy = `details.policy` or the source, scenario = the task."""
    return Trial(str(episode.details.get("policy") or episode.source), episode.task or "unknown", number)


def task_of(episode: Episode) -> Task:
    """Return the task of an episode, with the recorded instruction.

    Raises:
        DataError: a place or stack without a goal position.
    """
    task = recorded_task(episode.task, episode.outcome.target, episode.details, f"episode '{episode.key}'")
    return replace(task, instruction=episode.captions.get("instruction", ""))


def commands_of(episode: Episode) -> JointTrajectory:
    """Return the commanded trajectory.

    Raises:
        DataError: no commands of a known robot, or no camera pose.
    """
    if episode.actions is None or not episode.robot:
        raise DataError(
            f"episode '{episode.key}' has no actions of a known robot",
            expected="actions, and a robot model",
        )
    if "base_T_camera" in episode.missing or "camera" in episode.missing:
        raise DataError(f"the camera of episode '{episode.key}' is not calibrated", expected="a camera with its pose")
    return JointTrajectory(episode.joint_names, episode.times, episode.actions)


class RecordedWorld(World):
    """A recorded episode as a world: its own commands give its recorded outcome; it reacts to no others.

    Args:
        episode: of a dataset, with an outcome.
        kinematics: of its robot.
    """

    def __init__(self, episode: Episode, kinematics: Kinematics) -> None:
        super().__init__(kinematics)
        self._episode = episode
        self.commands = commands_of(episode)
        self.task = task_of(episode)

    @property
    def scene(self) -> Scene:
        """The scene of the first image, with the target's pixels if known; otherwise the judge finds them."""
        episode, target = self._episode, None
        if episode.ids is not None and episode.outcome.target in episode.names:
            target = episode.object_mask(episode.outcome.target)[0]
        depth = None if episode.depth_m is None else episode.depth_m[0]
        return Scene(episode.rgb[0], episode.camera, self.commands.positions[0], depth, target)

    def begin(self, seed: int = 0) -> Session:
        """Refuse: a recording cannot react."""
        raise EvaluationError(
            f"episode '{self._episode.key}' is a recording and does not react to new commands",
            expected="its own commands, or a world model of its scene",
        )

    def run(self, actor: Policy | JointTrajectory, task: Task, **options: Any) -> Run:
        """Return the recorded run of the recorded commands."""
        if actor is not self.commands:
            self.begin()
        verdict = recorded_verdict(self._episode, task)
        return Run(self.commands, verdict)


def recorded_verdict(episode: Episode, task: Task) -> Verdict:
    """Return the recorded outcome; the measured value is computed where the target's poses were recorded."""
    value = float("nan")
    if any(thing.name == episode.outcome.target for thing in episode.outcome.objects):
        value = TruthJudge.of_episode(episode).judge(None, task).value_m
    success = bool(episode.outcome.success)
    return Verdict(success, float(success), 1.0, len(episode) - 1, None, "as recorded", value)


def evaluate_recordings(
    data: str | Path,
    split: str,
    out: str | Path,
    *,
    models: Sequence[str],
    checkpoints: dict[str, str] | None = None,
    limit: int | None = None,
    depth: bool = False,
    judge: str = GEOMETRIC,
    progress: Callable[[TrialRecord, int], Any] = lambda record, done: None,
) -> int:
    """Judge every episode of a split that has an outcome; return the number judged in this call.

    Args:
        data: a dataset of `kinema4d data make` or `kinema4d data import`.
        split: split of the dataset.
        out: evaluation folder; a second call resumes where the first ended.
        models, checkpoints: as for `kinema4d evaluate`.
        limit: use only the first episodes.
        depth: give the models the measured depth of the first image.
        judge: of predictions, see `trials.judging`.
        progress: called with every record and the number done.
    """
    store = TrialStore(out)
    given = checkpoints or {}
    weights = {model: str(given.get(model, "")) for model in models if has_weights(model) or model in given}
    settings = {
        "source": str(data),
        "split": split,
        "runs": 0,
        "seed": 0,
        "models": list(models),
        "modes": ["open"],
        "task": "recorded",
        "depth": depth,
        "checkpoints": weights,
        "judge": judge,
    }
    # Policies, scenarios and the number of trials are unknown until the end.
    store.check({**settings, "policies": {}, "scenarios": [], "trials": 0}, GROWS, ABSENT)
    known = store.records()
    labels = {model: model_label(model, "open") for model in models}
    generators: dict[str, Generator] = {}
    judging = make_judge(judge)
    trials: list[Trial] = []
    judged = 0
    for number, episode in enumerate(_with_outcome(data, split, limit)):
        trial = trial_of(episode, number)
        trials.append(trial)
        before = known.get(trial.key)
        missing = [model for model in models if before is None or _open(before.models.get(labels[model]))]
        lab = _lab(episode)
        # An earlier record may hold a label computed with other thresholds.
        if not missing and before is not None and before.lab.success == lab.success:
            continue
        outcomes = dict(before.models) if before else {}
        for model in missing:
            if model not in generators:
                generators[model] = load_generator(
                    model, offered={"locks": store.folder / "locks"}, checkpoint=weights.get(model, "")
                )
            outcomes[labels[model]] = _judge(store, trial, episode, generators[model], judging, depth, labels[model])
        record = TrialRecord(trial, lab, outcomes)
        store.add(record)
        judged += 1
        progress(record, len(trials))
    if not trials:
        raise DataError(
            f"no episode of split '{split}' of {data} has a known outcome",
            expected="episodes with outcome.success",
            code=ErrorCode.FILE_MALFORMED,
        )
    # Written last, since policies and tasks are known only now. No trials are planned: all are recorded.
    store.agree(
        {
            **settings,
            "policies": {trial.policy: "recorded" for trial in trials},
            "scenarios": sorted({trial.scenario for trial in trials}),
            "trials": len(trials),
        },
        GROWS,
        ABSENT,
    )
    return judged


def _open(outcome: ModelOutcome | None) -> bool:
    """Return whether the outcome is missing or records an outage."""
    return outcome is None or is_outage(outcome.error)


def _with_outcome(data: str | Path, split: str, limit: int | None) -> Iterator[Episode]:
    for episode in episodes_of(data, split, limit):
        if episode.outcome.success is not None:
            yield episode


def _lab(episode: Episode) -> LabOutcome:
    verdict = recorded_verdict(episode, task_of(episode))
    return LabOutcome(verdict.success, verdict.progress, round(verdict.value_m, 5), round(float(episode.times[-1]), 3))


@lru_cache(maxsize=4)
def _kinematics(robot: str) -> Kinematics:
    return choose_kinematics(load_robot(robot))


def _judge(
    store: TrialStore, trial: Trial, episode: Episode, generator: Generator, judge: Judge, depth: bool, label: str
) -> ModelOutcome:
    try:
        recorded = RecordedWorld(episode, _kinematics(episode.robot))
        world = ModelWorld(
            recorded.scene, generator, recorded.kinematics, judge=judge, depth=depth, frames=len(episode)
        )
        run = world.run(recorded.commands, recorded.task, seed=trial.seed)
    except Exception as error:  # fails this recording only; continue with the others
        return ModelOutcome(None, error=failure_text(error))
    picture = ""
    if bool(run.verdict.success) != episode.outcome.success and run.rollout is not None:
        picture = store.picture_name(trial, label)
        frames = np.linspace(0, len(episode) - 1, STRIP_FRAMES).round().astype(int)
        real = [episode.rgb[i] for i in frames]
        write_comparison(store.folder / picture, real, run.rollout, run.verdict, _lab(episode))
    return ModelOutcome.of(run.verdict, run.seconds, picture=picture, made_by=run.made_by)
