"""Network inputs of a request: resized to the preset, values in [0, 1], frames padded to the codec's groups.

    GenerateRequest (camera's size, metres) ─> small request ─> composite (static world) ─> bounds, in metres
                                                                     └─> NetworkInputs, all of it in [0, 1]

The pointmaps are normalised with the bounds of the known scene: the measured or assumed world and the whole robot.
The network's output has the same units up to an affine map, which the metric fit estimates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.pipeline.resize import pick_pixels, shrink_images
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.generators._kernels import shade_frames
from kinema4d_ros.generators.carry import carried_frames, describe, find_candidate
from kinema4d_ros.generators.composite import CompositeGenerator
from kinema4d_ros.generators.protocol import GenerateRequest

__all__ = ["NetworkInputs", "normalise", "prepare_inputs", "shrink_request"]


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
        bounds: (2, 3) float64, metres, camera optical frame: the points that map to 0 and 1.
        frames: requested number of frames; the others up to T repeat the last.
        carried_rgb, carried_xyz01: like the composite, with the object between the closing fingers moving with the
            gripper; None if there is no such object.
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


def prepare_inputs(
    request: GenerateRequest, composite: CompositeGenerator, temporal_factor: int
) -> tuple[NetworkInputs, NDArray[np.float32]]:
    """Build the inputs of a request at the network's size; also return the composite's points in metres."""
    robot, table = request.robot, composite.table_height_m
    world = composite.still_world(request)
    static = composite.compose(request, world)
    bounds = _bounds(static.xyz, robot)
    colours = robot.rgb
    if colours is None:
        colours = np.empty((*robot.link_ids.shape, 3), np.uint8)
        shade_frames(robot.xyz, robot.link_ids, colours)
    rays = request.camera.rays()
    frames = len(robot)
    missing = -(frames - 1) % temporal_factor
    padded = np.concatenate([np.arange(frames), np.full(missing, frames - 1)])
    robot_xyz01 = np.where(robot.mask[..., None], normalise(robot.xyz, bounds, rays), np.float32(0))
    carried_rgb = carried_xyz01 = None
    candidate = find_candidate(world, robot, table_height_m=table)
    if candidate is not None:
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
        carried_rgb, carried_xyz01 = carried.rgb[padded], normalise(carried.xyz, bounds, rays)[padded]
    return (
        NetworkInputs(
            request.image,
            colours[padded],
            robot_xyz01[padded],
            robot.mask[padded],
            static.rgb[padded],
            normalise(static.xyz, bounds, rays)[padded],
            bounds,
            frames,
            carried_rgb,
            carried_xyz01,
            describe(candidate, robot, table_height_m=table),
        ),
        static.xyz,
    )


def normalise(xyz: NDArray[np.float32], bounds: NDArray[np.float64], rays: NDArray[np.float64]) -> NDArray[np.float32]:
    """Map points (T, H, W, 3) from metres to [0, 1], clipped; NaN (no point) becomes the far end of the pixel's ray."""
    far = rays * bounds[1, 2]
    known = np.isfinite(xyz).all(-1, keepdims=True)
    span = np.maximum(bounds[1] - bounds[0], 1e-9)
    out: NDArray[np.float32] = np.clip((np.where(known, xyz, far) - bounds[0]) / span, 0.0, 1.0).astype(np.float32)
    return out


def _bounds(world: NDArray[np.float32], robot: PointmapSequence) -> NDArray[np.float64]:
    """Return bounds (2, 3), metres, of world and robot points; of either alone if the other has none."""
    points = [p for p in (world[np.isfinite(world).all(-1)], robot.xyz[robot.mask]) if len(p)]
    if not points:
        return np.array([[-1.0, -1.0, 0.1], [1.0, 1.0, 3.0]])
    return np.stack([np.min([p.min(0) for p in points], 0), np.max([p.max(0) for p in points], 0)]).astype(np.float64)
