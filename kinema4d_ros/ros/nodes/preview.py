"""The preview node: check, render, generate and report each incoming plan; a newer plan supersedes an older one."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from kinema4d_msgs.msg import PreviewedPlan, PreviewStatus
from kinema4d_ros.core.errors import CameraError, Cancelled, ErrorCode, KinemaError, TrajectoryError
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.generators import Cancel, GenerateRequest, ReportProgress
from kinema4d_ros.kinematics.protocol import Kinematics, choose_kinematics
from kinema4d_ros.previews.arm import ArmState
from kinema4d_ros.previews.checks import CheckedPlan, WorldChanges, check_plan, plan_from_poses, start_gap
from kinema4d_ros.previews.gate import GatePolicy
from kinema4d_ros.previews.preview import Preview, Stage, preview
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.ros import names
from kinema4d_ros.ros.generate_client import GenerateClient
from kinema4d_ros.ros.messages.errors import error_to_msg
from kinema4d_ros.ros.messages.poses import path_to_matrices, pose_array_to_matrices
from kinema4d_ros.ros.messages.report import report_to_markers, report_to_msg
from kinema4d_ros.ros.messages.request import request_to_goal
from kinema4d_ros.ros.messages.rollout import rollout_from_msg
from kinema4d_ros.ros.messages.stamps import header, nanoseconds, time_from_ns
from kinema4d_ros.ros.messages.trajectories import trajectory_from_display, trajectory_from_msg, trajectory_to_msg
from kinema4d_ros.ros.nodes.common import ERROR, WARN, Health, KinemaNode, load_scene, load_trust, run_node
from kinema4d_ros.ros.nodes.inputs import ArmInput, CameraInput, Picture
from kinema4d_ros.ros.params import declare, parameter

__all__ = ["PlanInputs", "PreviewNode", "ReadPlan", "main"]

# Inputs: joint trajectories, MoveIt's display plans, tool poses with and without times.

ReadPlan = Callable[[ArmState, Callable[[], None]], JointTrajectory]
"""Converts a received plan, given the arm's state; runs in the worker thread, not in a callback.
It calls its second argument regularly, which raises once the plan is superseded."""


class PlanInputs:
    """Subscriptions to plans; the callbacks only stamp and enqueue.

    Args:
        node: owner of the subscriptions.
        kinematics: inverse kinematics for tool poses.
        take: called with each plan's stamp (builtin_interfaces/Time) and its `ReadPlan`.
    """

    def __init__(self, node: KinemaNode, kinematics: Kinematics, take: Callable[[Any, ReadPlan], None]) -> None:
        self._node = node
        self._kinematics = kinematics
        self._take = take
        node.subscription(names.PLAN, self._take_plan)
        node.subscription(names.EE_PATH, self._take_poses)
        node.subscription(names.EE_TIMED_PATH, self._take_timed)
        try:
            node.subscription(names.DISPLAY_PLAN, self._take_display)
        except ImportError:
            node.get_logger().info("moveit_msgs is not installed: plans on display_planned_path are not taken")

    def _take_plan(self, message: Any) -> None:
        self._hand_on(message.header.stamp, lambda _arm, _go_on: trajectory_from_msg(message))

    def _take_display(self, message: Any) -> None:
        first = message.trajectory[0].joint_trajectory.header.stamp if message.trajectory else None
        self._hand_on(first, lambda _arm, _go_on: trajectory_from_display(message))

    def _take_poses(self, message: Any) -> None:
        def read(arm: ArmState, go_on: Callable[[], None]) -> JointTrajectory:
            self._require_base(message.header.frame_id)
            return plan_from_poses(self._kinematics, pose_array_to_matrices(message), None, arm, go_on)

        self._hand_on(message.header.stamp, read)

    def _take_timed(self, message: Any) -> None:
        def read(arm: ArmState, go_on: Callable[[], None]) -> JointTrajectory:
            self._require_base(message.header.frame_id)
            poses, times = path_to_matrices(message)
            return plan_from_poses(self._kinematics, poses, times, arm, go_on)

        self._hand_on(message.header.stamp, read)

    def _require_base(self, frame: str) -> None:
        base = self._kinematics.robot.base_link
        if frame not in ("", base):
            raise TrajectoryError(
                f"the path is in frame '{frame}'",
                expected=f"'{base}'",
                hint="transform it before sending it",
                code=ErrorCode.CALIBRATION_FRAME_MISMATCH,
            )

    def _hand_on(self, stamp: Any, read: ReadPlan) -> None:
        # Planners often leave the stamp empty: use the time of arrival.
        moment = stamp if stamp is not None and nanoseconds(stamp) else self._node.get_clock().now().to_msg()
        self._take(moment, read)


POLL_S = 0.02

PHASES: dict[Stage, int] = {
    "render": PreviewStatus.RENDERING,
    "generate": PreviewStatus.GENERATING,
    "report": PreviewStatus.REPORTING,
}


@dataclass(frozen=True)
class Settings:
    """Parameters of the preview."""

    robot: str = parameter("yam", "A robot's name, or the path of a .urdf or .xacro file.", read_only=True)
    calibration: str = parameter("demo_lab", "The camera: a path, or a name in calibration/.", read_only=True)
    kinematics: str = parameter("auto", "Inverse kinematics.", choices=("auto", "pinocchio", "moveit"), read_only=True)
    frames: int = parameter(49, "Frames of a rollout, uniform in time.", low=2, high=1000)
    max_age_s: float = parameter(0.5, "Joint states older than this are stale.", low=0.05, high=10.0, read_only=True)
    image_max_age_s: float = parameter(2.0, "Images older than this are stale.", low=0.05, high=60.0, read_only=True)
    start_tolerance_rad: float = parameter(
        GatePolicy.start_tolerance_rad,
        "How far a plan may start from the arm. The gate's own decides about approval: change both.",
        low=0.001,
        high=0.2,
        read_only=True,
    )
    start_tolerance_m: float = parameter(
        GatePolicy.start_tolerance_m, "The same for fingers.", low=0.0001, high=0.02, read_only=True
    )
    generate_timeout_s: float = parameter(1800.0, "Longest time for one rollout.", low=0.5, high=86400.0)
    server_timeout_s: float = parameter(5.0, "How long to look for the generator.", low=0.1, high=600.0)
    result_timeout_s: float = parameter(60.0, "Longest way of a finished rollout to here.", low=0.1, high=86400.0)
    calibration_warn_px: float = parameter(
        2.0, "Warn of a calibration whose residual is larger; 0 = never.", low=0.0, high=1000.0, read_only=True
    )
    calibration_refuse_px: float = parameter(
        0.0, "Refuse one whose residual is larger or unknown; 0 = never.", low=0.0, high=1000.0, read_only=True
    )
    seed: int = parameter(0, "Of the generator's randomness.", low=0, high=2**31 - 1)


@dataclass(eq=False)
class Job:
    """One plan in the queue."""

    number: int
    stamp: Any
    read: ReadPlan
    plan_hash: str = ""
    world_ns: int = 0
    """Stamp of the image that the preview starts from; 0 before it is chosen."""
    stage_s: list[float] = field(default_factory=list)


class PreviewNode(KinemaNode):
    """Turns plans into rollouts, reports and markers."""

    def __init__(self) -> None:
        super().__init__("preview")
        self._settings = settings = declare(self, Settings)
        self._robot, lens = load_scene(settings.robot, settings.calibration)
        self._trust = load_trust(
            settings.calibration, settings.calibration_warn_px, refuse_px=settings.calibration_refuse_px
        )
        self._arm = ArmInput(self, self._robot, settings.max_age_s)
        self._eye = CameraInput(self, lens, settings.image_max_age_s, depth=True)
        self._rollouts = self.publisher(names.PREDICTED_ROLLOUT)
        self._reports = self.publisher(names.PLAN_REPORT)
        self._markers = self.publisher(names.MARKERS)
        self._previewed = self.publisher(names.PREVIEWED_PLAN)
        self._status = self.publisher(names.PREVIEW_STATUS)
        self._generator = GenerateClient(
            self, settings.server_timeout_s, settings.generate_timeout_s, settings.result_timeout_s
        )
        self._wake = threading.Condition()
        self._newest: Job | None = None
        self._number = self._done = self._failed = 0
        self._last_error = ""
        self._changes = WorldChanges()
        self.subscription(names.WORLD_CHANGED, self._world_changed)
        kinematics = choose_kinematics(self._robot, settings.kinematics)
        self._plans = PlanInputs(self, kinematics, self._enqueue)
        self._worker = threading.Thread(target=self._work_forever, name="preview", daemon=True)
        self._worker.start()
        # Tell clients that any plan in progress before a restart was dropped.
        idle = PreviewStatus(header=header(self.get_clock().now().to_msg(), self._robot.base_link))
        idle.phase, idle.eta_s = PreviewStatus.IDLE, math.nan
        self._status.publish(idle)

    def _enqueue(self, stamp: Any, read: ReadPlan) -> None:
        with self._wake:
            self._number += 1
            replaced, self._newest = self._newest, Job(self._number, stamp, read)
            self._wake.notify()
        if replaced is not None:
            self._tell(replaced, PreviewStatus.SUPERSEDED)

    def _world_changed(self, message: Any) -> None:
        self.hear_change(self._changes, message)

    # The worker thread: one plan at a time.

    def _work_forever(self) -> None:
        # Load compiled code and pack the meshes before the first plan arrives.
        render_pointmaps(self._robot, self._robot.home_position()[None], self._eye.camera, rgb=True)
        while not self.closing.is_set():
            with self._wake:
                if self._newest is None and not self._wake.wait(timeout=0.2):
                    continue
                job, self._newest = self._newest, None
            if job is None:
                continue
            try:
                self._preview(job)
                self._done += 1
            except Cancelled as error:
                self._tell(job, PreviewStatus.SUPERSEDED, error=error)
            except Exception as error:
                self._failed += 1
                self._last_error = str(error)
                if isinstance(error, KinemaError):
                    self.get_logger().warning(f"plan not previewed: {error}")
                else:
                    self.complain(error, "plan not previewed: ")
                self._tell(job, PreviewStatus.FAILED, error=error)

    def _superseded(self, job: Job) -> bool:
        return self.closing.is_set() or self._number != job.number

    def _preview(self, job: Job) -> None:
        clock = time.monotonic()

        def lap() -> None:
            nonlocal clock
            now = time.monotonic()
            job.stage_s.append(now - clock)
            clock = now

        self._tell(job, PreviewStatus.CHECKING)
        checked, picture = self._check(job)
        lap()
        asked = _GraphGenerator(self, job, picture)

        def begin(stage: Stage) -> None:
            self._raise_if_superseded(job)
            if stage != "render":
                lap()
            if stage == "report":
                self._rollouts.publish(asked.message)
            self._tell(job, PHASES[stage])

        made = preview(
            checked,
            self._robot,
            self._eye.camera,
            asked,
            image=picture.rgb,
            depth=picture.depth,
            seed=self._settings.seed,
            on_stage=begin,
        )
        self._publish(job, made, asked.message.header.stamp)
        lap()
        self._tell(job, PreviewStatus.DONE, rollout_id=made.rollout.rollout_id)
        stages = ", ".join(f"{s * 1e3:.0f}" for s in job.stage_s)
        self.get_logger().info(f"plan {job.plan_hash[:12]} previewed (check, render, generate, report: {stages} ms)")

    def _check(self, job: Job) -> tuple[CheckedPlan, Picture]:
        self._trust.require()
        arm = self._arm.state()
        plan = job.read(arm, lambda: self._raise_if_superseded(job))
        checked = check_plan(
            self._robot,
            plan,
            arm,
            start_tolerance_rad=self._settings.start_tolerance_rad,
            start_tolerance_m=self._settings.start_tolerance_m,
            frames=self._settings.frames,
        )
        job.plan_hash = checked.plan_hash
        for overshoot in checked.overshoots:
            self.get_logger().info(f"{overshoot}, within the tolerance")
        if self._eye.mismatch is not None:
            raise self._eye.mismatch
        picture = self._picture(job, checked)
        job.world_ns = picture.seen_ns
        return checked, picture

    def _picture(self, job: Job, checked: CheckedPlan) -> Picture:
        """Return an image of the current scene with the arm at the plan's start; wait for one after a change."""
        settings = self._settings
        start = checked.frames.for_robot(self._robot)[0]
        deadline = self.now_s() + settings.image_max_age_s
        while True:
            picture = self._eye.picture()
            then = self._arm.monitor.at(nanoseconds(picture.stamp) * 1e-9)
            # Without a joint state of that time (a camera with another clock) there is nothing to compare.
            apart = None
            if then is not None:
                apart = start_gap(self._robot, start, then, settings.start_tolerance_rad, settings.start_tolerance_m)
            if apart is None and picture.seen_ns > self._changes.newest_ns:
                return picture
            if self.now_s() > deadline:
                raise CameraError(
                    "the newest image shows the scene before it changed"
                    if apart is None
                    else f"the newest image shows the arm elsewhere: {apart}",
                    expected="an image taken after the arm and the table came to rest",
                    hint="is the camera slow, or its clock behind the arm's?",
                    code=ErrorCode.CAMERA_STALE,
                )
            self._raise_if_superseded(job)
            self.closing.wait(POLL_S)

    def generate(self, request: GenerateRequest, job: Job, picture: Picture) -> Any:
        """Ask the generator node; return its result message."""
        timeout_s = self._settings.generate_timeout_s
        links = [link.name for link in self._robot.links]
        return self._generator.generate(
            request_to_goal(request, picture.stamp, job.stamp, links, timeout_s=timeout_s),
            lambda feedback: self._tell_progress(job, feedback),
            lambda: self._raise_if_superseded(job),
        )

    def _publish(self, job: Job, made: Preview, stamp: Any) -> None:
        report = made.report
        if self._trust.warning:
            report = replace(report, warnings=(*report.warnings, self._trust.warning))
        self._raise_if_superseded(job)
        self._reports.publish(report_to_msg(report, stamp))
        self._markers.publish(report_to_markers(report, stamp))
        # Published last: from then on the plan can be approved, so everything a person looks at must be out before.
        head = header(job.stamp, self._robot.base_link)
        self._previewed.publish(
            PreviewedPlan(
                header=head,
                trajectory=trajectory_to_msg(made.checked.plan, head),
                plan_hash=made.checked.plan_hash,
                rollout_id=made.rollout.rollout_id,
                world_stamp=time_from_ns(job.world_ns),
            )
        )

    def _raise_if_superseded(self, job: Job) -> None:
        if self._superseded(job):
            raise Cancelled("the plan was superseded by a newer one", code=ErrorCode.PLAN_SUPERSEDED)
        if job.world_ns and job.world_ns <= self._changes.newest_ns:
            raise KinemaError(
                "the scene changed while the plan was previewed",
                expected="a scene that stays as the camera saw it",
                hint="preview the plan again",
                code=ErrorCode.WORLD_CHANGED,
            )

    def _tell_progress(self, job: Job, feedback: Any) -> None:
        if not self._superseded(job):
            self._tell(
                job,
                PreviewStatus.GENERATING,
                detail=feedback.phase,
                step=feedback.step,
                steps=feedback.steps,
                eta_s=feedback.eta_s,
            )

    def _tell(self, job: Job, phase: int, error: BaseException | None = None, **fields: Any) -> None:
        status = PreviewStatus(
            header=header(job.stamp, self._robot.base_link),
            plan_hash=job.plan_hash,
            phase=phase,
            error=error_to_msg(error),
            stage_s=job.stage_s,
        )
        status.eta_s = math.nan
        for name, value in fields.items():
            setattr(status, name, value)
        self._status.publish(status)

    def health(self) -> Health:
        """Report whether a plan can be previewed now, and how previews went."""
        values = {
            **self._arm.values(),
            "previews done": self._done,
            "previews failed": self._failed,
            "last error": self._last_error or "none",
            **self._trust.values(),
        }
        depth_age_s = self._eye.depth_age_s()
        values["depth image age"] = "none came" if depth_age_s is None else f"{depth_age_s * 1e3:.0f} ms"
        if self._trust.refused:
            return Health(ERROR, f"no plan is previewed: the calibration is refused, {self._trust.text}", values)
        if self._eye.mismatch is not None:
            return Health(ERROR, str(self._eye.mismatch), values)
        try:
            self._arm.state()
            self._eye.picture()
        except KinemaError as error:
            return Health(WARN, error.what, values)
        if not self._generator.ready():
            return Health(WARN, "no generator answers", values)
        if depth_age_s is not None and depth_age_s > self._eye.max_age_s:
            without = f"the depth image is {depth_age_s:.1f} s old: predictions start from the picture alone"
            return Health(WARN, f"ready for a plan; {without}", values)
        if self._trust.level != "good":
            return Health(WARN, f"ready for a plan; calibration: {self._trust.text}", values)
        return Health(message="ready for a plan", values=values)

    def close(self) -> None:
        """Wait for the worker."""
        super().close()
        with self._wake:
            self._wake.notify()
        self._worker.join(timeout=5.0)


class _GraphGenerator:
    """The generator node as the `Generator` of one preview; keeps its rollout message, which is published unchanged."""

    name = "graph"

    def __init__(self, node: PreviewNode, job: Job, picture: Picture) -> None:
        self._node, self._job, self._picture = node, job, picture
        self.message: Any = None

    def generate(
        self, request: GenerateRequest, progress: ReportProgress | None = None, cancel: Cancel | None = None
    ) -> Rollout:
        """Generate; progress and cancellation go through the node's own status and queue."""
        self.message = self._node.generate(request, self._job, self._picture).rollout
        return rollout_from_msg(self.message)


def main() -> int:
    """Run the node."""
    return run_node(PreviewNode)


if __name__ == "__main__":
    raise SystemExit(main())
