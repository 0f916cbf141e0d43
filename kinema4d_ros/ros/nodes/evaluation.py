"""Node that scores policies with rollouts: serves the evaluate action and publishes each trial and the result.

Trials run in a separate process; the rollouts come from the graph's generator or from this node's own model.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rclpy.action import CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup

from kinema4d_msgs.action import EvaluatePolicy
from kinema4d_msgs.msg import EvaluatedTrial, EvaluationResult
from kinema4d_ros.core.errors import Cancelled, ErrorCode
from kinema4d_ros.evaluation.campaign import Campaign
from kinema4d_ros.evaluation.rates import Interval, PairedOutcomes
from kinema4d_ros.evaluation.report import write_report
from kinema4d_ros.evaluation.settings import EvaluationSettings
from kinema4d_ros.evaluation.trial import TrialRecord
from kinema4d_ros.generators.spec import SPECS
from kinema4d_ros.io.resources import calibration_path
from kinema4d_ros.policies.protocol import PolicyError
from kinema4d_ros.policies.registry import PolicySpec
from kinema4d_ros.ros import names
from kinema4d_ros.ros.calls import GoalServer
from kinema4d_ros.ros.messages.errors import error_to_msg
from kinema4d_ros.ros.messages.stamps import header
from kinema4d_ros.ros.nodes.common import Health, KinemaNode, run_node
from kinema4d_ros.ros.params import declare, parameter

__all__ = ["Evaluation", "main"]

MODES = {EvaluatePolicy.Goal.OPEN_LOOP: "open", EvaluatePolicy.Goal.CLOSED_LOOP: "closed"}
NONE = (math.nan, math.nan)


@dataclass(frozen=True)
class Settings:
    """Parameters of the evaluation node."""

    robot: str = parameter("yam", "A robot's name, or the path of a .urdf or .xacro file.", read_only=True)
    calibration: str = parameter("demo_lab", "The camera: a path, or a name in calibration/.", read_only=True)
    model: str = parameter("ros", f"The world model: ros (the graph's generator), or {SPECS}.", read_only=True)
    folder: str = parameter("out/evaluations", "Folder of evaluations and their reports.", read_only=True)
    kinds: tuple[str, ...] = parameter(
        ("expert", "replay", "lerobot"),
        "Kinds of policies allowed in goals. `python` runs code on this machine, `remote` connects to others.",
        read_only=True,
    )
    width: int = parameter(360, "Width of the images, pixels.", low=64, high=4096)
    frames: int = parameter(49, "Frames of a rollout.", low=2, high=1000)
    max_episodes: int = parameter(1000, "Maximum number of episodes per goal.", low=1, high=100000)
    act_timeout_s: float = parameter(60.0, "Timeout of one policy step, seconds.", low=0.1, high=3600.0)


class Evaluation(KinemaNode):
    """Server of `kinema4d/evaluate`, one goal at a time."""

    def __init__(self) -> None:
        super().__init__("evaluation")
        self._settings = declare(self, Settings)
        self._busy = threading.Lock()
        self._progress = ""
        self._finished = 0
        self._trials = self.publisher(names.EVALUATED_TRIAL)
        self._results = self.publisher(names.EVALUATION_RESULT)
        self._server = GoalServer(
            self,
            EvaluatePolicy,
            names.EVALUATE.name,
            execute_callback=self._execute,
            goal_callback=self._admit,
            cancel_callback=lambda _goal: CancelResponse.ACCEPT,
            callback_group=ReentrantCallbackGroup(),
        )

    def _admit(self, _goal: Any) -> Any:
        taken = not self.closing.is_set() and self._busy.acquire(blocking=False)
        return GoalResponse.ACCEPT if taken else GoalResponse.REJECT

    def _execute(self, handle: Any) -> Any:
        result = EvaluatePolicy.Result()
        try:
            self._evaluate(handle, result)
        except Exception as error:
            result.error = error_to_msg(error)
            self.get_logger().error(f"evaluation ended: {error}")
            if isinstance(error, Cancelled) and handle.is_cancel_requested:
                handle.canceled()
            else:
                handle.abort()
            return result
        finally:
            self._progress = ""
            self._busy.release()
        self._finished += 1
        handle.succeed()
        return result

    def _evaluate(self, handle: Any, result: Any) -> None:
        goal = handle.request
        asked = self._asked(goal)
        folder = self._new_folder()
        campaign = Campaign(asked, folder)
        label = asked.labels()[0]
        began = time.monotonic()
        records: list[TrialRecord] = []

        def tell(record: TrialRecord, done: int, total: int) -> None:
            records.append(record)
            self._progress = f"{done} of {total} episodes"
            self._trials.publish(self._trial(record, label))
            successes = sum(bool(r.models[label].success) for r in records if label in r.models)
            eta_s = (time.monotonic() - began) / done * (total - done)
            handle.publish_feedback(
                EvaluatePolicy.Feedback(episode=done, episodes=total, successes=successes, eta_s=eta_s)
            )

        def unwanted() -> bool:
            return bool(handle.is_cancel_requested or self.closing.is_set())

        campaign.run(workers=1, progress=tell, cancelled=unwanted)
        if records:
            result.result = self._summary(goal, records, label, folder)
            result.episodes = result.result.episodes
            result.successes = sum(bool(r.models[label].success) for r in _judged(records, label))
            self._results.publish(result.result)
            write_report(folder)
        if unwanted():
            raise Cancelled(f"cancelled after {len(records)} of {goal.episodes} episodes")

    def _asked(self, goal: Any) -> EvaluationSettings:
        settings = self._settings
        spec = PolicySpec.parse(goal.policy)
        if spec.kind not in settings.kinds:
            raise PolicyError(
                f"policies of kind '{spec.kind}' are not allowed here",
                expected=f"one of {', '.join(settings.kinds)}",
                hint="add the kind to the node's parameter `kinds`",
                code=ErrorCode.POLICY_UNAVAILABLE,
            )
        if goal.mode not in MODES or not 1 <= goal.episodes <= settings.max_episodes:
            raise PolicyError(
                f"mode is {goal.mode}, episodes is {goal.episodes}",
                expected=f"mode 0 or 1, 1 to {settings.max_episodes} episodes",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        model, space = settings.model, self.get_namespace().strip("/")
        if model == "ros" and space:
            model = f"ros:{space}"
        return EvaluationSettings(
            policies=[goal.policy],
            scenarios=[goal.scenario],
            runs=goal.episodes,
            models=[model],
            modes=[MODES[goal.mode]],
            task=goal.task,
            seed=goal.seed,
            robot=settings.robot,
            camera=str(calibration_path(settings.calibration)),
            width=settings.width,
            frames=settings.frames,
            act_timeout_s=settings.act_timeout_s,
        )

    def _new_folder(self) -> Path:
        stem = time.strftime("%Y%m%d-%H%M%S")
        parent = Path(self._settings.folder)
        return next(
            path for path in (parent / f"{stem}{tail}" for tail in ("", *(f"-{n}" for n in range(1, 1000))))
            if not path.exists()
        )  # fmt: skip

    def _trial(self, record: TrialRecord, label: str) -> Any:
        model = record.models.get(label)
        return EvaluatedTrial(
            header=header(self.get_clock().now().to_msg()),
            policy=record.trial.policy,
            scenario=record.trial.scenario,
            seed=record.trial.seed,
            lab=_sign(record.lab.success),
            predicted=_sign(model.success if model else None),
            confidence=model.confidence if model else 0.0,
            probability=math.nan if model is None or model.probability is None else model.probability,
            model=label,
            reason=record.lab.error or (model.error or model.reason if model else ""),
        )

    def _summary(self, goal: Any, records: list[TrialRecord], label: str, folder: Path) -> Any:
        judged = _judged(records, label)
        message = EvaluationResult(
            header=header(self.get_clock().now().to_msg()),
            policy=goal.policy,
            task=goal.task,
            scenario=goal.scenario,
            model=label,
            episodes=len(judged),
            failed=len(records) - len(judged),
            undecided=sum(r.models[label].success is None for r in judged),
            report=str(folder.resolve()),
            success_rate=math.nan,
            lab_success_rate=math.nan,
            bias=math.nan,
            interval_95=NONE,
            lab_interval_95=NONE,
            bias_interval_95=NONE,
        )
        if judged:
            pairs = PairedOutcomes.of(
                [bool(r.models[label].success) for r in judged], [bool(r.lab.success) for r in judged]
            )
            message.success_rate, message.interval_95 = _parts(pairs.model())
            message.lab_success_rate, message.lab_interval_95 = _parts(pairs.real())
            message.bias, message.bias_interval_95 = _parts(pairs.bias())
        return message

    def health(self) -> Health:
        """Report the progress of the current evaluation."""
        values = {"model": self._settings.model, "evaluations": self._finished, "under way": self._progress or "none"}
        return Health(message=self._progress or "waiting for goals", values=values)


def _judged(records: list[TrialRecord], label: str) -> list[TrialRecord]:
    """Return the trials that completed in the lab and in the model."""
    return [r for r in records if r.lab.success is not None and label in r.models and not r.models[label].error]


def _sign(success: bool | None) -> int:
    return int(EvaluatedTrial.UNKNOWN) if success is None else int(success)


def _parts(interval: Interval) -> tuple[float, tuple[float, float]]:
    return float(interval.estimate), (float(interval.low), float(interval.high))


def main() -> int:
    """Run the node: one thread executes the goal, the others serve requests."""
    return run_node(Evaluation, threads=6)


if __name__ == "__main__":
    raise SystemExit(main())
