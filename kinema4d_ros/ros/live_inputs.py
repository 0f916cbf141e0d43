"""Findings about the inputs of a running graph: joint states, camera and depth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.commanders import full_name
from kinema4d_ros.ros.live import Snapshot, Wire
from kinema4d_ros.ros.messages.camera import camera_from_info, camera_mismatch
from kinema4d_ros.ros.messages.images import depth_from_image, rgb_from_image
from kinema4d_ros.ros.messages.stamps import nanoseconds
from kinema4d_ros.ros.messages.trajectories import joint_sample_from_msg
from kinema4d_ros.ros.names import Endpoint

__all__ = ["Finding", "Findings", "Scene", "Status", "cameras", "joint_states", "node_of", "silent"]

Status = Literal["ok", "warning", "wrong", "unchecked"]

JOINTS_HZ, IMAGES_HZ = 20.0, 1.0
"""Rates below these give a warning."""

LATE_S, EARLY_S, OTHER_CLOCK_S = 0.5, 0.1, 5.0
"""Ages of stamps at arrival: late (a warning), in the future, and of another clock."""

OUTSIDE_RAD, OUTSIDE_M = 0.15, 0.005
"""A joint this far outside its limits has another zero or another unit."""


@dataclass(frozen=True)
class Finding:
    """One line of the report: `wrong` must be fixed, a `warning` may be intended, `unchecked` could not be checked."""

    name: str
    status: Status
    detail: str
    fix: str = ""


Findings = Iterator[Finding]


@dataclass(frozen=True)
class Scene:
    """What the graph should be: a snapshot of it with the robot and the calibration that it uses."""

    seen: Snapshot
    robot: Robot
    camera: PinholeCamera | None
    calibration: str
    simulated: bool

    def ages_s(self, wire: Wire) -> np.ndarray[Any, Any]:
        """Return the ages of a topic's messages at arrival, on the graph's clock; may be empty."""
        return np.array(wire.sim_ages_ns if self.simulated else wire.ages_ns) * 1e-9

    def publishers(self, endpoint: Endpoint) -> str:
        """Return the names of the nodes that publish a topic; "" without any."""
        return ", ".join(sorted({node_of(info) for info in self.seen.publishers[endpoint.name]}))


def joint_states(scene: Scene) -> Findings:
    """Check rate, names, positions and stamps of the joint states."""
    name, wire, robot = "joint states", scene.seen.wires[names.JOINT_STATES.name], scene.robot
    if not wire.count:
        yield silent(scene, name, names.JOINT_STATES, "start the arm's driver")
        return
    if wire.rate_hz < JOINTS_HZ:
        fix = f"set the driver to {JOINTS_HZ:g} Hz or more"
        yield Finding(name, "warning", f"{wire.rate_hz:.1f} per second", fix)
    max_age_s = float(scene.seen.parameters.get("twin", {}).get("max_age_s") or LATE_S)
    if wire.longest_gap_s - scene.seen.delay_s > max_age_s:
        detail = f"no message for {wire.longest_gap_s:.1f} s; after {max_age_s:g} s the arm counts as lost"
        yield Finding(name, "wrong", detail, "check the driver, its bus and the load of its machine")
    try:
        sample = joint_sample_from_msg(wire.newest)
    except KinemaError as error:
        yield Finding(name, "wrong", error.what, f"the driver must publish {error.expected}")
        return
    yield from _joint_names(scene, wire)
    outside = []
    for joint, value in zip(sample.names, sample.positions, strict=True):
        if joint in robot.joint_names:
            at = robot.joint_names.index(joint)
            slack = OUTSIDE_M if robot.actuated[at].kind == "prismatic" else OUTSIDE_RAD
            if not robot.lower[at] - slack <= value <= robot.upper[at] + slack:
                outside.append(f"{joint} is at {value:.3f}, outside {robot.lower[at]:.3f} to {robot.upper[at]:.3f}")
    if outside:
        fix = "check unit (radians, metres), sign and zero of the driver: it must match the robot's URDF"
        yield Finding(name, "wrong", "; ".join(outside), fix)
    if len(scene.seen.publishers[names.JOINT_STATES.name]) > 1:
        detail = f"published by {scene.publishers(names.JOINT_STATES)}"
        fix = "correct if each publishes other joints; otherwise stop one"
        yield Finding(name, "warning", detail, fix)
    yield from _stamps(scene, name, wire, late_s=LATE_S)
    yield Finding(name, "ok", f"{wire.rate_hz:.0f} per second from {scene.publishers(names.JOINT_STATES)}")


def _joint_names(scene: Scene, wire: Wire) -> Findings:
    robot = scene.robot
    missing = [joint for joint in robot.joint_names if joint not in wire.joints]
    others = sorted(wire.joints - set(robot.joint_names) - {joint.name for joint in robot.joints})
    vendor = {v.name for v in robot.gripper.vendor} if robot.gripper else set()
    if missing:
        sent = f"; the messages name {', '.join(others)}" if others else ""
        fix = f"rename the joints in the driver, or give a robot with these names; '{robot.name}' has "
        fix += ", ".join(robot.joint_names)
        if vendor & set(others) and robot.gripper is not None:
            scale = next(v.multiplier for v in robot.gripper.vendor if v.name in others)
            fix += f"; the vendor's {', '.join(sorted(vendor & set(others)))} times {scale:g} is {robot.gripper.joint}"
        yield Finding("joint names", "wrong", f"no position of {', '.join(missing)}{sent}", fix)
    elif others:
        fix = "nothing to do if they are of another device: they are ignored"
        yield Finding("joint names", "warning", f"not of '{robot.name}': {', '.join(others)}", fix)
    else:
        yield Finding("joint names", "ok", f"all {len(robot.joint_names)} of '{robot.name}'")


def _stamps(scene: Scene, name: str, wire: Wire, late_s: float) -> Findings:
    """Check the stamps of one topic against the graph's clock."""
    if nanoseconds(wire.newest.header.stamp) == 0:
        yield Finding(name, "wrong", "the stamp is 0", "the driver must stamp messages with its node's clock")
        return
    if wire.backwards:
        fix = "one publisher per topic; check the driver's clock and its order of messages"
        yield Finding(name, "wrong", f"{wire.backwards} of {wire.count} stamps go back in time", fix)
    ages_s = scene.ages_s(wire)
    if not len(ages_s):
        yield Finding(name, "unchecked", "stamps: no time arrived on /clock", "start the publisher of /clock")
        return
    age_s = float(np.median(ages_s))
    clock = "simulated time" if scene.simulated else "this machine's clock"
    if abs(age_s) > OTHER_CLOCK_S:
        fix = "synchronise the clocks (chrony)"
        other = np.array(wire.ages_ns if scene.simulated else wire.sim_ages_ns) * 1e-9
        if len(other) and abs(float(np.median(other))) < OTHER_CLOCK_S:
            fix = "use_sim_time differs between the driver and the graph: start both with the same value"
        yield Finding(name, "wrong", f"stamped {_apart(age_s)} {clock}", fix)
    elif age_s < -EARLY_S:
        yield Finding(name, "wrong", f"stamped {_apart(age_s)} {clock}", "synchronise the clocks (chrony)")
    elif age_s > late_s:
        fix = "stamp at the moment of measurement; use a faster network, or a smaller image"
        yield Finding(name, "warning", f"stamped {_apart(age_s)} {clock}: late", fix)


def _apart(age_s: float) -> str:
    text = f"{abs(age_s):.2f} s" if abs(age_s) < 1000.0 else f"{abs(age_s):.0f} s"
    return f"{text} {'before' if age_s > 0 else 'after'}"


def cameras(scene: Scene) -> Findings:
    """Check images, camera_info and depth against each other and against the calibration."""
    name, seen = "camera", scene.seen
    image, info = seen.wires[names.CAMERA_IMAGE.name], seen.wires[names.CAMERA_INFO.name]
    if not image.count:
        yield silent(scene, name, names.CAMERA_IMAGE, "start the camera's driver, or remap its image topic")
    if not info.count:
        yield silent(scene, name, names.CAMERA_INFO, "configure the driver to publish camera_info with its images")
    late_s = float(seen.parameters.get("twin", {}).get("image_max_age_s") or 2.0)
    if image.count:
        yield from _stamps(scene, name, image, late_s=LATE_S)
        if image.longest_gap_s - seen.delay_s > late_s:
            detail = f"no image for {image.longest_gap_s:.1f} s; after {late_s:g} s the camera counts as lost"
            yield Finding(name, "wrong", detail, "check the camera's cable and driver")
        elif image.count > 1 and image.rate_hz < IMAGES_HZ:
            yield Finding(name, "warning", f"{image.rate_hz:.1f} images per second", f"{IMAGES_HZ:g} or more")
        try:
            rgb_from_image(image.newest)
        except KinemaError as error:
            yield Finding(name, "wrong", error.what, f"the driver must publish {error.expected}")
    if image.count and info.count:
        yield from _sizes(name, image.newest, info.newest)
        yield from _frames_agree(scene, name, image.newest, info.newest)
    if info.count:
        yield from _intrinsics(scene, info.newest)
    if image.count:
        size = f"{image.newest.width} x {image.newest.height} {image.newest.encoding}"
        yield Finding(name, "ok", f"{size}, {image.rate_hz:.1f} per second from {scene.publishers(names.CAMERA_IMAGE)}")
    yield from _depth(scene)


def _sizes(name: str, image: Any, info: Any) -> Findings:
    width, height = int(info.width), int(info.height)
    if info.roi.width and info.roi.height:
        width, height = int(info.roi.width), int(info.roi.height)
    width, height = width // max(1, info.binning_x), height // max(1, info.binning_y)
    if (image.width, image.height) != (width, height):
        detail = f"images of {image.width} x {image.height}, camera_info of {width} x {height}"
        yield Finding(name, "wrong", detail, "both must come from one driver, at one resolution")
    apart_s = abs(nanoseconds(image.header.stamp) - nanoseconds(info.header.stamp)) * 1e-9
    if apart_s > OTHER_CLOCK_S:
        detail = f"images and camera_info are stamped {apart_s:.0f} s apart"
        yield Finding(name, "wrong", detail, "both must be stamped by one driver")


def _frames_agree(scene: Scene, name: str, image: Any, info: Any) -> Findings:
    if scene.camera is None:
        return
    for what, message in (("images", image), ("camera_info", info)):
        frame = message.header.frame_id.lstrip("/")
        if frame != scene.camera.frame_id:
            detail = f"the frame of the {what} is '{frame}', that of the calibration '{scene.camera.frame_id}'"
            fix = "set the driver's frame_id to the calibration's child_frame, or correct the calibration"
            yield Finding(name, "wrong", detail, fix)


def _intrinsics(scene: Scene, info: Any) -> Findings:
    name = "camera_info"
    try:
        live = camera_from_info(info)
        mismatch = None if scene.camera is None else camera_mismatch(live, scene.camera)
    except KinemaError as error:
        mismatch = error
    if mismatch is not None:
        yield Finding(name, "wrong", mismatch.what, mismatch.hint or f"expected {mismatch.expected}")
    elif scene.camera is None:
        yield Finding(name, "unchecked", "there is no calibration to compare with", "--camera FILE")
    else:
        yield Finding(name, "ok", "as in the calibration")


def _depth(scene: Scene) -> Findings:
    name, wire = "depth", scene.seen.wires[names.CAMERA_DEPTH.name]
    if not wire.count:
        if scene.publishers(names.CAMERA_DEPTH):
            yield silent(scene, name, names.CAMERA_DEPTH, "check the camera's driver")
        else:
            yield Finding(name, "ok", "none is published: predictions start from the image alone")
        return
    image = scene.seen.wires[names.CAMERA_IMAGE.name].newest
    try:
        depth_m = depth_from_image(wire.newest)
    except KinemaError as error:
        yield Finding(name, "wrong", error.what, f"the driver must publish {error.expected}")
        return
    yield from _stamps(scene, name, wire, late_s=LATE_S)
    if image is not None and depth_m.shape != (image.height, image.width):
        detail = f"{depth_m.shape[1]} x {depth_m.shape[0]}, images are {image.width} x {image.height}"
        yield Finding(name, "wrong", detail, "publish depth registered (aligned) to the colour camera")
        return
    good = depth_m[np.isfinite(depth_m) & (depth_m > 0)]
    if not len(good) or not 0.05 < float(np.median(good)) < 20.0:
        detail = "no valid pixel" if not len(good) else f"median {float(np.median(good)):.3g} m"
        yield Finding(name, "wrong", detail, "32FC1 in metres or 16UC1 in millimetres")
        return
    yield Finding(name, "ok", f"{len(good) / depth_m.size:.0%} of the pixels, median {float(np.median(good)):.2f} m")


def silent(scene: Scene, name: str, endpoint: Endpoint, fix: str) -> Finding:
    """Explain a topic on which nothing arrived."""
    topic, who = scene.seen.resolve(endpoint.name), scene.publishers(endpoint)
    if not who:
        return Finding(name, "wrong", f"no node publishes {topic}", fix)
    detail = f"{who} publishes {topic}, but nothing arrived within {scene.seen.seconds:g} s"
    return Finding(name, "wrong", detail, "check that it is running and not waiting for hardware; then the network")


def node_of(info: Any) -> str:
    """Return the full name of the node of a TopicEndpointInfo."""
    return full_name(info.node_namespace, info.node_name)
