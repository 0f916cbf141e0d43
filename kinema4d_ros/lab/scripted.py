"""Scripted plans by inverse kinematics: pick, place, pick and place, push, home; gripper pointing down.

They read the lab's true object poses, so they serve as demonstrations and as an expert, not as a policy.
`Motion` builds them from free moves, straight tool lines, gripper moves and pauses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import ErrorCode, KinematicsError, RobotError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.core.transforms import apply, invert, make, rotation_angle, slerp
from kinema4d_ros.kinematics.gripping import finger_shape
from kinema4d_ros.kinematics.protocol import Kinematics, NoSolution
from kinema4d_ros.lab.grips import BELOW_EDGE_M, FINGER_GAP_M, grips_of
from kinema4d_ros.lab.scenario import ScenarioError
from kinema4d_ros.lab.simulation import LabSimulation, LabState
from kinema4d_ros.physics.objects import PLAIN_SHAPES, PlacedObject
from kinema4d_ros.robot.gripper import Fingers

__all__ = ["Motion", "home_plan", "is_held", "pick_and_place_plan", "pick_plan", "place_plan", "push_plan", "tool_down"]

RATE_HZ = 50.0
SPEED_FRACTION = 0.35
"""Largest joint speed as a fraction of the velocity limit; demonstrations are slow."""
MAX_JOINT_SPEED = 1.6
"""rad/s, the largest speed of any revolute joint."""
TOOL_SPEED_M = 0.22
TOOL_TURN_RAD = 1.5
MIN_PIECE_S = 0.2

_PEAK = 1.875
"""Ratio of peak to mean speed of a minimum-jerk move."""


class Motion:
    """Builder of a trajectory in segments that start and end at rest (minimum jerk in time).

    Attributes:
        q: (J,) joint positions at the end of the motion so far.
    """

    def __init__(self, kinematics: Kinematics, start: ArrayLike) -> None:
        """Begin at positions (J,) in `robot.joint_names` order."""
        self.kinematics = kinematics
        self.q: Array = np.array(start, dtype=np.float64)
        self._samples = [self.q.copy()]
        self._times = [0.0]
        self._mark = 1
        robot = kinematics.robot
        self._tool = [link.name for link in robot.links].index(robot.tool_link)
        limits = np.array([j.limits.velocity for j in robot.actuated])
        cap = np.array([np.inf if j.kind == "prismatic" else MAX_JOINT_SPEED for j in robot.actuated])
        self._speed = np.minimum(SPEED_FRACTION * limits, cap)

    def tool_pose(self) -> Array:
        """Compute `base_T_tool` (4, 4) at the end of the motion so far."""
        return np.asarray(self.kinematics.forward(self.q)[self._tool])

    def mark(self) -> None:
        """Remember this point for `rewind`."""
        self._mark = len(self._times)

    def rewind(self) -> None:
        """Discard all segments since the last `mark`."""
        del self._times[self._mark :], self._samples[self._mark :]
        self.q = self._samples[-1].copy()

    def to_joints(self, goal: ArrayLike) -> Motion:
        """Move all joints to positions (J,), synchronised."""
        end = np.asarray(goal, dtype=np.float64)
        self._piece(np.stack([self.q, end]), 0.0)
        return self

    def to_pose(self, base_T_tool: ArrayLike) -> Motion:
        """Move the joints to a tool pose (4, 4) without a straight path; the gripper joint does not move."""
        return self.to_joints(self.kinematics.inverse(base_T_tool, seed=self.q))

    def line_to(self, base_T_tool: ArrayLike, speed: float = 1.0) -> Motion:
        """Move the tool in a straight line to a pose (4, 4); `speed` scales the tool speed."""
        start, end = self.tool_pose(), np.asarray(base_T_tool, dtype=np.float64)
        length = float(np.linalg.norm(end[:3, 3] - start[:3, 3]))
        turn = float(rotation_angle(start, end))
        count = max(2, int(np.ceil(max(length / 0.005, turn / 0.05))) + 1)
        path = self.kinematics.solve_path(slerp(start, end, np.linspace(0.0, 1.0, count)), seed=self.q)
        path.require_reached()
        q = path.q.copy()
        q[0] = self.q
        self._piece(q, _PEAK * max(length / TOOL_SPEED_M, turn / TOOL_TURN_RAD) / speed)
        return self

    def grip(self, width_m: float) -> Motion:
        """Open or close the gripper to a width in metres, clipped to its range."""
        gripper = self.kinematics.robot.gripper
        if gripper is None:
            raise RobotError(
                f"robot '{self.kinematics.robot.name}' has no gripper",
                expected="a robot with a gripper",
                code=ErrorCode.NO_GRIPPER,
            )
        goal = self.q.copy()
        column = self.kinematics.robot.joint_names.index(gripper.joint)
        goal[column] = gripper.position_from_width(np.clip(width_m, gripper.width_closed_m, gripper.width_open_m))
        return self.to_joints(goal)

    def wait(self, duration_s: float) -> Motion:
        """Hold the position for `duration_s`."""
        self._piece(np.stack([self.q, self.q]), duration_s)
        return self

    def trajectory(self) -> JointTrajectory:
        """Join all segments into one trajectory that starts at time 0."""
        return JointTrajectory.from_positions(
            self.kinematics.robot.joint_names, np.array(self._samples), times=np.array(self._times)
        )

    def _piece(self, q: Array, least_s: float) -> None:
        """Append a path (N, J), sampled evenly in its parameter, with minimum-jerk timing of at least `least_s`."""
        steps = np.abs(np.diff(q, axis=0)) * (len(q) - 1)
        duration = max(least_s, _PEAK * float(np.max(steps / self._speed)), MIN_PIECE_S)
        count = max(2, int(np.ceil(duration * RATE_HZ)))
        clock = np.arange(1, count + 1) / count
        s = clock**3 * (10 - 15 * clock + 6 * clock**2)
        where = np.linspace(0.0, 1.0, len(q))
        rows = np.stack([np.interp(s, where, column) for column in q.T], axis=1)
        start = self._times[-1]
        self._times.extend((start + duration * clock).tolist())
        self._samples.extend(rows)
        self.q = q[-1].copy()


Array = NDArray[np.float64]

APPROACH_M = 0.09
"""Height of the pre-grasp pose above the grasp; the descent from it is a straight line."""
LIFT_M = 0.10
SQUEEZE_M = 0.006
"""Each finger is commanded this far into the object, which produces the grip force."""
BELOW_TIPS_M = 0.0016
"""Gap between the finger tips and the table."""
RELEASE_M = 0.002
HELD_M = 0.05
PALM_GAP_M = 0.004
"""Gap between the palm and what stands on the object that is picked."""
STACKED_M = 0.005
"""An object stands on another one if its foot is this close to the other's top."""


def pick_plan(
    lab: LabSimulation | LabState, name: str, kinematics: Kinematics, *, lift_m: float = LIFT_M
) -> JointTrajectory:
    """Plan a pick from the current command: move over the object, descend, close, lift by `lift_m` metres.

    Grasps with more clearance to other objects are tried first. What the gripper holds already is only lifted.

    Raises:
        ScenarioError: no such object.
        NoSolution: out of reach.
    """
    state = _state(lab)
    motion = Motion(kinematics, state.commanded)
    _pick(motion, state, _object(state, name), lift_m)
    return motion.trajectory()


def place_plan(
    lab: LabSimulation | LabState, name: str, kinematics: Kinematics, goal: ArrayLike | None = None
) -> JointTrajectory:
    """Plan a place of the held object: move over x, y (2,) metres of the table, descend, open, rise.

    `goal` defaults to the scenario's goal.

    Raises:
        KinematicsError: the gripper does not hold the object.
    """
    state = _state(lab)
    motion = Motion(kinematics, state.commanded)
    placed = _object(state, name)
    away = _away(motion, placed)
    if away > _reach(placed):
        raise KinematicsError(
            f"the gripper does not hold '{name}': it is {1000 * away:.0f} mm from the tool",
            expected="the object between the fingers",
            hint="execute a pick first, or use pick_and_place_plan",
            code=ErrorCode.PLAN_START_MISMATCH,
        )
    _place(motion, placed, state.goal if goal is None else np.asarray(goal, dtype=np.float64))
    return motion.trajectory()


def pick_and_place_plan(
    lab: LabSimulation | LabState, name: str, kinematics: Kinematics, goal: ArrayLike | None = None
) -> JointTrajectory:
    """Plan a pick and a place as one trajectory."""
    state = _state(lab)
    motion = Motion(kinematics, state.commanded)
    placed = _object(state, name)
    tool_T_object = _pick(motion, state, placed)
    lifted = PlacedObject(placed.object, motion.tool_pose() @ tool_T_object)
    _place(motion, lifted, state.goal if goal is None else np.asarray(goal, dtype=np.float64))
    return motion.trajectory()


def push_plan(
    lab: LabSimulation | LabState,
    name: str,
    kinematics: Kinematics,
    direction: ArrayLike | None = None,
    distance_m: float = 0.08,
) -> JointTrajectory:
    """Plan a push: close the gripper, descend behind the object, push it along x, y `direction` (2,), rise.

    Without `direction`, the first reachable of eight directions, starting with the one towards the scenario's goal.
    """
    state = _state(lab)
    placed = _object(state, name)
    if direction is not None:
        choices = [np.asarray(direction, dtype=np.float64)]
    else:
        first = np.arctan2(*(state.goal - placed.position[:2])[::-1])
        turns = first + np.radians([0, 45, -45, 90, -90, 135, -135, 180])
        choices = [np.array([np.cos(a), np.sin(a)]) for a in turns]
    refusal: NoSolution | None = None
    for choice in choices:
        motion = Motion(kinematics, state.commanded)
        try:
            _push(motion, placed, choice, distance_m)
        except NoSolution as error:
            refusal = refusal or error
            continue
        return motion.trajectory()
    raise refusal or KinematicsError("no push direction is given", expected="a direction (2,)")


def home_plan(lab: LabSimulation | LabState, kinematics: Kinematics) -> JointTrajectory:
    """Plan a move to the robot's home; the gripper keeps its command."""
    state = _state(lab)
    robot = kinematics.robot
    goal = robot.home_position()
    if robot.gripper is not None:
        column = robot.joint_names.index(robot.gripper.joint)
        goal[column] = state.commanded[column]
    return Motion(kinematics, state.commanded).to_joints(goal).trajectory()


def _state(lab: LabSimulation | LabState) -> LabState:
    return lab.state() if isinstance(lab, LabSimulation) else lab


def _object(state: LabState, name: str) -> PlacedObject:
    if name not in state.objects:
        raise ScenarioError(f"object {name!r} is not on the table", expected=f"one of {', '.join(state.objects)}")
    return state.objects[name]


def tool_down(x: float, y: float, z: float, yaw: float) -> Array:
    """Compute base_T_tool (4, 4) at x, y, z, pointing down, with the fingers closing along direction `yaw`."""
    c, s = np.cos(yaw), np.sin(yaw)
    return make([[c, s, 0.0], [s, -c, 0.0], [0.0, 0.0, -1.0]], [x, y, z])


def _raised(pose: Array, by: float) -> Array:
    out: Array = pose.copy()
    out[2, 3] += by
    return out


def _away(motion: Motion, placed: PlacedObject) -> float:
    """Return the distance of an object's centre from the tool, metres."""
    return float(np.linalg.norm(motion.tool_pose()[:3, 3] - placed.position))


def _reach(placed: PlacedObject) -> float:
    """Return the distance from the tool, metres, up to which an object may be in the gripper."""
    return HELD_M + placed.object.height / 2


def is_held(state: LabState, name: str, kinematics: Kinematics) -> bool:
    """Return whether an object is in the gripper: closed around it, with the object's centre near the tool."""
    motion, placed = Motion(kinematics, state.commanded), _object(state, name)
    gripper = kinematics.robot.gripper
    if gripper is None or _away(motion, placed) > _reach(placed):
        return False
    commanded = float(gripper.width_from_position(motion.q[_gripper_column(motion)]))
    low, high = sorted((gripper.closed, gripper.open))
    measured = min(max(float(state.positions[_gripper_column(motion)]), low), high)
    return commanded < float(gripper.width_from_position(measured)) - SQUEEZE_M / 2


def _pick(motion: Motion, state: LabState, placed: PlacedObject, lift_m: float = LIFT_M) -> Array:
    """Append a pick and return `tool_T_object` of the grasp."""
    if is_held(state, placed.name, motion.kinematics):
        tool_T_object = invert(motion.tool_pose()) @ placed.base_T_object
        _raise_held(motion, lift_m)
        return np.asarray(tool_T_object)
    others = [o for o in state.objects.values() if o is not placed]
    gripper = motion.kinematics.robot.gripper
    fingers = finger_shape(motion.kinematics.robot)
    widest = 0.0 if gripper is None else gripper.width_open_m
    start = motion.q.copy()
    options: list[tuple[float, Array, Array, float]] = []
    refusal: NoSolution | None = None
    least = _above_load(placed, others, fingers)
    for grip in grips_of(placed, fingers, widest, fingers.tip_m + BELOW_TIPS_M):
        grasp = tool_down(grip.x, grip.y, max(grip.z, least), grip.yaw)
        try:
            q = motion.kinematics.inverse(_raised(grasp, APPROACH_M), seed=start)
        except NoSolution as error:
            refusal = refusal or error
            continue
        room = min(_finger_room(grasp, grip.width_m, fingers, others), 0.02)
        options.append((room - 0.004 * float(np.max(np.abs(q - start))), grasp, q, grip.width_m))
    if not options:
        raise refusal or KinematicsError(f"no grasp for '{placed.name}'", expected="a graspable object")
    for _, grasp, q, width in sorted(options, key=lambda option: -option[0]):
        try:
            _append_grasp(motion, grasp, q, width, lift_m)
        except NoSolution as error:
            refusal = error
            motion.rewind()
            continue
        return np.asarray(invert(grasp) @ placed.base_T_object)
    raise refusal or KinematicsError(f"no grasp for '{placed.name}'", expected="a graspable object")


def _above_load(placed: PlacedObject, others: Sequence[PlacedObject], fingers: Fingers) -> float:
    """Return the least height of the grip point at which the palm clears what stands on the object, metres."""
    top = float(placed.position[2]) + placed.object.height / 2
    load = [
        float(o.position[2]) + o.object.height / 2
        for o in others
        if float(np.hypot(*(o.position - placed.position)[:2])) < placed.object.radius
        and abs(float(o.position[2]) - o.object.height / 2 - top) < STACKED_M
    ]
    return min(max(load) - fingers.length_m + PALM_GAP_M, top - BELOW_EDGE_M) if load else -np.inf


def _raise_held(motion: Motion, lift_m: float) -> None:
    """Lift what the gripper holds, less high if the arm cannot reach so far up."""
    pose, refusal = motion.tool_pose(), None
    for share in (1.0, 0.75, 0.55):
        motion.mark()
        try:
            motion.line_to(_raised(pose, share * lift_m), speed=0.8)
        except NoSolution as error:
            refusal = error
            motion.rewind()
            continue
        return
    if refusal is not None:
        raise refusal


def _append_grasp(motion: Motion, grasp: Array, above: Array, width: float, lift_m: float) -> None:
    motion.mark()
    gripper_column = _gripper_column(motion)
    motion.grip(width + 2 * FINGER_GAP_M)
    goal = above.copy()
    goal[gripper_column] = motion.q[gripper_column]
    motion.to_joints(goal).line_to(grasp).wait(0.1)
    motion.grip(width - 2 * SQUEEZE_M).wait(0.2)
    motion.line_to(_raised(grasp, lift_m), speed=0.8)


def _gripper_column(motion: Motion) -> int:
    gripper = motion.kinematics.robot.gripper
    return motion.kinematics.robot.joint_names.index("" if gripper is None else gripper.joint)


def _finger_room(grasp: Array, width: float, fingers: Fingers, others: Sequence[PlacedObject]) -> float:
    """Compute the gap in metres between open fingers and other objects' outlines from above; negative = overlap."""
    if not others:
        return float("inf")
    inner = width / 2 + FINGER_GAP_M
    xs = np.linspace(inner, inner + fingers.thickness_m, 4)
    ys = np.linspace(-fingers.width_m / 2, fingers.width_m / 2, 5)
    grid = np.array([[side * x, y, 0.0] for side in (-1, 1) for x in xs for y in ys])
    p = apply(grasp, grid)[:, :2]
    return min(float(np.min(np.linalg.norm(p - o.position[:2], axis=1))) - o.object.radius for o in others)


def _place(motion: Motion, held: PlacedObject, goal: Array) -> None:
    base_T_tool = motion.tool_pose()
    tool_T_object = invert(base_T_tool) @ held.base_T_object
    # Rotate the object with the arm's bearing, so that joint 6 hardly moves and stays within its limits.
    turn = np.arctan2(goal[1], goal[0]) - np.arctan2(held.position[1], held.position[0])
    c, s = np.cos(turn), np.sin(turn)
    about_z = make([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    base_T_object = about_z @ held.base_T_object
    base_T_object[:3, 3] = [*goal, held.object.height / 2 + RELEASE_M]
    release = base_T_object @ invert(tool_T_object)
    lifted = base_T_tool.copy()
    lifted[2, 3] = max(lifted[2, 3], release[2, 3] + LIFT_M - 0.01)
    motion.line_to(lifted)
    motion.to_pose(_raised(release, lifted[2, 3] - release[2, 3]))
    motion.line_to(release, speed=0.7).wait(0.2)
    motion.grip(_held_width(motion, held) + 2 * FINGER_GAP_M).wait(0.1)
    motion.line_to(_raised(release, APPROACH_M))


def _held_width(motion: Motion, held: PlacedObject) -> float:
    """Return the width of a held object between the fingers, metres; of an odd shape from the gripper's command."""
    gripper = motion.kinematics.robot.gripper
    if gripper is None or held.object.shape in PLAIN_SHAPES:
        return min(held.object.size[:2])
    return float(gripper.width_from_position(motion.q[_gripper_column(motion)])) + 2 * SQUEEZE_M


def _push(motion: Motion, placed: PlacedObject, direction: Array, distance_m: float) -> None:
    length = float(np.linalg.norm(direction))
    if not (np.isfinite(length) and length > 1e-9 and 0.0 < distance_m < 1.0):
        raise KinematicsError(
            f"cannot push by {distance_m} m along {direction.tolist()}", expected="a nonzero direction and 0 to 1 m"
        )
    unit = direction / length
    behind = placed.position[:2] - unit * (placed.object.radius + 0.030)
    contact = placed.position[:2] - unit * (placed.object.radius + 0.004)
    end = contact + unit * distance_m
    foot = float(placed.position[2]) - placed.object.height / 2
    z = min(0.3 * placed.object.height, 0.02) + (finger_shape(motion.kinematics.robot).tip_m + BELOW_TIPS_M)
    # What stands on another object is pushed off it.
    z += foot if foot > STACKED_M else 0.0
    yaw = float(np.arctan2(unit[1], unit[0]))
    refusal: NoSolution | None = None
    for turned in (yaw, yaw + np.pi):
        motion.mark()
        try:
            low = tool_down(behind[0], behind[1], z, turned)
            motion.grip(0.0).to_pose(_raised(low, APPROACH_M)).line_to(low)
            motion.line_to(tool_down(end[0], end[1], z, turned), speed=0.6)
            motion.line_to(_raised(tool_down(end[0], end[1], z, turned), APPROACH_M))
        except NoSolution as error:
            refusal = error
            motion.rewind()
            continue
        return
    if refusal is not None:
        raise refusal
