"""`preview`: what a plan would do. Check, render the exact robot, generate the world, report.

The preview node, `kinema4d generate` and `kinema4d replay` call `preview`; evaluations call its middle part, `predict`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.outcomes import PointBasis
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.task import Task
from kinema4d_ros.core.trajectory import FRAMES, JointTrajectory
from kinema4d_ros.generators import Cancel, CommandedMotion, GenerateRequest, Generator, ReportProgress
from kinema4d_ros.io.files import replacing_file
from kinema4d_ros.io.images import studio, write_image
from kinema4d_ros.previews.arm import ArmState
from kinema4d_ros.previews.checks import CheckedPlan, check_plan
from kinema4d_ros.previews.report import PlanReport, clearance_plot, make_report, robustness_svg
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot.model import Robot

if TYPE_CHECKING:
    from kinema4d_ros.generators.draft.members import CameraSpread
    from kinema4d_ros.generators.draft.robustness import Robustness

__all__ = ["Preview", "Stage", "predict", "preview", "robustness_of", "save_robustness"]

Stage = Literal["render", "generate", "report"]
OnStage = Callable[[Stage], None]
"""Called when a stage begins; what it raises ends the preview."""


@dataclass(frozen=True, eq=False)
class Preview:
    """A checked plan, the predicted rollout and its report."""

    checked: CheckedPlan
    rollout: Rollout
    report: PlanReport

    def save(self, folder: str | Path) -> Path:
        """Write the rollout's folder, and beside it the clearance plot and the robustness; return the folder."""
        path = self.rollout.save(folder)
        write_image(path.with_name(f"{path.name}_clearance.png"), clearance_plot(self.report))
        if self.report.robustness is not None:
            save_robustness(self.report.robustness, path)
        return path


def save_robustness(robustness: Robustness, folder: Path) -> Path:
    """Write FOLDER_robustness.json and FOLDER_robustness.svg beside a folder; return the first."""
    document = folder.with_name(f"{folder.name}_robustness.json")
    with replacing_file(document) as temporary:
        temporary.write_text(json.dumps(robustness.document(), indent=2) + "\n", encoding="utf-8")
    with replacing_file(document.with_suffix(".svg")) as temporary:
        temporary.write_text(robustness_svg(robustness), encoding="utf-8")
    return document


def preview(
    plan: JointTrajectory | CheckedPlan,
    robot: Robot,
    camera: PinholeCamera,
    generator: Generator,
    *,
    arm: ArmState | None = None,
    image: NDArray[np.uint8] | None = None,
    depth: NDArray[np.float32] | None = None,
    frames: int = FRAMES,
    seed: int = 0,
    progress: ReportProgress | None = None,
    cancel: Cancel | None = None,
    on_stage: OnStage | None = None,
    robustness: Task | Literal["auto"] | None = None,
    spread: CameraSpread | None = None,
) -> Preview:
    """Preview one plan in this process.

    Args:
        plan: a trajectory, which is checked against the robot and the arm; or the result of `check_plan`.
        robot: that would execute the plan.
        camera: without distortion.
        generator: predicts the world, see `load_generator`.
        arm: current joint positions; by default those at the plan's start.
        image: (H, W, 3) uint8 RGB, rectified; by default an empty studio.
        depth: (H, W) float32 metres of that image, NaN = none.
        frames: minimum number of frames of the rollout; a generator trained at a certain motion rate gets more for a
            long plan (its method `frames_for`). A `CheckedPlan` has its own.
        seed: of the generator.
        progress: called after each step of the generator.
        cancel: polled by the generator; returning True raises `Cancelled`.
        on_stage: called at the start of each stage.
        robustness: also find by how much the grasp may be off for this task; "auto" = the plan's own goal.
        spread: covariance of the calibration, for the robustness.

    Raises:
        KinemaError: the plan's error code (limits, speeds, start), or the generator's.
    """
    if not isinstance(plan, CheckedPlan):
        needed = getattr(generator, "frames_for", None)
        plan = _check(plan, robot, arm, frames if needed is None else max(frames, needed(plan.duration_s)))
    checked = plan
    request = _request(
        checked.frames,
        robot,
        camera,
        commands=checked.plan,
        image=studio(camera) if image is None else image,
        depth=depth,
        plan_hash=checked.plan_hash,
        seed=seed,
        on_stage=on_stage,
    )
    rollout = generator.generate(request, progress, cancel)
    if on_stage is not None:
        on_stage("report")
    report = make_report(rollout, robot, checked.frames.for_robot(robot), plan=checked.plan)
    if robustness is not None:
        found = _robustness(request, generator, robustness, spread, progress, cancel)
        report = replace(report, robustness=found)
    return Preview(checked, rollout, report)


def robustness_of(
    rollout: Rollout,
    plan: JointTrajectory,
    robot: Robot,
    *,
    task: Task | Literal["auto"] = "auto",
    spread: CameraSpread | None = None,
    seed: int = 0,
    progress: ReportProgress | None = None,
    cancel: Cancel | None = None,
) -> Robustness:
    """Find the robustness of a plan from its rollout, whose first frame is the camera's image with its depth.

    For rollouts of another process, of a graph or of a folder. A rollout without measured depth counts as an image
    without depth.
    """
    checked = _check(plan, robot, None, len(rollout))
    depth = None
    if rollout.provenance.depth == "measured":
        depth = np.where(rollout.robot_mask[0], np.float32(np.nan), rollout.xyz[0, ..., 2]).astype(np.float32)
        if rollout.basis is not None:
            depth[rollout.basis[0] != PointBasis.MEASURED] = np.nan
    request = _request(
        checked.frames, robot, rollout.camera, commands=checked.plan, image=rollout.rgb[0], depth=depth, seed=seed
    )
    return _robustness(request, None, task, spread, progress, cancel)


def _robustness(
    request: GenerateRequest,
    generator: Generator | None,
    task: Task | Literal["auto"],
    spread: CameraSpread | None,
    progress: ReportProgress | None,
    cancel: Cancel | None,
) -> Robustness:
    # MuJoCo takes long to import, and few previews need it.
    from kinema4d_ros.generators.draft.generator import DraftGenerator
    from kinema4d_ros.generators.draft.robustness import find_robustness

    # A draft has fitted the scene already.
    draft = generator if isinstance(generator, DraftGenerator) else DraftGenerator()
    asked = None if task == "auto" else task
    return find_robustness(draft, request, asked, camera=spread, progress=progress, cancel=cancel)


def predict(
    motion: JointTrajectory,
    robot: Robot,
    camera: PinholeCamera,
    generator: Generator,
    *,
    commands: JointTrajectory | None = None,
    image: NDArray[np.uint8],
    depth: NDArray[np.float32] | None = None,
    plan_hash: str = "",
    seed: int = 0,
    threads: int | None = None,
    progress: ReportProgress | None = None,
    cancel: Cancel | None = None,
    on_stage: OnStage | None = None,
) -> Rollout:
    """Render a motion and generate its rollout, without checks and without a report.

    `motion` has one sample for each frame. `commands` is the same motion with the plan's own points and timing, which
    generators that simulate need; joints that it does not name stay where `motion` starts. `threads` render the robot
    (default: all cores). Others as in `preview`.
    """
    request = _request(
        motion,
        robot,
        camera,
        commands=commands,
        image=image,
        depth=depth,
        plan_hash=plan_hash,
        seed=seed,
        threads=threads,
        on_stage=on_stage,
    )
    return generator.generate(request, progress, cancel)


def _request(
    motion: JointTrajectory,
    robot: Robot,
    camera: PinholeCamera,
    *,
    commands: JointTrajectory | None,
    image: NDArray[np.uint8],
    depth: NDArray[np.float32] | None,
    plan_hash: str = "",
    seed: int = 0,
    threads: int | None = None,
    on_stage: OnStage | None = None,
) -> GenerateRequest:
    if on_stage is not None:
        on_stage("render")
    drawn = render_pointmaps(robot, motion, camera, rgb=True, threads=threads)
    if on_stage is not None:
        on_stage("generate")
    given = None if commands is None else CommandedMotion.of(robot, commands, motion.for_robot(robot)[0])
    return GenerateRequest(image, drawn, depth, plan_hash, seed, given)


def _check(plan: JointTrajectory, robot: Robot, arm: ArmState | None, frames: int) -> CheckedPlan:
    if arm is None:
        start = plan.for_robot(robot)[0]
        arm = ArmState(start, np.zeros_like(start), 0.0, 0.0)
    return check_plan(robot, plan, arm, frames=frames)
