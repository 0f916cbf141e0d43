"""MuJoCo models of any robot with a table and objects, its trajectory controller, and ensembles of simulations."""

from kinema4d_ros.physics.controller import TrajectoryController
from kinema4d_ros.physics.ensemble import Contact, Member, MemberRun, run_members
from kinema4d_ros.physics.model import TIMESTEP_S, Materials, Room, build_model, build_spec, tune_servos
from kinema4d_ros.physics.objects import LabObject, PlacedObject

__all__ = [
    "TIMESTEP_S",
    "Contact",
    "LabObject",
    "Materials",
    "Member",
    "MemberRun",
    "PlacedObject",
    "Room",
    "TrajectoryController",
    "build_model",
    "build_spec",
    "run_members",
    "tune_servos",
]
