"""`PinocchioKinematics`: kinematics without ROS: compiled forward, damped inverse on pinocchio.

first pose                                    rest of the path
closed form, if the axes allow it ────┐
seeds from a table of configurations ─┴─> damped descent ─> follow(): continue, never flip
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pinocchio as pin
from numpy.typing import ArrayLike, NDArray

from kinema4d_ros.core.errors import ErrorCode, KinematicsError
from kinema4d_ros.kinematics._kernels import damped_step
from kinema4d_ros.kinematics.closed_form import ParallelAxesArm
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.kinematics.path import follow, make_path, require_poses, require_seed
from kinema4d_ros.kinematics.protocol import ROTATION_WEIGHT_M, IKPath, LocalSolution
from kinema4d_ros.robot.model import Robot

__all__ = ["ArmModel", "PinocchioKinematics"]

# Damped closed-loop inverse kinematics of one arm: local, seeded, inside the limits.

MAX_ITERATIONS = 50
POSITION_GOAL_M = 1e-5
ROTATION_GOAL_RAD = 1e-4
MIN_DAMPING = 1e-6
ERROR_DAMPING = 0.5
MAX_STEP = 0.3
PATIENCE = 4
POSTURE_WEIGHT = 0.01


class ArmModel:
    """Chain from base to tool as a pinocchio model, built from the robot without a second URDF parser.

    Positions are those of `robot.arm` only, (A,).
    """

    def __init__(self, robot: Robot) -> None:
        """Build the model; reject a mimic joint on the chain."""
        self.robot = robot
        self.lower = np.array([j.limits.lower for j in robot.arm])
        self.upper = np.array([j.limits.upper for j in robot.arm])
        model = pin.Model()
        parent, placement = 0, pin.SE3.Identity()
        for name in robot.chain(robot.tool_link):
            joint = robot.joint(name)
            placement = placement * pin.SE3(joint.parent_T_joint)
            if not joint.moves:
                continue
            if joint.mimic is not None:
                raise KinematicsError(
                    f"joint '{name}' between base and tool follows joint '{joint.mimic.joint}'",
                    expected="a chain of independent joints; only grippers may have mimic joints",
                    hint="choose another tool link",
                    code=ErrorCode.URDF_UNSUPPORTED,
                )
            motion = pin.JointModelPrismaticUnaligned if joint.kind == "prismatic" else pin.JointModelRevoluteUnaligned
            parent = model.addJoint(parent, motion(joint.axis), placement, name)
            placement = pin.SE3.Identity()
        # With a parent frame, although it says nothing here: pinocchio 2 has no other form.
        self._tool = model.addFrame(pin.Frame("tool", parent, 0, placement, pin.FrameType.OP_FRAME))
        self._model = model
        self._data = model.createData()
        self._no_drift = np.zeros(model.nq)
        self._weights = np.array([1.0] * 3 + [ROTATION_WEIGHT_M] * 3)

    def tool_pose(self, q: Array) -> Array:
        """Return (4, 4) `base_T_tool` at arm positions (A,)."""
        pin.forwardKinematics(self._model, self._data, q)
        placement = pin.updateFramePlacement(self._model, self._data, self._tool)
        return np.array(placement.homogeneous)

    def solve(self, base_T_tool: Array, seed: Array, posture: Array | None = None) -> LocalSolution:
        """Search from the seed (A,) for the configuration closest to a pose, by damped descent.

        Each step solves for the weighted pose error with damping that grows with it, so that the search is stable
        far from the target and near singularities. A joint that would pass its limit stops there, and the others
        compensate.

        With a posture (A,), configurations near it are preferred, weakly and only as far as the pose is out of reach:
        an arm stretched towards a far target then keeps its elbow on the same side, at the cost of a fraction of a
        millimetre.
        """
        target = pin.SE3(base_T_tool)
        q = np.clip(seed, self.lower, self.upper)
        best, best_cost, stale = q, np.inf, 0
        error, best_error = np.empty(6), np.full(6, np.inf)
        for iteration in range(MAX_ITERATIONS + 1):
            pin.computeJointJacobians(self._model, self._data, q)
            placement = pin.updateFramePlacement(self._model, self._data, self._tool)
            # Separate distance and angle, not a screw, so that the result is closest also far from the target.
            left = placement.actInv(target)
            error[:3], error[3:] = left.translation, pin.log3(left.rotation)
            weighted = self._weights * error
            cost = float(weighted @ weighted)
            damping = MIN_DAMPING + ERROR_DAMPING * cost
            drift = self._no_drift
            if posture is not None:
                pull = POSTURE_WEIGHT * np.sqrt(cost)
                away = posture - q
                cost += pull * float(away @ away)
                drift = away * (pull / (damping + pull))
                damping += pull
            if cost < best_cost * (1.0 - 1e-6):
                best, best_cost, best_error, stale = q, cost, error.copy(), 0
            else:
                stale += 1
            linear, angular = error[:3], error[3:]
            arrived = linear @ linear < POSITION_GOAL_M**2 and angular @ angular < ROTATION_GOAL_RAD**2
            if arrived or stale >= PATIENCE or iteration == MAX_ITERATIONS:
                break
            jacobian = pin.getFrameJacobian(self._model, self._data, self._tool, pin.LOCAL)
            q = damped_step(q, jacobian, error, self._weights, damping, MAX_STEP, self.lower, self.upper, drift)
        return LocalSolution(best, float(np.linalg.norm(best_error[:3])), float(np.linalg.norm(best_error[3:])))


Array = NDArray[np.float64]

TABLE_SIZE = 4096
RESTARTS = 24
SEARCHED_STARTS = 3
"""Number of solutions after which a search without a closed form stops, to bound its time."""
SAME_BRANCH = 0.1
"""Radians: solutions closer than this in every joint are the same."""


class PinocchioKinematics:
    """Forward and inverse kinematics of any robot with an arm; see `protocol.Kinematics`."""

    def __init__(self, robot: Robot) -> None:
        """Prepare the chain from base to tool."""
        if not robot.arm:
            raise KinematicsError(
                f"no joint moves the tool link '{robot.tool_link}' of robot '{robot.name}'",
                expected="a tool link at the end of an arm",
            )
        self._robot = robot
        self._arm = ArmModel(robot)
        self._closed_form = ParallelAxesArm.of(robot)
        self._columns = np.array([robot.joint_names.index(joint.name) for joint in robot.arm])

    @property
    def robot(self) -> Robot:
        """Robot of this solver."""
        return self._robot

    def forward(self, q: ArrayLike) -> Array:
        """Return (L, 4, 4) `base_T_link` in `robot.links` order at one configuration (J,)."""
        poses: Array = self.forward_all(np.asarray(q, dtype=np.float64)[None])[0]
        return poses

    def forward_all(self, q: ArrayLike) -> Array:
        """Return (T, L, 4, 4) `base_T_link` at configurations (T, J)."""
        return forward_all(self._robot, q)

    def inverse(self, base_T_tool: ArrayLike, seed: ArrayLike | None = None) -> Array:
        """Return (J,) positions for one tool pose (4, 4), or raise `NoSolution`; see `protocol.Kinematics`."""
        path = self.solve_path(np.asarray(base_T_tool, dtype=np.float64)[None], seed)
        path.require_reached()
        q: Array = path.q[0]
        return q

    def solve_path(self, base_T_tool: ArrayLike, seed: ArrayLike | None = None) -> IKPath:
        """Return joint positions along tool poses (T, 4, 4); see `protocol.Kinematics`.

        With a seed the path starts with the solution that continues from it. Without one, every solution of the first
        pose is tried, those closest to home first; the first one that follows the whole path is used, or else the one
        that follows most of it.
        """
        poses = require_poses(base_T_tool)
        start = require_seed(self._robot, seed)
        near = start[self._columns]
        starts: list[LocalSolution] = []
        if seed is not None:
            starts = [s for s in [self._arm.solve(poses[0], near)] if s.reached]
        starts = starts or self._starts(poses[0], near)
        best: list[LocalSolution] = []
        most = -1
        for first in starts:
            solutions = follow(self._arm, poses, first)
            count = sum(s.reached for s in solutions)
            if count > most:
                best, most = solutions, count
            if most == len(poses):
                break
        return make_path(self._robot, self._arm, best, start)

    def _starts(self, pose: Array, near: Array) -> list[LocalSolution]:
        """Return distinct solutions for a pose, closest to `near` first; if there is none, the closest miss."""
        seeds = [] if self._closed_form is None else list(self._closed_form.solve(pose, near))
        found = self._distinct(pose, seeds, near, limit=8)
        if found:
            return found
        seeds = [near]
        if self._closed_form is not None:
            seeds += list(self._closed_form.solve(pose, near, stretch=True))
        seeds += list(self._table_seeds(pose))
        found = self._distinct(pose, seeds, near, limit=SEARCHED_STARTS)
        return found or [min((self._arm.solve(pose, s) for s in seeds), key=lambda s: s.cost)]

    def _distinct(self, pose: Array, seeds: list[Array], near: Array, limit: int) -> list[LocalSolution]:
        found: list[LocalSolution] = []
        for seed in seeds:
            if len(found) == limit:
                break
            solution = self._arm.solve(pose, seed)
            if solution.reached and all(np.max(np.abs(solution.q - f.q)) > SAME_BRANCH for f in found):
                found.append(solution)
        return sorted(found, key=lambda s: float(np.linalg.norm(s.q - near)))

    def _table_seeds(self, pose: Array) -> Array:
        configurations, tools = self._table
        offset = np.linalg.norm(tools[:, :3, 3] - pose[:3, 3], axis=1)
        cosine = (np.einsum("nij,ij->n", tools[:, :3, :3], pose[:3, :3]) - 1.0) / 2.0
        turned = ROTATION_WEIGHT_M * np.arccos(np.clip(cosine, -1.0, 1.0))
        return configurations[np.argsort(np.hypot(offset, turned), kind="stable")[:RESTARTS]]

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """Configurations (N, A) distributed over the limits, deterministic, and their tool poses (N, 4, 4)."""
        lower = np.where(np.isfinite(self._arm.lower), self._arm.lower, -np.pi)
        upper = np.where(np.isfinite(self._arm.upper), self._arm.upper, np.pi)
        configurations = np.random.default_rng(0).uniform(lower, upper, (TABLE_SIZE, lower.size))
        return configurations, np.array([self._arm.tool_pose(q) for q in configurations])
