"""MuJoCo models of any robot with a table and objects, and its trajectory controller."""

from kinema4d_ros.physics.controller import TrajectoryController
from kinema4d_ros.physics.model import TIMESTEP_S, Materials, Room, build_model, build_spec, tune_servos
from kinema4d_ros.physics.objects import LabObject, PlacedObject

__all__ = [
    "TIMESTEP_S",
    "LabObject",
    "Materials",
    "PlacedObject",
    "Room",
    "TrajectoryController",
    "build_model",
    "build_spec",
    "tune_servos",
]
