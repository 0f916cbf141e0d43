"""Damped closed-loop inverse kinematics of one arm, on pinocchio: local, seeded, inside the limits."""

from __future__ import annotations

import numpy as np
import pinocchio as pin
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, KinematicsError
from kinema4d_ros.kinematics._kernels import damped_step
from kinema4d_ros.kinematics.protocol import ROTATION_WEIGHT_M, LocalSolution
from kinema4d_ros.robot.model import Robot

__all__ = ["ArmModel"]

Array = NDArray[np.float64]

MAX_ITERATIONS = 50
POSITION_GOAL_M = 1e-5
ROTATION_GOAL_RAD = 1e-4
MIN_DAMPING = 1e-6
ERROR_DAMPING = 0.5
MAX_STEP = 0.3
PATIENCE = 4
POSTURE_WEIGHT = 0.01


class ArmModel:
    """The chain from base to tool as a pinocchio model, built from the robot without a second URDF parser.

    Positions here are over `robot.arm` only, (A,).
    """

    def __init__(self, robot: Robot) -> None:
        """Build the model; a mimic joint on the chain is refused."""
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
        self._tool = model.addFrame(pin.Frame("tool", parent, placement, pin.FrameType.OP_FRAME))
        self._model = model
        self._data = model.createData()
        self._no_drift = np.zeros(model.nq)
        self._weights = np.array([1.0] * 3 + [ROTATION_WEIGHT_M] * 3)

    def tool_pose(self, q: Array) -> Array:
        """(4, 4) `base_T_tool` at arm positions (A,)."""
        pin.forwardKinematics(self._model, self._data, q)
        placement = pin.updateFramePlacement(self._model, self._data, self._tool)
        return np.array(placement.homogeneous)

    def solve(self, base_T_tool: Array, seed: Array, posture: Array | None = None) -> LocalSolution:
        """The configuration closest to a pose that a damped descent from the seed (A,) finds.

        Each step solves for the weighted pose error with damping that grows with it, so far
        targets are approached calmly and singular ones do not explode. A joint that a step
        would push past its limit stops there, and the others make up for it.

        With a posture (A,), configurations near it are preferred, weakly and only as far as the
        pose is out of reach: an arm stretched towards a far target then keeps its elbow on the
        side from which it came, at the price of a fraction of a millimetre.
        """
        target = pin.SE3(base_T_tool)
        q = np.clip(seed, self.lower, self.upper)
        best, best_cost, stale = q, np.inf, 0
        error, best_error = np.empty(6), np.full(6, np.inf)
        for iteration in range(MAX_ITERATIONS + 1):
            pin.computeJointJacobians(self._model, self._data, q)
            placement = pin.updateFramePlacement(self._model, self._data, self._tool)
            # Distance and angle apart, not a screw: far from the target too, closest means closest.
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
