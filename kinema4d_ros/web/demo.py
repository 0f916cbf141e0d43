"""Plans of the page's buttons: pick and place on the lab's table, and a motion to the home position."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, KinematicsError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.kinematics.protocol import Kinematics, NoSolution
from kinema4d_ros.lab.scripted import home_plan, pick_and_place_plan
from kinema4d_ros.lab.simulation import LabState
from kinema4d_ros.physics.objects import PlacedObject

__all__ = ["free_spots", "plan_home", "plan_pick_and_place"]

_RADII_M = (0.26, 0.30, 0.34)
_BEARINGS_DEG = (-40.0, -30.0, -20.0, -10.0, 0.0, 10.0, 20.0, 30.0, 40.0)
_ENOUGH_M = 0.10
_TRIES = 6

Array = NDArray[np.float64]


def free_spots(objects: Mapping[str, PlacedObject], name: str) -> list[Array]:
    """Return positions x, y (2,) in metres on the table for placing an object, the one with the most room first.

    The motion of the object should be visible, so positions near its current one come last.
    """
    held = objects[name]
    spots = [np.array([r * np.cos(a), r * np.sin(a)]) for r in _RADII_M for a in np.radians(np.array(_BEARINGS_DEG))]

    def room(spot: Array) -> float:
        gaps = [
            float(np.linalg.norm(spot - other.position[:2])) - other.object.radius - held.object.radius
            for other in objects.values()
            if other is not held
        ]
        travel = float(np.linalg.norm(spot - held.position[:2]))
        # Room is capped at _ENOUGH_M; among spots with enough room the nearest one wins.
        return min([*gaps, travel, _ENOUGH_M]) - 0.01 * travel

    return sorted(spots, key=lambda spot: -room(spot))


def plan_pick_and_place(
    kinematics: Kinematics, q: Array, objects: Mapping[str, PlacedObject], name: str
) -> JointTrajectory:
    """Plan a pick and place of an object to a free position, starting at joint positions (J,)."""
    if name not in objects:
        raise KinematicsError(
            f"object '{name}' is not on the table",
            expected=f"one of {', '.join(objects) or '(no objects known)'}",
            code=ErrorCode.SCENARIO_UNKNOWN,
        )
    refusal: NoSolution | None = None
    for spot in free_spots(objects, name)[:_TRIES]:
        try:
            return pick_and_place_plan(_state(kinematics, q, objects, name, spot), name, kinematics)
        except NoSolution as error:
            refusal = refusal or error
    raise refusal or KinematicsError("there is no free position on the table", expected="room for the object")


def plan_home(kinematics: Kinematics, q: Array) -> JointTrajectory:
    """Plan a motion from joint positions (J,) to the robot's home; the gripper does not move."""
    return home_plan(_state(kinematics, q, {}, "", np.zeros(2)), kinematics)


def _state(kinematics: Kinematics, q: Array, objects: Mapping[str, PlacedObject], target: str, goal: Array) -> LabState:
    still = np.zeros_like(q)
    return LabState(
        time_s=0.0,
        joint_names=kinematics.robot.joint_names,
        positions=q,
        velocities=still,
        efforts=still,
        commanded=q,
        base_T_link=kinematics.forward(q),
        objects=objects,
        target=target,
        goal=goal,
        moving=False,
    )
