"""Robustness of a plan: its success probability, and the offset of the grasp at which it fails.

    request ─ fit ─> scene ─ draw_members(calibration) ─> runs ─ Task.outcome ─> probability
    scene shifted along and across the closing axis ─> runs ─ Task.outcome ─> share of successes ─> Margin by direction

All objects that stand on the table are shifted together, as an error of the calibration or of the grasp would do; so
shifted objects never overlap. Directions are named as the camera sees them: left, right, away, nearer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import Cancelled, ErrorCode, GeneratorError, KinemaError
from kinema4d_ros.core.pointmap import GripTrack
from kinema4d_ros.core.task import Lifted, Task, make_task
from kinema4d_ros.core.transforms import invert
from kinema4d_ros.generators.carry import Grasp, find_grasps
from kinema4d_ros.generators.draft.generator import NEAR_M, DraftGenerator, require_motion, why_unknown
from kinema4d_ros.generators.draft.members import CameraSpread, draw_members
from kinema4d_ros.generators.draft.outcomes import smoothed, success_share
from kinema4d_ros.generators.draft.scene import FittedScene
from kinema4d_ros.generators.protocol import Cancel, GenerateRequest, Progress, ReportProgress, raise_if_cancelled
from kinema4d_ros.physics.ensemble import Member
from kinema4d_ros.physics.objects import PlacedObject

__all__ = ["Margin", "Robustness", "find_robustness", "sweep_direction"]

Array = NDArray[np.float64]

MEMBERS = 16
"""Members of the success probability."""
VARIANTS = 5
"""Members that are simulated at every offset; odd, so that a majority exists."""
REACH_M = 0.04
"""Largest offset of the sweep: objects that a gripper holds are seldom longer than twice this."""
COARSE = 5
"""Offsets in a direction that are simulated before the failing one is narrowed down."""
HALVINGS = 3
"""Times that the interval between the last success and the first failure is halved."""
_LEVEL = 0.3
"""Length of the horizontal part of a closing axis below which the gripper does not close along the table."""


@dataclass(frozen=True, eq=False)
class Margin:
    """How far the objects may be shifted in one direction.

    Attributes:
        name: "left", "right", "away" or "nearer", as the camera sees it.
        direction: (3,) float64 horizontal unit vector, base frame.
        closing: along the axis on which the fingers close; False = across it.
        offset_m: at which the share of successes falls to one half or less; 0 = fails without any offset; infinite =
            succeeds at all offsets of the sweep.
        sure_m: largest offset up to which all variants succeed; 0 = not even without an offset, or only there.
        lost_m: smallest offset at which no variant succeeds; infinite = none such in the sweep.
        offsets_m: (N,) float64, offsets that were simulated, increasing, the first 0.
        share: (N,) float64 0 to 1, share of the variants that succeed at each.
    """

    name: str
    direction: Array
    closing: bool
    offset_m: float
    sure_m: float
    lost_m: float
    offsets_m: Array
    share: Array


@dataclass(frozen=True, eq=False)
class Robustness:
    """How likely a plan succeeds, and what offset of the objects makes it fail.

    Attributes:
        target: name of the object in the fitted scene; "" = none was found.
        instruction: of the task that decides about success.
        probability: of success, 0 to 1; NaN = cannot tell.
        members: simulated for the probability.
        calibration: the members also differ by the covariance of the camera's calibration.
        margins: two along the closing axis, two across; empty = cannot tell.
        reach_m: largest offset of the sweep, metres.
        resolution_m: of the failing offsets: half of the last interval, metres.
        variants: simulated at every offset.
        unknowns: why it cannot tell, one sentence each; empty = it can.
    """

    target: str
    instruction: str
    probability: float
    members: int
    calibration: bool
    margins: tuple[Margin, ...]
    reach_m: float
    resolution_m: float
    variants: int
    unknowns: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether the robustness can be told."""
        return not self.unknowns

    def sentence(self) -> str:
        """Say it in plain words."""
        if not self.known:
            return f"Robustness: cannot tell. {'; '.join(self.unknowns)}."
        spread = "fit, physics and calibration" if self.calibration else "fit and physics; no covariance of the camera"
        first = f"'{self.instruction}' succeeds with probability {self.probability:.2f} ({spread})."
        sides = [f"{_metres(one, self.reach_m)} {one.name}" for one in self.margins]
        axis = "-".join(one.name for one in self.margins if one.closing)
        seen = f"as the camera sees it (± {1000 * self.resolution_m:.1f} mm; the fingers close {axis})."
        if any(one.offset_m > 0 for one in self.margins):
            return f"{first} It succeeds with {self.target} off by up to {', '.join(sides)}, {seen}"
        better = [(d, one.name) for one in self.margins for d in one.offsets_m[one.share > 0.5].tolist()]
        if not better:
            return f"{first} It fails without any offset, and at all offsets up to {1000 * self.reach_m:.0f} mm."
        offset, name = min(better)
        hope = f"it would succeed with {self.target} {1000 * offset:.0f} mm {name}"
        return f"{first} It fails without any offset; {hope}, {seen}"

    def document(self) -> dict[str, Any]:
        """Return plain data for JSON: metres; null = cannot tell, "beyond" = more than `reach_m`."""
        return {
            "target": self.target,
            "instruction": self.instruction,
            "known": self.known,
            "unknowns": list(self.unknowns),
            "sentence": self.sentence(),
            "probability": _plain(self.probability),
            "members": self.members,
            "calibration": self.calibration,
            "reach_m": self.reach_m,
            "resolution_m": self.resolution_m,
            "variants": self.variants,
            "margins": {
                one.name: {
                    "offset_m": _plain(one.offset_m),
                    "sure_m": _plain(one.sure_m),
                    "lost_m": _plain(one.lost_m),
                    "closing": one.closing,
                    "direction_base": [round(float(x), 6) for x in one.direction],
                    "offsets_m": [round(float(x), 6) for x in one.offsets_m],
                    "share": [round(float(x), 4) for x in one.share],
                }
                for one in self.margins
            },
        }


def find_robustness(
    generator: DraftGenerator,
    request: GenerateRequest,
    task: Task | None = None,
    *,
    camera: CameraSpread | None = None,
    reach_m: float = REACH_M,
    members: int = MEMBERS,
    variants: int = VARIANTS,
    progress: ReportProgress | None = None,
    cancel: Cancel | None = None,
) -> Robustness:
    """Find the success probability of a plan and the offsets at which it fails.

    Args:
        generator: fits and simulates the scene.
        request: image, depth, robot and commands.
        task: decides about success; a target that the fitted scene does not have is replaced by the object nearest to
            the grasp. None = the goal that the plan has: lift, put down at the place of release, or push.
        camera: covariance of the calibration, for the probability.
        reach_m: largest offset to try.
        members: of the probability.
        variants: simulated at every offset; odd.
        progress: called after every simulated part.
        cancel: polled; True raises `Cancelled`.

    Raises:
        GeneratorError: the request has no commands, or a number is out of range.
    """
    if not (np.isfinite(reach_m) and 0.001 <= reach_m <= 0.2 and 1 <= members <= 256 and 1 <= variants <= 63):
        raise GeneratorError(
            f"a reach of {reach_m} m with {members} members and {variants} variants",
            expected="1 to 200 mm, 1 to 256 members and 1 to 63 variants",
            code=ErrorCode.GENERATOR_BAD_REQUEST,
        )
    motion = require_motion(request)
    parts = 2 + COARSE + HALVINGS
    told = 0

    def tell() -> None:
        nonlocal told
        stage = Progress("robustness", told, parts)
        raise_if_cancelled(cancel, stage)
        if progress is not None:
            progress(stage)
        told += 1

    tell()
    grip = request.robot.grip
    lost: tuple[str, ...] = ()
    try:
        scene = generator.scene_of(request, cancel)
    except KinemaError as error:
        # Without depth the fit needs a detector, which may be missing; with depth an error is an error.
        if request.depth is not None or isinstance(error, Cancelled):
            raise
        scene, lost = FittedScene((), generator.table_height_m), (f"no depth was measured, and {error.what}",)
    asked, frame, problems = (None, 0, lost) if lost else _aim(scene, grip, task)
    resolution_m = reach_m / COARSE / 2**HALVINGS / 2
    told_not = Robustness(
        "" if asked is None else asked.target,
        "" if asked is None else asked.instruction,
        math.nan,
        members,
        camera is not None,
        (),
        reach_m,
        resolution_m,
        variants,
        problems,
    )
    if asked is None or grip is None:
        return told_not
    rng = np.random.default_rng([request.seed, 7])
    drawn = draw_members(scene, motion.robot, generator.priors, members, rng, camera=camera)
    runs = generator.run(request, scene, drawn, cancel)
    problems = (*problems, *why_unknown(scene, runs, request))
    if problems:
        return replace(told_not, unknowns=problems)
    probability = smoothed(success_share(runs, scene, asked), members)
    tell()
    rng = np.random.default_rng([request.seed, 8])
    base = draw_members(scene, motion.robot, generator.priors, variants, rng)
    ways = _directions(grip.base_T_grip[frame], request.camera.base_T_camera)
    shares: list[dict[float, float]] = [{} for _ in ways]

    def simulate(wanted: Sequence[tuple[int, float]]) -> None:
        """Simulate offsets (way, metres), all members of all of them in one ensemble."""
        tell()
        shifted = [_shifted(member, ways[way][1] * offset) for way, offset in wanted for member in base]
        made = generator.run(request, scene, shifted, cancel)
        for k, (way, offset) in enumerate(wanted):
            part = made[k * variants : (k + 1) * variants]
            shares[way][offset] = success_share(part, scene, asked)

    simulate([(0, 0.0)])
    for known in shares:
        known[0.0] = shares[0][0.0]
    # Outwards, and in a direction only as far as the plan succeeds; if it fails at 0, look where it would succeed.
    fails = shares[0][0.0] <= 0.5
    for step in range(1, COARSE + 1):
        going = [way for way, known in enumerate(shares) if fails or min(known.values()) > 0.5]
        if going:
            simulate([(way, reach_m * step / COARSE) for way in going])
    for _ in range(HALVINGS):
        middles = [(way, sweep_direction(known)) for way, known in enumerate(shares)]
        open_ = [(way, (a + b) / 2) for way, (a, b) in middles if 0.0 <= a < b < math.inf]
        if open_:
            simulate(open_)
    margins = tuple(
        _margin(name, way, closing, known) for (name, way, closing), known in zip(ways, shares, strict=True)
    )
    return replace(told_not, probability=probability, margins=margins, unknowns=())


def sweep_direction(share: dict[float, float]) -> tuple[float, float]:
    """Return the last offset with success before the first failure, and that failure.

    `share` maps offsets in metres, 0 among them, to the share of successes. (-1, 0) = fails at 0; (x, infinite) = no
    failure.

    >>> sweep_direction({0.0: 1.0, 0.01: 0.8, 0.02: 0.2, 0.03: 1.0})
    (0.01, 0.02)
    >>> sweep_direction({0.0: 1.0, 0.01: 0.8})
    (0.01, inf)
    """
    last = -1.0
    for offset in sorted(share):
        if share[offset] <= 0.5:
            return last, offset
        last = offset
    return last, math.inf


def _margin(name: str, way: Array, closing: bool, share: dict[float, float]) -> Margin:
    good, bad = sweep_direction(share)
    offsets = np.array(sorted(share))
    values = np.array([share[x] for x in offsets.tolist()])
    imperfect = np.flatnonzero(values < 1)
    sure = len(offsets) - 1 if not len(imperfect) else max(0, int(imperfect[0]) - 1)
    lost = np.flatnonzero(values <= 0)
    return Margin(
        name,
        way,
        closing,
        offset_m=0.0 if good < 0 else (good + bad) / 2,
        sure_m=float(offsets[sure]),
        lost_m=float(offsets[lost[0]]) if len(lost) else math.inf,
        offsets_m=offsets,
        share=values,
    )


def _aim(scene: FittedScene, grip: GripTrack | None, task: Task | None) -> tuple[Task | None, int, tuple[str, ...]]:
    """Return the task with a target of the scene, the frame of the grasp, and why nothing can be told."""
    if grip is None:
        return None, 0, ("the robot has no gripper, so there is no grasp to shift",)
    if not scene.objects:
        return None, 0, ("no object was found in the image",)
    names = [one.name for one in scene.objects]
    positions = np.stack([one.estimates[0].base_T_object[:3, 3] for one in scene.objects])
    grasps = find_grasps(grip)
    frames = np.array([grasp.closed for grasp in grasps] if grasps else range(len(grip)))
    away = np.linalg.norm(grip.base_T_grip[frames, None, :3, 3] - positions[None], axis=-1)
    if task is not None and task.target in names:
        away[:, [i for i, name in enumerate(names) if name != task.target]] = np.inf
    which, column = np.unravel_index(int(np.argmin(away)), away.shape)
    frame, target = int(frames[which]), scene.objects[int(column)]
    problems = []
    if float(away[which, column]) > NEAR_M:
        problems.append(f"no object within {1000 * NEAR_M:.0f} mm of the gripper")
    if target.held:
        problems.append(f"{target.name} is in the gripper from the start, so there is no grasp to shift")
    if task is not None:
        return replace(task, target=target.name), frame, tuple(problems)
    made = _own_goal(grip, grasps[int(which)] if grasps else None, target.name, positions[int(column)])
    if made is None:
        problems.append("the plan neither lifts nor releases what it grasps; name a task")
    return made, frame, tuple(problems)


def _own_goal(grip: GripTrack, grasp: Grasp | None, target: str, position: Array) -> Task | None:
    """Return what a plan is for: push without a grasp, place if the fingers open again, pick if they rise."""
    if grasp is None:
        return make_task("push", target)
    if grasp.release < len(grip):
        carried = grip.base_T_grip[grasp.release - 1] @ invert(grip.base_T_grip[grasp.closed])
        return make_task("place", target, goal_xy=(carried @ [*position, 1.0])[:2])
    rise = float(grip.base_T_grip[-1, 2, 3] - grip.base_T_grip[grasp.closed, 2, 3])
    return make_task("pick", target) if rise > Lifted().height_m else None


def _directions(base_T_grip: Array, base_T_camera: Array) -> list[tuple[str, Array, bool]]:
    """Return name, horizontal unit vector (3,) in the base frame and whether the fingers close along it, four times."""
    up = np.array([0.0, 0.0, 1.0])
    right = _level(base_T_camera[:3, 0], np.array([0.0, -1.0, 0.0]))
    closing = _level(base_T_grip[:3, 0], right)
    axes = (closing, np.cross(up, closing))
    away = np.cross(up, right)
    sideways = 0 if abs(axes[0] @ right) >= abs(axes[1] @ right) else 1
    found = []
    for k, axis in enumerate(axes):
        toward, names = (right, ("right", "left")) if k == sideways else (away, ("away", "nearer"))
        plus = axis if axis @ toward >= 0 else -axis
        found += [(names[0], plus, k == 0), (names[1], -plus, k == 0)]
    return found


def _level(direction: Array, otherwise: Array) -> Array:
    """Return the horizontal part of a unit vector as a unit vector; `otherwise` if it is almost vertical."""
    flat = np.array([direction[0], direction[1], 0.0])
    length = float(np.linalg.norm(flat))
    return flat / length if length > _LEVEL else otherwise


def _shifted(member: Member, by: Array) -> Member:
    """Return the member with all objects that nothing holds moved by (3,) metres."""
    moved = []
    for placed in member.objects:
        pose = placed.base_T_object.copy()
        if placed.name not in member.held:
            pose[:3, 3] += by
        moved.append(PlacedObject(placed.object, pose))
    return replace(member, objects=tuple(moved))


def _metres(margin: Margin, reach_m: float) -> str:
    if math.isinf(margin.offset_m):
        return f"more than {1000 * reach_m:.0f} mm"
    return f"{1000 * margin.offset_m:.0f} mm"


def _plain(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return "beyond" if math.isinf(value) else round(value, 6)
