"""Sharp frames from a small network: select between two exact videos and add what neither shows.

    request ─ window ─ (lifted depth) ─> network's size ─> latents = composite + gate * carried + rest
    request at the camera's own size ─> still world, carried world, both with the exact robot
    still + gate * (carried - still) + rest, upsampled ─> frames; outside the window the still world

The network works on few pixels and frames. The appearance of everything that stays or is carried comes from the camera
image, and the robot's points are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from kinema4d_model.pipeline._kernels import add_rest, mix_frame
from kinema4d_model.pipeline.inputs import NetworkInputs, prepare_inputs, shrink_hypothesis, shrink_request
from kinema4d_model.pipeline.kinema_pipeline import Encoded, KinemaPipeline, Prediction
from kinema4d_model.pipeline.lifting import Lifter
from kinema4d_model.preset_parts import BlendSpec
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.pointmap import GripTrack, PointmapSequence, map_frames
from kinema4d_ros.core.rollout import DepthBasis, Frames
from kinema4d_ros.generators._kernels import shade_frames
from kinema4d_ros.generators.carry import LEAST_SHARE, CarriedWorld, find_candidate, find_grasps, plane_depth
from kinema4d_ros.generators.composite import CompositeGenerator
from kinema4d_ros.generators.protocol import Cancel, GenerateRequest, Progress, ReportProgress, raise_if_cancelled

__all__ = ["VIEW_M", "Choice", "TwoWorlds", "Window", "choose", "choose_window", "cut_request", "predict_two_worlds"]

# Window: the part of the image given to the network, around the grasp, at the scale of the training data.

VIEW_M = 0.44
"""Width of the scene, metres at the gripper's distance, in the window of a camera that sees more."""
WIDE = 1.2
"""A camera that sees less than this many times `VIEW_M` is used without cropping."""


@dataclass(frozen=True)
class Window:
    """A rectangle of pixels: first column and row, columns and rows."""

    left: int
    top: int
    width: int
    height: int

    @property
    def slices(self) -> tuple[slice, slice]:
        """Rows and columns."""
        return slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)


def choose_window(camera: PinholeCamera, grip: GripTrack | None, aspect: float, view_m: float = VIEW_M) -> Window:
    """Choose the window around the lowest grasp, or the gripper's lowest position; it stays inside the image.

    Args:
        camera: of the whole image.
        grip: the gripper's trajectory; None uses the image centre.
        aspect: width / height of the network's input.
        view_m: width of the scene in the window, metres.
    """
    spot, distance = _where(camera, grip)
    largest = min(float(camera.width), camera.height * aspect)
    wanted = camera.K[0, 0] * view_m / distance if distance > 0 else largest
    width = largest if wanted * WIDE > largest else wanted
    columns, rows = max(2, round(width)), max(2, round(width / aspect))
    left = int(np.clip(round(spot[0] - columns / 2), 0, camera.width - columns))
    # Grippers approach from above: leave room there for lifted objects.
    top = int(np.clip(round(spot[1] - 0.55 * rows), 0, camera.height - rows))
    return Window(left, top, columns, rows)


def _where(camera: PinholeCamera, grip: GripTrack | None) -> tuple[NDArray[np.float64], float]:
    """Return the pixel (2,) to centre the window on, and its depth, metres; 0 = unknown."""
    middle = np.array([camera.width / 2, camera.height / 2])
    if grip is None:
        return middle, 0.0
    grasps = find_grasps(grip)
    height = grip.base_T_grip[:, 2, 3]
    frame = min((g.closed for g in grasps), key=lambda t: height[t]) if grasps else int(np.argmin(height))
    p_camera = camera.camera_T_base @ grip.base_T_grip[frame, :, 3]
    if p_camera[2] <= 0.05:
        return middle, 0.0
    spot = camera.project(p_camera[None, :3])[0]
    return np.clip(spot, [0, 0], [camera.width, camera.height]), float(p_camera[2])


def cut_request(request: GenerateRequest, window: Window) -> GenerateRequest:
    """Crop the request, as if a camera saw only the window."""
    robot = request.robot
    if (window.width, window.height) == (robot.camera.width, robot.camera.height):
        return request
    rows, columns = window.slices
    return replace(
        request,
        image=np.ascontiguousarray(request.image[rows, columns]),
        robot=PointmapSequence(
            np.ascontiguousarray(robot.xyz[:, rows, columns]),
            np.ascontiguousarray(robot.link_ids[:, rows, columns]),
            robot.camera.cropped(window.left, window.top, window.width, window.height),
            robot.times,
            None if robot.rgb is None else np.ascontiguousarray(robot.rgb[:, rows, columns]),
            robot.grip,
        ),
        depth=None if request.depth is None else np.ascontiguousarray(request.depth[rows, columns]),
    )


QUIET_LEVELS = 2.0
QUIET_M = 0.006


@dataclass(frozen=True, eq=False)
class Choice:
    """Latents expressed in terms of the two worlds, for the network's T frames and size H x W.

    Attributes:
        gate: (T,) float32, share of the carried world; 0 where there is none.
        rgb: (T, H, W, 3) float32, grey levels that neither world contains.
        values: (T, H, W, 3) float32, the same for the normalised pointmap.
    """

    gate: NDArray[np.float32]
    rgb: NDArray[np.float32]
    values: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class TwoWorlds:
    """Prediction at the camera's size.

    Attributes:
        frames: one for each of the request.
        gate: (T,) float32, share of the carried world as predicted by the network.
        offered: whether an object to carry was found.
        drafted: whether a draft was given in place of the carried world.
        depth: source of the world's points; "unknown" where the lifter found nothing on the table.
        window: part of the image that the network saw.
        prediction: the network's own output, at its own size.
        inputs, small: network inputs and request that the prediction was made from.
    """

    frames: Frames
    gate: NDArray[np.float32]
    offered: bool
    depth: DepthBasis
    window: Window
    prediction: Prediction
    inputs: NetworkInputs
    small: GenerateRequest
    drafted: bool = False

    @property
    def note(self) -> str:
        """One-line summary for provenance."""
        depth = {
            "lifted": "lifted from the picture",
            "unknown": "the table's plane: nothing was lifted from the picture",
            "plane": "the table's plane",
        }.get(self.depth, "measured or predicted")
        if self.drafted:
            return (
                f"network saw {self._place}; depth {depth}; it agrees with the draft to {self.gate[-1]:.0%} at the end"
            )
        offer = f"carried to {self.gate[-1]:.0%} at the end" if self.offered else "nothing at the fingers to carry"
        return f"network saw {self._place}; depth {depth}; {offer}"

    @property
    def _place(self) -> str:
        return f"{self.window.width} x {self.window.height} pixels from ({self.window.left}, {self.window.top})"


@torch.no_grad()
def choose(pipeline: KinemaPipeline, latents: torch.Tensor, encoded: Encoded) -> Choice:
    """Split latents into a share of the carried world, one per latent frame, and the decoded rest."""
    base, carried = encoded.base_latents, encoded.prepared.carried
    if base is None:
        raise ValueError("the preset does not predict a residual to a composite")
    difference = latents - base
    gate = difference.new_zeros(latents.shape[2])
    mixed = base
    if carried is not None:
        weight = carried.square().sum((0, 1, 3, 4))
        gate = torch.where(weight > 1e-6, (difference * carried).sum((0, 1, 3, 4)) / weight.clamp(min=1e-6), 0)
        gate = gate.clamp(0, 1)
        mixed = base + gate[None, None, :, None, None] * carried
    said, known = pipeline.bundle.codec.decode_pair(latents), pipeline.bundle.codec.decode_pair(mixed)
    rest = [
        (a - b)[0, :, : encoded.frames].permute(1, 2, 3, 0).float().cpu().numpy()
        for a, b in zip(said, known, strict=True)
    ]
    factor = pipeline.preset.codec.temporal_factor
    each = np.concatenate([gate[:1].cpu().numpy(), np.repeat(gate[1:].cpu().numpy(), factor)])
    return Choice(
        each[: encoded.frames].astype(np.float32),
        (127.5 * rest[0]).astype(np.float32),
        (rest[1] / 2).astype(np.float32),
    )


def predict_two_worlds(
    pipeline: KinemaPipeline,
    request: GenerateRequest,
    seed: int,
    composite: CompositeGenerator,
    lifter: Lifter | None = None,
    progress: ReportProgress | None = None,
    cancel: Cancel | None = None,
    drafted: Frames | None = None,
) -> TwoWorlds:
    """Predict the frames of a request; the network sees at most its own number of them, evenly spaced in the motion.

    Args:
        pipeline: of a preset with `condition.carry`.
        request: at the camera's size.
        seed: of the noise.
        composite: makes the still world.
        lifter: estimates depth where none was measured; None assumes the table's plane.
        progress, cancel: as in every generator.
        drafted: a simulated world at the camera's size, in place of the carried one. Its points and masks are kept,
            and so are its pixels of the robot and its first frame; the network changes colours only, because the
            outcomes that a draft states would not fit other frames.
    """
    report, preset = progress or (lambda _: None), pipeline.preset
    table = composite.table_height_m
    window = choose_window(request.camera, request.robot.grip, preset.width / preset.height)
    depth: DepthBasis = "measured" if request.depth is not None else "plane"
    if request.depth is None and lifter is not None:
        raise_if_cancelled(cancel, Progress("lift", 0, 1))
        report(Progress("lift", 0, 1))
        request, depth = _lift(request, window, lifter, table)
        report(Progress("lift", 1, 1))
    count = len(request)
    chosen = np.rint(np.linspace(0, count - 1, min(count, preset.frames))).astype(np.intp)
    small = shrink_request(_some_frames(cut_request(request, window), chosen), preset.width, preset.height)
    quick = CompositeGenerator(table_height_m=table, quick_fill=True)
    hypothesis = None
    if drafted is not None:
        rows, columns = window.slices
        rgb, xyz, mask = drafted.arrays
        cut = Frames(rgb[chosen][:, rows, columns], xyz[chosen][:, rows, columns], mask[chosen][:, rows, columns])
        hypothesis = shrink_hypothesis(cut, preset.width, preset.height)
    inputs, _ = prepare_inputs(small, quick, preset.codec.temporal_factor, preset.condition, preset.frames, hypothesis)
    raise_if_cancelled(cancel, Progress("encode", 0, 1))
    report(Progress("encode", 0, 1))
    encoded = pipeline.encode(inputs, seed)
    report(Progress("encode", 1, 1))
    latents, passes, skipped = pipeline.sample(encoded, seed, progress, cancel)
    choice = choose(pipeline, latents, encoded)
    prediction = pipeline.decode(latents, encoded.frames, passes, skipped)
    raise_if_cancelled(cancel, Progress("blend", 0, 1))
    report(Progress("blend", 0, 1))
    if drafted is not None:
        frames, offered = _refine(drafted, choice, chosen, window, preset.blend), True
    else:
        frames, offered = _blend(request, choice, chosen, inputs, small, window, composite, preset.blend)
    report(Progress("blend", 1, 1))
    gate = np.interp(np.arange(count), chosen, choice.gate).astype(np.float32)
    return TwoWorlds(frames, gate, offered, depth, window, prediction, inputs, small, drafted is not None)


def _lift(request: GenerateRequest, window: Window, lifter: Lifter, table: float) -> tuple[GenerateRequest, DepthBasis]:
    cut = cut_request(request, window)
    found = lifter.lift(cut.image, cut.camera, cut.robot.mask[0], table)
    depth = plane_depth(request.camera, table).astype(np.float32)
    depth[window.slices] = found.depth_m
    # The lifter returns the bare plane where it recognises nothing: such a depth has no support.
    something = bool((found.thing > 0.5).mean() > LEAST_SHARE)
    return replace(request, depth=depth), "lifted" if something else "unknown"


def _some_frames(request: GenerateRequest, chosen: NDArray[np.intp]) -> GenerateRequest:
    robot = request.robot
    if len(chosen) == len(robot):
        return request
    return replace(
        request,
        robot=replace(
            robot,
            xyz=robot.xyz[chosen],
            link_ids=robot.link_ids[chosen],
            times=None if robot.times is None else robot.times[chosen],
            rgb=None if robot.rgb is None else robot.rgb[chosen],
            grip=None if robot.grip is None else robot.grip.at(chosen),
        ),
    )


def _softened(rest: NDArray[np.float32], spec: BlendSpec) -> NDArray[np.float32]:
    """Scale the rest's colours and blur them, because the errors of a small network follow its cell grid."""
    if spec.blur_px > 0:
        rest = np.stack([cv2.GaussianBlur(frame, (0, 0), spec.blur_px) for frame in rest])
    return np.ascontiguousarray(np.float32(spec.colour) * rest, np.float32)


def _blend(
    request: GenerateRequest,
    choice: Choice,
    chosen: NDArray[np.intp],
    inputs: NetworkInputs,
    small: GenerateRequest,
    window: Window,
    composite: CompositeGenerator,
    spec: BlendSpec,
) -> tuple[Frames, bool]:
    robot, count = request.robot, len(request)
    world = composite.still_world(request)
    candidate = find_candidate(world, robot, table_height_m=composite.table_height_m)
    position = np.interp(np.arange(count), chosen, np.arange(len(chosen)))
    before = np.minimum(position.astype(np.intp), len(chosen) - 1)
    gate = choice.gate[np.rint(position).astype(np.intp)]
    sharp = np.clip((gate - 0.5) * spec.decision + 0.5, 0, 1).astype(np.float32)
    sharp[: count if candidate is None else candidate.grasp.closed] = 0
    # Frames that show the carried world alone are not composed at rest.
    frames = composite.compose(request, world, only=sharp < 1)
    if candidate is not None and sharp.any():
        colours = robot.rgb
        if colours is None:
            colours = np.empty((*robot.link_ids.shape, 3), np.uint8)
            shade_frames(robot.xyz, robot.link_ids, colours)
        carried = CarriedWorld(
            world,
            candidate,
            robot,
            colours,
            table_height_m=composite.table_height_m,
            max_range_m=composite.max_range_m,
        )

        def mix(t: int) -> None:
            if sharp[t] == 1:
                carried.write(t, frames.rgb[t], frames.xyz[t], frames.robot_mask[t])
                return
            other = Frames.empty(1, *robot.link_ids.shape[1:])
            carried.write(t, other.rgb[0], other.xyz[0], other.robot_mask[0])
            mix_frame(
                frames.rgb[t], frames.xyz[t], frames.robot_mask[t],
                other.rgb[0], other.xyz[0], other.robot_mask[0], sharp[t],
            )  # fmt: skip

        map_frames(mix, np.flatnonzero(sharp).tolist())
    span = np.maximum(inputs.bounds[1] - inputs.bounds[0], 1e-9)
    rays = small.camera.rays()
    # Project the shift of each point onto its pixel's ray.
    along = spec.depth * (choice.values * span * rays).sum(-1) / np.square(rays).sum(-1)
    add_rest(
        *frames.arrays,
        _softened(choice.rgb, spec),
        np.ascontiguousarray(along, np.float32),
        before,
        (position - before).astype(np.float32),
        np.array([window.left, window.top, window.width, window.height], np.intp),
        np.float32(QUIET_LEVELS),
        np.float32(QUIET_M),
    )
    return frames, candidate is not None


def _refine(drafted: Frames, choice: Choice, chosen: NDArray[np.intp], window: Window, spec: BlendSpec) -> Frames:
    """Add the colours that neither world shows to a copy of the drafted frames, except the first, which is observed."""
    frames, count = drafted.copy(), len(drafted)
    position = np.interp(np.arange(count), chosen, np.arange(len(chosen)))
    before = np.minimum(position.astype(np.intp), len(chosen) - 1)
    rest = _softened(choice.rgb, spec)
    add_rest(
        *frames[1:].arrays,
        rest,
        np.zeros(rest.shape[:3], np.float32),
        before[1:],
        (position - before).astype(np.float32)[1:],
        np.array([window.left, window.top, window.width, window.height], np.intp),
        np.float32(QUIET_LEVELS),
        np.float32(QUIET_M),
    )
    return frames
