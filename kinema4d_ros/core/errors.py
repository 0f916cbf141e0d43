"""Error codes and exceptions of the package: a code, the problem, the expected value and a hint.

Nodes put the code and the text into action results and diagnostics; the command line prints them on one screen.
Codes never change meaning once released; `kinema4d_msgs/msg/ErrorCode.msg` repeats the table for ROS, and a test
compares the two.
"""

from __future__ import annotations

from enum import IntEnum, unique

__all__ = [
    "AssetError",
    "CalibrationError",
    "CameraError",
    "Cancelled",
    "DataError",
    "ErrorCode",
    "EvaluationError",
    "FileFormatError",
    "GeneratorError",
    "KinemaError",
    "KinematicsError",
    "MeshError",
    "PointmapError",
    "RenderError",
    "RobotError",
    "RolloutError",
    "SetupError",
    "TrajectoryError",
]


@unique
class ErrorCode(IntEnum):
    """Stable numbers, grouped by hundreds.

    Robot (1), kinematics (2), trajectory (3), camera (4), render (5), files (6), generation and playback (7),
    execution (8), live inputs (9), policies (10).
    """

    NONE = 0
    UNKNOWN = 1
    SETUP_MISSING = 2
    ARGUMENT_INVALID = 3
    PARAMETER_INVALID = 4

    URDF_MALFORMED = 100
    URDF_UNSAFE = 101
    URDF_UNSUPPORTED = 102
    MESH_MISSING = 110
    MESH_UNSAFE_PATH = 111
    MESH_MALFORMED = 112
    UNKNOWN_JOINT = 120
    UNKNOWN_LINK = 121
    NO_GRIPPER = 122

    IK_NO_SOLUTION = 200
    BACKEND_MISSING = 201

    TRAJECTORY_EMPTY = 300
    TRAJECTORY_NOT_FINITE = 301
    TRAJECTORY_NOT_MONOTONIC = 302
    TRAJECTORY_OUT_OF_LIMITS = 303
    TRAJECTORY_BAD_SHAPE = 304
    TRAJECTORY_TOO_FAST = 305

    CAMERA_BAD_INTRINSICS = 400
    CAMERA_BAD_DISTORTION = 401
    CAMERA_BAD_SIZE = 402
    NOT_A_ROTATION = 403
    CALIBRATION_INVALID = 404
    CALIBRATION_FRAME_MISMATCH = 405
    CALIBRATION_POOR = 406

    RENDER_BAD_INPUT = 500
    POINTMAP_BAD_INPUT = 510
    POINTMAP_EMPTY = 511
    WIRE_CORRUPT = 512

    FILE_MISSING = 600
    FILE_MALFORMED = 601
    FILE_UNSUPPORTED = 602
    FILE_NOT_WRITABLE = 603

    GENERATOR_BUSY = 700
    GENERATOR_FAILED = 701
    GENERATOR_OUT_OF_MEMORY = 702
    GENERATOR_TIMEOUT = 703
    GENERATOR_UNAVAILABLE = 704
    CANCELLED = 705
    GENERATOR_BAD_REQUEST = 706
    METRIC_REFUSED = 707
    GENERATOR_OTHER_ROBOT = 708
    NO_ROLLOUT = 710
    PLAYBACK_BAD_COMMAND = 711
    ROLLOUT_INVALID = 712

    PLAN_START_MISMATCH = 800
    PLAN_UNKNOWN = 801
    PLAN_STALE = 802
    PLAN_SUPERSEDED = 803
    WORLD_CHANGED = 804
    APPROVAL_INVALID = 810
    APPROVAL_EXPIRED = 811
    APPROVAL_USED = 812
    ARM_MOVED = 813
    ARM_BUSY = 814
    ARM_UNAVAILABLE = 815
    ARM_REFUSED = 816
    ARM_ABORTED = 817

    JOINT_STATES_STALE = 900
    JOINT_STATES_INVALID = 901
    CAMERA_STALE = 902
    IMAGE_INVALID = 903
    SCENARIO_UNKNOWN = 904
    GRAPH_UNAVAILABLE = 905

    POLICY_UNAVAILABLE = 1000
    POLICY_FAILED = 1001
    POLICY_TIMEOUT = 1002
    POLICY_BAD_ACTION = 1003


_MAX_LETTERS = 1500


def _shown(text: str) -> str:
    """Shorten and escape text for logs and terminals: file contents may be huge or hold control characters."""
    if len(text) > _MAX_LETTERS:
        text = f"{text[: _MAX_LETTERS - 300]} [{len(text) - _MAX_LETTERS:,} letters] {text[-300:]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


class KinemaError(Exception):
    """Base of all deliberate errors.

    Args:
        what: the problem, with the offending value.
        expected: a valid value.
        hint: what the user can do.
        code: an `ErrorCode`; each subclass has a default.

    >>> str(KinemaError("joint 'elbow' is not in robot 'yam'", expected="one of joint1, joint2"))
    "[UNKNOWN] joint 'elbow' is not in robot 'yam'; expected one of joint1, joint2"
    """

    default_code = ErrorCode.UNKNOWN

    def __init__(
        self,
        what: str,
        *,
        expected: str = "",
        hint: str = "",
        code: ErrorCode | None = None,
    ) -> None:
        self.code = self.default_code if code is None else code
        self.what = _shown(what)
        self.expected = _shown(expected)
        self.hint = _shown(hint)
        super().__init__(self.what)

    def name_file(self, path: object) -> None:
        """Prefix the message with the path of the file being read, unless it already contains it."""
        name = _shown(str(path))
        if name not in str(self):
            self.what = f"{name}: {self.what}"
            self.args = (self.what,)

    def __str__(self) -> str:
        text = f"[{self.code.name}] {self.what}"
        if self.expected:
            text += f"; expected {self.expected}"
        if self.hint:
            text += f" ({self.hint})"
        return text


class SetupError(KinemaError):
    """Missing package, compiler or device on this machine."""

    default_code = ErrorCode.SETUP_MISSING


class RobotError(KinemaError):
    """Unusable URDF, or a name that the robot does not have."""

    default_code = ErrorCode.URDF_MALFORMED


class MeshError(RobotError):
    """Mesh file that is missing, malformed or outside its package."""

    default_code = ErrorCode.MESH_MALFORMED


class KinematicsError(KinemaError):
    """Kinematics problem without a solution or without a back-end."""

    default_code = ErrorCode.BACKEND_MISSING


class TrajectoryError(KinemaError):
    """Trajectory that must not be rendered or executed."""

    default_code = ErrorCode.TRAJECTORY_BAD_SHAPE


class CameraError(KinemaError):
    """Invalid intrinsics, distortion, size or pose of a camera."""

    default_code = ErrorCode.CAMERA_BAD_INTRINSICS


class CalibrationError(CameraError):
    """Invalid or inaccurate calibration file."""

    default_code = ErrorCode.CALIBRATION_INVALID


class RenderError(KinemaError):
    """Input that the renderer cannot draw."""

    default_code = ErrorCode.RENDER_BAD_INPUT


class PointmapError(KinemaError):
    """Pointmap data that cannot be normalised, encoded or decoded."""

    default_code = ErrorCode.POINTMAP_BAD_INPUT


class FileFormatError(KinemaError):
    """File that is missing, truncated or of the wrong type."""

    default_code = ErrorCode.FILE_MALFORMED


class RolloutError(KinemaError):
    """Invalid rollout arrays, or data that does not fit a report."""

    default_code = ErrorCode.ROLLOUT_INVALID


class EvaluationError(KinemaError):
    """Images, point clouds or tasks that cannot be evaluated; the text names the frame or field."""

    default_code = ErrorCode.ROLLOUT_INVALID


class DataError(KinemaError):
    """Damaged or inconsistent data; the text names the episode or file."""

    default_code = ErrorCode.FILE_MALFORMED


class AssetError(KinemaError):
    """Images, poses, masks or meshes from which no robot can be built; the text names them and the reason."""

    default_code = ErrorCode.IMAGE_INVALID


class GeneratorError(KinemaError):
    """Generator that is unavailable, got an invalid request, or failed."""

    default_code = ErrorCode.GENERATOR_FAILED


class Cancelled(GeneratorError):  # noqa: N818 - an outcome, not a failure
    """Cancellation of a request by its client; not a failure."""

    default_code = ErrorCode.CANCELLED
