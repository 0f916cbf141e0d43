"""Conversion `Rollout` <-> kinema4d_msgs/Rollout: a few megabytes instead of 250.

Points on their pixels' rays are encoded as depth alone, in steps of 0.1 mm; other points as three channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_msgs.msg import PointFrame
from kinema4d_msgs.msg import Provenance as ProvenanceMsg
from kinema4d_msgs.msg import Rollout as RolloutMsg
from kinema4d_ros.core._kernels import measure, points_on_rays, steps_to_xyz, xyz_to_steps, z_to_steps
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, PointmapError
from kinema4d_ros.core.rollout import Frames, Provenance, Rollout
from kinema4d_ros.io.png import decode_png, encode_png
from kinema4d_ros.ros.messages.camera import camera_from_msg, info_from_camera, require_affordable
from kinema4d_ros.ros.messages.images import (
    Format,
    bytes_from_compressed,
    compressed_from_bytes,
    decode_rgb,
    encode_rgb,
    parallel,
)
from kinema4d_ros.ros.messages.outcomes import (
    alternatives_from_msg,
    alternatives_to_msg,
    outcomes_from_msg,
    outcomes_to_msg,
)
from kinema4d_ros.ros.messages.poses import matrix_to_transform
from kinema4d_ros.ros.messages.stamps import header, is_time

__all__ = [
    "ON_RAY_M",
    "STEP_M",
    "basis_from_msg",
    "decode_points",
    "encode_points",
    "predicted_frames",
    "require_whole",
    "rollout_from_msg",
    "rollout_to_msg",
]

STEP_M = 1e-4
"""Encoding step, unless the frame spans more than 6.5 m; finer steps would only encode noise."""

MAX_TIME_S = 1e6
"""Upper bound on frame times since the first frame: stamp + time still fits into a ROS time until 2038."""

ON_RAY_M = 5e-5
"""Largest distance from the pixel's ray at which a point is encoded as depth: half a step."""


def rollout_to_msg(rollout: Rollout, stamp: Any, *, rgb_format: Format = "jpeg", quality: int = 95) -> Any:
    """Convert a rollout to a kinema4d_msgs/Rollout.

    Args:
        rollout: the rollout.
        stamp: Time message of the camera image it starts from.
        rgb_format: "jpeg", or "png" for lossless colours.
        quality: JPEG quality, 1 to 100.
    """
    camera = rollout.camera
    head = header(stamp, camera.frame_id)
    message = RolloutMsg(
        header=head,
        rollout_id=rollout.rollout_id,
        plan_hash=rollout.plan_hash,
        camera_info=info_from_camera(camera, stamp),
        base_frame=camera.base_frame,
    )
    message.base_to_camera = matrix_to_transform(camera.base_T_camera)
    message.times = (rollout.times - rollout.times[0]).tolist()
    message.rgb = encode_rgb(rollout.rgb, rgb_format, head, quality=quality)
    message.points = parallel(lambda xyz: encode_points(xyz, camera), rollout.xyz)
    masks = parallel(lambda mask: encode_png(np.where(mask, np.uint8(255), np.uint8(0))), rollout.robot_mask)
    message.robot_mask = [compressed_from_bytes(data, "png", head) for data in masks]
    message.provenance = _provenance_to_msg(rollout.provenance)
    message.outcomes = outcomes_to_msg(rollout.outcomes, float(rollout.times[0]))
    message.alternatives = alternatives_to_msg(rollout.alternatives, (len(rollout), camera.height, camera.width))
    if rollout.basis is not None:
        message.basis = [compressed_from_bytes(data, "png", head) for data in parallel(encode_png, rollout.basis)]
    message.unknowns = list(rollout.unknowns)
    return message


def rollout_from_msg(message: Any) -> Rollout:
    """Decode a kinema4d_msgs/Rollout; raise a KinemaError for damaged images and inconsistent numbers."""
    camera = require_whole(message)
    outcomes = outcomes_from_msg(message.outcomes)
    shape = (len(message.times), camera.height, camera.width)
    return Rollout(
        *predicted_frames(message, camera).arrays,
        camera=camera,
        times=np.array(message.times, dtype=np.float64),
        provenance=_provenance_from_msg(message.provenance),
        rollout_id=message.rollout_id,
        plan_hash=message.plan_hash,
        outcomes=outcomes,
        alternatives=alternatives_from_msg(message.alternatives, shape),
        basis=basis_from_msg(message, camera),
        unknowns=tuple(message.unknowns),
    )


def basis_from_msg(message: Any, camera: PinholeCamera, part: slice = slice(None)) -> NDArray[np.uint8] | None:
    """Decode the source of every point (T, H, W) uint8 of some frames; None if the message does not state it."""
    if not len(message.basis):
        return None

    def decode(image: Any) -> NDArray[np.uint8]:
        data = bytes_from_compressed(image)
        return decode_png(data, width=camera.width, height=camera.height, dtype=np.uint8)

    return np.stack(parallel(decode, message.basis[part]))


def predicted_frames(message: Any, camera: PinholeCamera, part: slice = slice(None)) -> Frames:
    """Decode some frames of a kinema4d_msgs/Rollout that `require_whole` has validated; by default all."""
    points, masks, width, height = message.points[part], message.robot_mask[part], camera.width, camera.height
    xyz = np.empty((len(points), height, width, 3), np.float32)
    mask = np.empty((len(points), height, width), np.bool_)

    def decode(index: int) -> None:
        decode_points(points[index], camera, out=xyz[index])
        data = bytes_from_compressed(masks[index])
        mask[index] = decode_png(data, width=width, height=height, dtype=np.uint8) > 127

    parallel(decode, range(len(points)))
    return Frames(decode_rgb(message.rgb[part], width=width, height=height), xyz, mask)


def require_whole(message: Any) -> PinholeCamera:
    """Validate the numbers of a kinema4d_msgs/Rollout without decoding its images, and return its camera."""
    frames, stamp = len(message.times), message.header.stamp
    counts = (len(message.rgb), len(message.points), len(message.robot_mask))
    if not frames or counts != (frames, frames, frames):
        raise PointmapError(
            f"{frames} times, {counts[0]} images, {counts[1]} point frames, {counts[2]} masks",
            expected="at least one frame, and one of each per frame",
            code=ErrorCode.WIRE_CORRUPT,
        )
    stated = (len(message.outcomes), len(message.alternatives), len(message.basis))
    if stated[1] != max(0, stated[0] - 1) or stated[2] not in (0, frames):
        raise PointmapError(
            f"{stated[0]} outcomes, frames of {stated[1]} alternatives and {stated[2]} bases of {frames} frames",
            expected="frames for every outcome but the first, and one basis per frame or none",
            code=ErrorCode.WIRE_CORRUPT,
        )
    camera = camera_from_msg(message)
    require_affordable(frames, camera)
    times = np.array(message.times, dtype=np.float64)
    if not (is_time(stamp) and np.all((times >= 0) & (times < MAX_TIME_S)) and np.all(np.diff(times) > 0)):
        raise PointmapError(
            f"a rollout stamped {stamp.sec} s and {stamp.nanosec} ns, with times from {times[0]} to {times[-1]} s",
            expected=f"a stamp since 1970, and increasing times from 0 to {MAX_TIME_S:g} s",
            code=ErrorCode.ROLLOUT_INVALID,
        )
    return camera


def encode_points(xyz: NDArray[np.float32], camera: PinholeCamera) -> Any:
    """Encode points (H, W, 3) float32, metres, camera optical frame, NaN = no point, to a kinema4d_msgs/PointFrame.

    The error per axis is at most half a step; a step is `STEP_M`, or the frame's range / 65534 if that is larger.
    """
    low, high = np.empty(3), np.empty(3)
    off_ray, count, bad = measure(xyz, camera.K, low, high)
    if bad:
        raise PointmapError(
            f"{bad} points are infinite or have NaN in one or two axes",
            expected="three finite values in metres, or three NaN for no point",
        )
    offset, span = (low, high - low) if count else (np.zeros(3), np.zeros(3))
    scale = np.maximum(STEP_M, span / 65534)
    if off_ray > ON_RAY_M:
        frame = PointFrame(encoding=PointFrame.XYZ16, offset=offset, scale=scale)
        steps = np.empty(xyz.shape, np.uint16)
        xyz_to_steps(xyz, offset, scale, steps)
    else:
        frame = PointFrame(encoding=PointFrame.DEPTH16, offset=[0.0, 0.0, offset[2]], scale=[0.0, 0.0, scale[2]])
        steps = np.empty(xyz.shape[:2], np.uint16)
        z_to_steps(xyz, offset[2], scale[2], steps)
    frame.png.frombytes(encode_png(steps))
    return frame


def decode_points(frame: Any, camera: PinholeCamera, *, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Decode a kinema4d_msgs/PointFrame to points (H, W, 3) float32, metres, camera optical frame, NaN = no point."""
    width, height = camera.width, camera.height
    data = bytes(memoryview(frame.png))
    offset, scale = np.array(frame.offset, dtype=np.float64), np.array(frame.scale, dtype=np.float64)
    if frame.encoding not in (PointFrame.DEPTH16, PointFrame.XYZ16) or not np.all(np.isfinite([offset, scale])):
        raise PointmapError(
            f"a point frame with encoding {frame.encoding}, offset {offset.tolist()}, scale {scale.tolist()}",
            expected="DEPTH16 or XYZ16 with finite numbers",
            code=ErrorCode.WIRE_CORRUPT,
        )
    points = np.empty((height, width, 3), np.float32) if out is None else out
    if frame.encoding == PointFrame.XYZ16:
        steps_to_xyz(decode_png(data, width=width, height=height, dtype=np.uint16, channels=3), offset, scale, points)
    else:
        steps = decode_png(data, width=width, height=height, dtype=np.uint16)
        points_on_rays(steps, offset[2], scale[2], camera.K, points)
    return points


def _provenance_to_msg(provenance: Provenance) -> Any:
    return ProvenanceMsg(
        generator=provenance.generator,
        preset=provenance.preset,
        checkpoint_sha256=provenance.checkpoint_sha256,
        input_sha256=provenance.input_sha256,
        seed=provenance.seed,
        metric_residual_m=float(provenance.metric_residual_m),
        depth=provenance.depth,
        versions=[f"{name}={version}" for name, version in sorted(provenance.versions.items())],
    )


def _provenance_from_msg(message: Any) -> Provenance:
    return Provenance(
        generator=message.generator,
        preset=message.preset,
        checkpoint_sha256=message.checkpoint_sha256,
        input_sha256=message.input_sha256,
        seed=message.seed,
        metric_residual_m=message.metric_residual_m,
        depth=message.depth or "unknown",
        versions=dict(entry.partition("=")[::2] for entry in message.versions),
    )
