"""From one chunk's prediction to frames in metres with the exact robot, at the network's size and the camera's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.inputs import NetworkInputs
from kinema4d_model.output import (
    MetricFit,
    MetricLimits,
    bounds_fit,
    fill_under_robot,
    fit_metric,
    grow_images,
    grow_points,
    paste_robot,
    points_on_rays,
)
from kinema4d_model.pipeline import Prediction
from kinema4d_ros.core.errors import GeneratorError
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.generators.protocol import GenerateRequest

__all__ = ["Frames", "finish", "metres"]


@dataclass(frozen=True, eq=False)
class Frames:
    """Frames of a chunk at one size: rgb (T, H, W, 3) uint8 and xyz (T, H, W, 3) float32 metres, NaN = nothing."""

    rgb: NDArray[np.uint8]
    xyz: NDArray[np.float32]


def metres(
    prediction: Prediction,
    inputs: NetworkInputs,
    request: GenerateRequest,
    *,
    limits: MetricLimits | None = None,
    require: bool = False,
) -> tuple[NDArray[np.float32], MetricFit]:
    """Predicted points (T, h, w, 3) in metres at the network's size, before the robot is pasted; and the fit.

    Args:
        prediction: of the network.
        inputs: that it was made from.
        request: at the network's size.
        limits: of the fit.
        require: raise METRIC_REFUSED instead of falling back to the bounds of the condition.
    """
    robot = request.robot
    try:
        fit = fit_metric(prediction.values, robot.xyz, robot.mask, limits)
    except GeneratorError as error:
        if require:
            raise
        fit = bounds_fit(inputs.bounds, prediction.values, robot.xyz, robot.mask, error.what)
    return fit.apply(prediction.values), fit


def finish(rgb: NDArray[np.uint8], xyz: NDArray[np.float32], robot: PointmapSequence) -> tuple[Frames, float]:
    """Frames at the size of `robot`'s camera: grown if need be, on their rays, the exact robot over them.

    Args:
        rgb: (T, h, w, 3) uint8 at the network's size.
        xyz: (T, h, w, 3) float32 metres at the network's size.
        robot: exact, at the size that is wanted.

    Returns:
        The frames, and how far the points had been off their rays, RMS in metres.
    """
    camera = robot.camera
    if rgb.shape[1:3] != (camera.height, camera.width):
        from kinema4d_model.output.resize import pick_pixels

        small = pick_pixels(robot.mask, rgb.shape[2], rgb.shape[1])
        rgb = grow_images(fill_under_robot(rgb, small), camera.width, camera.height)
        xyz = grow_points(fill_under_robot(xyz, small), camera.width, camera.height)
    else:
        rgb = rgb.copy()
    points, off = points_on_rays(xyz, camera)
    paste_robot(rgb, points, robot)
    return Frames(rgb, points), off
