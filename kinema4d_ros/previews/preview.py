"""A preview without a graph: one plan, one image, one rollout and its report, in this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.trajectory import FRAMES, JointTrajectory
from kinema4d_ros.generators import GenerateRequest, Generator, ReportProgress
from kinema4d_ros.io.images import studio, write_image
from kinema4d_ros.previews.arm import ArmState
from kinema4d_ros.previews.checks import check_plan
from kinema4d_ros.previews.report import PlanReport, clearance_plot, make_report
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot.model import Robot

__all__ = ["OfflinePreview", "preview_offline"]


@dataclass(frozen=True, eq=False)
class OfflinePreview:
    """A rollout and its report."""

    rollout: Rollout
    report: PlanReport

    def save(self, folder: str | Path) -> Path:
        """The rollout's folder, and beside it the clearance plot."""
        path = self.rollout.save(folder)
        write_image(path.with_name(f"{path.name}_clearance.png"), clearance_plot(self.report))
        return path


def preview_offline(
    robot: Robot,
    camera: PinholeCamera,
    plan: JointTrajectory,
    generator: Generator,
    *,
    arm: ArmState | None = None,
    image: NDArray[np.uint8] | None = None,
    depth: NDArray[np.float32] | None = None,
    frames: int = FRAMES,
    seed: int = 0,
    progress: ReportProgress | None = None,
) -> OfflinePreview:
    """What the graph does with a plan, step by step.

    Args:
        robot: that would follow the plan.
        camera: without distortion.
        plan: checked like one that arrives by message.
        generator: predicts the world.
        arm: where the arm is; by default where the plan starts.
        image: (H, W, 3) uint8 rectified; by default an empty studio.
        depth: (H, W) float32 metres of that image, NaN = none.
        frames: of the rollout.
        seed: of the generator.
        progress: told about the generator's steps.
    """
    if arm is None:
        start = plan.for_robot(robot)[0]
        arm = ArmState(start, np.zeros_like(start), 0.0, 0.0)
    checked = check_plan(robot, plan, arm, frames=frames)
    drawn = render_pointmaps(robot, checked.frames, camera, rgb=True)
    request = GenerateRequest(
        image=studio(camera) if image is None else image,
        robot=drawn,
        depth=depth,
        plan_hash=checked.plan_hash,
        seed=seed,
    )
    rollout = generator.generate(request, progress)
    report = make_report(rollout, robot, checked.frames.for_robot(robot), plan=checked.plan)
    return OfflinePreview(rollout, report)
