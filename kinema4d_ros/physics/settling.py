"""Start of a simulated member: the arm at its measured joints, objects at rest, held ones between the fingers.

    joints, fitted poses ─> open fingers that are inside a held object ─> close them ─> heavily damped rest ─> MjData

Fitted poses overlap or float by a few millimetres. The damping turns what would be a jump into a small shift; the
result is taken as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.kinematics.gripping import finger_links
from kinema4d_ros.physics.model import place_arm
from kinema4d_ros.robot.model import Robot

__all__ = ["GRIP_SHARE", "SETTLE_S", "settle"]

Array = NDArray[np.float64]

SETTLE_S = 0.2
"""Duration of the rest before the motion."""
DAMPING_HZ = 100.0
"""Damping of objects during the rest: they fall at 0.1 m/s and stop within 10 ms."""
GRIP_SHARE = 0.1
"""Least command of fingers around a held object, as a share of the stroke beyond the contact. A measured finger stands
where the object stops it, so a plan from measured joints does not tell how hard the driver closes it.
"""
_OPENING_STEPS = 50
_TOUCH_M = 2e-4
"""Overlap of a finger and a held object that counts as contact, not as inside."""


def settle(
    model: mujoco.MjModel,
    robot: Robot,
    objects: Sequence[str],
    start: Array,
    command: Array,
    held: Sequence[str] = (),
) -> tuple[mujoco.MjData, Array]:
    """Bring a model to rest and return its data at time 0, with the servo commands (J,) that keep it there.

    Args:
        model: with `robot` and the objects; unchanged afterwards.
        robot: of the model.
        objects: names of all objects.
        start: (J,) measured joint positions.
        command: (J,) what the controller commands at the start.
        held: objects between the fingers. They do not fall before the motion, and the fingers are commanded at least
            `GRIP_SHARE` of the stroke further than the contact.
    """
    data = mujoco.MjData(model)
    place_arm(model, data, robot, start)
    command = command.copy()
    bodies = [model.body(name).id for name in objects]
    freedoms = np.array([model.body_dofadr[b] + i for b in bodies for i in range(6)], dtype=np.intp)
    lifted = [model.body(name).id for name in held]
    trees = model.body_treeid[lifted]
    policies = model.tree_sleep_policy[trees].copy()
    # An object that falls asleep in mid-air would never fall.
    model.tree_sleep_policy[trees] = int(mujoco.mjtSleepPolicy.mjSLEEP_NEVER)
    model.dof_damping[freedoms] = DAMPING_HZ * model.dof_M0[freedoms]
    model.body_gravcomp[lifted] = 1.0
    steps = round(SETTLE_S / model.opt.timestep)
    if held and robot.gripper is not None:
        _open_until_free(model, data, robot, start, lifted)
        data.ctrl[:] = command
        mujoco.mj_step(model, data, nstep=steps)
        command = _gripping(model, data, robot, command)
    data.ctrl[:] = command
    before = data.time
    mujoco.mj_step(model, data, nstep=steps)
    if not (data.time > before + SETTLE_S / 2 and np.isfinite(data.qpos).all()):
        # MuJoCo resets itself on overflow. Begin as fitted; the motion then shows whether that is stable.
        mujoco.mj_resetData(model, data)
        place_arm(model, data, robot, start)
    model.tree_sleep_policy[trees] = policies
    model.dof_damping[freedoms] = 0.0
    model.body_gravcomp[lifted] = 0.0
    data.qvel[:] = 0.0
    data.time = 0.0
    return data, command


def _open_until_free(
    model: mujoco.MjModel, data: mujoco.MjData, robot: Robot, start: Array, lifted: Sequence[int]
) -> None:
    """Open the fingers from their measured position until none is inside a held object, or they are fully open."""
    gripper = robot.gripper
    if gripper is None:
        return
    column = robot.joint_names.index(gripper.joint)
    fingers = {model.body(name).id for name in finger_links(robot)}
    q = start.copy()
    for position in np.linspace(start[column], gripper.open, _OPENING_STEPS):
        q[column] = position
        place_arm(model, data, robot, q)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_collision(model, data)
        pairs = model.geom_bodyid[data.contact.geom[: data.ncon]].reshape(-1, 2)
        inside = data.contact.dist[: data.ncon] < -_TOUCH_M
        if not any(({int(a), int(b)} & fingers) and ({int(a), int(b)} & {*lifted}) for a, b in pairs[inside]):
            return


def _gripping(model: mujoco.MjModel, data: mujoco.MjData, robot: Robot, command: Array) -> Array:
    """Return the commands with fingers commanded far enough beyond where a held object stopped them."""
    gripper = robot.gripper
    if gripper is None:
        return command
    column = robot.joint_names.index(gripper.joint)
    stroke = gripper.closed - gripper.open
    stopped = float(data.qpos[model.joint(gripper.joint).qposadr[0]])
    least = stopped + GRIP_SHARE * stroke
    gripping = command.copy()
    if (least - command[column]) * stroke > 0:
        # Never beyond the joint's own range: a thin object is held with what is left of the stroke.
        low, high = sorted((gripper.closed, gripper.open))
        gripping[column] = min(max(least, low), high)
    return gripping
