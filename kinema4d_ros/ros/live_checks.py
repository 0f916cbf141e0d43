"""Findings about a running graph: what is wrong in a snapshot of it, and how to fix it."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from rclpy.duration import Infinite
from rclpy.qos import QoSCompatibility, QoSLivelinessPolicy, QoSProfile, qos_check_compatible

from kinema4d_ros.calibration import read_camera, read_pose
from kinema4d_ros.calibration.quality import rate_calibration
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.core.transforms import invert, rotation_angle
from kinema4d_ros.io.resources import calibration_path
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names
from kinema4d_ros.ros.commanders import RECORDERS, full_name
from kinema4d_ros.ros.live import CLOCK, Snapshot
from kinema4d_ros.ros.live_inputs import Finding, Findings, Scene, Status, cameras, joint_states, node_of
from kinema4d_ros.ros.messages.poses import transform_to_matrix
from kinema4d_ros.ros.qos import profile

__all__ = ["Finding", "check_live"]

NEEDED = ("twin", "preview", "playback", "gate")
"""Nodes without which no plan can be previewed and approved."""

OLD_DAYS = 60
"""A calibration older than this gives a warning."""

BUSY_S = 0.25
"""A longer delay of the observer gives a warning."""

MOVED_M, TURNED_RAD = 0.002, 0.005
"""Largest difference between TF and the calibration file."""


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
    scene = Scene(seen, model, camera, calibration, simulated)
    for name, check in CHECKS.items():
        try:
            made = list(check(scene))
        except Exception as error:
            made = [Finding(name, "unchecked", f"the check itself failed: {error!r}", "report this as a bug")]
        found += made or [Finding(name, "ok", "nothing wrong")]
    faulty = {finding.name for finding in found if finding.status in ("wrong", "warning")}
    return [finding for finding in found if finding.status != "ok" or finding.name not in faulty]


def _nodes(scene: Scene) -> Findings:
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


def _load(scene: Scene) -> Findings:
    delay_s = scene.seen.delay_s
    if delay_s > BUSY_S:
        detail = f"this machine is busy: the check itself was delayed by {delay_s:.1f} s; rates and ages include that"
        yield Finding("load", "warning", detail, "end other programs, and look again")


def _clocks(scene: Scene) -> Findings:
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


def _tf(scene: Scene) -> Findings:
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
        where = f"its tree ends at '{root}'" if root else "no node publishes it"
        fix = "the twin publishes it from the calibration; check that it runs and that base_frame is the robot's base"
        yield Finding(name, "wrong", f"'{scene.camera.frame_id}' is not connected to '{base}': {where}", fix)
    elif scene.camera is not None:
        yield from _camera_place(scene, scene.camera)
    if links:
        detail = f"{len(links)} links are not connected to '{base}': {', '.join(links[:4])}"
        yield Finding(name, "wrong", detail, "the twin publishes them once joint states of every joint arrive")
    others = {node_of(i) for i in scene.seen.publishers[names.TF.name]} - {full_name(scene.seen.namespace, "twin")}
    if any("robot_state_publisher" in node for node in others) and not links:
        detail = f"the twin and {', '.join(sorted(others))} publish on /tf"
        yield Finding(name, "warning", detail, "let one of them publish the robot's frames")
    yield Finding(name, "ok", f"{len(frames)} frames")


def _root(frames: Mapping[str, Mapping[str, Any]], frame: str) -> str:
    """Return the top of a frame's tree; "" for a frame that no node publishes."""
    if frame not in frames:
        return ""
    seen = set()
    while frame in frames and frame not in seen:
        seen.add(frame)
        frame = next(iter(frames[frame]))
    return frame


def _camera_place(scene: Scene, camera: PinholeCamera) -> Findings:
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


def _qos(scene: Scene) -> Findings:
    seen, checked = scene.seen, 0
    for endpoint in (e for e in names.ENDPOINTS if e.qos):
        mine, incoming = _as_discovered(profile(endpoint)), endpoint.kind == "in"
        offers = [(node_of(i), i.qos_profile) for i in seen.publishers[endpoint.name]]
        wants = [(node_of(i), i.qos_profile) for i in seen.subscribers[endpoint.name]]
        pairs = [(o, w) for o in offers for w in wants]
        # What the graph's node would use, also where it does not run now.
        pairs += [(o, ("this graph", mine)) for o in offers] if incoming else [(("this graph", mine), w) for w in wants]
        said: set[tuple[str, str]] = set()
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


def _as_discovered(mine: QoSProfile) -> QoSProfile:
    """Return a profile as another node sees it: what is left to the middleware is infinite or automatic."""
    return QoSProfile(
        depth=mine.depth,
        reliability=mine.reliability,
        durability=mine.durability,
        deadline=Infinite,
        lifespan=Infinite,
        liveliness=QoSLivelinessPolicy.AUTOMATIC,
        liveliness_lease_duration=Infinite,
    )


def _qos_fix(offer: Any, want: Any) -> str:
    if offer.reliability != want.reliability:
        return "make the publisher reliable, or the subscriber best effort"
    if offer.durability != want.durability:
        return "make the publisher transient local, or the subscriber volatile"
    return "use the same QoS on both sides"


def _short(reason: str) -> str:
    return reason.removeprefix("ERROR: ").rstrip("; ").strip()


def _controllers(scene: Scene) -> Findings:
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


def _commanders(scene: Scene) -> Findings:
    allowed = {full_name(scene.seen.namespace, "gate")}
    allowed |= set((scene.seen.parameters.get("gate") or {}).get("commanders") or ())
    allowed |= {found.via.rpartition("/")[0] for found in scene.seen.commanders}
    for found in scene.seen.commanders:
        if found.node not in allowed:
            fix = "stop it, or list it in the gate's parameter 'commanders'; approvals are refused while it runs"
            if "moveit" in found.node or "move_group" in found.node:
                fix = "MoveIt can move the arm past the gate: start it with allow_trajectory_execution:=false"
            yield Finding("commanders", "wrong", str(found), fix)


def _calibration(scene: Scene) -> Findings:
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


def _generator(scene: Scene) -> Findings:
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


def _diagnostics(scene: Scene) -> Findings:
    heard = [status for status in scene.seen.statuses.values() if status.hardware_id == "kinema4d"]
    running = set(scene.seen.ours())
    if not heard:
        fix = "each node reports once a second: see nodes, or look longer: --seconds 20"
        yield Finding("diagnostics", "unchecked", "no node of the graph reported", fix)
    for status in heard:
        if status.level != b"\x00" and status.name.rpartition("/")[2] in running:
            level: Status = "wrong" if status.level >= b"\x02" else "warning"
            yield Finding("diagnostics", level, f"{status.name}: {status.message}", "see the node's log")


CHECKS: Mapping[str, Callable[[Scene], Findings]] = {
    "load": _load,
    "nodes": _nodes,
    "clocks": _clocks,
    "joint states": joint_states,
    "camera": cameras,
    "tf": _tf,
    "calibration": _calibration,
    "qos": _qos,
    "controllers": _controllers,
    "commanders": _commanders,
    "generator": _generator,
    "diagnostics": _diagnostics,
}


def _status(scene: Scene, node: str) -> Any:
    return scene.seen.statuses.get(full_name(scene.seen.namespace, node).lstrip("/"))
