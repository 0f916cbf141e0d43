"""`preview`: what a plan would do. Check, render the exact robot, generate the world, report.

The preview node, `kinema4d generate` and `kinema4d replay` call `preview`; evaluations call its middle part, `predict`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.trajectory import FRAMES, JointTrajectory
from kinema4d_ros.generators import Cancel, CommandedMotion, GenerateRequest, Generator, ReportProgress
from kinema4d_ros.io.images import studio, write_image
from kinema4d_ros.previews.arm import ArmState
from kinema4d_ros.previews.checks import CheckedPlan, check_plan
from kinema4d_ros.previews.report import PlanReport, clearance_plot, make_report
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot.model import Robot

__all__ = ["Preview", "Stage", "predict", "preview"]

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
        """Write the rollout's folder, and the clearance plot beside it; return the folder."""
        path = self.rollout.save(folder)
        write_image(path.with_name(f"{path.name}_clearance.png"), clearance_plot(self.report))
        return path


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

    Raises:
        KinemaError: the plan's error code (limits, speeds, start), or the generator's.
    """
    if not isinstance(plan, CheckedPlan):
        needed = getattr(generator, "frames_for", None)
        plan = _check(plan, robot, arm, frames if needed is None else max(frames, needed(plan.duration_s)))
    checked = plan
    rollout = predict(
        checked.frames,
        robot,
        camera,
        generator,
        commands=checked.plan,
        image=studio(camera) if image is None else image,
        depth=depth,
        plan_hash=checked.plan_hash,
        seed=seed,
        progress=progress,
        cancel=cancel,
        on_stage=on_stage,
    )
    if on_stage is not None:
        on_stage("report")
    report = make_report(rollout, robot, checked.frames.for_robot(robot), plan=checked.plan)
    return Preview(checked, rollout, report)


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
    if on_stage is not None:
        on_stage("render")
    drawn = render_pointmaps(robot, motion, camera, rgb=True, threads=threads)
    if on_stage is not None:
        on_stage("generate")
    given = None if commands is None else CommandedMotion.of(robot, commands, motion.for_robot(robot)[0])
    return generator.generate(GenerateRequest(image, drawn, depth, plan_hash, seed, given), progress, cancel)


def _check(plan: JointTrajectory, robot: Robot, arm: ArmState | None, frames: int) -> CheckedPlan:
    if arm is None:
        start = plan.for_robot(robot)[0]
        arm = ArmState(start, np.zeros_like(start), 0.0, 0.0)
    return check_plan(robot, plan, arm, frames=frames)
