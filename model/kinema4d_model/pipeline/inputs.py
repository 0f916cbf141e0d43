"""Network inputs of a request: resized to the preset, values in [0, 1], frames padded to the codec's groups.

    GenerateRequest (camera's size, metres) ─> small request ─> composite (static world) ─> bounds, in metres
                                                                     └─> NetworkInputs, all of it in [0, 1]

The pointmaps are normalised by the known scene: the measured or assumed world and the whole robot (`normalise.py`).
The network's output has the same units up to an affine map, which the metric fit estimates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.pipeline.normalise import PointScale, measure_scale
from kinema4d_model.pipeline.resize import pick_pixels, shrink_images
from kinema4d_model.preset_parts import ConditionSpec
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.core.rollout import Frames
from kinema4d_ros.generators._kernels import shade_frames
from kinema4d_ros.generators.carry import carried_frames, describe, find_candidate
from kinema4d_ros.generators.composite import CompositeGenerator
from kinema4d_ros.generators.protocol import GenerateRequest

__all__ = ["NetworkInputs", "prepare_inputs", "shrink_hypothesis", "shrink_request"]


@dataclass(frozen=True, eq=False)
class NetworkInputs:
    """Inputs of one network run; T is 1 + a multiple of 4, H and W are the network's.

    Attributes:
        image: (H, W, 3) uint8.
        robot_rgb: (T, H, W, 3) uint8, 0 = no robot.
        robot_xyz01: (T, H, W, 3) float32 in [0, 1], 0 where there is no robot.
        robot_mask: (T, H, W) bool.
        composite_rgb: (T, H, W, 3) uint8, static first image with the exact robot.
        composite_xyz01: (T, H, W, 3) float32 in [0, 1], the same as points.
        bounds: metres, camera optical frame, the points that map to 0 and 1: (2, 3) float64, or (2, frames, 3) if every
            frame has its own.
        frames: requested number of frames; the others up to T are padding.
        carried_rgb, carried_xyz01: like the composite, with the object between the closing fingers moving with the
            gripper, or another hypothesis of what moves; None if there is none.
        description: (20,) float32, pose of that object and the fingers; see `kinema4d_ros.generators.carry`.
    """

    image: NDArray[np.uint8]
    robot_rgb: NDArray[np.uint8]
    robot_xyz01: NDArray[np.float32]
    robot_mask: NDArray[np.bool_]
    composite_rgb: NDArray[np.uint8]
    composite_xyz01: NDArray[np.float32]
    bounds: NDArray[np.float64]
    frames: int
    carried_rgb: NDArray[np.uint8] | None = None
    carried_xyz01: NDArray[np.float32] | None = None
    description: NDArray[np.float32] | None = None


def shrink_request(request: GenerateRequest, width: int, height: int) -> GenerateRequest:
    """Resize a request: the image is filtered, depth and robot are sampled per pixel."""
    robot = request.robot
    if (robot.camera.width, robot.camera.height) == (width, height):
        return request
    small = PointmapSequence(
        pick_pixels(robot.xyz, width, height),
        pick_pixels(robot.link_ids, width, height),
        robot.camera.scaled(width, height),
        robot.times,
        None if robot.rgb is None else pick_pixels(robot.rgb, width, height),
        robot.grip,
    )
    depth = None if request.depth is None else pick_pixels(request.depth[None], width, height)[0]
    return replace(request, image=shrink_images(request.image[None], width, height)[0], robot=small, depth=depth)


def shrink_hypothesis(frames: Frames, width: int, height: int) -> Frames:
    """Resize frames as `shrink_request` does: images are filtered, points and masks are sampled per pixel."""
    rgb, xyz, mask = frames.arrays
    if mask.shape[1:] == (height, width):
        return frames
    sizes = width, height
    return Frames(shrink_images(rgb, *sizes), pick_pixels(xyz, *sizes), pick_pixels(mask, *sizes))


def prepare_inputs(
    request: GenerateRequest,
    composite: CompositeGenerator,
    temporal_factor: int,
    spec: ConditionSpec | None = None,
    length: int = 0,
    hypothesis: Frames | None = None,
) -> tuple[NetworkInputs, PointScale]:
    """Build the inputs of a request at the network's size; also return the scale that normalised its points.

    Args:
        request: at the network's size.
        composite: makes the still world.
        temporal_factor: frames in a group of the codec.
        spec: selects normalisation and padding; None = the defaults.
        length: number of frames that the network was trained for, for `padding: mirror`.
        hypothesis: of what moves, at the network's size, in place of the carried world; see `shrink_hypothesis`.
    """
    spec = spec or ConditionSpec()
    robot, table = request.robot, composite.table_height_m
    world = composite.still_world(request)
    static = composite.compose(request, world)
    present = np.asarray(np.isfinite(static.xyz).all(-1))
    scale = measure_scale(spec.normalisation, (static.xyz, present), (robot.xyz, robot.mask))
    colours = robot.rgb
    if colours is None:
        colours = np.empty((*robot.link_ids.shape, 3), np.uint8)
        shade_frames(robot.xyz, robot.link_ids, colours)
    rays = request.camera.rays()
    frames = len(robot)
    padded = _padded(frames, temporal_factor, spec.padding, length)
    robot_xyz01 = np.where(robot.mask[..., None], scale.values(robot.xyz, rays), np.float32(0))
    carried_rgb = carried_xyz01 = None
    candidate = find_candidate(world, robot, table_height_m=table)
    if hypothesis is not None:
        # The network sees the robot's model colours everywhere, so that the worlds differ in what moves alone.
        exact = static.robot_mask & hypothesis.robot_mask
        carried_rgb = np.where(exact[..., None], static.rgb, hypothesis.rgb)[padded]
        carried_xyz01 = scale.values(hypothesis.xyz, rays)[padded]
    elif candidate is not None:
        carried = static.copy()
        carried_frames(
            world,
            candidate,
            robot,
            colours,
            *carried.arrays,
            table_height_m=table,
            max_range_m=composite.max_range_m,
            quick_fill=composite.quick_fill,
        )
        carried_rgb, carried_xyz01 = carried.rgb[padded], scale.values(carried.xyz, rays)[padded]
    return (
        NetworkInputs(
            request.image,
            colours[padded],
            robot_xyz01[padded],
            robot.mask[padded],
            static.rgb[padded],
            scale.values(static.xyz, rays)[padded],
            scale.bounds,
            frames,
            carried_rgb,
            carried_xyz01,
            describe(candidate, robot, table_height_m=table),
        ),
        scale,
    )


def _padded(frames: int, temporal_factor: int, padding: str, length: int) -> NDArray[np.intp]:
    """Return the frame shown at each of the network's times; "mirror" fills `length`, the last frame shown twice."""
    if padding == "mirror" and frames <= length:
        there_and_back = np.concatenate([np.arange(frames), np.arange(frames)[::-1]])
        return np.resize(there_and_back, length)
    return np.concatenate([np.arange(frames), np.full(-(frames - 1) % temporal_factor, frames - 1)])
