"""Findings about a running graph: what is wrong in a snapshot of it, and how to fix it."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from rclpy.qos import QoSCompatibility, qos_check_compatible

from kinema4d_ros.calibration import read_camera, read_pose
from kinema4d_ros.calibration.camera_files import calibration_path
from kinema4d_ros.calibration.quality import rate_calibration
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.core.transforms import invert, rotation_angle
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.commanders import RECORDERS, full_name
from kinema4d_ros.ros.live import CLOCK, Snapshot, Wire
from kinema4d_ros.ros.messages.camera import camera_from_info, camera_mismatch
from kinema4d_ros.ros.messages.images import depth_from_image, rgb_from_image
from kinema4d_ros.ros.messages.poses import transform_to_matrix
from kinema4d_ros.ros.messages.stamps import nanoseconds
from kinema4d_ros.ros.messages.trajectories import joint_sample_from_msg
from kinema4d_ros.ros.names import Endpoint
from kinema4d_ros.ros.qos import profile

__all__ = ["Finding", "check_live"]

Status = Literal["ok", "warning", "wrong", "unchecked"]

NEEDED = ("twin", "preview", "playback", "gate")
"""Nodes without which no plan can be previewed and approved."""

JOINTS_HZ, IMAGES_HZ = 20.0, 1.0
"""Rates below these give a warning."""

LATE_S, EARLY_S, OTHER_CLOCK_S = 0.5, 0.1, 5.0
"""Ages of stamps at arrival: late (a warning), in the future, and of another clock."""

OUTSIDE_RAD, OUTSIDE_M = 0.15, 0.005
"""A joint this far outside its limits has another zero or another unit."""

MOVED_M, TURNED_RAD = 0.002, 0.005
"""Largest difference between TF and the calibration file."""

OLD_DAYS = 60
"""A calibration older than this gives a warning."""

PAIR_S = 0.02
"""Largest difference between the stamps of an image and its camera_info or depth."""


@dataclass(frozen=True)
class Finding:
    """One line of the report: `wrong` must be fixed, a `warning` may be intended, `unchecked` could not be checked."""

    name: str
    status: Status
    detail: str
    fix: str = ""


Findings = Iterator[Finding]


@dataclass(frozen=True)
class _Scene:
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
        return ", ".join(sorted({_node(info) for info in self.seen.publishers[endpoint.name]}))


def check_live(seen: Snapshot, robot: str = "", calibration: str = "") -> list[Finding]:
    """Return the findings of all checks; robot and calibration are by default those of the graph's twin.

    An unexpected exception in a check is reported as `unchecked`: the other checks still run.
    """
    twin = seen.parameters.get("twin", {})
    simulated = any(values.get("use_sim_time") for values in seen.parameters.values())
    calibration = calibration or str(twin.get("calibration") or "demo_lab")
    found: list[Finding] = []
    try:
        model = Robot.load(robot or str(twin.get("robot") or "yam"))
    except KinemaError as error:
        return [Finding("robot", "wrong", error.what, error.hint or "give the robot: --robot")]
    camera = None
    try:
        camera = read_camera(calibration_path(calibration), base_frame=model.base_link)
    except KinemaError as error:
        found.append(Finding("calibration", "wrong", str(error), "give the calibration of this camera: --camera FILE"))
    scene = _Scene(seen, model, camera, calibration, simulated)
    for name, check in CHECKS.items():
        try:
            made = list(check(scene))
        except Exception as error:
            made = [Finding(name, "unchecked", f"the check itself failed: {error!r}", "report this as a bug")]
        found += made or [Finding(name, "ok", "nothing wrong")]
    faulty = {finding.name for finding in found if finding.status in ("wrong", "warning")}
    return [finding for finding in found if finding.status != "ok" or finding.name not in faulty]


def _nodes(scene: _Scene) -> Findings:
    seen, running = scene.seen, scene.seen.ours()
    missing = [name for name in NEEDED if name not in running]
    elsewhere = sorted({space for name, space in seen.nodes if name in NEEDED and space != seen.namespace})
    if missing:
        fix = "start it: kinema4d sim, or ros2 launch kinema4d_ros sim.launch.py"
        if elsewhere:
            fix = f"the graph in {elsewhere[0]}: kinema4d doctor --live --namespace {elsewhere[0]}"
        elif not running:
            fix += "; it must be in this ROS_DOMAIN_ID, and on another machine both need "
            fix += "ROS_AUTOMATIC_DISCOVERY_RANGE=SUBNET"
        yield Finding("nodes", "wrong", f"{', '.join(missing)} not running in {seen.namespace}", fix)
    for name, count in Counter(running).items():
        if count > 1:
            yield Finding("nodes", "wrong", f"{count} nodes named {name} run", "stop all but one; a killed one fades")
    if not missing:
        yield Finding("nodes", "ok", ", ".join(sorted(set(running))))
    silent = sorted(set(running) - set(seen.parameters))
    if silent:
        why = f"no answer to a parameter request within {seen.seconds:g} s"
        yield Finding("nodes", "unchecked", f"{', '.join(silent)}: {why}", "look longer: --seconds 20")


def _clocks(scene: _Scene) -> Findings:
    given = {name: bool(values.get("use_sim_time")) for name, values in scene.seen.parameters.items()}
    clock = scene.seen.wires[CLOCK.name]
    who = scene.publishers(CLOCK)
    if not given:
        yield Finding("clocks", "unchecked", "no node of the graph answered which clock it uses", "start the graph")
        return
    if len(set(given.values())) > 1:
        sim = ", ".join(sorted(name for name, value in given.items() if value))
        wall = ", ".join(sorted(name for name, value in given.items() if not value))
        yield Finding("clocks", "wrong", f"{sim} use simulated time, {wall} do not", "start all with one use_sim_time")
    if scene.simulated and clock.count < 2:
        detail = "use_sim_time is true, but no time arrives on /clock"
        yield Finding("clocks", "wrong", detail, "start the publisher of /clock, or start with use_sim_time:=false")
    elif not scene.simulated and who:
        detail = f"{who} publishes /clock, but the graph uses the system's time"
        yield Finding("clocks", "warning", detail, "start the graph with use_sim_time:=true if stamps are simulated")
    else:
        yield Finding("clocks", "ok", "simulated time" if scene.simulated else "system time")


def _joint_states(scene: _Scene) -> Findings:
    name, wire, robot = "joint states", scene.seen.wires[names.JOINT_STATES.name], scene.robot
    if not wire.count:
        yield _silent(scene, name, names.JOINT_STATES, "start the arm's driver")
        return
    if wire.rate_hz < JOINTS_HZ:
        fix = f"set the driver to {JOINTS_HZ:g} Hz or more"
        yield Finding(name, "warning", f"{wire.rate_hz:.1f} per second", fix)
    max_age_s = float(scene.seen.parameters.get("twin", {}).get("max_age_s") or LATE_S)
    if wire.longest_gap_s > max_age_s:
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


def _joint_names(scene: _Scene, wire: Wire) -> Findings:
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


def _stamps(scene: _Scene, name: str, wire: Wire, late_s: float) -> Findings:
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


def _camera(scene: _Scene) -> Findings:
    name, seen = "camera", scene.seen
    image, info = seen.wires[names.CAMERA_IMAGE.name], seen.wires[names.CAMERA_INFO.name]
    if not image.count:
        yield _silent(scene, name, names.CAMERA_IMAGE, "start the camera's driver, or remap its image topic")
    if not info.count:
        yield _silent(scene, name, names.CAMERA_INFO, "configure the driver to publish camera_info with its images")
    late_s = float(seen.parameters.get("twin", {}).get("image_max_age_s") or 2.0)
    if image.count:
        yield from _stamps(scene, name, image, late_s=LATE_S)
        if image.longest_gap_s > late_s:
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


def _frames_agree(scene: _Scene, name: str, image: Any, info: Any) -> Findings:
    if scene.camera is None:
        return
    for what, message in (("images", image), ("camera_info", info)):
        frame = message.header.frame_id.lstrip("/")
        if frame != scene.camera.frame_id:
            detail = f"the frame of the {what} is '{frame}', that of the calibration '{scene.camera.frame_id}'"
            fix = "set the driver's frame_id to the calibration's child_frame, or correct the calibration"
            yield Finding(name, "wrong", detail, fix)


def _intrinsics(scene: _Scene, info: Any) -> Findings:
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


def _depth(scene: _Scene) -> Findings:
    name, wire = "depth", scene.seen.wires[names.CAMERA_DEPTH.name]
    if not wire.count:
        if scene.publishers(names.CAMERA_DEPTH):
            yield _silent(scene, name, names.CAMERA_DEPTH, "check the camera's driver")
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


def _tf(scene: _Scene) -> Findings:
    name, frames = "tf", scene.seen.frames
    base = scene.robot.base_link
    if not frames:
        wire = scene.seen.wires[names.TF_STATIC.name]
        detail = "no transform arrived on /tf or /tf_static" if not wire.count else "no transform arrived"
        yield Finding(
            name, "wrong", detail, "the twin publishes them once joint states arrive: see nodes, joint states"
        )
        return
    for child, parents in sorted(frames.items()):
        if len(parents) > 1:
            detail = f"'{child}' has {len(parents)} parents: {', '.join(sorted(parents))}"
            yield Finding(name, "wrong", detail, "two nodes publish this frame: stop one, or rename its frame")
    wanted = [link.name for link in scene.robot.links[1:]]
    if scene.camera is not None:
        wanted.insert(0, scene.camera.frame_id)
    lost = {frame: _root(frames, frame) for frame in wanted}
    lost = {frame: root for frame, root in lost.items() if root != base}
    links = [frame for frame in lost if scene.camera is None or frame != scene.camera.frame_id]
    if scene.camera is not None and scene.camera.frame_id in lost:
        root = lost[scene.camera.frame_id]
        where = f"its tree ends at '{root}'" if root else "nobody publishes it"
        fix = "the twin publishes it from the calibration; check that it runs and that base_frame is the robot's base"
        yield Finding(name, "wrong", f"'{scene.camera.frame_id}' is not connected to '{base}': {where}", fix)
    elif scene.camera is not None:
        yield from _camera_place(scene, scene.camera)
    if links:
        detail = f"{len(links)} links are not connected to '{base}': {', '.join(links[:4])}"
        yield Finding(name, "wrong", detail, "the twin publishes them once joint states of every joint arrive")
    others = {_node(i) for i in scene.seen.publishers[names.TF.name]} - {full_name(scene.seen.namespace, "twin")}
    if any("robot_state_publisher" in node for node in others) and not links:
        detail = f"the twin and {', '.join(sorted(others))} publish on /tf"
        yield Finding(name, "warning", detail, "let one of them publish the robot's frames")
    yield Finding(name, "ok", f"{len(frames)} frames")


def _root(frames: Mapping[str, Mapping[str, Any]], frame: str) -> str:
    """Return the top of a frame's tree; "" for a frame that nobody publishes."""
    if frame not in frames:
        return ""
    seen = set()
    while frame in frames and frame not in seen:
        seen.add(frame)
        frame = next(iter(frames[frame]))
    return frame


def _camera_place(scene: _Scene, camera: PinholeCamera) -> Findings:
    frames, frame, base_T_camera = scene.seen.frames, camera.frame_id, np.eye(4)
    while frame in frames and frame != scene.robot.base_link:
        parent, (transform, _) = next(iter(frames[frame].items()))
        base_T_camera = transform_to_matrix(transform.transform) @ base_T_camera
        frame = parent
    moved = invert(camera.base_T_camera) @ base_T_camera
    off_m, turned = float(np.linalg.norm(moved[:3, 3])), float(rotation_angle(np.eye(4), moved))
    if off_m > MOVED_M or turned > TURNED_RAD:
        detail = f"the camera in TF is {off_m * 1e3:.0f} mm and {np.degrees(turned):.1f} deg away from the calibration"
        fix = "another node publishes this frame, or the graph runs with another calibration"
        yield Finding("tf", "wrong", detail, fix)


def _qos(scene: _Scene) -> Findings:
    seen, checked = scene.seen, 0
    for endpoint in (e for e in names.ENDPOINTS if e.qos):
        mine, incoming = profile(endpoint), endpoint.kind == "in"
        offers = [(_node(i), i.qos_profile) for i in seen.publishers[endpoint.name]]
        wants = [(_node(i), i.qos_profile) for i in seen.subscribers[endpoint.name]]
        pairs = [(o, w) for o in offers for w in wants]
        # What the graph's node would use, also where it does not run now.
        pairs += [(o, ("this graph", mine)) for o in offers] if incoming else [(("this graph", mine), w) for w in wants]
        said = set()
        for (offering, offer), (wanting, want) in pairs:
            checked += 1
            verdict, reason = qos_check_compatible(offer, want)
            who = (offering, wanting)
            if verdict == QoSCompatibility.ERROR and who not in said and ("this graph" not in who or not said):
                said.add(who)
                detail = f"{seen.resolve(endpoint.name)}: {wanting} gets nothing from {offering} ({_short(reason)})"
                yield Finding("qos", "wrong", detail, _qos_fix(offer, want))
        types = {i.topic_type for i in (*seen.publishers[endpoint.name], *seen.subscribers[endpoint.name])}
        if types - {endpoint.type}:
            detail = f"{seen.resolve(endpoint.name)} is used with {', '.join(sorted(types - {endpoint.type}))}"
            yield Finding("qos", "wrong", detail, f"its type is {endpoint.type}: remap one of the two")
    yield Finding("qos", "ok", f"{checked} pairs of publisher and subscriber compared")


def _qos_fix(offer: Any, want: Any) -> str:
    if offer.reliability != want.reliability:
        return "make the publisher reliable, or the subscriber best effort"
    if offer.durability != want.durability:
        return "make the publisher transient local, or the subscriber volatile"
    return "use the QoS of docs/ros.md on both sides"


def _short(reason: str) -> str:
    return reason.removeprefix("ERROR: ").rstrip("; ").strip()


def _controllers(scene: _Scene) -> Findings:
    seen, gate = scene.seen, scene.seen.parameters.get("gate")
    if gate is None:
        yield Finding("controllers", "unchecked", "the gate did not answer which controller it uses", "see nodes")
        return
    followed = {"arm": (names.ARM_TRAJECTORY, names.FOLLOW_TRAJECTORY)}
    if gripper := str(gate.get("gripper_controller") or ""):
        topic, action = (names.of_controller(e, gripper) for e in followed["arm"])
        followed["gripper"] = (topic, action)
    for label, (topic, action) in followed.items():
        if gate.get("controller") == "action":
            via, ready = seen.resolve(action.name), f"{seen.resolve(action.name)}/_action/send_goal" in seen.servers
        else:
            via = seen.resolve(topic.name)
            ready = any(i.node_name not in RECORDERS for i in seen.subscribers[topic.name])
        if not ready:
            fix = "start the arm's trajectory controller (ros2 control list_controllers), or driver:=i2rt; the gate's "
            fix += "parameter 'controller' chooses topic or action"
            yield Finding("controllers", "wrong", f"no controller of the {label} on {via}", fix)
        else:
            yield Finding("controllers", "ok", f"{label}: {via}")


def _commanders(scene: _Scene) -> Findings:
    allowed = {full_name(scene.seen.namespace, "gate")}
    allowed |= set((scene.seen.parameters.get("gate") or {}).get("commanders") or ())
    allowed |= {found.via.rpartition("/")[0] for found in scene.seen.commanders}
    for found in scene.seen.commanders:
        if found.node not in allowed:
            fix = "stop it, or list it in the gate's parameter 'commanders'; approvals are refused while it runs"
            if "moveit" in found.node or "move_group" in found.node:
                fix = "MoveIt can move the arm past the gate: start it with allow_trajectory_execution:=false"
            yield Finding("commanders", "wrong", str(found), fix)


def _calibration(scene: _Scene) -> Findings:
    name, path = "calibration", calibration_path(scene.calibration)
    pose = read_pose(path)
    trust = rate_calibration(pose, warn_px=2.0, refuse_px=0.0)
    again = "calibrate again: kinema4d calibrate"
    if trust.level != "good":
        yield Finding(name, "warning", f"{path.name}: {trust.text}", again)
    twin = scene.seen.parameters.get("twin")
    if twin is not None and twin.get("calibration") == "demo_lab" and "lab" not in scene.seen.ours():
        yield Finding(name, "wrong", "the demo camera's calibration is used without the lab", "calibration:=YOUR_FILE")
    if not pose.date:
        fix = "files of kinema4d calibrate have a date"
        yield Finding(name, "unchecked", f"{path.name} has no date: its age is not known", fix)
    else:
        made = datetime.datetime.fromisoformat(pose.date.replace("Z", "+00:00")).date()
        age = (datetime.datetime.now(datetime.timezone.utc).date() - made).days
        old = age > OLD_DAYS
        text = f"{path.name} is {age} days old"
        yield Finding(name, "warning" if old else "ok", text, "check it: kinema4d calibrate check" if old else "")
    status = _status(scene, "twin")
    values = {} if status is None else {pair.key: pair.value for pair in status.values}
    drift, says = values.get("camera drift", ""), values.get("camera drift says", "")
    if drift == "moved":
        yield Finding("drift", "wrong", says, f"the camera was moved: {again}")
    elif not drift or not says:
        why = drift if drift.startswith("not checked") else "the twin has not compared an image yet"
        fix = "drift_period_s of the twin; wait for its first check" if drift else "start the twin, and look again"
        yield Finding("drift", "unchecked", why, fix)
    else:
        still = drift == "still"
        fix = "" if still else "move the arm into the camera's view"
        yield Finding("drift", "ok" if still else "unchecked", says, fix)


def _generator(scene: _Scene) -> Findings:
    name, status = "generator", _status(scene, "generator")
    if scene.seen.generator_answers is None:
        fix = "start it: kinema4d generator, on this or another machine (docs/ros.md)"
        yield Finding(name, "wrong", f"no server of {scene.seen.resolve(names.GENERATE.name)}", fix)
    elif not scene.seen.generator_answers:
        detail = "it was found, but no response arrived"
        fix = "look longer (--seconds 20); on another machine, check both ways of the network and the firewall"
        yield Finding(name, "wrong", detail, fix)
    elif status is None:
        yield Finding(name, "unchecked", "it responds, but sent no diagnostics", "look longer: --seconds 20")
    elif status.level == b"\x00":
        preset = {pair.key: pair.value for pair in status.values}.get("preset", "")
        yield Finding(name, "ok", f"{preset}: {status.message}")


def _diagnostics(scene: _Scene) -> Findings:
    heard = [status for status in scene.seen.statuses.values() if status.hardware_id == "kinema4d"]
    running = set(scene.seen.ours())
    if not heard:
        fix = "each node reports once a second: see nodes, or look longer: --seconds 20"
        yield Finding("diagnostics", "unchecked", "no node of the graph reported", fix)
    for status in heard:
        if status.level != b"\x00" and status.name.rpartition("/")[2] in running:
            level: Status = "wrong" if status.level >= b"\x02" else "warning"
            yield Finding("diagnostics", level, f"{status.name}: {status.message}", "see the node's log")


CHECKS: Mapping[str, Callable[[_Scene], Findings]] = {
    "nodes": _nodes,
    "clocks": _clocks,
    "joint states": _joint_states,
    "camera": _camera,
    "tf": _tf,
    "calibration": _calibration,
    "qos": _qos,
    "controllers": _controllers,
    "commanders": _commanders,
    "generator": _generator,
    "diagnostics": _diagnostics,
}


def _silent(scene: _Scene, name: str, endpoint: Endpoint, fix: str) -> Finding:
    """Explain a topic on which nothing arrived."""
    topic, who = scene.seen.resolve(endpoint.name), scene.publishers(endpoint)
    if not who:
        return Finding(name, "wrong", f"nobody publishes {topic}", fix)
    detail = f"{who} publishes {topic}, but nothing arrived within {scene.seen.seconds:g} s"
    return Finding(name, "wrong", detail, "check that it is running and not waiting for hardware; then the network")


def _status(scene: _Scene, node: str) -> Any:
    return scene.seen.statuses.get(full_name(scene.seen.namespace, node).lstrip("/"))


def _node(info: Any) -> str:
    return full_name(info.node_namespace, info.node_name)
