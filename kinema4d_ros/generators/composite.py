"""Generators without learning: `composite`, the exact robot in a static scene, and `carry`, the carry hypothesis.

    image ─ robot of frame 0 removed by inpainting ─┐
    depth, or the plane the robot stands on ────────┼─ z-test against the exact robot, frame by frame ─> Rollout
    robot pointmaps ────────────────────────────────┘

The composite is the baseline: the robot is exact, and the scene is the observed one, at rest. `carry` adds the
hypothesis of `carry.py`: the object at the closing fingers moves with the gripper, whether the grasp would hold or not.
Assumptions of both:

- Where no depth was measured, every pixel shows the horizontal plane `table_height_m` above the robot's
  base, if its ray meets it within `max_range_m`; elsewhere there is no point (NaN). Objects are flat in
  that plane, so without measured depth this generator gives no clearance to them.
- The scene behind the robot of frame 0 is unknown. The image is inpainted there; the points are those of
  the plane, or none where the robot reaches below the plane.
"""

from __future__ import annotations

import math
import platform
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinema4d_ros
from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.core.rollout import WARNING, DepthBasis, Frames, Provenance, Rollout
from kinema4d_ros.generators._kernels import compose_frames, shade_frames
from kinema4d_ros.generators.carry import LEAST_SHARE, MAX_RANGE_M, carried_frames, find_candidate, plane_depth
from kinema4d_ros.generators.inpaint import grow_mask, remove_robot
from kinema4d_ros.generators.protocol import (
    Cancel,
    GenerateRequest,
    Progress,
    ReceiveFrames,
    ReportProgress,
    deliver,
    raise_if_cancelled,
    request_sha256,
)

__all__ = ["CarryGenerator", "CompositeGenerator", "show_still"]

MARGIN_PX = 6.0
"""Margin around the robot of frame 0, at a width of 720, for calibration error and mixed pixels."""
LIFTER = "kinema4d_model.pipeline.lifting:load_lifter"
"""Function that loads the estimator of depth; torch is imported on first use only."""
_CHUNK = 7
"""Frames between two checks of `cancel`, a few milliseconds each."""


class CompositeGenerator:
    """Generator of a static scene with the exact robot.

    Args:
        table_height_m: height of the assumed supporting plane above the robot's base, metres.
        max_range_m: maximum distance of the assumed plane from the camera.
        margin_px: the robot of frame 0 is removed together with this many pixels around it, at a width of
            720; covers calibration error and mixed pixels.
        background: (H, W, 3) uint8 RGB of the scene without the robot, same camera; used instead of inpainting.
        soft_edges: blend the robot's border pixels in the images; points and masks stay exact.
        quick_fill: inpaint smoothly, without textures: for small images.
    """

    name = "composite"

    def __init__(
        self,
        *,
        table_height_m: float = 0.0,
        max_range_m: float = MAX_RANGE_M,
        margin_px: float = MARGIN_PX,
        background: NDArray[np.uint8] | None = None,
        soft_edges: bool = True,
        quick_fill: bool = False,
    ) -> None:
        """Check the options."""
        for label, value, low in (
            ("table_height_m", table_height_m, -math.inf),
            ("max_range_m", max_range_m, 0.0),
            ("margin_px", margin_px, 0.0),
        ):
            if not math.isfinite(value) or value < low:
                raise _refuse(f"{label} is {value}", f"a finite number{', 0 or more' if low == 0.0 else ''}")
        self._table_height_m = float(table_height_m)
        self.max_range_m = float(max_range_m)
        self._margin_px = float(margin_px)
        self._background = background
        self._soft_edges = bool(soft_edges)
        self.quick_fill = bool(quick_fill)

    def generate(
        self, request: GenerateRequest, progress: ReportProgress | None = None, cancel: Cancel | None = None
    ) -> Rollout:
        """Generate the rollout of a request; equal requests give equal arrays."""
        return self.stream(request, None, progress, cancel)

    def stream(
        self,
        request: GenerateRequest,
        receive: ReceiveFrames | None,
        progress: ReportProgress | None = None,
        cancel: Cancel | None = None,
    ) -> Rollout:
        """Generate the rollout, and deliver its frames as they are composed."""
        frames = self.compose(request, None, progress, cancel, receive=receive)
        provenance = Provenance(
            generator=self.name,
            preset="plane" if request.depth is None else "depth",
            depth="plane" if request.depth is None else "measured",
            input_sha256=request_sha256(request),
            seed=request.seed,
            versions=_versions(),
        )
        return Rollout(*frames.arrays, request.camera, request.times, provenance, plan_hash=request.plan_hash)

    def compose(
        self,
        request: GenerateRequest,
        world: Frames | None = None,
        progress: ReportProgress | None = None,
        cancel: Cancel | None = None,
        *,
        receive: ReceiveFrames | None = None,
        final: bool = True,
        only: NDArray[np.bool_] | None = None,
    ) -> Frames:
        """Compose the frames with a given `still_world`; None = compute it.

        `receive` gets them, as not final if the caller is going to change them. Frames that are not in `only` (T,) may
        be left undefined.
        """
        report = progress or (lambda _: None)
        count = len(request)
        stage = Progress("background", 0, 1)
        raise_if_cancelled(cancel, stage)
        report(stage)
        world = self.still_world(request) if world is None else world
        frames = Frames.empty(*request.robot.link_ids.shape)
        for part in _parts(count):
            if only is not None and not only[part].any():
                continue
            stage = Progress("compose", part.start, count)
            raise_if_cancelled(cancel, stage)
            report(stage)
            self.write_frames(request, world, part, frames[part])
            deliver(receive, "still", part.start, frames[part], final=final)
        stage = Progress("compose", count, count)
        raise_if_cancelled(cancel, stage)
        report(stage)
        return frames

    def write_frames(self, request: GenerateRequest, world: Frames, part: slice, made: Frames) -> None:
        """Write some of the request's frames: the still world with the exact robot."""
        robot = request.robot
        points, ids = robot.xyz[part], robot.link_ids[part]
        if robot.rgb is None:
            colours = np.empty((*ids.shape, 3), np.uint8)
            shade_frames(points, ids, colours)
        else:
            colours = robot.rgb[part]
        compose_frames(world.rgb[0], world.xyz[0], points, ids, colours, self._soft_edges, *made.arrays)

    @property
    def table_height_m(self) -> float:
        """Height of the assumed supporting plane above the robot's base, metres."""
        return self._table_height_m

    def still_world(self, request: GenerateRequest) -> Frames:
        """Compute the scene without the robot, one frame, from the first image and the depth."""
        hole = grow_mask(request.robot.link_ids[0] != 0, self._margin_px * request.camera.width / 720)
        image, points = self._world_image(request.image, hole), self._world_points(request, hole)
        return Frames(image[None], points[None], np.zeros((1, *hole.shape), np.bool_))

    def _world_image(self, image: NDArray[np.uint8], hole: NDArray[np.bool_]) -> NDArray[np.uint8]:
        if self._background is None:
            return remove_robot(image, hole, quick=self.quick_fill)
        if self._background.dtype != np.uint8 or self._background.shape != image.shape:
            raise _refuse(
                f"the background is {self._background.dtype} of shape {self._background.shape}",
                f"uint8 of shape {image.shape}, the size of the image",
            )
        world: NDArray[np.uint8] = np.where(hole[..., None], self._background, image)
        return world

    def _world_points(self, request: GenerateRequest, hole: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Compute the scene's points (H, W, 3) float32, metres, camera optical frame, NaN = unknown."""
        camera, robot = request.camera, request.robot
        plane = plane_depth(camera, self._table_height_m, self.max_range_m)
        # The camera saw the robot at these pixels, so there is no plane in front of it.
        seen = robot.link_ids[0] != 0
        plane[seen & (plane < robot.xyz[0, ..., 2])] = np.nan
        depth = plane if request.depth is None else np.where(hole, plane, request.depth.astype(np.float64))
        points: NDArray[np.float64] = camera.rays() * depth[..., None]
        return points.astype(np.float32)


class CarryGenerator:
    """Generator of the carry hypothesis: the object at the closing fingers moves with the gripper until they open.

    It never says that a grasp misses, so it is a hypothesis for a model that decides, and a baseline. Provenance states
    it, and where nothing was within reach of the fingers the rollout is the composite.

    Args:
        table_height_m, max_range_m: of the assumed plane, as for `CompositeGenerator`.
        lift: estimate depth from the image where none was measured, if the learned lifter is installed. Without depth
            nothing stands on the assumed plane, so nothing can be carried.
    """

    name = "carry"

    def __init__(self, *, table_height_m: float = 0.0, max_range_m: float = MAX_RANGE_M, lift: bool = True) -> None:
        """Check the options."""
        self._composite = CompositeGenerator(table_height_m=table_height_m, max_range_m=max_range_m)
        self._lift = bool(lift)
        self._lifter: Any = None

    def generate(
        self, request: GenerateRequest, progress: ReportProgress | None = None, cancel: Cancel | None = None
    ) -> Rollout:
        """Generate the rollout of a request; equal requests give equal arrays."""
        return self.stream(request, None, progress, cancel)

    def stream(
        self,
        request: GenerateRequest,
        receive: ReceiveFrames | None,
        progress: ReportProgress | None = None,
        cancel: Cancel | None = None,
    ) -> Rollout:
        """Generate the rollout; deliver the scene at rest first, then the frames with the carried object."""
        report, composite, robot = progress or (lambda _: None), self._composite, request.robot
        table = composite.table_height_m
        raise_if_cancelled(cancel, Progress("lift", 0, 1))
        known, depth = self._with_depth(request)
        world = composite.still_world(known)
        made = composite.compose(known, world, progress, cancel, receive=receive, final=False)
        stage = Progress("carry", 0, 1)
        raise_if_cancelled(cancel, stage)
        report(stage)
        candidate = find_candidate(world, robot, table_height_m=table)
        said = "nothing is within reach of closing fingers: the scene stays still"
        if candidate is not None:
            colours = robot.rgb
            if colours is None:
                colours = np.empty((*robot.link_ids.shape, 3), np.uint8)
                shade_frames(robot.xyz, robot.link_ids, colours)
            carried_frames(
                world,
                candidate,
                robot,
                colours,
                *made.arrays,
                table_height_m=table,
                max_range_m=composite.max_range_m,
            )
            said = "the object at the closing fingers is carried; whether the grasp holds is not predicted"
        report(Progress("carry", 1, 1))
        deliver(receive, "draft", 0, made, final=True)
        doubts = {}
        if depth in ("plane", "unknown"):
            doubts = {WARNING: "Without depth no object stands on the assumed table, so nothing is carried."}
        provenance = Provenance(
            generator=self.name,
            preset="depth" if depth == "measured" else depth,
            depth=depth,
            input_sha256=request_sha256(request),
            seed=request.seed,
            versions={**_versions(), "hypothesis": said, **doubts},
        )
        return Rollout(*made.arrays, request.camera, request.times, provenance, plan_hash=request.plan_hash)

    def _with_depth(self, request: GenerateRequest) -> tuple[GenerateRequest, DepthBasis]:
        """Return the request with measured or lifted depth, and its source."""
        if request.depth is not None:
            return request, "measured"
        if self._lift and self._lifter is None:
            module, _, name = LIFTER.partition(":")
            try:
                self._lifter = getattr(import_module(module), name)()
            except ImportError:
                self._lift = False
        if not self._lift:
            return request, "plane"
        found = self._lifter.lift(request.image, request.camera, request.robot.mask[0], self._composite.table_height_m)
        # The lifter returns the bare plane where it recognises nothing: such a depth has no support.
        something = bool((found.thing > 0.5).mean() > LEAST_SHARE)
        return replace(request, depth=found.depth_m), "lifted" if something else "unknown"


def show_still(
    request: GenerateRequest,
    receive: ReceiveFrames | None,
    cancel: Cancel | None = None,
    *,
    table_height_m: float = 0.0,
    max_range_m: float = MAX_RANGE_M,
) -> None:
    """Deliver the scene at rest, inpainted quickly, before work that takes longer; nothing without a receiver."""
    if receive is None:
        return
    composite = CompositeGenerator(table_height_m=table_height_m, max_range_m=max_range_m, quick_fill=True)
    world = composite.still_world(request)
    buffer = Frames.empty(min(_CHUNK, len(request)), *request.robot.link_ids.shape[1:])
    for part in _parts(len(request)):
        raise_if_cancelled(cancel, Progress("compose", part.start, len(request)))
        made = buffer[: part.stop - part.start]
        composite.write_frames(request, world, part, made)
        deliver(receive, "still", part.start, made, final=False)


def _parts(count: int) -> list[slice]:
    """Split frames into parts between which `cancel` is asked."""
    return [slice(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)]


def _versions() -> dict[str, str]:
    return {
        "kinema4d_ros": kinema4d_ros.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _refuse(what: str, expected: str) -> GeneratorError:
    return GeneratorError(what, expected=expected, code=ErrorCode.GENERATOR_BAD_REQUEST)
