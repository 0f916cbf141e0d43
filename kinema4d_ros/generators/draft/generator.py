"""`DraftGenerator`: what physics says a motion will do to the objects that the camera sees.

    image, depth? ─ fit ─> FittedScene ─ draw_members ─> Members
    Members, commands ─ run_members ─> runs ─ cluster_outcomes ─> outcomes ─ SceneDrawer ─> Rollout

The physics of the members are drawn from `config/draft.yaml`, never read from the lab. Where an object that the motion
concerns is fitted badly, the rollout says that it cannot tell, and what would help.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

import kinema4d_ros
from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.core.outcomes import (
    MAX_EVENTS,
    MAX_OBJECTS,
    MAX_OUTCOMES,
    MAX_UNKNOWNS,
    ObjectMotion,
    Outcome,
    Patches,
    patches_between,
)
from kinema4d_ros.core.rollout import WARNING, DepthBasis, Frames, Provenance, Rollout
from kinema4d_ros.generators.carry import MAX_RANGE_M
from kinema4d_ros.generators.composite import show_still
from kinema4d_ros.generators.draft.detection import Detector, has_detector, load_detector
from kinema4d_ros.generators.draft.draw import Drawing, Drawn, SceneDrawer
from kinema4d_ros.generators.draft.fit import fit_scene
from kinema4d_ros.generators.draft.members import draw_members, open_room
from kinema4d_ros.generators.draft.outcomes import MOVED_M, DraftOutcome, cluster_outcomes
from kinema4d_ros.generators.draft.outlines import OutlineOptions, fit_image
from kinema4d_ros.generators.draft.priors import Priors, read_priors
from kinema4d_ros.generators.draft.scene import Estimate, FittedScene
from kinema4d_ros.generators.protocol import (
    Cancel,
    CommandedMotion,
    GenerateRequest,
    Progress,
    ReceiveFrames,
    ReportProgress,
    deliver,
    raise_if_cancelled,
    request_sha256,
)
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.physics.ensemble import Member, MemberRun, run_members
from kinema4d_ros.physics.objects import PlacedObject

__all__ = ["DraftGenerator", "Simulated", "require_motion", "why_unknown"]

MEMBERS = 8
NEAR_M = 0.10
"""Objects within this distance of the gripper's trajectory concern the motion."""
MISFIT = 1.0
"""Above this misfit of an object that the motion concerns, the draft cannot tell."""
FROM_RGB = "The objects were found in the image alone, by a detector that knows only the simulated lab."
"""Warning of a draft without measured depth."""

Fit = Callable[[GenerateRequest, Cancel | None], FittedScene]


@dataclass(frozen=True, eq=False)
class Simulated:
    """What a draft simulated, before it is drawn.

    Attributes:
        scene: the fitted objects.
        members: variants of the scene, the first with the best estimates.
        runs: what happened in each member.
        outcomes: what happened distinctly, the most probable first.
        unknowns: why the draft cannot tell; empty = it can.
    """

    scene: FittedScene
    members: Sequence[Member]
    runs: Sequence[MemberRun]
    outcomes: Sequence[DraftOutcome]
    unknowns: tuple[str, ...]


class DraftGenerator:
    """Generator that simulates the commanded motion in fitted scenes.

    Args:
        table_height_m: height of the supporting plane above the robot's base, metres.
        max_range_m: maximum distance of the assumed plane from the camera.
        members: simulated variants of the scene.
        priors: a YAML file like `config/draft.yaml`; "" = that file.
        threads: of the simulation; None = all cores.
        shadows: move the shadows of robot and objects where a lamp is found.
        fit: fits the objects of a request, in place of the built-in fits: measured depth, or outlines from RGB.
    """

    name = "draft"

    def __init__(
        self,
        *,
        table_height_m: float = 0.0,
        max_range_m: float = MAX_RANGE_M,
        members: int = MEMBERS,
        priors: str | Path = "",
        threads: int | None = None,
        shadows: bool = True,
        fit: Fit | None = None,
    ) -> None:
        """Read the priors."""
        if isinstance(members, bool) or not 1 <= members <= 256:
            raise _refuse(f"members is {members}", "1 to 256")
        if not np.isfinite(table_height_m):
            raise _refuse(f"table_height_m is {table_height_m}", "finite metres")
        self.table_height_m = float(table_height_m)
        self._max_range_m, self._members, self._threads, self._shadows = max_range_m, members, threads, shadows
        self._priors = read_priors(priors or None)
        self._fit = fit or self._fit_request
        self._detector: Detector | None = None
        self._last: tuple[bytes, FittedScene] | None = None
        self._drawer: tuple[bytes, SceneDrawer] | None = None
        self._drafted = b""

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
        """Generate the rollout; deliver the scene at rest at once, then the most probable outcome as it is drawn."""
        require_motion(request)
        self.show_still(request, receive, cancel)
        return self.draft(request, receive, progress, cancel)

    def show_still(self, request: GenerateRequest, receive: ReceiveFrames | None, cancel: Cancel | None = None) -> None:
        """Deliver the scene at rest, while nothing is fitted yet."""
        show_still(request, receive, cancel, table_height_m=self.table_height_m, max_range_m=self._max_range_m)

    def draft(
        self,
        request: GenerateRequest,
        receive: ReceiveFrames | None = None,
        progress: ReportProgress | None = None,
        cancel: Cancel | None = None,
        *,
        final: bool = True,
    ) -> Rollout:
        """Generate the rollout; deliver the most probable outcome, not as final if the caller is going to change it."""
        report = progress or (lambda _: None)
        scene = self._fitted(request, report, cancel)
        key = b"" if self._last is None else self._last[0]
        kept, self._drafted = key == self._drafted, key
        with ThreadPoolExecutor(1) as beside:
            # What is drawn of the scene does not depend on the motion, and most of it uses one core only.
            preparing = None if self._threads == 1 else beside.submit(self._drawer_of, request, scene)
            made = self._simulated(request, scene, report, cancel)
            shown = made.outcomes[:MAX_OUTCOMES]
            stage = Progress("draw", 0, len(shown))
            raise_if_cancelled(cancel, stage)
            report(stage)
            drawer = self._drawer_of(request, scene) if preparing is None else preparing.result()

        def drawn(start: int, frames: Frames) -> None:
            raise_if_cancelled(cancel, stage)
            deliver(receive, "draft", start, frames, final=final)

        main = self._draw(drawer, request, made, shown[0], drawn)
        alternatives: list[Patches] = []
        for number, outcome in enumerate(shown[1:], 1):
            stage = Progress("draw", number, len(shown))
            raise_if_cancelled(cancel, stage)
            report(stage)
            other = self._draw(drawer, request, made, outcome)
            alternatives.append(patches_between(main.frames, other.frames, main.basis, other.basis))
        report(Progress("draw", len(shown), len(shown)))
        # Few members cannot show rare outcomes: of K members, one more that may do anything stays open. A judge that
        # counts it half arrives at the mean of Jeffreys' posterior.
        certain = len(made.members) / (len(made.members) + 1)
        return Rollout(
            *main.frames.arrays,
            request.camera,
            request.times,
            self._provenance(request, made, kept),
            plan_hash=request.plan_hash,
            outcomes=tuple(Outcome(o.probability * certain, o.label, _events(o), _objects(o, made)) for o in shown),
            alternatives=tuple(alternatives),
            basis=main.basis,
            unknowns=made.unknowns[:MAX_UNKNOWNS],
        )

    def simulate(
        self, request: GenerateRequest, progress: ReportProgress | None = None, cancel: Cancel | None = None
    ) -> Simulated:
        """Fit the scene and simulate the motion in every member, without drawing."""
        report = progress or (lambda _: None)
        return self._simulated(request, self._fitted(request, report, cancel), report, cancel)

    def _fitted(self, request: GenerateRequest, report: ReportProgress, cancel: Cancel | None) -> FittedScene:
        require_motion(request)
        stage = Progress("fit", 0, 1)
        raise_if_cancelled(cancel, stage)
        report(stage)
        return self.scene_of(request, cancel)

    def _simulated(
        self, request: GenerateRequest, scene: FittedScene, report: ReportProgress, cancel: Cancel | None
    ) -> Simulated:
        motion = require_motion(request)
        stage = Progress("simulate", 0, self._members)
        raise_if_cancelled(cancel, stage)
        report(stage)
        rng = np.random.default_rng([request.seed, 4])
        members = draw_members(scene, motion.robot, self._priors, self._members, rng)
        runs = self.run(request, scene, members, cancel)
        outcomes = cluster_outcomes(runs, scene, request.robot.grip)
        return Simulated(scene, members, runs, outcomes, why_unknown(scene, runs, request))

    @property
    def priors(self) -> Priors:
        """Priors of what the image does not show."""
        return self._priors

    def run(
        self, request: GenerateRequest, scene: FittedScene, members: Sequence[Member], cancel: Cancel | None = None
    ) -> list[MemberRun]:
        """Simulate the request's motion in members of its scene."""
        motion = require_motion(request)
        return run_members(
            motion.robot,
            members,
            motion.commands,
            request.times,
            start=motion.commands.positions[0],
            room=open_room(scene.table_height_m, scene.table),
            threads=self._threads,
            cancel=cancel,
        )

    def refusal(self, request: GenerateRequest, cancel: Cancel | None = None) -> str:
        """Return why there is no draft of this request, for callers with another generator; "" = there is one.

        The scene is fitted for it; `generate` uses that fit again.
        """
        if request.motion is None:
            return "the request has no commands to simulate"
        if request.depth is None and self._fit == self._fit_request and not has_detector():
            return "there is neither measured depth nor a detector's weights"
        scene = self.scene_of(request, cancel)
        if not scene.objects:
            return "; ".join(("no object can be fitted", *scene.notes))
        return ""

    def scene_of(self, request: GenerateRequest, cancel: Cancel | None = None) -> FittedScene:
        """Fit the objects of a request; the last scene is kept: another plan for the same image costs no fit."""
        key = _scene_key(request)
        if self._last is None or self._last[0] != key:
            self._last = (key, self._fit(request, cancel))
        return self._last[1]

    def _fit_request(self, request: GenerateRequest, cancel: Cancel | None) -> FittedScene:
        if request.depth is None:
            # The detector and its torch are loaded only where they are needed.
            self._detector = self._detector or load_detector()
            mask = request.robot.link_ids[0] != 0
            options = OutlineOptions(seed=request.seed % 2**32)
            return fit_image(
                request.image,
                request.camera,
                mask,
                table_height_m=self.table_height_m,
                detector=self._detector,
                options=options,
            )
        return fit_scene(
            request.image,
            request.depth,
            request.robot,
            request.camera,
            table_height_m=self.table_height_m,
            seed=request.seed % 2**32,
            cancel=cancel,
        )

    def _drawer_of(self, request: GenerateRequest, scene: FittedScene) -> SceneDrawer:
        """Return the drawer of the request's scene; the last one is kept, with its background, lamp and colours."""
        key, motion = _scene_key(request), require_motion(request)
        if self._drawer is None or self._drawer[0] != key or self._drawer[1].scene is not scene:
            made = SceneDrawer(
                request.image,
                request.robot,
                scene,
                depth=request.depth,
                max_range_m=self._max_range_m,
                shadows=self._shadows,
                model=motion.robot,
                base_T_link=_link_poses(motion, request.times[:1])[0],
            )
            self._drawer = (key, made)
        return self._drawer[1]

    def _draw(
        self,
        drawer: SceneDrawer,
        request: GenerateRequest,
        made: Simulated,
        outcome: DraftOutcome,
        drawn: Drawn | None = None,
    ) -> Drawing:
        run = made.runs[outcome.representative]
        shapes = [_estimate(placed) for placed in made.members[outcome.representative].objects]
        poses = _link_poses(require_motion(request), request.times)
        return drawer.draw(request.robot, run.base_T_object, shapes, poses, drawn)

    def _provenance(self, request: GenerateRequest, made: Simulated, kept: bool) -> Provenance:
        basis: DepthBasis = "measured" if request.depth is not None else "plane"
        doubts = {WARNING: FROM_RGB} if request.depth is None and self._fit == self._fit_request else {}
        if made.scene.notes:
            doubts["notes"] = "; ".join(made.scene.notes)
        return Provenance(
            generator=self.name,
            preset="depth" if request.depth is not None else "rgb",
            checkpoint_sha256=self._detector.sha256 if self._detector is not None and request.depth is None else "",
            depth=basis,
            input_sha256=request_sha256(request),
            seed=request.seed,
            versions={
                "kinema4d_ros": kinema4d_ros.__version__,
                "mujoco": mujoco.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
                "members": str(len(made.members)),
                "scene": "kept from an earlier request on the same image" if kept else "fitted for this request",
                **doubts,
            },
        )


def require_motion(request: GenerateRequest) -> CommandedMotion:
    """Return the commands of a request; GENERATOR_BAD_REQUEST without any."""
    if request.motion is None:
        raise GeneratorError(
            "the request has no commands",
            expected="the robot and its commanded trajectory, which a draft simulates",
            hint="pass motion=CommandedMotion(robot, commands); over ROS, update the client",
            code=ErrorCode.GENERATOR_BAD_REQUEST,
        )
    return request.motion


def _link_poses(motion: CommandedMotion, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the poses (T, L, 4, 4) of the links at the frames' times, metres, base frame."""
    return forward_all(motion.robot, motion.commands.at(times))


def _scene_key(request: GenerateRequest) -> bytes:
    """Hash what a fit depends on: image, depth, camera, and the robot of frame 0."""
    whole = hashlib.sha256(np.ascontiguousarray(request.image).data)
    whole.update(b"none" if request.depth is None else np.ascontiguousarray(request.depth).data)
    for array in (request.camera.K, request.camera.base_T_camera):
        whole.update(np.ascontiguousarray(array, dtype="<f8").data)
    whole.update(np.ascontiguousarray(request.robot.link_ids[0]).data)
    grip = request.robot.grip
    if grip is not None:
        whole.update(np.ascontiguousarray([*grip.base_T_grip[0].ravel(), grip.width_m[0]]).data)
    whole.update(str(request.seed).encode())
    return whole.digest()


def _events(outcome: DraftOutcome) -> tuple[tuple[float, str], ...]:
    """Put the contacts into words."""
    said = [(one.time_s, f"{one.other} touches {one.object}") for one in outcome.events if one.other != "table"]
    return tuple(said[:MAX_EVENTS])


def _objects(outcome: DraftOutcome, made: Simulated) -> tuple[ObjectMotion, ...]:
    """State how every object moves in the outcome's representative member; motions within the fit's error are none."""
    run = made.runs[outcome.representative]
    found = []
    for one, path in zip(made.scene.objects, run.base_T_object[:, :, :3, 3].transpose(1, 0, 2), strict=True):
        away = np.linalg.norm(path - path[0], axis=1)
        moves = away > MOVED_M
        first = float(run.times[int(np.argmax(moves))]) if moves.any() else None
        start, end = path[0].tolist(), path[-1].tolist()
        found.append(ObjectMotion(one.name, tuple(start), tuple(end), float(away.max()), first))
    return tuple(found[:MAX_OBJECTS])


def _estimate(placed: PlacedObject) -> Estimate:
    """Return the shape and pose that a member simulated."""
    thing = placed.object
    return Estimate(thing.shape, thing.size, placed.base_T_object, 1.0, thing.vertices)


def why_unknown(scene: FittedScene, runs: Sequence[MemberRun], request: GenerateRequest) -> tuple[str, ...]:
    """List why the draft cannot tell: objects that the motion concerns and that are fitted badly."""
    grip = request.robot.grip
    path = np.zeros((0, 3)) if grip is None else grip.base_T_grip[:, :3, 3]
    help_ = "a better view" if request.depth is not None else "a depth image or a better view"
    found = []
    for one in scene.objects:
        touched = any(
            contact.object == one.name and contact.other not in ("table", "floor")
            for run in runs
            for contact in run.contacts
        )
        away = np.linalg.norm(path - one.estimates[0].base_T_object[:3, 3], axis=1)
        near = bool(len(away)) and float(away.min()) <= NEAR_M
        if one.misfit > MISFIT and (touched or near):
            found.append(
                f"the shape of {one.name} is uncertain (misfit {one.misfit:.1f}, more than {MISFIT:g}): "
                f"{help_} would help"
            )
    if not all(run.stable for run in runs):
        lost = sum(not run.stable for run in runs)
        found.append(f"the physics of {lost} of {len(runs)} members became unstable: a slower motion would help")
    return tuple(found)


def _refuse(what: str, expected: str) -> GeneratorError:
    return GeneratorError(what, expected=expected, code=ErrorCode.GENERATOR_BAD_REQUEST)
