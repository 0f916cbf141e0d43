"""Mapping of recorded columns to robot joints, gripper scales, and shared parts of the trajectory readers.

--joint-map joint_0=panda_joint1,hand=gripper   RECORDED=ROBOT; RECORDED= skips the column; or a YAML file of these
--gripper-range OPEN,CLOSED                     recorded values of an open and of a closed gripper:
                                                1,0 (1 = open)  0,1 (1 = closed)  0.085,0 (metres)  100,0 (percent)

An arm joint never defaults to home or zero: without values it is an error that lists both sets of names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.files import read_yaml
from kinema4d_ros.robot.gripper import RANGE_TOLERANCE, Gripper
from kinema4d_ros.robot.model import Robot

__all__ = [
    "GRIPPER",
    "GRIPPER_COLUMNS",
    "MAX_BYTES",
    "MAX_JOINTS",
    "MAX_SAMPLES",
    "JointOptions",
    "Reading",
    "malformed",
    "match_joints",
    "moves_arm",
    "parse_gripper_range",
    "parse_joint_map",
    "require_file",
    "to_robot",
]

Array = NDArray[np.float64]

GRIPPER = "gripper"
"""Name of the gripper opening in the recording's own scale: as a column, and as a target in a joint map."""

GRIPPER_COLUMNS: Mapping[str, str] = {
    GRIPPER: "",
    "gripper_position": "",
    "gripper_pos": "",
    "gripper_state": "",
    "gripper_width": "width",
    "gripper_opening": "open",
    "gripper_open": "open",
    "gripper_closed": "closed",
}
"""Column names of the gripper of any robot, and the scale that the name implies; "" = none."""

_RANGES = "--gripper-range OPEN,CLOSED: 1,0 if 1 is open; 0,1 if 1 is closed; 100,0 for percent open"


@dataclass(frozen=True)
class JointOptions:
    """Joint map and gripper scale of a recording.

    Attributes:
        joint_map: robot joint, or "gripper", by recorded name; "" skips a recorded joint.
        gripper_range: recorded values of an open and of a closed gripper; None = the column name must imply them.
        range_source: origin of the range, for notes.
    """

    joint_map: Mapping[str, str] = field(default_factory=dict)
    gripper_range: tuple[float, float] | None = None
    range_source: str = "--gripper-range"

    def __post_init__(self) -> None:
        """Reject a range that is not finite or has two equal ends."""
        if self.gripper_range is None:
            return
        if not np.all(np.isfinite(self.gripper_range)) or self.gripper_range[0] == self.gripper_range[1]:
            raise _invalid(f"gripper range {self.gripper_range}", "two different numbers: OPEN,CLOSED")

    def check(self, path: Path, robot: Robot | None, names: Iterable[str]) -> None:
        """Reject a map with names that the recording (`names`) or the robot does not have."""
        if robot is None:
            if self.joint_map or self.gripper_range:
                raise _invalid(f"{path}: a joint map or gripper range without a robot", "a robot: --robot")
            return
        there = list(dict.fromkeys(names))
        unknown = [name for name in self.joint_map if name not in there]
        if unknown:
            raise _invalid(
                f"--joint-map: the recording {path} has no joint {', '.join(unknown)}", f"some of {', '.join(there)}"
            )
        known = [*_known(robot), *([] if robot.gripper is None else [GRIPPER])]
        strange = [name for name in self.joint_map.values() if name and name not in known]
        if strange:
            raise _invalid(
                f"--joint-map: robot '{robot.name}' has no joint {', '.join(strange)}", f"some of {', '.join(known)}"
            )


def parse_joint_map(text: str) -> dict[str, str]:
    """Parse a joint map from `RECORDED=ROBOT,...`, or from a YAML or JSON file with lines `RECORDED: ROBOT`."""
    if "=" not in text:
        document = read_yaml(text)
        pairs = [(str(key), "" if value is None else value) for key, value in document.items()]
    else:
        pairs = []
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, equals, joint = item.partition("=")
            if not equals or not name.strip():
                raise _invalid(f"--joint-map: {item!r}", "RECORDED=ROBOT,RECORDED=ROBOT,... or a file")
            pairs.append((name.strip(), joint.strip()))
    if not pairs or any(not isinstance(joint, str) for _, joint in pairs):
        raise _invalid(f"--joint-map: {text!r} has no pairs of names", "RECORDED=ROBOT,... or lines RECORDED: ROBOT")
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _invalid(f"--joint-map: {text!r} names a recorded joint twice", "each once")
    return found


def parse_gripper_range(text: str) -> tuple[float, float]:
    """Parse `OPEN,CLOSED`, or `OPEN:CLOSED` where a comma has another meaning."""
    try:
        opened, closed = (float(part) for part in text.replace(":", ",").split(","))
    except ValueError:
        raise _invalid(f"--gripper-range: {text!r}", _RANGES) from None
    return opened, closed


def moves_arm(robot: Robot, names: Iterable[str], options: JointOptions) -> bool:
    """Return True if any of the recorded names is a joint of the arm."""
    arm = {joint.name for joint in robot.arm}
    return any(options.joint_map.get(name, name) in arm for name in names)


def match_joints(
    path: Path, robot: Robot, names: Sequence[str], options: JointOptions, notes: list[str], *, whole_arm: bool = True
) -> dict[str, str]:
    """Return the robot joint by recorded name, without skipped joints; "gripper" is in the recording's scale.

    Recordings often contain other joints (a second arm, a base). They are skipped with a note.

    Args:
        path: of the recording, for messages.
        robot: robot whose joints to match.
        names: recorded names.
        options: joint map and gripper range, already checked by `check`.
        notes: skipped joints are added here.
        whole_arm: False accepts commands for a part of the arm, if every recorded name matches.

    Raises:
        FileFormatError: UNKNOWN_JOINT if an arm joint has no values, ARGUMENT_INVALID if two map to one joint.
    """
    known, hand = set(_known(robot)), robot.gripper
    has_hand = hand is not None and bool({hand.joint, *(v.name for v in hand.vendor)} & set(names))
    matched: dict[str, str] = {}
    for name in names:
        target = options.joint_map.get(name, name)
        if name not in options.joint_map and hand is not None and not has_hand and name.lower() in GRIPPER_COLUMNS:
            target = GRIPPER
        if target in known or (target == GRIPPER and hand is not None):
            matched[name] = target
    joints = {name: hand.joint if target == GRIPPER and hand else target for name, target in matched.items()}
    for joint in joints.values():
        twice = [name for name, other in joints.items() if other == joint]
        if len(twice) > 1:
            raise _invalid(
                f"{path}: {' and '.join(twice)} are both read as '{joint}'",
                "one recorded joint for each robot joint",
                f"skip one: --joint-map {twice[0]}=",
            )
    covered = set(joints.values())
    covered |= {m.joint for j in robot.joints if j.name in covered and (m := j.mimic) is not None}
    arm = [joint.name for joint in robot.arm if hand is None or joint.name != hand.joint]
    missing = [name for name in arm if name not in covered]
    free = [name for name in names if name not in matched and name not in options.joint_map]
    if missing and (whole_arm or free):
        raise FileFormatError(
            f"{path}: no values for {', '.join(missing)} of robot '{robot.name}'",
            expected=f"values for every joint of the arm, {', '.join(arm)}; the recording has {', '.join(names)}",
            hint=_advice(free, missing),
            code=ErrorCode.UNKNOWN_JOINT,
        )
    left_out = [name for name in names if name not in matched]
    if left_out:
        notes.append(f"skipped joints that robot '{robot.name}' does not have: {', '.join(left_out)}")
    fingers = [] if hand is None else [v.joint for v in hand.vendor if v.name in covered] + [hand.joint] * has_hand
    idle = [name for name in robot.joint_names if name not in (*covered, *fingers, *arm)]
    if idle and whole_arm:
        notes.append(f"no values for {', '.join(idle)} of robot '{robot.name}': taken as the home position")
    return matched


def to_robot(
    path: Path,
    robot: Robot | None,
    names: Sequence[str],
    positions: Array,
    options: JointOptions,
    notes: list[str],
    matched: Mapping[str, str] | None = None,
) -> tuple[tuple[str, ...], Array]:
    """Convert names and columns (T, N) to robot joints in radians and metres; without a robot return them as recorded.

    `matched` is an earlier result of `match_joints` for a larger set that includes these names.
    """
    if robot is None:
        return tuple(names), positions
    if matched is None:
        matched = match_joints(path, robot, names, options, notes)
    columns, named = [], []
    scaled = False
    for i, name in enumerate(names):
        if name not in matched:
            continue
        column, joint = positions[:, i], matched[name]
        hand = robot.gripper
        # A robot joint that is itself named "gripper" may still be recorded in another scale.
        own = hand is not None and name == hand.joint != GRIPPER and options.gripper_range is None
        if hand is not None and joint in (GRIPPER, hand.joint) and not own:
            column, joint, scaled = _gripper(path, hand, name, column, options, notes), hand.joint, True
        columns.append(column)
        named.append(joint)
    # The gripper of `matched` may be in another part of the recording.
    hands = {GRIPPER} if robot.gripper is None else {GRIPPER, robot.gripper.joint}
    if options.gripper_range is not None and not scaled and not hands & set(matched.values()):
        notes.append("no recorded column is the gripper: --gripper-range had no effect")
    return tuple(named), np.stack(columns, axis=1) if columns else np.empty((len(positions), 0))


def _known(robot: Robot) -> list[str]:
    vendor = [] if robot.gripper is None else [v.name for v in robot.gripper.vendor]
    return list(dict.fromkeys([*robot.joint_names, *(j.name for j in robot.joints if j.moves), *vendor]))


def _advice(free: list[str], missing: list[str]) -> str:
    if len(free) == len(missing):
        pairs = ",".join(f"{a}={b}" for a, b in zip(free, missing, strict=True))
        return f"if they are in the same order: --joint-map {pairs}; else map them one by one, or check --robot"
    return "map them with --joint-map RECORDED=ROBOT,..., or check that --robot is the recorded robot"


def _gripper(path: Path, hand: Gripper, name: str, values: Array, options: JointOptions, notes: list[str]) -> Array:
    """Return (T,) positions of the gripper's joint from recorded values in any scale."""
    if not values.size:  # a plan without points is a stop command
        return values
    said, scale = options.range_source, options.gripper_range
    if scale is None:
        word = GRIPPER_COLUMNS.get(name.lower(), "")
        said = f"guessed from the name '{name}', which its values fit"
        scale = {"width": (hand.width_open_m, hand.width_closed_m), "open": (1.0, 0.0), "closed": (0.0, 1.0)}.get(word)
        if name == hand.joint:
            said, scale = "positions of the robot's joint of that name, which its values fit", (hand.open, hand.closed)
    seen = f"'{name}' goes from {values.min():.4g} to {values.max():.4g} and starts at {values[0]:.4g}"
    opening = None if scale is None else (values - scale[1]) / (scale[0] - scale[1])
    if scale is None or opening is None or opening.min() < -RANGE_TOLERANCE or opening.max() > 1 + RANGE_TOLERANCE:
        beyond = "" if scale is None else f", beyond {scale[0]:g} (open) to {scale[1]:g} (closed)"
        raise _invalid(
            f"{path}: the gripper's scale is {'unknown' if scale is None else 'different'}: {seen}{beyond}",
            f"{_RANGES}; {hand.width_open_m:g},{hand.width_closed_m:g} for metres between the fingers; "
            f"{hand.open:g},{hand.closed:g} for positions of '{hand.joint}'",
            f"check an image in which the gripper is closed; --joint-map {name}= keeps the gripper at home",
        )
    notes.append(f"gripper '{name}': {scale[0]:g} = open, {scale[1]:g} = closed ({said})")
    return hand.position(opening)


def _invalid(what: str, expected: str, hint: str = "") -> KinemaError:
    return FileFormatError(what, expected=expected, hint=hint, code=ErrorCode.ARGUMENT_INVALID)


# Shared by all readers: result with notes, size limits and file errors.

MAX_BYTES = 256 * 2**20
"""Maximum size of a table file: hours of motion at 1 kHz."""

MAX_SAMPLES = 4_000_000
MAX_JOINTS = 256


@dataclass(frozen=True, eq=False)
class Reading:
    """Trajectory from a file, with notes about what the reader chose, merged or skipped."""

    trajectory: JointTrajectory
    notes: tuple[str, ...] = ()


def malformed(path: Path, what: str, expected: str, hint: str = "") -> FileFormatError:
    """Build the error for a file that does not match its name or header."""
    return FileFormatError(f"{path}: {what}", expected=expected, hint=hint)


def require_file(path: Path, max_bytes: int = MAX_BYTES) -> None:
    """Raise an error unless the path is a file that is neither empty nor larger than `max_bytes`."""
    if not path.is_file():
        raise FileFormatError(f"{path} is not a file", expected="an existing file", code=ErrorCode.FILE_MISSING)
    size = path.stat().st_size
    if size == 0:
        raise malformed(path, "the file is empty", "a trajectory", "the recording or the copy may be truncated")
    if size > max_bytes:
        raise malformed(path, f"the file has {size:,} bytes", f"at most {max_bytes:,}", "cut out the part to preview")
